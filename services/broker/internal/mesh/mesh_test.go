package mesh_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/hints/hintstest"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, hintstest.ProbesUnderWay()) }

var (
	tenant = uuid.UUID{15: 1}
	lane   = uuid.UUID{15: 2}
)

// broker is a mesh with the announcer it serves, and what was done in it.
type broker struct {
	*mesh.Mesh
	announcer announce.Announcer

	mu    sync.Mutex
	calls []string
}

func (b *broker) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, fmt.Sprintf(format, args...))
}

func (b *broker) taken() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func (b *broker) Pushed(_ uuid.UUID, q, p string, n int) { b.note("quiet %s/%s %d", q, p, n) }
func (b *broker) Mark(_ uuid.UUID, q, p string, n int)   { b.note("mark %s/%s %d", q, p, n) }
func (b *broker) MarkGroup(_ uuid.UUID, q, p, g string)  { b.note("mark %s/%s of %s", q, p, g) }
func (b *broker) Taken(k hotlist.Taking)                 { b.note("taken %+v", k) }
func (b *broker) DropGroup(_ uuid.UUID, q, g string)     { b.note("drop %s of %s", g, q) }
func (b *broker) Repair(_ context.Context, _ uuid.UUID, q, g string) error {
	b.note("repair %s of %s", g, q)
	return nil
}
func (b *broker) Promote(id uuid.UUID, g string)         { b.note("promote %d of %s", id[15], g) }
func (b *broker) Changed(_ uuid.UUID, q string)          { b.note("changed %s", q) }
func (b *broker) DropQueue(_ uuid.UUID, q string)        { b.note("drop %s", q) }
func (b *broker) Kick()                                  { b.note("switches") }
func (b *broker) Wake(_ uuid.UUID, q, p string)          { b.note("wake %s/%s", q, p) }
func (b *broker) FreePinned(_ uuid.UUID, q, p, _ string) { b.note("wake %s/%s", q, p) }

func config(port int, peers string) hints.Config {
	return hints.Config{
		Enabled: true, Peers: peers, Port: port, BindAddr: "127.0.0.1", Heartbeat: 200 * time.Millisecond, DeadThreshold: time.Second,
	}
}

func installation(context.Context) (uuid.UUID, error) { return uuid.UUID{9}, nil }

func start(t *testing.T, port int, peers string) *broker {
	t.Helper()
	b := &broker{}
	b.announcer.Local = announce.Local{HotList: b, Waker: b, Switches: []announce.Switches{b}}
	var err error
	b.Mesh, err = mesh.New(config(port, peers), mesh.Deps{
		ServerID: fmt.Sprint("broker-", port), Local: &b.announcer.Local, Log: logtest.New(t), Meter: noop.Meter{}, Installation: installation,
	})
	require.NoError(t, err)
	b.announcer.Peers = b.Peers()
	hintstest.Start(t, b.Component())
	return b
}

// sweeper starts a pool as a sweeper has it.
func sweeper(t *testing.T, port int, peers string, receive func(hints.Hint)) (pool *hints.Pool, stop func()) {
	t.Helper()
	pool, err := hints.New(config(port, peers), hints.Deps{
		ID: fmt.Sprint("sweeper-", port), Role: hints.Sweeper, Installation: installation, Receive: receive, Log: logtest.New(t), Meter: noop.Meter{},
	})
	require.NoError(t, err)
	return pool, hintstest.Start(t, pool.Component())
}

func TestWhatOneBrokerAnnouncesTheOtherDoes(t *testing.T) {
	t.Parallel()
	one, two := hintstest.FreePort(t), hintstest.FreePort(t)
	peers := fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", one, two)
	a, b := start(t, one, peers), start(t, two, peers)
	require.Eventually(t, func() bool {
		return a.alive() == 1 && b.alive() == 1
	}, 20*time.Second, time.Millisecond)

	for _, tc := range []struct {
		announce func(a *announce.Announcer)
		want     []string
	}{
		{func(a *announce.Announcer) { a.Pushed(tenant, "q", "p", 3) }, []string{"quiet q/p 3"}},
		{func(a *announce.Announcer) { a.Wake(tenant, "q", "") }, []string{"quiet q/ 1"}},
		{
			func(a *announce.Announcer) {
				a.Taken(hotlist.Taking{Tenant: tenant, Queue: "q", Partition: "p", Group: "g", Count: 4, Emptied: true})
			},
			[]string{fmt.Sprintf("taken %+v", hotlist.Taking{Tenant: tenant, Queue: "q", Partition: "p", Group: "g", Count: 4, Emptied: true})},
		},
		{
			func(a *announce.Announcer) { a.Released(tenant, lane, "g", "q", "p", true) },
			[]string{"promote 2 of g", "wake q/p"},
		},
		{
			func(a *announce.Announcer) { a.Released(tenant, lane, "g", "q", "p", false) },
			[]string{"mark q/p of g", "promote 2 of g", "wake q/p"},
		},
		{func(a *announce.Announcer) { a.Released(tenant, lane, "h", "", "p", true) }, []string{"promote 2 of h"}},
		{
			func(a *announce.Announcer) { a.CursorMoved(tenant, "q", "", "g") },
			[]string{"mark q/ of g", "wake q/"},
		},
		{
			func(a *announce.Announcer) { a.GroupDeleted(tenant, "q", "g") },
			[]string{"mark q/ of g", "wake q/"},
		},
		{
			func(a *announce.Announcer) { _ = a.CursorsMoved(context.Background(), tenant, "q", "g") },
			[]string{"mark q/ of g", "wake q/"},
		},
		{func(a *announce.Announcer) { a.QueueChanged(tenant, "q", false) }, []string{"changed q", "wake q/"}},
		{func(a *announce.Announcer) { a.QueueChanged(tenant, "q", true) }, []string{"drop q", "wake q/"}},
		{func(a *announce.Announcer) { a.FlagsChanged() }, []string{"switches"}},
	} {
		before := len(b.taken())
		tc.announce(&a.announcer)
		require.Eventually(t, func() bool { return len(b.taken())-before == len(tc.want) }, 20*time.Second, time.Millisecond, tc.want)
		require.Equal(t, tc.want, b.taken()[before:])
	}
	require.Equal(t, 1, a.announcer.Rank(7)+b.announcer.Rank(7), "one of them is the first")
	s := b.Stats().(wire.MeshStats)
	require.Zero(t, s.MessagesSent, "nothing is passed on")
	require.Equal(t, int64(12), s.MessagesReceived)
	require.Equal(t, int64(12), a.Stats().(wire.MeshStats).MessagesSent)
	require.Equal(t, 2, s.PeerCount)
	require.Zero(t, s.ServersDead)
	require.Equal(t, wire.MeshPeer{Host: "127.0.0.1", Port: one, Connected: true, Resolved: true, ResolvedIP: "127.0.0.1"}, s.Peers[0])
}

// A sweeper is told of timers and switches, tells of what it has fired, and is no
// server: nobody yields a lane to it.
func TestSweepersArePartOfTheMesh(t *testing.T) {
	t.Parallel()
	one, two, three := hintstest.FreePort(t), hintstest.FreePort(t), hintstest.FreePort(t)
	peers := fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", one, two, three)
	a, b := start(t, one, peers), start(t, two, peers)
	require.False(t, a.Sweepers())
	heard := make(chan hints.Hint, 16)
	pool, stop := sweeper(t, three, peers, func(h hints.Hint) { heard <- h })
	require.Eventually(t, func() bool {
		return a.Sweepers() && b.Sweepers() && pool.Count(hints.Broker) == 2 && a.alive() == 1 && b.alive() == 1
	}, 20*time.Second, time.Millisecond)
	for lane := range uint64(100) {
		require.Equal(t, 1, a.announcer.Rank(lane)+b.announcer.Rank(lane), "one of two is the first")
	}

	// Each broker tells its nearest timer, and none of the later ones.
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for i, broker := range []*broker{a, b} {
		at := due.Add(-time.Duration(i) * time.Minute)
		for later := range 1000 {
			broker.announcer.TimerDue(at.Add(time.Duration(later)*time.Second), time.Hour+time.Duration(later)*time.Second)
		}
		broker.announcer.FlagsChanged()
		require.Equal(t, []hints.Hint{{Kind: hints.TimerDue, At: at}, {Kind: hints.FlagsChanged}}, byKind(<-heard, <-heard))
	}

	before := len(a.taken())
	pool.Send(hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Partition: "p", Count: 3})
	require.Eventually(t, func() bool { return slices.Contains(a.taken()[before:], "quiet q/p 3") }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return slices.Contains(b.taken(), "quiet q/p 3") }, 20*time.Second, time.Millisecond)

	stop()
	require.Eventually(t, func() bool { return !a.Sweepers() && !b.Sweepers() }, 20*time.Second, time.Millisecond)
	require.Equal(t, 1, a.alive())
}

func (b *broker) alive() int { return b.Stats().(wire.MeshStats).ServersAlive }

// byKind sorts hints: those of several datagrams come in any order.
func byKind(list ...hints.Hint) []hints.Hint {
	slices.SortFunc(list, func(x, y hints.Hint) int { return cmp.Compare(x.Kind, y.Kind) })
	return list
}

func TestAloneThereIsNoMesh(t *testing.T) {
	t.Parallel()
	b := start(t, 6633, "")
	require.Nil(t, b.announcer.Peers)
	require.Equal(t, wire.SharedState{Reason: "no_peers"}, b.Stats())
	b.announcer.Pushed(tenant, "q", "p", 1)
	require.Equal(t, []string{"quiet q/p 1"}, b.taken())
}
