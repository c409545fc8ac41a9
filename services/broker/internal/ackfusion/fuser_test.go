package ackfusion_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is one transaction; the fake answers it when it is told to.
type call struct {
	rows  []store.AckRow
	wait  bool
	pops  []store.MultiPop
	reply chan answer
}

type answer struct {
	errors map[byte]string // by lane
	served [][]store.PopServed
	err    error
}

func (c *call) lanes() (lanes []byte) {
	for _, r := range c.rows {
		lanes = append(lanes, r.PartitionID[0])
	}
	return lanes
}

// fakeStore shows every call to the test.
type fakeStore struct{ calls chan *call }

func (f *fakeStore) AckWhole(ctx context.Context, rows []store.AckRow, wait bool) ([]store.AckOutcome, error) {
	out, _, err := f.AckAndPop(ctx, rows, wait, store.Next{})
	return out, err
}

func (f *fakeStore) AckAndPop(
	_ context.Context, rows []store.AckRow, wait bool, next store.Next,
) ([]store.AckOutcome, store.NextServed, error) {
	c := &call{rows, wait, next.Pops, make(chan answer)}
	f.calls <- c
	a := <-c.reply
	if a.err != nil {
		return nil, store.NextServed{}, a.err
	}
	out := make([]store.AckOutcome, len(rows))
	for i, r := range rows {
		text := a.errors[r.PartitionID[0]]
		out[i] = store.AckOutcome{OK: text == "", Error: text, Released: text == ""}
	}
	return out, store.NextServed{Pops: a.served}, nil
}

type bundle struct {
	t     *testing.T
	fuser *ackfusion.Fuser
	store *fakeStore
	gate  *admission.Gate
	wg    sync.WaitGroup
}

const (
	maxWait    = 10 * time.Second
	maxWaiting = 8
)

func setup(t *testing.T, cfg ackfusion.Config, slots int) *bundle {
	t.Helper()
	b := &bundle{t: t, store: &fakeStore{calls: make(chan *call, 100)}}
	var err error
	b.gate, err = admission.New(admission.Config{Slots: slots, MaxWait: maxWait, MaxWaiting: maxWaiting}, noop.Meter{})
	require.NoError(t, err)
	b.fuser, err = ackfusion.New(cfg, ackfusion.Deps{
		Store: b.store, Admission: b.gate, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return b
}

// on runs a test inside a bubble, over one shard.
func on(t *testing.T, cfg ackfusion.Config, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg.Shards = 1
		b := setup(t, cfg, 8)
		test(t, b)
		b.wg.Wait()
		require.Empty(t, b.store.calls)
	})
}

// row is the ack of a lane by a worker of the same number.
func row(lane byte) store.AckRow {
	return store.AckRow{PartitionID: uuid.UUID{lane}, Group: "g", Worker: fmt.Sprint("w", lane), End: 7, Count: 3}
}

// request is an Ack under way.
type request struct {
	verdicts []ackfusion.Verdict
	err      error
	done     bool
}

func (b *bundle) ack(rows ...store.AckRow) *request {
	b.t.Helper()
	r := &request{}
	b.wg.Go(func() {
		r.verdicts, r.err = b.fuser.Ack(context.Background(), rows)
		r.done = true
	})
	synctest.Wait()
	return r
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

func (c *call) answer(a answer) {
	c.reply <- a
	synctest.Wait()
}

func committed(n int) []ackfusion.Verdict { return make([]ackfusion.Verdict, n) }

func TestAnIdleShardFliesAtOnce(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		start := time.Now()
		r := b.ack(row(1))
		c := b.next()
		require.Equal(t, []store.AckRow{row(1)}, c.rows)
		require.True(t, c.wait)
		require.False(t, r.done, "nothing is answered before the commit")
		c.answer(answer{})
		require.True(t, r.done)
		require.Equal(t, committed(1), r.verdicts)
		require.Zero(t, time.Since(start))
	})
}

func TestWhatComesDuringAFlightFliesTogether(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		first := b.ack(row(1))
		c := b.next()
		later := []*request{b.ack(row(2)), b.ack(row(3), row(4))}
		require.True(t, b.idle(), "one flight at a time")
		c.answer(answer{})
		require.True(t, first.done)
		c = b.next()
		require.Equal(t, []byte{2, 3, 4}, c.lanes())
		require.False(t, c.wait)
		c.answer(answer{})
		require.Equal(t, committed(1), later[0].verdicts)
		require.Equal(t, committed(2), later[1].verdicts)
	})
}

func TestRowsOfOneLeaseAreOneRowUpToTheLargerEnd(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		b.ack(row(1))
		c := b.next()
		longer, stranger, shorter := row(2), row(2), row(2)
		longer.End, longer.Count, stranger.Worker, shorter.End = 9, 5, "x", 1
		rs := []*request{b.ack(row(2)), b.ack(longer), b.ack(stranger), b.ack(shorter)}
		c.answer(answer{})
		c = b.next()
		require.Equal(t, []store.AckRow{longer, stranger}, c.rows, "different workers never fold")
		c.answer(answer{})
		for _, r := range rs {
			require.Equal(t, committed(1), r.verdicts)
		}
	})
}

func TestABundleHasBounds(t *testing.T) {
	on(t, ackfusion.Config{MaxRows: 2}, func(t *testing.T, b *bundle) {
		b.ack(row(1), row(2), row(3), row(4), row(5))
		for _, want := range [][]byte{{1, 2}, {3, 4}, {5}} {
			c := b.next()
			require.Equal(t, want, c.lanes())
			c.answer(answer{})
		}
	})
}

func TestShardsFlyBesideEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, ackfusion.Config{Shards: 2}, 8)
		other := row(2)
		other.PartitionID[15] = 1
		r := b.ack(row(1), other)
		b.next().answer(answer{})
		require.False(t, r.done)
		b.next().answer(answer{})
		require.Equal(t, committed(2), r.verdicts)
	})
}

func TestARefusalConcernsItsRowAlone(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		r := b.ack(row(1), row(2))
		b.next().answer(answer{errors: map[byte]string{1: "invalid or expired lease"}})
		require.Equal(t, []ackfusion.Verdict{{State: ackfusion.Rejected}, {State: ackfusion.Committed}}, r.verdicts)
	})
}

func TestRule13NoBundleWaitsForOneCursor(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		held, free := b.ack(row(1), row(2)), b.ack(row(3))
		b.next().answer(answer{errors: map[byte]string{1: store.AckBusy}})
		bundle, alone := b.next(), b.next()
		if len(bundle.lanes()) != 1 || bundle.lanes()[0] != 3 {
			bundle, alone = alone, bundle
		}
		require.Equal(t, []byte{1}, alone.lanes())
		require.True(t, alone.wait)
		bundle.answer(answer{})
		require.True(t, free.done)
		// The held one keeps nothing from flying.
		for lane := range byte(5) {
			r := b.ack(row(10 + lane))
			b.next().answer(answer{})
			require.True(t, r.done)
		}
		require.False(t, held.done)
		alone.answer(answer{})
		require.Equal(t, committed(2), held.verdicts)
	})
}

func TestAStuckFlightIsLeftToItself(t *testing.T) {
	on(t, ackfusion.Config{Hold: time.Millisecond}, func(t *testing.T, b *bundle) {
		stuck := b.ack(row(1))
		first := b.next()
		waiting := b.ack(row(2))
		time.Sleep(31 * time.Millisecond)
		require.True(t, b.idle())
		time.Sleep(time.Millisecond)
		c := b.next()
		require.Equal(t, []byte{2}, c.lanes())
		gathered := b.ack(row(3))
		first.answer(answer{})
		require.True(t, stuck.done)
		require.True(t, b.idle(), "the end of a stuck flight starts none")
		c.answer(answer{})
		require.True(t, waiting.done)
		b.next().answer(answer{})
		require.True(t, gathered.done)

		// Nothing waits when it turns out to be stuck: the next row leads.
		b.ack(row(1))
		first = b.next()
		time.Sleep(time.Second)
		r := b.ack(row(2))
		b.next().answer(answer{})
		require.True(t, r.done)
		first.answer(answer{})
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	aborted := &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
	lost := context.DeadlineExceeded
	t.Run("an abort is tried again", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ack(row(1), row(2))
			for range 3 {
				b.next().answer(answer{err: aborted})
				time.Sleep(100 * time.Millisecond)
			}
			b.next().answer(answer{})
			require.Equal(t, committed(2), r.verdicts)
		})
	})
	t.Run("until the deadline", func(t *testing.T) {
		on(t, ackfusion.Config{Deadline: time.Second}, func(t *testing.T, b *bundle) {
			start := time.Now()
			r := b.ack(row(1), row(2))
			for !r.done {
				select {
				case c := <-b.store.calls:
					c.answer(answer{err: aborted})
				default:
					time.Sleep(time.Millisecond)
				}
			}
			require.Equal(t, []ackfusion.Verdict{{State: ackfusion.Failed, Err: aborted}, {State: ackfusion.Failed, Err: aborted}}, r.verdicts)
			require.LessOrEqual(t, time.Since(start), time.Second+time.Millisecond)
		})
	})
	t.Run("a lost answer is unknown", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ack(row(1), row(2))
			b.next().answer(answer{err: lost})
			require.Equal(t, []ackfusion.Verdict{{State: ackfusion.Unknown, Err: lost}, {State: ackfusion.Unknown, Err: lost}}, r.verdicts)
		})
	})
	t.Run("a row that fails for good fails by itself", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			r := b.ack(row(1), row(2), row(3))
			b.next().answer(answer{err: refused})
			for range 3 {
				c := b.next()
				require.Len(t, c.rows, 1)
				if c.lanes()[0] == 2 {
					c.answer(answer{err: refused})
				} else {
					c.answer(answer{})
				}
			}
			require.Equal(t, []ackfusion.Verdict{{}, {State: ackfusion.Failed, Err: refused}, {}}, r.verdicts)
		})
	})
}

func TestTooManyWaitingRequestsAreRefused(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		for lane := range byte(maxWaiting) {
			b.ack(row(1 + lane))
		}
		r := b.ack(row(9))
		require.ErrorIs(t, r.err, ackfusion.ErrOverloaded)
		b.next().answer(answer{})
		b.next().answer(answer{})
		r = b.ack(row(9))
		b.next().answer(answer{})
		require.Equal(t, committed(1), r.verdicts)
	})
}

func TestNobodyWaitsLongerThanAdmissionAllows(t *testing.T) {
	overloaded := []ackfusion.Verdict{{State: ackfusion.Failed, Err: ackfusion.ErrOverloaded}}
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		var held []func()
		for {
			release, ok := acquire(t, b.gate)
			if !ok {
				break
			}
			held = append(held, release)
		}
		lead := b.ack(row(1))
		time.Sleep(maxWait - time.Second)
		late := b.ack(row(2), row(3))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, overloaded, lead.verdicts, "no slot")
		require.True(t, late.done, "what came meanwhile is refused with it")
		require.Equal(t, overloaded[0], late.verdicts[0])

		for _, release := range held {
			release()
		}
		r := b.ack(row(1))
		b.next().answer(answer{})
		require.Equal(t, committed(1), r.verdicts, "the shard goes on")
	})
}

func TestRowsThatNoFlightTakesAreWithdrawn(t *testing.T) {
	// With an hour of patience for flights the shard waits for the first.
	on(t, ackfusion.Config{Hold: time.Hour}, func(t *testing.T, b *bundle) {
		b.ack(row(1))
		first := b.next()
		r := b.ack(row(2), row(3))
		time.Sleep(maxWait)
		synctest.Wait()
		require.Equal(t, []ackfusion.Verdict{
			{State: ackfusion.Failed, Err: ackfusion.ErrOverloaded}, {State: ackfusion.Failed, Err: ackfusion.ErrOverloaded},
		}, r.verdicts)
		first.answer(answer{})
	})
}

func TestAClientThatLeaves(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		ctx, cancel := context.WithCancel(context.Background())
		var r request
		b.wg.Go(func() { r.verdicts, r.err = b.fuser.Ack(ctx, []store.AckRow{row(1)}) })
		c := b.next()
		cancel()
		c.answer(answer{})
		require.Equal(t, committed(1), r.verdicts)
		_, err := b.fuser.Ack(ctx, []store.AckRow{row(1)})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// counting commits at once and remembers what it committed.
type counting struct {
	flying, most atomic.Int32
	rows, calls  atomic.Int64
}

func (c *counting) AckAndPop(
	context.Context, []store.AckRow, bool, store.Next,
) ([]store.AckOutcome, store.NextServed, error) {
	panic("nobody rides")
}

func (c *counting) AckWhole(_ context.Context, rows []store.AckRow, wait bool) ([]store.AckOutcome, error) {
	c.most.Store(max(c.most.Load(), c.flying.Add(1)))
	defer c.flying.Add(-1)
	c.calls.Add(1)
	c.rows.Add(int64(len(rows)))
	out := make([]store.AckOutcome, len(rows))
	for i := range out {
		switch {
		case !wait && rand.IntN(4) == 0:
			out[i].Error = store.AckBusy
		default:
			out[i].OK = true
		}
	}
	return out, nil
}

func TestEveryRowGetsOneVerdict(t *testing.T) {
	t.Parallel()
	c := &counting{}
	gate, err := admission.New(admission.Config{Slots: 8}, noop.Meter{})
	require.NoError(t, err)
	f, err := ackfusion.New(ackfusion.Config{Shards: 3, MaxRows: 4}, ackfusion.Deps{
		Store: c, Admission: gate, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 200 {
				rows := make([]store.AckRow, 1+i%5)
				for k := range rows {
					rows[k] = store.AckRow{Group: "g", Worker: fmt.Sprint(w, " ", i), End: 1}
					binary.BigEndian.PutUint64(rows[k].PartitionID[8:], rand.Uint64N(50))
				}
				verdicts, err := f.Ack(context.Background(), rows)
				if err != nil || len(verdicts) != len(rows) {
					t.Error(err, verdicts)
				}
				for _, v := range verdicts {
					if v.State != ackfusion.Committed {
						t.Error(v)
					}
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, c.most.Load(), int32(8), "slots")
	t.Logf("%d rows in %d calls", c.rows.Load(), c.calls.Load())
}

func TestDirect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, ackfusion.Config{}, 8)
		d := &ackfusion.Direct{Store: b.store, Admission: b.gate}
		lost := context.DeadlineExceeded
		refused := &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
		aborted := &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "again"}
		var verdicts []ackfusion.Verdict
		b.wg.Go(func() {
			verdicts, _ = d.Ack(context.Background(), []store.AckRow{row(1), row(2), row(3), row(4)})
		})
		for _, a := range []answer{{err: aborted}, {}, {errors: map[byte]string{2: "no leased batch"}}, {err: lost}, {err: refused}} {
			c := b.next()
			require.Len(t, c.rows, 1)
			require.True(t, c.wait)
			c.answer(a)
			time.Sleep(time.Second)
		}
		b.wg.Wait()
		require.Equal(t, []ackfusion.Verdict{
			{}, {State: ackfusion.Rejected}, {State: ackfusion.Unknown, Err: lost}, {State: ackfusion.Failed, Err: refused},
		}, verdicts)

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := d.Ack(ctx, []store.AckRow{row(1)})
		require.ErrorIs(t, err, context.Canceled)
	})
}

func BenchmarkAckOfOneBatch(b *testing.B) {
	gate, err := admission.New(admission.Config{Slots: 8}, noop.Meter{})
	require.NoError(b, err)
	f, err := ackfusion.New(ackfusion.Config{}, ackfusion.Deps{
		Store: &counting{}, Admission: gate, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	rows := []store.AckRow{row(1)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Ack(context.Background(), rows); err != nil {
			b.Fatal(err)
		}
	}
}

// riders are pops that wait for the lanes they are given.
type riders struct {
	lanes  []byte
	landed []error
}

func (r *riders) Board(rows []store.AckRow) ackfusion.Rides {
	var rides ride
	for i := range rows {
		if slices.Contains(r.lanes, rows[i].PartitionID[0]) {
			rides.rows = append(rides.rows, i)
		}
	}
	if rides.rows == nil {
		return nil
	}
	rides.riders = r
	return &rides
}

type ride struct {
	*riders
	rows []int
}

func (r *ride) Next() store.Next {
	return store.Next{Pops: []store.MultiPop{{Queue: "q", Claims: make([]store.PopClaim, len(r.rows))}}}
}

func (r *ride) Requests(*spans.Set) {}

func (r *ride) Land(served store.NextServed, err error) (handed []int) {
	r.landed = append(r.landed, err)
	if err != nil {
		return nil
	}
	for i, row := range r.rows {
		if served.Pops[0][i].Segments != nil {
			handed = append(handed, row)
		}
	}
	return handed
}

func TestWaitingPopsRideWithTheAcks(t *testing.T) {
	ready := &riders{lanes: []byte{2, 3}}
	got := store.PopServed{Popped: store.Popped{Segments: make([]store.PoppedSegment, 1)}}
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		b.fuser.Riders = ready
		first := b.ack(row(1))
		c := b.next()
		require.Nil(t, c.pops, "nobody waits for this lane")
		rest := b.ack(row(1), row(2), row(3))
		c.answer(answer{})
		require.Equal(t, committed(1), first.verdicts)

		c = b.next()
		require.Len(t, c.pops[0].Claims, 2)
		c.answer(answer{served: [][]store.PopServed{{got, {}}}})
		require.Equal(t, []ackfusion.Verdict{{}, {Handed: true}, {}}, rest.verdicts, "the third lane had nothing")
		require.Equal(t, []error{nil}, ready.landed)

		failed := b.ack(row(2))
		b.next().answer(answer{err: context.DeadlineExceeded})
		require.Equal(t, []ackfusion.Verdict{{State: ackfusion.Unknown, Err: context.DeadlineExceeded}}, failed.verdicts)
		require.Equal(t, context.DeadlineExceeded, ready.landed[1])

		// An abort is tried again with the same riders, who land once.
		again := b.ack(row(3))
		b.next().answer(answer{err: &pgconn.PgError{Severity: "ERROR", Code: "40P01"}})
		time.Sleep(100 * time.Millisecond)
		c = b.next()
		require.Len(t, c.pops[0].Claims, 1)
		c.answer(answer{served: [][]store.PopServed{{got}}})
		require.Equal(t, []ackfusion.Verdict{{Handed: true}}, again.verdicts)
		require.Len(t, ready.landed, 3)
	})
}

// Those who were served are about to acknowledge: the first of them waits for the
// others, once.
func TestTheAcksOfThoseWhoWereServedFlyTogether(t *testing.T) {
	t.Parallel()
	const took = 3 * time.Millisecond
	got := store.PopServed{Popped: store.Popped{Segments: make([]store.PoppedSegment, 1)}}
	ready := &riders{lanes: []byte{1, 2, 3}}
	// hand makes a flight that hands three lanes on.
	hand := func(b *bundle) {
		b.ack(row(1), row(2), row(3))
		c := b.next()
		time.Sleep(took)
		c.answer(answer{served: [][]store.PopServed{{got, got, got}}})
	}
	t.Run("all come", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			b.fuser.Riders = ready
			hand(b)
			b.fuser.Riders = nil
			began := time.Now()
			first, second := b.ack(row(1)), b.ack(row(2))
			require.True(t, b.idle())
			time.Sleep(time.Millisecond)
			third := b.ack(row(3))
			c := b.next()
			require.Equal(t, []byte{1, 2, 3}, c.lanes())
			require.Equal(t, time.Millisecond, time.Since(began))
			c.answer(answer{})
			for _, r := range []*request{first, second, third} {
				require.Equal(t, committed(1), r.verdicts)
			}
			b.ack(row(4))
			b.next().answer(answer{}) // nobody was served: no wait
		})
	})
	t.Run("some take their time", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			b.fuser.Riders = ready
			hand(b)
			first := b.ack(row(1))
			time.Sleep(took - 1)
			require.True(t, b.idle())
			time.Sleep(time.Nanosecond)
			c := b.next()
			require.Equal(t, []byte{1}, c.lanes(), "no longer than a flight takes")
			c.answer(answer{served: [][]store.PopServed{{got}}})
			require.True(t, first.done)
			// From now on it waits ever less often: not for 1, 2, 4, 8, 16 and 16 flights
			// after one in vain. Every other flight hands two lanes on.
			var between []int
			for flights := 0; len(between) < 6; flights += 2 {
				b.ack(row(1), row(2))
				b.next().answer(answer{served: [][]store.PopServed{{got, got}}})
				b.ack(row(1))
				if b.idle() {
					time.Sleep(took)
					between, flights = append(between, flights+1), -2
				}
				b.next().answer(answer{served: [][]store.PopServed{{got}}})
			}
			require.Equal(t, []int{1, 3, 5, 9, 17, 17}, between)
		})
	})
	t.Run("one alone waits for nobody", func(t *testing.T) {
		on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
			b.fuser.Riders = ready
			for range 10 {
				b.ack(row(1))
				c := b.next()
				time.Sleep(took)
				c.answer(answer{served: [][]store.PopServed{{got}}})
			}
		})
	})
	t.Run("the wait has a bound", func(t *testing.T) {
		on(t, ackfusion.Config{Hold: time.Second}, func(t *testing.T, b *bundle) {
			b.fuser.Riders = ready
			b.ack(row(1), row(2))
			c := b.next()
			time.Sleep(time.Second)
			c.answer(answer{served: [][]store.PopServed{{got, got}}})
			b.ack(row(1))
			time.Sleep(5*time.Millisecond - 1)
			require.True(t, b.idle())
			time.Sleep(time.Nanosecond)
			b.next().answer(answer{served: [][]store.PopServed{{got}}})
		})
	})
}

// A row that a bundle left alone, because it was locked or its lane could not be
// handed over, flies again without riders: they would meet the same.
func TestARowThatWasLeftAloneFliesWithoutRiders(t *testing.T) {
	ready := &riders{lanes: []byte{1, 2}}
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		b.fuser.Riders = ready
		r := b.ack(row(1), row(2))
		c := b.next()
		require.Len(t, c.pops[0].Claims, 2)
		c.answer(answer{errors: map[byte]string{1: store.AckBusy}, served: [][]store.PopServed{{{}, {}}}})
		c = b.next()
		require.Equal(t, []byte{1}, c.lanes())
		require.Nil(t, c.pops)
		c.answer(answer{})
		require.Equal(t, committed(2), r.verdicts)
	})
}

// acquire takes a slot if there is one.
func acquire(t *testing.T, g *admission.Gate) (release func(), ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	release, err := g.Acquire(ctx, admission.Push)
	return release, err == nil
}
