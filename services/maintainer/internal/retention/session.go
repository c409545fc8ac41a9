package retention

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// session is what a cycle asks of the one connection that holds the lock; see
// store.MaintenanceSession.
type session interface {
	Close(ctx context.Context)
	Closed() bool
	TryLock(ctx context.Context) (bool, error)
	Unlock(ctx context.Context) error
	SetLockWait(ctx context.Context, wait time.Duration) error
	OthersAtWork(ctx context.Context) (bool, error)

	Plan(ctx context.Context) (store.Plan, error)
	RetentionPage(ctx context.Context, q store.QueuePlan, after, until store.LaneKey, limit int) (store.Page, error)
	TxnsPage(ctx context.Context, q store.QueuePlan, after store.LaneKey, limit int) (store.Page, error)
	EvictPage(ctx context.Context, q store.QueuePlan, after store.LaneKey, limit int) (store.Page, error)
	RetentionStep(ctx context.Context, pid uuid.UUID, all, completed *time.Time, rows int) (store.Step, error)
	TxnsStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (store.Step, error)
	EvictStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (store.Step, error)
	NextEviction(ctx context.Context) (*time.Duration, error)
	Forecast(ctx context.Context, pid uuid.UUID, all, completed *time.Time) (store.Forecast, error)
	ForecastTxns(ctx context.Context, pid uuid.UUID, cutoff time.Time) (int64, error)
	ForecastCleanup(ctx context.Context, cutoff time.Time, after store.LaneKey, rows int) (store.Cleanup, error)
	ForecastMetrics(ctx context.Context, cutoff time.Time) (int64, error)

	CleanupStep(ctx context.Context, cutoff time.Time, after store.LaneKey, rows int) (store.Cleanup, error)
	PurgeMetrics(ctx context.Context, cutoff time.Time, rows int) (int64, error)
	WalkStep(ctx context.Context, after uuid.UUID, limit int, deep bool) (store.Walk, error)
	ClockDue(ctx context.Context, name string, every time.Duration) (bool, error)
	Position(ctx context.Context, name string) (uuid.UUID, error)
	SetPosition(ctx context.Context, name string, id uuid.UUID) error
}

// opener connects.
type opener func(ctx context.Context) (session, error)

func sessions(s *store.Store) opener {
	return func(ctx context.Context) (session, error) {
		m, err := s.Maintenance(ctx)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return m, nil
	}
}

// gaveUp tells that the server gave a statement up, which did nothing: it did not
// get a row lock in time, or took too long altogether.
func gaveUp(err error) bool { return store.Locked(err) || store.TimedOut(err) }
