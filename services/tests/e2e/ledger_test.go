package e2e_test

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// ledger records what many clients of one queue did, and decides afterwards
// whether the broker kept its promises. Time is a counter that every event
// takes a number from, so it needs no clock and no assumption about speed:
//
//   - A delivery is one unbroken run of the lane's log.
//   - It starts above everything whose ack was answered with success before
//     the pop was sent: a committed ack is never undone.
//   - It starts at most one above the highest message for which an ack was
//     sent before the delivery arrived: nothing is skipped, so that the first
//     deliveries of a lane are in order, and whatever follows a redelivery
//     continues from there.
type ledger struct {
	clock atomic.Int64

	mu         sync.Mutex
	pushed     map[string]map[string]string // lane -> transaction id -> payload, of acknowledged pushes
	attempted  map[string]map[string]bool   // lane -> transaction id, of every push ever sent
	deliveries []delivery
	acks       []ackEvent
}

type delivery struct {
	group, lane    string
	asked, arrived int64 // when the pop was sent and answered
	auto           bool  // committed by the delivery itself
	messages       []harness.Message
}

// ackEvent is an attempt to complete everything up to a message.
type ackEvent struct {
	group, lane, id string
	sent, done      int64 // done 0: never answered with success
}

func newLedger() *ledger {
	return &ledger{pushed: map[string]map[string]string{}, attempted: map[string]map[string]bool{}}
}

func (l *ledger) tick() int64 { return l.clock.Add(1) }

// pushing notes what is about to be sent.
func (l *ledger) pushing(items []harness.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range items {
		if l.attempted[item.Partition] == nil {
			l.attempted[item.Partition], l.pushed[item.Partition] = map[string]bool{}, map[string]string{}
		}
		l.attempted[item.Partition][item.TransactionID] = true
	}
}

// stored notes what the broker has acknowledged.
func (l *ledger) stored(items []harness.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range items {
		l.pushed[item.Partition][item.TransactionID] = item.Payload.(string)
	}
}

// delivered notes a pop's answer, lane by lane.
func (l *ledger) delivered(group string, asked int64, auto bool, p harness.Popped) []delivery {
	arrived := l.tick()
	var out []delivery
	for _, m := range p.Messages {
		if len(out) == 0 || out[len(out)-1].lane != m.Partition {
			out = append(out, delivery{group: group, lane: m.Partition, asked: asked, arrived: arrived, auto: auto})
		}
		out[len(out)-1].messages = append(out[len(out)-1].messages, m)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries = append(l.deliveries, out...)
	return out
}

// acked notes that everything up to a message was completed, or may have been.
func (l *ledger) acked(group, lane, id string, sent int64, success bool) {
	event := ackEvent{group: group, lane: lane, id: id, sent: sent}
	if success {
		event.done = l.tick()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, event)
}

func (l *ledger) pushedCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, lane := range l.pushed {
		n += len(lane)
	}
	return n
}

// offsets reads the logs of all lanes with a group of its own, checks that they
// hold what was pushed exactly once, and answers the place of every message.
func (l *ledger) offsets(t *testing.T, b *harness.Broker, queue string) map[string]map[string]int {
	t.Helper()
	places := map[string]map[string]int{}
	for lane, pushed := range l.pushed {
		places[lane] = map[string]int{}
		for {
			p := b.PopPartition(t, queue, lane, "consumerGroup=auditor&batch=5000&autoAck=true")
			if len(p.Messages) == 0 {
				break
			}
			for _, m := range p.Messages {
				require.NotContains(t, places[lane], m.TransactionID, "stored twice in %s", lane)
				require.True(t, l.attempted[lane][m.TransactionID], "invented in %s: %s", lane, m.TransactionID)
				if payload, ok := pushed[m.TransactionID]; ok {
					require.Equal(t, `"`+payload+`"`, string(m.Data))
				}
				places[lane][m.TransactionID] = len(places[lane])
			}
		}
		for id := range pushed {
			require.Contains(t, places[lane], id, "an acknowledged push is missing from %s", lane)
		}
	}
	return places
}

// verify decides. Every group must have had every message at least once.
func (l *ledger) verify(t *testing.T, places map[string]map[string]int, groups ...string) {
	t.Helper()
	type reader struct{ group, lane string }
	acks := map[reader][]ackEvent{}
	for _, a := range l.acks {
		acks[reader{a.group, a.lane}] = append(acks[reader{a.group, a.lane}], a)
	}
	seen := map[reader]map[int]bool{}
	for _, d := range l.deliveries {
		r := reader{d.group, d.lane}
		if seen[r] == nil {
			seen[r] = map[int]bool{}
		}
		first, ok := places[d.lane][d.messages[0].TransactionID]
		require.True(t, ok, "%v got a message that is not in the log: %s", r, d.messages[0].TransactionID)
		for i, m := range d.messages {
			place, ok := places[d.lane][m.TransactionID]
			require.True(t, ok && place == first+i, "%v got a broken run: message %d of a delivery from %d is %d", r, i, first, place)
			seen[r][place] = true
		}
		committed, possible := -1, -1
		for _, a := range acks[r] {
			place := places[d.lane][a.id]
			if a.done > 0 && a.done < d.asked {
				committed = max(committed, place)
			}
			if a.sent < d.arrived {
				possible = max(possible, place)
			}
		}
		require.Greater(t, first, committed, "%v got again what it had committed", r)
		require.LessOrEqual(t, first, possible+1, "%v skipped messages", r)
	}
	for _, group := range groups {
		for lane, log := range places {
			require.Len(t, seen[reader{group, lane}], len(log), "group %s, lane %s", group, lane)
		}
	}
}

// caughtUp tells whether the groups have committed everything on a queue.
func caughtUp(t *testing.T, b *harness.Broker, queue string, groups ...string) bool {
	t.Helper()
	return harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		CROSS JOIN unnest($2::text[]) AS g(name)
		LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = g.name
		WHERE q.name = $1 AND coalesce(c.committed, -1) < p.last_offset`, queue, groups) == 0
}

// sortedLanes orders the lanes of a map, so that failures read the same twice.
func sortedLanes[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for lane := range m {
		out = append(out, lane)
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}
