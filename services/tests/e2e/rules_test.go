package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// answerLost waits until the proxy has swallowed an answer.
func answerLost(t *testing.T, lost <-chan struct{}) {
	t.Helper()
	select {
	case <-lost:
	case <-time.After(20 * time.Second):
		require.Fail(t, "no answer was lost")
	}
}

// storedMessages counts what the lanes of a queue hold.
func storedMessages(t *testing.T, b *harness.Broker, queue string) int {
	t.Helper()
	return harness.Value[int](t, b.DB, `SELECT coalesce(sum(p.last_offset + 1), 0)::int
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, queue)
}

// TestRule06AnAmbiguousPushIsStoredOnce loses the answer of a commit.
func TestRule06AnAmbiguousPushIsStoredOnce(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	for i, ids := range [][]string{{"", ""}, {"a", "b"}, {"a", ""}} {
		q := fmt.Sprintf("%s-%d", queueName(t), i)
		s.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "first", Payload: 0})
		lost := s.Proxy.LoseAnswer("log_push_multi")
		results := s.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: ids[0], Payload: 1}, harness.Item{Queue: q, Partition: "p", TransactionID: ids[1], Payload: 2})
		answerLost(t, lost)
		p := s.PopPartition(t, q, "p", "")
		require.Equal(t, numbers(0, 3), p.Payloads(), "stored once, in order: %q", ids)
		for i, r := range results {
			require.Equal(t, "queued", r.Status, "%q: %+v", ids, r)
			require.Equal(t, p.Messages[i+1].ID, r.MessageID, "answered with the id that is stored")
			require.Equal(t, p.Messages[i+1].TransactionID, r.TransactionID)
		}
	}
}

func TestRule06ARealDuplicateStaysOne(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	q := queueName(t)
	item := harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 0}
	first := s.Push(t, item)[0]
	lost := s.Proxy.LoseAnswer("log_push_multi")
	again := s.Push(t, item, harness.Item{Queue: q, Partition: "p", TransactionID: "b", Payload: 1})
	answerLost(t, lost)
	require.Equal(t, []string{"duplicate", "queued"}, []string{again[0].Status, again[1].Status})
	require.Equal(t, first.MessageID, again[0].MessageID)
	require.Equal(t, numbers(0, 2), s.PopPartition(t, q, "p", "").Payloads())
}

func TestRule06WithoutAWindowNothingIsSentAgain(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	q := queueName(t)
	s.Configure(t, q, `{"dedupWindowSeconds":0}`)
	s.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: 0})
	lost := s.Proxy.LoseAnswer("log_push_multi")
	r := s.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 1})[0]
	answerLost(t, lost)
	require.Equal(t, "failed", r.Status, "nobody can tell: %+v", r)
	require.NotEmpty(t, r.Error)
	require.Equal(t, 2, storedMessages(t, s.Broker, q))
}

// TestRule06AnAmbiguousAckMayBeSentAgain loses the answer of an ack: the client
// hears of an error or of success, and sending the ack again changes nothing.
func TestRule06AnAmbiguousAckMayBeSentAgain(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	q := queueName(t)
	s.PushTogether(t, q, "p", 4)
	p := s.PopPartition(t, q, "p", "batch=2")
	lost := s.Proxy.LoseAnswer("log_ack")
	for _, r := range s.Ack(t, "", p.Acks("completed")...) {
		require.True(t, r.Success || r.ErrorText() != "", "%+v", r)
	}
	answerLost(t, lost)
	require.Equal(t, int64(1), s.DB.Committed(t, q, "p", harness.QueueMode))
	for _, a := range p.Acks("completed") {
		a.LeaseID = "" // the lease is over
		require.True(t, s.AckOK(t, "", a)[0].Noop)
	}
	require.Equal(t, numbers(2, 4), s.PopPartition(t, q, "p", "").Payloads())
}

// sabotage makes the first n statements that write to a table fail with an
// SQLSTATE. What they counted outlives their rollback.
func sabotage(t *testing.T, db *harness.Database, table, state string, n int) {
	t.Helper()
	for _, sql := range []string{
		`CREATE SCHEMA IF NOT EXISTS sabotage`,
		`DROP SEQUENCE IF EXISTS sabotage.attempts CASCADE`,
		`CREATE SEQUENCE sabotage.attempts`,
		`GRANT USAGE ON SCHEMA sabotage TO PUBLIC`,
		`GRANT USAGE ON SEQUENCE sabotage.attempts TO PUBLIC`,
		`CREATE OR REPLACE FUNCTION sabotage.fail() RETURNS trigger LANGUAGE plpgsql AS $$
		 BEGIN
			IF nextval('sabotage.attempts') <= TG_ARGV[0]::int THEN
				RAISE EXCEPTION 'sabotaged' USING ERRCODE = TG_ARGV[1];
			END IF;
			RETURN NULL;
		 END $$`,
		`DROP TRIGGER IF EXISTS sabotage ON queen.` + table,
		fmt.Sprintf(`CREATE TRIGGER sabotage AFTER INSERT OR UPDATE ON queen.%s FOR EACH STATEMENT EXECUTE FUNCTION sabotage.fail(%d, '%s')`, table, n, state),
	} {
		db.Exec(t, sql)
	}
}

// attempts counts the writes since sabotage, failed ones included.
func attempts(t *testing.T, db *harness.Database) int {
	t.Helper()
	return harness.Value[int](t, db, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM sabotage.attempts`)
}

// TestRule10OneTableOfSQLSTATEs fails writes with one SQLSTATE after the other:
// what passes by itself is tried again by name, what stays is not.
func TestRule10OneTableOfSQLSTATEs(t *testing.T) {
	t.Parallel()
	const fails = 2
	b := harness.StartOne(t, "QUEEN_PUSH_DEADLINE_MS=8000")
	run := 0
	next := func() string { run++; return fmt.Sprintf("%s-%d", queueName(t), run) }
	passing := []string{"40001", "40P01", "55P03", "25006", "53100", "53300", "58030", "42883", "42P01"}
	for _, state := range append(slices.Clone(passing), "08006", "57P01") {
		q := next()
		sabotage(t, b.DB, "log_segments", state, fails)
		r := b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 1})[0]
		require.Equal(t, "queued", r.Status, "%s is transient or goes away: %+v", state, r)
		require.Equal(t, fails+1, attempts(t, b.DB), state)
		require.Equal(t, 1, storedMessages(t, b, q), state)
	}
	for _, state := range []string{"P0001", "23514", "22003", "XX000"} {
		q := next()
		sabotage(t, b.DB, "log_segments", state, 1000)
		began := time.Now()
		r := b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 1})[0]
		require.Equal(t, "failed", r.Status, state)
		require.Less(t, time.Since(began), 4*time.Second, "%s stays, whatever is tried", state)
		require.LessOrEqual(t, attempts(t, b.DB), 2, state)
		require.Zero(t, storedMessages(t, b, q), state)
	}
	b.DB.Exec(t, `DROP TRIGGER sabotage ON queen.log_segments`)
	for _, state := range passing {
		q := next()
		b.PushTogether(t, q, "p", 2)
		p := b.PopPartition(t, q, "p", "batch=1")
		sabotage(t, b.DB, "log_consumers", state, fails)
		b.AckOK(t, "", p.Acks("completed")...)
		require.Equal(t, fails+1, attempts(t, b.DB), "ack, %s", state)
		b.DB.Exec(t, `DROP TRIGGER sabotage ON queen.log_consumers`)
		require.Equal(t, numbers(1, 2), b.PopPartition(t, q, "p", "").Payloads())
	}
}

// TestRule11ALostHintCostsTwoSeconds has two brokers that never tell each other
// anything.
func TestRule11ALostHintCostsTwoSeconds(t *testing.T) {
	t.Parallel()
	const slack = time.Second // of a busy machine
	s := harness.StartSetup(t, harness.Setup{Brokers: 2, Apart: true})
	writer, readerSide := s.Each[0], s.Each[1]
	q := queueName(t)
	for i := range 6 {
		lane := fmt.Sprint(i % 2) // the first two are new to the ring, the others known
		w := park(t.Context(), readerSide, harness.PopPath(q, "wait=true&timeout=30000&autoAck=true&consumerGroup=g"))
		w.requireParked(t, time.Duration(200+150*i)*time.Millisecond)
		pushed := time.Now()
		writer.PushQueued(t, harness.Item{Queue: q, Partition: lane, Payload: i})
		require.Equal(t, numbers(i, i+1), w.answer(t).Payloads())
		require.Less(t, w.began.Add(w.took).Sub(pushed), 2*time.Second+slack)
	}
}

// pushLoop pushes to lanes of its own, one after the other, and answers how long
// each push took, until the context ends.
func pushLoop(ctx context.Context, t *testing.T, b *harness.Broker, queue string, n int) []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for _, lane := range lanes(n) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				began := time.Now()
				r, err := b.TryPush(context.WithoutCancel(ctx), harness.Item{Queue: queue, Partition: lane, Payload: i})
				if err != nil || r[0].Status != "queued" {
					t.Errorf("push to %s: %v %+v", lane, err, r)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

// TestRule13NoBundleWaitsForOneLane locks one lane and pushes to it and to
// others, which must not notice.
func TestRule13NoBundleWaitsForOneLane(t *testing.T) {
	t.Parallel()
	const free, locked, period = 8, 3 * time.Second, 2 * time.Second
	b := harness.StartOne(t, "QUEEN_V2_FUSION_SHARDS=1") // all lanes meet in one shard
	q := queueName(t)
	b.PushQueued(t, harness.Item{Queue: q, Partition: "held", Payload: 0})
	measure := func(d time.Duration) []time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		took := pushLoop(ctx, t, b, q, free)
		require.GreaterOrEqual(t, len(took), 2*free)
		return took
	}
	measure(period / 4) // lanes and caches are new
	before := measure(period)

	tx, err := b.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, b.DB.PartitionID(t, q, "held"))
	require.NoError(t, err)
	const waiting = 3
	done := make(chan error, waiting)
	for i := range waiting {
		go func() {
			r, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: "held", Payload: 1 + i})
			if err == nil && r[0].Status != "queued" {
				err = fmt.Errorf("push answered %+v", r[0])
			}
			done <- err
		}()
	}
	harness.Eventually(t, 10*time.Second, "a push waits for the lane", func() bool { return waitingStatements(t, b) > 0 })
	during := measure(locked)
	require.Empty(t, done, "the lane is still held")
	require.NoError(t, tx.Rollback(t.Context()))
	for range waiting {
		require.NoError(t, <-done)
	}
	t.Logf("p50 %s and p99 %s before, %s and %s while one lane is locked", percentile(before, 50), percentile(before, 99), percentile(during, 50), percentile(during, 99))
	// A push that waited for the lock would take seconds; the rest is the noise of
	// a machine that runs other tests.
	require.Less(t, percentile(during, 99), 2*percentile(before, 99)+500*time.Millisecond)
	require.Less(t, percentile(during, 50), 2*percentile(before, 50)+100*time.Millisecond)
	p := b.PopPartition(t, q, "held", "")
	require.Equal(t, http.StatusOK, p.Status)
	require.ElementsMatch(t, numbers(0, 1+waiting), p.Payloads(), "each once")
}
