package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const statsPath = "/internal/api/shared-state/stats"

// requireAlive waits until every broker sees as many others as given.
func (m *meshed) requireAlive(t *testing.T, want ...int) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, fmt.Sprintf("brokers see %v others", want), func() bool {
		for i, b := range m.brokers {
			if b.Get(t, statsPath).Object(t)["servers_alive"] != float64(want[i]) {
				return false
			}
		}
		return true
	})
}

// deafWait is for brokers whose parked pops do not look again by themselves for
// half a minute.
var deafWait = []string{"POP_WAIT_INITIAL_INTERVAL_MS=30000", "POP_WAIT_MAX_INTERVAL_MS=60000"}

func TestMeshPushWakesAPopBehindAnotherBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 3, deafWait...)
	const wait = "wait=true&timeout=45000&autoAck=true"
	q := queueName(t)
	var took []time.Duration
	for i := range 15 {
		paths := []string{
			harness.PopPath(q, wait), harness.PopPartitionPath(q, "p", wait), "/api/v1/pop?" + wait + "&namespace=" + q,
		}
		w := park(t.Context(), m.brokers[(i+1)%3], paths[i%len(paths)])
		w.requireParked(t, 150*time.Millisecond)
		pushed := time.Now()
		m.brokers[i%3].PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: i})
		require.Equal(t, numbers(i, i+1), w.answer(t).Payloads())
		took = append(took, time.Since(pushed))
	}
	slices.Sort(took)
	t.Logf("from a push to its delivery behind another broker: median %s, most %s", took[len(took)/2], took[len(took)-1])
	// Any net under a lost hint is a second or two wide.
	require.Less(t, took[len(took)/2], 500*time.Millisecond)
}

func TestMeshAckFreesTheLaneBehindAnotherBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 3, deafWait...)
	q := queueName(t)
	m.brokers[0].PushEach(t, q, "p", 3)
	for i := range 2 {
		p := m.brokers[0].PopPartition(t, q, "p", "batch=1&consumerGroup=g")
		require.Equal(t, numbers(i, i+1), p.Payloads())
		w := park(t.Context(), m.brokers[1], harness.PopPartitionPath(q, "p", "wait=true&timeout=45000&consumerGroup=g&batch=1"))
		w.requireParked(t, 300*time.Millisecond)
		m.brokers[0].AckOK(t, "g", p.Acks("completed")...)
		got := w.answer(t)
		require.Equal(t, numbers(i+1, i+2), got.Payloads())
		require.Less(t, w.took, 20*time.Second, "nothing woke it")
		// Handed back, so that the next round begins with it.
		m.brokers[1].AckOK(t, "g", got.Acks("retry")...)
	}
}

func TestMeshQueueChangesReachEveryBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 2)
	q := queueName(t)
	held := func() bool {
		m.brokers[1].PushEach(t, q, "", 1)
		began := time.Now()
		require.Len(t, m.brokers[1].Pop(t, q, "batch=2&wait=true&timeout=20000&autoAck=true").Messages, 1)
		return time.Since(began) > 1500*time.Millisecond
	}
	held() // remembers that there is no window
	m.brokers[0].Configure(t, q, `{"minPopWaitTime":2500}`)
	harness.Eventually(t, 20*time.Second, "the other broker holds its pops", held)
}

func TestMeshNotifyWakesBehindEveryBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 2, deafWait...)
	q := queueName(t)
	m.brokers[1].PushEach(t, q, "p", 1)
	m.brokers[1].Pop(t, q, "")
	w := park(t.Context(), m.brokers[1], harness.PopPartitionPath(q, "p", "wait=true&timeout=45000"))
	w.requireParked(t, 300*time.Millisecond)
	m.brokers[1].DB.ExpireLeases(t, q) // nobody tells the broker
	a := m.brokers[0].Post(t, "/internal/api/notify", mustJSON(t, map[string]string{"queue": q, "partition": "p"}))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, `{"status":"ok"}`, string(a.Body))
	require.Equal(t, numbers(0, 1), w.answer(t).Payloads())
	require.Less(t, w.took, 20*time.Second, "nothing woke it")
	require.Equal(t, http.StatusBadRequest, m.brokers[0].Post(t, "/internal/api/notify", `{"partition":"p"}`).Status)
}

func TestMeshStatistics(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 2)
	q := queueName(t)
	m.brokers[0].PushEach(t, q, "p", 1)
	for i, b := range m.brokers {
		var s map[string]any
		harness.Eventually(t, 20*time.Second, "hints are counted", func() bool {
			s = b.Get(t, "/internal/api/inter-instance/stats").Object(t)
			return s[[]string{"messages_sent", "messages_received"}[i]].(float64) > 0
		})
		requireKeys(t, s, "server_id", "transport", "port", "peer_count", "peers", "servers_alive", "servers_dead", "eph_members",
			"messages_sent", "messages_received", "messages_dropped", "signature_failures", "handshake_failures",
			"sequence_rejections", "enabled", "running", "maintenance_mode", "pop_maintenance_mode")
		require.Equal(t, fmt.Sprint("broker-", i), s["server_id"])
		require.Equal(t, "tcp-mesh", s["transport"])
		require.Equal(t, port(m.net.list[i].target), strconv.FormatFloat(s["port"].(float64), 'f', -1, 64))
		require.Equal(t, true, s["enabled"])
		require.Equal(t, 1.0, b.Metric(t, `queen_mesh_members{role="broker"}`))
		require.Len(t, s["peers"], 2)
		for _, p := range s["peers"].([]any) {
			peer := p.(map[string]any)
			requireKeys(t, peer, "host", "port", "connected", "resolved", "resolved_ip")
			require.Equal(t, true, peer["connected"])
			require.Equal(t, "127.0.0.1", peer["resolved_ip"])
		}
	}
	alone := harness.StartOne(t)
	require.Equal(t, `{"enabled":false,"reason":"no_peers","maintenance_mode":false,"pop_maintenance_mode":false}`,
		string(alone.Get(t, statsPath).Body))
	require.Equal(t, `{"enabled":false,"reason":"single_node_segments_broker","maintenance_mode":false,"pop_maintenance_mode":false}`,
		string(alone.Get(t, "/api/v1/system/shared-state").Body))
}

// stuck is how long a message may wait although somebody waits for it: the
// re-check that finds it when its hint was lost, and the time that a slow machine
// needs.
const stuck = 2*time.Second + 4*time.Second

// stream pushes behind every broker in turn, pops what was pushed behind one only
// behind the next one, and knows how long every message took.
type stream struct {
	m     *meshed
	queue string // prefix; the pushing broker has a number
	next  int

	mu      sync.Mutex
	arrived map[string]time.Time
	twice   []string
}

func (s *stream) queueOf(pushing int) string { return fmt.Sprintf("%s-%d", s.queue, pushing) }

// consume pops what was pushed behind one broker until ctx ends.
func (s *stream) consume(ctx context.Context, pushing int) error {
	b := s.m.brokers[(pushing+1)%len(s.m.brokers)]
	for ctx.Err() == nil {
		p, err := b.TryPop(ctx, harness.PopPath(s.queueOf(pushing), "wait=true&timeout=3000&autoAck=true&batch=10"))
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		for _, payload := range p.Payloads() {
			if _, ok := s.arrived[payload]; ok {
				s.twice = append(s.twice, payload)
			}
			s.arrived[payload] = time.Now()
		}
		s.mu.Unlock()
	}
	return nil
}

// run pushes until done, and requires that everything arrives in time.
func (s *stream) run(t *testing.T, phase string, done func() bool) {
	t.Helper()
	stored := make(map[string]time.Time)
	for n := 0; n < 30 || !done(); n++ {
		payload, pushing := strconv.Itoa(s.next), s.next%len(s.m.brokers)
		s.m.brokers[pushing].PushQueued(t, harness.Item{
			Queue: s.queueOf(pushing), Partition: fmt.Sprint("lane-", s.next%7), Payload: s.next,
		})
		stored[payload] = time.Now()
		s.next++
		time.Sleep(40 * time.Millisecond) // a stream, not a burst
	}
	var most time.Duration
	harness.Eventually(t, 30*time.Second, phase+": everything arrives", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for payload, at := range stored {
			got, ok := s.arrived[payload]
			if !ok {
				return false
			}
			most = max(most, got.Sub(at))
		}
		return true
	})
	t.Logf("%s: %d messages, the slowest arrived %s after it was stored", phase, len(stored), most)
	require.Less(t, most, stuck, phase)
}

func (m *meshed) alive(t *testing.T) (list []int) {
	t.Helper()
	for _, b := range m.brokers {
		list = append(list, int(b.Get(t, statsPath).Object(t)["servers_alive"].(float64)))
	}
	return list
}

// TestMeshSplitsAndHeals cuts the pool in two while messages flow, loses every
// hint, and heals: hints may get lost, messages may not, nor be late.
func TestMeshSplitsAndHeals(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 3)
	s := &stream{m: m, queue: queueName(t), arrived: make(map[string]time.Time)}
	ctx, cancel := context.WithCancel(t.Context())
	var consumers sync.WaitGroup
	t.Cleanup(consumers.Wait)
	defer cancel()
	for i := range m.brokers {
		consumers.Go(func() {
			if err := s.consume(ctx, i); err != nil {
				t.Error(err)
			}
		})
	}
	seen := func(want ...int) func() bool {
		return func() bool { return slices.Equal(m.alive(t), want) }
	}
	s.run(t, "together", seen(2, 2, 2))
	m.net.split(0, 1, 1)
	s.run(t, "cut in two", seen(0, 1, 1))
	m.net.join()
	s.run(t, "healed", seen(2, 2, 2))
	m.net.deafen()
	s.run(t, "every hint lost", func() bool { return true })
	t.Logf("members alive although no datagram passes: %v", m.alive(t))
	m.net.join()
	s.run(t, "together again", seen(2, 2, 2))
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.twice)
	require.Len(t, s.arrived, s.next)
}
