package operations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// reader is a session of somebody's report, which has looked at the database and holds
// its snapshot since.
func reader(t *testing.T, stage *harness.Stage) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), stage.Server.URL("postgres")+"&application_name=report")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT count(*) FROM queen.log_consumers")
	require.NoError(t, err)
	return conn
}

// rows are what a statement of a runbook answers.
func rows(t *testing.T, db *harness.Database, statement string) []map[string]any {
	t.Helper()
	answer, err := db.Pool.Query(t.Context(), statement)
	require.NoError(t, err)
	all, err := pgx.CollectRows(answer, pgx.RowToMap)
	require.NoError(t, err, statement)
	return all
}

// gauge is a metric without labels as the first look of a new maintainer has it.
func gauge(t *testing.T, m *harness.Maintainer, name string) (value float64) {
	t.Helper()
	harness.Eventually(t, patience, name+" is there", func() bool {
		series := harness.Families(t, m.Client)[name].GetMetric()
		if len(series) == 1 {
			value = series[0].GetGauge().GetValue()
		}
		return len(series) == 1
	})
	return value
}

// vacuumed waits until vacuum, as the runbook has it, leaves dead rows of cursors, or none.
func vacuumed(t *testing.T, db *harness.Database, statement string, dead bool) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("vacuum leaves dead rows: %t", dead), func() bool {
		db.Exec(t, statement)
		left := harness.Value[int64](t, db, "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'queen.log_consumers'::regclass")
		return left > 0 == dead
	})
}

// TestAnOldSnapshotIsFoundAndEnded by the statements of the runbook, and is seen in the
// metrics that it names.
func TestAnOldSnapshotIsFoundAndEnded(t *testing.T) {
	t.Parallel()
	steps := blocks(t, "old-snapshot", "sql")
	require.Len(t, steps, 3)
	find, _, _ := strings.Cut(steps[0], ";")
	end := steps[1]
	vacuum, _, _ := strings.Cut(steps[2], ";")
	for _, name := range []string{"queen_postgres_oldest_snapshot_seconds", "QueenIdleTransaction", "log_consumers"} {
		require.Contains(t, page(t, "old-snapshot"), name)
	}
	stage := harness.StartSetup(t, harness.Setup{Server: true, Owner: true, Brokers: 1})
	stage.PushEach(t, "reports", "lane", 5)
	session := reader(t, stage)
	for range 5 {
		p := stage.Pop(t, "reports", "batch=1&consumerGroup=g&partitions=1")
		stage.AckOK(t, "g", p.Acks("completed")...)
	}

	m := harness.StartMaintainer(t, stage.DB)
	held := gauge(t, m, "queen_postgres_oldest_snapshot_seconds")
	idle := gauge(t, m, "queen_postgres_longest_idle_transaction_seconds")
	require.Positive(t, idle)
	vacuumed(t, stage.DB, vacuum, true)
	oldest := rows(t, stage.DB, find)[0]
	require.EqualValues(t, session.PgConn().PID(), oldest["pid"])
	require.Equal(t, []any{"report", "idle in transaction"}, []any{oldest["application_name"], oldest["state"]})

	require.Empty(t, rows(t, stage.DB, end), "a session of less than ten minutes is left alone")
	ended := rows(t, stage.DB, strings.Replace(end, "'10 minutes'", "'10 milliseconds'", 1))
	require.Equal(t, []map[string]any{{"pg_terminate_backend": true}}, ended)
	require.Error(t, session.Ping(t.Context()))
	vacuumed(t, stage.DB, vacuum, false)
	m.Terminate(t)
	m.Restart(t)
	require.Less(t, gauge(t, m, "queen_postgres_oldest_snapshot_seconds"), held)
	require.Less(t, gauge(t, m, "queen_postgres_longest_idle_transaction_seconds"), idle)
}
