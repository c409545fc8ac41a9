package boards_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// push stores messages, each in a lane of its own.
func (i *installation) push(t *testing.T, queue string, n int) {
	t.Helper()
	items := make([]harness.Item, n)
	for k := range items {
		items[k] = harness.Item{Queue: queue, Partition: fmt.Sprint(k), Payload: map[string]int{"n": k}}
	}
	i.PushQueued(t, items...)
}

// consume takes everything of a queue, and acknowledges it with a status.
func (i *installation) consume(t *testing.T, queue, status string) {
	t.Helper()
	for {
		got := i.Pop(t, queue, "consumerGroup=readers&batch=100&partitions=50")
		if len(got.Messages) == 0 {
			return
		}
		i.Ack(t, "readers", got.Acks(status)...)
	}
}

func TestASlowConsumerIsTold(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.push(t, "parcels", 10)
	i.consume(t, "parcels", "completed")
	i.awaitCalm(t)

	i.push(t, "parcels", 10)
	// What is not consumed gets old; the test does not wait for that.
	i.DB.Exec(t, `UPDATE queen.log_segments SET created_at = created_at - interval '90 seconds'`)
	i.DB.Exec(t, `UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - interval '90 seconds'`)
	i.awaitAlert(t, "QueenConsumerLag")
}

func TestAPoisonMessageIsTold(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.Configure(t, "orders", `{"retryLimit":1,"dlqAfterMaxRetries":true}`)
	i.push(t, "orders", 5)
	i.consume(t, "orders", "completed")
	i.awaitCalm(t)

	i.push(t, "orders", 1)
	i.consume(t, "orders", "failed")
	i.awaitAlert(t, "QueenDeadLetters")
}

// A server that is out of disk, or a standby, refuses writes and answers everything else.
func TestAServerThatRefusesWritesIsTold(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.push(t, "orders", 1)
	i.consume(t, "orders", "completed")
	i.awaitCalm(t)

	i.DB.Exec(t, `ALTER TABLE queen.log_segments ADD CONSTRAINT full_disk CHECK (false) NOT VALID`)
	ctx, cancel := context.WithCancel(t.Context())
	var client sync.WaitGroup
	defer client.Wait()
	defer cancel()
	client.Go(func() {
		for ctx.Err() == nil {
			_, _ = i.TryPush(ctx, harness.Item{Queue: "orders", Payload: 1})
		}
	})
	i.awaitAlert(t, "QueenWritesFail")
}

func TestRetentionThatIsSwitchedOffIsTold(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.Configure(t, "logs", `{"retentionEnabled":true,"retentionSeconds":3600}`)
	i.awaitCalm(t)

	i.Configure(t, "logs", `{"retentionSeconds":7200}`) // replaces every option
	i.awaitAlert(t, "QueenRetentionSwitchedOff")
}

// A maintainer that is told to make a cycle once a day.
func TestRetentionThatHardlyRunsIsTold(t *testing.T) {
	t.Parallel()
	if !harness.Long() {
		t.Skip("takes more than a minute; QUEEN_TEST_LONG=1 runs it")
	}
	i := install(t)
	i.awaitCalm(t)
	i.maintainer.Terminate(t)
	lazy := harness.StartMaintainer(t, i.DB, "STATS_INTERVAL_MS=1000", "RETENTION_INTERVAL=86400000")
	i.watch(target{"queen-maintainer", "lazy", lazy.URL + "/metrics"})
	harness.Eventually(t, soon, "nothing is absent any more", func() bool {
		return len(i.ask(`queen_stats_age_seconds{instance="lazy"}`)) > 0 && len(i.ask(`queen_retention_since_success_seconds{instance="lazy"}`)) > 0
	})
	i.awaitAlert(t, "QueenRetentionMissing")
}

// A lock that somebody else holds has every replica believe that another one works.
func TestRetentionThatIsLockedOutIsTold(t *testing.T) {
	t.Parallel()
	if !harness.Long() {
		t.Skip("takes more than two minutes; QUEEN_TEST_LONG=1 runs it")
	}
	i := install(t)
	i.awaitCalm(t)
	conn, err := i.DB.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock(737001)`)
	require.NoError(t, err)
	// The cycles before have to be out of sight.
	harness.Eventually(t, soon+time.Minute, "retention is missed", func() bool { return len(i.ask(i.alerts["QueenRetentionMissing"])) > 0 })
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_unlock(737001)`)
	require.NoError(t, err)
	harness.Eventually(t, soon, "a cycle is made", func() bool { return len(i.ask(i.alerts["QueenRetentionMissing"])) == 0 })
}

func TestASweeperThatIsDownIsTold(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.awaitCalm(t)
	i.sweeper.Kill()
	i.awaitAlert(t, "QueenSweeperDown")
}

func TestAPoolThatIsTooSmallIsTold(t *testing.T) {
	t.Parallel()
	i := install(t, "DB_POOL_SIZE=2")
	i.awaitCalm(t)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	payload := map[string]string{"text": strings.Repeat("x", 200)}
	for c := range 64 {
		clients.Go(func() {
			queue := fmt.Sprintf("load-%d", c)
			for ctx.Err() == nil {
				// Refusals are part of the fault.
				_, _ = i.TryPush(ctx, harness.Item{Queue: queue, Payload: payload})
				_, _ = i.TryPop(ctx, harness.PopPath(queue, "autoAck=true"))
			}
		})
	}
	i.awaitAlert(t, "QueenPoolExhausted", "QueenRequestsFail", "QueenWritesFail", "QueenConsumerLag", "QueenCommitSlow")
}
