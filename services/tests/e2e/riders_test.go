package e2e_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// bundle runs a transaction and requires that it was processed.
func bundle(t *testing.T, b *harness.Broker, body object) object {
	t.Helper()
	a := send(t, b, asJS(), http.MethodPost, txPath, mustJSON(t, body))
	require.Equal(t, http.StatusOK, a.Status, a)
	o := a.Object(t)
	require.NotEmpty(t, o["transactionId"], a)
	return o
}

// requireCommitted requires a bundle that was committed, and answers its results.
func requireCommitted(t *testing.T, o object) []object {
	t.Helper()
	require.Equal(t, true, o["success"], o)
	require.NotContains(t, o, "reason")
	list, ok := o["results"].([]any)
	require.True(t, ok, o)
	results := make([]object, len(list))
	for i, r := range list {
		results[i] = r.(object)
		require.InDelta(t, i, results[i]["index"], 0, o)
	}
	return results
}

// in puts an operation on a key into a namespace.
func in(ns string, op object) object { return plus(op, "ns", ns) }

func ops(list ...any) []any { return slices.Concat([]any{}, list) }

func TestRiderClientResultsStandInOneArray(t *testing.T) {
	t.Parallel()
	ns := namespace()
	for name, first := range map[string]bool{"acks before pushes": true, "acks after pushes": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 1, "")
			key := name
			operations := ops(push(harness.Item{Queue: q + "-to", TransactionID: "t", Payload: 1}, harness.Item{Queue: q + "-to", Payload: 2}))
			if done := ack(p.Messages[0].Ack("completed")); first {
				operations = slices.Insert(operations, 0, done)
			} else {
				operations = append(operations, done)
			}
			o := bundle(t, b, object{
				"operations": operations, "requiredLeases": []string{p.LeaseID},
				"timers": ops(schedule(q+"-timers", key, later, 1), cancel(q+"-timers", "never", "txn", "x")),
				"kv":     ops(in(ns, put(key, 1.0)), in(ns, fetch(key)), in(ns, putIfAbsent(key+" 2", 2.0, "ttlSeconds", 60))),
			})
			results := requireCommitted(t, o)
			require.Len(t, results, 8)
			var types []any
			for _, r := range results[:3] {
				types = append(types, r["type"])
			}
			require.ElementsMatch(t, []any{"push", "push", "ack"}, types)
			require.Equal(t, []any{"kv", "kv", "kv", "timer", "timer"}, column(results[3:], "type"))
			require.Equal(t, []any{0.0, 1.0, 2.0, 0.0, 1.0}, column(results[3:], "opIndex"))
			require.Equal(t, []any{"put", "get", "putIfAbsent"}, column(results[3:6], "op"))
			version := requireApplied(t, results[3], key, 1.0)
			require.Equal(t, object{"found": true, "key": key, "value": 1.0, "version": version}, part(results[4], "found", "key", "value", "version"))
			requireApplied(t, results[5], key+" 2", 2.0)
			require.Equal(t, object{"ok": true, "status": "scheduled", "queue": q + "-timers", "timerKey": key, "txn": "txn-" + key},
				part(results[6], "ok", "status", "queue", "timerKey", "txn"))
			requireUUIDv7(t, results[6]["messageId"].(string))
			requireInstant(t, results[6]["deliverAt"])
			require.Equal(t, object{"ok": false, "status": "absent", "txn": "x"}, part(results[7], "ok", "status", "txn"))
			b.RequireNone(t, harness.PopPath(q, ""))
		})
	}
}

func TestRiderClientWithoutRidersNothingChanges(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, riders := range []string{``, `,"kv":null,"timers":null`, `,"kv":[],"timers":[]`, `,"kv":[]`} {
		a := b.Post(t, txPath, fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":%q,"payload":1}]}]%s}`, q, riders))
		require.Equal(t, http.StatusOK, a.Status, a)
		results := requireCommitted(t, a.Object(t))
		require.Len(t, results, 1)
		requireKeys(t, results[0], "index", "type", "success", "transactionId", "messageId", "queueName")
	}
}

func TestRiderClientRidersAlone(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ns := namespace()
	for _, body := range []object{
		{"operations": []any{}, "kv": ops(in(ns, put("alone", 1.0)))},
		{"operations": []any{}, "timers": ops(schedule(q, "alone", later, 1))},
		{"operations": []any{}, "kv": ops(in(ns, incr("both", 1))), "timers": ops(schedule(q, "both", later, 1))},
	} {
		o := bundle(t, b, body)
		results := requireCommitted(t, o)
		requireKeys(t, o, "transactionId", "success", "results")
		requireUUIDv7(t, o["transactionId"].(string))
		for i, r := range results {
			require.Contains(t, []any{"kv", "timer"}, r["type"])
			require.InDelta(t, map[any]int{"kv": 0, "timer": 0}[r["type"]], r["opIndex"], 0)
			require.InDelta(t, i, r["index"], 0)
		}
	}
	require.EqualValues(t, 2, harness.Value[int64](t, b.DB, `SELECT count(*) FROM queen.kv WHERE namespace = $1`, ns))
	require.EqualValues(t, 2, harness.Value[int64](t, b.DB, `SELECT count(*) FROM queen.log_timers WHERE queue = $1`, q))

	// A lost precondition looks the same, whatever rides along.
	for _, beside := range []object{{}, {"timers": ops(schedule(q, "never", later, 1))}} {
		o := bundle(t, b, plus(object{"operations": []any{}, "kv": ops(in(ns, fetch("alone")), in(ns, putIfAbsent("alone", 2.0, "required", true)))}, flatten(beside)...))
		require.Equal(t, object{"success": false, "reason": "kv_precondition", "failedIndex": 1.0, "kvReason": "exists", "value": 1.0, "results": []any{}},
			part(o, "success", "reason", "failedIndex", "kvReason", "value", "results"), o)
	}
	require.EqualValues(t, 2, harness.Value[int64](t, b.DB, `SELECT count(*) FROM queen.log_timers WHERE queue = $1`, q))
}

func flatten(o object) []any {
	var out []any
	for k, v := range o {
		out = append(out, k, v)
	}
	return out
}

// TestRiderClientGate is how the clients push exactly once per key.
func TestRiderClientGate(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ns := namespace()
	gate := func(value int) object {
		return object{"operations": ops(push(harness.Item{Queue: q, Payload: value})), "kv": ops(in(ns, putIfAbsent("gate", float64(value), "required", true)))}
	}
	version := requireCommitted(t, bundle(t, b, gate(1)))[1]["version"]
	o := bundle(t, b, gate(2))
	require.Equal(t, object{
		"success": false, "reason": "kv_precondition", "failedIndex": 1.0, "kvReason": "exists", "version": version, "value": 1.0, "results": []any{},
	}, part(o, "success", "reason", "failedIndex", "kvReason", "version", "value", "results"), o)
	require.Equal(t, []string{"1"}, b.Pop(t, q, "batch=10").Payloads())
	require.EqualValues(t, 0, lastOffsets(t, b, q))
}

// A lost write that is not required is told and fails nothing.
func TestRiderClientLostWritesThatAreNotRequired(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ns := namespace()
	requireCommitted(t, bundle(t, b, object{"operations": []any{}, "kv": ops(in(ns, put("k", 1.0)))}))
	results := requireCommitted(t, bundle(t, b, object{
		"operations": ops(push(harness.Item{Queue: q, Payload: 1})),
		"kv":         ops(in(ns, putIfAbsent("k", 2.0)), in(ns, del("none")), in(ns, put("other", 1.0, "expect", 5)), in(ns, incr("c", 2, "max", 1))),
	}))
	require.Equal(t, []any{"exists", "absent", "absent", "limit"}, column(results[1:], "reason"))
	require.Equal(t, []any{false, false, false, false}, column(results[1:], "applied"))
	require.Len(t, b.Pop(t, q, "").Messages, 1)
}

// What one worker does with a message, as the documentation shows it.
func TestRiderClientHandlerStateAndTimer(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	ns := namespace()
	key := fmt.Sprintf("@p/%s/p/%s/seen", q, harness.QueueMode)
	for i, m := range p.Messages {
		a := m.Ack("completed")
		a.LeaseID = ""
		results := requireCommitted(t, bundle(t, b, object{
			"operations": ops(ack(a)), "requiredLeases": []string{p.LeaseID},
			"kv": ops(in(ns, incr(key, 1))), "timers": ops(schedule(q+"-remind", "user", later, i, "txn", m.TransactionID)),
		}))
		requireApplied(t, results[1], key, float64(i+1))
		require.Equal(t, map[bool]string{true: "scheduled", false: "rescheduled"}[i == 0], results[2]["status"])
	}
	b.RequireNone(t, harness.PopPath(q, ""))
}

func TestRiderRefusals(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ns := namespace()
	base := func(more ...any) object {
		return plus(object{"operations": ops(push(harness.Item{Queue: q, Payload: 1}))}, more...)
	}
	kvOps := func(n int, op func(int) object) []any {
		var out []any
		for i := range n {
			out = append(out, in(ns, op(i)))
		}
		return out
	}
	keyed := func(i int) object { return put(fmt.Sprint(i), 1.0) }
	many := func(n int) object { return object{"op": "getMany", "keys": slices.Repeat([]string{"k"}, n)} }
	for name, c := range map[string]struct {
		body         object
		status       int
		reason, text string
	}{
		"a kv operation among the operations":    {object{"operations": ops(object{"type": "kv", "op": "get", "ns": ns, "key": "k"})}, 400, "bad_request", "TOP LEVEL"},
		"a timer operation among the operations": {object{"operations": ops(object{"type": "timer"})}, 400, "bad_request", ""},
		"a kv rider that is an object":           {base("kv", object{}), 400, "bad_request", "TOP LEVEL"},
		"a timer rider that is a text":           {base("timers", "x"), 400, "bad_request", "TOP LEVEL"},
		"a prefix page":                          {base("kv", ops(in(ns, object{"op": "getPrefix", "prefix": "k"}))), 400, "bad_request", "getPrefix"},
		"65 operations":                          {base("kv", kvOps(65, keyed)), -1, "", ""},
		"257 keys":                               {base("kv", ops(in(ns, many(257)))), -1, "", ""},
		"257 timers":                             {base("timers", slices.Repeat(ops(cancel(q, "k")), 257)), -1, "", ""},
		"an unknown kv operation":                {base("kv", ops(in(ns, object{"op": "shout", "key": "k"}))), -1, "", ""},
		"a kv operation without an expiry":       {base("kv", ops(in(ns, put("k", 1.0, "forever", false)))), -1, "", ""},
		"one key written twice":                  {base("kv", ops(in(ns, put("k", 1.0)), in(ns, del("k")))), -1, "", ""},
		"a large value":                          {base("kv", ops(in(ns, put("k", repeat(65535))))), -1, "payload_too_large", ""},
		"a timer with another project's members": {base("timers", ops(object{"op": "schedule", "queue": q, "key": "k", "delaySeconds": 1, "payload": "e30="})), -1, "", ""},
		"a timer beyond the horizon":             {base("timers", ops(schedule(q, "k", 7776000001, 1))), -1, "timer_horizon_exceeded", ""},
		"a timer with a large payload": {base("timers", ops(schedule(q, "k", later, 1, "payload",
			base64.StdEncoding.EncodeToString(make([]byte, 1<<20+1))))), -1, "payload_too_large", ""},
		"a timer with a server's member": {base("timers", ops(schedule(q, "k", later, 1, "_messageId", "x"))), -1, "", ""},
		"one timer twice":                {base("timers", ops(schedule(q, "k", later, 1), cancel(q, "k"))), -1, "", ""},
	} {
		a := b.Post(t, txPath, mustJSON(t, c.body))
		if c.status > 0 {
			require.Equal(t, c.status, a.Status, "%s: %s", name, a)
		}
		// A business outcome is final: clients repeat a 5xx.
		require.Contains(t, []int{200, 400, 403, 413}, a.Status, "%s: %s", name, a)
		o := a.Object(t)
		require.Equal(t, false, o["success"], "%s: %s", name, a)
		require.NotEmpty(t, o["reason"], "%s: %s", name, a)
		require.NotEmpty(t, o["error"], "%s: %s", name, a)
		require.Equal(t, []any{}, o["results"], "%s: %s", name, a)
		require.NotContains(t, []any{"db_error", "misaligned"}, o["reason"], "%s: %s", name, a)
		require.Contains(t, o["error"], c.text, name)
		if c.reason != "" {
			require.Equal(t, c.reason, o["reason"], "%s: %s", name, a)
		}
	}
	requireNoTrace(t, b, q, ns)

	results := requireCommitted(t, bundle(t, b, object{"operations": []any{}, "kv": kvOps(64, keyed)}))
	require.Len(t, results, 64)
	requireCommitted(t, bundle(t, b, object{"operations": []any{}, "kv": ops(in(ns, many(256)))}))
	requireCommitted(t, bundle(t, b, object{"operations": []any{}, "kv": ops(in(ns, many(255)), in(ns, fetch("k")))}))
}

// requireNoTrace requires that a transaction on a queue and a namespace has left
// nothing.
func requireNoTrace(t *testing.T, b *harness.Broker, q, ns string) {
	t.Helper()
	require.False(t, b.DB.HasQueue(t, q), "a queue")
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.kv WHERE namespace = $1`, ns), "keys")
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.log_timers WHERE queue = $1`, q), "timers")
}

// everything is what is in the database of the queues and namespaces of one test.
const everything = `SELECT jsonb_build_object(
	'kv', (SELECT jsonb_agg(to_jsonb(k) ORDER BY k.key) FROM queen.kv AS k WHERE k.namespace = $2),
	'timers', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.queue, t.timer_key) FROM queen.log_timers AS t WHERE t.queue LIKE $1 || '%'),
	'queues', (SELECT jsonb_agg(to_jsonb(q) ORDER BY q.name) FROM queen.queues AS q WHERE q.name LIKE $1 || '%'),
	'partitions', (SELECT jsonb_agg(to_jsonb(p) ORDER BY p.id) FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%'),
	'segments', (SELECT jsonb_agg(jsonb_build_array(s.partition_id, s.base_offset, s.end_offset) ORDER BY s.partition_id, s.base_offset)
		FROM queen.log_segments AS s JOIN queen.log_partitions AS p ON p.id = s.partition_id JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%'),
	'ids', (SELECT count(*) FROM queen.log_txns AS x JOIN queen.log_partitions AS p ON p.id = x.partition_id JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%'),
	'consumers', (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.partition_id, c.consumer_group) FROM queen.log_consumers AS c
		JOIN queen.log_partitions AS p ON p.id = c.partition_id JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%'),
	'dead', (SELECT count(*) FROM queen.log_dlq AS d JOIN queen.log_partitions AS p ON p.id = d.partition_id JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%')
)::text`

// TestRidersThatFailLeaveNoTrace has one transaction fail at each of its steps. All
// the others of it would have succeeded, and do in the end.
func TestRidersThatFailLeaveNoTrace(t *testing.T) {
	t.Parallel()
	// The common database sees pops and leases of these queues by nobody else.
	b, q, p := leased(t, 3, "")
	ns := namespace()
	requireCommitted(t, bundle(t, b, object{
		"operations": ops(push(harness.Item{Queue: q + "-to", TransactionID: "known", Payload: 0})),
		"kv":         ops(in(ns, put("doc", "old")), in(ns, incr("count", 5)), in(ns, put("doomed", 1.0))),
		"timers":     ops(schedule(q+"-t", "moved", later, 1), schedule(q+"-t", "cancelled", later, 1)),
	}))
	good := func() object {
		return object{
			"operations": ops(
				push(harness.Item{Queue: q + "-to", TransactionID: "fresh", Payload: 1}, harness.Item{Queue: q + "-new", Partition: "x", Payload: 2}),
				ack(p.Messages[0].Ack("completed")), ack(p.Messages[1].Ack("failed")),
			),
			"requiredLeases": []string{p.LeaseID},
			"kv":             ops(in(ns, put("doc", "new")), in(ns, incr("count", 1)), in(ns, del("doomed")), in(ns, putIfAbsent("made", 1.0))),
			"timers":         ops(schedule(q+"-t", "made", later, 1), schedule(q+"-t", "moved", 2*later, 2), cancel(q+"-t", "cancelled")),
		}
	}
	add := func(member string, op any) func(object) {
		return func(o object) { o[member] = append(o[member].([]any), op) }
	}
	unknown, foreign, other := p.Messages[2].Ack("completed"), p.Messages[2].Ack("completed"), p.Messages[2].Ack("completed")
	unknown.TransactionID = "nobody-knows"
	foreign.PartitionID = zeroUUID
	other.LeaseID = zeroUUID
	before := harness.Value[string](t, b.DB, everything, q, ns)
	for name, c := range map[string]struct {
		spoil  func(object)
		reason string // "" is any
	}{
		"kv: a lost required write":       {add("kv", in(ns, putIfAbsent("doc2", 1.0, "expect", 0, "required", true))), ""},
		"kv: a lost required version":     {add("kv", in(ns, del("none", "expect", 7, "required", true))), "kv_precondition"},
		"kv: a lost required limit":       {add("kv", in(ns, incr("none", 7, "max", 6, "required", true))), "kv_precondition"},
		"kv: an operation that is wrong":  {add("kv", in(ns, put("k", 1.0, "ttlSeconds", -1))), ""},
		"kv: a value that is too large":   {add("kv", in(ns, put("k", repeat(70000)))), "payload_too_large"},
		"timers: one that is wrong":       {add("timers", schedule(q+"-t", "k", later, 1, "txn", "")), ""},
		"timers: one beyond the horizon":  {add("timers", schedule(q+"-t", "k", 7776000001, 1)), "timer_horizon_exceeded"},
		"timers: one named twice":         {add("timers", cancel(q+"-t", "made")), ""},
		"push: an id that is known":       {add("operations", push(harness.Item{Queue: q + "-to", TransactionID: "known", Payload: 1})), "duplicate"},
		"ack: a message nobody knows":     {add("operations", ack(unknown)), "ack_rejected"},
		"ack: a partition nobody knows":   {add("operations", ack(foreign)), "ack_rejected"},
		"ack: a lease that is not theirs": {add("operations", ack(other)), "ack_rejected"},
	} {
		body := good()
		if name == "kv: a lost required write" {
			// "doc2" is free: it has to be taken for the write to be lost.
			body["kv"] = ops(in(ns, put("doc", "new")), in(ns, incr("count", 1, "max", 5, "required", true)))
		}
		c.spoil(body)
		a := b.Post(t, txPath, mustJSON(t, body))
		o := a.Object(t)
		require.Equal(t, false, o["success"], "%s: %s", name, a)
		require.Equal(t, []any{}, o["results"], "%s: %s", name, a)
		if c.reason != "" {
			require.Equal(t, c.reason, o["reason"], "%s: %s", name, a)
		}
		require.JSONEq(t, before, harness.Value[string](t, b.DB, everything, q, ns), name)
	}
	results := requireCommitted(t, bundle(t, b, good()))
	require.Len(t, results, 11)
	require.NotEqual(t, before, harness.Value[string](t, b.DB, everything, q, ns))
}

// TestRidersInOppositeOrdersDoNotDeadlock runs transactions that touch the same
// keys, timers, lanes and cursors, each in an order of its own, beside batches on
// the routes. The server's own count of deadlocks judges, since a broker repeats
// what lost one.
func TestRidersInOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q, ns := queueName(t), namespace()
	const workers, rounds, width = 8, 12, 8
	b.PushTogether(t, q, "p", 1)
	rng, _ := seeded(t)
	var bodies [workers * rounds]string
	for i := range bodies {
		order := rng.Perm(width)
		if i%2 == 0 {
			slices.Reverse(order)
		}
		var kv, ts, op []any
		for _, n := range order {
			kv = append(kv, in(ns, incr(fmt.Sprintf("k%d", n), 1)))
			ts = append(ts, schedule(q+"-t", fmt.Sprintf("k%d", n), later, i))
			op = append(op, push(harness.Item{Queue: q, Partition: fmt.Sprintf("lane-%d", n), Payload: i}))
		}
		body := object{"operations": op, "kv": kv, "timers": ts}
		switch i % 4 {
		case 2: // the same keys without the lanes
			body["operations"] = []any{}
		case 3: // rolled back at its end
			body["kv"] = append(kv, in(ns, del("never", "expect", 1, "required", true)))
		}
		bodies[i] = mustJSON(t, body)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				i := w*rounds + r
				a, err := b.Call(t.Context(), http.MethodPost, txPath, []byte(bodies[i]), "Content-Type", "application/json")
				lost := i%4 == 3
				if err != nil || a.Status != http.StatusOK || strings.Contains(string(a.Body), `"success":true`) == lost {
					t.Errorf("transaction %d: %v %s", i, err, a)
				}
			}
		})
	}
	wg.Wait()
	for _, one := range b.Each { // sessions report when they end
		one.Terminate(t)
	}
	harness.Eventually(t, arrival, "their sessions have ended", func() bool {
		return harness.Value[int](t, b.DB, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'queen-broker'`) == 0
	})
	require.Zero(t, harness.Value[int64](t, b.DB, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`))
	require.Equal(t, []int64{workers * rounds * 3 / 4}, harness.Value[[]int64](t, b.DB,
		`SELECT array_agg(DISTINCT (value #>> '{}')::bigint) FROM queen.kv WHERE namespace = $1`, ns), "every committed one counted once")
	require.Less(t, b.Slowest().Seconds(), 20.0)
}
