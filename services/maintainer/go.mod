module github.com/queenmq/queen/services/maintainer

go 1.26.0

require github.com/queenmq/queen/pkg v0.0.0

replace (
	github.com/queenmq/queen/pkg => ../../pkg
	github.com/queenmq/queen/sql => ../../sql
)
