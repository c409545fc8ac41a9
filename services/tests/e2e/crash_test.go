package e2e_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestBrokerMayEndAtAnyMoment ends a broker under load again and again, and
// checks that no acknowledged push is lost, no committed ack is undone, nothing
// is stored twice and the order holds.
func TestBrokerMayEndAtAnyMoment(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *harness.Broker){
		"killed":   func(_ *testing.T, b *harness.Broker) { b.Kill() },
		"asked to": func(t *testing.T, b *harness.Broker) { b.Terminate(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := harness.StartOne(t)
			rng, _ := seeded(t)
			x := startLoad(t, b, queueName(t), rng, loadOptions{pushers: 6, readers: 6, pushSize: 8, habits: defaultHabits(), limit: 110 * time.Second})
			for range 5 {
				x.advance(50, progressLimit)
				select { // the moment is the point of the test
				case <-t.Context().Done():
				case <-time.After(time.Duration(rng.IntN(300)) * time.Millisecond):
				}
				end(t, b)
				b.Restart(t)
			}
			x.finish()
		})
	}
}

// TestCommittedAckOutlivesAKill acknowledges, kills at once, and looks.
func TestCommittedAckOutlivesAKill(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	want := b.PushEach(t, q, "p", 12)
	for round := range 4 {
		p := b.Pop(t, q, "batch=3&leaseSeconds=1")
		require.Equal(t, want[3*round:3*round+3], p.IDs())
		b.AckOK(t, "", p.Acks("completed")...)
		b.Kill()
		b.Restart(t)
	}
	b.RequireNone(t, harness.PopPath(q, ""))
}

// TestDeadLetterOutlivesAKill checks the two steps of the hand-off.
func TestDeadLetterOutlivesAKill(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	b.PushEach(t, q, "p", 2)
	p := b.Pop(t, q, "batch=2&leaseSeconds=1")
	require.True(t, b.AckOK(t, "", p.Messages[0].Ack("dlq"))[0].DLQ)
	b.Kill()
	b.Restart(t)
	require.Equal(t, []string{"0"}, deadPayloads(b.DLQ(t, q, "")))
	require.Equal(t, numbers(1, 2), b.Pop(t, q, "").Payloads())
}

// TestUnansweredPushMayBeSentAgain kills the broker while pushes are under way
// and sends them again, as clients do.
func TestUnansweredPushMayBeSentAgain(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	const n = 30
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, _ = b.TryPush(t.Context(), harness.Item{Queue: q, Partition: fmt.Sprint(i % 3), TransactionID: fmt.Sprint(i), Payload: i})
		})
	}
	b.Kill()
	wg.Wait()
	b.Restart(t)
	for i := range n {
		r := b.Push(t, harness.Item{Queue: q, Partition: fmt.Sprint(i % 3), TransactionID: fmt.Sprint(i), Payload: i})[0]
		require.Contains(t, []string{"queued", "duplicate"}, r.Status)
	}
	require.Len(t, drain(t, b, harness.PopPath(q, "batch=1000&partitions=0")), n)
}
