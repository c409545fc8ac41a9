package pop

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
	"github.com/queenmq/queen/services/broker/internal/spans"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

const (
	// maxRides bounds the pops that ride with the acks of one transaction,
	// maxRideBatch their batches and maxRideBytes all that they claim, decoded: the
	// acks wait for them.
	maxRides     = 32
	maxRideBatch = 100
	maxRideBytes = 16 << 20
	// undone is how long a lane that was taken for a ride which does not happen
	// stays away. The end of its lease brings it back.
	undone = time.Second
)

// rides are parked pops that claim lanes in the transaction that ends the leases
// they wait for.
type rides struct {
	list []ride
	next store.Next
}

// ride is one of them: claim number claim of pops number group, or a handover.
type ride struct {
	parked       *Parked
	ctx          context.Context
	cancel       context.CancelFunc
	checkout     *hotlist.Checkout
	row          int
	handed       bool // handover number claim
	group, claim int
}

// Board finds a parked pop for every lane that the rows release, has something to
// deliver, and is waited for. A pop that reads in batches rides only when its batch
// is there, as otherwise it would claim crumbs.
func (s *Service) Board(rows []store.AckRow) ackfusion.Rides {
	if s.HotList == nil || s.Fusion == nil {
		return nil
	}
	var r rides
	for i := range rows {
		if len(r.list) == maxRides {
			break
		}
		s.board(&r, i, &rows[i])
	}
	if len(r.list) == 0 {
		return nil
	}
	for i := range r.next.Pops {
		m := &r.next.Pops[i]
		m.Bound(maxRideBytes * int64(len(m.Claims)) / int64(len(r.list)))
	}
	return &r
}

func (s *Service) board(r *rides, i int, row *store.AckRow) {
	lane, ok := s.Lanes.Get(row.PartitionID)
	if !ok || lane.Queue == "" || !s.Fusion.Fuses(popfusion.Key{Tenant: lane.Tenant, Queue: lane.Queue, Group: row.Group}) {
		return
	}
	t := wake.Topic{Tenant: lane.Tenant, Queue: lane.Queue, Class: row.Group}
	batch := 0
	s.Hub.Seize(t, func(o wake.Sleeper) bool {
		if p, ok := o.(*Parked); ok && p.rides() {
			batch = p.budget()
		}
		return false // nobody is taken before there is a lane
	})
	if batch == 0 {
		return
	}
	c := s.HotList.Retake(row.PartitionID, row.Group, batch)
	if c == nil {
		return
	}
	owner := s.Hub.Seize(t, func(o wake.Sleeper) bool {
		p, ok := o.(*Parked)
		return ok && p.rides() && p.budget() <= batch
	})
	if p, ok := owner.(*Parked); ok {
		if n, ok := p.seize(); ok {
			n.checkout, n.row = c, i
			r.add(n, row)
			return
		}
	}
	c.Return([]hotlist.Verdict{{Partition: lane.Partition, Kind: hotlist.Leased, Until: time.Now().Add(undone)}})
}

// rides says whether the request may be served by somebody else's transaction.
func (p *Parked) rides() bool {
	return p.mayRide() && !p.holds.holds(&p.req)
}

// mayRide says so of requests like this one.
func (p *poll) mayRide() bool {
	q := &p.req.Query
	return p.inRing() && q.Partitions == 1 && !q.AutoAck && q.Batch <= maxRideBatch
}

// seize makes a resting request look, without a goroutine of its own.
func (p *Parked) seize() (n ride, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != resting || p.stopping() || p.suspended() || p.gone != nil && p.gone() != nil {
		if p.state == resting {
			go p.resume() // which ends it
		}
		return ride{}, false
	}
	ctx, cancel := context.WithCancel(trace.ContextWithSpan(context.Background(), p.span))
	p.state, p.cancel = looking, cancel
	return ride{parked: p, ctx: ctx, cancel: cancel}, true
}

// add makes a ride a handover where its messages are in memory, and puts it into the
// call of its group otherwise.
func (r *rides) add(n ride, row *store.AckRow) {
	p := &n.parked.poll
	if h, ok := p.handover(n.checkout, row); ok {
		h.Row = n.row
		n.handed, n.claim = true, len(r.next.Handovers)
		r.next.Handovers = append(r.next.Handovers, h)
		r.list = append(r.list, n)
		return
	}
	claim, _ := p.board(n.checkout)
	for n.group = range r.next.Pops {
		if m := &r.next.Pops[n.group]; m.Tenant == p.req.Tenant && m.Queue == p.req.Queue && m.Group == p.req.Query.Group {
			n.claim = len(m.Claims)
			m.Claims = append(m.Claims, claim)
			r.list = append(r.list, n)
			return
		}
	}
	n.group = len(r.next.Pops)
	r.next.Pops = append(r.next.Pops, store.MultiPop{
		Tenant: p.req.Tenant, Queue: p.req.Queue, Group: p.req.Query.Group, Claims: []store.PopClaim{claim},
	})
	r.list = append(r.list, n)
}

// Next are the claims.
func (r *rides) Next() store.Next { return r.next }

// Requests adds those of the pops.
func (r *rides) Requests(set *spans.Set) {
	for i := range r.list {
		set.Add(r.list[i].parked.span)
	}
}

// Land has every pop go on with what it got.
func (r *rides) Land(served store.NextServed, err error) (handed []int) {
	for i := range r.list {
		n := &r.list[i]
		var got *store.PopServed
		ok := false
		if err == nil {
			got, ok = n.got(r.next.Handovers, &served)
		}
		n.parked.metrics.rode(n.ctx, n.handed, ok)
		if !ok {
			go n.inVain(err)
			continue
		}
		handed = append(handed, n.row)
		go n.arrive(got)
	}
	return handed
}

// got is what the ride was served.
func (n *ride) got(handovers []store.Handover, served *store.NextServed) (*store.PopServed, bool) {
	if n.handed {
		last := served.Handed[n.claim]
		if last == store.Refused {
			return nil, false
		}
		return n.parked.handed(n.checkout, &handovers[n.claim], last), true
	}
	s := &served.Pops[n.group][n.claim]
	return s, len(s.Segments) > 0
}

// arrive answers the pop.
func (n *ride) arrive(s *store.PopServed) {
	defer n.cancel()
	p := n.parked
	err := p.got(n.ctx, n.checkout, s)
	p.waiter.Served()
	p.passOn()
	p.finish(n.ctx, err)
}

// inVain has the pop look for itself. A transaction that failed may have leased the lane
// all the same: under a name that nobody is told, so that no renewal keeps it from
// those that wait for it.
func (n *ride) inVain(err error) {
	defer n.cancel()
	n.checkout.Return(nil)
	p := n.parked
	if err != nil {
		worker, err := p.IDs.New()
		if err != nil {
			p.finish(n.ctx, errors.Join(ErrFailed, err))
			return
		}
		p.worker = worker.String()
	}
	p.run(n.ctx, claim)
}
