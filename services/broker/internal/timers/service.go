package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// Store is the part of the store that keeps timers.
type Store interface {
	TimersApply(ctx context.Context, tenant uuid.UUID, producerSub string, ops json.RawMessage) (store.TimersApplied, error)
	TimerPeek(ctx context.Context, tenant uuid.UUID, queue, key string) (store.RawJSON, error)
	TimersList(ctx context.Context, tenant uuid.UUID, queue, after string, limit int) (store.RawJSON, error)
	TimersCount(ctx context.Context, tenant uuid.UUID, queue, prefix string) (int64, error)
}

// Quota tells what a tenant may schedule.
type Quota interface {
	Timers(tenant uuid.UUID, d quota.TimersDemand) (*quota.Charge, error)
	// TimersPoolRefused hears of a call with schedules that got no connection.
	TimersPoolRefused()
}

// Announcer hears of timers that were scheduled: the nearest is due at an instant of
// the database's clock, in from now. It does not block.
type Announcer interface {
	TimerDue(at time.Time, in time.Duration)
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Edge      *Edge
	Quota     Quota
	Announcer Announcer
	Meter     metric.Meter
}

// Service carries out calls of the timer routes. Its errors are *wire.Refusal, or
// that of the context of a reader who has left. It is safe for concurrent use.
type Service struct {
	Deps
	metrics *metrics
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(deps Deps) (*Service, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create timer metrics: %w", err)
	}
	return &Service{Deps: deps, metrics: m}, nil
}

// Apply carries out the operations of one call, a JSON array, all of them or none,
// and returns the array of their results. producerSub is who asks, "" for nobody. A
// client that leaves does not stop a call that was let through.
func (s *Service) Apply(ctx context.Context, tenant uuid.UUID, producerSub string, ops json.RawMessage) (store.RawJSON, error) {
	p, err := s.Edge.Prepare(tenant, ops, false)
	if err != nil {
		return nil, s.refuse(ctx, err)
	}
	if p.Count == 0 {
		return store.RawJSON("[]"), nil
	}
	charge, err := s.Quota.Timers(tenant, quota.TimersDemand{Schedules: p.Schedules, Others: p.Others})
	if err != nil {
		return nil, s.refuse(ctx, err)
	}
	out, err := s.apply(context.WithoutCancel(ctx), tenant, producerSub, &p)
	if err != nil && !store.Ambiguous(err) {
		charge.Refund()
	}
	if err != nil {
		if p.Schedules > 0 && errors.Is(err, pgdb.ErrExhausted) {
			s.Quota.TimersPoolRefused()
		}
		return nil, s.refuse(ctx, err)
	}
	return out, nil
}

// apply carries out prepared operations, and announces what they have scheduled.
func (s *Service) apply(ctx context.Context, tenant uuid.UUID, producerSub string, p *Prepared) (store.RawJSON, error) {
	began := time.Now()
	applied, err := s.Store.TimersApply(ctx, tenant, producerSub, p.Ops)
	s.metrics.took(ctx, callApply, began)
	if err != nil {
		return nil, err
	}
	if !applied.Next.IsZero() {
		// The delays count from the start of the transaction, which was later than this.
		s.Announcer.TimerDue(applied.Next, max(p.Soonest-time.Since(began), 0))
	}
	if len(applied.Statuses) != p.Count {
		return nil, broken(CodeError, reasonMissing, fmt.Sprintf("%d results for %d operations", len(applied.Statuses), p.Count))
	}
	s.metrics.applied(ctx, p.kinds, applied.Statuses, p.payloadBytes)
	return applied.Results, nil
}

// Cancel takes one timer back and returns its result. No switch and no quota is in
// its way. txn is only echoed when there is no such timer.
func (s *Service) Cancel(ctx context.Context, tenant uuid.UUID, queue, key, txn string) (store.RawJSON, error) {
	op := struct {
		Op    string `json:"op"`
		Queue string `json:"queue"`
		Key   string `json:"timerKey"`
		Txn   string `json:"txn,omitempty"`
	}{Cancel.String(), queue, key, txn}
	ops, err := json.Marshal([]any{op})
	if err != nil {
		return nil, fmt.Errorf("cancel timer: %w", err)
	}
	results, err := s.apply(context.WithoutCancel(ctx), tenant, "", &Prepared{Ops: ops, Count: 1, kinds: []Kind{Cancel}})
	if err != nil {
		return nil, s.refuse(ctx, err)
	}
	var result [1]json.RawMessage // apply has counted it
	if err := json.Unmarshal(results, &result); err != nil {
		return nil, s.refuse(ctx, broken(CodeError, reasonUnreadable, err.Error()))
	}
	return result[0], nil
}

// Peek returns one timer with its payload; a miss has "found" false.
func (s *Service) Peek(ctx context.Context, tenant uuid.UUID, queue, key string) (store.RawJSON, error) {
	defer s.metrics.took(ctx, callPeek, time.Now())
	out, err := s.Store.TimerPeek(ctx, tenant, queue, key)
	return out, s.refuse(ctx, err)
}

// List returns a page of the timers of a queue, in the order of their keys.
func (s *Service) List(ctx context.Context, tenant uuid.UUID, queue, after string, limit int) (store.RawJSON, error) {
	defer s.metrics.took(ctx, callList, time.Now())
	out, err := s.Store.TimersList(ctx, tenant, queue, after, limit)
	return out, s.refuse(ctx, err)
}

// Count tells how many timers of a queue have a key that begins with prefix.
func (s *Service) Count(ctx context.Context, tenant uuid.UUID, queue, prefix string) (int64, error) {
	defer s.metrics.took(ctx, callCount, time.Now())
	n, err := s.Store.TimersCount(ctx, tenant, queue, prefix)
	return n, s.refuse(ctx, err)
}

// refuse gives an error its form, and counts it.
func (s *Service) refuse(ctx context.Context, err error) error {
	var r *wire.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
	case ctx.Err() != nil: // the client has left, and nothing is wrong
		return err
	default:
		r = refusalOf(err)
	}
	s.metrics.refusal(ctx, r)
	return r
}
