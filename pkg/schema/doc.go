// Package schema applies the embedded SQL files to a database and tells whether
// a database is ready for this build.
//
// What was applied is recorded in queen.schema_files, one row per file with its
// SHA-256 and the generation of the binary. An identical boot finds its own sums
// and runs no DDL. A binary older than the database applies nothing, and runs
// only if the recorded minimum compatible generation admits it.
//
// Applying is safe under traffic: each statement is its own small transaction
// (a drop-and-create pair shares one), no lock is waited for longer than two
// seconds at a time, and appliers exclude one another by a session lock.
package schema
