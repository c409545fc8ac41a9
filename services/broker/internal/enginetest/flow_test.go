package enginetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/fusion"
)

func TestPushPopAck(t *testing.T) {
	t.Parallel()
	e := setup(t)
	pushed := e.queued(items("q", "a", "m", 5)...)
	first := e.popped("q", batch(3))
	require.Equal(t, []string{"m0", "m1", "m2"}, ids(first))
	require.Equal(t, pushed[0].MessageID, first[0].ID)
	require.JSONEq(t, `{"id":"m0"}`, string(first[0].Data))
	require.Equal(t, 1, first[0].DeliveryAttempt)
	require.Empty(t, e.popped("q"), "one lease per lane and group")

	rs := e.settle(wire.AckCompleted, first[2])
	require.True(t, rs[0].LeaseReleased, "implicit completion reached the end of the batch")
	second := e.popped("q")
	require.Equal(t, []string{"m3", "m4"}, ids(second))
	e.settle(wire.AckRetry, second...)
	again := e.popped("q")
	require.Equal(t, []string{"m3", "m4"}, ids(again))
	require.Equal(t, 2, again[0].DeliveryAttempt)
	e.settle(wire.AckCompleted, again...)
	require.Empty(t, e.popped("q"))
	require.Equal(t, []string{"m0", "m1", "m2", "m3", "m4"}, ids(e.popped("q", group("g"))), "groups are independent")
}

func TestAutoAckAndSinglePartition(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(append(items("q", "a", "a", 2), items("q", "b", "b", 2)...)...)
	ms := e.popped("q", of("b"), autoAck)
	require.Equal(t, []string{"b0", "b1"}, ids(ms))
	require.Empty(t, ms[0].LeaseID)
	require.Empty(t, e.popped("q", of("b")))
	require.Empty(t, e.popped("q", of("nowhere")))
	require.Equal(t, []string{"a0", "a1"}, ids(e.popped("q")))
}

func TestOneLeaseSpansSeveralPartitions(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for p := range 5 {
		e.queued(items("q", fmt.Sprint("p", p), fmt.Sprint("p", p, "-"), 4)...)
	}
	require.Len(t, e.popped("q", group("capped"), batch(10), partitions(5)), 10)
	ms := e.popped("q", partitions(5))
	require.Len(t, ms, 20)
	res, err := e.ack.Extend(t.Context(), tenant, ms[0].LeaseID, 120)
	require.NoError(t, err)
	require.Equal(t, 5, res.Renewed)
	require.NotEmpty(t, res.ExpiresAt)
	for _, r := range e.settle(wire.AckCompleted, ms...) {
		require.True(t, r.LeaseReleased)
	}
	res, err = e.ack.Extend(t.Context(), tenant, ms[0].LeaseID, 120)
	require.NoError(t, err)
	require.Equal(t, wire.ExtendResult{LeaseID: ms[0].LeaseID}, res)
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	e := setup(t)
	original := e.queued(items("q", "a", "m", 3)...)
	rs := e.pushed(item("q", "a", "n0"), item("q", "a", "m2"), item("q", "a", "m0"), item("q", "a", "m0"), item("q", "b", "m0"), item("q", "a", "n1"))
	require.Equal(t, []string{"queued", "duplicate", "duplicate", "duplicate", "queued", "queued"}, statuses(rs))
	require.Equal(t, original[2].MessageID, rs[1].MessageID)
	require.Equal(t, original[0].MessageID, rs[2].MessageID)
	require.Equal(t, original[0].MessageID, rs[3].MessageID)
	require.Equal(t, []string{"m0", "m1", "m2", "n0", "n1"}, ids(e.popped("q", of("a"))))

	e.configure("off", `{"dedupWindowSeconds":0}`)
	e.queued(item("off", "a", "x"))
	e.queued(item("off", "a", "x"))
	require.Equal(t, []string{"x", "x"}, ids(e.popped("off")))
}

func statuses(rs []wire.PushResult) []string {
	out := make([]string, len(rs))
	for i := range rs {
		out[i] = rs[i].Status
	}
	return out
}

func TestOneIDPushedConcurrentlyIsStoredOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	all := make([]wire.PushResult, 8)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			rs, err := e.push.Push(context.Background(), tenant, "", []wire.PushItem{item("fresh", "a", "x")})
			if err == nil {
				all[i] = rs[0]
			}
		})
	}
	wg.Wait()
	queued := 0
	for _, r := range all {
		require.Equal(t, all[0].MessageID, r.MessageID)
		if r.Status == wire.StatusQueued {
			queued++
		}
	}
	require.Equal(t, 1, queued)
}

// losing commits every first call of a request and loses its answer.
type losing struct {
	fusion.Store
	mu    sync.Mutex
	calls int
}

func (l *losing) PushBundle(ctx context.Context, segments []store.PushSegment, wait store.LockWait) ([]store.PushVerdict, error) {
	verdicts, err := l.Store.PushBundle(ctx, segments, wait)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls++; l.calls%2 == 1 && err == nil {
		return nil, fmt.Errorf("push: %w", context.DeadlineExceeded)
	}
	return verdicts, err
}

func TestALostAnswerStoresNothingTwice(t *testing.T) {
	t.Parallel()
	lost := &losing{}
	e := setup(t, func(s fusion.Store) fusion.Store { lost.Store = s; return lost })
	minted := item("q", "a", "")
	rs := e.queued(minted, item("q", "b", "x"), minted)
	require.Equal(t, 2, lost.calls)
	ms := e.popped("q", of("a"))
	require.Equal(t, []string{rs[0].TransactionID, rs[2].TransactionID}, ids(ms))
	require.Equal(t, rs[0].MessageID, ms[0].ID)

	e.configure("off", `{"dedupWindowSeconds":0}`)
	rs = e.pushed(item("off", "a", "x"))
	require.Equal(t, []string{"failed"}, statuses(rs))
	require.NotEmpty(t, rs[0].Error)
	require.Len(t, e.popped("off"), 1)
}

func TestPushesSurviveTheDeletionOfTheirQueue(t *testing.T) {
	t.Parallel()
	e := setup(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := e.store.DeleteQueue(context.Background(), tenant, "q"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 60 {
		e.queued(item("q", "a", ""), item("q", fmt.Sprint("p", i%3), ""), item("other", "a", ""))
	}
	close(stop)
	wg.Wait()
	require.Len(t, e.popped("other"), 60)
}

func TestFailedMessagesEndAsDeadLetters(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure("q", `{"retryLimit":1,"leaseTime":60}`)
	e.queued(items("q", "a", "m", 3)...)

	ms := e.popped("q")
	rs := e.acked(ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted), ackOf(ms[1], store.QueueModeGroup, wire.AckFailed), ackOf(ms[2], store.QueueModeGroup, wire.AckCompleted))
	for _, r := range rs {
		require.True(t, r.Success && r.LeaseReleased && !r.DLQ)
	}
	ms = e.popped("q")
	require.Equal(t, []string{"m1", "m2"}, ids(ms))
	nack := ackOf(ms[0], store.QueueModeGroup, wire.AckFailed)
	nack.Error = "boom"
	rs = e.acked(nack)
	require.True(t, rs[0].Success && rs[0].LeaseReleased && rs[0].DLQ)
	require.Equal(t, map[string]string{"m1": "boom"}, e.dead("q"))

	ms = e.popped("q")
	require.Equal(t, []string{"m2"}, ids(ms))
	require.True(t, e.settle(wire.AckDLQ, ms...)[0].DLQ)
	require.Equal(t, map[string]string{"m1": "boom", "m2": "Retries exhausted"}, e.dead("q"))
	require.Empty(t, e.popped("q"))
}

func TestAnAckWithoutLeaseDeadLettersAfterExpiry(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "m", 2)...)
	ms := e.popped("q", lease(1))
	held := ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted)
	require.Eventually(t, func() bool { // the lease has run out once it cannot be extended
		res, err := e.ack.Extend(context.Background(), tenant, "nobody", 1)
		return err == nil && res.Renewed == 0 && e.expired(ms[0])
	}, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, "invalid or expired lease", e.acked(held)[0].Error)
	free := ackOf(ms[0], store.QueueModeGroup, wire.AckDLQ)
	free.LeaseID = ""
	rs := e.acked(free)
	require.True(t, rs[0].Success && rs[0].DLQ, rs[0].Error)
	require.Contains(t, e.dead("q"), "m0")
	require.Equal(t, []string{"m1"}, ids(e.popped("q")))
}

// expired tells whether a lease is over, by an ack of a message that is in no
// batch: it changes nothing and is refused for its lease only once that is over.
func (e *engine) expired(m message) bool {
	ghost := ackOf(m, store.QueueModeGroup, wire.AckCompleted)
	ghost.TransactionID = "ghost"
	return e.acked(ghost)[0].Error == "invalid or expired lease"
}

func TestAckVerdicts(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "m", 4)...)
	ms := e.popped("q")
	e.settle(wire.AckCompleted, ms[1])
	ghost := ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted)
	ghost.TransactionID = "ghost"
	empty := ghost
	empty.TransactionID = ""
	rs := e.acked(ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted), ackOf(ms[0], store.QueueModeGroup, wire.AckFailed), ghost, empty,
		ackOf(ms[2], store.QueueModeGroup, wire.AckCompleted), ackOf(ms[2], store.QueueModeGroup, wire.AckCompleted))
	require.True(t, rs[0].Success && rs[0].Noop)
	require.Contains(t, rs[1].Error, "already committed")
	require.Contains(t, rs[2].Error, "unresolvable")
	require.Contains(t, rs[3].Error, "unresolvable")
	require.True(t, rs[4].Success && !rs[4].Noop && !rs[4].LeaseReleased)
	require.True(t, rs[5].Success && !rs[5].Noop)

	stranger := ackOf(ms[3], "nobody", wire.AckCompleted)
	require.Equal(t, "consumer not found", e.acked(stranger)[0].Error)
	e.settle(wire.AckCompleted, ms[3])
	require.Equal(t, "invalid or expired lease", e.acked(ackOf(ms[3], store.QueueModeGroup, wire.AckCompleted))[0].Error)
}

func TestSubscriptionNewSkipsTheBacklogOnly(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "old", 3)...)
	require.Empty(t, e.popped("q", group("g"), mode(wire.ModeNew)))
	e.queued(item("q", "a", "new"), item("q", "later", "new"))
	require.Equal(t, []string{"new", "new"}, ids(e.popped("q", group("g"), mode(wire.ModeNew), partitions(5))))
	require.Equal(t, []string{"old0", "old1", "old2", "new"}, ids(e.popped("q", mode(wire.ModeNew), of("a"))), "queue mode ignores it")
}

func TestParkedPopsAreWoken(t *testing.T) {
	t.Parallel()
	type result struct {
		ms  []message
		err error
	}
	// A wait of a minute: only a wake (or a re-check, within a second) ends it.
	start := func(e *engine, options ...option) <-chan result {
		out := make(chan result, 1)
		go func() {
			ms, err := e.try(context.Background(), "q", append(options, waiting(time.Minute))...)
			out <- result{ms, err}
		}()
		return out
	}
	t.Run("by a push", func(t *testing.T) {
		t.Parallel()
		e := setup(t)
		one, two := start(e, group("g")), start(e, of("a"))
		e.queued(item("q", "a", "x"))
		for _, out := range []<-chan result{one, two} {
			r := <-out
			require.NoError(t, r.err)
			require.Equal(t, []string{"x"}, ids(r.ms))
		}
	})
	t.Run("by an ack", func(t *testing.T) {
		t.Parallel()
		e := setup(t)
		e.queued(items("q", "a", "m", 2)...)
		held := e.popped("q", batch(1))
		out := start(e)
		e.settle(wire.AckCompleted, held...)
		r := <-out
		require.NoError(t, r.err)
		require.Equal(t, []string{"m1"}, ids(r.ms))
	})
	t.Run("by a transaction", func(t *testing.T) {
		t.Parallel()
		e := setup(t)
		out := start(e)
		_, err := e.tx.Run(context.Background(), tenant, "", wire.TxRequest{Ops: []wire.TxOp{{Kind: wire.TxPush, Push: item("q", "a", "x")}}})
		require.NoError(t, err)
		r := <-out
		require.NoError(t, r.err)
		require.Equal(t, []string{"x"}, ids(r.ms))
	})
	t.Run("by time alone", func(t *testing.T) {
		t.Parallel()
		e := setup(t)
		e.configure("q", `{"delayedProcessing":1}`)
		e.queued(item("q", "a", "x"))
		require.Empty(t, e.popped("q"))
		r := <-start(e)
		require.NoError(t, r.err)
		require.Equal(t, []string{"x"}, ids(r.ms))
	})
}

// Consumers with long polls and producers on a few lanes: everything arrives, in
// order within a lane, nothing twice since nobody fails.
func TestConsumersReceiveEveryMessageInOrder(t *testing.T) {
	t.Parallel()
	const lanes, rounds, consumers = 4, 25, 4
	e := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	got := make(map[string][]string)
	total := 0
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for ctx.Err() == nil {
				ms, err := e.try(ctx, "q", waiting(5*time.Second), batch(7), partitions(2))
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				for _, m := range ms {
					got[m.Partition] = append(got[m.Partition], m.TransactionID)
				}
				total += len(ms)
				if total == lanes*rounds*2 {
					cancel()
				}
				mu.Unlock()
				var acks []wire.AckItem
				for _, m := range ms {
					acks = append(acks, ackOf(m, store.QueueModeGroup, wire.AckCompleted))
				}
				for _, r := range e.acked(acks...) {
					if !r.Success {
						t.Error(r.Error)
					}
				}
			}
		})
	}
	want := make(map[string][]string)
	for r := range rounds {
		all := make([]wire.PushItem, 0, 2*lanes)
		for l := range lanes {
			lane := fmt.Sprint("lane", l)
			all = append(all, items("q", lane, fmt.Sprint("r", r, "-"), 2)...)
			want[lane] = append(want[lane], fmt.Sprint("r", r, "-0"), fmt.Sprint("r", r, "-1"))
		}
		e.queued(all...)
	}
	wg.Wait()
	require.Equal(t, want, got)
}
