package hints_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/hints/hintstest"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, hintstest.ProbesUnderWay()) }

var installation = uuid.UUID{15: 42}

const (
	heartbeat = 100 * time.Millisecond
	patience  = 20 * time.Second
	look      = 200 * time.Millisecond
)

// node is one pool of a test.
type node struct {
	*hints.Pool
	port int
	wire *wire
	stop func() error

	mu  sync.Mutex
	got []hints.Hint
}

func (n *node) receive(h hints.Hint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, h)
}

func (n *node) received() []hints.Hint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.got)
}

func (n *node) has(h hints.Hint) bool { return slices.Contains(n.received(), h) }

// wire stands between a pool and the network.
type wire struct {
	memberlist.Transport
	mu     sync.Mutex
	cut    map[string]bool // addresses that are out of reach
	filter func(b []byte, send func([]byte))
	most   atomic.Int64 // bytes of the largest packet
}

var errCut = errors.New("network is cut")

func (w *wire) block(addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = make(map[string]bool)
	for _, a := range addrs {
		w.cut[a] = true
	}
}

func (w *wire) blocked(addr string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[addr]
}

func (w *wire) WriteTo(b []byte, addr string) (time.Time, error) {
	w.most.Store(max(w.most.Load(), int64(len(b))))
	if w.blocked(addr) {
		return time.Now(), nil // lost on the way
	}
	w.mu.Lock()
	filter := w.filter
	w.mu.Unlock()
	if filter == nil {
		return w.Transport.WriteTo(b, addr)
	}
	filter(b, func(b []byte) { _, _ = w.Transport.WriteTo(b, addr) })
	return time.Now(), nil
}

func (w *wire) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if w.blocked(addr) {
		return nil, errCut
	}
	return w.Transport.DialTimeout(addr, timeout)
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// ports finds ports that are free for TCP and UDP.
func ports(t *testing.T, n int) []int {
	t.Helper()
	var list []int
	for len(list) < n {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		u, err := lc.ListenPacket(t.Context(), "udp", address(port))
		if err == nil {
			list = append(list, port)
			defer func() { require.NoError(t, u.Close()) }()
		}
		defer func() { require.NoError(t, l.Close()) }()
	}
	return list
}

// options of one node.
type options struct {
	port   int
	peers  []int
	role   hints.Role
	secret string
	id     uuid.UUID
	limit  int
	calm   bool // probe rarely, for a test that floods the port or needs everybody
	rest   bool // flush once
}

func start(t *testing.T, o options) *node {
	t.Helper()
	if o.role == "" {
		o.role = hints.Broker
	}
	if o.id == uuid.Nil {
		o.id = installation
	}
	var peers []string
	for _, p := range o.peers {
		peers = append(peers, address(p))
	}
	cfg := hints.Config{
		Enabled: true, Peers: strings.Join(peers, ","), Port: o.port, BindAddr: "127.0.0.1", Secret: config.Secret(o.secret),
		Heartbeat: heartbeat, DeadThreshold: 5 * heartbeat,
	}
	if o.calm {
		cfg.Heartbeat, cfg.DeadThreshold = 20*heartbeat, 100*heartbeat
	}
	n := &node{port: o.port}
	log := logtest.New(t)
	var err error
	n.Pool, err = hints.New(cfg, hints.Deps{
		ID: fmt.Sprintf("node-%d", o.port), Role: o.role, Receive: n.receive, Log: log, Meter: noop.Meter{},
		Installation: func(context.Context) (uuid.UUID, error) { return o.id, nil },
	})
	require.NoError(t, err)
	n.Hurry(look)
	if o.rest {
		n.Rest()
	}
	if o.limit > 0 {
		n.Limit(o.limit)
	}
	n.Wrap(func(inner memberlist.Transport) memberlist.Transport {
		n.wire = &wire{Transport: inner}
		return n.wire
	})
	started := make(chan struct{})
	g := lifecycle.NewGroup(lifecycle.Config{Started: func() { close(started) }}, log)
	g.Add(n.Component())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { require.NoError(t, n.stop()) })
	select {
	case <-started:
	case err := <-done:
		done <- nil
		t.Fatalf("the pool ended: %v", err)
	}
	return n
}

// pool starts nodes that know each other.
func pool(t *testing.T, n int, adjust func(i int, o *options)) []*node {
	t.Helper()
	free := ports(t, n)
	nodes := make([]*node, n)
	for i := range nodes {
		o := options{port: free[i], peers: free, secret: "sesame"}
		if adjust != nil {
			adjust(i, &o)
		}
		nodes[i] = start(t, o)
	}
	return nodes
}

func together(t *testing.T, others int, nodes ...*node) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { return n.Stats().Alive != others })
	}, patience, 5*time.Millisecond)
}

func pushed(partition string, count int) hints.Hint {
	return hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Partition: partition, Count: count}
}

func TestHintsReachEverybodyElse(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"encrypted": "sesame", "open": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := pool(t, 3, func(_ int, o *options) { o.secret = secret })
			together(t, 2, nodes...)
			for _, h := range all() {
				nodes[0].Send(h)
			}
			want := slices.DeleteFunc(all(), func(h hints.Hint) bool { return h.Kind == hints.TimerDue })
			for _, n := range nodes[1:] {
				require.Eventually(t, func() bool { return len(n.received()) == len(want) }, patience, time.Millisecond)
				require.ElementsMatch(t, want, n.received())
			}
			require.Empty(t, nodes[0].received(), "nothing comes back")
			s := nodes[0].Stats()
			require.Equal(t, int64(len(want)), s.Sent)
			require.Len(t, s.Peers, 3)
			for _, p := range s.Peers {
				require.True(t, p.Connected)
				require.Equal(t, "127.0.0.1", p.IP)
			}
		})
	}
}

func TestEveryBrokerIsFirstAtAboutAsManyLanes(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 4, func(i int, o *options) {
		o.calm = true
		if i == 3 {
			o.role = hints.Sweeper
		}
	})
	together(t, 3, nodes...)
	const lanes = 3000
	first := make([]int, 3)
	for lane := range uint64(lanes) {
		ranks := []int{nodes[0].Rank(lane), nodes[1].Rank(lane), nodes[2].Rank(lane)}
		require.ElementsMatch(t, []int{0, 1, 2}, ranks)
		first[slices.Index(ranks, 0)]++
	}
	for _, n := range first {
		require.InDelta(t, lanes/3, n, lanes/10)
	}
}

func TestRolesGetWhatTheyCanUse(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 3, func(i int, o *options) {
		if i > 0 {
			o.role = []hints.Role{hints.Broker, hints.Sweeper, "auditor"}[i]
		}
	})
	together(t, 2, nodes...)
	due := hints.Hint{Kind: hints.TimerDue, At: time.UnixMilli(5)}
	flags := hints.Hint{Kind: hints.FlagsChanged}
	for _, h := range []hints.Hint{pushed("p", 1), due, flags} {
		nodes[0].Send(h)
	}
	require.Eventually(t, func() bool { return nodes[1].has(flags) && nodes[2].has(flags) }, patience, time.Millisecond)
	require.ElementsMatch(t, []hints.Hint{due, flags}, nodes[1].received())
	require.Len(t, nodes[2].received(), 3, "what a later version needs is not known here")

	// Nobody is left who could use it.
	require.NoError(t, nodes[2].stop())
	together(t, 1, nodes[:2]...)
	nodes[0].Send(pushed("p", 1))
	require.Equal(t, int64(3), nodes[0].Stats().Sent)
}

func TestABurstIsMergedPacedAndBounded(t *testing.T) {
	t.Parallel()
	const most = 3000
	nodes := pool(t, 2, func(_ int, o *options) { o.limit, o.calm = most, true })
	together(t, 1, nodes...)
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	nodes[0].wire.mu.Lock()
	long := strings.Repeat("x", 900)
	nodes[0].wire.filter = func(b []byte, send func([]byte)) {
		if len(b) > len(long) { // holds the sender, not the probes
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
		}
		send(b)
	}
	nodes[0].wire.mu.Unlock()
	nodes[0].Send(pushed("first"+long, 1))
	<-entered
	for range 2 {
		for i := range most + 10 {
			nodes[0].Send(pushed(fmt.Sprint(long, i), 1))
		}
	}
	require.Equal(t, int64(20), nodes[0].Stats().Dropped)
	close(release)
	require.Eventually(t, func() bool { return nodes[0].Stats().Sent == most+1 }, patience, time.Millisecond)
	require.LessOrEqual(t, nodes[0].wire.most.Load(), int64(hints.MaxDatagram))
	// What the kernel dropped is no matter; the rest has both marks of its lane.
	require.Eventually(t, func() bool { return len(nodes[1].received()) > most/100 }, patience, 10*time.Millisecond)
	for _, h := range nodes[1].received() {
		require.True(t, h.Count == 2 || h.Partition == "first"+long)
	}
}

func TestAFlushIsBounded(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 2, func(_ int, o *options) { o.rest = true })
	together(t, 1, nodes...)
	nodes[0].Send(pushed("first", 1)) // goes at once; then the sender rests
	require.Eventually(t, func() bool { return nodes[0].Sent() == 1 }, patience, time.Millisecond)
	const size = 700
	for i := range 2 * hints.FlushBytes / size {
		nodes[0].Send(pushed(fmt.Sprintf("%0*d", size, i), 1))
	}
	left := nodes[0].Waiting()
	nodes[0].Flush(t.Context())
	flushed := left - nodes[0].Waiting()
	require.LessOrEqual(t, flushed*size, hints.FlushBytes)
	require.Greater(t, flushed*size, hints.FlushBytes*8/10)
	require.Equal(t, int64(1+flushed), nodes[0].Sent(), "two do not fit one datagram")
	for nodes[0].Waiting() > 0 {
		nodes[0].Flush(t.Context())
	}
	require.Equal(t, int64(1+left), nodes[0].Sent())
}

func TestEqualHintsBecomeOne(t *testing.T) {
	t.Parallel()
	early, late := time.UnixMilli(1000), time.UnixMilli(2000)
	other := pushed("p", 1)
	other.Queue = "a"
	require.Equal(t, []hints.Hint{
		{Kind: hints.TimerDue, At: early}, other, pushed("p", 5), pushed("o", 1),
	}, hints.Take(
		pushed("p", 2), hints.Hint{Kind: hints.TimerDue, At: late}, pushed("o", 1), other, hints.Hint{Kind: hints.TimerDue, At: early},
		pushed("p", 3), hints.Hint{Kind: hints.TimerDue, At: late},
	), "those of one queue are side by side")
}

func TestAFullInboxDropsAndCounts(t *testing.T) {
	t.Parallel()
	p, err := hints.New(hints.Config{}, hints.Deps{Log: logtest.New(t), Meter: noop.Meter{}})
	require.NoError(t, err)
	payload, _ := hints.Encode(pushed("p", 1))
	for range hints.InboxLimit {
		p.Accept(payload) // nobody reads
	}
	require.Zero(t, p.Overrun())
	p.Accept(payload)
	require.Equal(t, int64(1), p.Overrun())
}

// A network that loses, repeats and reorders costs hints and nothing else.
func TestABadNetworkOnlyCostsHints(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 3, nil)
	together(t, 2, nodes...)
	for _, n := range nodes {
		var mu sync.Mutex
		var held []byte
		n.wire.mu.Lock()
		n.wire.filter = func(b []byte, send func([]byte)) {
			mu.Lock()
			defer mu.Unlock()
			switch rand.IntN(4) {
			case 0: // lost
			case 1: // overtaken by the next
				held = slices.Clone(b)
			case 2:
				send(b)
				send(b)
			default:
				send(b)
			}
			if held != nil && rand.IntN(2) == 0 {
				send(held)
				held = nil
			}
		}
		n.wire.mu.Unlock()
	}
	sent := make(map[hints.Hint]bool)
	for i := range 200 {
		h := pushed(fmt.Sprint(i), 1)
		sent[h] = true
		nodes[i%3].Send(h)
		if i%5 == 0 {
			time.Sleep(hints.FlushInterval) // several flushes
		}
	}
	require.Eventually(t, func() bool { return len(nodes[0].received()) > 20 }, patience, time.Millisecond)
	for _, n := range nodes {
		for _, h := range n.received() {
			require.True(t, sent[h], "%+v was never sent", h)
		}
	}
}

func TestASplitPoolHeals(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 3, nil)
	together(t, 2, nodes...)
	nodes[0].wire.block(address(nodes[1].port), address(nodes[2].port))
	for _, n := range nodes[1:] {
		n.wire.block(address(nodes[0].port))
	}
	together(t, 0, nodes[0])
	together(t, 1, nodes[1:]...)
	nodes[1].Send(pushed("within", 1))
	require.Eventually(t, func() bool { return nodes[2].has(pushed("within", 1)) }, patience, time.Millisecond)
	for _, p := range nodes[0].Stats().Peers {
		require.Equal(t, p.Port == nodes[0].port, p.Connected)
	}

	for _, n := range nodes {
		n.wire.block()
	}
	together(t, 2, nodes...)
	nodes[0].Send(pushed("across", 1))
	for _, n := range nodes[1:] {
		require.Eventually(t, func() bool { return n.has(pushed("across", 1)) }, patience, time.Millisecond)
	}
}

func TestAnotherSecretNeverJoins(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"another": "simsim", "none": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := pool(t, 3, func(i int, o *options) {
				if i == 2 {
					o.secret = secret
				}
			})
			together(t, 1, nodes[:2]...)
			require.Eventually(t, func() bool {
				return nodes[0].Stats().Refused > 2 && nodes[1].Stats().Refused > 2
			}, patience, 5*time.Millisecond)
			together(t, 1, nodes[:2]...)
			together(t, 0, nodes[2])
		})
	}
}

// Two installations never merge, whatever their addresses and secrets are.
func TestRule19AnotherInstallationNeverJoins(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"encrypted": "sesame", "open": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := pool(t, 4, func(i int, o *options) {
				o.secret = secret
				if i >= 2 {
					o.id = uuid.UUID{15: 43}
				}
			})
			together(t, 1, nodes...)
			require.Eventually(t, func() bool { return nodes[0].Stats().Refused > 2 }, patience, 5*time.Millisecond)
			nodes[0].Send(pushed("mine", 1))
			require.Eventually(t, func() bool { return nodes[1].has(pushed("mine", 1)) }, patience, time.Millisecond)
			together(t, 1, nodes...)
			require.Empty(t, nodes[2].received())
			require.Empty(t, nodes[3].received())
		})
	}
}

// A process that starts again is a new member at the old address.
func TestRule19EveryLifeHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	nodes := pool(t, 2, nil)
	together(t, 1, nodes...)
	require.NoError(t, nodes[1].stop())
	together(t, 0, nodes[0])
	again := start(t, options{port: nodes[1].port, peers: []int{nodes[0].port, nodes[1].port}, secret: "sesame"})
	require.NotEqual(t, nodes[1].Name(), again.Name())
	together(t, 1, nodes[0], again)
	nodes[0].Send(pushed("p", 1))
	require.Eventually(t, func() bool { return again.has(pushed("p", 1)) }, patience, time.Millisecond)
}

func TestForgedPayloadsAreCountedAndForgotten(t *testing.T) {
	t.Parallel()
	n := pool(t, 1, nil)[0]
	good, _ := hints.Encode(pushed("p", 1))
	for _, payload := range [][]byte{nil, {}, {1, 1, 9}, {7}, make([]byte, hints.MaxDatagram+1), good[:len(good)-1]} {
		n.Accept(payload)
	}
	n.Accept(good)
	require.Eventually(t, func() bool { return n.has(pushed("p", 1)) }, patience, time.Millisecond)
	require.Len(t, n.received(), 1)
	require.Equal(t, int64(6), n.Stats().Refused)
}

func TestNothingIsBoundWithoutPeers(t *testing.T) {
	t.Parallel()
	p, err := hints.New(hints.Config{Enabled: true, Port: 6633}, hints.Deps{Log: logtest.New(t), Meter: noop.Meter{}})
	require.NoError(t, err)
	c := p.Component()
	require.Nil(t, c.Start)
	require.Nil(t, c.Run)
	require.Nil(t, c.Stop)
	p.Send(pushed("p", 1)) // goes nowhere
	require.Zero(t, p.Stats().Dropped)
}

func TestATakenPortIsNamed(t *testing.T) {
	t.Parallel()
	taken := pool(t, 1, nil)[0]
	p, err := hints.New(hints.Config{
		Enabled: true, Port: taken.port, BindAddr: "127.0.0.1", Peers: "127.0.0.1", Heartbeat: heartbeat, DeadThreshold: 5 * heartbeat,
	}, hints.Deps{
		Log: logtest.New(t), Meter: noop.Meter{},
		Installation: func(context.Context) (uuid.UUID, error) { return installation, nil },
	})
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(t.Context()), "QUEEN_MESH_PORT")
}

func TestAddressForPeers(t *testing.T) {
	t.Parallel()
	free := ports(t, 2)
	for advertised, want := range map[string]string{
		"127.0.0.1":      address(free[0]),
		"127.0.0.9:4711": "127.0.0.9:4711",
		"localhost:4711": "127.0.0.1:4711",
		"no.such.name.":  address(free[0]), // bound there, and better than not to start
	} {
		log, lines := logtest.NewRecorder()
		p, err := hints.New(hints.Config{
			Enabled: true, Port: free[0], BindAddr: "127.0.0.1", AdvertiseHost: advertised, Peers: "127.0.0.1",
			Heartbeat: heartbeat, DeadThreshold: 5 * heartbeat,
		}, hints.Deps{
			Log: log, Meter: noop.Meter{},
			Installation: func(context.Context) (uuid.UUID, error) { return installation, nil },
		})
		require.NoError(t, err)
		require.NoError(t, p.Start(t.Context()))
		require.NoError(t, p.Stop(t.Context()))
		require.Contains(t, lines.String(), "addr="+want, advertised)
	}
}

func BenchmarkSend(b *testing.B) {
	b.ReportAllocs()
	p, err := hints.New(hints.Config{}, hints.Deps{Log: logtest.New(b), Meter: noop.Meter{}})
	require.NoError(b, err)
	p.Want(hints.Broker)
	lanes := make([]string, 1024)
	for i := range lanes {
		lanes[i] = fmt.Sprint("lane-", i)
	}
	i := 0
	for b.Loop() {
		p.Send(pushed(lanes[i%len(lanes)], 1))
		if i++; i%256 == 0 {
			p.Flush(b.Context())
		}
	}
}
