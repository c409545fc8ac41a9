package store_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// rows lists the keys of one kind of row.
func (b *bench) keys(kind string) (keys []string) {
	b.t.Helper()
	b.one([]any{&keys}, `SELECT coalesce(array_agg(stat_key ORDER BY stat_key), '{}') FROM queen.stats WHERE stat_type = $1`, kind)
	return keys
}

func TestRollupsAddUpTheQueuesOfEachTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := uuid.New()
	theirs := func(s store.PushSegment) store.PushSegment { s.Tenant = other; return s }
	b.push(segment("n.t.a", "p", 0, 1, 2), segment("n.t.a", "r", 3), segment("n.u.b", "p", 0, 1), theirs(segment("n.t.a", "p", 0)))
	b.configure("plain", `{}`, false)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
		SELECT p.id, 'g', 0 FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = 'n.u.b'`)

	sum := b.refresh()
	require.Equal(t, []int64{4, 4, 3, 4}, []int64{sum.Queues, sum.Partitions, sum.Namespaces, sum.Tasks})
	ours := store.DefaultTenant().String()
	require.Equal(t, figures{Children: 2, Total: 6, Pending: 5, Completed: 1}, b.figures("namespace", ours+":n"))
	require.Equal(t, figures{Children: 1}, b.figures("namespace", ours+":"), "a queue without a label")
	require.Equal(t, figures{Children: 1, Total: 1, Pending: 1}, b.figures("namespace", other.String()+":n"))
	require.Equal(t, figures{Children: 1, Total: 4, Pending: 4}, b.figures("task", ours+":t"))
	require.Equal(t, figures{Children: 1, Total: 2, Pending: 1, Completed: 1}, b.figures("task", ours+":u"))
	require.Equal(t, figures{Children: 4, Total: 7, Pending: 6, Completed: 1}, b.figures("system", "global"), "children are partitions")

	var tenant, namespace string
	b.one([]any{&tenant, &namespace}, `SELECT tenant_id::text, namespace FROM queen.stats WHERE stat_key = $1 AND stat_type = 'namespace'`, other.String()+":n")
	require.Equal(t, []string{other.String(), "n"}, []string{tenant, namespace})
	var avg, median, low, high int64
	b.one([]any{&avg, &median, &low, &high}, `SELECT avg_offset_lag, median_offset_lag, min_offset_lag, max_offset_lag FROM queen.stats WHERE stat_type = 'system'`)
	require.Equal(t, []int64{2, 1, 1, 4}, []int64{avg, median, low, high}, "of the queues that have something pending")
}

func TestRollupsOfVanishedLabelsGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ours := store.DefaultTenant().String()
	b.configure("q", `{"namespace": "old", "task": "t"}`, false)
	b.configure("r", `{"namespace": "n", "task": "gone"}`, false)
	b.refresh()
	require.Equal(t, []string{ours + ":n", ours + ":old"}, b.keys("namespace"))

	b.configure("q", `{"namespace": "new", "task": "t"}`, false)
	_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "r")
	require.NoError(t, err)
	b.refresh()
	require.Equal(t, []string{ours + ":new"}, b.keys("namespace"))
	require.Equal(t, []string{ours + ":t"}, b.keys("task"))
	require.Len(t, b.keys("queue"), 1)
	require.Equal(t, []string{"global"}, b.keys("system"))

	_, err = b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	b.refresh()
	require.Empty(t, append(b.keys("namespace"), b.keys("task")...))
	require.Equal(t, figures{}, b.figures("system", "global"))
}

// A queue that leaves takes its previous values with it: what is left has no
// rate below or above its own.
func TestADeletedQueueMakesNoRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(segment("n.a", "p", 0, 1, 2), segment("n.b", "p", 0))
	b.refresh()
	b.queued(segment("n.b", "p", 1, 2))
	_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "n.a")
	require.NoError(t, err)
	b.refresh()
	var total, before int64
	b.one([]any{&total, &before}, `SELECT total_messages, prev_total FROM queen.stats WHERE stat_type = 'namespace'`)
	require.Equal(t, []int64{3, 1}, []int64{total, before})
}

func TestReadersShowWhatWasReconciled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	read := func(doc []byte, err error) map[string]any {
		t.Helper()
		require.NoError(t, err)
		return object(t, doc)
	}
	list := func(f store.StatusFilter) (names []string, first map[string]any) {
		t.Helper()
		f.Tenant = store.DefaultTenant()
		out := read(b.store.StatusQueues(t.Context(), f))
		require.Equal(t, map[string]any{"limit": float64(max(f.Limit, 0) + map[bool]int{true: 100}[f.Limit == 0]), "offset": float64(f.Offset)}, out["pagination"])
		names = []string{}
		for _, q := range out["queues"].([]any) {
			names = append(names, q.(map[string]any)["name"].(string))
			if first == nil {
				first = q.(map[string]any)
			}
		}
		return names, first
	}
	require.Equal(t, -1.0, read(b.store.StatsOverview(t.Context(), store.DefaultTenant()))["statsAge"], "never reconciled")

	b.layFigures("n.t")
	b.configure("m", `{"namespace": "n", "task": "u"}`, false)
	zero := map[string]any{"total": 0.0, "pending": 0.0, "processing": 0.0, "completed": 0.0, "deadLetter": 0.0}
	_, first := list(store.StatusFilter{})
	require.Equal(t, zero, first["messages"], "zeros before the first refresh")
	b.refresh()
	b.exec(`UPDATE queen.stats SET retained_bytes = 77 WHERE stat_type = 'queue' AND task = 't'`)

	names, first := list(store.StatusFilter{})
	require.Equal(t, []string{"m", "n.t"}, names)
	require.Equal(t, zero, first["messages"])
	for name, f := range map[string]store.StatusFilter{
		"by name": {Queue: "n.t"}, "by task": {Namespace: "n", Task: "t"}, "by page": {Limit: 1, Offset: 1},
	} {
		names, first = list(f)
		require.Equal(t, []string{"n.t"}, names, name)
	}
	requireMillis(t, first["createdAt"])
	delete(first, "createdAt")
	require.Equal(t, map[string]any{
		"id": b.queueID("n.t"), "name": "n.t", "namespace": "n", "task": "t", "partitions": 2.0, "retainedBytes": 77.0,
		"messages": map[string]any{"total": 9.0, "pending": 6.0, "processing": 2.0, "completed": 2.0, "deadLetter": 1.0},
	}, first)

	group := func(key, label string, queues, partitions, total, pending float64) map[string]any {
		return map[string]any{key: label, "queues": queues, "partitions": partitions, "messages": map[string]any{"total": total, "pending": pending}}
	}
	require.Equal(t, map[string]any{"namespaces": []any{group("namespace", "n", 2, 2, 9, 6)}}, read(b.store.Namespaces(t.Context(), store.DefaultTenant())))
	require.Equal(t, map[string]any{"tasks": []any{group("task", "t", 1, 2, 9, 6), group("task", "u", 1, 0, 0, 0)}}, read(b.store.Tasks(t.Context(), store.DefaultTenant())))
	require.Equal(t, map[string]any{"namespaces": []any{}}, read(b.store.Namespaces(t.Context(), uuid.New())))

	out := read(b.store.StatsOverview(t.Context(), store.DefaultTenant()))
	require.Equal(t, []any{2.0, 2.0, 1.0, 2.0}, []any{out["queues"], out["partitions"], out["namespaces"], out["tasks"]})
	require.Equal(t, map[string]any{"total": 9.0, "pending": 6.0, "processing": 2.0, "completed": 2.0, "failed": nil, "deadLetter": 1.0}, out["messages"])
	require.Equal(t, map[string]any{"avg": 6.0, "median": 6.0, "min": 6.0, "max": 6.0}, out["lag"].(map[string]any)["offset"])
	require.InDelta(t, 0, out["statsAge"], 60)
	requireMillis(t, out["timestamp"])
	require.Equal(t, 0.0, read(b.store.StatsOverview(t.Context(), uuid.New()))["queues"], "of another tenant")
}
