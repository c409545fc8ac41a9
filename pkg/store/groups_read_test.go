package store_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// exactLag is what the readers of groups have to find, by a look at every segment.
const exactLag = `SELECT q.name AS queue, p.id, p.name AS partition, c.consumer_group, l.lag, CASE WHEN l.lag > 0 THEN (
		SELECT min(s.created_at) FROM queen.log_segments AS s WHERE s.partition_id = p.id AND s.end_offset > c.committed) END AS oldest
	FROM queen.queues AS q
	JOIN queen.log_partitions AS p ON p.queue_id = q.id
	JOIN queen.log_consumers AS c ON c.partition_id = p.id
	CROSS JOIN LATERAL (SELECT greatest(p.last_offset - greatest(c.committed, p.log_start - 1), 0) AS lag) AS l`

func TestGroupFiguresAreExact(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.layRandom(6, 150)
	tenant := "'" + store.DefaultTenant().String() + "'"
	// now() is one instant for both sides of a comparison.
	require.Zero(t, b.count(`WITH exact AS (SELECT queue, consumer_group, count(*) AS n, count(*) FILTER (WHERE lag > 0) AS lagging, sum(lag) AS lag,
			coalesce(floor(extract(epoch FROM now() - min(oldest))), 0) AS seconds
		FROM (`+exactLag+`) AS x GROUP BY queue, consumer_group),
		got AS (SELECT x.* FROM jsonb_array_elements(queen.get_consumer_groups_v4(`+tenant+`::uuid)) AS e,
			jsonb_to_record(e) AS x ("queueName" text, name text, members bigint, "partitionsWithLag" bigint, "totalLag" bigint, "maxTimeLag" bigint))
		SELECT count(*) FROM (TABLE exact EXCEPT TABLE got) AS missing`))
	for _, limit := range []int{1, 10, 100_000} {
		require.Zero(t, b.count(`WITH exact AS (SELECT consumer_group, id, lag, floor(extract(epoch FROM now() - oldest)) AS seconds
			FROM (`+exactLag+`) AS x WHERE lag > 0 AND oldest <= now() - interval '3601 seconds' ORDER BY oldest, consumer_group COLLATE "C", id LIMIT $1::int),
			got AS (SELECT x.consumer_group, x.partition_id, x.offset_lag, x.time_lag_seconds
				FROM jsonb_array_elements(queen.log_lagging_list_v1(3600, `+tenant+`::uuid, $1::int)) AS e,
				jsonb_to_record(e) AS x (consumer_group text, partition_id uuid, offset_lag bigint, time_lag_seconds bigint))
			SELECT (SELECT count(*) FROM (TABLE exact EXCEPT TABLE got) AS missing) + (SELECT count(*) FROM (TABLE got EXCEPT TABLE exact) AS wrong)`, limit))
	}
	require.Positive(t, b.count(`SELECT jsonb_array_length(queen.get_lagging_partitions_v1(3600))`))
	require.Zero(t, b.count(`WITH exact AS (SELECT queue, partition, lag, coalesce(floor(extract(epoch FROM now() - oldest)), 0) AS seconds
			FROM (`+exactLag+`) AS x WHERE consumer_group = 'a'),
		got AS (SELECT q.key, x.* FROM jsonb_each(queen.get_consumer_group_details_v1('a')) AS q, jsonb_array_elements(q.value -> 'partitions') AS e,
			jsonb_to_record(e) AS x (partition text, "offsetLag" bigint, "timeLagSeconds" bigint))
		SELECT (SELECT count(*) FROM (TABLE exact EXCEPT TABLE got) AS missing) + (SELECT count(*) FROM (TABLE got EXCEPT TABLE exact) AS wrong)`))
}

func TestGroupReadersKeepToTheTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cursorAt(b.lane(), "g", -1)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = now() - interval '2 hours'`)
	foreign := uuid.New()
	for tenant, want := range map[uuid.UUID]int{store.DefaultTenant(): 1, foreign: 0} {
		doc, err := b.store.Groups(t.Context(), tenant)
		require.NoError(t, err)
		require.Len(t, elementsOf(t, doc), want)
		doc, err = b.store.LaggingLanes(t.Context(), tenant, 0, 10)
		require.NoError(t, err)
		require.Len(t, elementsOf(t, doc), want)
		doc, err = b.store.GroupDetails(t.Context(), tenant, store.GroupPage{Group: "g", Limit: 10})
		require.NoError(t, err)
		require.Len(t, object(t, doc), want)
	}
}

func elementsOf(t *testing.T, doc []byte) []any {
	t.Helper()
	return object(t, fmt.Appendf(nil, `{"list":%s}`, doc))["list"].([]any)
}

// A group without a message to wait for has no lag, however old what it consumed is,
// and its state says whether it ever consumed.
func TestGroupStates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.exec(`UPDATE queen.log_segments SET created_at = now() - interval '301 seconds'`)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = now() - interval '301 seconds'`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed) VALUES
		($1, 'behind', 3, 4), ($1, 'done', 7, 8), ($1, 'never', 7, 0)`, pid)
	states := func() map[string]any {
		doc, err := b.store.Groups(t.Context(), store.DefaultTenant())
		require.NoError(t, err)
		found := map[string]any{}
		for _, e := range elementsOf(t, doc) {
			found[e.(map[string]any)["name"].(string)] = e.(map[string]any)["state"]
		}
		return found
	}
	require.Equal(t, map[string]any{"behind": "Lagging", "done": "Stable", "never": "Dead"}, states())
	b.exec(`UPDATE queen.log_segments SET created_at = now() - interval '290 seconds'`)
	require.Equal(t, "Stable", states()["behind"], "five minutes are no lag")
}
