package quota_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

var acme = uuid.UUID{15: 7}

// fakeStore answers what it is told to.
type fakeStore struct {
	mu       sync.Mutex
	switches store.KVSwitches
	quotas   []store.KVQuota
	err      error
	reads    int // of quotas
	looks    int // at switches
	tenants  int
}

func (f *fakeStore) Flags(context.Context, ...store.Flag) (map[store.Flag]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	recorded := map[store.Flag]bool{
		store.FlagKV: f.switches.KV, store.FlagTimersSchedule: f.switches.TimersSchedule, store.FlagTimersFire: f.switches.TimersFire,
	}
	f.looks++
	return recorded, f.err
}

func (f *fakeStore) SetFlags(_ context.Context, flags map[store.Flag]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	for flag, on := range flags {
		switch flag {
		case store.FlagKV:
			f.switches.KV = on
		case store.FlagTimersSchedule:
			f.switches.TimersSchedule = on
		case store.FlagTimersFire:
			f.switches.TimersFire = on
		}
	}
	return nil
}

func (f *fakeStore) KVQuotas(_ context.Context, tenants int) ([]store.KVQuota, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	f.tenants = tenants
	return f.quotas, f.err
}

func (f *fakeStore) set(change func(*fakeStore)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeStore) count(what *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *what
}

var errDown = errors.New("down")

// run starts a keeper over a store in which all is on, inside a synctest bubble.
func run(t *testing.T, cfg quota.Config, quotas ...store.KVQuota) (*quota.Keeper, *fakeStore) {
	t.Helper()
	f := &fakeStore{switches: store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true}, quotas: quotas}
	k, err := quota.New(cfg, quota.Deps{Store: f, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return k, f
}

func limit(n int64) *int64 { return &n }

// refused requires a refusal with that status and code, and returns when to come again.
func refused(t *testing.T, err error, status int, code string) time.Duration {
	t.Helper()
	var r *wire.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, status, r.Status, r)
	require.Equal(t, code, r.Code, r)
	return r.RetryAfter
}

func one(t *testing.T, k *quota.Keeper, d quota.KVDemand) {
	t.Helper()
	_, err := k.KV(acme, d)
	require.NoError(t, err)
}

func TestRatesAreKeptPerTenantAndKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{ReadRate: 2, ReadBurst: 4, WriteRate: 1, WriteBurst: 2})
		one(t, k, quota.KVDemand{Reads: 4})
		_, err := k.KV(acme, quota.KVDemand{Reads: 1})
		require.Equal(t, 500*time.Millisecond, refused(t, err, http.StatusTooManyRequests, "rate_limited"))
		one(t, k, quota.KVDemand{Writes: 2})
		_, err = k.Timers(acme, quota.TimersDemand{Schedules: 2})
		require.Equal(t, 2*time.Second, refused(t, err, http.StatusTooManyRequests, "rate_limited"))
		_, err = k.KV(uuid.UUID{15: 8}, quota.KVDemand{Reads: 4, Writes: 2})
		require.NoError(t, err, "another tenant has buckets of its own")

		time.Sleep(500 * time.Millisecond)
		one(t, k, quota.KVDemand{Reads: 1})
		_, err = k.KV(acme, quota.KVDemand{Reads: 1})
		refused(t, err, http.StatusTooManyRequests, "rate_limited")
	})
}

func TestCallLargerThanTheBurstPassesAndLeavesADebt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{WriteRate: 10, WriteBurst: 20})
		one(t, k, quota.KVDemand{Writes: 50})
		_, err := k.KV(acme, quota.KVDemand{Writes: 1})
		require.Equal(t, 3100*time.Millisecond, refused(t, err, http.StatusTooManyRequests, "rate_limited"))
		time.Sleep(5 * time.Second) // three to pay the debt, two to fill the bucket
		one(t, k, quota.KVDemand{Writes: 50})
	})
}

func TestRefusedCallTakesNoTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{ReadRate: 1, ReadBurst: 5, WriteRate: 1, WriteBurst: 1})
		one(t, k, quota.KVDemand{Writes: 1})
		for range 10 {
			_, err := k.KV(acme, quota.KVDemand{Reads: 5, Writes: 1})
			refused(t, err, http.StatusTooManyRequests, "rate_limited")
		}
		one(t, k, quota.KVDemand{Reads: 5})
	})
}

func TestZeroRateSetsNoBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{})
		one(t, k, quota.KVDemand{Reads: 1 << 30, Writes: 1 << 30})
		one(t, k, quota.KVDemand{Reads: 1 << 30, Writes: 1 << 30})
	})
}

func TestCellBoundsAllTenantsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{CellRate: 10})
		one(t, k, quota.KVDemand{Reads: 5, Writes: 5})
		_, err := k.KV(uuid.UUID{15: 8}, quota.KVDemand{Reads: 1})
		require.Equal(t, 100*time.Millisecond, refused(t, err, http.StatusTooManyRequests, "rate_limited"))
	})
}

func TestQuotaSetsTheRatesOfATenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{ReadRate: 100, ReadBurst: 400, WriteRate: 100, WriteBurst: 200},
			store.KVQuota{Tenant: acme, Granted: true, Enabled: true, MaxReadsPerSec: limit(1), MaxWritesPerSec: limit(0)})
		one(t, k, quota.KVDemand{Reads: 4}) // the burst keeps its proportion
		_, err := k.KV(acme, quota.KVDemand{Reads: 1})
		require.Equal(t, time.Second, refused(t, err, http.StatusTooManyRequests, "rate_limited"))
		_, err = k.KV(acme, quota.KVDemand{Writes: 1})
		require.Equal(t, quota.RefreshDefault, refused(t, err, http.StatusTooManyRequests, "rate_limited"),
			"a rate of 0 admits nothing until the quota is another one")

		f.set(func(f *fakeStore) { f.quotas = nil })
		time.Sleep(quota.RefreshDefault + time.Second)
		one(t, k, quota.KVDemand{Reads: 100})
	})
}

func TestGateRefusesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{RequireGrant: true, ReadRate: 1, ReadBurst: 1},
			store.KVQuota{Tenant: acme, Granted: true, Enabled: false, MaxRows: limit(0)})
		write := quota.KVDemand{Reads: 1, Writes: 1, Rows: 1}
		f.set(func(f *fakeStore) { f.switches.KV = false })
		time.Sleep(2 * time.Second)
		_, err := k.KV(acme, write)
		require.Positive(t, refused(t, err, http.StatusServiceUnavailable, "kv_disabled"))
		write.Rider = true
		_, err = k.KV(acme, write)
		require.Zero(t, refused(t, err, http.StatusForbidden, "kv_disabled"), "a transaction need not come again")

		f.set(func(f *fakeStore) { f.switches.KV = true })
		time.Sleep(2 * time.Second)
		_, err = k.KV(acme, write)
		refused(t, err, http.StatusForbidden, "feature_gated")

		f.set(func(f *fakeStore) { f.quotas[0].Enabled = true })
		time.Sleep(quota.RefreshDefault)
		_, err = k.KV(acme, write)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")

		f.set(func(f *fakeStore) { f.quotas[0].MaxRows = nil })
		time.Sleep(quota.RefreshDefault)
		_, err = k.KV(acme, write)
		require.NoError(t, err)
		_, err = k.KV(acme, write)
		refused(t, err, http.StatusTooManyRequests, "rate_limited")
	})
}

func TestGrantIsNeededOnlyWhereItIsRequired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			required bool
			quotas   []store.KVQuota
			pass     bool
		}{
			{false, nil, true},
			{true, nil, false},
			{true, []store.KVQuota{{Tenant: acme, Granted: true, Enabled: true}}, true},
			{true, []store.KVQuota{{Tenant: acme, Granted: true, Enabled: false}}, false},
			{false, []store.KVQuota{{Tenant: acme, Granted: true, Enabled: false}}, false},
			{true, []store.KVQuota{{Tenant: acme, Granted: false, Enabled: true}}, false}, // usage alone is no grant
			{false, []store.KVQuota{{Tenant: acme, Granted: false, Enabled: true}}, true},
		} {
			k, _ := run(t, quota.Config{RequireGrant: tc.required}, tc.quotas...)
			_, err := k.KV(acme, quota.KVDemand{Reads: 1})
			_, timerErr := k.Timers(acme, quota.TimersDemand{Schedules: 1})
			if tc.pass {
				require.NoError(t, errors.Join(err, timerErr), tc)
				continue
			}
			refused(t, err, http.StatusForbidden, "feature_gated")
			refused(t, timerErr, http.StatusForbidden, "feature_gated")
		}
	})
}

func TestRequiredGrantThatCannotBeReadIsNoRefusalForGood(t *testing.T) {
	t.Parallel()
	k, err := quota.New(quota.Config{RequireGrant: true}, quota.Deps{Store: &fakeStore{err: errDown}, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	require.NoError(t, k.Start(t.Context()), "a broker starts without its quotas")
	_, err = k.KV(acme, quota.KVDemand{Reads: 1})
	require.Positive(t, refused(t, err, http.StatusServiceUnavailable, "kv_unavailable"))
	_, err = k.Timers(acme, quota.TimersDemand{Schedules: 1})
	require.Positive(t, refused(t, err, http.StatusServiceUnavailable, "timers_unavailable"))
}

// full is the quota of a tenant that may have 100 rows and has so many.
func full(rows, computedAtMs int64) store.KVQuota {
	return store.KVQuota{Tenant: acme, Granted: true, Enabled: true, MaxRows: limit(100), KVRows: rows, ComputedAtMs: computedAtMs}
}

var aRow = quota.KVDemand{Writes: 1, Rows: 1}

func TestOccupancyBlocksAtTheLimitAndReleasesWellBelow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{}, full(99, 1))
		one(t, k, aRow)
		_, err := k.KV(acme, aRow)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")
		one(t, k, quota.KVDemand{Reads: 1})
		one(t, k, quota.KVDemand{Writes: 1}) // a delete

		for _, tc := range []struct {
			rows, at int64
			pass     bool
		}{{80, 1, true}, {100, 2, false}, {90, 3, false}, {89, 4, true}} {
			f.set(func(f *fakeStore) { f.quotas = []store.KVQuota{full(tc.rows, tc.at)} })
			time.Sleep(quota.RefreshDefault)
			charge, err := k.KV(acme, aRow)
			charge.Refund()
			require.Equal(t, tc.pass, err == nil, tc)
		}
	})
}

func TestCallThatIsTooLargeForWhatIsLeftBlocksNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{}, full(95, 1))
		_, err := k.KV(acme, quota.KVDemand{Writes: 6, Rows: 6})
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")
		one(t, k, quota.KVDemand{Writes: 5, Rows: 5})
		_, err = k.KV(acme, aRow)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")
	})
}

func TestBytesAndTimersHaveLimitsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{}, store.KVQuota{
			Tenant: acme, Granted: true, Enabled: true, MaxBytes: limit(10), KVBytes: 4, MaxTimers: limit(3), TimerRows: 1,
		})
		one(t, k, quota.KVDemand{Writes: 1, Rows: 1, Bytes: 6})
		_, err := k.KV(acme, quota.KVDemand{Writes: 1, Rows: 1, Bytes: 1})
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")

		_, err = k.Timers(acme, quota.TimersDemand{Schedules: 3, Others: true})
		refused(t, err, http.StatusForbidden, "timers_quota_exceeded")
		_, err = k.Timers(acme, quota.TimersDemand{Schedules: 2})
		require.NoError(t, err)
		_, err = k.Timers(acme, quota.TimersDemand{Schedules: 1})
		refused(t, err, http.StatusForbidden, "timers_quota_exceeded")
		_, err = k.Timers(acme, quota.TimersDemand{Others: true})
		require.NoError(t, err, "nothing but a schedule is ever refused")
	})
}

func TestChargeIsGivenBackOnceAndUntilTheNextMeasurement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{}, full(0, 1))
		whole := quota.KVDemand{Writes: 1, Rows: 100}
		charge, err := k.KV(acme, whole)
		require.NoError(t, err)
		charge.Refund()
		charge.Refund()
		charge, err = k.KV(acme, whole)
		require.NoError(t, err, "it was given back once")
		_, err = k.KV(acme, aRow)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")

		f.set(func(f *fakeStore) { f.quotas = []store.KVQuota{full(50, 1)} })
		time.Sleep(quota.RefreshDefault)
		_, err = k.KV(acme, aRow)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded") // the same measurement, read again

		f.set(func(f *fakeStore) { f.quotas = []store.KVQuota{full(50, 2)} })
		time.Sleep(quota.RefreshDefault)
		charge.Refund()
		_, err = k.KV(acme, quota.KVDemand{Writes: 1, Rows: 51})
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")
		one(t, k, quota.KVDemand{Writes: 1, Rows: 50})
		var none *quota.Charge
		none.Refund()
	})
}

func TestHotTenantHasTheQuotasReadSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{}, full(79, 1))
		one(t, k, quota.KVDemand{Reads: 1})
		before := f.count(&f.reads)
		time.Sleep(20 * time.Second)
		require.Equal(t, before, f.count(&f.reads))
		require.Zero(t, k.Summary().Hot)

		one(t, k, aRow) // 80 of 100
		time.Sleep(20 * time.Second)
		require.InDelta(t, before+7, f.count(&f.reads), 1, "every three seconds")
		require.Equal(t, 1, k.Summary().Hot)
		require.Equal(t, 1, k.Summary().Tenants)
		require.Equal(t, quota.MaxTenantsDefault, f.count(&f.tenants))
	})
}

func TestFailedReadingKeepsTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{}, full(100, 1))
		f.set(func(f *fakeStore) { f.switches.TimersSchedule = false })
		time.Sleep(2 * time.Second)
		f.set(func(f *fakeStore) { f.err = errDown })
		time.Sleep(2 * quota.RefreshDefault)
		require.Equal(t, store.KVSwitches{KV: true, TimersFire: true}, k.Switches())
		_, err := k.KV(acme, aRow)
		refused(t, err, http.StatusForbidden, "kv_quota_exceeded")
		require.GreaterOrEqual(t, k.Summary().Age, quota.RefreshDefault)

		before := f.count(&f.reads)
		f.set(func(f *fakeStore) { f.err = nil })
		time.Sleep(4 * time.Second)
		require.Greater(t, f.count(&f.reads), before, "a failure is made good soon")
	})
}

func TestScheduleIsRefusedWithAHint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, _ := run(t, quota.Config{})
		require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{TimersSchedule: new(bool)}))
		for others, hinted := range map[bool]bool{true: true, false: false} {
			_, err := k.Timers(acme, quota.TimersDemand{Schedules: 1, Others: others})
			require.Positive(t, refused(t, err, http.StatusServiceUnavailable, "timers_disabled"))
			var r *wire.Refusal
			require.ErrorAs(t, err, &r)
			require.Equal(t, hinted, r.Hint != "")
		}
		one(t, k, quota.KVDemand{Reads: 1})
		_, err := k.Timers(acme, quota.TimersDemand{Others: true})
		require.NoError(t, err)
	})
}

func TestHorizonIsNarrowedByTheTenantsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for own, want := range map[int64]time.Duration{-1: 0, 0: 0, 59: 59 * time.Second, 60: time.Minute, 61: time.Minute, 1 << 62: time.Minute} {
			k, _ := run(t, quota.Config{Horizon: time.Minute}, store.KVQuota{Tenant: acme, Enabled: true, MaxHorizonS: limit(own)})
			require.Equal(t, want, k.Horizon(acme), own)
			require.Equal(t, time.Minute, k.Horizon(uuid.UUID{}))
		}
	})
}
