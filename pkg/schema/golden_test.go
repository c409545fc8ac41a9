package schema_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
)

//nolint:gochecknoglobals // a flag of the test binary
var update = flag.Bool("update", false, "write testdata/schema.golden.txt anew")

// The sections of the dump. Each query gives one line per row, in an order of
// its own; names of owners and anything that differs between the supported
// versions of PostgreSQL is left out.
var sections = []struct{ title, query string }{ //nolint:gochecknoglobals // a table of the test
	{"schemas", `
		SELECT n.nspname || coalesce(' public: ' || (SELECT string_agg(x.privilege_type, ',' ORDER BY x.privilege_type)
			FROM aclexplode(n.nspacl) AS x WHERE x.grantee = 0), '')
		FROM pg_namespace AS n WHERE n.nspname IN ('queen', 'queen_streams') ORDER BY n.nspname`},
	{"columns (table, column, type, null, default, storage)", `
		SELECT format('%s.%s %s %s%s%s%s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
			CASE WHEN a.attnotnull THEN 'not null' ELSE 'null' END,
			CASE WHEN a.attidentity <> '' THEN ' identity ' || a.attidentity::text ELSE '' END,
			coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), ''),
			CASE WHEN a.attstorage <> t.typstorage THEN ' storage ' || a.attstorage::text ELSE '' END)
		FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_type AS t ON t.oid = a.atttypid
		LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') AND c.relkind IN ('r', 'v')
		  AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY c.oid::regclass::text COLLATE "C", a.attnum`},
	{"constraints", `
		SELECT format('%s %s %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
		FROM pg_constraint AS c
		WHERE c.connamespace::regnamespace::text IN ('queen', 'queen_streams') AND c.contype <> 'n' AND c.conrelid <> 0
		ORDER BY c.conrelid::regclass::text COLLATE "C", c.conname`},
	{"indexes", `
		SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
		WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') ORDER BY c.oid::regclass::text COLLATE "C"`},
	{"storage parameters", `
		SELECT format('%s%s %s', CASE WHEN c.relkind = 't' THEN 'toast of ' ELSE '' END,
			coalesce(o.oid, c.oid)::regclass, p.option)
		FROM pg_class AS c LEFT JOIN pg_class AS o ON o.reltoastrelid = c.oid CROSS JOIN unnest(c.reloptions) AS p (option)
		WHERE coalesce(o.relnamespace, c.relnamespace)::regnamespace::text IN ('queen', 'queen_streams')
		ORDER BY coalesce(o.oid, c.oid)::regclass::text COLLATE "C", c.relkind, p.option COLLATE "C"`},
	{"triggers", `
		SELECT pg_get_triggerdef(t.oid) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
		WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') AND NOT t.tgisinternal
		ORDER BY t.tgrelid::regclass::text COLLATE "C", t.tgname`},
	{"table grants to public", `
		SELECT format('%s %s', c.oid::regclass, string_agg(x.privilege_type, ',' ORDER BY x.privilege_type))
		FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS x
		WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') AND x.grantee = 0
		GROUP BY c.oid ORDER BY c.oid::regclass::text COLLATE "C"`},
	{"functions", `
		SELECT format('%s.%s(%s)%s %s %s%s%s%s%s', p.pronamespace::regnamespace, p.proname, pg_get_function_arguments(p.oid),
			coalesce(' returns ' || pg_get_function_result(p.oid), ' procedure'), l.lanname,
			CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
			CASE WHEN p.proisstrict THEN ' strict' ELSE '' END, CASE WHEN p.prosecdef THEN ' security definer' ELSE '' END,
			CASE p.proparallel WHEN 's' THEN ' parallel safe' WHEN 'r' THEN ' parallel restricted' ELSE '' END,
			coalesce(' set ' || array_to_string(p.proconfig, ', '), ''))
		FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
		WHERE p.pronamespace::regnamespace::text IN ('queen', 'queen_streams')
		ORDER BY p.pronamespace::regnamespace::text COLLATE "C", p.proname COLLATE "C", pg_get_function_identity_arguments(p.oid) COLLATE "C"`},
}

// dump describes every object of the schema.
func dump(ctx context.Context, db *pgdb.DB) (string, error) {
	var b strings.Builder
	for _, s := range sections {
		var lines []string
		err := db.Do(ctx, "dump "+s.title, func(ctx context.Context, conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, s.query)
			if err != nil {
				return err
			}
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			return "", err
		}
		b.WriteString("== " + s.title + "\n" + strings.Join(lines, "\n") + "\n\n")
	}
	return b.String(), nil
}

// A difference here is a change of what clients and other services rely on: look
// at it, think of Generation and MinCompatible, then run the test with -update.
func TestTheCatalogueIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	got, err := dump(t.Context(), pgtest.New(t))
	require.NoError(t, err)
	path := filepath.Join("testdata", "schema.golden.txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, missing(string(want), got), "lines of the golden file that are gone; -update after looking at them")
	require.Empty(t, missing(got, string(want)), "lines that the golden file lacks; -update after looking at them")
	require.Equal(t, string(want), got)
}

// missing are the lines of a that b does not have.
func missing(a, b string) string {
	have := strings.Split(b, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(a, "\n"), func(line string) bool {
		return slices.Contains(have, line)
	}), "\n")
}
