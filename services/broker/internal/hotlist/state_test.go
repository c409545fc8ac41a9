package hotlist

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

const (
	window = 5 * time.Second
	delay  = 20 * time.Second
)

// The kinds of queue.
var (
	plain    = store.QueueSettings{}
	windowed = store.QueueSettings{WindowBuffer: 5}
	delayed  = store.QueueSettings{DelayedProcessing: 20}
	both     = store.QueueSettings{DelayedProcessing: 20, WindowBuffer: 5}
)

func setupQueue(t testing.TB, s store.QueueSettings) *bench {
	b := setup(t, Config{})
	b.store.settings["q"] = s
	b.reseed()
	return b
}

func (b *bench) push(n int)    { b.Pushed(tenant, "q", "p", n) }
func (b *bench) back()         { b.MarkGroup(tenant, "q", "p", "g") }
func (b *bench) acked()        { b.Promote(idOf("p"), "g") }
func (b *bench) rows()         { b.store.list("p"); b.reseed(); b.store.list() }
func (b *bench) is(k Kind)     { b.verdict(verdictOf(b, k)) }
func (b *bench) taken(end int) { b.verdict(leasedTo(b, int64(end))) }

func verdictOf(b *bench, k Kind) Verdict {
	v := Verdict{Partition: "p", PartitionID: idOf("p"), Kind: k}
	if k == Leased {
		v.Until = b.now().Add(250 * time.Millisecond)
	}
	return v
}

// leasedTo serves offsets to end out of 0 to 9, for a minute.
func leasedTo(b *bench, end int64) Verdict {
	return Verdict{Partition: "p", PartitionID: idOf("p"), Kind: Took, Until: b.now().Add(time.Minute), BatchEnd: end, LastOffset: 9}
}

func autoAckedTo(end int64) Verdict {
	return Verdict{Partition: "p", PartitionID: idOf("p"), Kind: TookAutoAck, BatchEnd: end, LastOffset: 9}
}

type want struct {
	state state
	due   time.Duration // exactly, where it is not drawn at random
	until time.Duration // at most, where it is
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		queue store.QueueSettings
		do    func(b *bench)
		want  want
	}{
		// Marks.
		{"a mark makes an idle lane ready", plain, func(b *bench) { b.push(1) }, want{state: ready}},
		{"a mark waits for the delay and the grace", delayed, func(b *bench) { b.push(1) }, want{state: wheel, due: delay + Grace}},
		{"a mark waits for the window", windowed, func(b *bench) { b.push(1) }, want{state: wheel, due: window}},
		{"a delay goes before a window", both, func(b *bench) { b.push(1000) }, want{state: wheel, due: delay + Grace}},
		{"a full batch ends the window at once", windowed, func(b *bench) { b.push(100) }, want{state: ready}},
		{"one below does not", windowed, func(b *bench) { b.push(99) }, want{state: wheel, due: window}},
		{"marks add up to the batch", windowed, func(b *bench) { b.push(99); b.push(1) }, want{state: ready}},
		{"a second mark does not prolong the window", windowed, func(b *bench) { b.push(1); b.pass(2 * time.Second); b.push(1) }, want{state: wheel, due: window - 2*time.Second}},
		{"marks never shorten a delay", delayed, func(b *bench) { b.push(1000); b.pass(time.Second); b.push(1000) }, want{state: wheel, due: delay + Grace - time.Second}},
		{"a row makes an idle lane ready", plain, (*bench).rows, want{state: ready}},
		{"a row of a delayed queue is for SQL to judge", delayed, (*bench).rows, want{state: ready}},
		{"a row leaves the wheel alone", delayed, func(b *bench) { b.push(1); b.rows() }, want{state: wheel, due: delay + Grace}},
		{"a moved cursor makes an idle lane ready", delayed, (*bench).back, want{state: ready}},
		{"a moved cursor ends a lease's pause", plain, func(b *bench) { b.push(1); b.taken(9); b.back() }, want{state: ready}},
		{"a moved cursor ends a deferral", delayed, func(b *bench) { b.push(1); b.back() }, want{state: ready}},
		{"a mark does not end a lease's pause", plain, func(b *bench) { b.push(1); b.taken(9); b.push(1) }, want{state: wheel, due: LeaseParkMax}},
		{"a full batch does", windowed, func(b *bench) { b.push(100); b.taken(9); b.push(100) }, want{state: ready}},
		{"the wheel turns", windowed, func(b *bench) { b.push(1); b.pass(window + 2*WheelTick) }, want{state: ready}},

		// Check-in of what was taken.
		{"a leased lane waits a second", plain, func(b *bench) { b.push(1); b.taken(9) }, want{state: wheel, due: LeaseParkMax}},
		{"or until a shorter lease ends", plain, func(b *bench) {
			b.push(1)
			v := leasedTo(b, 9)
			v.Until = b.now().Add(400 * time.Millisecond)
			b.verdict(v)
		}, want{state: wheel, due: 400 * time.Millisecond}},
		{"a lease without an end is bounded", plain, func(b *bench) {
			b.push(1)
			v := leasedTo(b, 9)
			v.Until = time.Time{}
			b.verdict(v)
		}, want{state: wheel, due: LeaseParkMax}},
		{"auto-ack with something left goes on", plain, func(b *bench) { b.push(1); b.verdict(autoAckedTo(8)) }, want{state: ready}},
		{"auto-ack of everything is done", plain, func(b *bench) { b.push(1); b.verdict(autoAckedTo(9)) }, want{state: idle}},
		{"auto-ack of everything, with a new mark", plain, func(b *bench) {
			b.push(1)
			c := b.take(1)
			b.push(1)
			c.Return([]Verdict{autoAckedTo(9)})
		}, want{state: ready}},
		{"auto-ack of a window waits for the next", windowed, func(b *bench) {
			b.push(100)
			c := b.take(1)
			b.pass(time.Second)
			b.push(1)
			b.pass(time.Second)
			c.Return([]Verdict{autoAckedTo(9)})
		}, want{state: wheel, due: window - time.Second}},

		// Other verdicts.
		{"nothing there is done", plain, func(b *bench) { b.push(1); b.is(Nothing) }, want{state: idle}},
		{"nothing there, but marked meanwhile", plain, func(b *bench) {
			b.push(1)
			c := b.take(1)
			b.push(1)
			c.Return([]Verdict{verdictOf(b, Nothing)})
		}, want{state: ready}},
		{"nothing there, but a row meanwhile", plain, func(b *bench) {
			b.push(1)
			c := b.take(1)
			b.rows()
			c.Return([]Verdict{verdictOf(b, Nothing)})
		}, want{state: ready}},
		{"nothing there may be hidden", windowed, func(b *bench) { b.push(100); b.is(Nothing) }, want{state: wheel, due: LeaseParkMax}},
		{"for a little longer", delayed, func(b *bench) {
			b.push(1)
			b.pass(delay + ambiguity - 10*time.Millisecond)
			b.is(Nothing)
		}, want{state: wheel, due: 50 * time.Millisecond}},
		{"and not for ever", delayed, func(b *bench) {
			b.push(1)
			b.pass(delay + ambiguity)
			b.is(Nothing)
		}, want{state: idle}},
		{"leased by another", plain, func(b *bench) { b.push(1); b.is(Leased) }, want{state: wheel, due: 550 * time.Millisecond}},
		{"leased for long", plain, func(b *bench) {
			b.push(1)
			b.verdict(Verdict{Partition: "p", Kind: Leased, Until: b.now().Add(time.Hour)})
		}, want{state: wheel, due: LeaseParkMax}},
		{"leased by a clock that is behind", plain, func(b *bench) {
			b.push(1)
			b.verdict(Verdict{Partition: "p", Kind: Leased, Until: b.now().Add(-time.Hour)})
		}, want{state: wheel, due: Grace}},
		{"locked", plain, func(b *bench) { b.push(1); b.is(Locked) }, want{state: wheel, until: LockPark + LockJitter}},
		{"no verdict", plain, func(b *bench) { b.push(1); b.take(1).Return(nil) }, want{state: ready}},
		{"abandoned", plain, func(b *bench) { b.push(1); b.take(1).Abandon() }, want{state: ready}},

		// The end of leases.
		{"acked, nothing left", plain, func(b *bench) { b.push(1); b.taken(9); b.acked() }, want{state: idle}},
		{"acked, something left", plain, func(b *bench) { b.push(1); b.taken(8); b.acked() }, want{state: ready}},
		{"acked, marked since", plain, func(b *bench) { b.push(1); b.taken(9); b.push(1); b.acked() }, want{state: ready}},
		{"acked, marked while in hand", plain, func(b *bench) {
			b.push(1)
			c := b.take(1)
			b.push(1)
			c.Return([]Verdict{leasedTo(b, 9)})
			b.acked()
		}, want{state: ready}},
		{"acked, marked since, within the window", windowed, func(b *bench) {
			b.push(100)
			b.taken(9)
			b.push(1)
			b.pass(100 * time.Millisecond)
			b.acked()
		}, want{state: wheel, due: window - 100*time.Millisecond}},
		{"acked after a look in vain", plain, func(b *bench) {
			b.push(1)
			b.taken(9)
			b.pass(LeaseParkMax + 2*WheelTick)
			b.is(Leased)
			b.acked()
		}, want{state: idle}},
		{"acked, marked before a look in vain", plain, func(b *bench) {
			b.push(1)
			b.taken(9)
			b.push(1)
			b.pass(LeaseParkMax + 2*WheelTick)
			b.is(Leased)
			b.acked()
		}, want{state: ready}},
		{"acked while ready again", plain, func(b *bench) { b.push(1); b.taken(9); b.pass(LeaseParkMax + 2*WheelTick); b.acked() }, want{state: idle}},
		{"acked during a look", plain, func(b *bench) {
			b.push(1)
			b.taken(8)
			b.pass(LeaseParkMax + 2*WheelTick)
			c := b.take(1)
			b.acked()
			c.Return([]Verdict{verdictOf(b, Leased)})
		}, want{state: ready}},
		{"acked before the check-in, something left", plain, func(b *bench) {
			b.push(1)
			c := b.take(1)
			b.rows() // teaches the id
			b.acked()
			c.Return([]Verdict{leasedTo(b, 8)})
		}, want{state: ready}},
		{"an ack does not end a deferral", delayed, func(b *bench) {
			b.rows()
			b.is(Nothing)
			b.pass(time.Minute)
			b.is(Nothing)
			b.push(1)
			b.acked()
		}, want{state: wheel, due: delay + Grace}},
		{"an ack leaves an idle lane alone", plain, func(b *bench) { b.rows(); b.is(Nothing); b.acked() }, want{state: idle}},
		{"a lane in hand that nobody returns", plain, func(b *bench) { b.push(1); b.take(1); b.pass(Stranded + time.Second); b.rows() }, want{state: ready}},
		{"a lane in hand may be returned yet", plain, func(b *bench) { b.push(1); b.take(1); b.pass(Stranded - time.Second); b.rows() }, want{state: inflight}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, tc.queue)
			tc.do(b)
			b.check()
			require.Equal(t, tc.want.state, b.stateOf("p"))
			if tc.want.state != wheel {
				return
			}
			if tc.want.until > 0 {
				require.LessOrEqual(t, b.due("p"), tc.want.until)
				require.GreaterOrEqual(t, b.due("p"), LockPark)
				return
			}
			require.Equal(t, tc.want.due, b.due("p"))
		})
	}
}

func TestSkipWindowOnlyAfterTheRingHasAppliedIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		queue store.QueueSettings
		do    func(b *bench)
		want  bool
	}{
		{"no window", plain, func(b *bench) { b.push(1) }, false},
		{"waited out", windowed, func(b *bench) { b.push(1); b.pass(window + 2*WheelTick) }, true},
		{"full batch", windowed, func(b *bench) { b.push(100) }, true},
		{"a row of unknown age", windowed, (*bench).rows, false},
		{"a moved cursor", windowed, (*bench).back, false},
		{"under a delay", both, func(b *bench) { b.push(100); b.pass(delay + Grace + 2*WheelTick) }, false},
		{"settings not read", windowed, func(b *bench) { b.push(100); b.Changed(tenant, "q") }, false},
		{"settings read again", windowed, func(b *bench) {
			b.push(100)
			b.Changed(tenant, "q")
			require.NoError(b.t, b.queueOf().refresh(b.t.Context()))
		}, true},
		{"settings of long ago", windowed, func(b *bench) { b.push(100); b.pass(3 * SettingsAgeDefault) }, false},
		{"what a released batch left", windowed, func(b *bench) { b.push(100); b.verdict(autoAckedTo(5)) }, true},
		{"what a batch left that SQL judged", windowed, func(b *bench) { b.rows(); b.verdict(autoAckedTo(5)) }, false},
		{"marks after a look in vain", windowed, func(b *bench) {
			b.push(60)
			b.pass(window + 2*WheelTick)
			b.is(Locked)
			b.push(40)
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, tc.queue)
			tc.do(b)
			c := b.take(1)
			require.Equal(t, tc.want, c.SkipWindow())
			c.Abandon()
		})
	}
}

func TestWindowsOfTheTwoKindsAreNotMixed(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, windowed)
	b.store.list("row")
	b.reseed()
	b.Pushed(tenant, "q", "full", 100)
	first, second := b.take(2), b.take(2)
	require.Len(t, first.Partitions(), 1)
	require.Len(t, second.Partitions(), 1)
	require.NotEqual(t, first.SkipWindow(), second.SkipWindow())
}

func TestChangedDeferralReleasesWhatWaitsForTheOldOne(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, delayed)
	b.push(1)
	b.store.settings["q"] = plain
	b.Changed(tenant, "q")
	require.Equal(t, wheel, b.stateOf("p"), "until it is read")
	b.waker.take()
	require.NoError(t, b.queueOf().refresh(t.Context()))
	require.Equal(t, ready, b.stateOf("p"))
	require.Equal(t, []string{""}, b.waker.take())
	b.check()
}

func TestTimeOfSettingsIsConfigured(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.cfg.SettingsAge = 5 * time.Second
	for i, d := range []time.Duration{5*time.Second - 1, 1} {
		b.advance(d)
		require.NoError(t, b.queueOf().refresh(t.Context()))
		require.Equal(t, 1+i, b.store.reads)
	}
}

func TestSettingsAreReadAgainAfterTheirTime(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	refresh := func() { require.NoError(t, b.queueOf().refresh(t.Context())) }
	b.advance(SettingsAgeDefault - 1)
	refresh()
	require.Equal(t, 1, b.store.reads)
	b.advance(1)
	refresh()
	require.Equal(t, 2, b.store.reads)
	b.Changed(tenant, "q")
	refresh()
	require.Equal(t, 3, b.store.reads)
}
