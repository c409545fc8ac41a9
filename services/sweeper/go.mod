module github.com/queenmq/queen/services/sweeper

go 1.26.0

replace (
	github.com/queenmq/queen/pkg => ../../pkg
	github.com/queenmq/queen/sql => ../../sql
)
