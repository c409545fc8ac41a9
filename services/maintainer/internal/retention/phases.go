package retention

import (
	"context"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// retentionPhase deletes what the two retention rules let go.
func (l *leader) retentionPhase() lanePhase {
	return lanePhase{
		name: PhaseRetention, pace: newPace(l.cfg.BatchSize), aside: newAside(HeldMin, HeldMax), lockWait: l.setLockWait, lost: l.lost,
		rest: l.rest(),
		due:  func(q store.QueuePlan) bool { return q.LiveDue },
		way:  func(q store.QueuePlan) course { return newHeldCourse(l.heldOf(q), q) },
		page: func(ctx context.Context, q store.QueuePlan, s span) (store.Page, error) {
			return l.session.RetentionPage(ctx, q, s.after, s.until, pageLanes)
		},
		step: func(ctx context.Context, q store.QueuePlan, lane uuid.UUID, rows int) (store.Step, error) {
			return l.session.RetentionStep(ctx, lane, q.All, q.Completed, rows)
		},
		book: func(p *Phase, q *Queue, s store.Step) {
			p.segments(s)
			q.Segments += s.Deleted
			q.Messages += s.Messages
			q.Bytes += s.Bytes
		},
	}
}

// txnsPhase deletes sidecar rows that no probe and no late ack can ask for.
func (l *leader) txnsPhase() lanePhase {
	return lanePhase{
		name: PhaseTxns, pace: newPace(l.cfg.BatchSize), aside: newAside(HeldMin, HeldMax), lockWait: l.setLockWait, lost: l.lost,
		rest: l.rest(),
		due:  func(q store.QueuePlan) bool { return q.TxnsDue && q.Txns != nil },
		way:  func(store.QueuePlan) course { return &straight{} },
		page: func(ctx context.Context, q store.QueuePlan, s span) (store.Page, error) {
			return l.session.TxnsPage(ctx, q, s.after, pageLanes)
		},
		step: func(ctx context.Context, q store.QueuePlan, lane uuid.UUID, rows int) (store.Step, error) {
			return l.session.TxnsStep(ctx, lane, *q.Txns, rows)
		},
		book: func(p *Phase, q *Queue, s store.Step) {
			p.Rows += s.Deleted
			q.SidecarRows += s.Deleted
		},
	}
}

// evictionPhase deletes what has waited longer than its queue allows. It does not
// rest: that is a promise.
func (l *leader) evictionPhase() lanePhase {
	return lanePhase{
		name: PhaseEviction, pace: newPace(l.cfg.BatchSize), aside: newAside(EvictPause, EvictHeldMax), lockWait: l.setLockWait, lost: l.lost,
		due: func(q store.QueuePlan) bool { return q.EvictDue && q.MaxWait != nil },
		way: func(store.QueuePlan) course { return &straight{} },
		page: func(ctx context.Context, q store.QueuePlan, s span) (store.Page, error) {
			return l.session.EvictPage(ctx, q, s.after, pageLanes)
		},
		step: func(ctx context.Context, q store.QueuePlan, lane uuid.UUID, rows int) (store.Step, error) {
			return l.session.EvictStep(ctx, lane, *q.MaxWait, rows)
		},
		book: func(p *Phase, q *Queue, s store.Step) {
			p.segments(s)
			q.Evicted += s.Messages
		},
	}
}

func (p *Phase) segments(s store.Step) {
	p.Segments += s.Deleted
	p.Messages += s.Messages
	p.Bytes += s.Bytes
}
