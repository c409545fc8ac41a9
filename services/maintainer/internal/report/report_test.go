package report_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/maintainer/internal/report"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

func busy() retention.Report {
	return retention.Report{
		Began: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Elapsed: 34567 * time.Microsecond,
		Phases: []retention.Phase{
			{Name: retention.PhaseRetention, Elapsed: 12 * time.Millisecond, Queues: 2, Lanes: 4, Segments: 100, Messages: 5000, Bytes: 600000, Held: 3, Unfinished: true},
			{Name: retention.PhaseTxns, Elapsed: 2 * time.Millisecond, Queues: 1, Lanes: 1, Rows: 70, TimedOut: 1, Failed: 2},
			{Name: retention.PhaseEviction, Elapsed: time.Millisecond, Queues: 1, Lanes: 2, Segments: 1, Messages: 9, Bytes: 10},
			{Name: retention.PhaseCleanup, Rows: 6, Failed: 1},
			{Name: retention.PhaseMetrics, Rows: 8, Failed: 1},
		},
		Queues: []retention.Queue{
			{ID: uuid.UUID{15: 1}, Name: "orders", Segments: 100, Messages: 5000, Bytes: 600000, SidecarRows: 70},
			{ID: uuid.UUID{15: 2}, Name: "quiet"},
			{ID: uuid.UUID{15: 3}, Name: "ticks", Evicted: 9, Held: 3},
		},
	}
}

func TestTableHasARowForEachPhaseAndQueue(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.Table(&out, busy(), false))
	require.Equal(t, strings.TrimLeft(`
PHASE      QUEUE   PARTITIONS  SEGMENTS  MESSAGES  BYTES   ROWS  HELD  TIMED OUT  TIME
retention  (all)   4           100       5000      600000  -     3     0          12ms
retention  orders  -           100       5000      600000  -     0     -          -
retention  ticks   -           0         0         0       -     3     -          -
txns       (all)   1           -         -         -       70    0     1          2ms
txns       orders  -           -         -         -       70    -     -          -
eviction   (all)   2           1         9         10      -     0     0          1ms
eviction   ticks   -           -         9         -       -     -     -          -
cleanup    (all)   0           -         -         -       6     0     0          0s
metrics    (all)   0           -         -         -       8     0     0          0s

Deleted 101 segments with 5009 messages (600010 bytes), 6 partitions and 78 rows of bookkeeping. It took 35ms.
retention: 3 partitions are due and held by a consumer group that has not read them.
retention: its time was up; the rest is left to the next cycle.
txns: 1 partitions were locked by others and left to the next cycle.
txns: 2 attempts failed; what they left is tried again in a later cycle.
cleanup: it failed and is tried again in a later cycle.
metrics: the purge failed, which is no failure of the cycle; the log says why.
`, "\n"), out.String())
}

func TestDryRunSaysThatNothingWasDeleted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.Table(&out, busy(), true))
	require.Contains(t, out.String(), "\nDry run, nothing was deleted. A cycle would now delete 101 segments with 5009 messages (600010 bytes), 6 partitions and")
}

func TestNothingDueIsSaid(t *testing.T) {
	t.Parallel()
	idle := retention.Report{Elapsed: 3 * time.Millisecond, Phases: []retention.Phase{{Name: retention.PhaseRetention, Elapsed: time.Millisecond}}}
	var out bytes.Buffer
	require.NoError(t, report.Table(&out, idle, false))
	require.Contains(t, out.String(), "\nNothing was due. The look took 3ms.\n")
}

func TestJSONCarriesEveryFigure(t *testing.T) {
	t.Parallel()
	r := busy()
	r.Phases, r.Queues = r.Phases[:2], r.Queues[:1]
	var out bytes.Buffer
	require.NoError(t, report.JSON(&out, r, true, true))
	require.JSONEq(t, `{"led":true,"dryRun":true,"began":"2026-05-04T03:02:01Z","elapsedMs":34,"phases":[
		{"name":"retention","elapsedMs":12,"queues":2,"partitions":4,"segments":100,"messages":5000,"bytes":600000,"rows":0,"held":3,"timedOut":0,"failed":0,"unfinished":true},
		{"name":"txns","elapsedMs":2,"queues":1,"partitions":1,"segments":0,"messages":0,"bytes":0,"rows":70,"held":0,"timedOut":1,"failed":2,"unfinished":false}],
		"queues":[{"id":"00000000-0000-0000-0000-000000000001","name":"orders","segments":100,"messages":5000,"bytes":600000,"evictedMessages":0,"sidecarRows":70,"held":0}]}`, out.String())
	out.Reset()
	require.NoError(t, report.JSON(&out, retention.Report{}, false, false))
	require.JSONEq(t, `{"led":false,"dryRun":false,"began":"0001-01-01T00:00:00Z","elapsedMs":0,"phases":[],"queues":[]}`, out.String())
}

// full is a place that takes nothing.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAReportThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, report.Table(full{}, busy(), false), errFull)
	require.ErrorIs(t, report.JSON(full{}, busy(), true, false), errFull)
}
