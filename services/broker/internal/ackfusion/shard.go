package ackfusion

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/retry"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

type key struct {
	partition     uuid.UUID
	group, worker string
}

// row is one cursor move that requests wait for. verdict is set before done is
// closed.
type row struct {
	batch   store.AckRow
	plain   bool         // nobody rides with it
	spans   []trace.Span // of the recorded requests that wait for it
	done    chan struct{}
	verdict Verdict
}

func (r *row) key() key { return key{r.batch.PartitionID, r.batch.Group, r.batch.Worker} }

// carry notes a recorded request.
func (r *row) carry(span trace.Span) {
	if span != nil {
		r.spans = append(r.spans, span)
	}
}

func (r *row) settle(v Verdict) {
	r.verdict = v
	close(r.done)
}

// shard is the state of some lanes.
type shard struct {
	*Fuser

	mu      sync.Mutex
	waiting map[key]*row
	queue   []*row // the same rows in order of arrival
	flying  bool   // a flight gathers rows, or is under way and not stuck
	flight  uint64 // which one
	pace    pace
}

// add puts a batch of a request among those that wait, and tells whether the caller
// has to lead a flight. span is that of the request, nil when nobody records it.
func (s *shard) add(b *store.AckRow, span trace.Span) (r *row, lead bool) {
	k := key{b.PartitionID, b.Group, b.Worker}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r = s.waiting[k]; r != nil {
		if b.End > r.batch.End {
			r.batch = *b
		}
		r.carry(span)
		return r, false
	}
	r = &row{batch: *b, done: make(chan struct{})}
	r.carry(span)
	s.waiting[k] = r
	s.queue = append(s.queue, r)
	s.pace.came()
	lead, s.flying = !s.flying, true
	return r, lead
}

// withdraw takes a row back that no flight has taken.
func (s *shard) withdraw(r *row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[r.key()] != r {
		return
	}
	delete(s.waiting, r.key())
	for i := range s.queue {
		if s.queue[i] == r {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			break
		}
	}
	r.settle(Verdict{State: Failed, Err: ErrOverloaded})
}

// take starts a flight with the rows that have waited longest.
func (s *shard) take() (rows []*row, flight uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.queue), s.cfg.MaxRows)
	rows = s.queue[:n:n]
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil // lets go of the array
	}
	for _, r := range rows {
		delete(s.waiting, r.key())
	}
	s.flight++
	return rows, s.flight
}

// land ends a flight that was not stuck, and tells whether another one is to
// follow.
func (s *shard) land(flight uint64) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flight != flight || !s.flying {
		return false
	}
	s.flight++
	s.flying = len(s.queue) > 0
	return s.flying
}

// lead flies until nothing waits.
func (s *shard) lead(ctx context.Context) {
	for s.fly(ctx) {
		continue
	}
}

// fly makes one flight, and tells whether the caller is to make another one.
func (s *shard) fly(ctx context.Context) (more bool) {
	s.gather()
	release, err := s.Admission.Acquire(ctx, admission.Ack)
	rows, flight := s.take()
	if err != nil {
		settle(rows, Verdict{State: Failed, Err: err})
		return s.land(flight)
	}
	defer release()
	stuck := time.AfterFunc(stuckTicks*s.cfg.Hold, func() {
		if s.land(flight) {
			s.lead(ctx)
		}
	})
	s.commit(ctx, rows)
	stuck.Stop()
	return s.land(flight)
}

// commit gives rows their verdicts. Those of a bundle that need a flight of their
// own get it.
func (s *shard) commit(ctx context.Context, rows []*row) {
	if len(rows) == 0 { // all were withdrawn
		return
	}
	began := time.Now()
	out, handed, err := s.call(ctx, rows)
	s.landed(len(handed), time.Since(began))
	switch {
	case err == nil:
		for i, r := range rows {
			s.conclude(ctx, r, &out[i], slices.Contains(handed, i))
		}
	case store.Ambiguous(err):
		settle(rows, Verdict{State: Unknown, Err: err})
	case len(rows) > 1 && store.Classify(err) == store.Permanent:
		for _, r := range rows {
			go s.alone(ctx, r)
		}
	default:
		settle(rows, Verdict{State: Failed, Err: err})
	}
}

// call moves the cursors. Pops that wait for the lanes ride along.
func (s *shard) call(ctx context.Context, rows []*row) (out []store.AckOutcome, handed []int, err error) {
	moves := make([]store.AckRow, len(rows))
	for i, r := range rows {
		moves[i] = r.batch
	}
	var rides Rides
	if s.Riders != nil && (len(rows) > 1 || !rows[0].plain) {
		rides = s.Riders.Board(moves)
	}
	ctx, span := startFlush(ctx, rows, rides)
	defer span.End()
	var served store.NextServed
	err = retry.Do(ctx, time.Now().Add(s.cfg.Deadline), func(ctx context.Context) error {
		var err error
		began := time.Now()
		if rides == nil {
			out, err = s.Store.AckWhole(ctx, moves, len(rows) == 1)
		} else {
			out, served, err = s.Store.AckAndPop(ctx, moves, len(rows) == 1, rides.Next())
		}
		s.Batches.Fired(ctx, batches.Ack, len(moves), time.Since(began))
		return err
	})
	if rides != nil {
		handed = rides.Land(served, err)
	}
	spans.Fail(ctx, err)
	if err == nil {
		s.Admission.Commit()
		s.metrics.committed(ctx, len(rows))
	}
	return out, handed, err
}

// rowsKey is the attribute of how many cursors a flush moves.
const rowsKey = attribute.Key("queen.rows")

// startFlush begins the span of a transaction.
func startFlush(ctx context.Context, rows []*row, rides Rides) (context.Context, trace.Span) {
	var requests spans.Set
	for _, r := range rows {
		for _, span := range r.spans {
			requests.Add(span)
		}
	}
	if rides != nil {
		rides.Requests(&requests)
	}
	ctx, span := requests.Start(ctx, "ack flush")
	if span.IsRecording() {
		span.SetAttributes(rowsKey.Int(len(rows)))
	}
	return ctx, span
}

func (s *shard) conclude(ctx context.Context, r *row, out *store.AckOutcome, handed bool) {
	switch {
	case out.OK:
		r.settle(Verdict{State: Committed, Handed: handed})
	case out.Error == store.AckBusy:
		r.plain = true
		go s.alone(ctx, r)
	default:
		r.settle(Verdict{State: Rejected})
	}
}

// alone flies a row that must not hold up others.
func (s *shard) alone(ctx context.Context, r *row) {
	release, err := s.Admission.Acquire(ctx, admission.Ack)
	if err != nil {
		r.settle(Verdict{State: Failed, Err: err})
		return
	}
	defer release()
	s.commit(ctx, []*row{r})
}

func settle(rows []*row, v Verdict) {
	for _, r := range rows {
		r.settle(v)
	}
}
