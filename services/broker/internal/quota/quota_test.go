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
	during   func() // called in the middle of a look
}

func (f *fakeStore) KVSwitches(context.Context) (store.KVSwitches, error) {
	f.mu.Lock()
	s, err, during := f.switches, f.err, f.during
	f.looks++
	f.mu.Unlock()
	if during != nil {
		during()
	}
	return s, err
}

func (f *fakeStore) SetKVSwitches(_ context.Context, c store.KVSwitchChange) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if c.KV != nil {
		f.switches.KV = *c.KV
	}
	if c.TimersSchedule != nil {
		f.switches.TimersSchedule = *c.TimersSchedule
	}
	if c.TimersFire != nil {
		f.switches.TimersFire = *c.TimersFire
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
