package quota

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// switches are the operator's switches as they are in force here. A reading gives
// way to a change that was made here and could not be recorded, until what is
// recorded changes: then somebody has decided anew.
type switches struct {
	inForce atomic.Pointer[store.KVSwitches]

	mu       sync.Mutex
	recorded store.KVSwitches     // as it was last read
	unsaved  store.KVSwitchChange // in force here alone
	changes  int                  // made here; a reading that was begun before one says nothing
}

// allOn is what holds while nothing is recorded.
var allOn = store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true}

func (s *switches) begin() {
	s.recorded = allOn
	s.inForce.Store(&allOn)
}

// Switches are the operator's switches as they are in force here.
func (k *Keeper) Switches() store.KVSwitches { return *k.switches.inForce.Load() }

// RefreshSwitches reads the switches and returns what is in force then; when they
// cannot be read, that is what was in force before.
func (k *Keeper) RefreshSwitches(ctx context.Context) store.KVSwitches {
	_ = k.readSwitches(ctx) // the loop that reads them every second tells of failures
	return k.Switches()
}

func (k *Keeper) readSwitches(ctx context.Context) error {
	s := &k.switches
	s.mu.Lock()
	before := s.changes
	s.mu.Unlock()
	read, err := k.store.KVSwitches(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != before {
		return nil
	}
	s.unsaved = store.KVSwitchChange{
		KV:             stillUnsaved(s.unsaved.KV, s.recorded.KV, read.KV),
		TimersSchedule: stillUnsaved(s.unsaved.TimersSchedule, s.recorded.TimersSchedule, read.TimersSchedule),
		TimersFire:     stillUnsaved(s.unsaved.TimersFire, s.recorded.TimersFire, read.TimersFire),
	}
	s.recorded = read
	k.force(ctx, changed(read, s.unsaved))
	return nil
}

// stillUnsaved is what is left of an unsaved change after a reading.
func stillUnsaved(unsaved *bool, before, now bool) *bool {
	if now != before {
		return nil
	}
	return unsaved
}

// changed is s with a change made to it.
func changed(s store.KVSwitches, c store.KVSwitchChange) store.KVSwitches {
	for _, one := range []struct {
		to   *bool
		from *bool
	}{{&s.KV, c.KV}, {&s.TimersSchedule, c.TimersSchedule}, {&s.TimersFire, c.TimersFire}} {
		if one.from != nil {
			*one.to = *one.from
		}
	}
	return s
}

// SetSwitches changes switches: here at once, and then on record. mirrored tells
// whether they are on record; otherwise the change holds here alone.
func (k *Keeper) SetSwitches(ctx context.Context, c store.KVSwitchChange) (mirrored bool) {
	k.change(ctx, c, func(s *switches) { s.unsaved = merged(s.unsaved, c) })
	if err := k.store.SetKVSwitches(ctx, c); err != nil {
		k.log.WarnContext(ctx, "switches could not be recorded, they hold in this process alone", logging.Err(err))
		return false
	}
	k.change(ctx, c, func(s *switches) {
		s.recorded = changed(s.recorded, c)
		s.unsaved = without(s.unsaved, c)
	})
	return true
}

// change puts a change in force and notes what note says about it.
func (k *Keeper) change(ctx context.Context, c store.KVSwitchChange, note func(*switches)) {
	s := &k.switches
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	note(s)
	k.force(ctx, changed(k.Switches(), c))
}

// merged is a change after which another one is made.
func merged(a, b store.KVSwitchChange) store.KVSwitchChange {
	return store.KVSwitchChange{KV: or(b.KV, a.KV), TimersSchedule: or(b.TimersSchedule, a.TimersSchedule), TimersFire: or(b.TimersFire, a.TimersFire)}
}

func or(a, b *bool) *bool {
	if a != nil {
		return a
	}
	return b
}

// without is a change without the switches of another one.
func without(a, b store.KVSwitchChange) store.KVSwitchChange {
	return store.KVSwitchChange{KV: unless(b.KV, a.KV), TimersSchedule: unless(b.TimersSchedule, a.TimersSchedule), TimersFire: unless(b.TimersFire, a.TimersFire)}
}

func unless(taken, otherwise *bool) *bool {
	if taken != nil {
		return nil
	}
	return otherwise
}

// force puts switches in force and logs those that have flipped. The caller holds
// the lock.
func (k *Keeper) force(ctx context.Context, next store.KVSwitches) {
	was := *k.switches.inForce.Swap(&next)
	for _, s := range []struct {
		name    string
		was, is bool
	}{
		{"kv", was.KV, next.KV}, {"timersSchedule", was.TimersSchedule, next.TimersSchedule}, {"timersFire", was.TimersFire, next.TimersFire},
	} {
		if s.was != s.is {
			k.log.WarnContext(ctx, "switch has flipped", slog.String(keySwitch, s.name), slog.Bool(keyOn, s.is))
		}
	}
}

const (
	keySwitch = "switch"
	keyOn     = "on"
)
