package popfusion

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/retry"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

// flight are the claims of one call.
type flight struct {
	*shard
	tickets []*ticket
	claims  []store.PopClaim // of the tickets
	want    int
}

// fly makes one flight, which the shard has counted as flying.
func (s *shard) fly(number uint64) {
	ctx := context.Background()
	stuck := time.AfterFunc(stuckAfter, func() { s.land(number) })
	defer stuck.Stop()
	release, err := s.Admission.Acquire(ctx, admission.Pop)
	if err != nil {
		settle(s.board(), Outcome{}, err)
		s.land(number)
		return
	}
	f := &flight{shard: s}
	for _, t := range s.board() {
		f.board(t)
	}
	if len(f.claims) > 0 {
		f.claim(ctx)
	}
	release()
	s.land(number)
}

// board has a ticket name its lane. A lane that another one has named would be
// delivered twice.
func (f *flight) board(t *ticket) {
	c, ok := t.claim.Board()
	switch {
	case !ok:
		t.settle(Outcome{State: NoLane}, nil)
		return
	case f.names(c.Partition):
		t.settle(Outcome{State: Missed}, nil)
		return
	}
	f.tickets = append(f.tickets, t)
	f.claims = append(f.claims, c)
	f.want += t.claim.Want
}

func (f *flight) names(partition string) bool {
	for i := range f.claims {
		if f.claims[i].Partition == partition {
			return true
		}
	}
	return false
}

// claim makes the call and tells everybody.
func (f *flight) claim(ctx context.Context) {
	ctx, span := f.startFlush(ctx)
	defer span.End()
	started := time.Now()
	m := store.MultiPop{Tenant: f.key.Tenant, Queue: f.key.Queue, Group: f.key.Group, AutoAck: f.key.AutoAck, Claims: f.claims}
	m.Bound(maxBytes)
	var served []store.PopServed
	err := retry.Do(ctx, started.Add(patience), func(ctx context.Context) error {
		var err error
		began := time.Now()
		served, err = f.Store.PopMulti(ctx, m)
		f.Batches.Fired(ctx, batches.Pop, taken(served), time.Since(began))
		return err
	})
	lasted := time.Since(started)
	spans.Fail(ctx, err)
	switch {
	case err == nil:
		f.tell(ctx, served, lasted)
	case store.Classify(err) == store.Permanent && !store.Ambiguous(err):
		settle(f.tickets, Outcome{State: Missed}, nil) // whose fault it is shows when each goes alone
		f.shun()
	default:
		settle(f.tickets, Outcome{}, err)
	}
}

// claimsKey is the attribute of how many pops a flush claims for.
const claimsKey = attribute.Key("queen.claims")

// startFlush begins the span of the call.
func (f *flight) startFlush(ctx context.Context) (context.Context, trace.Span) {
	var requests spans.Set
	for _, t := range f.tickets {
		requests.Add(t.span)
	}
	ctx, span := requests.Start(ctx, "pop flush")
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingDestinationName(f.key.Queue), semconv.MessagingConsumerGroupName(f.key.Group), claimsKey.Int(len(f.claims)))
	}
	return ctx, span
}

// tell gives everybody what was claimed for him.
func (f *flight) tell(ctx context.Context, served []store.PopServed, lasted time.Duration) {
	lanes, took := 0, taken(served)
	for i, t := range f.tickets {
		s := &served[i]
		if len(s.Segments) == 0 {
			t.settle(Outcome{State: Missed}, nil)
			continue
		}
		lanes++
		t.settle(Outcome{State: Served, Served: *s}, nil)
	}
	if lanes > 0 {
		f.Admission.Commit()
		f.keepPace(lasted, took, f.want)
	}
	f.flew(lanes > 0)
	f.metrics.landed(ctx, lanes, len(f.tickets)-lanes)
}

// taken is how many messages were claimed.
func taken(served []store.PopServed) (messages int) {
	for i := range served {
		messages += served[i].Messages()
	}
	return messages
}

func settle(tickets []*ticket, o Outcome, err error) {
	for _, t := range tickets {
		t.settle(o, err)
	}
}
