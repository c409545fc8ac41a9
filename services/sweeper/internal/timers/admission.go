package timers

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/queenmq/queen/pkg/store"
)

// database is what the cycle needs of the store.
type database interface {
	TimersDue(ctx context.Context, shards []int16, limit int) (store.TimersDue, error)
	TimersClaim(ctx context.Context, c store.TimerClaim) ([]store.ClaimedTimer, error)
	TimersFire(ctx context.Context, segs []store.FireSegment) ([]store.FireVerdict, error)
	TimersFail(ctx context.Context, timers []store.HeldTimer, f store.TimerFailure) (store.TimersFailed, error)
	TimersDeadLetter(ctx context.Context, letters []store.TimerLetter, minAttempts int) (archived, skipped int, err error)
	OthersAtWork(ctx context.Context) (bool, error)
	KVSwitches(ctx context.Context) (store.KVSwitches, error)
	KVExpire(ctx context.Context, shards []int16, rows int) (store.KVExpired, error)
	KVMeasure(ctx context.Context, shards []int16, tenants int) (store.KVUsage, error)
	SweepTables(ctx context.Context) ([]store.TableSize, error)
}

// besideFires is how many calls may be made beside the fires: one that probes, claims
// or reads the switches, and one of the upkeep.
const besideFires = 2

// admission gives out the slots of this process. A slot is had before a connection is
// asked for: in the other order, connections would wait for slots that wait for
// connections.
type admission struct {
	db    database
	slots *semaphore.Weighted
}

func newAdmission(db database, fires int) *admission {
	return &admission{db: db, slots: semaphore.NewWeighted(int64(fires + besideFires))}
}

func admitted[T any](ctx context.Context, a *admission, call func() (T, error)) (T, error) {
	if err := a.slots.Acquire(ctx, 1); err != nil {
		var none T
		return none, err
	}
	defer a.slots.Release(1)
	return call()
}

func (a *admission) TimersDue(ctx context.Context, shards []int16, limit int) (store.TimersDue, error) {
	return admitted(ctx, a, func() (store.TimersDue, error) { return a.db.TimersDue(ctx, shards, limit) })
}

func (a *admission) TimersClaim(ctx context.Context, c store.TimerClaim) ([]store.ClaimedTimer, error) {
	return admitted(ctx, a, func() ([]store.ClaimedTimer, error) { return a.db.TimersClaim(ctx, c) })
}

func (a *admission) TimersFire(ctx context.Context, segs []store.FireSegment) ([]store.FireVerdict, error) {
	return admitted(ctx, a, func() ([]store.FireVerdict, error) { return a.db.TimersFire(ctx, segs) })
}

func (a *admission) TimersFail(ctx context.Context, timers []store.HeldTimer, f store.TimerFailure) (store.TimersFailed, error) {
	return admitted(ctx, a, func() (store.TimersFailed, error) { return a.db.TimersFail(ctx, timers, f) })
}

func (a *admission) TimersDeadLetter(ctx context.Context, letters []store.TimerLetter, minAttempts int) (archived, skipped int, err error) {
	archived, err = admitted(ctx, a, func() (n int, err error) {
		n, skipped, err = a.db.TimersDeadLetter(ctx, letters, minAttempts)
		return n, err
	})
	return archived, skipped, err
}

func (a *admission) OthersAtWork(ctx context.Context) (bool, error) {
	return admitted(ctx, a, func() (bool, error) { return a.db.OthersAtWork(ctx) })
}

func (a *admission) KVSwitches(ctx context.Context) (store.KVSwitches, error) {
	return admitted(ctx, a, func() (store.KVSwitches, error) { return a.db.KVSwitches(ctx) })
}

func (a *admission) KVExpire(ctx context.Context, shards []int16, rows int) (store.KVExpired, error) {
	return admitted(ctx, a, func() (store.KVExpired, error) { return a.db.KVExpire(ctx, shards, rows) })
}

func (a *admission) KVMeasure(ctx context.Context, shards []int16, tenants int) (store.KVUsage, error) {
	return admitted(ctx, a, func() (store.KVUsage, error) { return a.db.KVMeasure(ctx, shards, tenants) })
}

func (a *admission) SweepTables(ctx context.Context) ([]store.TableSize, error) {
	return admitted(ctx, a, func() ([]store.TableSize, error) { return a.db.SweepTables(ctx) })
}
