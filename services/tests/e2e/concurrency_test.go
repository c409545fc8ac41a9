package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// worker is one client of a load: what it does is random, what it saw goes
// into the ledger.
type worker struct {
	t        *testing.T
	b        *harness.Broker
	l        *ledger
	queue    string
	group    string
	rng      *rand.Rand
	patience bool // failed requests are repeated: the broker is being killed
	habits   habits
}

// habits are how a worker pops.
type habits struct {
	lease int // seconds
	wait  int // milliseconds that a poll is parked at most
	batch int // at most
}

func defaultHabits() habits { return habits{lease: 1, wait: 300, batch: 40} }

func newWorker(t *testing.T, b *harness.Broker, l *ledger, queue, group string, seed uint64, patience bool) *worker {
	return &worker{t: t, b: b, l: l, queue: queue, group: group, rng: rand.New(rand.NewPCG(seed, 7)), patience: patience, habits: defaultHabits()}
}

// push sends a batch to random lanes until it is acknowledged. Some items
// repeat earlier ones.
func (w *worker) push(ctx context.Context, name string, lanes []string, size int) bool {
	items := make([]harness.Item, size)
	for i := range items {
		id := fmt.Sprintf("%s-%d", name, i)
		if i > 0 && w.rng.IntN(10) == 0 {
			items[i] = items[w.rng.IntN(i)]
			continue
		}
		items[i] = harness.Item{Queue: w.queue, Partition: lanes[w.rng.IntN(len(lanes))], TransactionID: id, Payload: "payload of " + id}
	}
	w.l.pushing(items)
	for {
		results, err := w.b.TryPush(ctx, items...)
		if err == nil && !slices.ContainsFunc(results, func(r harness.PushResult) bool { return r.Status != "queued" && r.Status != "duplicate" }) {
			w.l.stored(items)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if !w.patience {
			w.t.Errorf("push: %v %+v", err, results)
			return false
		}
		pause(ctx)
	}
}

// pause keeps a client from hammering a broker that is away.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// consume pops and settles until ctx ends.
func (w *worker) consume(ctx context.Context, lanes []string) {
	for ctx.Err() == nil {
		query := fmt.Sprintf("leaseSeconds=%d&wait=true&timeout=%d&batch=%d&partitions=%d&consumerGroup=%s",
			w.habits.lease, w.habits.wait, 1+w.rng.IntN(w.habits.batch), 1+w.rng.IntN(4), w.group)
		path := harness.PopPath(w.queue, query)
		if w.rng.IntN(5) == 0 {
			path = harness.PopPartitionPath(w.queue, lanes[w.rng.IntN(len(lanes))], query)
		}
		asked := w.l.tick()
		p, err := w.b.TryPop(ctx, path)
		if err != nil {
			if ctx.Err() == nil && !w.patience {
				w.t.Errorf("pop: %v", err)
				return
			}
			pause(ctx)
			continue
		}
		deliveries := w.l.delivered(w.group, asked, false, p)
		if len(deliveries) > 0 && w.rng.IntN(25) > 0 { // one in 25 dies with its lease
			w.settle(ctx, deliveries)
		}
	}
}

// settle acknowledges all lanes of a pop in one request, in a random way each.
func (w *worker) settle(ctx context.Context, deliveries []delivery) {
	var acks []harness.Ack
	type claim struct{ lane, id string }
	var claims []claim // the highest completed message of each lane
	for _, d := range deliveries {
		upTo, signal := len(d.messages), ""
		switch w.rng.IntN(10) {
		case 0:
			upTo, signal = w.rng.IntN(len(d.messages)), "failed"
		case 1:
			upTo, signal = w.rng.IntN(len(d.messages)), "retry"
		case 2:
			upTo = 1 + w.rng.IntN(len(d.messages)) // the rest expires
		}
		for _, m := range d.messages[:upTo] {
			acks = append(acks, m.Ack("completed"))
		}
		if signal != "" {
			acks = append(acks, d.messages[upTo].Ack(signal))
		}
		if upTo > 0 {
			claims = append(claims, claim{d.lane, d.messages[upTo-1].TransactionID})
		}
	}
	sent := w.l.tick()
	results, err := w.b.TryAck(ctx, w.group, acks...)
	if err != nil && ctx.Err() == nil && !w.patience {
		w.t.Errorf("ack: %v", err)
	}
	won := map[string]bool{}
	for i, r := range results {
		won[acks[i].TransactionID] = r.Success
		if !r.Success && r.ErrorText() != leaseText && !w.patience {
			w.t.Errorf("ack: %s", r.ErrorText())
		}
	}
	for _, c := range claims {
		w.l.acked(w.group, c.lane, c.id, sent, err == nil && won[c.id])
	}
}

// TestGroupsSeeEverythingInOrderUnderTurmoil runs 32 pushers and 32 consumers
// in three groups over 50 lanes, with nacks, partial acks, leases that run out
// and consumers that die.
func TestGroupsSeeEverythingInOrderUnderTurmoil(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"retryLimit":1000000}`)
	l, names, groups := newLedger(), lanes(50), []string{"g0", "g1", "g2"}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()

	var pushers, consumers sync.WaitGroup
	for i := range 32 {
		w := newWorker(t, b, l, q, "", uint64(i), false)
		pushers.Go(func() {
			for n := range 25 {
				if !w.push(ctx, fmt.Sprintf("%d-%d", i, n), names, 1+w.rng.IntN(14)) {
					return
				}
			}
		})
		c := newWorker(t, b, l, q, groups[i%3], uint64(1000+i), false)
		consumers.Go(func() { c.consume(ctx, names) })
	}
	pushers.Wait()
	harness.Eventually(t, 90*time.Second, "every group has committed everything", func() bool { return caughtUp(t, b, q, groups...) })
	cancel()
	consumers.Wait()

	require.Greater(t, l.pushedCount(), 32*25)
	l.verify(t, l.offsets(t, b, q), groups...)
	require.Empty(t, b.DLQ(t, q, ""))
	for _, group := range groups {
		for _, lane := range sortedLanes(l.pushed) {
			c := b.DB.Cursor(t, q, lane, group)
			require.Equal(t, c.Committed+1, c.TotalConsumed, "every message was counted once")
		}
	}
}

// TestAutoAckUnderTurmoilDeliversOnce has many consumers of one group commit at
// delivery: at most once, and with nobody dying, exactly once.
func TestAutoAckUnderTurmoilDeliversOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	names := lanes(10)
	var mu sync.Mutex
	got := map[string]int{}
	var pushers, consumers sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for i := range 8 {
		pushers.Go(func() {
			for n := range 40 {
				if _, err := b.TryPush(ctx, harness.Item{Queue: q, Partition: names[(i+n)%10], Payload: fmt.Sprintf("%d-%d", i, n)}); err != nil {
					t.Error(err)
				}
			}
		})
		consumers.Go(func() {
			for ctx.Err() == nil {
				p, err := b.TryPop(ctx, harness.PopPath(q, "autoAck=true&batch=7&partitions=3&wait=true&timeout=300"))
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				mu.Lock()
				for _, m := range p.Messages {
					got[string(m.Data)]++
				}
				mu.Unlock()
			}
		})
	}
	pushers.Wait()
	harness.Eventually(t, 50*time.Second, "everything delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 320
	})
	cancel()
	consumers.Wait()
	for payload, n := range got {
		require.Equal(t, 1, n, payload)
	}
}

// TestQueueLifecycleUnderTurmoil creates, uses and deletes one queue from many
// clients at once: nothing may fail but what cannot be helped.
func TestQueueLifecycleUnderTurmoil(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 8 {
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		wg.Go(func() {
			for range 25 {
				var a harness.Answer
				var err error
				switch rng.IntN(6) {
				case 0:
					a, err = b.Call(ctx, "DELETE", "/api/v1/resources/queues/"+q, nil)
				case 1:
					a, err = b.Call(ctx, "POST", "/api/v1/configure", fmt.Appendf(nil, `{"queue":%q}`, q))
				case 2:
					p, popErr := b.TryPop(ctx, harness.PopPath(q, "consumerGroup=g&partitions=3"))
					a, err = p.Answer, popErr
					if len(p.Messages) > 0 {
						_, err = b.TryAck(ctx, "g", p.Acks("completed")...)
					}
				case 3:
					var answer harness.TxAnswer
					answer, err = b.TryTransact(ctx, tx(push(harness.Item{Queue: q, Partition: fmt.Sprint(rng.IntN(3)), Payload: 1})))
					a = answer.Answer
				default:
					var results []harness.PushResult
					results, err = b.TryPush(ctx, harness.Item{Queue: q, Partition: fmt.Sprint(rng.IntN(3)), Payload: 1})
					if err == nil && results[0].Status != "queued" {
						t.Errorf("push: %+v", results[0])
					}
				}
				if err != nil || a.Status >= 500 {
					t.Errorf("%v %s", err, a)
				}
			}
		})
	}
	wg.Wait()
	b.DeleteQueue(t, q)
	b.PushEach(t, q, "0", 3)
	require.Equal(t, numbers(0, 3), b.Pop(t, q, "consumerGroup=g").Payloads())
}
