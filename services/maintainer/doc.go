// Package maintainer is the module of the service that keeps the database in
// shape: the retention leader (session lock 737001) and the stats reconciler
// (transaction lock 737002). It serves no clients and never applies the
// schema; it waits, unready, for the generation it needs.
package maintainer
