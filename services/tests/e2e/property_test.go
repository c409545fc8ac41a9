package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// propertyBudget ends the search for a counterexample: on a slow machine fewer
	// sequences are tried, and a first one always is.
	propertyBudget = 15 * time.Second
	// longPropertyBudget wants more sequences than rapid's default: -rapid.checks.
	longPropertyBudget = 3 * time.Minute

	// modelPatience is how long a broker may take to find a lane whose lease the
	// test ended in the database, or which another broker wrote to.
	modelPatience = 20 * time.Second
)

// TestLogBehavesLikeTheModel drives random sequences of pushes, pops, acks,
// expiries and configuration changes through HTTP and compares every answer and
// every cursor with the model.
func TestLogBehavesLikeTheModel(t *testing.T) {
	t.Parallel()
	checkModel(t, harness.Shared(t))
}

// TestLogBehavesLikeTheModelWithSwitchesOff tries a random choice of switches.
func TestLogBehavesLikeTheModelWithSwitchesOff(t *testing.T) {
	t.Parallel()
	rng, seed := seeded(t)
	var off []string
	for len(off) == 0 {
		off = slices.DeleteFunc(switches(), func(string) bool { return rng.IntN(2) == 0 })
	}
	t.Logf("seed %d, %s", seed, strings.Join(off, " "))
	checkModel(t, harness.StartOne(t, off...))
}

func TestLogBehavesLikeTheModelAcrossThreeBrokers(t *testing.T) {
	t.Parallel()
	checkModel(t, harness.StartSetup(t, harness.Setup{Brokers: 3}).Broker)
}

// switches turn off what makes the engine fast. No answer may depend on them.
func switches() []string {
	return []string{"QUEEN_HOTLIST=0", "QUEEN_ACK_FUSION=0", "QUEEN_ACK_REGISTRY=0", "QUEEN_DEDUP_CACHE=0"}
}

func checkModel(t *testing.T, b *harness.Broker) {
	t.Helper()
	prefix := queueName(t)
	budget := propertyBudget
	if harness.Long() {
		budget = longPropertyBudget
	}
	deadline := time.Now().Add(budget)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		if run > 0 && time.Now().After(deadline) {
			return
		}
		run++
		s := &machine{rt: rt, b: b, m: newModel(), queue: fmt.Sprintf("%s-%d", prefix, run), ctx: t.Context()}
		s.configure()
		actions := map[string]func(*rapid.T){
			"":          func(rt *rapid.T) { s.with(rt).compare() },
			"push":      func(rt *rapid.T) { s.with(rt).push() },
			"push more": func(rt *rapid.T) { s.with(rt).push() },
			"pop":       func(rt *rapid.T) { s.with(rt).pop() },
			"pop more":  func(rt *rapid.T) { s.with(rt).pop() },
			"ack":       func(rt *rapid.T) { s.with(rt).ack() },
			"ack more":  func(rt *rapid.T) { s.with(rt).ack() },
			"finish":    func(rt *rapid.T) { s.with(rt).finish() },
			"transact":  func(rt *rapid.T) { s.with(rt).transact() },
			"expire":    func(rt *rapid.T) { s.with(rt).expire() },
			"configure": func(rt *rapid.T) { s.with(rt).configure() },
		}
		rt.Repeat(actions)
	})
	t.Logf("%d sequences", run)
}

// machine applies one random step after the other to the broker and the model.
type machine struct {
	rt    *rapid.T
	b     *harness.Broker
	m     *model
	queue string
	ctx   context.Context
	next  int // number of the next transaction id
	held  []lease
}

// lease is a batch somebody was given once; it may be long over.
type lease struct {
	reader
	id, partitionID string
	ids             []string
}

func (s *machine) with(rt *rapid.T) *machine {
	s.rt = rt
	return s
}

func (s *machine) pick(name string, from ...string) string {
	return rapid.SampledFrom(from).Draw(s.rt, name)
}

func (s *machine) number(name string, low, high int) int {
	return rapid.IntRange(low, high).Draw(s.rt, name)
}

func (s *machine) lane() string { return s.pick("lane", "p0", "p1", "p2") }

func (s *machine) group() string { return s.pick("group", harness.QueueMode, "g1", "g2", "g3") }

// ids are new ones, now and then an old one or a repeat.
func (s *machine) ids(lane string, n int) []string {
	out := make([]string, n)
	for i := range out {
		known := append(slices.Clone(s.m.lanes[lane]), out[:i]...)
		if len(known) > 0 && s.number("repeat", 0, 9) == 0 {
			out[i] = rapid.SampledFrom(known).Draw(s.rt, "repeated")
			continue
		}
		out[i] = fmt.Sprintf("t%d", s.next)
		s.next++
	}
	return out
}

func (s *machine) push() {
	lane := s.lane()
	ids := s.ids(lane, s.number("count", 1, 6))
	items := make([]harness.Item, len(ids))
	for i, id := range ids {
		items[i] = harness.Item{Queue: s.queue, Partition: lane, TransactionID: id, Payload: id}
	}
	results, err := s.b.TryPush(s.ctx, items...)
	require.NoError(s.rt, err)
	for i, fresh := range s.m.push(lane, ids) {
		require.Equal(s.rt, map[bool]string{true: "queued", false: "duplicate"}[fresh], results[i].Status, "%s in %s", ids[i], lane)
	}
}

func (s *machine) pop() {
	group, batch := s.group(), s.number("batch", 1, 8)
	auto := s.number("auto", 0, 5) == 0
	intent := s.pick("intent", "", "subscriptionMode=all", "subscriptionMode=new", "subscriptionFrom=now", "subscriptionFrom=2001-01-01T00:00:00Z")
	tail := strings.HasSuffix(intent, "new") || strings.HasSuffix(intent, "now")
	query := fmt.Sprintf("&autoAck=%t&leaseSeconds=600&%s", auto, intent)
	if group != harness.QueueMode {
		query += "&consumerGroup=" + group
	}
	if s.number("route", 0, 1) == 0 {
		lane := s.lane()
		p, err := s.b.TryPop(s.ctx, harness.PopPartitionPath(s.queue, lane, fmt.Sprintf("batch=%d", batch)+query))
		require.NoError(s.rt, err)
		want := 0
		if len(s.m.lanes[lane]) > 0 {
			s.m.seed(reader{lane, group}, tail)
			want = min(batch, s.m.pending(reader{lane, group}))
		}
		require.Len(s.rt, p.Messages, want, "lane %s, group %s", lane, group)
		s.delivered(p, group, auto)
		return
	}
	s.m.register(group, tail)
	s.popWide(group, query, batch, s.number("partitions", 1, 4), auto)
}

// popWide pops from whichever lanes the broker chooses. It may not know all that
// are ready, and is then asked for the rest, which it has to find.
func (s *machine) popWide(group, query string, batch, width int, auto bool) {
	ready := 0
	for lane := range s.m.lanes {
		if s.m.pending(reader{lane, group}) > 0 {
			ready++
		}
	}
	for deadline := time.Now().Add(modelPatience); ; pause(s.ctx) {
		p, err := s.b.TryPop(s.ctx, harness.PopPath(s.queue, fmt.Sprintf("batch=%d&partitions=%d", batch, width)+query))
		require.NoError(s.rt, err)
		s.delivered(p, group, auto)
		require.LessOrEqual(s.rt, p.PartitionsClaimed, width)
		if len(p.Messages) == batch {
			return
		}
		for _, lane := range p.Partitions() {
			require.Zero(s.rt, s.left(reader{lane, group}), "lane %s was not emptied", lane)
		}
		batch, width, ready = batch-len(p.Messages), width-p.PartitionsClaimed, ready-p.PartitionsClaimed
		if width == 0 || ready == 0 {
			return
		}
		require.True(s.rt, time.Now().Before(deadline), "a budget is left over: %d ready lanes were not found", ready)
	}
}

// left is what a lane holds above the last delivery.
func (s *machine) left(r reader) int {
	c := s.m.cursors[r]
	return len(s.m.lanes[r.lane]) - 1 - max(c.batchEnd, c.committed)
}

// delivered checks a pop's answer lane by lane.
func (s *machine) delivered(p harness.Popped, group string, auto bool) {
	for _, lane := range p.Partitions() {
		var got []harness.Message
		for _, m := range p.Messages {
			if m.Partition == lane {
				got = append(got, m)
			}
		}
		r := reader{lane, group}
		require.LessOrEqual(s.rt, len(got), s.m.pending(r), "lane %s, group %s", lane, group)
		ids, attempt := s.m.deliver(r, len(got), p.LeaseID, auto)
		for i, m := range got {
			require.Equal(s.rt, ids[i], m.TransactionID, "message %d of lane %s for %s", i, lane, group)
			require.Equal(s.rt, `"`+ids[i]+`"`, string(m.Data))
			require.Equal(s.rt, attempt, m.DeliveryAttempt, "attempt of lane %s for %s", lane, group)
		}
		if !auto {
			s.held = append(s.held, lease{r, p.LeaseID, got[0].PartitionID, ids})
		}
	}
}

// someLease is one of the last batches, live or over.
func (s *machine) someLease() (lease, bool) {
	if len(s.held) == 0 {
		return lease{}, false
	}
	recent := s.held[max(0, len(s.held)-6):]
	return recent[s.number("lease", 0, len(recent)-1)], true
}

func (s *machine) ack() {
	l, ok := s.someLease()
	if !ok {
		return
	}
	from := append(slices.Clone(l.ids), s.m.lanes[l.lane]...)
	items := make([]item, s.number("items", 1, 6))
	for i := range items {
		items[i].status = s.pick("status", "completed", "completed", "completed", "failed", "retry", "dlq")
		items[i].id = rapid.SampledFrom(from).Draw(s.rt, "id")
		if s.number("ghost", 0, 15) == 0 {
			items[i].id = "ghost"
		}
	}
	named := l.id
	if s.number("leaseless", 0, 5) == 0 {
		named = ""
	}
	if named == "" && s.m.cursors[l.reader].batchEnd < 0 {
		for i := range items { // what a nack of nothing leased reports is not fixed
			items[i].status = "completed"
		}
	}
	s.settle(l, named, items)
}

// finish completes a whole batch, as consumers mostly do.
func (s *machine) finish() {
	l, ok := s.someLease()
	if !ok {
		return
	}
	items := make([]item, len(l.ids))
	for i, id := range l.ids {
		items[i] = item{id: id, status: "completed"}
	}
	s.settle(l, l.id, items)
}

func (s *machine) settle(l lease, named string, items []item) {
	acks := make([]harness.Ack, len(items))
	for i, it := range items {
		acks[i] = harness.Ack{TransactionID: it.id, PartitionID: l.partitionID, Status: it.status, LeaseID: named}
	}
	results, err := s.b.TryAck(s.ctx, l.group, acks...)
	require.NoError(s.rt, err)
	released, dead := s.m.ack(l.reader, named, items)
	for i, it := range items {
		r := results[i]
		require.Equal(s.rt, it.success, r.Success, "item %d %+v: %s", i, it, r.ErrorText())
		require.Equal(s.rt, it.err, r.ErrorText(), "item %d %+v", i, it)
		require.Equal(s.rt, it.noop, r.Noop, "item %d %+v", i, it)
		if it.success && !it.noop {
			require.Equal(s.rt, []bool{released, dead}, []bool{r.LeaseReleased, r.DLQ}, "item %d %+v", i, it)
		}
	}
}

// transact acknowledges a part of a batch and pushes, all or nothing.
func (s *machine) transact() {
	l, ok := s.someLease()
	if !ok {
		return
	}
	lane := s.lane()
	ids := s.ids(lane, s.number("count", 1, 3))
	acked := rapid.SampledFrom(l.ids).Draw(s.rt, "acked")
	ops := make([]any, 0, len(ids)+1)
	for _, id := range ids {
		ops = append(ops, push(harness.Item{Queue: s.queue, Partition: lane, TransactionID: id, Payload: id}))
	}
	ops = append(ops, ack(harness.Ack{TransactionID: acked, PartitionID: l.partitionID, LeaseID: l.id, ConsumerGroup: l.group}))
	answer, err := s.b.TryTransact(s.ctx, tx(ops...))
	require.NoError(s.rt, err)

	c := s.m.cursors[l.reader]
	switch {
	case slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(s.m.lanes[lane], id) }):
		require.Equal(s.rt, "duplicate", answer.Reason, "%s", answer.Answer)
	case c.worker != l.id || !c.live:
		require.Equal(s.rt, "ack_rejected", answer.Reason, "%s", answer.Answer)
	default:
		require.True(s.rt, answer.Success, "%s", answer.Answer)
		s.m.push(lane, ids)
		s.m.ack(l.reader, l.id, []item{{id: acked, status: "completed"}})
	}
}

func (s *machine) expire() {
	_, err := s.b.DB.Pool.Exec(s.ctx, `UPDATE queen.log_consumers c SET lease_expires_at = now() - interval '1 second'
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		WHERE p.id = c.partition_id AND q.name = $1 AND c.lease_expires_at IS NOT NULL`, s.queue)
	require.NoError(s.rt, err)
	for _, c := range s.m.cursors {
		c.live = false
	}
}

func (s *machine) configure() {
	s.m.retryLimit = s.number("retryLimit", 0, 3)
	s.m.deadOn = s.number("deadOn", 0, 3) > 0
	a, err := s.b.Call(s.ctx, "POST", "/api/v1/configure", fmt.Appendf(nil,
		`{"queue":%q,"options":{"retryLimit":%d,"deadLetterQueue":%t,"dlqAfterMaxRetries":false}}`, s.queue, s.m.retryLimit, s.m.deadOn))
	require.NoError(s.rt, err)
	require.Equal(s.rt, 200, a.Status, a)
}

// compare requires that every cursor and every dead letter in the database is
// the model's.
func (s *machine) compare() {
	rows, err := s.b.DB.Pool.Query(s.ctx, `
		SELECT p.name, c.consumer_group, c.committed, coalesce(c.batch_end, -1), coalesce(c.worker_id, ''),
		       coalesce(c.lease_expires_at > now(), false), c.batch_retry_count, coalesce(c.attempt_offset, -1), c.attempt_count, c.total_consumed
		FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = p.queue_id
		WHERE q.name = $1`, s.queue)
	require.NoError(s.rt, err)
	defer rows.Close()
	got := map[reader]bool{}
	for rows.Next() {
		var r reader
		var c cursor
		require.NoError(s.rt, rows.Scan(&r.lane, &r.group, &c.committed, &c.batchEnd, &c.worker, &c.live, &c.retries, &c.attemptOffset, &c.attempts, &c.consumed))
		got[r] = true
		want := s.m.seed(r, false) // a scan may have made a row the model does not know yet
		require.Equal(s.rt, want.String(), c.String(), "cursor of %s on %s", r.group, r.lane)
	}
	require.NoError(s.rt, rows.Err())
	for r, c := range s.m.cursors {
		require.True(s.rt, got[r] || c.committed == -1 && c.consumed == 0, "cursor of %s on %s is missing: %s", r.group, r.lane, c)
	}
	s.compareDead()
}

func (s *machine) compareDead() {
	rows, err := s.b.DB.Pool.Query(s.ctx, `
		SELECT d.consumer_group || ' ' || p.name || ' ' || d.transaction_id
		FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id JOIN queen.queues q ON q.id = p.queue_id
		WHERE q.name = $1`, s.queue)
	require.NoError(s.rt, err)
	defer rows.Close()
	var got []string
	for rows.Next() {
		var text string
		require.NoError(s.rt, rows.Scan(&text))
		got = append(got, text)
	}
	require.NoError(s.rt, rows.Err())
	require.ElementsMatch(s.rt, s.m.dead, got, "dead letters")
}
