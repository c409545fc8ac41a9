package kv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry/telemetrytest"
	"github.com/queenmq/queen/services/broker/internal/kv"
)

// heldStore answers each call when it is told to, every operation with its place.
type heldStore struct {
	fakeStore
	calls chan heldCall
}

type heldCall struct {
	tenant   uuid.UUID
	ops      []string
	together bool
	answer   chan error
}

func newHeldStore() *heldStore { return &heldStore{calls: make(chan heldCall)} }

func (h *heldStore) KVApply(_ context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error) {
	return h.call(tenant, ops, false)
}

func (h *heldStore) KVTogether(_ context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error) {
	return h.call(tenant, ops, true)
}

func (h *heldStore) call(tenant uuid.UUID, ops json.RawMessage, together bool) (store.RawJSON, error) {
	var all []json.RawMessage
	if err := json.Unmarshal(ops, &all); err != nil {
		return nil, err
	}
	c := heldCall{tenant: tenant, together: together, answer: make(chan error)}
	results := make([]string, len(all))
	for i, op := range all {
		c.ops = append(c.ops, string(op))
		results[i] = fmt.Sprintf(`{"key": "\"index\": 7", "index": %d, "of": %q}`, i, op)
	}
	h.calls <- c
	return store.RawJSON("[" + strings.Join(results, ", ") + "]"), <-c.answer
}

func op(kind string, key int) string {
	return fmt.Sprintf(`{"op":%q,"ns":"n","key":"k%d","value":1,"delta":1,"forever":true}`, kind, key)
}

// crowd are clients of a service, each with one call.
type crowd struct {
	t       *testing.T
	service *kv.Service
	answers sync.Map // operation to what it got: a string or an error
	all     sync.WaitGroup
}

// send has a client call, and returns when it waits for something.
func (c *crowd) send(of uuid.UUID, operation string) {
	c.all.Go(func() {
		a, err := c.service.Apply(c.t.Context(), of, json.RawMessage("[ "+operation+" ]"))
		if err != nil {
			c.answers.Store(operation, err)
			return
		}
		c.answers.Store(operation, string(a.Results))
	})
	synctest.Wait()
}

// answered makes sure that an operation was answered as if it had been alone.
func (c *crowd) answered(operation string) {
	c.t.Helper()
	got, _ := c.answers.Load(operation)
	require.Equal(c.t, fmt.Sprintf(`[{"key": "\"index\": 7", "index": 0, "of": %q}]`, operation), got)
}

func TestOperationsThatWaitShareTheNextCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		other := uuid.New()
		c.send(tenant, op("incr", 0))
		first := <-h.calls
		require.False(t, first.together, "who meets nobody goes alone")
		for _, o := range []string{op("incr", 1), op("get", 1), op("put", 2), op("delete", 3), op("putIfAbsent", 4)} {
			c.send(tenant, o)
		}
		c.send(other, op("get", 5))
		c.send(tenant, op("put", 1)) // a key that is written already
		c.send(tenant, op("incr", 0))

		first.answer <- nil
		second := <-h.calls
		require.True(t, second.together)
		require.Equal(t, []string{op("incr", 1), op("get", 1), op("put", 2), op("delete", 3), op("putIfAbsent", 4), op("incr", 0)}, second.ops)
		second.answer <- nil
		third := <-h.calls
		require.Equal(t, []string{op("get", 5)}, third.ops, "tenants share no call")
		require.Equal(t, other, third.tenant)
		third.answer <- nil
		fourth := <-h.calls
		require.Equal(t, []string{op("put", 1)}, fourth.ops)
		fourth.answer <- nil
		c.all.Wait()
		for _, o := range append(second.ops, third.ops[0], fourth.ops[0]) {
			c.answered(o)
		}
	})
}

// A hot counter takes one flight at a time, and holds up nobody else.
func TestAKeyIsWrittenByOneFlightAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 2}, h, noQuotas{})}
		c.send(tenant, op("incr", 0))
		first := <-h.calls
		c.send(tenant, op("put", 0))
		c.send(tenant, op("get", 0))
		second := <-h.calls
		require.Equal(t, []string{op("get", 0)}, second.ops, "reads wait for no write")
		second.answer <- nil
		synctest.Wait()
		select {
		case <-h.calls:
			require.Fail(t, "the key is being written")
		default:
		}
		first.answer <- nil
		third := <-h.calls
		require.Equal(t, []string{op("put", 0)}, third.ops)
		third.answer <- nil
		c.all.Wait()
	})
}

// The bounds of a flight.
func TestAFlightTakesThirtyTwoOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		c.send(tenant, op("get", 0))
		first := <-h.calls
		for i := range 33 {
			c.send(tenant, op("get", i+1))
		}
		first.answer <- nil
		second := <-h.calls
		require.Len(t, second.ops, 32)
		second.answer <- nil
		third := <-h.calls
		require.Equal(t, []string{op("get", 33)}, third.ops)
		third.answer <- nil
		c.all.Wait()
	})
}

func TestAFlightTakesAQuarterOfAMebibyte(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		large := func(key, size int) string {
			head := fmt.Sprintf(`{"op":"put","ns":"n","key":"k%d","forever":true,"value":""}`, key)
			return strings.Replace(head, `""`, `"`+strings.Repeat("v", size-len(head))+`"`, 1)
		}
		c.send(tenant, op("get", 0))
		first := <-h.calls
		for i := range 4 {
			c.send(tenant, large(i, 64<<10))
		}
		c.send(tenant, op("get", 5))
		first.answer <- nil
		second := <-h.calls
		require.Len(t, second.ops, 4, "256 KiB to the byte")
		second.answer <- nil
		third := <-h.calls
		require.Equal(t, []string{op("get", 5)}, third.ops)
		third.answer <- nil
		c.all.Wait()
	})
}

// Whatever a call is refused for concerns one of its operations: each is repeated alone.
// What may have been carried out is not, and what had no connection would have none.
func TestARefusedFlightIsRepeatedOneByOne(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		err    error
		alone  bool
		reason string
	}{
		"refused":       {&store.KVRefused{Reason: "kv_bad_key"}, true, ""},
		"a lock":        {fmt.Errorf("apply: %w", &pgconn.PgError{Code: "55P03"}), true, ""},
		"a timeout":     {fmt.Errorf("apply: %w", &pgconn.PgError{Code: "57014"}), true, ""},
		"no connection": {errExhausted, false, "kv_pool_exhausted"},
		"lost":          {errors.New("connection reset"), false, "connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHeldStore()
				c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
				c.send(tenant, op("get", 0))
				first := <-h.calls
				c.send(tenant, op("incr", 1))
				c.send(tenant, op("incr", 2))
				first.answer <- nil
				(<-h.calls).answer <- of.err
				if of.alone {
					for range 2 {
						again := <-h.calls
						require.False(t, again.together)
						require.Len(t, again.ops, 1)
						again.answer <- nil
					}
				}
				c.all.Wait()
				for _, o := range []string{op("incr", 1), op("incr", 2)} {
					if of.alone {
						c.answered(o)
						continue
					}
					got, _ := c.answers.Load(o)
					require.ErrorContains(t, got.(error), of.reason)
				}
			})
		})
	}
}

func TestCallsThatSayMoreGoAlone(t *testing.T) {
	t.Parallel()
	for name, ops := range map[string]string{
		"several operations": op("get", 1) + "," + op("get", 2),
		"a required write":   `{"op":"put","ns":"n","key":"k","value":1,"forever":true,"required":true}`,
		"many keys":          `{"op":"getMany","ns":"n","keys":["k"]}`,
		"a prefix":           `{"op":"getPrefix","ns":"n","prefix":"k"}`,
		"without a key":      `{"op":"get","ns":"n"}`,
		"unknown":            `{"op":"take","ns":"n","key":"k"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHeldStore()
				c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
				c.send(tenant, op("get", 0))
				first := <-h.calls
				c.send(tenant, ops)
				own := <-h.calls // though the only flight is under way
				require.False(t, own.together)
				own.answer <- nil
				first.answer <- nil
				c.all.Wait()
			})
		})
	}
}

func TestWithoutFlightsEveryCallGoesAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: -1}, h, noQuotas{})}
		var under []heldCall
		for i := range 5 {
			c.send(tenant, op("incr", i%2))
			under = append(under, <-h.calls)
		}
		for _, u := range under {
			require.False(t, u.together)
			u.answer <- nil
		}
		c.all.Wait()
	})
}

// A flight that waits for a row does not keep others, who do not want that row.
func TestAStuckFlightIsNotCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		c.send(tenant, op("incr", 0))
		stuck := <-h.calls
		c.send(tenant, op("incr", 0))
		c.send(tenant, op("incr", 1))
		time.Sleep(100*time.Millisecond - time.Nanosecond)
		synctest.Wait()
		select {
		case <-h.calls:
			require.Fail(t, "one flight is under way")
		default:
		}
		time.Sleep(time.Nanosecond)
		second := <-h.calls
		require.Equal(t, []string{op("incr", 1)}, second.ops)
		second.answer <- nil
		stuck.answer <- nil
		third := <-h.calls
		require.Equal(t, []string{op("incr", 0)}, third.ops)
		third.answer <- nil
		c.all.Wait()
	})
}

func TestAnOperationWaitsASecondForItsFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHeldStore()
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		c.send(tenant, op("incr", 0))
		first := <-h.calls
		c.send(tenant, op("incr", 0))
		time.Sleep(time.Second - time.Nanosecond)
		synctest.Wait()
		select {
		case <-h.calls:
			require.Fail(t, "the key is being written")
		default:
		}
		time.Sleep(time.Nanosecond)
		alone := <-h.calls // the database has the row wait, or refuses
		require.False(t, alone.together)
		first.answer <- nil
		alone.answer <- nil
		c.all.Wait()
	})
}

// Against the database: whatever meets, each caller hears what it would have heard alone,
// and every increment is there once.
func TestCrowdsOfRealCallers(t *testing.T) {
	t.Parallel()
	const clients, rounds = 24, 40
	db := pgtest.New(t)
	st := store.New(db)
	s := newService(t, kv.Config{Flights: 2}, st, noQuotas{})
	var wg sync.WaitGroup
	var applied atomic.Int64
	for c := range clients {
		wg.Go(func() {
			for i := range rounds {
				switch (c + i) % 4 {
				case 0: // a mistake of one is nobody else's
					_, err := s.Apply(t.Context(), tenant, json.RawMessage(`[{"op":"get","ns":"Not A Namespace","key":"k"}]`))
					if err == nil || !strings.Contains(err.Error(), "kv_bad_namespace") {
						t.Errorf("got %v", err)
					}
				case 1:
					key := fmt.Sprintf("own-%d", c)
					a, err := s.Apply(t.Context(), tenant, json.RawMessage(`[{"op":"put","ns":"n","key":"`+key+`","value":`+fmt.Sprint(i)+`,"forever":true}]`))
					if err != nil || !bytes.Contains(a.Results, []byte(`"index": 0`)) || !bytes.Contains(a.Results, []byte(key)) {
						t.Errorf("got %s, %v", a.Results, err)
					}
				default:
					a, err := s.Apply(t.Context(), tenant, json.RawMessage(`[{"op":"incr","ns":"n","key":"hot","delta":1,"forever":true}]`))
					if err != nil || !bytes.Contains(a.Results, []byte(`"applied": true`)) {
						t.Errorf("got %s, %v", a.Results, err)
						continue
					}
					applied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	a, err := s.Apply(t.Context(), tenant, json.RawMessage(`[{"op":"get","ns":"n","key":"hot"}]`))
	require.NoError(t, err)
	require.Contains(t, string(a.Results), fmt.Sprintf(`"value": %d`, applied.Load()))
}

// A row that somebody holds for long delays its own callers alone.
func TestALockedKeyHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	cfg := pgtest.NewConfig(t)
	other := open(t, cfg)
	s := newService(t, kv.Config{Flights: 1}, store.New(open(t, cfg)), noQuotas{})
	incr := func(key int) string { return op("incr", key) }
	require.Empty(t, apply(t, s, incr(0)))
	var held sync.WaitGroup
	require.NoError(t, other.Do(t.Context(), "hold the row", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT FROM queen.kv WHERE key = 'k0' FOR UPDATE`)
			require.NoError(t, err)
			var free sync.WaitGroup
			for i := range 20 {
				held.Go(func() { _, _ = s.Apply(t.Context(), tenant, json.RawMessage("["+incr(0)+"]")) })
				free.Go(func() {
					if _, err := s.Apply(t.Context(), tenant, json.RawMessage("["+incr(i+1)+"]")); err != nil {
						t.Errorf("got %v", err)
					}
				})
			}
			free.Wait() // while the row is held
			return nil
		})
	}))
	held.Wait()
	a, err := s.Apply(t.Context(), tenant, json.RawMessage(`[{"op":"get","ns":"n","key":"k0"}]`))
	require.NoError(t, err)
	require.Contains(t, string(a.Results), `"value": 21`)
}

func TestASharedCallIsLinkedWithItsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, rec := newHeldStore(), telemetrytest.New(t)
		c := &crowd{t: t, service: newService(t, kv.Config{Flights: 1}, h, noQuotas{})}
		sendAs := func(ctx context.Context, operation string) {
			c.all.Go(func() { _, _ = c.service.Apply(ctx, tenant, json.RawMessage("["+operation+"]")) })
			synctest.Wait()
		}
		c.send(tenant, op("get", 0))
		first := <-h.calls
		c.send(tenant, op("get", 1)) // leads, and nobody records it
		one, a := rec.Request("one")
		two, b := rec.Request("two")
		sendAs(one, op("get", 2))
		sendAs(two, op("get", 3))
		first.answer <- nil
		second := <-h.calls
		require.Len(t, second.ops, 3)
		second.answer <- nil
		c.all.Wait()
		flight := rec.Only("keys flight")
		rec.RequireShared(flight, a, b)
		require.Contains(t, flight.Attributes(), attribute.Int("queen.operations", 3))
	})
}
