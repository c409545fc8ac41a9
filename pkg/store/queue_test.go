package store_test

import (
	"context"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// defaults are the options of a queue configured with nothing, as the wire
// spells them.
func defaults() map[string]any {
	return map[string]any{
		"priority": 0.0, "leaseTime": 300.0, "retryLimit": 3.0, "retryDelay": 1000.0, "maxSize": 0.0, "ttl": 3600.0,
		"deadLetterQueue": true, "dlqAfterMaxRetries": true, "delayedProcessing": 0.0, "windowBuffer": 0.0,
		"retentionSeconds": 0.0, "completedRetentionSeconds": 0.0, "retentionEnabled": false, "encryptionEnabled": false,
		"maxWaitTimeSeconds": 0.0, "minPopWaitTime": 0.0, "dedupWindowSeconds": 3600.0,
	}
}

func with(base map[string]any, changes map[string]any) map[string]any {
	out := maps.Clone(base)
	maps.Copy(out, changes)
	return out
}

func TestConfigureAnswersTheEffectiveOptions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	out := b.configure("q", `{}`, false)
	id, ok := out["queueId"].(string)
	require.True(t, ok)
	require.Equal(t, map[string]any{
		"configured": true, "queueId": id, "partitionId": nil, "queue": "q", "namespace": "", "task": "",
		"storage": "segments", "options": defaults(),
	}, out)
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions`), "no partition is created")
	require.Equal(t, true, b.configure("", `{}`, false)["configured"], "the empty name is legal")
}

func TestConfigureReplacesOrMerges(t *testing.T) {
	t.Parallel()
	everything := map[string]any{
		"priority": 7.0, "leaseTime": 45.0, "retryLimit": 2.0, "retryDelay": 5.0, "maxSize": 9.0, "ttl": 8.0,
		"deadLetterQueue": false, "dlqAfterMaxRetries": false, "delayedProcessing": 3.0, "windowBuffer": 4.0,
		"retentionSeconds": 10.0, "completedRetentionSeconds": 5.0, "retentionEnabled": true, "encryptionEnabled": true,
		"maxWaitTimeSeconds": 11.0, "minPopWaitTime": 12.0, "dedupWindowSeconds": 13.0,
	}
	cases := map[string]struct {
		options         string
		merge           bool
		want            map[string]any
		namespace, task string
	}{
		"replace resets what is omitted":     {`{"leaseTime": 9}`, false, with(defaults(), map[string]any{"leaseTime": 9.0}), "", ""},
		"replace with nothing resets all":    {`{}`, false, defaults(), "", ""},
		"null is the default when replacing": {`{"leaseTime": null, "namespace": null}`, false, defaults(), "", ""},
		"merge keeps what is omitted":        {`{"leaseTime": 9, "task": "t2"}`, true, with(everything, map[string]any{"leaseTime": 9.0}), "n", "t2"},
		"merge of nothing changes nothing":   {`{}`, true, everything, "n", "t"},
		"null is the default when merging": {`{"leaseTime": null, "retentionEnabled": null, "namespace": null}`, true,
			with(everything, map[string]any{"leaseTime": 300.0, "retentionEnabled": false}), "", "t"},
		"a client cannot ask to merge":    {`{"_merge": true, "leaseTime": 9}`, false, with(defaults(), map[string]any{"leaseTime": 9.0}), "", ""},
		"a client cannot forbid to merge": {`{"_merge": false}`, true, everything, "n", "t"},
		"unknown keys are ignored":        {`{"replace": true, "retentionSinkHold": {}, "leasetime": 1}`, true, everything, "n", "t"},
	}
	b := setup(t)
	for name, c := range cases {
		body, err := json.Marshal(with(everything, map[string]any{"namespace": "n", "task": "t"}))
		require.NoError(t, err)
		first := b.configure(name, string(body), false)
		require.Equal(t, everything, first["options"], "every option is stored")

		out := b.configure(name, c.options, c.merge)
		require.Equal(t, c.want, out["options"], name)
		require.Equal(t, []any{c.namespace, c.task}, []any{out["namespace"], out["task"]}, name)
		require.Equal(t, first["queueId"], out["queueId"], name)
		stored := object(t, get(b, name))["options"].(map[string]any)
		require.Equal(t, with(c.want, map[string]any{"namespace": c.namespace, "task": c.task}), stored, "stored: %s", name)
	}
}

func get(b *bench, queue string) []byte {
	b.t.Helper()
	doc, err := b.store.GetQueue(b.t.Context(), store.DefaultTenant(), queue)
	require.NoError(b.t, err)
	return doc
}

func TestMergeIntoANewQueueTakesTheDefaults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, with(defaults(), map[string]any{"ttl": 5.0}), b.configure("new", `{"ttl": 5}`, true)["options"])

	b.queued(segment("pushed.in", "p", 1))
	out := b.configure("pushed.in", `{"ttl": 5}`, true)
	require.Equal(t, with(defaults(), map[string]any{"ttl": 5.0, "leaseTime": 60.0}), out["options"], "a pushed queue keeps its lease")
	require.Equal(t, []any{"pushed", "in"}, []any{out["namespace"], out["task"]})
	require.EqualValues(t, 300, b.configure("pushed.in", ``, false)["options"].(map[string]any)["leaseTime"])
}

func TestConfigureClampsAndConverts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cases := map[string]struct {
		key  string
		want float64
	}{
		`{"minPopWaitTime": -1}`:             {"minPopWaitTime", 0},
		`{"minPopWaitTime": 60001}`:          {"minPopWaitTime", 60000},
		`{"minPopWaitTime": 60000}`:          {"minPopWaitTime", 60000},
		`{"dedupWindowSeconds": -5}`:         {"dedupWindowSeconds", 0},
		`{"dedupWindowSeconds": 0}`:          {"dedupWindowSeconds", 0},
		`{"leaseTime": -7}`:                  {"leaseTime", -7},
		`{"priority": 1e3}`:                  {"priority", 1000},
		`{"priority": 5.0}`:                  {"priority", 5},
		`{"priority": -2147483648}`:          {"priority", -2147483648},
		`{"dedupWindowSeconds": 2147483647}`: {"dedupWindowSeconds", 2147483647},
	}
	for options, c := range cases {
		require.Equal(t, c.want, b.configure("q", options, false)["options"].(map[string]any)[c.key], options)
	}
}

func TestConfigureRefusesWrongValuesAndWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("old", `{"leaseTime": 77}`, false)
	long := `"` + string(make256('x')) + `"`
	cases := []struct{ options, invalid, allowed string }{
		{`{"leaseTime": "30"}`, "leaseTime", "integer"},
		{`{"leaseTime": true}`, "leaseTime", "integer"},
		{`{"leaseTime": [1]}`, "leaseTime", "integer"},
		{`{"leaseTime": 1.5}`, "leaseTime", "integer"},
		{`{"leaseTime": 2147483648}`, "leaseTime", "2147483647"},
		{`{"leaseTime": 1e300}`, "leaseTime", "2147483647"},
		{`{"dedupWindowSeconds": -2147483649}`, "dedupWindowSeconds", "-2147483648"},
		{`{"minPopWaitTime": 99999999999}`, "minPopWaitTime", "integer"},
		{`{"retentionEnabled": 1}`, "retentionEnabled", "true or false"},
		{`{"retentionEnabled": "true"}`, "retentionEnabled", "true or false"},
		{`{"namespace": 5}`, "namespace", "string"},
		{`{"task": ` + long + `}`, "task", "255"},
		{`{"leaseTime": 9, "ttl": {}}`, "ttl", "integer"},
		{`[1]`, "options", "object"},
		{`null`, "options", "object"},
		{`7`, "options", "object"},
	}
	for _, c := range cases {
		for _, queue := range []string{"old", "new"} {
			for _, merge := range []bool{false, true} {
				out := b.configure(queue, c.options, merge)
				require.Equal(t, c.invalid, out["invalid"], c.options)
				require.Contains(t, out["error"], c.invalid, c.options)
				require.Contains(t, out["error"], c.allowed, c.options)
				require.NotContains(t, out, "configured")
			}
		}
	}
	require.Contains(t, b.configure("old", `{"leaseTime": "soon"}`, false)["error"], `got "soon"`)
	require.Equal(t, "queue", b.configure(string(make256('q')), `{}`, false)["invalid"])
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.queues`), "nothing was created")
	require.EqualValues(t, 77, b.count(`SELECT lease_time FROM queen.queues`), "nothing was changed")
}

func make256(c byte) []byte {
	out := make([]byte, 256)
	for i := range out {
		out[i] = c
	}
	return out
}

func TestConcurrentConfigureCreatesOneQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	options := []string{
		"priority", "leaseTime", "retryLimit", "retryDelay", "maxSize", "ttl", "delayedProcessing", "windowBuffer",
	}
	var group errgroup.Group
	for _, key := range options {
		group.Go(func() error {
			_, err := b.store.Configure(t.Context(), store.DefaultTenant(), "q", json.RawMessage(`{"`+key+`": 42}`), true)
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.queues`))
	got := object(t, get(b, "q"))["options"].(map[string]any)
	for _, key := range options {
		require.Equal(t, 42.0, got[key], "%s: no merge is lost", key)
	}
}

func TestQueueSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, ok, err := b.store.QueueSettings(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	require.False(t, ok)

	b.queued(segment("q", "p", 1))
	q, ok, err := b.store.QueueSettings(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	require.True(t, ok)
	require.NotEqual(t, uuid.Nil, q.ID)
	require.Equal(t, store.QueueSettings{ID: q.ID, DedupWindow: 3600, LeaseTime: 60}, q)

	b.configure("q", `{"dedupWindowSeconds": 5, "encryptionEnabled": true, "minPopWaitTime": 6, "windowBuffer": 7, "delayedProcessing": 8, "leaseTime": 9}`, false)
	id := q.ID
	q, ok, err = b.store.QueueSettings(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, store.QueueSettings{
		ID: id, DedupWindow: 5, EncryptionEnabled: true, MinPopWaitMillis: 6, WindowBuffer: 7, DelayedProcessing: 8, LeaseTime: 9,
	}, q)
	_, ok, err = b.store.QueueSettings(t.Context(), uuid.New(), "q")
	require.NoError(t, err)
	require.False(t, ok, "another tenant's queue is unknown")
}

func TestDeleteQueueRemovesAllThatBelongsToIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	keep := b.queued(segment("keep", "p", 1)).PartitionID
	for _, id := range []uuid.UUID{pid, keep} {
		b.exec(`INSERT INTO queen.log_consumers (partition_id) VALUES ($1)`, id)
		b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'g', 0)`, id)
		b.exec(`INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) SELECT queue_id, 'g' FROM queen.log_partitions WHERE id = $1`, id)
		b.exec(`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
			SELECT 'g', queue_id, 'all', now() FROM queen.log_partitions WHERE id = $1`, id)
		b.exec(`INSERT INTO queen.stats (stat_type, stat_key, queue_id) SELECT 'queue', queue_id, queue_id FROM queen.log_partitions WHERE id = $1`, id)
		b.exec(`INSERT INTO queen.message_traces (partition_id, transaction_id) VALUES ($1, 't')`, id)
	}

	doc, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	require.JSONEq(t, `{"deleted": true, "queue": "q", "existed": true}`, string(doc))
	for _, table := range []string{"queues", "log_partitions", "log_segments", "log_txns", "log_consumers", "log_dlq",
		"consumer_watermarks", "consumer_groups_metadata", "stats"} {
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.`+table), "%s keeps the other queue's row alone", table)
	}
	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.message_traces`), "traces stay")

	doc, err = b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	require.JSONEq(t, `{"deleted": false, "queue": "q", "existed": false, "message": "Queue not found, nothing was deleted"}`, string(doc))

	again := b.queued(segment("q", "p", 1))
	require.Zero(t, again.BaseOffset, "offsets start anew")
	require.NotEqual(t, pid, again.PartitionID)
}

// The deletion waits for a cursor that an ack holds, and a pusher behind it is
// told to try again.
func TestDeleteQueueWaitsForWritersOfItsLanes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	deleted := make(chan error, 1)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT queen.log_push_one_v1('q', 'p', 1, $1, -1, 'x')`, hash(2)); err != nil {
				return err
			}
			go func() {
				_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
				deleted <- err
			}()
			return waitUntilBlocked(ctx, tx, 1)
		})
	}))
	require.NoError(t, <-deleted)
	b.assertNoOrphans()
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_txns`), "what landed before is deleted too")
}

func TestListQueues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	list := func(tenant uuid.UUID) []any {
		doc, err := b.store.ListQueues(t.Context(), tenant, false)
		require.NoError(t, err)
		return object(t, doc)["queues"].([]any)
	}
	require.Empty(t, list(store.DefaultTenant()))

	b.configure("empty", `{"namespace": "n", "task": "t"}`, false)
	b.push(segment("b.c", "p", 1, 2), segment("b.c", "r", 1))
	b.push(segment("b.c", "p", 3))
	b.exec(`UPDATE queen.log_partitions SET log_start = 2 WHERE name = 'p'`)
	b.exec(`DELETE FROM queen.log_segments s USING queen.log_partitions p WHERE p.id = s.partition_id AND s.end_offset < p.log_start`)
	b.exec(`INSERT INTO queen.stats (stat_type, stat_key, queue_id, pending_messages, processing_messages, retained_bytes)
		SELECT 'queue', id, id, 5, 3, 999 FROM queen.queues WHERE name = 'b.c'`)

	queues := list(store.DefaultTenant())
	require.Len(t, queues, 2)
	first, second := queues[0].(map[string]any), queues[1].(map[string]any)
	for _, q := range []map[string]any{first, second} {
		require.NoError(t, uuid.Validate(q["id"].(string)))
		requireMillis(t, q["createdAt"])
		delete(q, "id")
		delete(q, "createdAt")
	}
	require.Equal(t, map[string]any{
		"name": "b.c", "namespace": "b", "task": "c", "partitions": 2.0, "retainedBytes": 999.0,
		"segments": map[string]any{"segments": 2.0, "messages": 2.0},
		"messages": map[string]any{"total": 2.0, "pending": 5.0, "processing": 3.0},
	}, first)
	require.Equal(t, map[string]any{
		"name": "empty", "namespace": "n", "task": "t", "partitions": 0.0, "retainedBytes": 0.0,
		"segments": map[string]any{"segments": 0.0, "messages": 0.0},
		"messages": map[string]any{"total": 0.0, "pending": 0.0, "processing": 0.0},
	}, second)
	require.Empty(t, list(uuid.New()))
}

func TestListQueuesTellsWhatKeysAndTimersOccupy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	list := func(tenant uuid.UUID) string {
		doc, err := b.store.ListQueues(t.Context(), tenant, false)
		require.NoError(t, err)
		return string(doc)
	}
	const nothing = `{"queues":[],"kvRows":0,"kvBytes":0,"timerBytes":0}`
	require.JSONEq(t, nothing, list(store.DefaultTenant()), "nothing is measured yet")
	b.exec(`INSERT INTO queen.kv_usage (tenant_id, kv_rows, kv_bytes, timer_rows, timer_bytes) VALUES ($1, 3, 12345678901, 5, 6)`,
		store.DefaultTenant())
	require.JSONEq(t, `{"queues":[],"kvRows":3,"kvBytes":12345678901,"timerBytes":6}`, list(store.DefaultTenant()))
	require.JSONEq(t, nothing, list(uuid.New()), "they are of one tenant")
}

func requireMillis(t *testing.T, v any) {
	t.Helper()
	text, ok := v.(string)
	require.True(t, ok, "%v", v)
	at, err := time.Parse("2006-01-02T15:04:05.000Z", text)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Hour)
}

func TestGetQueueCountsByWatermarks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.JSONEq(t, `{"error": "Queue not found"}`, string(get(b, "q")))

	// Ten messages, the first two deleted; two named groups at 3 and 6, the
	// queue-mode cursor far behind; a live lease of two and a dead one.
	var pid uuid.UUID
	for id := range uint64(5) {
		pid = b.queued(segment("q", "p", 2*id, 2*id+1)).PartitionID
	}
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 0`, pid)
	b.exec(`UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1`, pid)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, lease_expires_at) VALUES
		($1, 'slow', 3, 5, now() + interval '1 hour'), ($1, 'fast', 6, 8, now() - interval '1 hour'), ($1, '__QUEUE_MODE__', -1, NULL, NULL)`, pid)
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'slow', 2)`, pid)
	b.queued(segment("q", "idle", 1))
	b.exec(`INSERT INTO queen.log_consumers (partition_id, committed) SELECT id, 0 FROM queen.log_partitions WHERE name = 'idle'`)
	b.configure("q", `{"priority": 4}`, true)

	out := object(t, get(b, "q"))
	require.Equal(t, map[string]any{"total": 9.0, "pending": 6.0, "processing": 2.0, "completed": 2.0, "failed": nil, "deadLetter": 1.0}, out["totals"])
	require.Equal(t, map[string]any{"segments": 5.0, "messages": 9.0}, out["segments"])
	require.Equal(t, []any{"q", "q", "", 4.0, 0.0}, []any{out["name"], out["namespace"], out["task"], out["priority"], out["retainedBytes"]})
	requireMillis(t, out["createdAt"])

	partitions := out["partitions"].([]any)
	require.Len(t, partitions, 2)
	idle, busy := partitions[0].(map[string]any), partitions[1].(map[string]any)
	require.Equal(t, "idle", idle["name"], "by name")
	require.Nil(t, idle["oldestMessage"], "nothing is pending")
	requireMillis(t, idle["newestMessage"])
	require.Equal(t, map[string]any{"total": 8.0, "pending": 6.0, "processing": 2.0, "completed": 1.0, "failed": nil, "deadLetter": 1.0}, busy["stats"])
	require.Equal(t, pid.String(), busy["id"])
	requireMillis(t, busy["createdAt"])

	oldest, newest := stampOf(b, pid, 4), stampOf(b, pid, 8)
	require.Equal(t, []any{oldest, newest}, []any{busy["oldestMessage"], busy["newestMessage"]})
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 4`, pid)
	busy = object(t, get(b, "q"))["partitions"].([]any)[1].(map[string]any)
	require.Equal(t, stampOf(b, pid, 6), busy["oldestMessage"], "the next one after a gap")
}

func stampOf(b *bench, pid uuid.UUID, base int64) (text string) {
	b.t.Helper()
	// Truncated, as the wire shows it.
	b.one([]any{&text}, `SELECT to_char(date_trunc('milliseconds', created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
		FROM queen.log_segments WHERE partition_id = $1 AND base_offset = $2`, pid, base)
	return text
}

func TestTimestampFormsOfTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var micros, millis string
	b.one([]any{&micros, &millis}, `SELECT queen.iso_us_v1('2026-01-02 03:04:05.0067+00'), queen.iso_ms_v1('2026-01-02 05:04:05.0999+02')`)
	require.Equal(t, []string{"2026-01-02T03:04:05.006700Z", "2026-01-02T03:04:05.099Z"}, []string{micros, millis})
}

// Beyond ten thousand partitions a detail lists the first ones, and says so.
func TestDetailsListABoundedNumberOfPartitions(t *testing.T) {
	t.Parallel()
	const shown = 10_000
	b := setup(t)
	b.configure("q", `{}`, false)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset)
		SELECT q.id, lpad(n::text, 6, '0'), 0 FROM queen.queues AS q, generate_series(1, $1::int) AS n`, shown)
	tenant := store.DefaultTenant()
	details := map[string]func() (store.RawJSON, error){
		"detail": func() (store.RawJSON, error) { return b.store.GetQueue(t.Context(), tenant, "q") },
		"status": func() (store.RawJSON, error) { return b.store.QueueDetail(t.Context(), tenant, "q") },
		"depth":  func() (store.RawJSON, error) { return b.store.QueueDepth(t.Context(), tenant, "q", "") },
	}
	for name, detail := range details {
		doc := read[document](t)(detail())
		require.Len(t, doc["partitions"], shown, name)
		require.NotContains(t, doc, "partitionsTruncated", name)
	}
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT q.id, '000000', 6 FROM queen.queues AS q`)
	for name, detail := range details {
		doc := read[document](t)(detail())
		require.Len(t, doc["partitions"], shown, name)
		require.Equal(t, true, doc["partitionsTruncated"], name)
	}
	require.Equal(t, float64(shown+7), read[document](t)(details["depth"]())["pending"], "sums are of all")
	require.Equal(t, float64(shown+7), read[document](t)(details["detail"]())["totals"].(document)["pending"])
}

func TestListQueuesFromTheLastRefresh(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(segment("q", "p", 1, 2))
	b.refresh()
	b.measure(10)
	b.push(segment("q", "r", 1, 2, 3))
	list := func(cached bool) document {
		doc, err := b.store.ListQueues(t.Context(), store.DefaultTenant(), cached)
		return read[document](t)(doc, err)["queues"].([]any)[0].(document)
	}
	require.Equal(t, []any{2.0, document{"segments": 2.0, "messages": 5.0}}, []any{list(false)["partitions"], list(false)["segments"]})
	require.Equal(t, []any{1.0, document{"segments": 1.0, "messages": 2.0}}, []any{list(true)["partitions"], list(true)["segments"]})
	require.Equal(t, document{"total": 2.0, "pending": 2.0, "processing": 0.0}, list(true)["messages"])
}

// Windows without the switch delete nothing, which is seldom meant.
func TestQueuesWhoseRetentionIsSwitchedOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	off := func() int64 {
		n, err := b.store.RetentionSwitchedOff(t.Context())
		require.NoError(t, err)
		return n
	}
	b.configure("none", `{}`, false)
	b.configure("evicts", `{"maxWaitTimeSeconds": 60}`, false)
	b.configure("on", `{"retentionEnabled": true, "retentionSeconds": 60, "completedRetentionSeconds": 60}`, false)
	require.Zero(t, off())
	b.configure("time", `{"retentionSeconds": 60}`, false)
	require.EqualValues(t, 1, off())
	b.configure("completed", `{"completedRetentionSeconds": 60}`, false)
	require.EqualValues(t, 2, off())
	b.configure("time", `{"retentionSeconds": 60, "retentionEnabled": true}`, false)
	require.EqualValues(t, 1, off())
}
