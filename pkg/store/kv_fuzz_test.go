package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/store"
)

// junk draws a JSON value that an operation may hold by mistake, or on purpose.
func junk() *rapid.Generator[json.RawMessage] {
	return rapid.Custom(func(t *rapid.T) json.RawMessage {
		return json.RawMessage(rapid.SampledFrom([]string{
			`null`, `true`, `false`, `0`, `-0`, `1`, `-1`, `1.5`, `2.0`, `1e3`, `1e-3`, `9223372036854775807`, `9223372036854775808`, `-9223372036854775809`,
			`1e308`, `1e400`, `-1e400`, `1e131071`, `1e-16383`, `100000000000`, `100000000001`, `2147483648`, `10000000000001`,
			`""`, `"n"`, `"k"`, `"K"`, `"0"`, `"1"`, `"NaN"`, `"infinity"`, `"a\nb"`, `"é"`, `"\u007f"`, `"%"`, `"\\"`, `"'"`, `"\"; DROP TABLE queen.kv; --"`,
			`"eA=="`, `"eA"`, `"=="`, `"****"`, `"00000000-0000-0000-0000-000000000001"`, `"{00000000-0000-0000-0000-000000000001}"`, `"default"`,
			`[]`, `{}`, `[[]]`, `[null]`, `["k"]`, `["k","k",""]`, `[1]`, `{"op":"get"}`,
		}).Draw(t, "value"))
	})
}

// operation draws an operation of the given vocabulary: mostly a plausible one, in
// which any member may be missing, doubled by another or replaced by junk.
func operation(ops, fields []string, plausible map[string][]string) *rapid.Generator[json.RawMessage] {
	return rapid.Custom(func(t *rapid.T) json.RawMessage {
		if rapid.IntRange(0, 40).Draw(t, "junk") == 0 {
			return junk().Draw(t, "junk")
		}
		op := map[string]json.RawMessage{}
		for _, f := range fields {
			switch rapid.IntRange(0, 12).Draw(t, f) {
			case 0:
				op[f] = junk().Draw(t, f)
			case 1, 2, 3:
			default:
				if values := plausible[f]; len(values) > 0 {
					op[f] = json.RawMessage(rapid.SampledFrom(values).Draw(t, f))
				}
			}
		}
		if rapid.IntRange(0, 20).Draw(t, "op") > 0 {
			op["op"], _ = json.Marshal(rapid.SampledFrom(ops).Draw(t, "op"))
		}
		text, _ := json.Marshal(op)
		return text
	})
}

// fuzzed calls a procedure with random operations, and holds it to a list of SQLSTATEs.
func fuzzed(t *testing.T, op *rapid.Generator[json.RawMessage], states []string, call func(ctx context.Context, conn *pgx.Conn, ops string, flag bool) (int, error)) {
	t.Helper()
	b := setup(t)
	answered := 0
	rapid.Check(t, func(r *rapid.T) {
		ops := rapid.SliceOfN(op, 0, 4).Draw(r, "ops")
		text, err := json.Marshal(ops)
		require.NoError(r, err)
		flag := rapid.Bool().Draw(r, "flag")
		n := 0
		err = b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			var err error
			n, err = call(ctx, conn, string(text), flag)
			return err
		})
		var pg *pgconn.PgError
		switch {
		case err == nil:
			answered++
			require.Equal(r, len(ops), n, "%s", text)
		case errors.As(err, &pg):
			require.True(r, slices.Contains(states, pg.Code), "%s: %s for %s", pg.Code, pg.Message, text)
		default:
			require.NoError(r, err, "%s", text)
		}
	})
	require.Positive(t, answered, "some of it must be admitted")
}

func TestKVFuzz(t *testing.T) {
	t.Parallel()
	op := operation(
		[]string{"get", "getMany", "getPrefix", "put", "putIfAbsent", "delete", "incr"},
		[]string{"ns", "key", "keys", "prefix", "after", "limit", "keysOnly", "value", "ttlSeconds", "forever", "expect", "required", "delta", "min", "max", "tenant", "index"},
		map[string][]string{
			"ns": {`"n"`, `"m"`}, "key": {`"a"`, `"b"`, `"c"`, `"d"`, `"e"`, `"a/b"`}, "keys": {`["a"]`, `["b","a","b"]`, `[]`}, "prefix": {`"a"`, `"b"`},
			"value": {`1`, `null`, `{"a":[1]}`, `"text"`, `1e200`}, "forever": {`true`}, "required": {`false`, `false`, `true`},
			"delta": {`1`, `-1.5`, `1e300`, `1e65000`}, "index": {`7`},
		})
	fuzzed(t, op, []string{"22023", "22001", "23514"}, func(ctx context.Context, conn *pgx.Conn, ops string, inWire bool) (n int, err error) {
		err = conn.QueryRow(ctx, `SELECT jsonb_array_length(queen.kv_apply_v1($1, $2, NULL, $3))`, ops, store.DefaultTenant(), inWire).Scan(&n)
		return n, err
	})
}
