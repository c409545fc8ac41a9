package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// stuckAfter is how long a lane may offer something to readers that are parked.
	stuckAfter = 5 * time.Second

	// chaosRounds of all faults are run when there is time.
	chaosRounds = 8
)

// TestChaos kills three brokers and restarts their PostgreSQL, again and again,
// under load. Every acknowledged push reaches every group, each lane in order;
// after the last fault no lane is stuck and nothing is left behind.
func TestChaos(t *testing.T) {
	t.Parallel()
	rng, seed := seeded(t)
	t.Logf("seed %d", seed)
	stage := harness.StartSetup(t, harness.Setup{Brokers: 3, Server: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=3000", "QUEEN_PUSH_DEADLINE_MS=4000"}})
	rounds, limit := 1, 3*time.Minute
	if harness.Long() {
		rounds, limit = chaosRounds, 20*time.Minute
	}
	before := footprints(t, stage.Broker)
	x := startLoad(t, stage.Broker, queueName(t), rng, loadOptions{
		pushers: 10, readers: 8, pushSize: 1, habits: habits{lease: 3, wait: 2000, batch: 100}, limit: limit,
	})
	c := &chaos{t: t, stage: stage, rng: rng, load: x}
	for range rounds {
		c.round()
	}
	stage.DB.Pool.Reset() // the suite's own sessions are gone too
	x.advance(100, progressLimit)
	x.drainPushes()
	x.requireNothingStuck(progressLimit)
	x.judge()
	requireNoLeak(t, stage.Broker, before)
	t.Logf("%d pushes, %d deliveries, %d acks", x.l.pushedCount(), len(x.l.deliveries), len(x.l.acks))
}

// chaos is the order of faults of one run.
type chaos struct {
	t     *testing.T
	stage *harness.Stage
	rng   *rand.Rand
	load  *load
}

// round kills each broker twice and restarts PostgreSQL twice, in a random order
// and with random pauses, so that faults overlap.
func (c *chaos) round() {
	type fault struct {
		name string
		run  func()
	}
	var faults []fault
	restarts := newRestarts(c.stage.Each)
	for i := range c.stage.Each {
		for range 2 {
			delay := c.millis(1200)
			faults = append(faults, fault{fmt.Sprintf("broker %d killed, back after %s", i, delay), func() { restarts.kill(c.t.Context(), i, delay) }})
		}
	}
	for _, mode := range []string{pglocal.ModeFast, pglocal.ModeImmediate} {
		faults = append(faults, fault{"PostgreSQL restarted, " + mode, func() { require.NoError(c.t, c.stage.Server.Restart(c.t.Context(), mode)) }})
	}
	c.rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	began := time.Now()
	for _, f := range faults {
		c.load.advance(40, progressLimit)
		select { // the moment is the point of the test
		case <-c.t.Context().Done():
		case <-time.After(c.millis(900)):
		}
		c.t.Logf("%6.2fs, %d pushed: %s", time.Since(began).Seconds(), c.load.l.pushedCount(), f.name)
		f.run()
	}
	require.NoError(c.t, restarts.wait())
}

func (c *chaos) millis(below int) time.Duration {
	return time.Duration(c.rng.IntN(below)) * time.Millisecond
}

// restarts brings killed brokers back in the background.
type restarts struct {
	brokers []*harness.Broker
	wg      sync.WaitGroup
	turn    []sync.Mutex // of each broker: killed again only once it is back
	mu      sync.Mutex
	err     error
}

func newRestarts(brokers []*harness.Broker) *restarts {
	return &restarts{brokers: brokers, turn: make([]sync.Mutex, len(brokers))}
}

func (r *restarts) kill(ctx context.Context, i int, delay time.Duration) {
	r.turn[i].Lock()
	r.brokers[i].Kill()
	r.wg.Go(func() {
		defer r.turn[i].Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		if err := r.brokers[i].TryRestart(ctx); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.err = fmt.Errorf("restart broker %d: %w", i, err)
		}
	})
}

func (r *restarts) wait() error {
	r.wg.Wait()
	return r.err
}

// offer is what a lane has for a group, and since which event.
type offer struct{ lane, group, since string }

// offers are the lanes with something to deliver and no live lease.
func (x *load) offers() map[offer]bool {
	x.t.Helper()
	rows, err := x.b.DB.Pool.Query(x.t.Context(), `
		SELECT p.name, g.name, coalesce(c.committed, -1) || ' of ' || p.last_offset || ', leased ' || coalesce(c.lease_acquired_at::text, 'never')
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		CROSS JOIN unnest($2::text[]) AS g(name)
		LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = g.name
		WHERE q.name = $1 AND p.last_offset > coalesce(c.committed, -1) AND coalesce(c.lease_expires_at < clock_timestamp(), TRUE)`,
		x.queue, x.groups)
	require.NoError(x.t, err)
	defer rows.Close()
	out := map[offer]bool{}
	for rows.Next() {
		var o offer
		require.NoError(x.t, rows.Scan(&o.lane, &o.group, &o.since))
		out[o] = true
	}
	require.NoError(x.t, rows.Err())
	return out
}

// requireNothingStuck waits until every group has committed everything, while
// readers of every group are parked all the time, and requires that no lane
// offers the same thing for long.
func (x *load) requireNothingStuck(within time.Duration) {
	x.t.Helper()
	first := map[offer]time.Time{}
	harness.Eventually(x.t, within, "every group has committed everything", func() bool {
		now, open := time.Now(), x.offers()
		for o := range first {
			if !open[o] {
				delete(first, o)
			}
		}
		for o := range open {
			if first[o].IsZero() {
				first[o] = now
			}
			require.Less(x.t, now.Sub(first[o]), stuckAfter, "lane %s is stuck for %s at %s", o.lane, o.group, o.since)
		}
		return len(open) == 0 && caughtUp(x.t, x.b, x.queue, x.groups...)
	})
}
