package kv_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/kv"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const ms = time.Millisecond

var (
	errGone    = errors.New("connection lost")
	errMissing = &pgconn.PgError{Code: "42883", Message: "function does not exist"}
)

// table plays the part of PostgreSQL by the time of the bubble.
type table struct {
	mu      sync.Mutex
	began   time.Time
	expired int
	held    int // of them, by somebody else
	tenants int
	cost    map[string]time.Duration
	fault   map[string]error
	calls   map[string][]time.Duration
	asked   []int
}

func newTable() *table {
	return &table{began: time.Now(), cost: map[string]time.Duration{}, fault: map[string]error{}, calls: map[string][]time.Duration{}}
}

func (f *table) call(ctx context.Context, name string) error {
	f.mu.Lock()
	f.calls[name] = append(f.calls[name], time.Since(f.began))
	cost, err := f.cost[name], f.fault[name]
	f.mu.Unlock()
	select {
	case <-time.After(cost): // of the bubble's clock
	case <-ctx.Done():
		return ctx.Err()
	}
	return err
}

func (f *table) KVExpire(ctx context.Context, _ []int16, rows int) (store.KVExpired, error) {
	if err := f.call(ctx, "expire"); err != nil {
		return store.KVExpired{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, rows)
	n := min(f.expired-f.held, rows)
	f.expired -= n
	return store.KVExpired{
		Deleted: n, Done: n < rows, Unpruned: f.expired, Capped: f.expired >= 8*rows, Lag: time.Duration(f.expired) * time.Second,
	}, nil
}

func (f *table) KVMeasure(ctx context.Context, _ []int16, _ int) (out store.KVUsage, err error) {
	for i := range f.tenants {
		out.Tenants = append(out.Tenants, store.KVTenantUsage{Tenant: uuid.UUID{0: byte(i >> 8), 1: byte(i)}, KVRows: 1})
	}
	return out, f.call(ctx, "measure")
}

func (f *table) SweepTables(ctx context.Context) ([]store.TableSize, error) {
	return []store.TableSize{{Table: "kv", Bytes: 1, Dead: 2}}, f.call(ctx, "tables")
}

func (f *table) called(name string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Duration{}, f.calls[name]...)
}

func usual() kv.Config {
	return kv.Config{ExpireEvery: time.Second, ExpireBatch: 1000, UsageEvery: 5 * time.Minute, IdleMax: 30 * time.Second, IdleAfter: 5}
}

// upkeep over a table.
func upkeep(t *testing.T, cfg kv.Config, db kv.Store, meter metric.Meter) *kv.Upkeep {
	t.Helper()
	u, err := kv.New(cfg, kv.Deps{Store: db, Log: logtest.New(t), Meter: meter, Tracer: tracenoop.NewTracerProvider().Tracer("")})
	require.NoError(t, err)
	return u
}

func noMeter() metric.Meter { return noop.NewMeterProvider().Meter("") }

// inBubble makes a cycle each 100 ms for so long, by a clock of its own.
func inBubble(t *testing.T, cfg kv.Config, cycle kv.Cycle, d time.Duration, prepare func(f *table), check func(f *table, u *kv.Upkeep)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newTable()
		prepare(f)
		u := upkeep(t, cfg, f, noMeter())
		ctx, cancel := context.WithCancel(t.Context())
		defer u.Wait()
		defer cancel()
		for time.Since(f.began) < d {
			u.Turn(ctx, cycle)
			time.Sleep(100 * ms)
			synctest.Wait()
		}
		check(f, u)
	})
}

func busy(f *table) { f.expired, f.held = 1, 1 }

func TestEachGateHasItsTime(t *testing.T) {
	t.Parallel()
	cfg := usual()
	cfg.ExpireEvery, cfg.UsageEvery = 2*time.Second, 10*time.Second
	inBubble(t, cfg, kv.Cycle{}, time.Minute, busy, func(f *table, _ *kv.Upkeep) {
		require.Len(t, f.called("expire"), 30)
		require.Len(t, f.called("measure"), 6)
		require.Equal(t, 20*time.Second, f.called("measure")[2])
		require.Len(t, f.called("tables"), 6, "sizes are taken with the rollup")
	})
}

func TestThePruneRestsWhileNothingIsThere(t *testing.T) {
	t.Parallel()
	inBubble(t, usual(), kv.Cycle{Empty: true}, 3*time.Minute, func(*table) {}, func(f *table, _ *kv.Upkeep) {
		calls := f.called("expire")
		var gaps []time.Duration
		for i := 1; i < len(calls); i++ {
			gaps = append(gaps, calls[i]-calls[i-1])
		}
		require.Equal(t, []time.Duration{1, 2, 4, 8, 16, 30, 30, 30}, seconds(gaps[:8]), "doubled, up to the most")
		require.Len(t, f.called("measure"), 1, "what is longer than that is left as it is")
	})
	inBubble(t, usual(), kv.Cycle{Empty: true}, time.Minute, busy, func(f *table, _ *kv.Upkeep) {
		require.Len(t, f.called("expire"), 60, "expired keys are there")
	})
	inBubble(t, usual(), kv.Cycle{}, time.Minute, func(*table) {}, func(f *table, _ *kv.Upkeep) {
		require.Len(t, f.called("expire"), 60, "timers are there")
	})
}

func seconds(ds []time.Duration) (out []time.Duration) {
	for _, d := range ds {
		out = append(out, d.Round(time.Second)/time.Second)
	}
	return out
}

func TestTheGatesComeBackWithTheFirstTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newTable()
		u := upkeep(t, usual(), f, noMeter())
		for range 1000 {
			u.Turn(t.Context(), kv.Cycle{Empty: true})
			time.Sleep(100 * ms)
			synctest.Wait()
		}
		before := len(f.called("expire"))
		for range 50 {
			u.Turn(t.Context(), kv.Cycle{})
			time.Sleep(100 * ms)
			synctest.Wait()
		}
		require.GreaterOrEqual(t, len(f.called("expire"))-before, 5)
	})
}

func TestAPruneGoesOnUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		expired, held, calls int
		cost                 time.Duration
	}{
		"nothing":                       {0, 0, 1, 0},
		"less than a budget":            {999, 0, 1, 0},
		"a budget, and a look":          {1000, 0, 2, 0},
		"more":                          {2500, 0, 3, 0},
		"what is left is held":          {1500, 500, 2, 0},
		"nothing but held ones":         {500, 500, 1, 0},
		"no longer than its time":       {100_000, 0, 5, 100 * ms},
		"and at least one call of them": {100_000, 0, 1, 600 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, usual(), kv.Cycle{}, 950*ms, func(f *table) { f.expired, f.held, f.cost["expire"] = tc.expired, tc.held, tc.cost },
				func(f *table, _ *kv.Upkeep) {
					require.Len(t, f.called("expire"), tc.calls)
					require.Equal(t, 1000, f.asked[0])
				})
		})
	}
}

func TestTheLadderShedsThePruneFirst(t *testing.T) {
	t.Parallel()
	cfg := usual()
	cfg.UsageEvery = 10 * time.Second
	for shed, want := range map[kv.Shed][]int{kv.ShedNothing: {30, 3}, kv.ShedPrune: {0, 3}, kv.ShedRollup: {0, 0}} {
		inBubble(t, cfg, kv.Cycle{Shed: shed}, 30*time.Second, busy, func(f *table, _ *kv.Upkeep) {
			require.Equal(t, want, []int{len(f.called("expire")), len(f.called("measure"))}, "rung %d", shed)
		})
	}
}

func TestAPhaseWhoseProcedureIsMissingIsOff(t *testing.T) {
	t.Parallel()
	cfg := usual()
	cfg.UsageEvery = 10 * time.Second
	for call, want := range map[string][]int{"expire": {1, 3}, "measure": {30, 1}, "tables": {30, 1}} {
		inBubble(t, cfg, kv.Cycle{}, 30*time.Second, func(f *table) {
			busy(f)
			f.fault[call] = errMissing
		}, func(f *table, _ *kv.Upkeep) {
			require.Equal(t, want, []int{len(f.called("expire")), len(f.called("measure"))}, "without %s", call)
		})
	}
}

func TestOtherFailuresSwitchNothingOff(t *testing.T) {
	t.Parallel()
	cfg := usual()
	cfg.UsageEvery = 10 * time.Second
	inBubble(t, cfg, kv.Cycle{Empty: true}, 30*time.Second, func(f *table) { f.fault["expire"], f.fault["measure"] = errGone, errGone },
		func(f *table, _ *kv.Upkeep) {
			require.Equal(t, []int{30, 3}, []int{len(f.called("expire")), len(f.called("measure"))})
		})
}

func TestOneThingAtATime(t *testing.T) {
	t.Parallel()
	inBubble(t, usual(), kv.Cycle{}, 10*time.Second, func(f *table) {
		busy(f)
		f.cost["measure"] = 4 * time.Second
	}, func(f *table, u *kv.Upkeep) {
		require.Zero(t, f.called("measure")[0])
		require.Equal(t, 4*time.Second, f.called("expire")[0], "the rollup goes first, and nothing beside it")
		at, ok := u.Next()
		require.True(t, ok)
		require.WithinDuration(t, time.Now(), at, time.Second)
	})
}

func TestThereIsNoNextGateWhileSomethingRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, usual(), kv.Cycle{}, time.Second, func(f *table) { f.cost["measure"] = time.Hour }, func(_ *table, u *kv.Upkeep) {
		_, ok := u.Next()
		require.False(t, ok)
	})
}

// values of all series.
func values(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	out := map[string]float64{}
	note := func(name string, labels attribute.Set, value float64) {
		out[strings.TrimSuffix(name+" "+labels.Encoded(attribute.DefaultEncoder()), " ")] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			}
		}
	}
	return out
}

func TestWhatIsLeftIsToldAlsoWhenNothingWasDeleted(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	f := newTable()
	u := upkeep(t, usual(), f, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	f.expired, f.held = 7, 7
	_, err := u.Once(t.Context(), store.Shards(0))
	require.NoError(t, err)
	got := values(t, reader)
	require.Equal(t, []float64{0, 7, 7}, []float64{got["queen.kv.pruned"], got["queen.kv.expired_not_pruned"], got["queen.kv.expiry_lag"]})
	f.held = 0
	r, err := u.Once(t.Context(), store.Shards(0))
	require.NoError(t, err)
	require.Equal(t, 7, r.Expired.Deleted)
	got = values(t, reader)
	require.Equal(t, []float64{7, 0, 0}, []float64{got["queen.kv.pruned"], got["queen.kv.expired_not_pruned"], got["queen.kv.expiry_lag"]})
	require.Equal(t, 0.0, got["queen.kv.expired_not_pruned_capped"])
	f.expired, f.held = 8*usual().ExpireBatch, 8*usual().ExpireBatch
	_, err = u.Once(t.Context(), store.Shards(0))
	require.NoError(t, err)
	require.Equal(t, 1.0, values(t, reader)["queen.kv.expired_not_pruned_capped"], "there may be more")
}

func TestOnlySoManyTenantsHaveGauges(t *testing.T) {
	t.Parallel()
	for tenants, want := range map[int]int{kv.TenantsMax - 1: kv.TenantsMax - 1, kv.TenantsMax: kv.TenantsMax, kv.TenantsMax + 1: kv.TenantsMax} {
		reader := sdkmetric.NewManualReader()
		f := newTable()
		f.tenants = tenants
		u := upkeep(t, usual(), f, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
		_, err := u.Once(t.Context(), store.Shards(0))
		require.NoError(t, err)
		n := 0
		got := values(t, reader)
		for name := range got {
			if strings.HasPrefix(name, "queen.kv.usage.rows ") {
				n++
			}
		}
		require.Equal(t, want, n)
		require.EqualValues(t, tenants, got["queen.kv.usage.tenants"])
	}
}

func TestWhatIsOffShows(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	f := newTable()
	f.fault["expire"] = errMissing
	u := upkeep(t, usual(), f, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	_, err := u.Once(t.Context(), store.Shards(0))
	require.ErrorIs(t, err, errMissing)
	got := values(t, reader)
	require.Equal(t, []float64{1, 0, 1}, []float64{
		got["queen.sweeper.upkeep.off phase=prune"], got["queen.sweeper.upkeep.off phase=rollup"], got["queen.sweeper.upkeep outcome=failed,phase=prune"],
	})
}

func TestUpkeepOfARealTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reader := sdkmetric.NewManualReader()
	cfg := usual()
	cfg.ExpireBatch = 10
	u := upkeep(t, cfg, store.New(db), sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	exec := func(sql string) {
		require.NoError(t, db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sql)
			return err
		}))
	}
	exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at)
		SELECT 'n', 'dead' || g, '1', g, now() - INTERVAL '1 minute' FROM generate_series(1, 95) g`)
	exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'n', 'live' || g, '1', g FROM generate_series(1, 5) g`)
	r, err := u.Once(t.Context(), store.Shards(17))
	require.NoError(t, err)
	require.Equal(t, []any{95, true, 0}, []any{r.Expired.Deleted, r.Expired.Done, r.Expired.Unpruned})
	require.EqualValues(t, 5, r.Usage.Tenants[0].KVRows)

	exec(`DELETE FROM queen.kv`)
	r, err = u.Once(t.Context(), store.Shards(17))
	require.NoError(t, err)
	require.Zero(t, r.Usage.Tenants[0].KVRows, "a tenant that has emptied itself is named once more")
	got := values(t, reader)
	require.Zero(t, got["queen.kv.usage.tenants"])
	require.Positive(t, got["queen.sweeper.table.size table=log_timers"])
}
