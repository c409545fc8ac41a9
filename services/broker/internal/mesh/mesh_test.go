package mesh_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
func (b *broker) Promote(id uuid.UUID, g string)         { b.note("promote %d of %s", id[15], g) }
func (b *broker) Changed(_ uuid.UUID, q string)          { b.note("changed %s", q) }
func (b *broker) DropQueue(_ uuid.UUID, q string)        { b.note("drop %s", q) }
func (b *broker) Wake(_ uuid.UUID, q, p string)          { b.note("wake %s/%s", q, p) }
func (b *broker) FreePinned(_ uuid.UUID, q, p, _ string) { b.note("wake %s/%s", q, p) }

// freePort finds a port that is free for TCP and UDP.
func freePort(t *testing.T) int {
	t.Helper()
	var lc net.ListenConfig
	for {
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		u, err := lc.ListenPacket(t.Context(), "udp", l.Addr().String())
		require.NoError(t, l.Close())
		if err == nil {
			require.NoError(t, u.Close())
			return l.Addr().(*net.TCPAddr).Port
		}
	}
}

func start(t *testing.T, port int, peers string) *broker {
	t.Helper()
	b := &broker{}
	b.announcer.Local = announce.Local{HotList: b, Waker: b}
	log := logtest.New(t)
	var err error
	b.Mesh, err = mesh.New(hints.Config{
		Enabled: true, Peers: peers, Port: port, BindAddr: "127.0.0.1", Heartbeat: 200 * time.Millisecond, DeadThreshold: time.Second,
	}, mesh.Deps{
		ServerID: fmt.Sprint("broker-", port), Local: &b.announcer.Local, Log: log, Meter: noop.Meter{},
		Installation: func(context.Context) (uuid.UUID, error) { return uuid.UUID{9}, nil },
	})
	require.NoError(t, err)
	b.announcer.Peers = b.Peers()
	started := make(chan struct{})
	g := lifecycle.NewGroup(lifecycle.Config{Started: func() { close(started) }}, log)
	g.Add(b.Component())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-started
	return b
}

func TestWhatOneBrokerAnnouncesTheOtherDoes(t *testing.T) {
	t.Parallel()
	one, two := freePort(t), freePort(t)
	peers := fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", one, two)
	a, b := start(t, one, peers), start(t, two, peers)
	require.Eventually(t, func() bool {
		return a.Stats().(wire.MeshStats).ServersAlive == 1 && b.Stats().(wire.MeshStats).ServersAlive == 1
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
		{func(a *announce.Announcer) { a.QueueChanged(tenant, "q", false) }, []string{"changed q", "wake q/"}},
		{func(a *announce.Announcer) { a.QueueChanged(tenant, "q", true) }, []string{"drop q", "wake q/"}},
	} {
		before := len(b.taken())
		tc.announce(&a.announcer)
		require.Eventually(t, func() bool { return len(b.taken())-before == len(tc.want) }, 20*time.Second, time.Millisecond, tc.want)
		require.Equal(t, tc.want, b.taken()[before:])
	}
	require.Equal(t, 1, a.announcer.Rank(7)+b.announcer.Rank(7), "one of them is the first")
	s := b.Stats().(wire.MeshStats)
	require.Zero(t, s.MessagesSent, "nothing is passed on")
	require.Equal(t, int64(9), s.MessagesReceived)
	require.Equal(t, int64(9), a.Stats().(wire.MeshStats).MessagesSent)
	require.Equal(t, 2, s.PeerCount)
	require.Zero(t, s.ServersDead)
	require.Equal(t, wire.MeshPeer{Host: "127.0.0.1", Port: one, Connected: true, Resolved: true, ResolvedIP: "127.0.0.1"}, s.Peers[0])
}

func TestAloneThereIsNoMesh(t *testing.T) {
	t.Parallel()
	b := start(t, 6633, "")
	require.Nil(t, b.announcer.Peers)
	require.Equal(t, wire.SharedState{Reason: "no_peers"}, b.Stats())
	b.announcer.Pushed(tenant, "q", "p", 1)
	require.Equal(t, []string{"quiet q/p 1"}, b.taken())
}
