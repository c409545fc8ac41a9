package schema

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSplitCutsOnlyBetweenStatements(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"plain":                 {"SELECT 1; SELECT 2;", []string{"SELECT 1;", "SELECT 2;"}},
		"no final semicolon":    {"SELECT 1 ", []string{"SELECT 1"}},
		"string":                {"SELECT 'a;''b;'; SELECT 2;", []string{"SELECT 'a;''b;';", "SELECT 2;"}},
		"backslash is plain":    {`SELECT 'a\'; SELECT 2;`, []string{`SELECT 'a\';`, "SELECT 2;"}},
		"escape string":         {`SELECT E'a\';b', e'\\'; SELECT 2;`, []string{`SELECT E'a\';b', e'\\';`, "SELECT 2;"}},
		"word that ends in e":   {`SELECT date'a\'; SELECT 2;`, []string{`SELECT date'a\';`, "SELECT 2;"}},
		"identifier":            {`SELECT 1 AS "a;b"; SELECT 2;`, []string{`SELECT 1 AS "a;b";`, "SELECT 2;"}},
		"dollar quote":          {"DO $$ BEGIN; END $$; SELECT 2;", []string{"DO $$ BEGIN; END $$;", "SELECT 2;"}},
		"tagged dollar quote":   {"DO $a$ $$; $b$; $a$; SELECT 2;", []string{"DO $a$ $$; $b$; $a$;", "SELECT 2;"}},
		"parameter":             {"SELECT $1; SELECT 2;", []string{"SELECT $1;", "SELECT 2;"}},
		"two parameters":        {"SELECT $1,$2;SELECT 2;", []string{"SELECT $1,$2;", "SELECT 2;"}},
		"dollar in a name":      {"SELECT a$b$c; SELECT $b$;$b$;", []string{"SELECT a$b$c;", "SELECT $b$;$b$;"}},
		"line comment":          {"-- a; b\nSELECT 1; -- c;\n", []string{"SELECT 1;"}},
		"comment at the end":    {"SELECT 1; -- c;", []string{"SELECT 1;"}},
		"comment in a string":   {"SELECT '--'; SELECT '/*';", []string{"SELECT '--';", "SELECT '/*';"}},
		"quote in a comment":    {"-- it's\nSELECT 1; /* it's */ SELECT 2;", []string{"SELECT 1;", "SELECT 2;"}},
		"nested comment":        {"/* a /* ; */ ; */ SELECT 1 /* ; */;", []string{"SELECT 1 /* ; */;"}},
		"block":                 {"BEGIN; DROP X; -- why\nCREATE X; COMMIT; SELECT 2;", []string{"BEGIN;\nDROP X;\nCREATE X;\nCOMMIT;", "SELECT 2;"}},
		"block, other spelling": {"start transaction; DROP X; end; SELECT 2;", []string{"start transaction;\nDROP X;\nend;", "SELECT 2;"}},
		"standard body": {
			"CREATE FUNCTION f() BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; SELECT 3;",
			[]string{"CREATE FUNCTION f() BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END;", "SELECT 3;"},
		},
		"case outside a body": {"SELECT CASE WHEN true THEN 1 END; SELECT 2;", []string{"SELECT CASE WHEN true THEN 1 END;", "SELECT 2;"}},
		"empty":               {" ; -- nothing\n ;", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := split(tc.text)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestSplitRefusesWhatIsNotClosed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"SELECT 'a;", `SELECT E'a\';`, `SELECT "a;`, "SELECT $$a;", "SELECT $a$ $$;", "SELECT 1 /* /* */;", "BEGIN; SELECT 1;",
	} {
		_, err := split(text)
		require.ErrorIs(t, err, errUnterminated, text)
	}
	_, err := split("SELECT 1;\n\nSELECT 'a;")
	require.ErrorContains(t, err, "line 3")
}

func TestSplitFindsEveryStatementOfAnyFile(t *testing.T) {
	t.Parallel()
	tokens := []string{
		"'a;b'", `"a;b"`, "$$;'$$", "$t$ $$; $t$", "/* ; ' /* ; */ */", "-- ;'\n", "x", "$1", "(", ")", `E'\';'`, "\n",
	}
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOf(rapid.SliceOf(rapid.SampledFrom(tokens))).Draw(t, "bodies")
		var want []string
		var text strings.Builder
		for _, b := range bodies {
			statement := "SELECT " + strings.Join(b, " ") + ";"
			want = append(want, statement)
			text.WriteString(statement + "\n")
		}
		got, err := split(text.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestSplitNeverPanics(t *testing.T) {
	t.Parallel()
	alphabet := []rune(`'"$;-/*\aE BEGINATOMICCASEEND` + "\n\x00é")
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom(alphabet)).Draw(t, "text")
		pieces, err := split(text)
		if err == nil {
			for _, p := range pieces {
				require.NotEmpty(t, strings.TrimSpace(p))
			}
		}
	})
}
