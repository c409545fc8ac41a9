package quota_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

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

func TestSwitchesAreChangedOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, f := run(t, quota.Config{})
		off := false
		require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{KV: &off}))
		require.Equal(t, store.KVSwitches{TimersSchedule: true, TimersFire: true}, k.Switches())
		require.True(t, k.SetSwitches(t.Context(), store.KVSwitchChange{TimersFire: &off}))
		require.Equal(t, store.KVSwitches{TimersSchedule: true}, k.Switches())
		require.Equal(t, k.Switches(), f.switches)
		f.set(func(f *fakeStore) { f.switches = store.KVSwitches{KV: true, TimersFire: true} })
		require.Equal(t, store.KVSwitches{KV: true, TimersFire: true}, k.RefreshSwitches(t.Context()))
	})
}
