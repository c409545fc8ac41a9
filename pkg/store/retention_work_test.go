package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func (b *keepBench) plan() store.Plan {
	b.t.Helper()
	p, err := b.m.Plan(b.t.Context())
	require.NoError(b.t, err)
	return p
}

// policy configures a queue with retention options in seconds.
func (b *keepBench) policy(queue string, enabled bool, all, completed, maxWait, dedup int) {
	b.t.Helper()
	b.configure(queue, fmt.Sprintf(`{"retentionEnabled": %t, "retentionSeconds": %d, "completedRetentionSeconds": %d,
		"maxWaitTimeSeconds": %d, "dedupWindowSeconds": %d}`, enabled, all, completed, maxWait, dedup), false)
}

// The cutoffs are the policy at one instant; what is not asked for is nil.
func TestCutoffsOfThePlan(t *testing.T) {
	t.Parallel()
	const off = -1
	cases := map[string]struct {
		enabled                     bool
		all, completed, wait, dedup int
		want                        [4]int // seconds before now: all, completed, txns, max wait
	}{
		"nothing asked for":           {dedup: 3600, want: [4]int{off, off, 3600, off}},
		"windows without the switch":  {all: 100, completed: 100, want: [4]int{off, off, 900, off}},
		"the switch without a window": {enabled: true, want: [4]int{off, off, 900, off}},
		"age":                         {enabled: true, all: 100, want: [4]int{100, off, 900, off}},
		"consumed":                    {enabled: true, completed: 100, want: [4]int{off, 100, 900, off}},
		"both":                        {enabled: true, all: 200, completed: 100, want: [4]int{200, 100, 900, off}},
		"wait without the switch":     {wait: 10, want: [4]int{off, off, 900, 10}},
		"sidecar below the floor":     {dedup: 899, want: [4]int{off, off, 900, off}},
		"sidecar above the floor":     {dedup: 901, want: [4]int{off, off, 901, off}},
		"sidecar of late acks":        {completed: 5000, dedup: 3600, want: [4]int{off, off, 5000, off}},
	}
	b := setupKeep(t)
	for name, tc := range cases {
		b.policy(name, tc.enabled, tc.all, tc.completed, tc.wait, tc.dedup)
		b.fill(name, "p", 1, 3*time.Hour)
	}
	p := b.plan()
	require.Len(t, p.Queues, len(cases), "every sidecar is due")
	require.True(t, slices.IsSortedFunc(p.Queues, func(x, y store.QueuePlan) int { return slices.Compare(x.Queue[:], y.Queue[:]) }))
	for _, q := range p.Queues {
		tc := cases[q.Name]
		for i, cutoff := range []*time.Time{q.All, q.Completed, q.Txns, q.MaxWait} {
			if tc.want[i] == off {
				require.Nil(t, cutoff, "%s: cutoff %d", q.Name, i)
				continue
			}
			require.Equal(t, time.Duration(tc.want[i])*time.Second, p.Now.Sub(*cutoff), "%s: cutoff %d", q.Name, i)
		}
		require.Equal(t, tc.want[0] != off || tc.want[1] != off, q.LiveDue, q.Name)
		require.Equal(t, tc.want[3] != off, q.EvictDue, q.Name)
		require.True(t, q.TxnsDue, q.Name)
	}
}

// Only queues with something due are in the plan, by how much is told.
func TestThePlanNamesWhatIsDue(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	require.Empty(t, b.plan().Queues)
	require.WithinDuration(t, time.Now(), b.plan().Now, time.Minute)
	b.policy("q", true, 3600, 0, 0, 7200)
	b.fill("q", "p", 1, 3590*time.Second)
	require.Empty(t, b.plan().Queues, "not old enough")
	b.fill("q", "p2", 1, 3700*time.Second)
	q := b.plan().Queues
	require.Len(t, q, 1)
	require.True(t, q[0].LiveDue)
	require.False(t, q[0].TxnsDue)
	require.InDelta(t, 100, q[0].OldestDue.Seconds(), 30)
	b.fill("q", "p3", 1, 7300*time.Second)
	require.True(t, b.plan().Queues[0].TxnsDue)

	b.policy("q", true, 0, 0, 0, 7200)
	q = b.plan().Queues
	require.Len(t, q, 1)
	require.False(t, q[0].LiveDue)
	require.Zero(t, q[0].OldestDue, "sidecar rows are nobody's backlog")
}

// Two tenants may use one name: each lane has the cutoffs of its own queue.
func TestThePlanJoinsByIdAlone(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	other := uuid.New()
	b.policy("same", true, 60, 0, 0, 3600)
	_, err := b.store.Configure(t.Context(), other, "same", []byte(`{"retentionEnabled": false}`), false)
	require.NoError(t, err)
	mine := b.fill("same", "p", 1, time.Minute*10)
	seg := fresh("same", "p", 1)
	seg.Tenant = other
	theirs := b.queued(seg).PartitionID
	b.exec(`UPDATE queen.log_segments SET created_at = now() - interval '10 minutes'`)
	b.mark(theirs)
	p := b.plan()
	require.Len(t, p.Queues, 1)
	page, err := b.m.RetentionPage(t.Context(), p.Queues[0], store.LaneKey{}, store.LaneKey{}, 10)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{mine}, page.Due)

	var text string
	b.one([]any{&text}, `SELECT pg_get_functiondef('queen.log_retention_plan_v1'::regproc)`)
	require.Contains(t, text, "p.queue_id = q.id")
	require.NotContains(t, text, "tenant")
	require.NotContains(t, text, "p.name")
}

// held is a queue of lanes whose ages in minutes are 10 * (i + 1).
func (b *keepBench) held(lanes int) (store.QueuePlan, []uuid.UUID) {
	b.policy("q", true, 0, 60, 0, 3600)
	ids := make([]uuid.UUID, lanes)
	for i := range ids {
		ids[i] = b.fill("q", fmt.Sprint("lane", i), 10, time.Duration(i+1)*10*time.Minute)
	}
	return b.plan().Queues[0], ids
}

// A lane is held when rule 1 does not reach it and no group has read of its first
// segment, or not all have.
func TestHeldLanesAreExaminedAndNotDue(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	q, ids := b.held(6)
	b.cursor(ids[1], "g", -1)
	b.cursor(ids[2], "g", 0) // a step will find nothing: the first segment is not done
	b.cursor(ids[3], "g", 9)
	b.cursor(ids[4], "g", 9)
	b.cursor(ids[4], "slow", -1)
	page := func(q store.QueuePlan) store.Page {
		p, err := b.m.RetentionPage(t.Context(), q, store.LaneKey{}, store.LaneKey{}, 10)
		require.NoError(t, err)
		return p
	}
	p := page(q)
	require.Equal(t, sorted(ids[2], ids[3]), p.Due)
	require.Equal(t, 6, p.Examined)
	require.Equal(t, ids[0], p.Last.ID, "the youngest is last")

	q.All = ago(55 * time.Minute)
	require.Equal(t, sorted(ids[2], ids[3], ids[5]), page(q).Due, "rule 1 holds nothing")
	q.All, q.Completed = ago(35*time.Minute), ago(45*time.Minute)
	p = page(q)
	require.Equal(t, sorted(ids[3], ids[4], ids[5]), p.Due)
	require.Equal(t, 3, p.Examined, "the later cutoff ends the page")
}

func sorted(ids ...uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, func(x, y uuid.UUID) int { return slices.Compare(x[:], y[:]) })
	return ids
}

// Pages go from the oldest to the youngest, each lane once, up to a key if asked.
func TestPagesFollowEachOther(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	q, ids := b.held(5)
	// Lanes of one instant are told apart by their ids.
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = now() - interval '1 day', oldest_txn_at = now() - interval '1 day' WHERE id <> $1`, ids[0])
	q.All, q.MaxWait = ago(time.Minute), ago(time.Minute)
	pages := map[string]func(after store.LaneKey) (store.Page, error){
		"retention": func(after store.LaneKey) (store.Page, error) {
			return b.m.RetentionPage(t.Context(), q, after, store.LaneKey{}, 2)
		},
		"eviction": func(after store.LaneKey) (store.Page, error) { return b.m.EvictPage(t.Context(), q, after, 2) },
		"sidecar": func(after store.LaneKey) (store.Page, error) {
			all := q
			all.Txns = ago(time.Minute)
			return b.m.TxnsPage(t.Context(), all, after, 2)
		},
	}
	want := append(sorted(slices.Clone(ids[1:])...), ids[0])
	for name, next := range pages {
		var seen []uuid.UUID
		var key, third store.LaneKey
		for n := range 3 {
			p, err := next(key)
			require.NoError(t, err)
			require.Equal(t, min(2, 5-2*n), p.Examined, name)
			require.Equal(t, want[2*n:2*n+p.Examined], p.Due, name)
			seen, key = append(seen, p.Due...), p.Last
			if n == 1 {
				third = key
			}
		}
		require.Equal(t, want, seen, name)
		p, err := next(key)
		require.NoError(t, err)
		require.Equal(t, store.Page{Due: []uuid.UUID{}}, p, "%s: behind the end", name)
		if name == "retention" {
			p, err = b.m.RetentionPage(t.Context(), q, store.LaneKey{}, third, 10)
			require.NoError(t, err)
			require.Equal(t, 4, p.Examined, "up to the key and with it")
			require.Equal(t, third, p.Last)
		}
	}
}

func TestTheNextEviction(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	next := func() *time.Duration {
		d, err := b.m.NextEviction(t.Context())
		require.NoError(t, err)
		return d
	}
	b.fill("plain", "p", 1, time.Hour)
	require.Nil(t, next(), "no queue has a maximum")
	b.policy("empty", false, 0, 0, 10, 3600)
	require.Nil(t, next(), "and nothing waits in this one")
	b.policy("q", false, 0, 0, 3600, 3600)
	b.fill("q", "p", 1, 50*time.Minute)
	require.InDelta(t, 600, next().Seconds(), 60)
	b.fill("q", "older", 1, 2*time.Hour)
	require.Zero(t, *next())
}

// Whatever tables looked like when the plans were made: the work list reads no lane
// that is not due and no segment, and a step little more than it deletes. A stale
// backlog is so read once, not once for each step.
func TestMaintenanceReadsLittleMoreThanItDeletes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.policy("q", true, 3600, 60, 60, 3600)
	pid := b.fill("q", "deep", 1, time.Minute)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(context.WithoutCancel(t.Context())) }()
	queue := `(SELECT id FROM queen.queues WHERE name = 'q')`
	lane := "'" + pid.String() + "'"
	calls := []struct {
		name, call                      string
		lanes, segments, sidecar, toast int64
	}{
		{"plan", `SELECT count(*) FROM queen.log_retention_plan_v1()`, 2, 0, 0, 0}, // the first of each index
		{"next eviction", `SELECT queen.log_next_eviction_v1()`, 1, 0, 0, 0},
		{"page of held lanes", `SELECT queen.log_retention_page_v1(` + queue + `, NULL, now(), 'epoch', '00000000-0000-0000-0000-000000000000', NULL, NULL, 100)`, 110, 0, 0, 0},
		{"page of sidecars", `SELECT queen.log_txns_page_v1(` + queue + `, now(), 'epoch', '00000000-0000-0000-0000-000000000000', 100)`, 110, 0, 0, 0},
		{"walk", `SELECT queen.log_watermark_walk_step_v1('00000000-0000-0000-0000-000000000000', 100)`, 110, 0, 0, 0},
		{"deep walk", `SELECT queen.log_watermark_walk_step_v1('00000000-0000-0000-0000-000000000000', 100, TRUE)`, 110, 110, 110, 0},
		{"cleanup", `SELECT queen.log_partition_cleanup_step_v1(now() - interval '1 day', 100, '-infinity')`, 10, 0, 0, 0},
		// Its segments are read by the walk (twice), the pick and the delete.
		{"step of rule 1", `SELECT queen.log_retention_step_v1(` + lane + `, now(), NULL, 10)`, 10, 4*11 + 5, 0, 10*3 + 5},
		{"step of rule 2", `SELECT queen.log_retention_step_v1(` + lane + `, NULL, now(), 10)`, 10, 4*11 + 5, 0, 10*3 + 5},
		{"step without anything due", `SELECT queen.log_retention_step_v1(` + lane + `, 'epoch', 'epoch', 10)`, 10, 5, 0, 0},
		{"sidecar step", `SELECT queen.log_txns_purge_step_v1(` + lane + `, now(), 10)`, 10, 0, 4*11 + 5, 0},
		{"sidecar step without anything due", `SELECT queen.log_txns_purge_step_v1(` + lane + `, 'epoch', 10)`, 10, 0, 5, 0},
		{"forecast", `SELECT queen.log_retention_forecast_v1(` + lane + `, NULL, now() - interval '3000 s')`, 10, 3 * 1010, 0, 0},
	}
	b.exec(`ANALYZE`)
	for _, c := range calls {
		for range 6 { // plans are made on empty tables
			b.readsOfCall(session, c.call)
		}
	}
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at, oldest_txn_at)
		SELECT ` + queue + `, 'idle' || g, 9, now(), now() FROM generate_series(1, 3000) AS g`)
	b.exec(`INSERT INTO queen.log_segments SELECT id, 0, 9, oldest_live_at, '1' FROM queen.log_partitions WHERE name LIKE 'idle%'`)
	b.exec(`INSERT INTO queen.log_txns SELECT id, 0, 9, oldest_live_at, '1' FROM queen.log_partitions WHERE name LIKE 'idle%'`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group) SELECT id, 'abandoned' FROM queen.log_partitions WHERE name LIKE 'idle%'`)
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1`, pid)
	b.exec(`DELETE FROM queen.log_txns WHERE partition_id = $1`, pid)
	// A blob of three chunks out of line.
	b.exec(`INSERT INTO queen.log_segments SELECT $1, g, g, now() - (4000 - g) * interval '1 s', convert_to(repeat('x', 5000), 'UTF8') FROM generate_series(0, 2999) AS g`, pid)
	b.exec(`INSERT INTO queen.log_txns SELECT $1, g, g, now() - (4000 - g) * interval '1 s', '1' FROM generate_series(0, 2999) AS g`, pid)
	b.exec(`UPDATE queen.log_partitions SET last_offset = 2999, oldest_live_at = now() - interval '50 s', oldest_txn_at = now() - interval '50 s' WHERE id = $1`, pid)
	b.cursor(pid, "g", 2999)
	for _, c := range calls {
		got := b.readsOfCall(session, c.call)
		require.LessOrEqual(t, got["log_partitions"].rows, c.lanes, "%s: lanes", c.name)
		require.LessOrEqual(t, got["log_segments"].rows, c.segments, "%s: segments", c.name)
		require.LessOrEqual(t, got["log_segments"].chunks, c.toast, "%s: chunks", c.name)
		require.LessOrEqual(t, got["log_txns"].rows, c.sidecar, "%s: sidecar rows", c.name)
		for table, r := range got {
			require.Zero(t, r.scans, "%s: sequential scans of %s", c.name, table)
		}
	}
}

// readsOfCall is what a call reads of each table. It is undone.
func (b *keepBench) readsOfCall(session *pgx.Conn, call string) map[string]reads {
	b.t.Helper()
	ctx := b.t.Context()
	tx, err := session.Begin(ctx)
	require.NoError(b.t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	tables := []string{"log_partitions", "log_segments", "log_txns", "log_consumers"}
	all := func() map[string]reads {
		m := map[string]reads{}
		for _, table := range tables {
			m[table], err = readsOf(ctx, tx, table)
			require.NoError(b.t, err)
		}
		return m
	}
	before := all()
	_, err = tx.Exec(ctx, call)
	require.NoError(b.t, err, call)
	after := all()
	for _, table := range tables {
		after[table] = reads{
			scans: after[table].scans - before[table].scans, rows: after[table].rows - before[table].rows,
			chunks: after[table].chunks - before[table].chunks,
		}
	}
	return after
}

// A group that reads the queue holds a lane from before it first saw it, as far as
// its subscription reaches back; one that left nothing but a record holds nothing.
func TestAGroupThatWasNotHereYetHolds(t *testing.T) {
	t.Parallel()
	const record = `INSERT INTO queen.consumer_groups_metadata (tenant_id, consumer_group, queue_id, namespace, subscription_mode, subscription_timestamp) `
	cases := map[string]struct {
		record string // of the group "away"; $1 is the queue
		reads  bool   // it has a cursor on another lane
		goes   int64  // segments
	}{
		"subscribed to everything":      {record + `SELECT tenant_id, 'away', id, '', 'all', 'epoch' FROM queen.queues WHERE name = $1`, true, 0},
		"subscribed in between":         {record + `SELECT tenant_id, 'away', id, '', 'timestamp', now() - interval '150 minutes' FROM queen.queues WHERE name = $1`, true, 1},
		"subscribed after all":          {record + `SELECT tenant_id, 'away', id, '', 'new', now() FROM queen.queues WHERE name = $1`, true, 3},
		"registered for the namespace":  {record + `SELECT tenant_id, 'away', NULL, namespace, 'all', 'epoch' FROM queen.queues WHERE name = $1`, true, 0},
		"registered for another one":    {record + `SELECT tenant_id, 'away', NULL, 'elsewhere', 'all', 'epoch' FROM queen.queues WHERE name = $1`, true, 3},
		"its own record decides":        {record + `SELECT tenant_id, 'away', id, '', 'new', now() FROM queen.queues WHERE name = $1 UNION ALL SELECT tenant_id, 'away', NULL, namespace, 'all', 'epoch' FROM queen.queues WHERE name = $1`, true, 3},
		"its cursors were deleted":      {record + `SELECT tenant_id, 'away', id, '', 'all', 'epoch' FROM queen.queues WHERE name = $1`, false, 3},
		"it is a reader without record": {`SELECT 1 FROM queen.queues WHERE name = $1`, true, 3},
	}
	b := setupKeep(t)
	n := 0
	for name, tc := range cases {
		n++
		queue := fmt.Sprintf("q%d", n)
		pid := b.fill(queue, "new", 10, 3*time.Hour, 2*time.Hour, 2*time.Hour)
		b.cursor(pid, "here", 29)
		old := b.fill(queue, "old", 10, time.Minute)
		if tc.reads {
			b.cursor(old, "away", 9)
		}
		b.policy(queue, true, 0, 3600, 0, 3600)
		b.exec(`UPDATE queen.queues SET namespace = name WHERE name = $1`, queue)
		b.exec(tc.record, queue)

		var q store.QueuePlan
		for _, q = range b.plan().Queues {
			if q.Name == queue {
				break
			}
		}
		page, err := b.m.RetentionPage(t.Context(), q, store.LaneKey{}, store.LaneKey{}, 10)
		require.NoError(t, err)
		require.Equal(t, 1, page.Examined, name)
		require.Equal(t, tc.goes > 0, len(page.Due) > 0, name)
		require.Equal(t, tc.goes, b.step(pid, nil, q.Completed, 10).Deleted, name)
	}
}

// Reads without a group come first in nobody's view: they want everything.
func TestReadersWithoutAGroupHoldNewLanes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "new", 10, 3*time.Hour)
	b.cursor(pid, "here", 9)
	b.cursor(b.fill("q", "old", 10, time.Minute), "__QUEUE_MODE__", 9)
	b.exec(`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
		SELECT '__QUEUE_MODE__', id, 'all', now() FROM queen.queues WHERE name = 'q'`)
	require.Zero(t, b.step(pid, nil, ago(time.Hour), 10).Deleted)
	b.cursor(pid, "__QUEUE_MODE__", 9)
	require.EqualValues(t, 1, b.step(pid, nil, ago(time.Hour), 10).Deleted)
}

// A watermark that only a hand can have written must not stop the others' work.
func TestAnInfiniteWatermarkIsWorkedOff(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, 3*time.Hour, time.Minute)
	b.policy("q", true, 3600, 0, 3600, 3600)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = '-infinity', oldest_txn_at = '-infinity' WHERE id = $1`, pid)
	q := b.plan().Queues[0]
	require.True(t, q.LiveDue && q.TxnsDue && q.EvictDue)
	next, err := b.m.NextEviction(t.Context())
	require.NoError(t, err)
	require.Zero(t, *next)
	for _, read := range []func() (store.Page, error){
		func() (store.Page, error) {
			return b.m.RetentionPage(t.Context(), q, store.LaneKey{}, store.LaneKey{}, 10)
		},
		func() (store.Page, error) { return b.m.TxnsPage(t.Context(), q, store.LaneKey{}, 10) },
	} {
		page, err := read()
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{pid}, page.Due)
	}
	b.step(pid, q.All, nil, 10)
	_, err = b.m.TxnsStep(t.Context(), pid, *q.Txns, 10)
	require.NoError(t, err)
	require.Zero(t, b.wrong())
}
