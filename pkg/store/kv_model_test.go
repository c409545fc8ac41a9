package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/store"
)

// modelOp is an operation of which the database itself may make several at once.
type modelOp struct {
	key  string
	op   string
	rest string // CURRENT stands for the version that the key has
}

func modelOps() *rapid.Generator[modelOp] {
	return rapid.Custom(func(t *rapid.T) modelOp {
		o := modelOp{key: fmt.Sprintf("k%d", rapid.IntRange(0, 7).Draw(t, "key"))}
		o.op = rapid.SampledFrom([]string{"get", "put", "put", "putIfAbsent", "delete", "incr", "incr", "incr"}).Draw(t, "op")
		value := rapid.SampledFrom([]string{`1`, `-2.50`, `"text"`, `null`, `{"a":1}`}).Draw(t, "value")
		expiry := rapid.SampledFrom([]string{`"forever":true`, `"ttlSeconds":3600`}).Draw(t, "expiry")
		expect := rapid.SampledFrom([]string{``, ``, `,"expect":0`, `,"expect":CURRENT`, `,"expect":900000000`}).Draw(t, "expect")
		switch o.op {
		case "put":
			o.rest = `"value":` + value + `,` + expiry + expect
		case "putIfAbsent":
			o.rest = `"value":` + value + `,` + expiry
		case "delete":
			o.rest = strings.TrimPrefix(expect, ",")
		case "incr":
			o.rest = `"delta":` + rapid.SampledFrom([]string{`1`, `-1`, `0.50`, `100`}).Draw(t, "delta") + `,` + expiry +
				rapid.SampledFrom([]string{``, ``, `,"max":5`, `,"min":0`, `,"min":-1,"max":2`}).Draw(t, "bounds")
		}
		return o
	})
}

// text is the operation for a tenant.
func (o modelOp) text(version int64) string {
	out := fmt.Sprintf(`{"op":%q,"ns":"n","key":%q`, o.op, o.key)
	if o.rest != "" {
		out += "," + strings.ReplaceAll(o.rest, "CURRENT", fmt.Sprint(version))
	}
	return out + "}"
}

// What a call of many operations does is what they do one after the other, in the order
// of their keys.
func TestKVCallsAreTheSumOfTheirOperations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	together, alone := uuid.UUID{15: 2}, uuid.UUID{15: 3}
	rapid.Check(t, func(r *rapid.T) {
		b.exec(`DELETE FROM queen.kv`)
		b.exec(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version, expires_at)
			SELECT t, 'n', k, v::jsonb, 5000000000 + row_number() OVER (), CASE WHEN k IN ('k3', 'k4') THEN now() - INTERVAL '1 hour' END
			FROM unnest(ARRAY[$1, $2]::uuid[]) AS t, unnest(ARRAY['k1', 'k2', 'k3', 'k4'], ARRAY['5', '"x"', '7', '"dead"']) AS x (k, v)`, together, alone)
		var ops []modelOp
		written := map[string]bool{}
		for _, o := range rapid.SliceOfN(modelOps(), 2, 14).Draw(r, "ops") {
			if o.op != "get" && written[o.key] {
				o.op, o.rest = "get", ""
			}
			written[o.key] = written[o.key] || o.op != "get"
			ops = append(ops, o)
		}
		versions := b.versions(together)
		texts := make([]string, len(ops))
		for i, o := range ops {
			texts[i] = o.text(versions[o.key])
		}
		call := b.store.KVApply
		if rapid.Bool().Draw(r, "of several callers") {
			call = b.store.KVTogether
		}
		out, err := call(t.Context(), together, list(texts))
		require.NoError(r, err)
		got := b.elements(out, len(ops))

		order := make([]int, len(ops))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(x, y int) int { return strings.Compare(ops[x].key, ops[y].key) })
		versions = b.versions(alone)
		for _, i := range order {
			out, err := b.store.KVApply(t.Context(), alone, list([]string{ops[i].text(versions[ops[i].key])}))
			require.NoError(r, err)
			want := b.elements(out, 1)[0]
			require.Equal(r, want["version"] == 0., got[i]["version"] == 0., "%v", texts[i])
			require.Equal(r, float64(i), got[i]["index"])
			require.Equal(r, want.without("index", "version", "updatedAt", "expiresAt"), got[i].without("index", "version", "updatedAt", "expiresAt"), "%v of %v", texts[i], texts)
			require.Equal(r, want["expiresAt"] == nil, got[i]["expiresAt"] == nil, "%v", texts[i])
		}
		require.Equal(r, b.rows(alone), b.rows(together), "%v", texts)
		require.Zero(r, b.count(`SELECT count(*) - count(DISTINCT version) FROM queen.kv WHERE tenant_id = $1`, together))
	})
}

// versions of the keys of a tenant.
func (b *bench) versions(tenant uuid.UUID) map[string]int64 {
	b.t.Helper()
	out := map[string]int64{}
	var doc []byte
	b.one([]any{&doc}, `SELECT COALESCE(jsonb_object_agg(key, version), '{}') FROM queen.kv WHERE tenant_id = $1`, tenant)
	require.NoError(b.t, json.Unmarshal(doc, &out))
	return out
}

// rows are the keys of a tenant without what no two writes have in common.
func (b *bench) rows(tenant uuid.UUID) string {
	b.t.Helper()
	var text string
	b.one([]any{&text}, `SELECT COALESCE(jsonb_agg(jsonb_build_array(key, value, expires_at IS NULL, expires_at > now(), created_at > now() - INTERVAL '1 minute') ORDER BY key), '[]')::text
		FROM queen.kv WHERE tenant_id = $1`, tenant)
	return text
}

// Keys that go into one statement are locked one by one all the same, in their order.
func TestKVRunsLockInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("a", `"value":1,"forever":true`), put("m", `"value":1,"forever":true`), put("z", `"value":1,"forever":true`))
	var group errgroup.Group
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM queen.kv WHERE key = 'm' FOR UPDATE`); err != nil {
				return err
			}
			group.Go(func() error {
				_, err := b.apply(incr("z", `"delta":1`), incr("m", `"delta":1`), incr("a", `"delta":1`), incr("b", `"delta":1`))
				return err
			})
			if err := waitUntilBlocked(ctx, tx, 1); err != nil {
				return err
			}
			_, err := b.query(`SELECT 'free' FROM queen.kv WHERE key = 'z' FOR UPDATE NOWAIT`)
			require.NoError(t, err, "it waits for m and does not hold z")
			_, err = b.query(`SELECT 'free' FROM queen.kv WHERE key = 'a' FOR UPDATE NOWAIT`)
			require.Equal(t, "55P03", sqlState(t, err))
			return nil
		})
	}))
	require.NoError(t, group.Wait())
}

// Operations of several callers wait for no row that somebody holds, and write nothing then.
func TestKVTogetherWaitsForNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("m", `"value":1,"forever":true`))
	ops := list([]string{incr("a", `"delta":1`), incr("m", `"delta":1`)})
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM queen.kv WHERE key = 'm' FOR UPDATE`); err != nil {
				return err
			}
			_, err := b.store.KVTogether(ctx, store.DefaultTenant(), ops)
			require.Equal(t, "55P03", sqlState(t, err))
			require.False(t, store.Ambiguous(err))
			return nil
		})
	}))
	require.Equal(t, []any{false, 1.}, []any{b.kv(getOp("a"))[0]["found"], b.kv(getOp("m"))[0]["value"]})
	_, err := b.store.KVTogether(t.Context(), store.DefaultTenant(), ops)
	require.NoError(t, err)
	require.Equal(t, []any{1., 2.}, []any{b.kv(getOp("a"))[0]["value"], b.kv(getOp("m"))[0]["value"]})
}

// A required write that is lost among others ends the call too.
func TestKVRequiredInARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("b", `"value":"x","forever":true`))
	before := b.kvDump()
	for _, op := range []string{
		incr("b", `"delta":1,"required":true`), `{"op":"putIfAbsent","ns":"n","key":"b","value":1,"forever":true,"required":true}`,
	} {
		_, err := b.apply(incr("a", `"delta":1`), op, incr("c", `"delta":1`))
		var lost *store.KVPrecondition
		require.ErrorAs(t, err, &lost, op)
		require.Equal(t, 1, lost.Index)
		require.Equal(t, before, b.kvDump())
	}
	_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{incr("a", `"delta":1e65535`), incr("c", `"delta":1e65535`)}))
	require.NoError(t, err)
	_, err = b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{incr("a", `"delta":0.5`), incr("c", `"delta":0.5`)}))
	var refused *store.KVRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "kv_value_too_large", refused.Reason)
}
