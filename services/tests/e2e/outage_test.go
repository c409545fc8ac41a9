package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// lockTable holds an exclusive lock on a table until the returned function is
// called, so that every statement on it waits.
func lockTable(t *testing.T, b *harness.Broker, table string) (release func()) {
	t.Helper()
	tx, err := b.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE queen."+table+" IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	var once sync.Once
	release = func() { once.Do(func() { _ = tx.Rollback(context.Background()) }) }
	t.Cleanup(release)
	return release
}

// waitingStatements counts what still waits for a lock in the database.
func waitingStatements(t *testing.T, b *harness.Broker) int {
	t.Helper()
	return harness.Value[int](t, b.DB, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'`)
}

func TestStatementDeadline(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_STMT_TIMEOUT_MS=1000", "QUEEN_PUSH_DEADLINE_MS=2000")
	q := queueName(t)
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=1")

	release := lockTable(t, b, "log_consumers")
	for _, path := range []string{harness.PopPath(q, "consumerGroup=g"), harness.PopPartitionPath(q, "p", "consumerGroup=g")} {
		a := b.Get(t, path)
		require.Equal(t, http.StatusInternalServerError, a.Status, a)
		require.JSONEq(t, `{"error":"pop failed"}`, string(a.Body))
	}
	r := b.Ack(t, "", p.Acks("completed")...)
	require.False(t, r[0].Success)
	require.NotEmpty(t, r[0].ErrorText())
	a := b.Post(t, "/api/v1/lease/"+p.LeaseID+"/extend", `{}`)
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Regexp(t, `^renew failed: `, a.ErrorText(t))
	harness.Eventually(t, 10*time.Second, "the server is told to cancel", func() bool { return waitingStatements(t, b) == 0 })
	release()
	b.AckOK(t, "", p.Acks("completed")...)
	require.Equal(t, []string{"1"}, b.Pop(t, q, "").Payloads())

	release = lockTable(t, b, "log_partitions")
	results, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: "p", TransactionID: "late", Payload: 9})
	require.NoError(t, err)
	require.Equal(t, "failed", results[0].Status)
	require.NotEmpty(t, results[0].Error)
	harness.Eventually(t, 10*time.Second, "the server is told to cancel", func() bool { return waitingStatements(t, b) == 0 })
	release()
	b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "late", Payload: 9})

	release = lockTable(t, b, "queues")
	a = b.Post(t, "/api/v1/configure", `{"queue":"`+q+`"}`)
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Regexp(t, `^configure failed: `, a.ErrorText(t))
	release()
	b.Configure(t, q, `{}`)
}

func TestPushWaitsOutAShortLock(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_STMT_TIMEOUT_MS=1000")
	q := queueName(t)
	b.PushEach(t, q, "p", 1)
	release := lockTable(t, b, "log_partitions")
	done := make(chan error, 1)
	go func() {
		r, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: "p", TransactionID: "late", Payload: 1})
		if err == nil && r[0].Status != "queued" {
			err = fmt.Errorf("push answered %+v", r[0])
		}
		done <- err
	}()
	harness.Eventually(t, 10*time.Second, "the push waits", func() bool { return waitingStatements(t, b) > 0 })
	harness.Eventually(t, 10*time.Second, "its first try is over", func() bool { return waitingStatements(t, b) == 0 })
	release()
	require.NoError(t, <-done, "one statement deadline is not the push's")
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "").Payloads(), "stored once")
}

func TestCutConnectionsAreSurvived(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	const pushers, each = 6, 40
	var wg sync.WaitGroup
	for w := range pushers {
		wg.Go(func() {
			for i := range each {
				r, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: fmt.Sprint(w), TransactionID: fmt.Sprintf("t-%d", i), Payload: i})
				if err != nil || (r[0].Status != "queued" && r[0].Status != "duplicate") {
					t.Errorf("pusher %d, message %d: %v %+v", w, i, err, r)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for range 8 {
		select {
		case <-done:
		case <-time.After(60 * time.Millisecond):
			b.DB.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND query LIKE '%queen.%' AND backend_type = 'client backend'`)
		}
	}
	<-done
	for w := range pushers {
		got := drain(t, b, harness.PopPartitionPath(q, fmt.Sprint(w), "batch=1000"))
		require.Equal(t, numbers(0, each), got, "each once and in order")
	}
}

func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=2000", "QUEEN_PUSH_DEADLINE_MS=2500"}})
	b, server := s.Broker, s.Server
	q := queueName(t)
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=1")
	require.NoError(t, server.Stop(t.Context()))

	a := b.Get(t, "/health")
	require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
	health := a.Object(t)
	requireKeys(t, health, "status", "database", "engine", "version")
	require.Equal(t, []any{"unhealthy", "disconnected"}, []any{health["status"], health["database"]})

	r := b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 7}, harness.Item{Queue: q + "-2", Payload: 8})
	for i, item := range r {
		require.Equal(t, "failed", item.Status, "no spool is configured")
		require.NotEmpty(t, item.Error)
		require.Equal(t, i, item.Index)
	}
	for _, path := range []string{harness.PopPath(q, ""), harness.PopPartitionPath(q, "p", ""), "/api/v1/pop?namespace=" + q} {
		a = b.Get(t, path)
		require.Equal(t, http.StatusInternalServerError, a.Status, a)
		require.Contains(t, []string{"pool", "pop failed"}, a.ErrorText(t))
	}
	ack := b.Ack(t, "", p.Acks("completed")...)[0]
	require.False(t, ack.Success)
	require.NotEmpty(t, ack.ErrorText())
	for path, body := range map[string]string{
		"/api/v1/lease/" + p.LeaseID + "/extend": `{}`,
		"/api/v1/configure":                      `{"queue":"` + q + `"}`,
	} {
		a = b.Post(t, path, body)
		require.Equal(t, http.StatusInternalServerError, a.Status, a)
		require.NotEmpty(t, a.ErrorText(t))
	}
	a = b.Post(t, "/api/v1/transaction", `{"operations":[{"type":"push","queue":"`+q+`","payload":1}]}`)
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Equal(t, http.StatusBadRequest, b.Post(t, "/api/v1/push", `{`).Status, "what needs no database is still answered")

	require.NoError(t, server.Restart(t.Context(), "fast"))
	harness.Eventually(t, 30*time.Second, "healthy again", func() bool { return b.Get(t, "/health").Status == http.StatusOK })
	b.DB.Pool.Reset()
	b.AckOK(t, "", p.Acks("completed")...)
	b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 7})
	require.Equal(t, []string{"1", "7"}, b.Pop(t, q, "").Payloads(), "what failed was not stored")
}

func TestParkedPollsOutliveAnOutage(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=2000"}})
	b, server := s.Broker, s.Server
	q := queueName(t)
	b.RequireNone(t, harness.PopPath(q, ""))
	w := park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=50000"))
	w.requireParked(t, 300*time.Millisecond)
	require.NoError(t, server.Stop(t.Context()))
	require.NoError(t, server.Restart(t.Context(), "fast"))
	harness.Eventually(t, 30*time.Second, "healthy again", func() bool { return b.Get(t, "/health").Status == http.StatusOK })
	b.PushEach(t, q, "", 1)
	<-w.done
	if w.err != nil { // an outage may also be reported; the client polls again
		require.Equal(t, http.StatusInternalServerError, w.p.Status)
		w = park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=50000"))
	}
	require.Equal(t, numbers(0, 1), w.answer(t).Payloads())
}

func TestTwoBrokersBootAtOnce(t *testing.T) {
	t.Parallel()
	b := harness.StartSetup(t, harness.Setup{Brokers: 1, Owner: true}).Broker
	b.Terminate(t)
	b.DB.Exec(t, `DROP SCHEMA queen CASCADE`)
	peer := b.Sibling(t) // installs the schema again
	b.Restart(t)
	q := queueName(t)
	b.PushEach(t, q, "", 1)
	require.Len(t, peer.Pop(t, q, "").Messages, 1)
}

func TestMigrateAppliesAndExits(t *testing.T) {
	t.Parallel()
	b := harness.StartSetup(t, harness.Setup{Brokers: 1, Owner: true}).Broker
	b.Terminate(t)
	b.DB.Exec(t, `DROP SCHEMA queen CASCADE`)
	out, err := b.Run(t, nil, "migrate")
	require.NoError(t, err, out)
	require.Positive(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.schema_files`))
	before := harness.Value[time.Time](t, b.DB, `SELECT max(applied_at) FROM queen.schema_files`)
	out, err = b.Run(t, nil, "migrate")
	require.NoError(t, err, out)
	require.Equal(t, before, harness.Value[time.Time](t, b.DB, `SELECT max(applied_at) FROM queen.schema_files`), "an identical boot runs nothing")
}

func TestBadConfigurationIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	out, err := b.Run(t, []string{"PORT=seventy", "DB_POOL_SIZE=-1", "QUEEN_STMT_TIMEOUT_MS=100001", "DEFAULT_TIMEOUT=soon"})
	require.Error(t, err)
	for _, name := range []string{"PORT", "DB_POOL_SIZE", "QUEEN_STMT_TIMEOUT_MS", "DEFAULT_TIMEOUT", "seventy"} {
		require.Contains(t, out, name, "every problem is named at once")
	}
	require.NotContains(t, out, "panic")
}

func TestPasswordNeverReachesTheLog(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	out, err := b.Run(t, []string{"PG_PASSWORD=tell-nobody", "PG_HOST=127.0.0.1", "PG_PORT=1", "QUEEN_BOOT_DB_WAIT_MS=300"})
	require.Error(t, err, "gives up when the database stays away")
	require.NotContains(t, out, "tell-nobody")
}
