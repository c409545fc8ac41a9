package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"
)

// Check returns nil when this build may use the database: every file of this
// build is recorded with its generation, or the database is newer and admits
// it. The errors are ErrServerTooOld, ErrTooNew, ErrNotReady, or the cause.
func Check(ctx context.Context, db *pgdb.DB) error {
	files, err := embedded()
	if err != nil {
		return err
	}
	return db.Do(ctx, "check schema", func(ctx context.Context, conn *pgx.Conn) error {
		if err := checkServer(ctx, conn); err != nil {
			return err
		}
		rec, err := readRecord(ctx, conn)
		if err != nil {
			return explainRead(err, db.Config())
		}
		if newer, err := rec.newer(); newer {
			return err
		}
		if rec.exists && len(rec.files) == 0 {
			return checkByHand(ctx, conn)
		}
		if !rec.complete(files) {
			return fmt.Errorf("%w: generation %d is needed, the database has %d or is being upgraded",
				ErrNotReady, Generation, rec.generation)
		}
		return nil
	})
}

// checkByHand admits a database to which an operator applied the files with
// psql, who then answers for the version: the record is empty. The same is seen
// for a moment while the first applier is at work; that one holds the lock.
func checkByHand(ctx context.Context, conn *pgx.Conn) error {
	var applying bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
		  AND classid = 0 AND objid = $1::int::oid AND objsubid = 1 AND granted)`, lockID).Scan(&applying)
	if err != nil {
		return fmt.Errorf("look for an applier: %w", err)
	}
	if applying {
		return fmt.Errorf("%w: it is being applied", ErrNotReady)
	}
	return nil
}

// checkServer refuses a PostgreSQL that is too old, by name.
func checkServer(ctx context.Context, conn *pgx.Conn) error {
	var number int
	var name string
	const q = `SELECT current_setting('server_version_num')::int, current_setting('server_version')`
	if err := conn.QueryRow(ctx, q).Scan(&number, &name); err != nil {
		return fmt.Errorf("read the server version: %w", err)
	}
	return admitServer(number, name)
}

func admitServer(number int, name string) error {
	if number < minServerVersion {
		return fmt.Errorf("%w: this server is PostgreSQL %s", ErrServerTooOld, name)
	}
	return nil
}
