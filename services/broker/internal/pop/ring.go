package pop

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
)

const (
	// minCandidates and maxCandidates bound the lanes that one claim names, twice
	// as many as it may serve.
	minCandidates = 2
	maxCandidates = 64
	// maxRounds bounds the claims of one look that come back with nothing: each
	// clears that many candidates from the ring.
	maxRounds = 8
	// assurance is how long an empty ring is trusted by a pop that does not wait.
	// Nobody else would learn for it that a hint was lost.
	assurance = time.Second
	// contactGroups bounds the groups of which it is known when they were searched.
	contactGroups = 16384
	// seedPatience bounds one walk over a queue, seeders the walks at once and
	// maxSeeding those that wait for their turn.
	seedPatience = 2 * time.Minute
	seeders      = 2
	maxSeeding   = 4096
)

// inRing says whether the hot list serves the request.
func (p *poll) inRing() bool { return p.HotList != nil && p.req.Route == Wildcard }

func (p *poll) fusionKey() popfusion.Key {
	return popfusion.Key{Tenant: p.req.Tenant, Queue: p.req.Queue, Group: p.req.Query.Group, AutoAck: p.req.Query.AutoAck}
}

// lookTogether claims from one lane in a transaction that other pops of the group
// share. It is not over when the claim has to be made alone: for several lanes, and
// for a lane that is not as the ring thinks, which only the database can tell.
func (p *poll) lookTogether(ctx context.Context) (over bool, err error) {
	if p.req.Query.Partitions != 1 || !p.Fusion.Fuses(p.fusionKey()) {
		return false, nil
	}
	var c *hotlist.Checkout
	defer func() { c.Abandon() }()
	out, err := p.Fusion.Do(ctx, p.fusionKey(), popfusion.Claim{Want: p.budget(), Board: func() (store.PopClaim, bool) {
		if p.suspended() {
			return store.PopClaim{}, false
		}
		c, _ = p.HotList.Checkout(p.req.Tenant, p.req.Queue, p.req.Query.Group, 1, p.budget())
		return p.board(c)
	}})
	switch {
	case err != nil:
		return true, err
	case out.State != popfusion.Served:
		c.Return(nil) // ready again
		return false, nil
	}
	return true, p.got(ctx, c, &out.Served)
}

// got delivers what a shared claim has brought of the lane that is checked out.
func (p *poll) got(ctx context.Context, c *hotlist.Checkout, s *store.PopServed) error {
	p.metrics.claimed(ctx, p.req.Route, 1, nil)
	claimed := []store.Popped{s.Popped}
	v := hotlist.Verdict{Partition: s.Partition, LastOffset: s.LastOffset}
	p.took(&v, claimed)
	c.Return([]hotlist.Verdict{v})
	return p.deliver(ctx, claimed)
}

// board is the claim on the one lane that was checked out.
func (p *poll) board(c *hotlist.Checkout) (store.PopClaim, bool) {
	names := c.Partitions()
	if len(names) == 0 {
		return store.PopClaim{}, false
	}
	args := p.args()
	return store.PopClaim{
		Partition: names[0], Budget: args.Budget, LeaseSeconds: args.LeaseSeconds, Worker: args.Worker, MaxBytes: args.MaxBytes,
		SkipWindow: c.SkipWindow(), Known: p.known(names...),
	}, true
}

// fullness is how much of what it asked for the request has got. A reply with as
// many lanes as it may name is full.
func (p *poll) fullness() (took, want int) {
	if p.count == 0 || p.lanes == p.req.Query.Partitions {
		return p.count, p.count
	}
	return p.count, p.budget()
}

// anyReady says whether the ring has lanes to claim from.
func (p *poll) anyReady() bool {
	_, ready := p.HotList.Age(p.req.Tenant, p.req.Queue, p.req.Query.Group)
	return ready > 0
}

// ringEmpty says whether a claim would find nothing.
func (p *poll) ringEmpty() bool {
	if p.anyReady() {
		return false
	}
	c, state := p.checkout()
	c.Abandon() // should a lane have come up just now
	return state == hotlist.Empty
}

// passOn wakes another waiter when there is more than this one took.
func (p *Parked) passOn() {
	if p.inRing() && p.anyReady() {
		p.waiter.Pass()
	}
}

// checkout takes candidates from the ring.
func (p *poll) checkout() (*hotlist.Checkout, hotlist.State) {
	q := &p.req.Query
	k := maxCandidates
	if q.Partitions > 0 && q.Partitions < maxCandidates {
		k = min(max(q.Partitions*2, minCandidates), maxCandidates)
	}
	return p.HotList.Checkout(p.req.Tenant, p.req.Queue, q.Group, k, p.budget())
}

// lookInRing claims from the lanes that the hot list names. An empty ring costs
// neither slot nor connection. Candidates are taken after the slot, so that those
// of requests in the admission queue stay ready for others.
func (p *poll) lookInRing(ctx context.Context, how mode) error {
	ready := p.anyReady()
	if ready {
		if over, err := p.lookTogether(ctx); over {
			return err
		}
		landed, err := p.Fusion.Pace(ctx, p.fusionKey())
		if err != nil {
			return err
		}
		defer func() { landed(p.fullness()) }()
	}
	return p.lookAlone(ctx, how, ready)
}

// lookAlone claims by a call of its own. ready says that the ring has lanes.
func (p *poll) lookAlone(ctx context.Context, how mode, ready bool) error {
	var c *hotlist.Checkout
	var state hotlist.State
	if !ready {
		c, state = p.checkout()
		if state == hotlist.Empty && !p.mayDoubt(how) {
			return nil
		}
	}
	defer func() { c.Abandon() }()
	release, err := p.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	if ready {
		c, state = p.checkout()
	}
	for range maxRounds {
		if state != hotlist.Served {
			return p.unserved(ctx, how, state)
		}
		unseeded, err := p.serve(ctx, c)
		switch {
		case err != nil || p.body != nil:
			return err
		case unseeded:
			return p.unserved(ctx, how, hotlist.Unknown)
		}
		c, state = p.checkout()
	}
	return nil
}

// unserved goes on, under a slot, where the ring had no candidates.
func (p *poll) unserved(ctx context.Context, how mode, state hotlist.State) error {
	if state == hotlist.Empty && !p.mayDoubt(how) {
		return nil
	}
	if err := p.contact(ctx); err != nil {
		return err
	}
	if state != hotlist.Empty {
		p.contacts.seed(p.groupKey())
	}
	return nil
}

// serve claims from the candidates and gives back what became of them. unseeded
// says that the group owes a first contact: nobody but the database knows.
func (p *poll) serve(ctx context.Context, c *hotlist.Checkout) (unseeded bool, err error) {
	defer c.Abandon()
	err = p.take(ctx, func(ctx context.Context, args store.Pop) ([]store.Popped, error) {
		names := c.Partitions()
		args.Known = p.known(names...)
		result, err := p.Store.PopList(ctx, p.req.Queue, names, c.SkipWindow(), args)
		if err != nil {
			return nil, err
		}
		// Without any verdict the queue is not there.
		unseeded = result.Unseeded || len(result.States) == 0
		c.Return(p.verdicts(&result))
		return result.Claimed, nil
	})
	if unseeded {
		// Also when something was claimed: the next pop has to register the group.
		p.HotList.DropGroup(p.req.Tenant, p.req.Queue, p.req.Query.Group)
	}
	return unseeded, err
}

// verdicts translates what the database says of the candidates.
func (p *poll) verdicts(r *store.PopListResult) []hotlist.Verdict {
	vs := make([]hotlist.Verdict, 0, len(r.States))
	for i := range r.States {
		s := &r.States[i]
		v := hotlist.Verdict{Partition: s.Partition, Kind: hotlist.Nothing, Until: s.Until, LastOffset: s.LastOffset}
		switch {
		case s.State == store.StateTook:
			p.took(&v, r.Claimed)
		case s.State == store.StateLeased && s.Locked:
			v.Kind = hotlist.Locked
		case s.State == store.StateLeased:
			v.Kind = hotlist.Leased
		}
		vs = append(vs, v)
	}
	return vs
}

// took completes the verdict on a lane that was served.
func (p *poll) took(v *hotlist.Verdict, claimed []store.Popped) {
	v.Kind = hotlist.Took
	if p.req.Query.AutoAck {
		v.Kind = hotlist.TookAutoAck
	}
	if s := p.req.Query.LeaseSeconds; s > 0 {
		v.Until = time.Now().Add(time.Duration(s) * time.Second)
	}
	for i := range claimed {
		if claimed[i].Partition == v.Partition {
			v.PartitionID, v.BatchEnd, v.Count = claimed[i].PartitionID, batchEnd(&claimed[i]), claimed[i].Messages()
		}
	}
}

// batchEnd is the last offset claimed of a partition.
func batchEnd(c *store.Popped) int64 {
	last := &c.Segments[len(c.Segments)-1]
	return last.Base + int64(last.Start+last.Take) - 1
}

// groupKey is a group of a queue.
type groupKey struct {
	tenant       uuid.UUID
	queue, group string
}

func (p *poll) groupKey() groupKey {
	return groupKey{p.req.Tenant, p.req.Queue, p.req.Query.Group}
}

// contacts are the dealings of the groups with the database that go around their
// rings.
type contacts struct {
	searched *lru.Cache[groupKey, time.Time] // when the database last searched the queue
	wanted   chan groupKey                   // rings to derive anew
	mu       sync.Mutex
	seeding  map[groupKey]bool // wanted, or under way
}

func newContacts() (*contacts, error) {
	searched, err := lru.New[groupKey, time.Time](contactGroups)
	if err != nil {
		return nil, fmt.Errorf("create contact cache: %w", err)
	}
	return &contacts{searched: searched, wanted: make(chan groupKey, maxSeeding), seeding: make(map[groupKey]bool)}, nil
}

// mayDoubt says whether a pop that is not going to wait has the database confirm
// that there is nothing. Those that wait are told within a second.
func (p *poll) mayDoubt(how mode) bool {
	if how != first || !p.deadline.IsZero() {
		return false
	}
	at, ok := p.contacts.searched.Get(p.groupKey())
	return !ok || time.Since(at) >= assurance
}

// contact has the database search the queue, which also registers the group on
// its first contact.
func (p *poll) contact(ctx context.Context) error {
	var served []string
	err := p.take(ctx, func(ctx context.Context, args store.Pop) ([]store.Popped, error) {
		claimed, err := p.search(ctx, args)
		for i := range claimed {
			served = append(served, claimed[i].Partition)
		}
		return claimed, err
	})
	if err != nil {
		return err
	}
	p.contacts.searched.Add(p.groupKey(), time.Now())
	// What was claimed beside the ring has to be looked at again.
	for _, name := range served {
		p.HotList.MarkGroup(p.req.Tenant, p.req.Queue, name, p.req.Query.Group)
	}
	return nil
}

// seed asks for a walk over the queue in the background, once for all that find
// the ring missing. Until it has begun the database searches.
func (c *contacts) seed(k groupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seeding[k] {
		return
	}
	select {
	case c.wanted <- groupKey{k.tenant, strings.Clone(k.queue), strings.Clone(k.group)}:
		c.seeding[k] = true
	default: // the next pop asks again
	}
}

func (c *contacts) seeded(k groupKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seeding, k)
}

// runSeeds derives the rings that are wanted until ctx ends.
func (s *Service) runSeeds(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case k := <-s.contacts.wanted:
			s.reseed(ctx, k)
		}
	}
}

func (s *Service) reseed(ctx context.Context, k groupKey) {
	defer s.contacts.seeded(k)
	limited, cancel := context.WithTimeout(ctx, seedPatience)
	defer cancel()
	if err := s.HotList.Reseed(limited, k.tenant, k.queue, k.group); err != nil && ctx.Err() == nil {
		s.Logger.WarnContext(ctx, "hot list not seeded", slog.String(logging.KeyQueue, k.queue),
			slog.String(logging.KeyGroup, k.group), logging.Err(err))
	}
}
