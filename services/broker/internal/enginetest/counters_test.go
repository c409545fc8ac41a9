package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/fusion"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// figures is what was counted of a queue, or of all.
type figures struct {
	PushRequests, PushMessages, PopRequests, PopMessages, PopEmpty int64
	AckRequests, AckSuccess, AckFailed, Transactions               int64
}

const columns = `coalesce(sum(push_requests), 0)::bigint, coalesce(sum(push_messages), 0)::bigint, coalesce(sum(pop_requests), 0)::bigint,
	coalesce(sum(pop_messages), 0)::bigint, coalesce(sum(pop_empty), 0)::bigint, coalesce(sum(ack_requests), 0)::bigint,
	coalesce(sum(ack_success), 0)::bigint, coalesce(sum(ack_failed), 0)::bigint, coalesce(sum(transactions), 0)::bigint`

// flush writes what the engine has counted so far.
func (e *engine) flush() {
	e.t.Helper()
	ended, end := context.WithCancel(context.Background())
	end()
	require.NoError(e.t, e.collector.Run(ended)) // its last flush is its only one
}

func (e *engine) counted(from string, args ...any) (f figures) {
	e.t.Helper()
	e.scan([]any{
		&f.PushRequests, &f.PushMessages, &f.PopRequests, &f.PopMessages, &f.PopEmpty, &f.AckRequests, &f.AckSuccess, &f.AckFailed, &f.Transactions,
	}, `SELECT `+columns+` FROM `+from, args...)
	return f
}

func (e *engine) scan(dest []any, sql string, args ...any) {
	e.t.Helper()
	require.NoError(e.t, e.db.Do(e.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(dest...)
	}))
}

// ofQueue and ofAll flush and read.
func (e *engine) ofQueue(name string) figures {
	e.t.Helper()
	e.flush()
	return e.counted(`queen.queue_lag_metrics AS m JOIN queen.queues AS q ON q.id = m.queue_id WHERE q.name = $1`, name)
}

func (e *engine) ofAll() figures {
	e.t.Helper()
	e.flush()
	return e.counted(`queen.worker_metrics`)
}

func TestPushesPopsAndAcksAreCountedForTheirQueues(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(append(items("a", "p", "m", 5), append(items("b", "p", "m", 2), items("a", "r", "m", 1)...)...)...)
	e.pushed(item("a", "p", "m0"), item("a", "p", "m9"), item("a", "p", "m9")) // a duplicate, a message and its repeat
	want := figures{PushRequests: 2, PushMessages: 7}
	require.Equal(t, want, e.ofQueue("a"))
	require.Equal(t, figures{PushRequests: 1, PushMessages: 2}, e.ofQueue("b"))
	require.Equal(t, figures{PushRequests: 2, PushMessages: 9}, e.ofAll(), "a request with two queues is one")

	ms := e.popped("a", of("p"), batch(4))
	require.Empty(t, e.popped("a", of("p")))
	want.PopRequests, want.PopMessages, want.PopEmpty = 2, 4, 1
	require.Equal(t, want, e.ofQueue("a"))
	require.Len(t, e.popped("b", autoAck), 2)
	require.Equal(t, figures{PushRequests: 1, PushMessages: 2, PopRequests: 1, PopMessages: 2, AckSuccess: 2}, e.ofQueue("b"))

	ghost := ms[3]
	ghost.TransactionID = "ghost"
	nowhere := ms[3]
	nowhere.PartitionID = "no id"
	var acks []wire.AckItem
	for _, m := range []message{ms[0], ms[1], ghost, nowhere} {
		acks = append(acks, ackOf(m, store.QueueModeGroup, wire.AckCompleted))
	}
	rs := e.acked(acks...)
	require.True(t, rs[0].Success && rs[1].Success && !rs[2].Success && !rs[3].Success)
	want.AckRequests, want.AckSuccess, want.AckFailed = 1, 2, 1
	require.Equal(t, want, e.ofQueue("a"))
	require.Equal(t, figures{
		PushRequests: 2, PushMessages: 9, PopRequests: 3, PopMessages: 6, PopEmpty: 1, AckRequests: 1, AckSuccess: 4, AckFailed: 2,
	}, e.ofAll(), "an item that names no partition counts for the process alone")
}

func TestAnAckOfWhatAnotherBrokerDeliveredFindsItsQueue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := broker(t, db, false), broker(t, db, true)
	a.queued(items("q", "p", "m", 3)...)
	ms := a.popped("q")
	b.settle(wire.AckCompleted, ms...)
	require.Equal(t, figures{AckRequests: 1, AckSuccess: 3}, b.ofQueue("q"))
	require.Equal(t, figures{PushRequests: 1, PushMessages: 3, PopRequests: 1, PopMessages: 3, AckRequests: 1, AckSuccess: 3}, a.ofQueue("q"))
}

func TestADiscoveryPopCountsForTheQueuesItFinds(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("shop.orders", "p", "m", 2)...)
	discover := func(r *pop.Request) { r.Route, r.Queue, r.Query.Namespace = pop.Discover, "", "shop" }
	ms := e.popped("", discover)
	require.Len(t, ms, 2)
	require.Empty(t, e.popped("", discover))
	e.settle(wire.AckCompleted, ms...)
	require.Equal(t, figures{PushRequests: 1, PushMessages: 2, PopMessages: 2, AckRequests: 1, AckSuccess: 2}, e.ofQueue("shop.orders"))
	require.Equal(t, figures{
		PushRequests: 1, PushMessages: 2, PopRequests: 2, PopMessages: 2, PopEmpty: 1, AckRequests: 1, AckSuccess: 2,
	}, e.ofAll(), "its requests name no queue")
}

func TestTransactionsAreCountedForEveryQueueTheyTouch(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("src", "a", "m", 2)...)
	ms := e.popped("src")
	before := e.ofAll()
	resp := e.run([]string{ms[0].LeaseID}, ackOp(ms[0], wire.AckCompleted, ""), ackOp(ms[1], wire.AckCompleted, ""),
		pushOp("dst", "x", "d"), pushOp("dst", "y", "d"), pushOp("dst", "x", "d"))
	require.True(t, resp.Success, resp.Error)
	require.False(t, e.run(nil, pushOp("dst", "x", "d")).Success, "a duplicate: nothing is counted")
	require.Equal(t, figures{Transactions: 1, PushMessages: 2}, e.ofQueue("dst"))
	require.Equal(t, figures{PushRequests: 1, PushMessages: 2, PopRequests: 1, PopMessages: 2, AckSuccess: 2, Transactions: 1}, e.ofQueue("src"))
	before.PushMessages += 2
	before.AckSuccess += 2
	before.Transactions++
	require.Equal(t, before, e.ofAll())
}

func TestTheLagIsTheAgeAtDelivery(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "p", "m", 3)...)
	e.queued(items("q", "p", "n", 1)...)
	e.exec(`UPDATE queen.log_segments SET created_at = now() - interval '10 s' WHERE base_offset = 0`)
	e.exec(`UPDATE queen.log_segments SET created_at = now() + interval '1 h' WHERE base_offset = 3`) // by a clock that is ahead
	require.Len(t, e.popped("q"), 4)
	e.flush()
	var mean, longest, worker float64
	e.scan([]any{&mean, &longest}, `SELECT sum(avg_lag_ms), max(max_lag_ms) FROM queen.queue_lag_metrics`)
	e.scan([]any{&worker}, `SELECT max(max_lag_ms) FROM queen.worker_metrics`)
	const slack = 5000 // of a slow machine
	require.InDelta(t, 7500+slack/2, mean, slack/2, "three messages of 10 s, one that is new")
	require.InDelta(t, 10_000+slack/2, longest, slack/2)
	require.InDelta(t, longest, worker, 1e-6)
}

func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "m", 2)...)
	ms := e.popped("q")
	require.True(t, e.settle(wire.AckDLQ, ms[0])[0].DLQ)
	ms = e.popped("q")
	require.True(t, e.run([]string{ms[0].LeaseID}, ackOp(ms[0], wire.AckDLQ, "")).Success)
	require.Len(t, e.dead("q"), 2)
	e.flush()
	var letters int64
	e.scan([]any{&letters}, `SELECT sum(dlq_count)::bigint FROM queen.worker_metrics`)
	require.Equal(t, int64(2), letters)
}

func TestParkedPopsAreSeen(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(item("q", "p", "first"))
	require.Len(t, e.popped("q", autoAck), 1)
	waiting := e.parked("q", autoAck)
	parked := func() (n int64) {
		e.flush()
		e.scan([]any{&n}, `SELECT parked FROM queen.worker_metrics ORDER BY id DESC LIMIT 1`)
		return n
	}
	require.Eventually(t, func() bool { return parked() == 1 }, 10*time.Second, 10*time.Millisecond)
	var queue, replica float64
	e.scan([]any{&queue}, `SELECT coalesce(sum(parked_count), 0) FROM queen.queue_lag_metrics`)
	e.scan([]any{&replica}, `SELECT coalesce(sum(parked_count), 0) FROM queen.queue_parked_replica`)
	require.Positive(t, queue)
	require.Equal(t, queue, replica)
	e.queued(item("q", "p", "second"))
	require.Len(t, <-waiting, 1)
	require.Eventually(t, func() bool { return parked() == 0 }, 10*time.Second, 10*time.Millisecond)
}

// broken is a database that refuses pushes.
type broken struct{ fusion.Store }

func (broken) PushBundle(context.Context, []store.PushSegment, store.LockWait) ([]store.PushVerdict, error) {
	return nil, &pgconn.PgError{Code: "P0001", Message: "no"}
}

func TestWhatTheDatabaseDoesNotDoIsCounted(t *testing.T) {
	t.Parallel()
	e := setup(t, func(s fusion.Store) fusion.Store { return broken{s} })
	require.Equal(t, []string{wire.StatusFailed, wire.StatusFailed}, statuses(e.pushed(items("q", "p", "m", 2)...)))
	e.behind("q", "p", 1)
	ms := e.popped("q", of("p"))
	e.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	e.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON queen.log_consumers FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	rs := e.acked(ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted))
	require.Equal(t, "no", rs[0].Error)
	e.exec(`ALTER FUNCTION queen.log_pop_specific_bin_v1 RENAME TO hidden`)
	_, err := e.try(t.Context(), "q", of("p"))
	require.ErrorIs(t, err, pop.ErrFailed)
	require.Equal(t, figures{PushRequests: 1, PopRequests: 1, PopMessages: 1, AckRequests: 1, AckFailed: 1}, e.ofAll())
	var failures int64
	e.scan([]any{&failures}, `SELECT sum(db_errors)::bigint FROM queen.worker_metrics`)
	require.Equal(t, int64(3), failures)
}
