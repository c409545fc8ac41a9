package pgtest

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/schema"
)

// templateLock serialises the makers of templates on a given server.
const templateLock = 778120011

// ensureTemplate makes the database that clones are made of, once per schema.
// It gets its name when it is complete.
func (s *server) ensureTemplate(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.admin.Copy())
	if err != nil {
		return err
	}
	// Closing the session gives up the lock.
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, templateLock); err != nil {
		return err
	}
	var exists bool
	const q = `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`
	if err := conn.QueryRow(ctx, q, s.template).Scan(&exists); err != nil || exists {
		return err
	}
	building := s.template + "_new"
	if err := s.drop(ctx, building); err != nil {
		return err
	}
	if err := s.create(ctx, building, "TEMPLATE template0"); err != nil {
		return err
	}
	if err := applySchema(ctx, s.config(building)); err != nil {
		return err
	}
	return s.exec(ctx, "ALTER DATABASE "+building+" RENAME TO "+s.template)
}

func applySchema(ctx context.Context, cfg pgdb.Config) error {
	db, err := pgdb.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = schema.Apply(ctx, db, schema.Options{})
	return err
}

// leftovers are databases of test binaries that are gone: clones whose owner
// has no session any more, and templates of other schemas that nobody uses.
const leftovers = `
SELECT d.datname FROM pg_database AS d
WHERE d.datname ~ '^queen_test_[0-9a-f]{8}_' AND d.datname NOT LIKE $1 || '%'
  AND NOT EXISTS (
      SELECT 1 FROM pg_stat_activity AS a
      WHERE a.application_name = regexp_replace(d.datname, '_[0-9]+$', '')
         OR d.datname ~ '_template(_new)?$'
            AND a.application_name LIKE substring(d.datname FOR 19) || '_%')`

func (s *server) dropLeftovers(ctx context.Context) error {
	rows, err := s.owner.Query(ctx, leftovers, s.template)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.drop(ctx, name); err != nil {
			return fmt.Errorf("drop %s: %w", name, err)
		}
	}
	return nil
}
