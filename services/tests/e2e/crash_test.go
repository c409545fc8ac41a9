package e2e_test

import (
	"context"
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
			q := queueName(t)
			b.Configure(t, q, `{"retryLimit":1000000}`)
			l, names, groups := newLedger(), lanes(8), []string{"g0", "g1"}
			ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
			defer cancel()
			pushing, stopPushing := context.WithCancel(ctx)
			defer stopPushing()

			var pushers, consumers sync.WaitGroup
			for i := range 6 {
				w := newWorker(t, b, l, q, "", uint64(i), true)
				pushers.Go(func() {
					for n := 0; pushing.Err() == nil; n++ {
						w.push(ctx, fmt.Sprintf("%d-%d", i, n), names, 1+w.rng.IntN(8))
						pause(pushing) // the consumers have to keep up
					}
				})
				c := newWorker(t, b, l, q, groups[i%2], uint64(1000+i), true)
				consumers.Go(func() { c.consume(ctx, names) })
			}
			rng, _ := seeded(t)
			for range 5 {
				before := l.pushedCount()
				harness.Eventually(t, 60*time.Second, "the load goes on", func() bool { return l.pushedCount() > before+50 })
				select { // the moment is the point of the test
				case <-ctx.Done():
				case <-time.After(time.Duration(rng.IntN(300)) * time.Millisecond):
				}
				end(t, b)
				b.Restart(t)
			}
			stopPushing()
			pushers.Wait()
			harness.Eventually(t, 60*time.Second, "every group has committed everything", func() bool { return caughtUp(t, b, q, groups...) })
			cancel()
			consumers.Wait()
			l.verify(t, l.offsets(t, b, q), groups...)
			require.Empty(t, b.DLQ(t, q, ""))
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
