package schema_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
	queensql "github.com/queenmq/queen/sql"
)

// corpus is schema.sql with procedure files of the test's own.
func corpus(t *testing.T, procedures map[string]string) fstest.MapFS {
	t.Helper()
	text, err := queensql.Files.ReadFile("schema.sql")
	require.NoError(t, err)
	fsys := fstest.MapFS{"schema.sql": {Data: text}}
	for name, sql := range procedures {
		fsys["procedures/"+name] = &fstest.MapFile{Data: []byte(sql)}
	}
	return fsys
}

func TestAnOlderBinaryAppliesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `UPDATE queen.schema_files SET sha256 = 'newer', generation = 1000 WHERE name = '001_log_schema.sql'`)
	exec(t, db, `INSERT INTO queen.schema_files VALUES ('099_unheard_of.sql', 'newer', 1000, 1)`)
	exec(t, db, refuseDDL)
	for _, force := range []bool{false, true} {
		result, err := schema.Apply(t.Context(), db, schema.Options{Force: force})
		require.NoError(t, err)
		require.True(t, result.Newer)
		require.Equal(t, 1000, result.Found)
		require.Empty(t, result.Applied)
	}
	require.NoError(t, schema.Check(t.Context(), db))

	exec(t, db, `UPDATE queen.schema_files SET min_compatible = 1000 WHERE name = '001_log_schema.sql'`)
	_, err := schema.Apply(t.Context(), db, schema.Options{})
	require.ErrorIs(t, err, schema.ErrTooNew)
	require.ErrorContains(t, err, fmt.Sprintf("generation 1000 and admits binaries from 1000, this one is %d", schema.Generation))
	require.ErrorIs(t, schema.Check(t.Context(), db), schema.ErrTooNew)
}

func TestADatabaseIsReadyWhenAllFilesHaveTheGeneration(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, fmt.Sprintf(`UPDATE queen.schema_files SET generation = %d WHERE name <> 'schema.sql'`, schema.Generation-1))
	require.ErrorIs(t, schema.Check(t.Context(), db), schema.ErrNotReady)

	// The content is the same, so that only the record changes.
	exec(t, db, refuseDDL)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.Empty(t, result.Applied)
	require.NoError(t, schema.Check(t.Context(), db))
}

func TestFilesOfAnotherBuildOfTheGenerationAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, fmt.Sprintf(`INSERT INTO queen.schema_files VALUES ('099_unheard_of.sql', 'x', %d, 1)`, schema.Generation))
	_, err := schema.Apply(t.Context(), db, schema.Options{})
	require.ErrorIs(t, err, schema.ErrUnknownFiles)
	require.ErrorContains(t, err, "099_unheard_of.sql")

	exec(t, db, fmt.Sprintf(`UPDATE queen.schema_files SET generation = %d WHERE name = '099_unheard_of.sql'`, schema.Generation-1))
	_, err = schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err, "a file that was retired since")
}

// answering is a corpus with a function that tells who applied it.
func answering(t *testing.T, build string) fstest.MapFS {
	t.Helper()
	return corpus(t, map[string]string{
		"001_a.sql": `CREATE OR REPLACE FUNCTION queen.build() RETURNS TEXT LANGUAGE sql AS $$ SELECT '` + build + `' $$;`,
		"002_b.sql": `SELECT 1;`,
	})
}

// Two builds of one generation are builds of a developer. The last one wins, as often as
// each of them boots.
func TestTheLastBuildOfAGenerationWins(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	log, lines := logtest.NewRecorder()
	for boot, build := range []string{"one", "two", "one", "one"} {
		_, err := schema.ApplyFS(t.Context(), db, answering(t, build), schema.Options{Logger: log})
		require.NoError(t, err)
		require.Equal(t, build, scan[string](t, db, `SELECT queen.build()`))
		require.Equal(t, min(boot, 2), strings.Count(lines.String(), "another build of this generation"))
	}
}

// An older build boots while a newer one is at work, and after it.
func TestAnOlderBuildLeavesANewerOneAlone(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	_, err := schema.ApplyFS(t.Context(), db, answering(t, "newer"), schema.Options{})
	require.NoError(t, err)
	for _, upgraded := range []string{`name = '001_a.sql'`, `TRUE`} {
		exec(t, db, fmt.Sprintf(`UPDATE queen.schema_files SET generation = %d WHERE %s`, schema.Generation+1, upgraded))
		result, err := schema.ApplyFS(t.Context(), db, answering(t, "older"), schema.Options{Force: true})
		require.NoError(t, err)
		require.True(t, result.Newer)
		require.Equal(t, schema.Generation+1, result.Found)
		require.Equal(t, "newer", scan[string](t, db, `SELECT queen.build()`))
	}
}

func TestFilesAppliedByHandAreAdmitted(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	pieces, err := schema.Pieces()
	require.NoError(t, err)
	for _, p := range pieces {
		exec(t, db, p)
	}
	require.NoError(t, schema.Check(t.Context(), db))

	holdAppliersLock(t, db)
	require.ErrorIs(t, schema.Check(t.Context(), db), schema.ErrNotReady, "the first applier looks the same half-way")
}

func TestAFailureNamesItsFileAndTheNextApplyGoesOnThere(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	const good = `BEGIN; CREATE TABLE queen.once (); COMMIT;`
	broken := map[string]string{"001_a.sql": good, "002_b.sql": `SELECT 1; BEGIN; CREATE TABLE queen.half (); SELECT nonsense; COMMIT;`}
	result, err := schema.ApplyFS(t.Context(), db, corpus(t, broken), schema.Options{})
	require.ErrorContains(t, err, "002_b.sql")
	require.ErrorContains(t, err, "nonsense")
	require.Equal(t, []string{"schema.sql", "001_a.sql"}, result.Applied)
	require.False(t, scan[bool](t, db, `SELECT EXISTS (SELECT 1 FROM pg_class WHERE relname = 'half')`), "a block is one transaction")

	fixed := map[string]string{"001_a.sql": good, "002_b.sql": `SELECT 1;`}
	result, err = schema.ApplyFS(t.Context(), db, corpus(t, fixed), schema.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"002_b.sql"}, result.Applied)
}

// holdAppliersLock acts as another applier until the test ends.
func holdAppliersLock(t *testing.T, db *pgdb.DB) *pgx.Conn {
	t.Helper()
	conn, err := db.Session(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, schema.LockID)
	require.NoError(t, err)
	return conn
}
