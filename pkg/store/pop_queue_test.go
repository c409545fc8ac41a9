package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestWildcardPopSharesItsBudgetOverPartitions(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	for _, lane := range []string{"a", "b", "c", "d"} {
		b.lay("q", lane, laid{0, 3, hour, nil}, laid{3, 3, hour, nil})
	}
	taken := func(group string, budget, partitions int) (lanes int, messages int64) {
		p := popArgs(group, budget)
		p.MaxPartitions = partitions
		for _, s := range b.wildcard("q", p) {
			require.Zero(t, s.first)
			messages += s.last + 1
			lanes++
		}
		require.Equal(t, int64(lanes), b.count(`SELECT count(*) FROM queen.log_consumers WHERE consumer_group = $1
			AND worker_id IS NOT NULL`, group), "no lane is leased without being served")
		return lanes, messages
	}
	for i, tt := range []struct {
		budget, partitions, lanes int
		messages                  int64
	}{
		{100, 1, 1, 6}, {100, 2, 2, 12}, {100, 0, 4, 24}, {100, -1, 4, 24}, {7, 0, 2, 7}, {6, 4, 1, 6}, {1, 4, 1, 1}, {13, 4, 3, 13}, {24, 4, 4, 24},
	} {
		lanes, messages := taken("g"+string(rune('a'+i)), tt.budget, tt.partitions)
		require.Equal(t, tt.lanes, lanes, "%+v", tt)
		require.Equal(t, tt.messages, messages, "%+v", tt)
	}
}

func TestWildcardPopGoesOnPastLanesItCannotHave(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	free := b.lay("q", "free", laid{0, 2, hour, nil})
	for i := range 30 {
		pid := b.lay("q", "held"+string(rune('a'+i)), laid{0, 2, hour, nil})
		b.start(pid, "g", -1)
	}
	b.start(free, "g", -1)
	b.wildcard("q", popArgs("register", 1))
	b.hold(`SELECT 1 FROM queen.log_consumers WHERE partition_id <> $1 AND consumer_group = 'g' FOR UPDATE`, free)
	p := popArgs("g", 2)
	p.MaxPartitions = 1
	require.Equal(t, []span{{"free", 0, 1}}, b.wildcard("q", p))
}

// TestEmptyScanWatermark checks when the watermark moves.
func TestEmptyScanWatermark(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 1, hour, nil})
	type mark struct {
		Epoch, Recent bool
		Rows          int
	}
	read := func() (m mark) {
		b.one([]any{&m.Epoch, &m.Recent, &m.Rows}, `SELECT coalesce(bool_and(last_empty_scan_at = 'epoch'), FALSE),
			coalesce(bool_and(updated_at > now() - interval '20 seconds'), FALSE), count(*)
			FROM queen.consumer_watermarks WHERE consumer_group = 'g'`)
		return m
	}
	require.NotEmpty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, 0, read().Rows, "something was found")

	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, mark{Epoch: true, Recent: true, Rows: 1}, read(), "pending behind a lease: verified, not moved")

	// A backlog behind a lease stays in the scan, however old its last write.
	b.exec(`UPDATE queen.log_partitions SET last_write_at = now() - interval '10 minutes'`)
	b.exec(`UPDATE queen.consumer_watermarks SET updated_at = now() - interval '31 seconds'`)
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, mark{Epoch: true, Recent: true, Rows: 1}, read())
	b.expire(pid)
	require.Equal(t, []span{{"p", 0, 0}}, b.wildcard("q", popArgs("g", 1)))

	b.exec(`UPDATE queen.log_consumers SET committed = 0, worker_id = NULL, batch_end = NULL`)
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.True(t, read().Epoch, "verified less than 30 s ago")
	b.exec(`UPDATE queen.consumer_watermarks SET updated_at = now() - interval '31 seconds'`)
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, mark{Recent: true, Rows: 1}, read(), "nothing is pending: moved")

	b.lay("q", "p", laid{1, 1, 0, nil})
	b.exec(`UPDATE queen.log_partitions SET last_write_at = (SELECT last_empty_scan_at FROM queen.consumer_watermarks) - interval '110 s'`)
	pending, err := b.store.HasPending(t.Context(), store.DefaultTenant(), "q", "g")
	require.NoError(t, err)
	require.True(t, pending)
	require.Equal(t, []span{{"p", 1, 1}}, b.wildcard("q", popArgs("g", 1)), "two minutes of slack")
}

func TestEmptyScanLeavesAHeldWatermarkAlone(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.lay("q", "p")
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.consumer_watermarks WHERE last_empty_scan_at > now() - interval '1 min'`))
	b.exec(`UPDATE queen.consumer_watermarks SET updated_at = 'epoch'`)
	b.hold(`DELETE FROM queen.consumer_watermarks`)
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.consumer_watermarks WHERE updated_at = 'epoch'`))
}

func TestDiscoveryMatchesLabelsWithinTheTenant(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	label := func(queue, namespace, task string) {
		b.lay(queue, queue, laid{0, 1, hour, nil})
		b.exec(`UPDATE queen.queues SET namespace = $2, task = $3 WHERE name = $1`, queue, namespace, task)
	}
	label("q1", "ns", "t1")
	label("q2", "ns", "t2")
	label("q3", "other", "t1")
	label("q4", "ns", "t1")
	b.exec(`UPDATE queen.queues SET tenant_id = gen_random_uuid() WHERE name = 'q4'`)
	for i, tt := range []struct {
		namespace, task string
		want            []string
	}{
		{"ns", "", []string{"q1", "q2"}}, {"", "t1", []string{"q1", "q3"}}, {"ns", "t1", []string{"q1"}}, {"", "", []string{"q1", "q2", "q3"}}, {"no", "", nil},
	} {
		group := "g" + string(rune('a'+i))
		var got []string
		for _, s := range b.discover(tt.namespace, tt.task, popArgs(group, 10)) {
			got = append(got, s.partition)
		}
		require.ElementsMatch(t, tt.want, got, "%+v", tt)
		require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.consumer_groups_metadata
			WHERE consumer_group = $1 AND queue_id IS NULL AND namespace = $2 AND task = $3 AND partition_name = ''`, group, tt.namespace, tt.task))
		require.Equal(t, int64(len(tt.want)), b.count(`SELECT count(*) FROM queen.consumer_groups_metadata
			WHERE consumer_group = $1 AND queue_id IS NOT NULL AND namespace = '' AND task = ''`, group))
	}
}

func TestDiscoveryLeasesByEachQueueAndKeepsOneWatermark(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	one, two := b.lay("q1", "p1", laid{0, 1, hour, nil}), b.lay("q2", "p2", laid{0, 1, hour, nil})
	b.option("q1", "lease_time", 11)
	b.option("q2", "lease_time", 22)
	require.Len(t, b.discover("", "", popArgs("g", 10)), 2)
	require.Equal(t, 11, b.cursor(one, "g").LeaseSeconds)
	require.Equal(t, 22, b.cursor(two, "g").LeaseSeconds)

	require.Empty(t, b.discover("", "", popArgs("g", 10)))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.consumer_watermarks`), "pending: only existing rows are touched")
	b.exec(`UPDATE queen.log_consumers SET committed = 0, worker_id = NULL`)
	require.Empty(t, b.discover("", "", popArgs("g", 10)))
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.consumer_watermarks WHERE last_empty_scan_at > now() - interval '1 min'`))

	b.lay("q3", "p3", laid{0, 1, 0, nil})
	b.exec(`UPDATE queen.log_partitions SET last_write_at = now() - interval '1 hour' WHERE name = 'p3'`)
	require.Equal(t, []span{{"p3", 0, 0}}, b.discover("", "", popArgs("g", 10)), "the oldest watermark counts: q3 has none")
}

func TestDiscoveryRegistrationDecidesForQueuesThatComeLater(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	labelled := func(queue string, segs ...laid) {
		b.lay(queue, queue, segs...)
		b.exec(`UPDATE queen.queues SET namespace = 'ns', task = 't' WHERE name = $1`, queue)
	}
	labelled("before", laid{0, 2, hour, nil})
	p := popArgs("g", 100)
	p.SubMode, p.AutoAck = "new", true
	require.Empty(t, b.discover("ns", "", p))

	labelled("after", laid{0, 1, 2 * hour, nil}, laid{1, 3, 0, nil})
	require.Equal(t, []span{{"after", 1, 3}}, b.discover("ns", "", p), "all since the registration, nothing before it")
	var mode string
	var same bool
	b.one([]any{&mode, &same}, `SELECT m.subscription_mode, m.subscription_timestamp = d.subscription_timestamp
		FROM queen.consumer_groups_metadata AS m JOIN queen.queues AS q ON q.id = m.queue_id AND q.name = 'after'
		JOIN queen.consumer_groups_metadata AS d ON d.queue_id IS NULL WHERE m.consumer_group = 'g'`)
	require.Equal(t, "new", mode)
	require.True(t, same)

	// The same through the other routes, before discovery has seen the queue.
	labelled("single", laid{0, 1, 2 * hour, nil}, laid{1, 3, 0, nil})
	p.SubMode = "all"
	require.Equal(t, []span{{"single", 1, 3}}, b.specific("single", "single", p))
	labelled("wild", laid{0, 1, 2 * hour, nil}, laid{1, 3, 0, nil})
	require.Equal(t, []span{{"wild", 1, 3}}, b.wildcard("wild", p))
	b.lay("unlabelled", "unlabelled", laid{0, 1, 2 * hour, nil})
	require.Equal(t, []span{{"unlabelled", 0, 0}}, b.wildcard("unlabelled", p))
}

func TestDiscoveryRegistrationInFlightIsNotAnticipated(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 2, hour, nil})
	release := b.hold(`SELECT queen.log_pop_discover_wire_v1('', '', 'g', 10, 0, 'first', FALSE, 0, 'new', '')`)
	require.Empty(t, b.discover("", "", popArgs("g", 10)))
	require.Zero(t, b.cursors(pid))
	release()
	require.Empty(t, b.discover("", "", popArgs("g", 10)))
	require.Equal(t, int64(1), b.cursor(pid, "g").Committed)
}

func TestListPopJudgesEachCandidateItComesTo(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	const group = "g"
	b.lay("q", "unused")
	b.wildcard("q", popArgs(group, 1)) // registers
	lane := func(name string, committed int64, segs ...laid) uuid.UUID {
		pid := b.lay("q", name, segs...)
		if committed >= -1 {
			b.start(pid, group, committed)
		}
		return pid
	}
	const missing = -2
	three := laid{0, 3, hour, nil}
	leased := lane("leased", -1, three)
	b.exec(`UPDATE queen.log_consumers SET worker_id = 'x', lease_expires_at = now() + interval '1 hour' WHERE partition_id = $1`, leased)
	lane("fresh", missing, three)
	lane("fresh and empty", missing)
	lane("drained", 2, three)
	lane("ready", -1, three)
	locked := lane("locked", -1, three)
	lane("held and drained", 2, three)
	expired := lane("expired", -1, three)
	b.exec(`UPDATE queen.log_consumers SET worker_id = 'x', lease_expires_at = now() - interval '1 s' WHERE partition_id = $1`, expired)
	b.lay("q", "emptied")
	b.exec(`UPDATE queen.log_partitions SET last_offset = 7, log_start = 8 WHERE name = 'emptied'`)
	lane("emptied", 2)
	lane("late", -1, three)
	b.hold(`SELECT 1 FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id
		WHERE p.id = $1 OR p.name = 'held and drained' FOR UPDATE OF c`, locked)

	p := popArgs(group, 8)
	r := b.list("q", []string{
		"nowhere", "leased", "fresh", "fresh", "fresh and empty", "drained", "locked", "held and drained", "emptied", "expired", "ready", "leased", "late",
	}, p)
	require.Equal(t, []span{{"fresh", 0, 2}, {"expired", 0, 2}, {"ready", 0, 1}}, spans(r.Claimed), "in the caller's order")
	require.False(t, r.Unseeded)
	got := map[string]store.CandidateState{}
	for _, s := range r.States {
		require.NotContains(t, got, s.Partition)
		got[s.Partition] = s
	}
	now := time.Now()
	for name, state := range map[string]string{
		"nowhere": "empty", "leased": "leased", "fresh": "took", "fresh and empty": "empty", "drained": "empty",
		"locked": "leased", "held and drained": "empty", "emptied": "empty", "expired": "took", "ready": "took",
	} {
		require.Equal(t, state, got[name].State, name)
	}
	require.NotContains(t, got, "late", "the budget ran out before")
	require.Len(t, got, 10)
	require.Equal(t, int64(2), got["ready"].LastOffset)
	require.WithinDuration(t, now.Add(time.Hour), got["leased"].Until, time.Minute)
	require.False(t, got["leased"].Locked)
	require.WithinDuration(t, now.Add(250*time.Millisecond), got["locked"].Until, time.Minute)
	require.True(t, got["locked"].Locked)
}

func TestListPopStopsAtItsLimits(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	names := []string{"a", "b", "c", "d"}
	for _, n := range names {
		b.lay("q", n, laid{0, 2, hour, nil})
	}
	p := popArgs("g1", 100)
	p.MaxPartitions = 2
	r := b.list("q", names, p)
	require.Equal(t, []span{{"a", 0, 1}, {"b", 0, 1}}, spans(r.Claimed))
	require.Len(t, r.States, 2)
	require.True(t, r.Unseeded)

	p = popArgs("g2", 3)
	p.AutoAck = true
	r = b.list("q", names, p)
	require.Equal(t, []span{{"a", 0, 1}, {"b", 0, 0}}, spans(r.Claimed))
	require.Len(t, r.States, 2)

	for _, candidates := range [][]string{nil, {}} {
		r = b.list("q", candidates, popArgs("g3", 3))
		require.Empty(t, r.Claimed)
		require.Empty(t, r.States)
	}
	r = b.list("unknown", names, popArgs("g3", 3))
	require.Empty(t, r.States)
	require.Zero(t, b.count(`SELECT count(*) FROM queen.queues WHERE name = 'unknown'`))
}

func TestProbesErrOnlyTowardsTrue(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	tenant, ctx := store.DefaultTenant(), t.Context()
	probe := func(group string) [3]bool {
		queue, err := b.store.HasPending(ctx, tenant, "q", group)
		require.NoError(t, err)
		lane, err := b.store.PartitionHasPending(ctx, tenant, "q", "p", group)
		require.NoError(t, err)
		labels, err := b.store.DiscoverHasPending(ctx, tenant, "", "", group)
		require.NoError(t, err)
		return [3]bool{queue, lane, labels}
	}
	require.Equal(t, [3]bool{false, true, true}, probe("g"), "unknown queue")
	pid := b.lay("q", "p", laid{0, 2, hour, nil})
	require.Equal(t, [3]bool{true, true, true}, probe("g"))
	require.Len(t, b.discover("", "", popArgs("g", 2)), 1)
	require.Equal(t, [3]bool{true, true, true}, probe("g"), "leased, not consumed")
	b.exec(`UPDATE queen.log_consumers SET committed = 1, worker_id = NULL`)
	require.Equal(t, [3]bool{false, false, false}, probe("g"))
	b.lay("q2", "p", laid{0, 1, hour, nil})
	require.Equal(t, [3]bool{false, false, true}, probe("g"), "a queue it is not registered on")
	require.Equal(t, [3]bool{true, true, true}, probe(store.QueueModeGroup))

	b.exec(`UPDATE queen.log_partitions SET last_offset = 9, log_start = 10 WHERE id = $1`, pid)
	b.exec(`DELETE FROM queen.queues WHERE name = 'q2'`)
	require.Equal(t, [3]bool{true, false, false}, probe("g"), "retention removed what is pending")
}

func TestReseedWalksPendingLanesInIDOrder(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	want := map[uuid.UUID]string{}
	for i := range 7 {
		name := string(rune('a' + i))
		want[b.lay("q", name, laid{0, 1, hour, nil})] = name
	}
	drained := b.lay("q", "drained", laid{0, 1, hour, nil})
	b.start(drained, "g", 0)
	b.lay("other", "x", laid{0, 1, hour, nil})
	require.NotEmpty(t, b.specific("q", "a", popArgs("g", 1)), "leased ones count")
	after := uuid.Nil
	got := map[uuid.UUID]string{}
	for {
		page, err := b.store.HotlistReseed(t.Context(), store.DefaultTenant(), "q", "g", after, 3)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, ref := range page {
			require.Less(t, after.String(), ref.ID.String())
			after = ref.ID
			got[ref.ID] = ref.Name
		}
	}
	require.Equal(t, want, got)
	page, err := b.store.HotlistReseed(t.Context(), store.DefaultTenant(), "q", "g", uuid.Nil, 0)
	require.NoError(t, err)
	require.Len(t, page, 1, "a limit below 1 counts as 1")
}

// TestRecentLanesOfSeveralRings checks what the hot list asks for every second.
func TestRecentLanesOfSeveralRings(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	drained := b.lay("q", "drained", laid{0, 1, hour, nil})
	b.start(drained, "g", 0)
	fresh, leased, old := b.lay("q", "fresh", laid{0, 1, hour, nil}), b.lay("q", "leased", laid{0, 1, hour, nil}), b.lay("q", "old", laid{0, 1, hour, nil})
	other := b.lay("r", "fresh", laid{0, 1, hour, nil})
	require.NotEmpty(t, b.specific("q", "leased", popArgs("g", 1)), "leased ones count")
	b.exec(`UPDATE queen.log_partitions SET last_write_at = clock_timestamp()`)
	b.exec(`UPDATE queen.log_partitions SET last_write_at = clock_timestamp() - interval '1 minute' WHERE id = $1`, old)

	ask := func(within time.Duration, limit int, rings ...store.HotlistRing) map[store.HotlistRow]bool {
		rows, err := b.store.HotlistRecent(t.Context(), rings, within, limit)
		require.NoError(t, err)
		got := map[store.HotlistRow]bool{}
		for _, r := range rows {
			got[r] = true
		}
		return got
	}
	ring := func(queue, group string) store.HotlistRing {
		return store.HotlistRing{Tenant: store.DefaultTenant(), Queue: queue, Group: group}
	}
	row := func(ring int, id uuid.UUID, name string) store.HotlistRow {
		return store.HotlistRow{Ring: ring, PartitionRef: store.PartitionRef{ID: id, Name: name}}
	}
	const within = 20 * time.Second
	require.Equal(t, map[store.HotlistRow]bool{
		row(1, fresh, "fresh"): true, row(1, leased, "leased"): true,
		row(2, fresh, "fresh"): true, row(2, leased, "leased"): true, row(2, drained, "drained"): true,
		row(3, other, "fresh"): true,
	}, ask(within, 10, ring("none", "g"), ring("q", "g"), ring("q", "h"), ring("r", "g")))
	require.Len(t, ask(time.Hour, 10, ring("q", "g")), 3)
	require.Len(t, ask(within, 1, ring("q", "g"), ring("q", "h")), 2, "the limit is for each ring")
	require.Empty(t, ask(within, 10, store.HotlistRing{Tenant: uuid.New(), Queue: "q", Group: "g"}))
	require.Empty(t, ask(within, 10))
}

// TestWireFormsCarryBlobsInBase64 checks the documents of the seed's JSON forms.
func TestWireFormsCarryBlobsInBase64(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	long := make([]byte, 200) // encode() would break its base64 into lines
	for i := range long {
		long[i] = byte(i)
	}
	pid := b.lay("q", "p", laid{0, 3, hour, long}, laid{3, 2, hour, []byte("xy")})
	b.exec(`UPDATE queen.log_segments SET created_at = '2026-03-01 08:00:00.5+00'`)
	type document struct {
		Partitions []document `json:"partitions"`
		Partition  string     `json:"partition"`
		ID         *string    `json:"partitionId"`
		Attempt    int        `json:"deliveryAttempt"`
		Segments   []struct {
			Seq       int64  `json:"seq"`
			StartOff  int    `json:"startOff"`
			Take      int    `json:"take"`
			MsgCount  int    `json:"msgCount"`
			CreatedAt string `json:"createdAt"`
			Blob      []byte `json:"blob"`
		} `json:"segments"`
	}
	call := func(sql string) (d document) {
		var text string
		b.one([]any{&text}, "SELECT "+sql)
		require.NotContains(t, text, `\n`)
		require.NoError(t, json.Unmarshal([]byte(text), &d))
		return d
	}
	check := func(d document) {
		require.Equal(t, pid.String(), *d.ID)
		require.Equal(t, 1, d.Attempt)
		require.Len(t, d.Segments, 2)
		require.Equal(t, long, d.Segments[0].Blob)
		require.Equal(t, []byte("xy"), d.Segments[1].Blob)
		require.Equal(t, []int{0, 1, 2}, []int{d.Segments[1].StartOff, d.Segments[1].Take, d.Segments[1].MsgCount})
		require.Equal(t, int64(3), d.Segments[1].Seq)
		require.Equal(t, "2026-03-01T08:00:00.500000Z", d.Segments[0].CreatedAt)
	}
	check(call(`queen.log_pop_specific_v1('q', 'p', 'g1', 4, 60, 'w', FALSE, 'all', '')`))
	check(call(`queen.log_pop_wildcard_wire_v1('q', 'g2', 4, 60, 'w', FALSE, 1, 'all', '')`).Partitions[0])
	check(call(`queen.log_pop_discover_wire_v1('', '', 'g3', 4, 60, 'w', FALSE, 1, 'all', '')`).Partitions[0])

	empty := call(`queen.log_pop_specific_v1('q', 'nowhere', 'g1', 4, 60, 'w', FALSE, 'all', '')`)
	require.Empty(t, *empty.ID)
	require.NotNil(t, empty.Segments)
	leased := call(`queen.log_pop_specific_v1('q', 'p', 'g1', 4, 60, 'w', FALSE, 'all', '')`)
	require.Empty(t, leased.Segments)
	require.Equal(t, pid.String(), *leased.ID)
	require.NotNil(t, call(`queen.log_pop_wildcard_wire_v1('q', 'g2', 4, 60, 'w', FALSE, 1, 'all', '')`).Partitions)
}
