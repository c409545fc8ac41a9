package lookout_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/lookout"
)

// bench is a lookout in a bubble of its own time.
type bench struct {
	*lookout.Lookout
	t     *testing.T
	began time.Time

	mu      sync.Mutex
	timers  []time.Time // in the database
	probes  []time.Time
	looks   []time.Time
	cost    time.Duration // of a look
	err     error         // of probes and looks
	waiting atomic.Int64
	linked  atomic.Bool
}

// TimersDue answers as the database does.
func (b *bench) TimersDue(_ context.Context, shards []int16, limit int) (store.TimersDue, error) {
	require.Len(b.t, shards, store.SweepShards)
	require.Equal(b.t, 1, limit)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.probes = append(b.probes, now)
	if len(b.timers) == 0 {
		return store.TimersDue{}, b.err
	}
	next := slices.MinFunc(b.timers, time.Time.Compare).Sub(now)
	return store.TimersDue{Next: &next}, b.err
}

func (b *bench) look(context.Context) error {
	b.mu.Lock()
	b.looks = append(b.looks, time.Now())
	cost, err := b.cost, b.err
	b.mu.Unlock()
	time.Sleep(cost)
	return err
}

// set changes what the database knows, and how well it does.
func (b *bench) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// live runs a test beside the loop of a lookout. Between steps everything rests.
func live(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, began: time.Now()}
		var err error
		b.Lookout, err = lookout.New(lookout.Deps{Store: b, Meter: noop.Meter{}, Logger: logtest.New(t)})
		require.NoError(t, err)
		b.Linked = b.linked.Load
		b.Waiting = func() int { return int(b.waiting.Load()) }
		b.Looks = []func(context.Context) error{b.look}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		test(t, b)
		cancel()
		require.NoError(t, <-done)
	})
}

func (b *bench) park() {
	if b.waiting.Add(1) == 1 {
		b.Kick()
	}
	synctest.Wait()
}

func (b *bench) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// at tells times since the beginning.
func (b *bench) at(times []time.Time) []time.Duration {
	list := make([]time.Duration, len(times))
	for i, t := range times {
		list[i] = t.Sub(b.began)
	}
	return list
}

func TestNothingIsDoneWhileNoPopWaits(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.set(func() { b.timers = []time.Time{time.Now()} })
		for range 100 {
			b.Due(0)
			b.pass(time.Minute)
		}
		require.Empty(t, b.probes)
		require.Empty(t, b.looks)
	})
}

func TestNothingIsDoneWhileASweeperIsLinked(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.linked.Store(true)
		b.set(func() { b.timers = []time.Time{time.Now()} })
		b.park()
		b.Due(0)
		b.pass(time.Minute)
		require.Empty(t, b.probes)
		require.Empty(t, b.looks)

		b.linked.Store(false)
		b.pass(lookout.ProbeEvery)
		require.NotEmpty(t, b.looks, "the sweeper is lost")
		b.linked.Store(true)
		b.pass(lookout.ProbeEvery)
		n := len(b.looks)
		b.pass(time.Minute)
		require.Len(t, b.looks, n)
	})
}

func TestLooksBeginWhenATimerIsDueSoon(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		const due = 10*time.Second + 100*time.Millisecond
		b.set(func() { b.timers = []time.Time{time.Now().Add(due)} })
		b.park()
		b.pass(due)
		b.set(func() { b.timers = nil }) // in the hands of a sweeper
		b.pass(time.Minute)
		for i, at := range b.at(b.probes) {
			require.Equal(t, time.Duration(i)*lookout.ProbeEvery, at)
		}
		looks := b.at(b.looks)
		require.Equal(t, 10*time.Second, looks[0])
		require.Equal(t, due+lookout.Stay-lookout.Spacing, looks[len(looks)-1])
		for i := range looks[1:] {
			require.Equal(t, lookout.Spacing, looks[i+1]-looks[i])
		}
	})
}

func TestLooksGoOnWhileATimerStaysDue(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.set(func() { b.timers = []time.Time{time.Now().Add(-time.Hour)} })
		b.park()
		b.pass(time.Minute)
		require.Len(t, b.looks, int(time.Minute/lookout.Spacing)+1)
	})
}

func TestWhatIsScheduledHereIsKnownWithoutAProbe(t *testing.T) {
	t.Parallel()
	for in, looks := range map[time.Duration]int{
		-time.Hour:                        int(lookout.Stay / lookout.Spacing),
		0:                                 int(lookout.Stay / lookout.Spacing),
		lookout.ProbeEvery:                int((lookout.ProbeEvery + lookout.Stay) / lookout.Spacing),
		lookout.ProbeEvery + 1:            0, // a probe comes first
		time.Duration(1<<63 - 1):          0,
		-time.Duration(1<<63-1) - 1:       int(lookout.Stay / lookout.Spacing),
		time.Hour:                         0,
		lookout.ProbeEvery - time.Second:  int(lookout.Stay / lookout.Spacing),
		lookout.ProbeEvery - lookout.Stay: int(lookout.Stay / lookout.Spacing),
	} {
		t.Run(in.String(), func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, b *bench) {
				b.park()
				b.pass(10 * time.Millisecond)
				b.Due(in)
				synctest.Wait()
				b.pass(time.Minute)
				require.Len(t, b.looks, looks)
				if looks > 0 {
					require.Equal(t, 10*time.Millisecond, b.at(b.looks)[0])
				}
			})
		})
	}
}

// A pop that is parked while a timer is overdue is served at once.
func TestAPopThatIsParkedLaterIsLookedAfterAtOnce(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.set(func() { b.timers = []time.Time{time.Now()} })
		b.pass(time.Hour)
		b.park()
		require.Equal(t, []time.Duration{time.Hour}, b.at(b.probes))
		require.Equal(t, []time.Duration{time.Hour}, b.at(b.looks))
		// Pops that come and go cause no more than one that stays.
		b.set(func() { b.timers = nil })
		for range 1000 {
			b.waiting.Store(0)
			b.pass(time.Millisecond)
			b.park()
		}
		require.Len(t, b.probes, int(time.Second/lookout.ProbeEvery)+1)
		require.LessOrEqual(t, len(b.looks), int(time.Second/lookout.Spacing)+1)
	})
}

func TestSlowLooksTakeTheirShareOnly(t *testing.T) {
	t.Parallel()
	for _, cost := range []time.Duration{time.Millisecond, lookout.Spacing / lookout.Share, 10 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(cost.String(), func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, b *bench) {
				b.set(func() { b.cost, b.timers = cost, []time.Time{time.Now()} })
				b.park()
				b.pass(10 * time.Minute)
				took := time.Duration(len(b.looks)) * cost
				spared := min(cost, lookout.Spacing/lookout.Share) // of looks that cannot be more frequent
				require.InEpsilon(t, (10*time.Minute*spared/(lookout.Spacing/lookout.Share))/lookout.Share, took, 0.05)
				require.LessOrEqual(t, took, 10*time.Minute/lookout.Share+lookout.Reserve+cost)
			})
		})
	}
}

func TestASlowLookNowAndThenDoesNotMatter(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.set(func() { b.cost, b.timers = lookout.Reserve-lookout.Spacing, []time.Time{time.Now()} })
		b.park()
		b.set(func() { b.cost = time.Millisecond })
		b.pass(time.Minute)
		looks := b.at(b.looks)
		require.Equal(t, lookout.Reserve-lookout.Spacing, looks[1])
		for i := range looks[2:] {
			require.Equal(t, lookout.Spacing, looks[i+2]-looks[i+1])
		}
	})
}

func TestAnAilingDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, b *bench) {
		b.set(func() { b.err = errors.New("no database") })
		b.set(func() { b.timers = []time.Time{time.Now()} })
		b.park()
		b.pass(10 * time.Second)
		require.Len(t, b.probes, int(10*time.Second/lookout.RetryAfter)+1)
		require.Empty(t, b.looks, "nothing is known")
		for range 10 {
			b.Due(0)
			b.pass(lookout.RetryAfter)
		}
		require.LessOrEqual(t, len(b.looks), 11)
		b.set(func() { b.err, b.looks = nil, nil })
		b.pass(lookout.RetryAfter + 10*lookout.Spacing)
		require.GreaterOrEqual(t, len(b.looks), 10, "it is well again")
	})
}

func TestSchedulingCostsNothing(t *testing.T) {
	l, err := lookout.New(lookout.Deps{Meter: noop.Meter{}})
	require.NoError(t, err)
	for _, in := range []time.Duration{0, time.Hour} {
		require.Zero(t, testing.AllocsPerRun(100, func() { l.Due(in) }))
	}
}
