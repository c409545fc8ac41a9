package popfusion_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is one transaction; the fake answers it when it is told to.
type call struct {
	store.MultiPop
	reply chan answer
}

type answer struct {
	takes []int // messages by claim; none: as many as asked for
	err   error
}

func (c *call) answer(a answer) {
	c.reply <- a
	synctest.Wait()
}

func (c *call) lanes() (names []string) {
	for i := range c.Claims {
		names = append(names, c.Claims[i].Partition)
	}
	return names
}

type fakeStore struct{ calls chan *call }

func (f *fakeStore) PopMulti(_ context.Context, m store.MultiPop) ([]store.PopServed, error) {
	c := &call{m, make(chan answer)}
	f.calls <- c
	a := <-c.reply
	if a.err != nil {
		return nil, a.err
	}
	served := make([]store.PopServed, len(m.Claims))
	for i := range served {
		take := m.Claims[i].Budget
		if a.takes != nil {
			take = a.takes[i]
		}
		if take > 0 {
			served[i].Partition = m.Claims[i].Partition
			served[i].Segments = []store.PoppedSegment{{Take: take}}
		}
	}
	return served, nil
}

type bundle struct {
	t     *testing.T
	fuser *popfusion.Fuser
	store *fakeStore
	gate  *admission.Gate
	wg    sync.WaitGroup
}

const (
	maxWait    = 10 * time.Second
	maxWaiting = 8
	slots      = 4
)

func on(t *testing.T, cfg popfusion.Config, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bundle{t: t, store: &fakeStore{calls: make(chan *call, 100)}}
		var err error
		b.gate, err = admission.New(admission.Config{Slots: slots, MaxWait: maxWait, MaxWaiting: maxWaiting}, noop.Meter{})
		require.NoError(t, err)
		b.fuser, err = popfusion.New(cfg, popfusion.Deps{Store: b.store, Admission: b.gate, Meter: noop.Meter{}})
		require.NoError(t, err)
		test(t, b)
		b.wg.Wait()
		require.Empty(t, b.store.calls)
		time.Sleep(time.Second) // timers of departures
	})
}

func keyOf(group string) popfusion.Key {
	return popfusion.Key{Tenant: uuid.UUID{1}, Queue: "q", Group: group}
}

// request is a claim under way.
type request struct {
	out  popfusion.Outcome
	err  error
	done bool
	at   time.Time
}

// pop claims a lane; without a name it finds none left.
func (b *bundle) pop(ctx context.Context, group, lane string, want int) *request {
	b.t.Helper()
	r := &request{}
	b.wg.Go(func() {
		r.out, r.err = b.fuser.Do(ctx, keyOf(group), popfusion.Claim{Want: want, Board: func() (store.PopClaim, bool) {
			return store.PopClaim{Partition: lane, Budget: want, MaxBytes: 20 << 20}, lane != ""
		}})
		r.done, r.at = true, time.Now()
	})
	synctest.Wait()
	return r
}

func (b *bundle) ask(lane string, want int) *request {
	return b.pop(context.Background(), "g", lane, want)
}

// next is the call that has come in.
func (b *bundle) next() *call {
	b.t.Helper()
	synctest.Wait()
	select {
	case c := <-b.store.calls:
		return c
	default:
		b.t.Fatal("no call")
		return nil
	}
}

func (b *bundle) idle() bool {
	synctest.Wait()
	return len(b.store.calls) == 0
}

func (b *bundle) served(r *request, lane string, take int) {
	b.t.Helper()
	require.True(b.t, r.done)
	require.NoError(b.t, r.err)
	require.Equal(b.t, popfusion.Served, r.out.State)
	require.Equal(b.t, lane, r.out.Served.Partition)
	require.Equal(b.t, take, r.out.Served.Segments[0].Take)
}

func TestThoseWhoComeDuringAFlightGoTogether(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		first := b.ask("a", 1)
		c := b.next()
		require.Equal(t, []string{"a"}, c.lanes(), "the first goes at once")
		more := []*request{b.ask("b", 1), b.ask("c", 2)}
		other := b.pop(context.Background(), "h", "a", 1)
		b.next().answer(answer{})
		b.served(other, "a", 1)
		require.True(t, b.idle(), "a group has one flight at a time")
		c.answer(answer{})
		b.served(first, "a", 1)
		c = b.next()
		require.Equal(t, []string{"b", "c"}, c.lanes())
		c.answer(answer{takes: []int{1, 0}})
		b.served(more[0], "b", 1)
		require.Equal(t, popfusion.Missed, more[1].out.State)
	})
}

func TestAFlightHasBounds(t *testing.T) {
	on(t, popfusion.Config{MaxClaims: 2}, func(t *testing.T, b *bundle) {
		b.ask("a", 1)
		c := b.next()
		for _, lane := range []string{"b", "c", "d"} {
			b.ask(lane, 1)
		}
		for _, want := range [][]string{{"b", "c"}, {"d"}} {
			c.answer(answer{})
			c = b.next()
			require.Equal(t, want, c.lanes())
		}
		c.answer(answer{})
	})
}

func TestTheClaimsOfAFlightShareABoundOnBytes(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		for n := 1; n <= 4; n *= 2 {
			first := b.ask("first", 1)
			c := b.next()
			for i := range n {
				b.ask(strconv.Itoa(i), 1)
			}
			c.answer(answer{})
			b.served(first, "first", 1)
			c = b.next()
			for _, claim := range c.Claims {
				require.Equal(t, int64(min(20<<20, 32<<20/n)), claim.MaxBytes)
			}
			c.answer(answer{})
		}
	})
}

func TestALaneIsClaimedOnceInAFlight(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		b.ask("a", 1)
		c := b.next()
		one, two, none := b.ask("b", 1), b.ask("b", 1), b.ask("", 1)
		c.answer(answer{})
		c = b.next()
		require.Equal(t, []string{"b"}, c.lanes())
		require.Equal(t, popfusion.Missed, two.out.State)
		require.True(t, none.done)
		require.Equal(t, popfusion.NoLane, none.out.State)
		c.answer(answer{})
		b.served(one, "b", 1)
		none = b.ask("", 1)
		require.True(t, none.done, "nobody has a lane: no call")
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
	aborted := &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	t.Run("a poisoned lane sends everybody alone", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ask("a", 1)
			b.next().answer(answer{err: refused})
			require.NoError(t, r.err)
			require.Equal(t, popfusion.Missed, r.out.State)
			require.False(t, b.fuser.Fuses(keyOf("g")))
			require.True(t, b.fuser.Fuses(keyOf("h")))
			time.Sleep(time.Second)
			require.True(t, b.fuser.Fuses(keyOf("g")))
		})
	})
	t.Run("an abort is tried again", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ask("a", 1)
			b.next().answer(answer{err: aborted})
			time.Sleep(50 * time.Millisecond)
			b.next().answer(answer{})
			b.served(r, "a", 1)
		})
	})
	t.Run("a lost answer is everybody's error", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ask("a", 1)
			b.next().answer(answer{err: context.DeadlineExceeded})
			require.ErrorIs(t, r.err, context.DeadlineExceeded)
		})
	})
	t.Run("a group that only misses goes alone", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			miss := func() {
				require.True(t, b.fuser.Fuses(keyOf("g")))
				b.fly(0, 1, 0)
			}
			for range 3 { // one at a time is another broker's doing
				miss()
				b.fly(0, 1, 1)
			}
			for range 4 {
				miss()
				landed, err := b.fuser.Pace(t.Context(), keyOf("g"))
				require.NoError(t, err)
				landed(1, 1)
			}
			require.False(t, b.fuser.Fuses(keyOf("g")))
			time.Sleep(time.Second)
			require.True(t, b.fuser.Fuses(keyOf("g")))
		})
	})
	t.Run("no fuser fuses nothing", func(t *testing.T) {
		var none *popfusion.Fuser
		require.False(t, none.Fuses(keyOf("g")))
		landed, err := none.Pace(t.Context(), keyOf("g"))
		require.NoError(t, err)
		landed(1, 1)
	})
}

// fly makes one departure of a group at rest, whose call takes lasts.
func (b *bundle) fly(lasts time.Duration, want, take int) {
	b.t.Helper()
	b.ask("a", want)
	c := b.next()
	time.Sleep(lasts)
	c.answer(answer{takes: []int{take}})
}

func TestCrumbsKeepThePace(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		start := time.Now()
		b.fly(time.Millisecond, 100, 49)
		r := b.ask("b", 100)
		require.True(t, b.idle(), "less than half was delivered")
		time.Sleep(10*time.Millisecond - time.Since(start) - 1)
		require.True(t, b.idle())
		time.Sleep(time.Nanosecond)
		b.next().answer(answer{takes: []int{50}})
		b.served(r, "b", 50)
		b.ask("c", 100)
		b.next().answer(answer{takes: []int{1}})
		require.Zero(t, time.Since(start)-10*time.Millisecond, "half full batches go at once")
	})
}

func TestThePaceHasABound(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		b.fly(time.Second, 10, 1)
		start := time.Now()
		b.ask("b", 10)
		c := b.next()
		require.Zero(t, time.Since(start), "the last departure is long ago")
		c.answer(answer{takes: []int{1}})
		b.ask("c", 10)
		time.Sleep(popfusion.MaxPaceDefault - 1)
		require.True(t, b.idle())
		time.Sleep(time.Nanosecond)
		b.next().answer(answer{})
	})
	t.Run("none", func(t *testing.T) {
		on(t, popfusion.Config{MaxPace: -1}, func(_ *testing.T, b *bundle) {
			for range 3 {
				b.fly(0, 10, 1)
			}
		})
	})
}

func TestPopsOfOneMessageAreNeverHeld(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		start := time.Now()
		for range 5 {
			b.fly(0, 1, 1)
		}
		require.Zero(t, time.Since(start))
	})
}

func TestPopsThatGoAloneKeepThePace(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		start := time.Now()
		landed, err := b.fuser.Pace(t.Context(), keyOf("g"))
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		landed(1, 100)
		at := make(chan time.Duration, 3)
		for range cap(at) {
			b.wg.Go(func() {
				_, _ = b.fuser.Pace(context.Background(), keyOf("g"))
				at <- time.Since(start)
			})
		}
		for i := range cap(at) {
			require.Equal(t, time.Duration(10*(i+1))*time.Millisecond, <-at, "one at each departure")
		}
		landed(0, 0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.fuser.Pace(ctx, keyOf("g"))
		require.ErrorIs(t, err, context.Canceled)
		landed(100, 100)
		_, err = b.fuser.Pace(t.Context(), keyOf("g"))
		require.NoError(t, err)
		require.Equal(t, 30*time.Millisecond, time.Since(start), "full: at once")
	})
}

func TestAStuckFlightKeepsNobody(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		stuck := b.ask("a", 1)
		first := b.next()
		r := b.ask("b", 1)
		time.Sleep(100*time.Millisecond - 1)
		require.True(t, b.idle())
		time.Sleep(time.Nanosecond)
		b.next().answer(answer{})
		b.served(r, "b", 1)
		first.answer(answer{})
		b.served(stuck, "a", 1)
	})
}

func TestWaitingHasBounds(t *testing.T) {
	t.Parallel()
	t.Run("a client that leaves", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			b.ask("a", 1)
			c := b.next()
			ctx, cancel := context.WithCancel(context.Background())
			r := b.pop(ctx, "g", "b", 1)
			cancel()
			synctest.Wait()
			require.ErrorIs(t, r.err, context.Canceled)
			require.ErrorIs(t, b.pop(ctx, "g", "b", 1).err, context.Canceled)
			c.answer(answer{})
			require.True(t, b.idle(), "it claims nothing")
		})
	})
	t.Run("a client that leaves during its flight gets what was claimed", func(t *testing.T) {
		on(t, popfusion.Config{}, func(_ *testing.T, b *bundle) {
			ctx, cancel := context.WithCancel(context.Background())
			r := b.pop(ctx, "g", "b", 1)
			c := b.next()
			cancel()
			c.answer(answer{})
			b.served(r, "b", 1)
		})
	})
	t.Run("as many as admission allows", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			b.ask("a", 1)
			c := b.next()
			for i := range maxWaiting - 1 {
				require.False(t, b.ask(strconv.Itoa(i), 1).done)
			}
			require.ErrorIs(t, b.ask("z", 1).err, popfusion.ErrOverloaded)
			c.answer(answer{})
			b.next().answer(answer{})
		})
	})
	t.Run("as long as admission allows", func(t *testing.T) {
		on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
			var releases []func()
			for range slots {
				release, err := b.gate.Acquire(t.Context(), admission.Push)
				require.NoError(t, err)
				releases = append(releases, release)
			}
			start := time.Now()
			r := b.ask("a", 1)
			time.Sleep(maxWait + time.Second)
			synctest.Wait()
			require.ErrorIs(t, r.err, popfusion.ErrOverloaded)
			require.LessOrEqual(t, r.at.Sub(start), maxWait)
			for _, release := range releases {
				release()
			}
			r = b.ask("a", 1)
			b.next().answer(answer{})
			b.served(r, "a", 1)
		})
	})
}
