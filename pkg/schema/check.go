package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"
)

// record is what queen.schema_files says.
type record struct {
	sums          map[string]string // file name to SHA-256
	generation    int               // 0: never applied
	minCompatible int
}

// admit tells whether this build may run on the database.
func (r record) admit() error {
	if r.minCompatible > Generation {
		return fmt.Errorf("%w: it is of generation %d and admits binaries from %d, this one is %d",
			ErrTooNew, r.generation, r.minCompatible, Generation)
	}
	return nil
}

func readRecord(ctx context.Context, conn *pgx.Conn) (record, error) {
	rec := record{sums: map[string]string{}}
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('queen.schema_files') IS NOT NULL`).Scan(&exists); err != nil {
		return rec, fmt.Errorf("look for the schema record: %w", err)
	}
	if !exists {
		return rec, nil
	}
	rows, err := conn.Query(ctx, `SELECT name, sha256, generation, min_compatible FROM queen.schema_files`)
	if err != nil {
		return rec, fmt.Errorf("read the schema record: %w", err)
	}
	var name, sum string
	var generation, minCompatible int
	_, err = pgx.ForEachRow(rows, []any{&name, &sum, &generation, &minCompatible}, func() error {
		rec.sums[name] = sum
		rec.generation = max(rec.generation, generation)
		rec.minCompatible = max(rec.minCompatible, minCompatible)
		return nil
	})
	if err != nil {
		return rec, fmt.Errorf("read the schema record: %w", err)
	}
	return rec, nil
}

// Check returns nil when this build may use the database: every file of this
// build is recorded with this generation or a newer one that admits it.
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
			return err
		}
		if rec.generation > Generation {
			return rec.admit()
		}
		if rec.generation < Generation {
			return fmt.Errorf("%w: generation %d is needed, the database has %d", ErrNotReady, Generation, rec.generation)
		}
		for _, f := range files {
			if rec.sums[f.name] == "" {
				return fmt.Errorf("%w: %s is not applied", ErrNotReady, f.name)
			}
		}
		return nil
	})
}
