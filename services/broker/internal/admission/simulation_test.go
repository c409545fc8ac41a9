package admission

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/logtest"
)

// database commits as PostgreSQL does: transactions compute on a number of
// cores, and one flush of the log completes all that waited when it began.
type database struct {
	cores   chan struct{}
	compute time.Duration
	flush   func() time.Duration // nil: commits wait for no flush

	mu      sync.Mutex
	waiting int
	next    chan struct{} // closed when the next flush to begin is done
	busy    bool
}

func newDatabase(cores int, compute time.Duration, flush func() time.Duration) *database {
	return &database{cores: make(chan struct{}, cores), compute: compute, flush: flush, next: make(chan struct{})}
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func (d *database) transaction() {
	d.cores <- struct{}{}
	time.Sleep(d.compute)
	<-d.cores
	if d.flush == nil {
		return
	}
	d.mu.Lock()
	own := d.next
	d.waiting++
	if !d.busy {
		d.busy = true
		go d.flushAll()
	}
	d.mu.Unlock()
	<-own
}

func (d *database) flushAll() {
	for {
		d.mu.Lock()
		if d.busy = d.waiting > 0; !d.busy {
			d.mu.Unlock()
			return
		}
		d.waiting = 0
		batch := d.next
		d.next = make(chan struct{})
		d.mu.Unlock()
		time.Sleep(d.flush())
		close(batch)
	}
}

// run is what came of a simulation.
type run struct {
	served  [classes]int
	refused int
	slowest time.Duration // time for a slot
	budgets []int         // after each tick
}

// changes counts how often the budget moved since a tick.
func (r *run) changes(since int) (n int) {
	for i := since + 1; i < len(r.budgets); i++ {
		if r.budgets[i] != r.budgets[i-1] {
			n++
		}
	}
	return n
}

// simulate keeps a number of clients of each class busy.
func simulate(t *testing.T, g *Gate, db *database, clients [classes]int, ticks int) *run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ticks)*g.cfg.Tick+time.Millisecond)
	defer cancel()
	r := &run{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c, n := range clients {
		for range n {
			wg.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					release, err := g.Acquire(ctx, Class(c))
					waited := time.Since(began)
					if err == nil {
						db.transaction()
						g.Commit()
						release()
					}
					mu.Lock()
					r.slowest = max(r.slowest, waited)
					switch {
					case err == nil:
						r.served[c]++
					case ctx.Err() == nil:
						r.refused++
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Go(func() { _ = g.Run(ctx) })
	for range ticks {
		time.Sleep(g.cfg.Tick)
		synctest.Wait()
		g.mu.Lock()
		r.budgets = append(r.budgets, g.law.budget)
		g.mu.Unlock()
	}
	wg.Wait()
	return r
}

func newGate(t *testing.T, cfg Config, meter metric.Meter) *Gate {
	t.Helper()
	g, err := New(cfg, meter)
	require.NoError(t, err)
	return g
}

var everybody = [classes]int{Push: 20, Pop: 20, Ack: 20, Maint: 5}

func requireNobodyStarved(t *testing.T, r *run) {
	t.Helper()
	total := 0
	for _, n := range r.served {
		total += n
	}
	for c, share := range SharesDefault().normal() {
		require.Greater(t, float64(r.served[c]), share*float64(total)/2, "%s of %v", Class(c), r.served)
	}
	require.Zero(t, r.refused)
	require.Less(t, r.slowest, 5*time.Second)
}

func TestFastDatabaseWithoutFlushesGetsAPinnedBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 16, Tick: 100 * time.Millisecond}, noop.Meter{})
		r := simulate(t, g, newDatabase(1000, 400*time.Microsecond, nil), everybody, 8)
		require.True(t, g.law.pinned)
		require.Equal(t, 16, r.budgets[3])
		require.Zero(t, r.changes(3))
		requireNobodyStarved(t, r)
	})
}

// Who takes a slot and finds nothing to do gives it back at once. That says
// nothing about how fast commits are.
func TestSlotsThatCommitNothingDoNotPinTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 32}, noop.Meter{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if release, err := g.Acquire(ctx, Pop); err == nil {
						release()
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		simulate(t, g, newDatabase(1000, time.Millisecond, constant(4*time.Millisecond)), [classes]int{Push: 10}, 10)
		cancel()
		wg.Wait()
		require.False(t, g.law.pinned)
	})
}

// One flush completes any number of transactions: as many as can be run at once.
func TestSlowFlushesLetTheBudgetGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 48, Tick: 100 * time.Millisecond}, noop.Meter{})
		r := simulate(t, g, newDatabase(1000, 300*time.Microsecond, constant(8*time.Millisecond)), everybody, 40)
		require.Equal(t, 48, r.budgets[19])
		require.Zero(t, r.changes(19), r.budgets)
		require.InDelta(t, 8, float64(g.law.usual)/float64(time.Millisecond), 1)
		requireNobodyStarved(t, r)
	})
}

// Two cores are busy with a few transactions; the rest would only queue there.
func TestSaturatedDatabaseKeepsTheFloor(t *testing.T) {
	t.Parallel()
	for _, compute := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(t, Config{Slots: 32, Init: 32, Tick: 100 * time.Millisecond}, noop.Meter{})
			r := simulate(t, g, newDatabase(2, compute, constant(300*time.Microsecond)), everybody, 40)
			require.Equal(t, 21, r.budgets[19], r.budgets)
			require.Zero(t, r.changes(19), r.budgets)
			requireNobodyStarved(t, r)
		})
	}
}

func TestTheSmallestPoolsServeEverybody(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(t, Config{Slots: slots, Tick: 100 * time.Millisecond}, noop.Meter{})
			r := simulate(t, g, newDatabase(2, 2*time.Millisecond, constant(3*time.Millisecond)), everybody, 60)
			require.Equal(t, slots, r.budgets[0])
			require.Zero(t, r.changes(0))
			requireNobodyStarved(t, r)
		})
	}
}

func TestAStallOfTheDiskDoesNotMoveTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 32, Tick: 100 * time.Millisecond}, noop.Meter{})
		began := time.Now()
		flush := func() time.Duration {
			if since := time.Since(began); since > 1600*time.Millisecond && since < 1800*time.Millisecond {
				return 600 * time.Millisecond
			}
			return 10 * time.Millisecond
		}
		r := simulate(t, g, newDatabase(1000, 300*time.Microsecond, flush), everybody, 40)
		require.Equal(t, 32, r.budgets[14])
		require.Zero(t, r.changes(14), r.budgets)
	})
}

func TestATransactionStuckBehindALockIsNotTakenForSaturation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 32, Init: 32, Tick: 100 * time.Millisecond}, noop.Meter{})
		stuck, err := g.Acquire(t.Context(), Push)
		require.NoError(t, err)
		background, err := g.Acquire(t.Context(), Maint)
		require.NoError(t, err)
		r := simulate(t, g, newDatabase(1000, 300*time.Microsecond, constant(4*time.Millisecond)), everybody, 20)
		stuck()
		background()
		require.Equal(t, 32, r.budgets[0])
		require.Zero(t, r.changes(0), r.budgets)
	})
}

// With ten at once the two cores are busy all the time, so a raised cap is taken back.
func TestCapsOfALaneAloneFollowWhatCompletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		g := newGate(t, Config{Slots: 32, Min: 10, Init: 10, Trace: log}, noop.Meter{})
		simulate(t, g, newDatabase(2, 2500*time.Microsecond, constant(4*time.Millisecond)), [classes]int{Push: 60}, 60)
		require.InDelta(t, 10, g.law.lanes[Push].cap, 1)
		require.Contains(t, lines.String(), `msg=admission decision=raise lane=push from=10 to=11`)
		require.Contains(t, lines.String(), `msg=admission decision=revert lane=push`)
		require.Equal(t, strings.Count(lines.String(), "\n"), strings.Count(lines.String(), "decision="))
	})
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Slots: 16, Min: 8, Init: 8}, noop.Meter{})
		simulate(t, g, newDatabase(1000, time.Millisecond, constant(5*time.Millisecond)), [classes]int{Push: 24}, 50)
		require.Equal(t, 16, g.law.lanes[Push].cap)
		require.Equal(t, g.cfg.Init, g.law.lanes[Ack].cap)
	})
}

func TestPopCapsFollowTheAgeOfReadyLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g := newGate(t, Config{Slots: 32, Min: 10, Init: 10, PopAge: func() (time.Duration, int) {
			asked++
			return time.Second, 100 // whatever the cap: more pops do not help
		}}, noop.Meter{})
		simulate(t, g, newDatabase(1000, time.Millisecond, constant(20*time.Millisecond)), [classes]int{Pop: 60}, 20)
		require.Positive(t, asked)
		require.Less(t, asked, 20, "only when the answer matters")
		require.InDelta(t, 10, g.law.lanes[Pop].cap, 1)
	})
}

func TestStateIsShownAsMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := sdk.NewManualReader()
		g := newGate(t, Config{Slots: 2, MaxWaiting: 1}, sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
		simulate(t, g, newDatabase(1000, time.Millisecond, constant(9*time.Millisecond)), [classes]int{Push: 1}, 1)
		for range 2 {
			_, err := g.Acquire(t.Context(), Ack)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = g.Acquire(ctx, Push) }()
		synctest.Wait()
		_, err := g.Enter(t.Context(), Push)
		require.ErrorIs(t, err, ErrOverloaded)
		_, err = g.Enter(t.Context(), Maint)
		require.NoError(t, err)

		var rm metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &rm))
		got := make(map[string]float64)
		for _, m := range rm.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					got[strings.TrimSpace(m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder()))] = p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = float64(p.Value)
				}
			}
		}
		for name, want := range map[string]float64{
			"queen.admission.budget": 2, "queen.admission.inflight lane=ack": 2, "queen.admission.inflight lane=push": 0,
			"queen.admission.inflight lane=pop": 0, "queen.admission.inflight lane=maint": 0, "queen.admission.waiting lane=push": 1,
			"queen.admission.waiting lane=ack": 0, "queen.admission.entered lane=maint": 1, "queen.admission.refused lane=push": 1,
		} {
			require.Equal(t, want, got[name], name)
		}
		require.InDelta(t, 100, got["queen.admission.trains_per_s"], 10)
		require.InDelta(t, 1, got["queen.admission.txn_per_train"], 0.01)
		require.InDelta(t, 10, got["queen.admission.cycle_ms"], 0.5)
	})
}
