package quota_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

func set(on bool) *bool { return &on }

func TestSwitchOfAnotherProcessIsSeenWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{})
		f.set(func(f *fakeStore) { f.switches.KV = false })
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, k.Switches().KV)
		f.set(func(f *fakeStore) { f.switches.KV = true })
		k.Kick()
		k.Kick()
		synctest.Wait()
		require.True(t, k.Switches().KV, "a hint makes it sooner")
	})
}

func TestFlipIsLoggedOnceByName(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	f := &fakeStore{switches: store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: false}}
	k, err := quota.New(quota.Config{}, quota.Deps{Store: f, Meter: noop.Meter{}, Logger: log})
	require.NoError(t, err)
	for range 3 {
		require.False(t, k.RefreshSwitches(t.Context()).TimersFire)
	}
	require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{KV: set(false), TimersSchedule: set(true)}))
	require.False(t, k.RefreshSwitches(t.Context()).KV)
	require.Equal(t, 2, strings.Count(lines.String(), "switch has flipped"), lines.String())
	require.Contains(t, lines.String(), "switch=timersFire on=false")
	require.Contains(t, lines.String(), "switch=kv on=false")
}

func TestChangeThatIsNotOnRecordHoldsHere(t *testing.T) {
	t.Parallel()
	f := &fakeStore{switches: store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true}, err: errDown}
	k, err := quota.New(quota.Config{}, quota.Deps{Store: f, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	require.False(t, k.SetSwitches(t.Context(), store.KVSwitchChange{KV: set(false)}))
	require.False(t, k.SetSwitches(t.Context(), store.KVSwitchChange{TimersFire: set(false)}))
	f.set(func(f *fakeStore) { f.err = nil })
	want := store.KVSwitches{TimersSchedule: true}
	require.Equal(t, want, k.RefreshSwitches(t.Context()), "what is on record has not changed")
	require.True(t, f.switches.KV)

	f.set(func(f *fakeStore) { f.switches.TimersSchedule = false })
	require.Equal(t, store.KVSwitches{}, k.RefreshSwitches(t.Context()), "other switches follow the record")
	require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{TimersFire: set(true)}))
	f.set(func(f *fakeStore) { f.switches.TimersFire = false })
	require.False(t, k.RefreshSwitches(t.Context()).TimersFire, "once on record, the record counts again")

	f.set(func(f *fakeStore) { f.switches.KV = false })
	require.False(t, k.RefreshSwitches(t.Context()).KV)
	f.set(func(f *fakeStore) { f.switches.KV = true })
	require.True(t, k.RefreshSwitches(t.Context()).KV, "somebody has decided anew")
}

func TestReadingThatAChangeOvertookIsDropped(t *testing.T) {
	t.Parallel()
	f := &fakeStore{switches: store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true}}
	k, err := quota.New(quota.Config{}, quota.Deps{Store: f, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	f.during = func() {
		f.set(func(f *fakeStore) { f.during = nil })
		require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{KV: set(false)}))
	}
	require.False(t, k.RefreshSwitches(t.Context()).KV)
}
