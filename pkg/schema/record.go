package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// entry is what queen.schema_files says about one file.
type entry struct {
	sha        string
	generation int
}

// record is what queen.schema_files says.
type record struct {
	exists        bool // the table does
	files         map[string]entry
	generation    int // the newest of any file; 0: never applied
	minCompatible int
}

func readRecord(ctx context.Context, conn *pgx.Conn) (record, error) {
	rec := record{files: map[string]entry{}}
	const look = `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE n.nspname = 'queen' AND c.relname = 'schema_files')`
	if err := conn.QueryRow(ctx, look).Scan(&rec.exists); err != nil {
		return rec, fmt.Errorf("look for the schema record: %w", err)
	}
	if !rec.exists {
		return rec, nil
	}
	rows, err := conn.Query(ctx, `SELECT name, sha256, generation, min_compatible FROM queen.schema_files`)
	if err != nil {
		return rec, fmt.Errorf("read the schema record: %w", err)
	}
	var name, sum string
	var generation, minCompatible int
	_, err = pgx.ForEachRow(rows, []any{&name, &sum, &generation, &minCompatible}, func() error {
		rec.files[name] = entry{sha: sum, generation: generation}
		rec.generation = max(rec.generation, generation)
		rec.minCompatible = max(rec.minCompatible, minCompatible)
		return nil
	})
	if err != nil {
		return rec, fmt.Errorf("read the schema record: %w", err)
	}
	return rec, nil
}

// newer tells whether a later build has written to the database, and whether
// that one admits this.
func (r record) newer() (bool, error) {
	if r.generation <= Generation {
		return false, nil
	}
	if r.minCompatible > Generation {
		return true, fmt.Errorf("%w: it is of generation %d and admits binaries from %d, this one is %d",
			ErrTooNew, r.generation, r.minCompatible, Generation)
	}
	return true, nil
}

// checkKnown refuses a record of files that this build does not have although
// it is of the same generation. Those of older generations were retired.
func (r record) checkKnown(files []file) error {
	var strange []string
	for name, e := range r.files {
		known := slices.ContainsFunc(files, func(f file) bool { return f.name == name })
		if !known && e.generation >= Generation {
			strange = append(strange, name)
		}
	}
	if len(strange) == 0 {
		return nil
	}
	slices.Sort(strange)
	return fmt.Errorf("%w: %s (generation %d)", ErrUnknownFiles, strings.Join(strange, ", "), Generation)
}

// outdated lists the files to execute: never applied, or applied with other
// content.
func (r record) outdated(files []file) []file {
	var todo []file
	for _, f := range files {
		if r.files[f.name].sha != f.sha {
			todo = append(todo, f)
		}
	}
	return todo
}

// complete tells whether every file is recorded with this build's generation.
// While a newer schema is being applied, the files that did not change still
// carry the old one.
func (r record) complete(files []file) bool {
	return !slices.ContainsFunc(files, func(f file) bool { return r.files[f.name].generation < Generation })
}
