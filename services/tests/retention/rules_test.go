package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// The names that a history row gives to the rule that removed something.
const (
	byAge      = "retention"
	byConsumed = "completed_retention"
	byMaxWait  = "max_wait_time_eviction"
	byCleanup  = "__partition_deleted__"
)

// TestRules pushes the segments 0 to 5, lets groups consume, makes the segments
// up to an offset old, and runs one cycle.
func TestRules(t *testing.T) {
	t.Parallel()
	none := map[string]int64{}
	cases := map[string]struct {
		options  string
		consumed map[string]int // group -> messages
		old      int            // the highest old offset
		start    int
		removed  map[string]int64
	}{
		"nothing is configured":                           {`{}`, map[string]int{"g": 6}, 5, 0, none},
		"windows without the switch":                      {`{"retentionSeconds":3600,"completedRetentionSeconds":3600}`, map[string]int{"g": 6}, 5, 0, none},
		"the switch without a window":                     {`{"retentionEnabled":true}`, map[string]int{"g": 6}, 5, 0, none},
		"age takes what nobody has read":                  {`{"retentionEnabled":true,"retentionSeconds":3600}`, nil, 3, 4, map[string]int64{byAge: 4}},
		"age takes what a group has not read yet":         {`{"retentionEnabled":true,"retentionSeconds":3600}`, map[string]int{"g": 1}, 3, 4, map[string]int64{byAge: 4}},
		"age spares what is young":                        {`{"retentionEnabled":true,"retentionSeconds":3600}`, map[string]int{"g": 6}, -1, 0, none},
		"age takes everything":                            {`{"retentionEnabled":true,"retentionSeconds":3600}`, nil, 5, 6, map[string]int64{byAge: 6}},
		"a window beyond the age spares everything":       {`{"retentionEnabled":true,"retentionSeconds":36000000}`, nil, 5, 0, none},
		"consumed goes":                                   {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, map[string]int{"g": 6}, 3, 4, map[string]int64{byConsumed: 4}},
		"consumed and young stays":                        {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, map[string]int{"g": 6}, -1, 0, none},
		"consumed stops at the slowest group":             {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, map[string]int{"a": 6, "b": 2}, 5, 2, map[string]int64{byConsumed: 2}},
		"consumed stops at readers without a group":       {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, map[string]int{"a": 6, harness.QueueMode: 3}, 5, 3, map[string]int64{byConsumed: 3}},
		"unconsumed stays however old":                    {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, map[string]int{"g": 1}, 5, 1, map[string]int64{byConsumed: 1}},
		"what no group has popped stays":                  {`{"retentionEnabled":true,"completedRetentionSeconds":3600}`, nil, 5, 0, none},
		"both rules, age reaches further":                 {`{"retentionEnabled":true,"retentionSeconds":3600,"completedRetentionSeconds":3600}`, map[string]int{"g": 2}, 3, 4, map[string]int64{byAge: 4}},
		"both rules, consumed reaches further":            {`{"retentionEnabled":true,"retentionSeconds":36000000,"completedRetentionSeconds":3600}`, map[string]int{"g": 3}, 4, 3, map[string]int64{byConsumed: 3}},
		"both rules, nobody reads":                        {`{"retentionEnabled":true,"retentionSeconds":3600,"completedRetentionSeconds":3600}`, nil, 2, 3, map[string]int64{byAge: 3}},
		"max wait takes what nobody has read":             {`{"maxWaitTimeSeconds":3600}`, nil, 3, 4, map[string]int64{byMaxWait: 4}},
		"max wait works with the switch off":              {`{"maxWaitTimeSeconds":3600,"retentionEnabled":false,"retentionSeconds":60,"completedRetentionSeconds":60}`, map[string]int{"g": 6}, 2, 3, map[string]int64{byMaxWait: 3}},
		"max wait spares what is young":                   {`{"maxWaitTimeSeconds":3600}`, map[string]int{"g": 6}, -1, 0, none},
		"max wait after the other rules, on what remains": {`{"retentionEnabled":true,"completedRetentionSeconds":3600,"maxWaitTimeSeconds":3600}`, map[string]int{"g": 2}, 4, 5, map[string]int64{byConsumed: 2, byMaxWait: 3}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := shared(t)
			x.Configure(t, x.queue, c.options)
			x.push(t, 6)
			for group, n := range c.consumed {
				x.consume(t, group, n)
			}
			x.age(t, c.old, longAgo)
			x.cycle(t)
			x.requireStart(t, c.start)
			require.Equal(t, c.removed, x.removed(t))
			require.EqualValues(t, 5, x.marks(t).last, "offsets are never renumbered")
			require.Equal(t, numbers(c.start, 6), x.all(t, "auditor"), "what is left is what it was")
		})
	}
}

// TestSurvivorsAreNotRewritten compares the row versions of what stays.
func TestSurvivorsAreNotRewritten(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 2)
	x.together(t, 5)
	x.push(t, 2)
	x.age(t, 1, longAgo)
	versions := func() string {
		return harness.Value[string](t, x.DB, `SELECT string_agg(format('%s %s %s %s', base_offset, ctid, xmin, md5(blob)), ', ' ORDER BY base_offset)
			FROM queen.log_segments WHERE partition_id = $1 AND base_offset > 1`, x.pid(t, lane))
	}
	before := versions()
	x.cycle(t)
	x.requireStart(t, 2)
	require.Equal(t, before, versions())
}

// TestCapInsideASegmentKeepsIt commits the middle of a segment of four.
func TestCapInsideASegmentKeepsIt(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"completedRetentionSeconds":3600}`)
	x.push(t, 2)     // 0 and 1
	x.together(t, 4) // 2 to 5
	x.push(t, 1)     // 6
	x.consume(t, "g", 4)
	x.age(t, 6, longAgo)
	x.cycle(t)
	x.requireStart(t, 2)
	require.Equal(t, numbers(0, 4), x.all(t, "auditor")[:4], "the covering segment is whole")
	require.Equal(t, []event{{byConsumed, 2}}, history(t, x.DB, x.pid(t, lane)))

	x.consume(t, "g", 2) // and the auditor has read everything
	x.cycle(t)
	x.requireStart(t, 6)
	require.Equal(t, []event{{byConsumed, 2}, {byConsumed, 4}}, history(t, x.DB, x.pid(t, lane)), "frames are counted, not rows")
}

// TestSegmentLeavesWhenItsWindowHasEnded waits for real: a segment has one
// instant for all its messages and never goes before the window has passed.
func TestSegmentLeavesWhenItsWindowHasEnded(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3}`)
	x.together(t, 5)
	pid := x.pid(t, lane)
	stored := harness.Value[time.Time](t, x.DB, `SELECT created_at FROM queen.log_segments WHERE partition_id = $1`, pid)
	harness.Eventually(t, 20*time.Second, "the segment is gone", func() bool {
		x.cycle(t)
		return x.marks(t).start > 0
	})
	x.requireStart(t, 5)
	require.Equal(t, []event{{byAge, 5}}, history(t, x.DB, pid))
	removed := harness.Value[time.Time](t, x.DB, `SELECT executed_at FROM queen.retention_history WHERE partition_id = $1`, pid)
	require.GreaterOrEqual(t, removed.Sub(stored), 3*time.Second)
}

// TestAbandonedGroupHoldsTheData reads with two groups, of which one stops, and
// then deletes that one, as the administrative call does.
func TestAbandonedGroupHoldsTheData(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"completedRetentionSeconds":3600}`)
	x.push(t, 4)
	x.consume(t, "busy", 4)
	abandoned := x.lease(t, "abandoned", 1) // it never acknowledges
	x.DB.ExpireLeases(t, x.queue)
	x.age(t, 3, longAgo)
	x.cycle(t)
	x.requireStart(t, 0)
	require.Empty(t, history(t, x.DB, abandoned.PartitionID))

	x.DB.Exec(t, `DELETE FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'abandoned'`, abandoned.PartitionID)
	x.cycle(t)
	x.requireStart(t, 4)
}

// TestGroupThatHasNotSeenALaneYetLosesNothing lets a group be away when a lane
// appears that another group then consumes.
func TestGroupThatHasNotSeenALaneYetLosesNothing(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"completedRetentionSeconds":3600}`)
	x.Push(t, harness.Item{Queue: x.queue, Partition: "first", Payload: "m"})
	for _, group := range []string{"away", "here"} {
		p := x.Pop(t, x.queue, "consumerGroup="+group+"&batch=10")
		x.AckOK(t, group, p.Acks("completed")...)
	}
	x.push(t, 3)
	x.consume(t, "here", 3)
	x.age(t, 2, longAgo)
	x.cycle(t)
	x.requireStart(t, 0)
	x.consume(t, "away", 2)
	x.cycle(t)
	x.requireStart(t, 2)
}

// TestGroupThatWasAwayReadsOn leaves a group behind the watermark, by each rule
// that does not ask for it.
func TestGroupThatWasAwayReadsOn(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]string{
		"age":      `{"retentionEnabled":true,"retentionSeconds":3600}`,
		"max wait": `{"maxWaitTimeSeconds":3600}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := shared(t)
			x.Configure(t, x.queue, options)
			x.push(t, 5)
			x.consume(t, "away", 1)
			x.age(t, 2, longAgo)
			x.cycle(t)
			x.requireStart(t, 3)
			require.EqualValues(t, 0, x.DB.Committed(t, x.queue, lane, "away"), "no cursor is moved")
			p := x.Pop(t, x.queue, "consumerGroup=away&batch=10")
			require.Equal(t, numbers(3, 5), p.Payloads(), "it resumes at the next message that exists")
			x.AckOK(t, "away", p.Acks("completed")...)
			require.EqualValues(t, 4, x.DB.Committed(t, x.queue, lane, "away"))
		})
	}
}

// TestOffsetsGoOnAfterEverythingIsGone pushes into a lane that retention has
// emptied.
func TestOffsetsGoOnAfterEverythingIsGone(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	pid := x.pid(t, lane)
	x.age(t, 2, longAgo)
	x.cycle(t)
	x.requireStart(t, 3)
	x.PopPartition(t, x.queue, lane, "consumerGroup=g").RequireEmpty(t)
	x.push(t, 2)
	require.Equal(t, pid, x.pid(t, lane), "the partition is still the same")
	require.EqualValues(t, 4, x.marks(t).last)
	x.requireStart(t, 3)
	require.Equal(t, numbers(0, 2), x.all(t, "g"))
}

// TestBacklogIsSweptInBatches gives a step less than the backlog: the cycle
// calls it until it is done, one bounded transaction each.
func TestBacklogIsSweptInBatches(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 23)
	x.age(t, 20, longAgo)
	traceChanges(t, x.DB)
	x.cycle(t, "RETENTION_BATCH_SIZE=4")
	x.requireStart(t, 21)
	var swept int64
	gone := history(t, x.DB, x.pid(t, lane))
	for _, e := range gone {
		require.Equal(t, byAge, e.Type)
		require.LessOrEqual(t, e.Messages, int64(4), "a slow step makes the next ones smaller, and none is larger")
		swept += e.Messages
	}
	require.EqualValues(t, 21, swept)
	steps := changes(t, x.DB, "DELETE log_segments")
	require.Len(t, steps, len(gone))
	transactions := map[int64]bool{}
	for _, s := range steps {
		transactions[s.Transaction] = true
	}
	require.Len(t, transactions, len(gone), "every step commits by itself")
}

// TestHistoryIsOfTheSameTransaction looks at the transaction that each row comes
// from.
func TestHistoryIsOfTheSameTransaction(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 5 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%d", i), 3)
	}
	ageAll(t, x.DB, x.queue)
	traceChanges(t, x.DB)
	x.cycle(t, "RETENTION_BATCH_SIZE=2")
	deleted, noted := changes(t, x.DB, "DELETE log_segments"), changes(t, x.DB, "INSERT retention_history")
	require.Len(t, deleted, 10, "two steps for each lane")
	require.Len(t, noted, 10)
	for i := range deleted {
		require.Equal(t, deleted[i].Transaction, noted[i].Transaction)
	}
}

// TestFailedStepLeavesNeitherDeletionNorHistory refuses the history row of one
// lane: its deletion is undone with it, and the other lanes go.
func TestFailedStepLeavesNeitherDeletionNorHistory(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	x.DB.Exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	x.DB.Exec(t, `CREATE TRIGGER refuse BEFORE INSERT ON queen.retention_history FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	require.NotZero(t, runOnce(t, x.DB).Code, "a cycle that failed says so")
	x.requireStart(t, 0)
	require.Empty(t, history(t, x.DB, x.pid(t, lane)))
	x.DB.Exec(t, `DROP TRIGGER refuse ON queen.retention_history`)
	x.cycle(t)
	x.requireStart(t, 3)
}

// TestIdleCycleLeavesNoTrace runs a second cycle behind one that did its work.
func TestIdleCycleLeavesNoTrace(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600,"maxWaitTimeSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 1, longAgo)
	x.cycle(t)
	require.Equal(t, []event{{byAge, 2}}, history(t, x.DB, x.pid(t, lane)))
	x.cycle(t)
	x.requireStart(t, 2)
	require.Equal(t, []event{{byAge, 2}}, history(t, x.DB, x.pid(t, lane)))
}

// TestLanesAreSweptAscendingById looks at the order of the history.
func TestLanesAreSweptAscendingById(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 20 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%d", i), 1)
	}
	ageAll(t, x.DB, x.queue)
	x.cycle(t)
	require.True(t, harness.Value[bool](t, x.DB, `
		SELECT array_agg(h.partition_id ORDER BY h.id) = array_agg(h.partition_id ORDER BY h.partition_id) AND count(*) = 20
		FROM queen.retention_history AS h JOIN queen.log_partitions AS p ON p.id = h.partition_id
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, x.queue))
}

// TestTwoTenantsWithOneQueueNameKeepTheirOwnWindows gives another tenant a queue
// of the same name with no retention, and of it an old lane.
func TestTwoTenantsWithOneQueueNameKeepTheirOwnWindows(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	other := harness.Value[string](t, x.DB, `INSERT INTO queen.queues (tenant_id, name) VALUES (gen_random_uuid(), $1) RETURNING id::text`, x.queue)
	pid := harness.Value[string](t, x.DB, `
		WITH made AS (
			INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at, txns_start)
			VALUES ($1, $2, 0, now() - interval '100 days', 1) RETURNING id, oldest_live_at)
		INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT id, 0, 0, oldest_live_at, '\x00' FROM made RETURNING partition_id::text`, other, lane)
	x.cycle(t)
	require.EqualValues(t, 3, harness.Value[int64](t, x.DB, `SELECT p.log_start FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
		WHERE q.name = $1 AND q.tenant_id = '00000000-0000-0000-0000-000000000001'`, x.queue))
	require.Zero(t, harness.Value[int64](t, x.DB, `SELECT log_start FROM queen.log_partitions WHERE id = $1`, pid))

	x.DB.Exec(t, `UPDATE queen.queues SET max_wait_time_seconds = 60 WHERE id = $1`, other)
	x.cycle(t)
	require.Equal(t, []event{{byMaxWait, 1}}, history(t, x.DB, pid))
}

// TestConfigureReplacesTheRetentionOptions leaves the switch out the second time.
func TestConfigureReplacesTheRetentionOptions(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	x.Configure(t, x.queue, `{"retentionSeconds":3600}`)
	x.age(t, 2, longAgo)
	x.cycle(t)
	x.requireStart(t, 0)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.cycle(t)
	x.requireStart(t, 3)
}

// TestRetentionIsOffUnlessAskedFor reads the options of queues that nobody gave
// any, and of one with all that the page of retention shows.
func TestRetentionIsOffUnlessAskedFor(t *testing.T) {
	t.Parallel()
	x := shared(t)
	off := map[string]any{"retentionEnabled": false, "retentionSeconds": 0.0, "completedRetentionSeconds": 0.0, "maxWaitTimeSeconds": 0.0}
	x.push(t, 1)
	requireOptions(t, x, off)
	x.Configure(t, x.queue, `{"leaseTime":30}`)
	requireOptions(t, x, off)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":604800,"completedRetentionSeconds":3600,"maxWaitTimeSeconds":0,
		"dedupWindowSeconds":3600,"leaseTime":300,"retryLimit":3}`)
	requireOptions(t, x, map[string]any{"retentionEnabled": true, "retentionSeconds": 604800.0, "completedRetentionSeconds": 3600.0,
		"maxWaitTimeSeconds": 0.0, "dedupWindowSeconds": 3600.0, "leaseTime": 300.0, "retryLimit": 3.0})
}
