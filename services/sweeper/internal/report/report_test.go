package report_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/sweeper/internal/report"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

func busy() timers.Report {
	return timers.Report{
		Began: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Elapsed: 34567 * time.Microsecond,
		Due: 2000, DueCapped: true, Late: 1500 * time.Millisecond, FireOff: true,
		Claimed: 210, Fired: 200, Segments: 4, Stale: 1, Failed: 7, DeadLettered: 2,
		Pruned: 17, Unpruned: 8000, UnprunedCapped: true, ExpiryLag: 90 * time.Second, Tenants: 3, Sampled: true,
	}
}

func TestTableHasARowForEachFigureAndSaysWhatFollows(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.Table(&out, busy()))
	require.Equal(t, strings.TrimLeft(`
WORK    FIGURE            VALUE
timers  due               over 2000
timers  late by up to     1.5s
timers  claimed           210
timers  fired             200
timers  segments written  4
timers  stale             1
timers  failed            7
timers  dead-lettered     2
keys    pruned            17
keys    expired and left  over 8000
keys    left for up to    1m30s
usage   tenants measured  3 (estimated)

Fired 200 timers and pruned 17 expired keys. It took 35ms.
timers: an operator has switched the fire off (timersFire); they wait.
timers: 1 were not fired because others of their partition had changed hands; they are due again.
timers: 7 failed and are tried again after a pause; the log says why.
timers: 2 failed too often and are now dead letters of the group __timer__.
keys: over 8000 expired ones are left, locked by others or too many for one sweep.
`, "\n"), out.String())
}

func TestNothingDueIsSaid(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.Table(&out, timers.Report{Elapsed: 3 * time.Millisecond, Tenants: 1}))
	require.Contains(t, out.String(), "\ntimers  due               0\n")
	require.True(t, strings.HasSuffix(out.String(), "\nusage   tenants measured  1\n\nNothing was fired or pruned. The sweep took 3ms.\n"), out.String())
}

func TestJSONCarriesEveryFigure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.JSON(&out, busy()))
	require.JSONEq(t, `{"began":"2026-05-04T03:02:01Z","elapsedMs":34,"fireOff":true,
		"timers":{"due":2000,"dueCapped":true,"lateMs":1500,"claimed":210,"fired":200,"segments":4,"stale":1,"failed":7,"deadLettered":2},
		"keys":{"pruned":17,"unpruned":8000,"unprunedCapped":true,"lagMs":90000},"usage":{"tenants":3,"sampled":true}}`, out.String())
}

// full is a place that takes nothing.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAReportThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, report.Table(full{}, busy()), errFull)
	require.ErrorIs(t, report.JSON(full{}, busy()), errFull)
}
