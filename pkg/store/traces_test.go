package store_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// trace records one trace that must be accepted, at a given second of a fixed minute.
func (b *bench) trace(second int, tr store.Trace) string {
	b.t.Helper()
	if tr.Tenant == uuid.Nil {
		tr.Tenant = store.DefaultTenant()
	}
	if tr.Data == nil {
		tr.Data = json.RawMessage(`{}`)
	}
	doc, err := b.store.RecordTrace(b.t.Context(), tr)
	require.NoError(b.t, err)
	id := object(b.t, doc)["traceId"].(string)
	b.exec(`UPDATE queen.message_traces SET created_at = '2026-05-01 10:00Z'::timestamptz + make_interval(secs => $2::int) WHERE id = $1`, id, second)
	return id
}

// shown is the list under a key, and the mark of the next page.
func shown(t *testing.T, doc []byte, err error, key, field string) (out []string, next string) {
	t.Helper()
	require.NoError(t, err)
	page := object(t, doc)
	out = []string{}
	for _, row := range page[key].([]any) {
		out = append(out, row.(map[string]any)[field].(string))
	}
	next, _ = page["next"].(string)
	return out, next
}

func TestTracesOfAMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	late := b.trace(9, store.Trace{
		PartitionID: pid.String(), TransactionID: "tx", ConsumerGroup: "g", EventType: "step", Data: json.RawMessage(`[1]`),
		WorkerID: "w", Names: []string{"b", "a", "b"},
	})
	early := b.trace(1, store.Trace{PartitionID: pid.String(), TransactionID: "tx", EventType: "info"})
	b.trace(1, store.Trace{PartitionID: pid.String(), TransactionID: "other"})

	doc, err := b.store.MessageTraces(t.Context(), store.DefaultTenant(), pid, "tx", store.PageArgs{Limit: 10})
	require.NoError(t, err)
	out := object(t, doc)
	require.Len(t, out, 1, "nothing but the traces: %s", doc)
	traces := out["traces"].([]any)
	require.Len(t, traces, 2)
	require.Equal(t, early, traces[0].(map[string]any)["id"])
	require.Equal(t, map[string]any{
		"id": late, "event_type": "step", "data": []any{1.0}, "consumer_group": "g", "worker_id": "w",
		"created_at": "2026-05-01T10:00:09.000Z", "trace_names": []any{"a", "b"},
	}, traces[1])

	doc, err = b.store.MessageTraces(t.Context(), uuid.New(), pid, "tx", store.PageArgs{Limit: 10})
	require.NoError(t, err)
	require.JSONEq(t, `{"traces":[]}`, string(doc), "of a partition of somebody else")
	b.exec(`DELETE FROM queen.queues`)
	left, _ := shown(t, first(b.store.MessageTraces(t.Context(), store.DefaultTenant(), pid, "tx", store.PageArgs{Limit: 10})), nil, "traces", "id")
	require.Equal(t, []string{early, late}, left, "they outlive the partition")
}

// first drops an error that must not be there.
func first(doc store.RawJSON, err error) []byte {
	if err != nil {
		panic(err)
	}
	return doc
}

func TestTracesByName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	foreign := segment("q", "p", 1)
	foreign.Tenant = uuid.New()
	other := b.queued(foreign).PartitionID
	var ids []string
	for i := range 5 {
		ids = append(ids, b.trace(i/2, store.Trace{PartitionID: pid.String(), TransactionID: fmt.Sprint("tx", i), Names: []string{"flow", fmt.Sprint("own", i)}}))
	}
	b.trace(0, store.Trace{Tenant: foreign.Tenant, PartitionID: other.String(), TransactionID: "tx", Names: []string{"flow"}})
	b.trace(0, store.Trace{PartitionID: uuid.NewString(), TransactionID: "tx", Names: []string{"flow", "lost"}})

	doc, err := b.store.TracesByName(t.Context(), store.DefaultTenant(), "flow", store.PageArgs{Limit: 2, Offset: 1})
	require.NoError(t, err)
	out := object(t, doc)
	require.EqualValues(t, 5, out["total"], "all of the tenant's")
	require.Equal(t, map[string]any{"limit": 2.0, "offset": 1.0}, out["pagination"])
	row := out["traces"].([]any)[0].(map[string]any)
	require.Equal(t, "q", row["queue_name"])
	require.Equal(t, "p", row["partition_name"])
	require.Equal(t, pid.String(), row["partition_id"])
	require.Contains(t, row, "message_payload")
	require.Nil(t, row["message_payload"])
	require.Contains(t, []any{"tx0", "tx1"}, row["transaction_id"])

	var all []string
	for page := (store.PageArgs{Limit: 2}); ; {
		var part []string
		part, page.After = shown(t, first(b.store.TracesByName(t.Context(), store.DefaultTenant(), "flow", page)), nil, "traces", "id")
		all = append(all, part...)
		if page.After == "" {
			break
		}
	}
	require.ElementsMatch(t, ids, all, "marks lead through all, each once")
	require.ElementsMatch(t, ids[:2], all[:2], "oldest first")

	doc, err = b.store.TracesByName(t.Context(), store.DefaultTenant(), "nothing", store.PageArgs{Limit: 2})
	require.NoError(t, err)
	require.JSONEq(t, `{"traces":[],"total":0,"pagination":{"limit":2,"offset":0}}`, string(doc))
}

func TestAPageOfTracesEndsWhereItIsFull(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	const traces = 30
	ids := make([]string, traces)
	for i := range ids {
		ids[i] = b.trace(i, store.Trace{PartitionID: pid.String(), TransactionID: "tx", Names: []string{"flow"}})
	}
	b.exec(`UPDATE queen.message_traces SET data = to_jsonb(repeat('ab', 500000))`)
	for name, read := range map[string]func(page store.PageArgs) (store.RawJSON, error){
		"by address": func(page store.PageArgs) (store.RawJSON, error) {
			return b.store.MessageTraces(t.Context(), store.DefaultTenant(), pid, "tx", page)
		},
		"by name": func(page store.PageArgs) (store.RawJSON, error) {
			return b.store.TracesByName(t.Context(), store.DefaultTenant(), "flow", page)
		},
	} {
		page := store.PageArgs{Limit: 1000}
		for i := range 3 {
			doc, err := read(page)
			part, next := shown(t, doc, err, "traces", "id")
			require.Equal(t, ids[8*i:8*i+8], part, "%s: eight of them fill a page", name)
			page.After = next
		}
	}
}

func TestTraceNames(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	b.trace(1, store.Trace{PartitionID: pid.String(), TransactionID: "a", Names: []string{"old", "often"}})
	b.trace(5, store.Trace{PartitionID: pid.String(), TransactionID: "a", Names: []string{"often"}})
	b.trace(7, store.Trace{PartitionID: pid.String(), TransactionID: "b", Names: []string{"often", "as late", "dotted.name"}})
	b.trace(8, store.Trace{PartitionID: uuid.NewString(), TransactionID: "b", Names: []string{"lost"}})

	doc, err := b.store.TraceNames(t.Context(), store.DefaultTenant(), store.PageArgs{Limit: 50})
	require.NoError(t, err)
	require.JSONEq(t, `{"trace_names":[
		{"trace_name":"as late","trace_count":1,"message_count":1,"last_seen":"2026-05-01T10:00:07.000Z"},
		{"trace_name":"dotted.name","trace_count":1,"message_count":1,"last_seen":"2026-05-01T10:00:07.000Z"},
		{"trace_name":"often","trace_count":3,"message_count":2,"last_seen":"2026-05-01T10:00:07.000Z"},
		{"trace_name":"old","trace_count":1,"message_count":1,"last_seen":"2026-05-01T10:00:01.000Z"}
	],"total":4,"pagination":{"limit":50,"offset":0}}`, string(doc))

	var all []string
	for page := (store.PageArgs{Limit: 1}); ; {
		var part []string
		part, page.After = shown(t, first(b.store.TraceNames(t.Context(), store.DefaultTenant(), page)), nil, "trace_names", "trace_name")
		all = append(all, part...)
		if page.After == "" {
			break
		}
	}
	require.Equal(t, []string{"as late", "dotted.name", "often", "old"}, all)
	some, _ := shown(t, first(b.store.TraceNames(t.Context(), store.DefaultTenant(), store.PageArgs{Limit: 2, Offset: 1})), nil, "trace_names", "trace_name")
	require.Equal(t, []string{"dotted.name", "often"}, some)
}

func TestTracesOfForeignPartitionsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	doc, err := b.store.RecordTrace(t.Context(), store.Trace{Tenant: uuid.New(), PartitionID: pid.String(), TransactionID: "t", Data: json.RawMessage(`1`)})
	require.NoError(t, err)
	require.JSONEq(t, `{"success":false,"error":"Message not found"}`, string(doc))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.message_traces`))
	_, err = b.store.RecordTrace(t.Context(), store.Trace{Tenant: store.DefaultTenant(), PartitionID: "nope", TransactionID: "t", Data: json.RawMessage(`1`)})
	require.ErrorContains(t, err, `invalid input syntax for type uuid: "nope"`)
}

func TestTracesTakeAnyData(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	raw := func(s string) string { return `{"$raw":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}` }
	for data, want := range map[string]string{
		`null`: `null`, `"x"`: `"x"`, `{"a":[1]}`: `{"a":[1]}`, `"\u0000"`: raw(`"\u0000"`), `"\ud800"`: raw(`"\ud800"`), `1e999999`: raw(`1e999999`),
	} {
		id := b.trace(1, store.Trace{PartitionID: pid.String(), TransactionID: "t", Data: json.RawMessage(data)})
		var got string
		b.one([]any{&got}, `SELECT data::text FROM queen.message_traces WHERE id = $1`, id)
		require.JSONEq(t, want, got, data)
	}
}

func TestMarksThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	micros := fmt.Sprint(time.Now().UnixMicro())
	for _, mark := range []string{"x", "1", "-1." + pid.String(), micros + ".", micros + ".x", "12345678901234567." + pid.String(), micros + "." + pid.String() + "0"} {
		page := store.PageArgs{Limit: 1, After: mark}
		for name, err := range map[string]error{
			"traces":   second(b.store.MessageTraces(t.Context(), store.DefaultTenant(), pid, "t", page)),
			"by name":  second(b.store.TracesByName(t.Context(), store.DefaultTenant(), "t", page)),
			"letters":  second(b.store.DLQMessages(t.Context(), store.DLQFilter{Tenant: store.DefaultTenant(), After: mark})),
			"messages": second(b.store.ListMessages(t.Context(), store.MessageFilter{Tenant: store.DefaultTenant(), After: mark})),
		} {
			var refused *store.BrowseRefused
			require.ErrorAs(t, err, &refused, "%s: %s", name, mark)
			require.Equal(t, `after must be the "next" of an earlier page`, refused.Text)
		}
	}
	require.Error(t, second(b.store.TraceNames(t.Context(), store.DefaultTenant(), store.PageArgs{Limit: 1, After: "nodot"})))
}

func second(_ store.RawJSON, err error) error { return err }
