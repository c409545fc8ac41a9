package modes_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/modes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("database is down")

// fakeStore records flags in memory.
type fakeStore struct {
	mu       sync.Mutex
	recorded map[store.Flag]bool
	err      error
	during   func() // called in the middle of a reading
}

func (f *fakeStore) Flags(_ context.Context, flags ...store.Flag) (map[store.Flag]bool, error) {
	f.mu.Lock()
	found, err, during := map[store.Flag]bool{}, f.err, f.during
	for _, flag := range flags {
		if on, ok := f.recorded[flag]; ok {
			found[flag] = on
		}
	}
	f.mu.Unlock()
	if during != nil {
		during()
	}
	return found, err
}

func (f *fakeStore) SetFlags(_ context.Context, flags map[store.Flag]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		maps.Copy(f.recorded, flags)
	}
	return f.err
}

// record is what another process does.
func (f *fakeStore) record(flag store.Flag, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorded[flag] = on
}

func (f *fakeStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

type bundle struct {
	*modes.Modes
	db   *fakeStore
	log  *logtest.Recorder
	held int // how often pops were held
}

func setup(t *testing.T) *bundle {
	t.Helper()
	log, lines := logtest.NewRecorder()
	b := &bundle{db: &fakeStore{recorded: map[store.Flag]bool{}}, log: lines}
	var err error
	b.Modes, err = modes.New(modes.Deps{Store: b.db, Meter: noop.Meter{}, Logger: log, PopsHeld: func() { b.held++ }})
	require.NoError(t, err)
	return b
}

// run is setup with the loop that reads the flags, inside a synctest bubble.
func run(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return b
}

func TestNothingIsHeldUntilSomebodySaysSo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.False(t, b.PushMaintenance())
	require.False(t, b.PopMaintenance())
	require.True(t, b.SetPush(t.Context(), true))
	require.True(t, b.PushMaintenance())
	require.False(t, b.PopMaintenance())
	require.True(t, b.SetPop(t.Context(), true))
	require.True(t, b.SetPush(t.Context(), false))
	require.False(t, b.PushMaintenance())
	require.True(t, b.PopMaintenance())
	require.Equal(t, map[store.Flag]bool{store.FlagPushMaintenance: false, store.FlagPopMaintenance: true}, b.db.recorded)
}

func TestWhatIsOnRecordHoldsFromTheStart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.record(store.FlagPopMaintenance, true)
	require.NoError(t, b.Start(t.Context()))
	require.True(t, b.PopMaintenance())

	b = setup(t)
	b.db.fail(errDown)
	require.NoError(t, b.Start(t.Context()), "a broker starts without the flags")
}

func TestFlagOfAnotherProcessIsSeenWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t)
		b.db.record(store.FlagPushMaintenance, true)
		require.False(t, b.PushMaintenance())
		time.Sleep(modes.Every)
		synctest.Wait()
		require.True(t, b.PushMaintenance())
		b.db.record(store.FlagPushMaintenance, false)
		b.Kick()
		b.Kick()
		synctest.Wait()
		require.False(t, b.PushMaintenance(), "a hint makes it sooner")
	})
}

func TestOutageIsLoggedOnceAndKeepsTheFlags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t)
		b.SetPop(t.Context(), true)
		b.db.fail(errDown)
		time.Sleep(10 * modes.Every)
		require.True(t, b.PopMaintenance())
		b.db.fail(nil)
		time.Sleep(2 * modes.Every)
		require.Equal(t, 1, strings.Count(b.log.String(), "switches cannot be read"), b.log)
		require.Equal(t, 1, strings.Count(b.log.String(), "switches are read again"), b.log)
	})
}

func TestPopsAreToldWhenTheyAreHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.SetPush(t.Context(), true)
	require.Zero(t, b.held)
	b.SetPop(t.Context(), true)
	require.Equal(t, 1, b.held)
	require.NoError(t, b.Read(t.Context()))
	require.Equal(t, 1, b.held, "only when something has changed")
	b.SetPop(t.Context(), false)
	require.Equal(t, 1, b.held)
	b.db.record(store.FlagPopMaintenance, true)
	require.NoError(t, b.Read(t.Context()))
	require.Equal(t, 2, b.held, "also by another process")
}

func TestFlipIsLoggedOnceByName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.record(store.FlagPopMaintenance, true)
	for range 3 {
		require.NoError(t, b.Read(t.Context()))
	}
	b.SetPush(t.Context(), true)
	b.SetPop(t.Context(), true)
	require.NoError(t, b.Read(t.Context()))
	require.Equal(t, 2, strings.Count(b.log.String(), "switch has flipped"), b.log)
	require.Contains(t, b.log.String(), "switch=popMaintenance on=true")
	require.Contains(t, b.log.String(), "switch=pushMaintenance on=true")
}

func TestChangeThatIsNotOnRecordHoldsHere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.fail(errDown)
	require.False(t, b.SetPush(t.Context(), true))
	require.Contains(t, b.log.String(), "they hold in this process alone")
	require.Error(t, b.Read(t.Context()))
	b.db.fail(nil)
	b.db.record(store.FlagPopMaintenance, true)
	require.NoError(t, b.Read(t.Context()))
	require.True(t, b.PushMaintenance(), "what is on record has not changed")
	require.True(t, b.PopMaintenance(), "the other flag follows the record")

	b.db.record(store.FlagPushMaintenance, true)
	require.NoError(t, b.Read(t.Context()))
	b.db.record(store.FlagPushMaintenance, false)
	require.NoError(t, b.Read(t.Context()))
	require.False(t, b.PushMaintenance(), "somebody has decided anew")

	require.True(t, b.SetPush(t.Context(), true))
	b.db.record(store.FlagPushMaintenance, false)
	require.NoError(t, b.Read(t.Context()))
	require.False(t, b.PushMaintenance(), "once on record, the record counts again")
}

func TestReadingThatAChangeOvertookIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.during = func() {
		b.db.during = nil
		require.True(t, b.SetPop(t.Context(), true))
	}
	require.NoError(t, b.Read(t.Context()))
	require.True(t, b.PopMaintenance())
}

func TestModesAreShown(t *testing.T) {
	t.Parallel()
	reader := sdk.NewManualReader()
	m, err := modes.New(modes.Deps{
		Store: &fakeStore{recorded: map[store.Flag]bool{}}, Logger: logtest.New(t),
		Meter: sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"),
	})
	require.NoError(t, err)
	m.SetPop(t.Context(), true)
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	shown := map[string]int64{}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		shown[m.Name] = m.Data.(metricdata.Gauge[int64]).DataPoints[0].Value
	}
	require.Equal(t, map[string]int64{"queen.maintenance_mode_enabled": 0, "queen.pop_maintenance_mode_enabled": 1}, shown)
}
