package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// parked is a long poll under way.
type parked struct {
	done  chan struct{}
	began time.Time
	took  time.Duration
	p     harness.Popped
	err   error
}

// park starts a long poll.
func park(ctx context.Context, b *harness.Broker, path string) *parked {
	w := &parked{done: make(chan struct{}), began: time.Now()}
	go func() {
		defer close(w.done)
		w.p, w.err = b.TryPop(ctx, path)
		w.took = time.Since(w.began)
	}()
	return w
}

// requireParked requires that the poll is not answered for a while, which also
// gives it the time to reach the broker.
func (w *parked) requireParked(t *testing.T, while time.Duration) {
	t.Helper()
	select {
	case <-w.done:
		require.Fail(t, "answered too early", "%v %s", w.err, w.p.Answer)
	case <-time.After(while):
	}
}

// answer waits for the outcome.
func (w *parked) answer(t *testing.T) harness.Popped {
	t.Helper()
	<-w.done
	require.NoError(t, w.err)
	return w.p
}

// TestLongPollIsWoken runs on a broker whose parked pops do not look again by
// themselves for half a minute: only a wake can answer them sooner.
func TestLongPollIsWoken(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "POP_WAIT_INITIAL_INTERVAL_MS=30000", "POP_WAIT_MAX_INTERVAL_MS=60000")
	const wait = "wait=true&timeout=45000"
	soon := func(t *testing.T, w *parked, want ...string) {
		t.Helper()
		require.Equal(t, want, w.answer(t).Payloads())
		require.Less(t, w.took, 20*time.Second, "nothing woke it")
	}
	for route, path := range map[string]func(q string) string{
		"wildcard":  func(q string) string { return harness.PopPath(q, wait) },
		"group":     func(q string) string { return harness.PopPath(q, wait+"&consumerGroup=g&subscriptionMode=new") },
		"partition": func(q string) string { return harness.PopPartitionPath(q, "p", wait) },
		"discovery": func(q string) string { return "/api/v1/pop?" + wait + "&namespace=" + q },
	} {
		t.Run("by a push, "+route, func(t *testing.T) {
			t.Parallel()
			q := queueName(t)
			w := park(t.Context(), b, path(q))
			w.requireParked(t, 500*time.Millisecond)
			b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: 1})
			soon(t, w, "1")
		})
		t.Run("by a transaction, "+route, func(t *testing.T) {
			t.Parallel()
			q := queueName(t)
			w := park(t.Context(), b, path(q))
			w.requireParked(t, 500*time.Millisecond)
			b.Commit(t, tx(push(harness.Item{Queue: q, Partition: "p", Payload: 1})))
			soon(t, w, "1")
		})
	}
	for status, next := range map[string]string{"completed": "1", "dlq": "1", "failed": "0", "retry": "0"} {
		release := map[string]func(t *testing.T, m harness.Message){
			"an ack": func(t *testing.T, m harness.Message) { b.AckOK(t, "", m.Ack(status)) },
			"a transactional ack": func(t *testing.T, m harness.Message) {
				b.Commit(t, tx(ack(m.Ack(status))))
			},
		}
		for name, end := range release {
			t.Run("by "+name+", "+status, func(t *testing.T) {
				t.Parallel()
				q := queueName(t)
				b.PushEach(t, q, "", 2)
				held := b.Pop(t, q, "batch=1")
				w := park(t.Context(), b, harness.PopPath(q, wait+"&batch=1"))
				w.requireParked(t, 500*time.Millisecond)
				end(t, held.Messages[0])
				soon(t, w, next)
			})
		}
	}
	t.Run("by a push beside a leased lane", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "held", 1)
		require.Len(t, b.Pop(t, q, "").Messages, 1)
		w := park(t.Context(), b, harness.PopPath(q, wait))
		w.requireParked(t, 500*time.Millisecond)
		b.PushQueued(t, harness.Item{Queue: q, Partition: "free", Payload: 1})
		soon(t, w, "1")
	})
}

func TestParkedPollLooksAgainByItself(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 1)
	b.Pop(t, q, "")
	w := park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=40000"))
	w.requireParked(t, 1200*time.Millisecond)
	b.DB.ExpireLeases(t, q) // nobody tells the broker
	require.Equal(t, numbers(0, 1), w.answer(t).Payloads())
	require.Less(t, w.took, 20*time.Second)
}

func TestLongPollWakesForAnotherBrokersPush(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	peer := b.Sibling(t)
	q := queueName(t)
	for i, path := range []string{
		harness.PopPath(q+"-0", "wait=true&timeout=30000&consumerGroup=g"),
		harness.PopPartitionPath(q+"-1", "p", "wait=true&timeout=30000&consumerGroup=g"),
		"/api/v1/pop?wait=true&timeout=30000&namespace=" + q + "-2",
	} {
		w := park(t.Context(), b, path)
		w.requireParked(t, 300*time.Millisecond)
		pushed := time.Now()
		peer.PushQueued(t, harness.Item{Queue: fmt.Sprintf("%s-%d", q, i), Partition: "p", Payload: i})
		require.NotEmpty(t, w.answer(t).Messages)
		require.Less(t, time.Since(pushed), 10*time.Second, "re-checked at least every second")
	}
}

func TestLongPollEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, path := range []string{
		harness.PopPath(q, "wait=true&timeout=1500"), harness.PopPartitionPath(q, "p", "wait=true&timeout=1500"),
		"/api/v1/pop?wait=true&timeout=1500&namespace=" + q,
	} {
		w := park(t.Context(), b, path)
		w.answer(t).RequireEmpty(t)
		require.GreaterOrEqual(t, w.took, time.Second)
		require.Less(t, w.took, 10*time.Second)
	}
	w := park(t.Context(), b, harness.PopPath(q, "wait=false&timeout=20000"))
	w.answer(t).RequireEmpty(t)
	require.Less(t, w.took, 10*time.Second, "wait=false looks once")
}

func TestLongPollTimeoutDefaultsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "DEFAULT_TIMEOUT=700", "POP_DEFAULT_TIMEOUT_MS=50000")
	w := park(t.Context(), b, harness.PopPath(queueName(t), "wait=true"))
	w.answer(t).RequireEmpty(t)
	require.GreaterOrEqual(t, w.took, 500*time.Millisecond)
	require.Less(t, w.took, 20*time.Second)
}

func TestLongPollAnswersAtOnceWhenSomethingIsThere(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 1)
	p := b.Pop(t, q, "wait=true&timeout=50000&batch=1000")
	require.Len(t, p.Messages, 1, "it does not wait to fill the batch")
}

func TestLongPollFirstContactKeepsItsPlace(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 2)
	w := park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=30000&consumerGroup=g&subscriptionMode=new"))
	w.requireParked(t, 500*time.Millisecond)
	b.PushQueued(t, harness.Item{Queue: q, Partition: "born-later", Payload: "new"})
	require.Equal(t, []string{`"new"`}, w.answer(t).Payloads())
}

func TestDisconnectedLongPollLeasesNothing(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
	ctx, hangUp := context.WithCancel(t.Context())
	var polls []*parked
	for range 5 {
		polls = append(polls, park(ctx, b, harness.PopPath(q, "wait=true&timeout=50000&consumerGroup=g")))
	}
	for _, w := range polls {
		w.requireParked(t, 200*time.Millisecond)
	}
	hangUp()
	for _, w := range polls {
		<-w.done
		require.ErrorIs(t, w.err, context.Canceled)
	}
	// A broker that has not noticed yet could still claim for the dead: poll
	// with a group of its own until the closing must have been seen.
	w := park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=1000&consumerGroup=other"))
	w.answer(t).RequireEmpty(t)
	b.PushEach(t, q, "", 1)
	p := b.Pop(t, q, "wait=true&timeout=5000&consumerGroup=g")
	require.Equal(t, numbers(0, 1), p.Payloads())
	require.Equal(t, 1, p.Messages[0].DeliveryAttempt, "nobody else ever leased it")
}

func TestManyLongPollsShareThePushes(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const n = 20
	polls := make([]*parked, n)
	for i := range polls {
		polls[i] = park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=40000&batch=1"))
	}
	polls[0].requireParked(t, 500*time.Millisecond)
	for i := range n {
		b.PushQueued(t, harness.Item{Queue: q, Partition: fmt.Sprint(i), Payload: i})
	}
	var got []string
	for _, w := range polls {
		got = append(got, w.answer(t).Payloads()...)
		require.Less(t, w.took, 30*time.Second)
	}
	require.ElementsMatch(t, numbers(0, n), got)
}

func TestParkedPollsHoldNoConnection(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "DB_POOL_SIZE=4")
	q := queueName(t)
	ctx, hangUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			_, _ = b.TryPop(ctx, harness.PopPath(fmt.Sprintf("%s-%d", q, i), "wait=true&timeout=50000"))
		})
	}
	defer wg.Wait()
	defer hangUp()
	for i := range 30 {
		b.PushEach(t, q+"-busy", fmt.Sprint(i), 1)
	}
	require.Len(t, drain(t, b, harness.PopPath(q+"-busy", "partitions=0")), 30)
}

func TestGracefulStopWakesParkedPolls(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	b.PushEach(t, q, "", 3)
	var polls []*parked
	for _, path := range []string{
		harness.PopPath(q+"-idle", "wait=true&timeout=50000"), harness.PopPartitionPath(q+"-idle", "p", "wait=true&timeout=50000"),
		"/api/v1/pop?wait=true&timeout=50000&namespace=" + q + "-idle",
	} {
		polls = append(polls, park(t.Context(), b, path))
	}
	polls[0].requireParked(t, 500*time.Millisecond)
	b.Terminate(t)
	for _, w := range polls {
		w.answer(t).RequireEmpty(t)
		require.Less(t, w.took, 40*time.Second)
	}
	b.Restart(t)
	require.Equal(t, numbers(0, 3), b.Pop(t, q, "").Payloads())
}

func TestStopLeavesLeasesToExpire(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	b.PushEach(t, q, "", 2)
	held := b.Pop(t, q, "batch=1")
	b.Terminate(t)
	b.Restart(t)
	b.RequireNone(t, harness.PopPath(q, ""))
	b.AckOK(t, "", held.Acks("completed")...)
	require.Equal(t, numbers(1, 2), b.Pop(t, q, "").Payloads())
}

func TestHealthAnswersWhatItPromises(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	a := b.Get(t, "/health")
	require.Equal(t, http.StatusOK, a.Status)
	health := a.Object(t)
	requireKeys(t, health, "status", "database", "engine", "version")
	require.Equal(t, []any{"healthy", "connected"}, []any{health["status"], health["database"]})
	require.NotEmpty(t, health["version"])

	a = b.Get(t, "/metrics/prometheus")
	require.Equal(t, http.StatusOK, a.Status)
	require.True(t, strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain"), a.Header)
	require.Contains(t, string(a.Body), "# TYPE go_goroutines gauge")
}
