package sweeper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// A fire that arrives after its lease has ended, and after somebody else has fired,
// finds nothing that is its own.
func TestLateFireIsStale(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	late := harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
	held := proxy.HoldStatement(fireCall)
	c.promise(t, c.backlog(t, 60, 6)...)
	await(t, held.Caught, "the fire")
	claims := c.claimed(t)
	require.Positive(t, claims)
	harness.StartSweeper(t, c.DB, shortLease)
	c.fired(t)
	held.Release()
	harness.Eventually(t, patience, "the late fire is told", func() bool {
		return metricOf(t, late, `queen_timers_fired_total{result="stale"}`) == float64(claims)
	})
	require.Zero(t, metricOf(t, late, `queen_timers_fired_total{result="fired"}`))
	c.requireOnce(t)
}

// A sweeper that was stopped for longer than its lease does no harm when it goes on
// before anybody else has come: its fire is stale, and it claims again.
func TestLateFireWithoutARivalClaimsAgain(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
	held := proxy.HoldStatement(fireCall)
	c.promise(t, c.backlog(t, 60, 6)...)
	await(t, held.Caught, "the fire")
	harness.Eventually(t, patience, "the lease ends", func() bool { return c.claimed(t) == 0 })
	held.Release()
	c.requireOnce(t)
}

const (
	theftTime     = 4 * time.Second
	longTheftTime = 3 * time.Minute
	thieves       = 3
)

// TestSweepersStealLapsedLeases stops sweepers in the middle of whatever they do, for
// longer than their leases last, while timers are scheduled, moved and cancelled.
func TestSweepersStealLapsedLeases(t *testing.T) {
	t.Parallel()
	c := own(t)
	var all []*harness.Sweeper
	for range thieves {
		all = append(all, harness.StartSweeper(t, c.DB, "QUEEN_SWEEPER_LEASE_MS=200", "QUEEN_SWEEPER_CLAIM_BATCH=20",
			"QUEEN_SWEEPER_MAX_FIRE_BYTES=300", "QUEEN_SWEEPER_MAX_SLEEP_MS=100"))
	}
	length := theftTime
	if harness.Long() {
		length = longTheftTime
	}
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	rng := seeded(t)
	var wg sync.WaitGroup
	feeders := [2]*feeder{}
	for i := range feeders {
		f := &feeder{cell: c, prefix: fmt.Sprintf("f%d-", i), rng: rand.New(rand.NewPCG(rng.Uint64(), 2)), word: map[string]promise{}}
		feeders[i] = f
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := f.feed(context.WithoutCancel(ctx)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pauses := 0
	for ctx.Err() == nil {
		victim := all[rng.IntN(len(all))]
		victim.Pause(t)
		pass(ctx, 100+rng.IntN(300)) // the moment is the point of the test
		victim.Resume(t)
		pass(ctx, rng.IntN(60))
		pauses++
	}
	wg.Wait()
	for _, f := range feeders {
		c.promises = append(c.promises, f.delivered...)
		for _, p := range f.word {
			c.promises = append(c.promises, p)
		}
	}
	stale := 0.0
	for _, s := range all {
		stale += metricOf(t, s, `queen_timers_fired_total{result="stale"}`)
	}
	t.Logf("%d pauses, %d timers, %.0f stale", pauses, len(c.promises), stale)
	c.requireOnce(t)
}

// pass lets so many milliseconds pass.
func pass(ctx context.Context, millis int) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(millis) * time.Millisecond):
	}
}

// feeder schedules timers, and changes its mind about some.
type feeder struct {
	*cell
	prefix    string
	rng       *rand.Rand
	word      map[string]promise // what the last word on each key was
	delivered []promise
}

// feed sends one request and keeps the books by what it is answered.
func (f *feeder) feed(ctx context.Context) error {
	var ops []object
	for i := range 8 {
		key := fmt.Sprintf("%s%d", f.prefix, f.rng.IntN(400)*8+i)
		op := schedule(f.queue, key, fmt.Sprintf("lane-%d", f.rng.IntN(5)), f.rng.IntN(200)-50)
		if f.rng.IntN(10) == 0 {
			op = object{"op": "cancel", "queue": f.queue, "timerKey": key}
		}
		ops = append(ops, op)
	}
	a, err := f.operate(ctx, ops...)
	if err != nil {
		return err
	}
	var answer struct {
		Results []struct{ Status, MessageID string } `json:"results"`
	}
	if err := decode(a, &answer); err != nil {
		return err
	}
	for i, r := range answer.Results {
		key := ops[i]["timerKey"].(string)
		last, known := f.word[key]
		switch r.Status {
		case "scheduled": // so the one before it, if any, was delivered
			if known {
				f.delivered = append(f.delivered, last)
			}
			f.word[key] = promise{id: r.MessageID, lane: ops[i]["partition"].(string)}
		case "rescheduled":
			f.word[key] = promise{id: r.MessageID, lane: ops[i]["partition"].(string)}
		case "cancelled":
			delete(f.word, key)
		case "absent", "too_late":
		default:
			return fmt.Errorf("%v answered %+v", ops[i], r)
		}
	}
	return nil
}
