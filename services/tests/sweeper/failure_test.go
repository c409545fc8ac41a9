package sweeper_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// quickAttempts lets timers fail for good soon.
var quickAttempts = []string{
	"QUEEN_SWEEPER_MAX_ATTEMPTS=2", "QUEEN_SWEEPER_BACKOFF_MIN_MS=10", "QUEEN_SWEEPER_BACKOFF_MAX_MS=50", "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS=10",
}

// breakLane has every message for one lane raise an SQLSTATE.
func breakLane(t *testing.T, db *harness.Database, lane, state string) (repair func()) {
	t.Helper()
	db.Exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $f$
		BEGIN
			IF EXISTS (SELECT FROM queen.log_partitions AS p WHERE p.id = NEW.partition_id AND p.name = '`+lane+`') THEN
				RAISE EXCEPTION 'the lane is broken' USING ERRCODE = '`+state+`';
			END IF;
			RETURN NEW;
		END $f$`)
	db.Exec(t, `CREATE TRIGGER refuse BEFORE INSERT ON queen.log_segments FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	return func() { db.Exec(t, `DROP TRIGGER refuse ON queen.log_segments`) }
}

// One lane that refuses its messages for good costs the others nothing, and each of
// its timers ends among the dead letters once its attempts are used up.
func TestPoisonedLaneIsIsolated(t *testing.T) {
	t.Parallel()
	c := own(t)
	breakLane(t, c.DB, "poison", "22000")
	c.promise(t, c.backlog(t, 60, 6)...)
	poisoned := &cell{Broker: c.Broker, queue: c.queue}
	results := poisoned.promise(t, schedule(c.queue, "p1", "poison", -1000), schedule(c.queue, "p2", "poison", -900))
	s := harness.StartSweeper(t, c.DB, quickAttempts...)
	c.fired(t)
	c.requireOnce(t)
	harness.Eventually(t, patience, "both are dead", func() bool { return s.Metric(t, "queen_timers_dlq_total") == 2 })
	require.Positive(t, s.Metric(t, "queen_timers_isolations_total"))
	require.GreaterOrEqual(t, s.Metric(t, `queen_timers_fire_failures_total{class="permanent"}`), 4.0, "two attempts each")

	letters := c.DLQ(t, c.queue, "&consumerGroup=__timer__")
	require.Len(t, letters, 2)
	for i, l := range letters {
		key := []string{"p1", "p2"}[i]
		if l.TransactionID != "txn-"+key {
			key = []string{"p2", "p1"}[i]
		}
		require.Equal(t, []any{"txn-" + key, "poison", "__timer__", 2, `"` + key + `"`},
			[]any{l.TransactionID, l.Partition, l.ConsumerGroup, l.RetryCount, string(l.Data)})
		require.Equal(t, results[slices.Index([]string{"p1", "p2"}, key)]["messageId"],
			harness.Value[string](t, c.DB, `SELECT message_id::text FROM queen.log_dlq WHERE id = $1::uuid`, l.ID))
		require.Contains(t, l.ErrorMessage, "the lane is broken")
		a := c.Post(t, "/api/v1/messages/"+l.PartitionID+"/"+l.TransactionID+"/retry", `{}`)
		require.GreaterOrEqual(t, a.Status, 400, "there is nothing to replay into: %s", a)
		require.Less(t, a.Status, 500, a)
	}
	require.Len(t, c.DLQ(t, c.queue, ""), 2)
}

// One timer that cannot be read fails alone: the others of its lane are delivered.
func TestPoisonedTimerFailsAlone(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.promise(t, c.backlog(t, 30, 1)...)
	bad := schedule(c.queue, "bad", "lane-00", -500_000) // the first in its lane
	bad["payloadZstd"], bad["payload"] = true, base64.StdEncoding.EncodeToString([]byte("not compressed at all"))
	(&cell{Broker: c.Broker, queue: c.queue}).promise(t, bad)
	harness.StartSweeper(t, c.DB, quickAttempts...)
	c.requireOnce(t)
	c.requireOrder(t)
	letters := c.DLQ(t, c.queue, "")
	require.Len(t, letters, 1)
	require.Equal(t, "txn-bad", letters[0].TransactionID)
}

// Compressed payloads arrive as what was compressed.
func TestCompressedPayloads(t *testing.T) {
	t.Parallel()
	c := own(t)
	op := schedule(c.queue, "k", "lane", 0)
	// {"a":[1,2,3]} as one raw block of a zstd frame.
	frame := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 13, 13<<3 | 1, 0, 0}, `{"a":[1,2,3]}`...)
	op["payloadZstd"], op["payload"] = true, base64.StdEncoding.EncodeToString(frame)
	c.promise(t, op)
	peek := c.Get(t, timerPath(c.queue, "k")).Object(t)
	require.Equal(t, []any{true, op["payload"]}, []any{peek["payloadZstd"], peek["payload"]}, "as it is stored")
	harness.StartSweeper(t, c.DB)
	c.fired(t)
	require.Equal(t, []string{`{"a":[1,2,3]}`}, c.PopPartition(t, c.queue, "lane", "").Payloads())
}

// Failures that say nothing about a timer spend none of its attempts, however many
// there are.
func TestTransientFailuresSpendNoAttempt(t *testing.T) {
	t.Parallel()
	c := own(t)
	repair := breakLane(t, c.DB, "lane-00", "40001")
	c.promise(t, c.backlog(t, 40, 4)...)
	s := harness.StartSweeper(t, c.DB, quickAttempts...)
	harness.Eventually(t, patience, "it fails again and again", func() bool {
		return s.Metric(t, `queen_timers_fire_failures_total{class="transient"}`) > 200
	})
	require.Zero(t, harness.Value[int](t, c.DB, `SELECT max(attempts) FROM queen.log_timers`))
	repair()
	c.requireOnce(t)
}

// A schema without what a fire needs delays timers and kills none, and the fire does
// not switch itself off.
func TestMissingFireProcedureOnlyDelays(t *testing.T) {
	t.Parallel()
	c := own(t)
	const args = `(UUID[], TEXT[], TEXT[], INT[], BYTEA[], BYTEA[], TEXT[], INT[], UUID[], TIMESTAMPTZ)`
	c.DB.Exec(t, `ALTER FUNCTION queen.log_timers_fire_v1 `+args+` RENAME TO log_timers_gone`)
	c.promise(t, c.backlog(t, 20, 4)...)
	s := harness.StartSweeper(t, c.DB, quickAttempts...)
	harness.Eventually(t, patience, "more fail than the attempts of all", func() bool {
		return s.Metric(t, `queen_timers_fire_failures_total{class="configuration"}`) > 60
	})
	require.Equal(t, 20, c.pending(t))
	require.Zero(t, s.Metric(t, "queen_timers_dlq_total"))
	c.DB.Exec(t, `ALTER FUNCTION queen.log_timers_gone `+args+` RENAME TO log_timers_fire_v1`)
	c.requireOnce(t)
}

// A batch beyond the bytes of a fire becomes several, each a transaction of its own.
func TestFireIsCappedInBytes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		bytes, least, most int
	}{"by default all together": {8 << 20, 1, 1}, "a few at a time": {3000, 10, 20}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := own(t)
			var ops []object
			for i, key := range evenKeys(t, c.DB, 20) {
				op := schedule(c.queue, key, fmt.Sprintf("lane-%02d", i), -1000)
				op["payload"] = base64.StdEncoding.EncodeToString([]byte(`"` + noise(seeded(t), 1000) + `"`))
				ops = append(ops, op)
			}
			c.promise(t, ops...)
			harness.StartSweeper(t, c.DB, fmt.Sprintf("QUEEN_SWEEPER_MAX_FIRE_BYTES=%d", want.bytes))
			c.requireOnce(t)
			fires := harness.Value[int](t, c.DB, `SELECT count(DISTINCT xmin::text) FROM queen.log_segments`)
			require.GreaterOrEqual(t, fires, want.least)
			require.LessOrEqual(t, fires, want.most)
		})
	}
}

// Queues that do not exist yet are born by the fire, with the labels of their names.
func TestQueuesAreBornAtTheFire(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.queue = "billing.invoices." + c.queue
	c.promise(t, schedule(c.queue, "k", "lane", 0))
	require.False(t, c.DB.HasQueue(t, c.queue))
	harness.StartSweeper(t, c.DB)
	c.requireOnce(t)
	p := c.Discover(t, "namespace=billing&task=invoices&consumerGroup=g&subscriptionMode=all")
	require.Len(t, p.Messages, 1)
	a := c.Get(t, "/api/v1/resources/queues")
	require.Equal(t, http.StatusOK, a.Status)
	require.Contains(t, string(a.Body), c.queue)
}
