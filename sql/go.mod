module github.com/queenmq/queen/sql

go 1.26.0
