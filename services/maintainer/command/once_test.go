package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/worker"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// refuse has every deletion from a table fail; due gives the purge of the metrics
// something to delete, and the retention of two queues.
const (
	refuse = `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`
	due    = `INSERT INTO queen.queues (name, retention_enabled, retention_seconds) VALUES ('bad', TRUE, 60), ('good', TRUE, 60);
		INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at)
			SELECT id, 'p', 0, now() - interval '1 hour' FROM queen.queues;
		INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
			SELECT id, 0, 0, now() - interval '1 hour', '1' FROM queen.log_partitions;
		INSERT INTO queen.system_metrics (service, hostname, captured_at, metrics) VALUES ('s', 'h', now() - interval '100 days', '{}')`
	refuseBad = refuse + `; CREATE TRIGGER refuse BEFORE DELETE ON queen.log_segments FOR EACH ROW
		WHEN (OLD.blob = 'bad') EXECUTE FUNCTION public.refuse();
		UPDATE queen.log_segments AS s SET blob = 'bad' FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
			WHERE p.id = s.partition_id AND q.name = 'bad'`
	refusePurge = refuse + `; CREATE TRIGGER refuse BEFORE DELETE ON queen.system_metrics FOR EACH ROW EXECUTE FUNCTION public.refuse()`
)

// prepare makes a database the one that the environment names.
func prepare(t *testing.T, statements ...string) {
	t.Helper()
	cfg := pgtest.NewConfig(t)
	db, err := pgdb.Open(t.Context(), cfg)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Do(t.Context(), "prepare", func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
				return err
			}
		}
		return nil
	}))
	t.Setenv("PG_HOST", cfg.Host)
	t.Setenv("PG_PORT", strconv.Itoa(cfg.Port))
	t.Setenv("PG_USER", cfg.User)
	t.Setenv("PG_PASSWORD", string(cfg.Password))
	t.Setenv("PG_DATABASE", cfg.Database)
}

func TestReportIsPrintedBesideAFailure(t *testing.T) {
	prepare(t, due, refuseBad)
	var stdout, stderr bytes.Buffer
	require.Equal(t, worker.ExitFailed, Run([]string{"run-once", "--json"}, &stdout, &stderr))
	var report struct {
		Led    bool
		Phases []struct {
			Name                   string
			Segments, Failed, Rows int
		}
	}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &report), stdout.String())
	require.True(t, report.Led)
	require.Len(t, report.Phases, 6)
	require.Equal(t, 1, report.Phases[0].Segments)
	require.Equal(t, 1, report.Phases[0].Failed)
	require.Equal(t, 1, report.Phases[4].Rows, "the later phases run")
	require.Regexp(t, `(?m)^maintainer: retention: partition .* of queue "bad": .*refused`, stderr.String())

	stdout.Reset()
	require.Equal(t, worker.ExitFailed, Run([]string{"run-once"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "retention: 1 attempts failed; what they left is tried again in a later cycle.\n")
}

func TestFailedPurgeOfMetricsIsNoFailure(t *testing.T) {
	prepare(t, due, refusePurge)
	var stdout, stderr bytes.Buffer
	require.Equal(t, worker.ExitOK, Run([]string{"run-once"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "Deleted 2 segments with 2 messages")
	require.Contains(t, stdout.String(), "metrics: the purge failed, which is no failure of the cycle; the log says why.\n")
	require.NotContains(t, stdout.String(), "partitions failed")
	require.NotContains(t, stderr.String(), "maintainer: ")
	require.Contains(t, stderr.String(), "metrics were not purged")
}

func TestNothingIsPrintedOfACycleThatDidNotBegin(t *testing.T) {
	prepare(t, `ALTER FUNCTION queen.log_retention_plan_v1() RENAME TO away`)
	for _, args := range [][]string{{"run-once"}, {"run-once", "--json"}, {"run-once", "--dry-run"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, worker.ExitFailed, Run(args, &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), "maintainer: make the plan: ")
	}
}
