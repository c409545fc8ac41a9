package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// relays is the network between the hint pools of several brokers: each is
// reached through a relay of its own, which knows senders by their port.
type relays struct {
	list []*relay
	wg   sync.WaitGroup

	mu   sync.Mutex
	side map[string]int // by the port of a sender
	cut  bool
	deaf bool
}

// relay stands before one broker.
type relay struct {
	net    *relays
	target string // where the broker listens
	udp    net.PacketConn
	tcp    net.Listener
	mu     sync.Mutex
	conns  map[net.Conn]bool
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// newRelays stands before brokers that will listen at the targets.
func newRelays(t *testing.T, targets []string) *relays {
	t.Helper()
	n := &relays{side: make(map[string]int)}
	for i, target := range targets {
		udp, tcp := listenBoth(t)
		r := &relay{net: n, target: target, udp: udp, tcp: tcp, conns: make(map[net.Conn]bool)}
		n.list = append(n.list, r)
		n.side[port(target)] = i
		n.wg.Go(r.datagrams)
		n.wg.Go(r.streams)
	}
	n.join()
	t.Cleanup(n.close)
	return n
}

// listenBoth opens one port for TCP and UDP.
func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	var lc net.ListenConfig
	for {
		tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		udp, err := lc.ListenPacket(t.Context(), "udp", tcp.Addr().String())
		if err == nil {
			return udp, tcp
		}
		require.NoError(t, tcp.Close())
	}
}

// quietPorts finds addresses that stay free until the brokers bind them: no
// kernel hands them out by itself.
func quietPorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	var lc net.ListenConfig
	for len(addrs) < n {
		addr := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		tcp, err := lc.Listen(t.Context(), "tcp", addr)
		if err != nil {
			continue
		}
		udp, err := lc.ListenPacket(t.Context(), "udp", addr)
		require.NoError(t, tcp.Close())
		if err != nil {
			continue
		}
		require.NoError(t, udp.Close())
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// split puts every broker on a side; nothing passes from one to the other.
// Streams do not say who sends, so none passes at all meanwhile.
func (n *relays) split(sides ...int) {
	n.mu.Lock()
	for i, r := range n.list {
		n.side[port(r.target)] = sides[i]
	}
	n.cut, n.deaf = true, false
	n.mu.Unlock()
	for _, r := range n.list {
		r.hangUp()
	}
}

// join lets everything pass.
func (n *relays) join() { n.set(false, false) }

// deafen loses every datagram, which all hints are, and lets streams pass, by
// which the members still find each other alive.
func (n *relays) deafen() { n.set(false, true) }

func (n *relays) set(cut, deaf bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut, n.deaf = cut, deaf
}

func (n *relays) passes(sender, target string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.deaf && (!n.cut || n.side[port(sender)] == n.side[port(target)])
}

func (n *relays) streamsPass() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut
}

func (n *relays) close() {
	for _, r := range n.list {
		_ = r.udp.Close()
		_ = r.tcp.Close()
		r.hangUp()
	}
	n.wg.Wait()
}

func (r *relay) addr() string { return r.tcp.Addr().String() }

func (r *relay) datagrams() {
	to, err := net.ResolveUDPAddr("udp", r.target)
	if err != nil {
		return
	}
	buf := make([]byte, 65536)
	for {
		n, from, err := r.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && r.net.passes(from.String(), r.target) {
			_, _ = r.udp.WriteTo(buf[:n], to)
		}
	}
}

func (r *relay) streams() {
	for {
		caller, err := r.tcp.Accept()
		if err != nil {
			return
		}
		if !r.net.streamsPass() {
			_ = caller.Close()
			continue
		}
		r.net.wg.Go(func() { r.serve(caller) })
	}
}

func (r *relay) serve(caller net.Conn) {
	defer func() { _ = caller.Close() }()
	var d net.Dialer
	broker, err := d.DialContext(context.Background(), "tcp", r.target)
	if err != nil {
		return
	}
	defer func() { _ = broker.Close() }()
	r.keep(caller, broker)
	defer r.forget(caller, broker)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(broker, caller)
		_ = broker.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(caller, broker)
	_ = caller.Close() // ends the other direction
	<-done
}

func (r *relay) keep(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.conns[c] = true
	}
}

func (r *relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

func (r *relay) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

// meshed are brokers with a network of the test's between their hint pools.
type meshed struct {
	brokers []*harness.Broker
	net     *relays
}

// startMeshed starts n brokers on one database and waits until they are one pool.
func startMeshed(t *testing.T, n int, env ...string) *meshed {
	t.Helper()
	targets := quietPorts(t, n)
	m := &meshed{net: newRelays(t, targets)}
	var peers []string
	for _, r := range m.net.list {
		peers = append(peers, r.addr())
	}
	return m.start(t, targets, peers, env)
}

func (m *meshed) start(t *testing.T, targets, peers, env []string) *meshed {
	t.Helper()
	for i, target := range targets {
		own := slices.Concat([]string{
			"QUEEN_MESH_PORT=" + port(target), "QUEEN_MESH_BIND_ADDR=127.0.0.1", "QUEEN_MESH_ADVERTISE_HOST=" + peers[i],
			"QUEEN_MESH_PEERS=" + strings.Join(peers, ","), "QUEEN_SYNC_SECRET=sesame", fmt.Sprint("QUEEN_SERVER_ID=broker-", i),
			"QUEEN_SYNC_HEARTBEAT_MS=300", "QUEEN_SYNC_DEAD_THRESHOLD_MS=1500",
		}, env)
		if i == 0 {
			m.brokers = append(m.brokers, harness.StartOne(t, own...))
		} else {
			m.brokers = append(m.brokers, m.brokers[0].Sibling(t, own...))
		}
	}
	m.requireAlive(t, slices.Repeat([]int{len(targets) - 1}, len(targets))...)
	return m
}
