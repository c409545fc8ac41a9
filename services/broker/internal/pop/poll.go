package pop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// claimPatience bounds the repeats of an aborted claim.
const claimPatience = 2 * time.Second

// poll is the state of one request. One goroutine at a time owns it.
type poll struct {
	*Service
	req      Request
	worker   string
	deadline time.Time // of a waiting request, else zero

	held  []ahead // segments that need not be sent
	body  []byte  // the reply, once something was claimed
	count int     // messages in it
	lanes int     // partitions in it
	// delivered is what the queue is going to count of the request.
	delivered collector.Counts
}

// mode is how thorough a look is.
type mode int

const (
	first mode = iota // the look of a request that has just come: claim
	claim             // claim at once
	probe             // claim only if the cheap probe says that it is worth it
)

// look takes a slot, then a connection, and claims what there is. The hot list
// may know better.
func (p *poll) look(ctx context.Context, how mode) error {
	if p.suspended() {
		return nil
	}
	if p.inRing() {
		return p.lookInRing(ctx, how)
	}
	release, err := p.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	if how == probe && p.cfg.PendingGate {
		if pending, err := p.pending(ctx); err != nil || !pending {
			return err
		}
	}
	return p.take(ctx, p.search)
}

// admit takes a slot. A waiting request does not queue for one much longer than
// it would have waited for messages.
func (p *poll) admit(ctx context.Context) (release func(), err error) {
	if p.deadline.IsZero() {
		return p.Admission.Acquire(ctx, admission.Pop)
	}
	limit := max(time.Until(p.deadline), time.Second)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	release, err = p.Admission.Acquire(limited, admission.Pop)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = ErrOverloaded
	}
	return release, err
}

// take claims (or under autoAck commits) messages by one call of the database and
// renders them.
func (p *poll) take(ctx context.Context, call func(ctx context.Context, args store.Pop) ([]store.Popped, error)) error {
	args := p.args()
	var claimed []store.Popped
	err := retry.Do(ctx, time.Now().Add(claimPatience), func(ctx context.Context) error {
		// Nothing may be leased to a request whose client has already gone.
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		began := time.Now()
		claimed, err = call(ctx, args)
		p.Batches.Fired(ctx, batches.Pop, messagesOf(claimed), time.Since(began))
		return err
	})
	p.metrics.claimed(ctx, p.req.Route, len(claimed), err)
	if err != nil {
		return err
	}
	if len(claimed) > 0 {
		p.Admission.Commit()
	}
	return p.deliver(ctx, claimed)
}

func messagesOf(claimed []store.Popped) (n int) {
	for i := range claimed {
		n += claimed[i].Messages()
	}
	return n
}

// deliver renders what was claimed.
func (p *poll) deliver(ctx context.Context, claimed []store.Popped) error {
	if err := p.render(ctx, claimed); err != nil {
		return err
	}
	p.tally(claimed)
	if !p.req.Query.AutoAck {
		p.remember(claimed)
	}
	return nil
}

func (p *poll) args() store.Pop {
	q := &p.req.Query
	budget := p.budget()
	return store.Pop{
		Tenant: p.req.Tenant, Group: q.Group, Budget: budget, LeaseSeconds: q.LeaseSeconds,
		Worker: p.worker, AutoAck: q.AutoAck, MaxPartitions: q.Partitions,
		SubMode: q.SubMode, SubFrom: q.SubFrom, MaxBytes: maxReply - int64(budget*p.overhead()),
	}
}

// search claims from partitions that the database finds.
func (p *poll) search(ctx context.Context, args store.Pop) ([]store.Popped, error) {
	switch p.req.Route {
	case Specific:
		args.Known = p.known(p.req.Partition)
		return p.Store.PopSpecific(ctx, p.req.Queue, p.req.Partition, args)
	case Discover:
		return p.Store.PopDiscover(ctx, p.req.Query.Namespace, p.req.Query.Task, args)
	default:
		return p.Store.PopWildcard(ctx, p.req.Queue, args)
	}
}

// overhead is about what the wire adds to each payload of this reply.
func (p *poll) overhead() int {
	return messageOverhead + len(p.req.Query.Group) + len(p.req.Partition)
}

// budget is the batch, cut where the wire's own part of that many messages would
// fill half a reply. What it leaves of the reply is what the database may fill
// with payloads.
func (p *poll) budget() int {
	return min(p.req.Query.Batch, maxReply/2/p.overhead())
}

// pending is the cheap probe; true may be wrong, false never is.
func (p *poll) pending(ctx context.Context) (bool, error) {
	q := &p.req.Query
	if p.req.Route == Specific {
		return p.Store.PartitionHasPending(ctx, p.req.Tenant, p.req.Queue, p.req.Partition, q.Group)
	}
	return p.Store.DiscoverHasPending(ctx, p.req.Tenant, q.Namespace, q.Task, q.Group)
}

// remember lets a later ack, which names only the partition id, wake the waiters
// of the lane that it frees.
func (p *poll) remember(claimed []store.Popped) {
	for i := range claimed {
		p.Lanes.Put(claimed[i].PartitionID, lanes.Lane{
			Tenant: p.req.Tenant, Queue: strings.Clone(p.req.Queue), Partition: claimed[i].Partition,
		})
	}
}

// explain turns a cause into one of the package's errors. A request that was
// given up keeps the error of its context.
func (p *poll) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, ErrOverloaded), errors.Is(err, ErrFailed):
		return err
	case errors.Is(err, pgdb.ErrPool):
		return fmt.Errorf("%w: %w", ErrPool, err)
	default:
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
}
