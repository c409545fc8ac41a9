// Package sql embeds the database half of Queen: schema.sql and the numbered
// procedure files, exactly as they are applied to PostgreSQL.
//
// The package imports nothing but the standard library, so that any tool can
// read the files without pulling in a driver.
package sql

import "embed"

// Files holds schema.sql and procedures/NNN_name.sql. The order of application
// is schema.sql first, then the procedures in lexical order of their names.
//
//go:embed schema.sql procedures/*.sql
var Files embed.FS
