package hotlist

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakePeers notes what they are told.
type fakePeers struct {
	mu    sync.Mutex
	taken []Taking
	rank  func(lane uint64) int
}

func (p *fakePeers) Taken(t Taking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, t)
}

func (p *fakePeers) Rank(lane uint64) int { return p.rank(lane) }

// taking is a claim of another broker.
func taking(n int, emptied, leased bool) Taking {
	return Taking{Tenant: tenant, Queue: "q", Partition: "p", Group: "g", Count: n, Emptied: emptied, Leased: leased}
}

func TestTakenElsewhere(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		do   func(b *bench)
		want want
	}{
		{"leased, for a while", func(b *bench) { b.push(3); b.Taken(taking(3, true, true)) }, want{state: wheel, due: Elsewhere}},
		{"and then looked at", func(b *bench) { b.push(3); b.Taken(taking(3, true, true)); b.pass(2 * WheelTick) }, want{state: ready}},
		{"acked, nothing left", func(b *bench) { b.push(3); b.Taken(taking(3, true, true)); b.acked() }, want{state: idle}},
		{"acked, more was marked", func(b *bench) { b.push(3); b.Taken(taking(2, true, true)); b.acked() }, want{state: ready}},
		{"acked, marked since", func(b *bench) { b.push(3); b.Taken(taking(3, true, true)); b.push(1); b.acked() }, want{state: ready}},
		{"acked, something left", func(b *bench) { b.push(3); b.Taken(taking(3, false, true)); b.acked() }, want{state: ready}},
		{"acked, heard too late", func(b *bench) { b.push(3); b.acked(); b.Taken(taking(3, true, true)) }, want{state: wheel, due: Elsewhere}},
		{"heard twice", func(b *bench) {
			b.push(3)
			b.Taken(taking(3, true, true))
			b.Taken(taking(3, true, true))
			b.push(1)
			b.acked()
		}, want{state: ready}},
		{"heard before the marks", func(b *bench) { b.Taken(taking(3, true, true)); b.push(3) }, want{state: ready}},
		{"auto-acked, nothing left", func(b *bench) { b.push(3); b.Taken(taking(3, true, false)) }, want{state: idle}},
		{"auto-acked, more was marked", func(b *bench) { b.push(3); b.Taken(taking(2, true, false)) }, want{state: ready}},
		{"auto-acked, something left", func(b *bench) { b.push(3); b.Taken(taking(3, false, false)) }, want{state: ready}},
		{"auto-acked under a lease of our own", func(b *bench) { b.push(3); b.taken(9); b.Taken(taking(3, true, false)) }, want{state: wheel, due: LeaseParkMax}},
		{"a row is no message", func(b *bench) { b.rows(); b.Taken(taking(3, true, true)); b.acked() }, want{state: ready}},
		{"nor is a moved cursor", func(b *bench) { b.push(1); b.back(); b.Taken(taking(3, true, true)); b.acked() }, want{state: ready}},
		{"a row before the last look", func(b *bench) { b.rows(); b.is(Nothing); b.push(1); b.Taken(taking(1, true, true)); b.acked() }, want{state: idle}},
		{"a row that was looked at in vain", func(b *bench) { b.rows(); b.is(Leased); b.Taken(taking(1, true, true)); b.acked() }, want{state: ready}},
		{"nothing known here", func(b *bench) { b.Taken(taking(3, false, true)) }, want{state: idle}},
		{"in hand", func(b *bench) { b.push(1); b.take(1); b.Taken(taking(1, true, true)) }, want{state: inflight}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, plain)
			b.rows() // teaches the id
			b.is(Nothing)
			tc.do(b)
			b.check()
			require.Equal(t, tc.want.state, b.stateOf("p"))
			if tc.want.state == wheel {
				require.Equal(t, tc.want.due, b.due("p"))
			}
		})
	}
}

func TestTakenElsewhereLeavesDeferralsAlone(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, windowed)
	b.push(100)
	b.Taken(taking(100, true, true))
	require.Equal(t, ready, b.stateOf("p"))
	b.check()
}

func TestTakenOfWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.Taken(taking(1, true, true))
	b.reseed()
	b.Taken(taking(1, true, true))
	other := taking(1, true, true)
	other.Group = "other"
	b.push(1)
	b.Taken(other)
	require.Equal(t, ready, b.stateOf("p"))
	var none *List
	none.Taken(other)
}

func TestClaimsAreToldToThePeers(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	peers := &fakePeers{}
	b.deps.Peers = peers
	b.push(1)
	v := leasedTo(b, 9)
	v.Count = 4
	b.verdict(v)
	b.acked()
	b.push(1)
	v = autoAckedTo(8)
	v.Count = 2
	b.verdict(v)
	b.is(Nothing)
	require.Equal(t, []Taking{taking(4, true, true), taking(2, false, false)}, peers.taken)
}

// Brokers that are in each other's way leave lanes to each other, in an order of
// their own for each.
func TestRivalsDivideTheLanes(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	rank := 2
	b.deps.Peers = &fakePeers{rank: func(uint64) int { return rank }}
	b.rows()
	b.is(Nothing)
	for range 3 {
		b.push(1)
		require.Equal(t, ready, b.stateOf("p"), "nobody was in the way yet")
		b.taken(9)
		b.acked()
	}
	b.push(1)
	for range 10 {
		b.pass(LeaseParkMax)
		b.is(Leased)
	}
	b.pass(LeaseParkMax)
	b.taken(8)
	b.acked()
	require.Equal(t, 2*Yield, b.due("p"), "the rest of a batch")
	b.pass(2 * Yield)
	require.Equal(t, ready, b.stateOf("p"))
	b.taken(9)
	b.acked()
	require.Equal(t, idle, b.stateOf("p"))
	b.waker.take()
	b.push(1)
	require.Equal(t, 2*Yield, b.due("p"), "a new message")
	b.push(1)
	require.Equal(t, 2*Yield, b.due("p"))
	b.pass(Yield)
	b.Taken(taking(2, true, true))
	require.Equal(t, Elsewhere, b.due("p"), "another broker was quicker")
	b.acked()
	require.Equal(t, idle, b.stateOf("p"))
	b.push(1)
	b.back()
	require.Equal(t, ready, b.stateOf("p"), "what came back is not divided")
	b.taken(9)
	b.acked()
	rank = 0
	b.push(1)
	require.Equal(t, ready, b.stateOf("p"), "the first one does not wait")
	rank = 2
	for range 300 {
		b.taken(9)
		b.push(1)
		b.acked()
		b.pass(2 * time.Second)
	}
	b.taken(9)
	b.acked()
	b.push(1)
	require.Equal(t, ready, b.stateOf("p"), "nobody has been in the way for long")
	b.check()
}

func TestTheOrderOfALaneIsThatOfItsNames(t *testing.T) {
	t.Parallel()
	seen := map[uint64]bool{}
	for range 2 {
		b := setupQueue(t, plain)
		b.deps.Peers = &fakePeers{rank: func(lane uint64) int {
			seen[lane] = true
			return 0
		}}
		b.ringOf().waste.Store(wasteAll)
		for _, lane := range names(3) {
			b.Pushed(tenant, "q", lane, 1)
		}
	}
	require.Len(t, seen, 3)
}
