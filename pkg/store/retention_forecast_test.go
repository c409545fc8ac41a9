package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestAForecastIsWhatStepsThenDelete(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, 3*time.Hour, time.Hour, time.Hour, time.Hour, time.Minute)
	b.cursor(pid, "g", 25)
	for _, rules := range []struct{ all, completed *time.Time }{
		{nil, nil}, {ago(2 * time.Hour), nil}, {nil, ago(30 * time.Minute)}, {ago(2 * time.Hour), ago(30 * time.Minute)}, {ago(30 * time.Minute), ago(2 * time.Hour)},
	} {
		f, err := b.m.Forecast(t.Context(), pid, rules.all, rules.completed)
		require.NoError(t, err)
		b.undone(func(ctx context.Context, tx pgx.Tx) {
			var got store.Forecast
			require.NoError(t, tx.QueryRow(ctx, `WITH s AS MATERIALIZED (SELECT queen.log_retention_step_v1($1, $2, $3, 1000) AS r)
				SELECT (r ->> 'deleted')::bigint, (r ->> 'messages')::bigint, (r ->> 'bytes')::bigint FROM s`,
				pid, rules.all, rules.completed).Scan(&got.Segments, &got.Messages, &got.Bytes))
			require.NoError(t, tx.QueryRow(ctx, `SELECT coalesce(max(retention_type), '') FROM queen.retention_history`).Scan(&got.Rule))
			require.Equal(t, got, f)
		})
	}
	f, err := b.m.Forecast(t.Context(), uuid.New(), ago(0), ago(0))
	require.NoError(t, err)
	require.Zero(t, f, "of a lane that is gone")
}

func TestASidecarForecastIsWhatAStepThenDeletes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, 3*time.Hour, time.Hour, time.Hour, time.Minute)
	for _, want := range []struct {
		cutoff *time.Time
		rows   int64
	}{{ago(4 * time.Hour), 0}, {ago(2 * time.Hour), 1}, {ago(30 * time.Minute), 3}, {ago(0), 4}} {
		rows, err := b.m.ForecastTxns(t.Context(), pid, *want.cutoff)
		require.NoError(t, err)
		require.Equal(t, want.rows, rows)
	}
	step, err := b.m.TxnsStep(t.Context(), pid, *ago(2 * time.Hour), 10)
	require.NoError(t, err)
	require.EqualValues(t, 1, step.Deleted)
	rows, err := b.m.ForecastTxns(t.Context(), pid, *ago(30 * time.Minute))
	require.NoError(t, err)
	require.EqualValues(t, 2, rows, "from the mark on")
	rows, err = b.m.ForecastTxns(t.Context(), uuid.New(), *ago(0))
	require.NoError(t, err)
	require.Zero(t, rows, "of a lane that is gone")
}

func TestACleanupForecastIsWhatStepsThenDelete(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	kept := b.dead("q", "kept")
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'g', 0)`, kept)
	for _, name := range []string{"a", "b", "c"} {
		b.dead("q", name)
	}
	var dead int64
	after := store.LaneKey{}
	for done := false; !done; {
		page, err := b.m.ForecastCleanup(t.Context(), *ago(30 * day), after, 3)
		require.NoError(t, err)
		dead += page.Deleted
		after, done = page.Last, page.Done
	}
	require.EqualValues(t, 3, dead)
	require.EqualValues(t, 3, b.cleanup(store.LaneKey{}, 10).Deleted)
	require.True(t, b.exists(kept))
	page, err := b.m.ForecastCleanup(t.Context(), *ago(30 * day), store.LaneKey{}, 1)
	require.NoError(t, err)
	require.Equal(t, 1, page.Examined)
	require.Zero(t, page.Deleted)
	require.False(t, page.Done, "a full page may have another behind it")
}

func TestAMetricsForecastIsWhatThePurgeThenDeletes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.exec(`INSERT INTO queen.retention_history (retention_type, executed_at)
		SELECT 'retention', now() - interval '100 days' FROM generate_series(1, 3)`)
	b.exec(`INSERT INTO queen.retention_history (retention_type, executed_at) VALUES ('retention', now() - interval '80 days')`)
	b.exec(`INSERT INTO queen.system_metrics (service, hostname, captured_at, metrics) VALUES ('s', 'h', now() - interval '100 days', '{}')`)
	rows, err := b.m.ForecastMetrics(t.Context(), *ago(90 * day))
	require.NoError(t, err)
	require.EqualValues(t, 4, rows)
	gone, err := b.m.PurgeMetrics(t.Context(), *ago(90 * day), 10)
	require.NoError(t, err)
	require.Equal(t, rows, gone)
}
