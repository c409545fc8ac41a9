package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// element is one element of the results of key/value or timer operations.
type element map[string]any

// kv runs operations of the default tenant, which must be answered.
func (b *bench) kv(ops ...string) []element {
	b.t.Helper()
	out, err := b.store.KVApply(b.t.Context(), store.DefaultTenant(), list(ops))
	require.NoError(b.t, err)
	return b.elements(out, len(ops))
}

func (b *bench) elements(doc []byte, n int) []element {
	b.t.Helper()
	var all []element
	require.NoError(b.t, json.Unmarshal(doc, &all), "%s", doc)
	require.Len(b.t, all, n)
	return all
}

// list is a JSON array of the elements.
func list(elements []string) json.RawMessage {
	return json.RawMessage("[" + strings.Join(elements, ",") + "]")
}

// kvRaw calls the procedure itself, for the limits of a transaction and for input
// that the store would not send.
func (b *bench) kvRaw(ops string, inWire bool) (answer string, err error) {
	b.t.Helper()
	err = b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.kv_apply_v1($1, $2, NULL, $3)`, ops, store.DefaultTenant(), inWire).Scan(&answer)
	})
	return answer, err
}

// without is an element that lacks some members.
func (e element) without(names ...string) element {
	out := element{}
	for k, v := range e {
		out[k] = v
	}
	for _, n := range names {
		delete(out, n)
	}
	return out
}

// version of a result, which must be there.
func (e element) version(t *testing.T) int64 {
	t.Helper()
	v, ok := e["version"].(float64)
	require.True(t, ok, "%v", e)
	return int64(v)
}

func put(key string, rest string) string {
	return fmt.Sprintf(`{"op":"put","ns":"n","key":%q,%s}`, key, rest)
}

func putAt(key string, version int64, value string) string {
	return put(key, fmt.Sprintf(`"value":%s,"forever":true,"expect":%d`, value, version))
}

func incr(key string, rest string) string {
	return fmt.Sprintf(`{"op":"incr","ns":"n","key":%q,"forever":true,%s}`, key, rest)
}

func getOp(key string) string { return fmt.Sprintf(`{"op":"get","ns":"n","key":%q}`, key) }

// expired lays a row that has been dead for a second.
func (b *bench) expired(key, value string) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at, created_at)
		VALUES ('n', $1, $2, nextval('queen.kv_version_seq'), now() - INTERVAL '1 second', now() - INTERVAL '1 hour')`, key, value)
}

// kvDump is the content of the table.
func (b *bench) kvDump() (text string) {
	b.t.Helper()
	b.one([]any{&text}, `SELECT COALESCE(jsonb_agg(to_jsonb(k) ORDER BY tenant_id, namespace, key), '[]')::text FROM queen.kv k`)
	return text
}

// sqlState of an error of the database.
func sqlState(t *testing.T, err error) string {
	t.Helper()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	return pg.Code
}

// repeated is n times what f makes.
func repeated(n int, f func(i int) string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

// query reads one text of a query that may fail.
func (b *bench) query(sql string, args ...any) (text string, err error) {
	b.t.Helper()
	err = b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&text)
	})
	return text, err
}
