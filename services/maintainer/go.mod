module github.com/queenmq/queen/services/maintainer

go 1.26.0

replace (
	github.com/queenmq/queen/pkg => ../../pkg
	github.com/queenmq/queen/sql => ../../sql
)
