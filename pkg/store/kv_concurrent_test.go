package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// apply is kv for goroutines.
func (b *bench) apply(ops ...string) ([]element, error) {
	out, err := b.store.KVApply(b.t.Context(), store.DefaultTenant(), list(ops))
	if err != nil {
		return nil, err
	}
	var all []element
	return all, json.Unmarshal(out, &all)
}

// Of any number of callers one creates a key, absent or expired, and the others learn
// which version did.
func TestKVConcurrentCreatorsHaveOneWinner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 20 {
		key := fmt.Sprintf("k%d", round)
		if round%2 == 1 {
			b.expired(key, `"dead"`)
		}
		results := make(chan element, 8)
		var group errgroup.Group
		for i := range cap(results) {
			group.Go(func() error {
				all, err := b.apply(fmt.Sprintf(`{"op":"putIfAbsent","ns":"n","key":%q,"value":%d,"forever":true}`, key, i))
				if err == nil {
					results <- all[0]
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		close(results)
		winner := b.kv(getOp(key))[0]
		winners := 0
		for r := range results {
			require.Equal(t, winner["version"], r["version"])
			require.Equal(t, winner["value"], r["value"])
			if r["applied"] == true {
				winners++
			} else {
				require.Equal(t, "exists", r["reason"])
			}
		}
		require.Equal(t, 1, winners)
	}
}

func TestKVConcurrentCountersLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group errgroup.Group
	var refused atomic.Int64
	for range 8 {
		group.Go(func() error {
			for range 40 {
				all, err := b.apply(incr("free", `"delta":1`), incr("bounded", `"delta":1,"max":100`))
				if err != nil {
					return err
				}
				if all[1]["applied"] == false {
					refused.Add(1)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	got := b.kv(getOp("free"), getOp("bounded"))
	require.Equal(t, 320., got[0]["value"])
	require.Equal(t, 100., got[1]["value"])
	require.EqualValues(t, 220, refused.Load())
}

// Whatever order the keys of calls are in, they never deadlock.
func TestKVCallsInOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for range 40 {
				var ops []string
				for _, k := range rand.Perm(12) {
					name := fmt.Sprintf(`"ns":"n%d","key":"k%d"`, k%3, k)
					ops = append(ops, [...]string{
						`{"op":"put",` + name + `,"value":1,"forever":true}`,
						`{"op":"put",` + name + `,"value":1,"forever":true,"expect":3}`,
						`{"op":"putIfAbsent",` + name + `,"value":1,"forever":true}`,
						`{"op":"incr",` + name + `,"delta":1,"forever":true}`,
						`{"op":"incr",` + name + `,"delta":1,"max":2,"forever":true}`,
						`{"op":"delete",` + name + `}`,
						`{"op":"delete",` + name + `,"expect":0}`,
						`{"op":"get",` + name + `}`,
					}[rand.IntN(8)])
				}
				if _, err := b.apply(ops...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait(), "40P01 here is a broken lock order")
}

// behind runs an operation that has to wait for a change of its key, and returns its
// result after the change is committed.
func (b *bench) behind(change, op string) element {
	b.t.Helper()
	result := make(chan element, 1)
	var group errgroup.Group
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, change); err != nil {
				return err
			}
			group.Go(func() error {
				all, err := b.apply(op)
				if err == nil {
					result <- all[0]
				}
				return err
			})
			return waitUntilBlocked(ctx, tx, 1)
		})
	}))
	require.NoError(b.t, group.Wait())
	return <-result
}

// A write that waited is judged by what it waited for, and a loser learns the version
// that beat it.
func TestKVLosersLearnWhatBeatThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const (
		rewrite  = `UPDATE queen.kv SET value = '"new"', version = 500 WHERE key = 'k'`
		number   = `UPDATE queen.kv SET value = '50', version = 500 WHERE key = 'k'`
		remove   = `DELETE FROM queen.kv WHERE key = 'k'`
		expire   = `UPDATE queen.kv SET expires_at = now() - INTERVAL '1 hour' WHERE key = 'k'`
		create   = `INSERT INTO queen.kv (namespace, key, value, version) VALUES ('n', 'k', '"new"', 500)`
		restored = `UPDATE queen.kv SET value = '7', version = 1 WHERE key = 'k'`
	)
	cases := []struct {
		name, change, op string
		laid             bool // the row is there before, as version 1 with value 5
		want             element
	}{
		{"expect, rewritten", rewrite, putAt("k", 1, `2`), true, element{"applied": false, "reason": "version", "version": 500., "value": "new"}},
		{"expect, removed", remove, putAt("k", 1, `2`), true, element{"applied": false, "reason": "absent", "version": 0., "value": nil}},
		{"expect, expired", expire, putAt("k", 1, `2`), true, element{"applied": false, "reason": "absent", "version": 0., "value": nil}},
		{"expect, touched and the same", restored, putAt("k", 1, `2`), true, element{"applied": true, "value": 2.}},
		{"absent, created", create, `{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}`, false, element{"applied": false, "reason": "exists", "version": 500., "value": "new"}},
		{"absent, removed", remove, `{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}`, true, element{"applied": true, "value": 2.}},
		{"absent, expired", expire, `{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}`, true, element{"applied": true, "value": 2.}},
		{"a counter, rewritten as a text", rewrite, incr("k", `"delta":1`), true, element{"applied": false, "reason": "type", "version": 500., "value": 0.}},
		{"a counter, rewritten", number, incr("k", `"delta":1`), true, element{"applied": true, "value": 51.}},
		{"a counter, rewritten beyond the bound", number, incr("k", `"delta":1,"max":50`), true, element{"applied": false, "reason": "limit", "version": 500., "value": 50.}},
		{"a counter, removed", remove, incr("k", `"delta":1`), true, element{"applied": true, "value": 1.}},
		{"a counter, created as a text", create, incr("k", `"delta":1`), false, element{"applied": false, "reason": "type", "version": 500., "value": 0.}},
		{"a delta out of bounds, removed", remove, incr("k", `"delta":-1,"min":0`), true, element{"applied": false, "reason": "limit", "version": 0., "value": 0.}},
		{"delete, rewritten", rewrite, `{"op":"delete","ns":"n","key":"k","expect":1}`, true, element{"applied": false, "reason": "version", "version": 500., "value": "new"}},
		{"delete, removed", remove, `{"op":"delete","ns":"n","key":"k","expect":1}`, true, element{"applied": false, "reason": "absent", "version": 0., "value": nil}},
		{"delete that expects nothing, removed", remove, `{"op":"delete","ns":"n","key":"k","expect":0}`, true, element{"applied": true, "version": 0., "value": nil}},
		{"delete without expectation, rewritten", rewrite, `{"op":"delete","ns":"n","key":"k"}`, true, element{"applied": true, "version": 500., "value": "new"}},
	}
	for _, c := range cases {
		b.exec(`DELETE FROM queen.kv`)
		if c.laid {
			b.exec(`INSERT INTO queen.kv (namespace, key, value, version) VALUES ('n', 'k', '5', 1)`)
		}
		got := b.behind(c.change, c.op)
		for name, want := range c.want {
			require.Equal(t, want, got[name], "%s: %s", c.name, name)
		}
	}
}

// A write that lost to a live row holds it until its transaction ends.
func TestKVALostCreationHoldsTheRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("k", `"value":1,"forever":true`))
	got := b.behind(`SELECT queen.kv_apply_v1('[{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}]', '00000000-0000-0000-0000-000000000001')`,
		put("k", `"value":3,"forever":true`))
	require.Equal(t, true, got["applied"])
}
