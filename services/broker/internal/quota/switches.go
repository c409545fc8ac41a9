package quota

import (
	"context"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/modes"
)

// The switches, in their order in the set. What is not recorded is on.
const (
	kvSwitch = iota
	scheduleSwitch
	fireSwitch
)

func switchFlags() []modes.Flag {
	return []modes.Flag{
		kvSwitch:       {Key: store.FlagKV, Name: "kv", Default: true},
		scheduleSwitch: {Key: store.FlagTimersSchedule, Name: "timersSchedule", Default: true},
		fireSwitch:     {Key: store.FlagTimersFire, Name: "timersFire", Default: true},
	}
}

// Switches are the operator's switches as they are in force here.
func (k *Keeper) Switches() store.KVSwitches {
	b := k.switches.InForce()
	return store.KVSwitches{KV: b.On(kvSwitch), TimersSchedule: b.On(scheduleSwitch), TimersFire: b.On(fireSwitch)}
}

// RefreshSwitches reads the switches and returns what is in force then; when they
// cannot be read, that is what was in force before.
func (k *Keeper) RefreshSwitches(ctx context.Context) store.KVSwitches {
	_ = k.switches.Read(ctx) // the loop that reads them every second tells of failures
	return k.Switches()
}

// SetSwitches changes switches: here at once, and then on record. mirrored tells
// whether they are on record; otherwise the change holds here alone.
func (k *Keeper) SetSwitches(ctx context.Context, c store.KVSwitchChange) (mirrored bool) {
	return k.switches.Change(ctx, c.Flags())
}

// Kick has the switches read now. It does not wait.
func (k *Keeper) Kick() { k.switches.Kick() }
