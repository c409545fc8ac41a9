package store_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// listed is the part of a listing that these tests look at.
type listed struct {
	Messages []struct {
		PartitionID uuid.UUID
		TxnHash     string
		Status      string
		CreatedAt   time.Time
		Segment     struct{ Seq, FrameIdx int64 }
		BusStatus   struct{ ConsumedBy, TotalGroups int64 }
	}
	Total int
	Next  string
	Mode  json.RawMessage
}

func (l listed) places() []string {
	out := []string{}
	for _, m := range l.Messages {
		out = append(out, fmt.Sprintf("%s/%d/%d", m.PartitionID, m.Segment.Seq, m.Segment.FrameIdx))
	}
	return out
}

func (b *bench) list(f store.MessageFilter) listed {
	b.t.Helper()
	if f.Tenant == uuid.Nil {
		f.Tenant = store.DefaultTenant()
	}
	doc, err := b.store.ListMessages(b.t.Context(), f)
	require.NoError(b.t, err)
	var out listed
	require.NoError(b.t, json.Unmarshal(doc, &out))
	require.Len(b.t, out.Messages, out.Total)
	return out
}

func TestAListedMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"namespace":"ns","task":"tk","priority":7}`, false)
	pid := b.queued(segment("q", "p", 1, 2)).PartitionID
	b.exec(`UPDATE queen.log_txns SET created_at = '2026-05-01 10:00:00.123456Z'`)
	b.exec(`UPDATE queen.log_partitions SET last_write_at = '2026-05-01 10:00:00Z'`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, lease_expires_at) VALUES
		($1, '__QUEUE_MODE__', -1, '2999-01-01Z'), ($1, 'a', 0, NULL), ($1, 'b', -1, NULL)`, pid)
	doc, err := b.store.ListMessages(t.Context(), store.MessageFilter{
		Tenant: store.DefaultTenant(), From: time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC), To: time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC),
	})
	require.NoError(t, err)
	out := object(t, doc)
	require.Len(t, out, 3, "%s", doc)
	require.EqualValues(t, 2, out["total"])
	require.Equal(t, map[string]any{"hasQueueMode": true, "busGroupsCount": 2.0, "type": "hybrid"}, out["mode"])
	require.Equal(t, map[string]any{
		"id": nil, "transactionId": nil, "txnHash": "00000000000000000000000000000001", "partitionId": pid.String(),
		"queuePath": "q/p", "queue": "q", "partition": "p", "namespace": "ns", "task": "tk", "queuePriority": 7.0,
		"status": "processing", "queueStatus": "processing", "busStatus": map[string]any{"consumedBy": 1.0, "totalGroups": 2.0},
		"traceId": nil, "producerSub": nil, "payloadAvailable": false, "segment": map[string]any{"seq": 0.0, "frameIdx": 0.0},
		"createdAt": "2026-05-01T10:00:00.123Z", "leaseExpiresAt": "2999-01-01T00:00:00.000Z",
	}, out["messages"].([]any)[1])
}

func TestWhoConsumesGivesTheMode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, c := range []struct {
		groups []string
		want   string
	}{
		{nil, `{"hasQueueMode":false,"busGroupsCount":0,"type":"none"}`},
		{[]string{store.QueueModeGroup}, `{"hasQueueMode":true,"busGroupsCount":0,"type":"queue"}`},
		{[]string{"a", "b"}, `{"hasQueueMode":false,"busGroupsCount":2,"type":"bus"}`},
		{[]string{"a", store.QueueModeGroup}, `{"hasQueueMode":true,"busGroupsCount":1,"type":"hybrid"}`},
	} {
		q := fmt.Sprint("q", i)
		pid := b.queued(segment(q, "p", 1)).PartitionID
		for _, g := range c.groups {
			b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, $2)`, pid, g)
		}
		require.JSONEq(t, c.want, string(b.list(store.MessageFilter{Queue: q}).Mode))
	}
}

// Every order, filter and page of a listing against the plain reading of the tables:
// lanes of several queues whose rows were written at few different instants.
func TestListingsAgreeWithThePlainReading(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	b.fill(r)
	for range 60 {
		f := randomFilter(r)
		want := b.plain(f)
		whole := f
		whole.Limit = 1000
		require.Equal(t, want, b.list(whole).places(), "%+v", f)

		// By offset, and by marks.
		f.Offset = r.IntN(len(want) + 2)
		f.Limit = 10 + r.IntN(30)
		from, to := min(f.Offset, len(want)), min(f.Offset+f.Limit, len(want))
		require.Equal(t, append([]string{}, want[from:to]...), b.list(f).places(), "%+v", f)
		got := []string{}
		for f.Offset = 0; ; {
			page := b.list(f)
			got = append(got, page.places()...)
			if f.After = page.Next; f.After == "" {
				break
			}
			require.Len(t, page.Messages, f.Limit)
		}
		require.Equal(t, want, got, "%+v", f)
	}
}

// The newest lanes of more queues than a page looks at lanes, in most of which nothing
// is listed any more.
func TestListingsOfManyQueuesAgreeWithThePlainReading(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.queues (name) SELECT 'q' || i FROM generate_series(1, 300) AS i`)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, txns_start, last_write_at)
		SELECT q.id, 'p' || i, 1, CASE WHEN i = 1 AND q.name <> 'q7' THEN 2 ELSE 0 END, now() - make_interval(mins => 5 * i, secs => random() * 200)
		FROM queen.queues AS q CROSS JOIN generate_series(1, 4) AS i`)
	b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
		SELECT p.id, i, i, p.last_write_at, decode(repeat('00', 16), 'hex')
		FROM queen.log_partitions AS p CROSS JOIN generate_series(0, 1) AS i WHERE p.txns_start = 0`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, lease_expires_at)
		SELECT p.id, 'g', CASE WHEN q.name = 'q7' THEN -1 ELSE 1 END, CASE WHEN q.name = 'q7' AND p.name = 'p3' THEN now() + INTERVAL '1 hour' END
		FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id`)
	for status, most := range map[string]int{"": 50, "completed": 50, "pending": 6, "processing": 2} {
		f := store.MessageFilter{Tenant: store.DefaultTenant(), Status: status, Limit: 50}
		want := b.plain(f)
		require.Equal(t, want[:most], b.list(f).places(), "%q", status)
	}
}

// fill writes lanes whose messages stand in all states.
func (b *bench) fill(r *rand.Rand) {
	b.t.Helper()
	var lanes []uuid.UUID
	for lane := range 12 {
		q, ns := fmt.Sprintf("n%d.q%d", lane%2, lane%3), lane%4
		var pid uuid.UUID
		for range 1 + r.IntN(20) {
			pid = b.queued(fresh(q, fmt.Sprintf("p%d", ns), 1+r.IntN(4))).PartitionID
		}
		lanes = append(lanes, pid)
	}
	// A few instants, at most as many as rows, in the order of the offsets; the last
	// write of a lane is known to the second.
	b.exec(`UPDATE queen.log_txns AS t SET created_at = date_trunc('minute', now()) - INTERVAL '30 minutes' + make_interval(secs => x.n / 3 * 0.4)
		FROM (SELECT partition_id, base_offset, row_number() OVER (PARTITION BY partition_id ORDER BY base_offset) AS n FROM queen.log_txns) AS x
		WHERE x.partition_id = t.partition_id AND x.base_offset = t.base_offset`)
	b.exec(`UPDATE queen.log_partitions AS p SET last_write_at = (SELECT max(t.created_at) FROM queen.log_txns AS t WHERE t.partition_id = p.id)
		- make_interval(secs => $1)`, r.Float64())
	for _, pid := range lanes {
		for _, g := range []string{store.QueueModeGroup, "a", "b"} {
			if r.IntN(2) == 0 {
				b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, lease_expires_at)
					VALUES ($1, $2, $3, CASE WHEN $4 THEN now() + INTERVAL '1 hour' ELSE now() - INTERVAL '1 hour' END)`,
					pid, g, r.IntN(30)-1, r.IntN(3) == 0)
			}
		}
		for range r.IntN(4) {
			b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'a', $2)`, pid, r.IntN(40)-1)
		}
		if r.IntN(4) == 0 {
			b.exec(`DELETE FROM queen.log_txns WHERE partition_id = $1 AND base_offset < 3`, pid)
			b.exec(`UPDATE queen.log_partitions SET txns_start = (SELECT min(base_offset) FROM queen.log_txns WHERE partition_id = $1)
				WHERE id = $1 AND EXISTS (SELECT FROM queen.log_txns WHERE partition_id = $1)`, pid)
		}
	}
}

func randomFilter(r *rand.Rand) store.MessageFilter {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	f := store.MessageFilter{
		Tenant: store.DefaultTenant(),
		Queue:  pick("", "", "n0.q0", "n1.q1", "n0.q2"), Partition: pick("", "", "p1", "p2"), Namespace: pick("", "", "n0"), Task: pick("", "", "q1"),
		Status: pick("", "", "pending", "processing", "completed", "dead_letter"),
	}
	if r.IntN(2) == 0 {
		f.From = time.Now().Add(-time.Duration(r.IntN(40)) * time.Minute)
	}
	if r.IntN(2) == 0 {
		f.To = time.Now().Add(-time.Duration(r.IntN(40)) * time.Minute)
	}
	return f
}

// plain reads the tables from end to end.
func (b *bench) plain(f store.MessageFilter) []string {
	b.t.Helper()
	var out []string
	b.one([]any{&out}, `
		WITH frames AS (
			SELECT t.partition_id AS pid, t.base_offset AS base, t.base_offset + i AS off, t.created_at AS at
			FROM queen.log_txns AS t CROSS JOIN generate_series(0, t.end_offset - t.base_offset) AS i
		), states AS (
			SELECT f.*, q.name AS queue, p.name AS lane, q.namespace, q.task, CASE
				WHEN EXISTS (SELECT FROM queen.log_dlq AS d WHERE d.partition_id = f.pid AND d."offset" = f.off) THEN 'dead_letter'
				WHEN EXISTS (SELECT FROM queen.log_consumers AS c WHERE c.partition_id = f.pid AND c.consumer_group <> '__QUEUE_MODE__') THEN
					CASE WHEN NOT EXISTS (SELECT FROM queen.log_consumers AS c WHERE c.partition_id = f.pid AND c.consumer_group <> '__QUEUE_MODE__' AND c.committed < f.off)
					THEN 'completed' END
				WHEN EXISTS (SELECT FROM queen.log_consumers AS c WHERE c.partition_id = f.pid AND c.committed >= f.off) THEN 'completed' END AS state
			FROM frames AS f JOIN queen.log_partitions AS p ON p.id = f.pid JOIN queen.queues AS q ON q.id = p.queue_id
		)
		SELECT COALESCE(array_agg(s.pid || '/' || s.base || '/' || (s.off - s.base) ORDER BY s.at DESC, s.off DESC, s.pid DESC), '{}')
		FROM states AS s
		WHERE ($1 = '' OR s.queue = $1) AND ($2 = '' OR s.lane = $2) AND ($3 = '' OR s.namespace = $3) AND ($4 = '' OR s.task = $4)
		  AND ($5 = '' OR $5 = COALESCE(s.state, CASE WHEN EXISTS (
			SELECT FROM queen.log_consumers AS c WHERE c.partition_id = s.pid AND c.lease_expires_at > now()) THEN 'processing' ELSE 'pending' END))
		  AND s.at >= COALESCE($6, now() - INTERVAL '1 hour') AND s.at < date_trunc('minute', COALESCE($7, now())) + INTERVAL '1 minute'`,
		f.Queue, f.Partition, f.Namespace, f.Task, f.Status, orNull(f.From), orNull(f.To))
	return out
}

func orNull(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

func TestPagesStandStillWhileMessagesArrive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 9 {
		b.queued(fresh("q", fmt.Sprint("p", i%3), 2))
	}
	want := b.list(store.MessageFilter{}).places()
	require.Len(t, want, 18)
	got := []string{}
	for f := (store.MessageFilter{Limit: 4}); ; {
		page := b.list(f)
		got = append(got, page.places()...)
		if f.After = page.Next; f.After == "" {
			break
		}
		b.queued(fresh("q", "p1", 3))
	}
	require.Equal(t, want, got)
}

// Lanes that were all written later than what is asked for: each has to be looked at.
func TestTheLanesOfAPageAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(fresh("q", "p", 1))
	b.exec(`UPDATE queen.log_txns SET created_at = now() - INTERVAL '30 minutes'`)
	lanes := func(n int) {
		b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT q.id, 'l' || i, 0 FROM queen.queues AS q CROSS JOIN generate_series(1, $1::int) AS i
			ON CONFLICT DO NOTHING`, n)
	}
	f := store.MessageFilter{Tenant: store.DefaultTenant(), To: time.Now().Add(-20 * time.Minute)}
	lanes(16383)
	require.Len(t, b.list(f).Messages, 1)
	lanes(16384)
	_, err := b.store.ListMessages(t.Context(), f)
	var refused *store.BrowseRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "more than 16384 partitions were written since the end of this time: name a queue or a partition", refused.Text)
	require.Equal(t, store.Permanent, store.Classify(err))
	f.Partition = "p"
	require.Len(t, b.list(f).Messages, 1, "one lane")
}

// More lanes of one second than are merged exactly: a page of the newest all the same.
func TestManyLanesOfOneSecondMakeAPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(fresh("q", "p", 1))
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT q.id, 'l' || i, 0, date_trunc('second', now()) FROM queen.queues AS q CROSS JOIN generate_series(1, 17000) AS i`)
	b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
		SELECT p.id, 0, 0, p.last_write_at, decode(repeat('00', 16), 'hex') FROM queen.log_partitions AS p WHERE p.name <> 'p'`)
	seen := map[string]bool{}
	f := store.MessageFilter{Limit: 1000}
	for range 4 {
		page := b.list(f)
		require.Equal(t, 1000, page.Total)
		for _, place := range page.places() {
			require.False(t, seen[place], "twice")
			seen[place] = true
		}
		f.After = page.Next
	}
}

func TestAMessageIsFoundByItsHash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1, 2, 3)).PartitionID
	b.configure("q", `{"dedupWindowSeconds":0}`, true)
	for i := range 200 { // more than the first page of the search
		b.queued(segment("q", "p", uint64(100+i)))
	}
	b.queued(segment("q", "p", 3, 9))
	find := func(tenant uuid.UUID, id uint64) (store.Place, bool) {
		place, found, err := b.store.FindMessage(t.Context(), tenant, pid, [16]byte(hash(id)))
		require.NoError(t, err)
		return place, found
	}
	for id, want := range map[uint64]store.Place{
		2: {Offset: 1, Known: true}, 3: {Offset: 203, Known: true}, 150: {Offset: 53, Known: true}, 77: {},
	} {
		got, found := find(store.DefaultTenant(), id)
		require.True(t, found)
		require.Equal(t, want, got, "id %d: the newest of it", id)
	}
	_, found := find(uuid.New(), 2)
	require.False(t, found)

	b.exec(`DELETE FROM queen.log_txns WHERE base_offset = 0`)
	b.exec(`UPDATE queen.log_partitions SET txns_start = 3`)
	got, _ := find(store.DefaultTenant(), 1)
	require.Equal(t, store.Place{Floor: 3}, got)
}

func TestSegmentsAreReadWithinABudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(fresh("q", "p", 1)).PartitionID
	for range 5 {
		b.queued(fresh("q", "p", 1))
	}
	b.exec(`UPDATE queen.log_segments SET blob = convert_to(repeat('x', 100), 'UTF8')`)
	bases := func(segs []store.Segment) (out []int64) {
		for _, s := range segs {
			out = append(out, s.Base)
		}
		return out
	}
	below := func(at int64, rows int, bytes int64) []int64 {
		segs, err := b.store.SegmentsBelow(t.Context(), pid, at, rows, bytes)
		require.NoError(t, err)
		return bases(segs)
	}
	require.Equal(t, []int64{4, 3, 2, 1, 0}, below(5, 10, 1000))
	require.Equal(t, []int64{4, 3}, below(5, 2, 1000))
	require.Equal(t, []int64{4, 3}, below(5, 10, 200), "two fit")
	require.Equal(t, []int64{4}, below(5, 10, 199), "one does")
	require.Equal(t, []int64{4}, below(5, 10, 1), "one is always read")
	require.Empty(t, below(0, 10, 1000))

	keys := []store.SegmentKey{{PartitionID: pid, Base: 3}, {PartitionID: pid, Base: 99}, {PartitionID: pid, Base: 1}, {PartitionID: pid, Base: 2}}
	for budget, want := range map[int64][]int64{1000: {1, 2, 3}, 200: {1, 3}, 199: {3}, 1: {3}} {
		segs, err := b.store.SegmentsAt(t.Context(), keys, budget)
		require.NoError(t, err)
		var got []int64
		for key, seg := range segs {
			require.Equal(t, key.Base, seg.Base)
			require.Len(t, seg.Blob, 100)
			got = append(got, key.Base)
		}
		require.ElementsMatch(t, want, got, "budget %d", budget)
	}
	none, err := b.store.SegmentsAt(t.Context(), nil, 1)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestTheStateOfAMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("one.two.three", `{"leaseTime":11,"retryLimit":5,"priority":2,"ttl":77,"retryDelay":9}`, false)
	pid := b.queued(segment("one.two.three", "p", 1, 2)).PartitionID
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, lease_expires_at) VALUES
		($1, 'a', 0, '2999-01-01Z'), ($1, '__QUEUE_MODE__', 1, now() - INTERVAL '1 hour')`, pid)
	state := func(off int64) string {
		doc, err := b.store.MessageState(t.Context(), store.DefaultTenant(), pid, off)
		require.NoError(t, err)
		return string(doc)
	}
	want := func(status string, failure any, retries int, consumed bool) string {
		return mustMarshal(t, map[string]any{
			"partitionId": pid, "queue": "one.two.three", "partition": "p", "queuePath": "one.two.three/p", "namespace": "one", "task": "two",
			"status": status, "errorMessage": failure, "retryCount": retries, "leaseExpiresAt": nil,
			"consumerGroups": []any{
				map[string]any{"name": "__QUEUE_MODE__", "group": "__QUEUE_MODE__", "consumed": true, "leaseExpiresAt": nil},
				map[string]any{"name": "a", "group": "a", "consumed": consumed, "leaseExpiresAt": "2999-01-01T00:00:00.000Z"},
			},
			"mode":        map[string]any{"hasQueueMode": true, "busGroupsCount": 1, "type": "hybrid"},
			"queueConfig": map[string]any{"leaseTime": 11, "retryLimit": 5, "priority": 2, "ttl": 77, "retryDelay": 9},
		})
	}
	require.JSONEq(t, want("completed", nil, 0, true), state(0))
	require.JSONEq(t, want("processing", nil, 0, false), state(1))
	b.letter(pid, "a", 1)
	b.letter(pid, "b", 2)
	b.exec(`UPDATE queen.log_dlq SET "offset" = 1, error = error || "offset"`)
	require.JSONEq(t, want("dead_letter", "boom2", 2, false), state(1), "the newest letter's error")

	doc, err := b.store.MessageState(t.Context(), uuid.New(), pid, 0)
	require.NoError(t, err)
	require.Nil(t, doc, "of another tenant")
}

func mustMarshal(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
