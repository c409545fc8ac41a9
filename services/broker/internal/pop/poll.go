package pop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// claimPatience bounds the repeats of an aborted claim.
const claimPatience = 2 * time.Second

// poll is the state of one request. One goroutine owns it.
type poll struct {
	*Service
	req      Request
	worker   string
	deadline time.Time // of a waiting request, else zero

	body  []byte // the reply, once something was claimed
	count int    // messages in it
}

// mode is how thorough a look is.
type mode int

const (
	claim mode = iota // claim at once
	probe             // claim only if the cheap probe says that it is worth it
)

// look takes a slot, then a connection, and claims what there is.
func (p *poll) look(ctx context.Context, how mode) error {
	release, err := p.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	gated := p.req.Route == Wildcard || p.cfg.PendingGate
	if how == probe && gated {
		if pending, err := p.pending(ctx); err != nil || !pending {
			return err
		}
	}
	return p.claim(ctx)
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

// claim leases (or commits, under autoAck) messages and renders them.
func (p *poll) claim(ctx context.Context) error {
	var claimed []store.Popped
	err := retry.Do(ctx, time.Now().Add(claimPatience), func(ctx context.Context) error {
		// Nothing may be leased to a request whose client has already gone.
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		claimed, err = p.call(ctx)
		return err
	})
	p.metrics.claimed(ctx, p.req.Route, len(claimed), err)
	if err != nil {
		return err
	}
	if err := p.render(ctx, claimed); err != nil {
		return err
	}
	if !p.req.Query.AutoAck {
		p.remember(claimed)
	}
	return nil
}

func (p *poll) call(ctx context.Context) ([]store.Popped, error) {
	q := &p.req.Query
	budget := p.budget()
	args := store.Pop{
		Tenant: p.req.Tenant, Group: q.Group, Budget: budget, LeaseSeconds: q.LeaseSeconds,
		Worker: p.worker, AutoAck: q.AutoAck, MaxPartitions: q.Partitions,
		SubMode: q.SubMode, SubFrom: q.SubFrom, MaxBytes: maxReply - int64(budget*p.overhead()),
	}
	switch p.req.Route {
	case Specific:
		return p.Store.PopSpecific(ctx, p.req.Queue, p.req.Partition, args)
	case Discover:
		return p.Store.PopDiscover(ctx, q.Namespace, q.Task, args)
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
	switch p.req.Route {
	case Specific:
		return p.Store.PartitionHasPending(ctx, p.req.Tenant, p.req.Queue, p.req.Partition, q.Group)
	case Discover:
		return p.Store.DiscoverHasPending(ctx, p.req.Tenant, q.Namespace, q.Task, q.Group)
	default:
		return p.Store.HasPending(ctx, p.req.Tenant, p.req.Queue, q.Group)
	}
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
	case errors.Is(err, ErrOverloaded), errors.Is(err, ErrFailed):
		return err
	case errors.Is(err, pgdb.ErrPool):
		return fmt.Errorf("%w: %w", ErrPool, err)
	default:
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
}
