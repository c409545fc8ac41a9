package schema

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplitCutsOnlyBetweenStatements(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"plain":               {"SELECT 1; SELECT 2;", []string{"SELECT 1;", "SELECT 2;"}},
		"no final semicolon":  {"SELECT 1", []string{"SELECT 1"}},
		"string":              {"SELECT 'a;''b;'; SELECT 2;", []string{"SELECT 'a;''b;';", "SELECT 2;"}},
		"identifier":          {`SELECT 1 AS "a;b"; SELECT 2;`, []string{`SELECT 1 AS "a;b";`, "SELECT 2;"}},
		"dollar quote":        {"DO $$ BEGIN; END $$; SELECT 2;", []string{"DO $$ BEGIN; END $$;", "SELECT 2;"}},
		"tagged dollar quote": {"DO $a$ $$; $$ $a$; SELECT 2;", []string{"DO $a$ $$; $$ $a$;", "SELECT 2;"}},
		"parameter":           {"SELECT $1; SELECT 2;", []string{"SELECT $1;", "SELECT 2;"}},
		"line comment":        {"-- a; b\nSELECT 1; -- c;\n", []string{"-- a; b\nSELECT 1;"}},
		"nested comment":      {"/* a /* ; */ ; */ SELECT 1;", []string{"/* a /* ; */ ; */ SELECT 1;"}},
		"block":               {"BEGIN; DROP X; CREATE X; COMMIT; SELECT 2;", []string{"BEGIN;\nDROP X;\nCREATE X;\nCOMMIT;", "SELECT 2;"}},
		"empty":               {" ; -- nothing\n ;", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, split(tc.text))
		})
	}
}

func TestFilesAreNumberedAndInOrder(t *testing.T) {
	t.Parallel()
	files, err := embedded()
	require.NoError(t, err)
	require.Equal(t, mainFile, files[0].name)
	shape := regexp.MustCompile(`^[0-9]{3}_[a-z0-9_]+\.sql$`)
	seen := map[string]bool{}
	for i, f := range files[1:] {
		require.Regexp(t, shape, f.name)
		require.False(t, seen[f.name[:3]], "number of %s is taken", f.name)
		seen[f.name[:3]] = true
		require.Less(t, lastName(files, i), f.name)
		require.NotEmpty(t, split(f.text))
	}
}

// lastName is the name before files[1:][i], empty for the first procedure file.
func lastName(files []file, i int) string {
	if i == 0 {
		return ""
	}
	return files[i].name
}

func TestOldServersAreRefusedByName(t *testing.T) {
	t.Parallel()
	err := admitServer(140011, "14.11")
	require.ErrorIs(t, err, ErrServerTooOld)
	require.ErrorContains(t, err, "14.11")
	require.NoError(t, admitServer(150000, "15.0"))
}
