package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/pkg/worker/workertest"
	"github.com/queenmq/queen/services/sweeper/internal/config"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func configFor(pg pgdb.Config) *config.Config {
	return &config.Config{
		Process:  worker.Process{ServerID: "test", BootDBWait: 30 * time.Second, ShutdownTimeout: 20 * time.Second},
		Ops:      opsserver.Config{Addr: "127.0.0.1:0"},
		Postgres: pg,
		Sweeper:  config.Sweeper{Enabled: true, Cycle: timers.Defaults(), ZstdLevel: 3},
		Metrics:  collector.Config{Flush: time.Second},
	}
}

func build(t *testing.T, cfg *config.Config, log *slog.Logger) *App {
	t.Helper()
	a, err := New(t.Context(), cfg, log)
	require.NoError(t, err)
	return a
}

// bundle is a database with what is due in it.
type bundle struct {
	t     *testing.T
	pg    pgdb.Config
	store *store.Store
}

func setup(t *testing.T) *bundle {
	t.Helper()
	pg := pgtest.NewConfig(t)
	db, err := pgdb.Open(t.Context(), pg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return &bundle{t: t, pg: pg, store: store.New(db)}
}

// schedule has a timer due now, and writes a key that expires.
func (b *bundle) schedule(key string) {
	b.t.Helper()
	applied, err := b.store.TimersApply(b.t.Context(), store.DefaultTenant(), "", json.RawMessage(
		`[{"op":"schedule","queue":"q","timerKey":"`+key+`","delayMs":0,"txn":"`+key+`","payload":"e30="}]`))
	require.NoError(b.t, err)
	require.Contains(b.t, string(applied.Results), `"scheduled"`)
}

func (b *bundle) pending() bool {
	b.t.Helper()
	due, err := b.store.TimersDue(b.t.Context(), store.Shards(0), 1)
	require.NoError(b.t, err)
	return due.Due > 0
}

func TestSweeperFiresAndStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := workertest.Launch(t, build(t, configFor(b.pg), logtest.New(t)))
	p.Work()
	b.schedule("k")
	require.Eventually(t, func() bool {
		_, metrics := p.Get("/metrics")
		return strings.Contains(metrics, "\nqueen_timers_lateness_seconds_count 1\n")
	}, workertest.Patience, time.Millisecond)
	require.False(t, b.pending())
	require.NoError(t, p.Stop())
}

func TestMetricsAreThereBeforeAnythingHappened(t *testing.T) {
	t.Parallel()
	p := workertest.Launch(t, build(t, configFor(pgtest.NewConfig(t)), logtest.New(t)))
	p.Work()
	require.Eventually(t, func() bool { // the first prune has to have been made
		_, metrics := p.Get("/metrics")
		for _, family := range []string{
			"queen_timers_due", "queen_timers_oldest_late_seconds", "queen_timers_lateness_seconds_count 0\n", `queen_timers_fired_total{`,
			"queen_kv_expired_not_pruned", "queen_kv_expiry_lag_seconds", "queen_sweeper_", "queen_mesh_members", "queen_db_pool_size",
		} {
			if !strings.Contains(metrics, "\n"+family) {
				t.Logf("%s is not there yet", family)
				return false
			}
		}
		return true
	}, workertest.Patience, 50*time.Millisecond)
	require.NoError(t, p.Stop())
}

func TestSwitchedOffItIsReadyAndDoesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.schedule("k")
	cfg := configFor(b.pg)
	cfg.Sweeper.Enabled = false
	log, lines := logtest.NewRecorder()
	a := build(t, cfg, log)
	p := workertest.Launch(t, a)
	p.Work()
	code, body := p.Get("/ready")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, lines.String(), `level=WARN msg="the sweeper is switched off: timers wait, and expired keys are not pruned" variable=QUEEN_SWEEPER`)
	// A sweeper that works is never this long without a probe.
	require.Never(t, func() bool { return !b.pending() }, 2*cfg.Sweeper.Cycle.MaxSleep, 100*time.Millisecond)
	require.NoError(t, p.Stop())
}

func TestRunOnceSweepsAndCloses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.schedule("one")
	b.schedule("two")
	cfg := configFor(b.pg)
	cfg.Sweeper.Enabled = false // which is about the service
	a := build(t, cfg, logtest.New(t))
	r, err := a.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, r.Fired)
	require.Equal(t, 2, int(a.fired.Load()))
	require.False(t, b.pending())
	require.ErrorIs(t, a.Ready(t.Context()), pgdb.ErrPool, "the pool is closed")

	r, err = build(t, cfg, logtest.New(t)).RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, r.Fired)
	require.NotZero(t, r.Began)
}

func TestLongSweepTellsThatItGoesOn(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	a := build(t, configFor(pgtest.NewConfig(t)), log)
	a.announce(store.DefaultTenant(), "q", "p", 7)
	stop := a.progress(t.Context(), time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(lines.String(), `msg="the sweep goes on" fired=7`) }, workertest.Patience, time.Millisecond)
	stop()
	said := lines.String()
	require.NoError(t, a.Close(context.WithoutCancel(t.Context())))
	require.Equal(t, said, lines.String())
}
