package pop_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
)

var (
	errAborted error = &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "could not serialize"}
	errTimeout       = fmt.Errorf("pop: %w", context.DeadlineExceeded)
	errPool          = fmt.Errorf("pop: %w", pgdb.ErrPool)
)

// call is one use of the fake store.
type call struct {
	name             string
	queue, partition string
	args             store.Pop
	at               time.Time
}

// fakeStore hands out prepared claims in order, from the moment they are due.
type fakeStore struct {
	mu       sync.Mutex
	calls    []call
	claims   [][]store.Popped
	due      time.Time // nothing is claimable before
	hidden   bool      // pending, but not claimable
	errs     []error   // for the next claims
	minWait  int
	onClaim  func()
	onProbe  func()
	settings int

	multis []store.MultiPop

	recent map[string][]string // partitions written lately, by queue and group
	rings  []store.HotlistRing // that were asked about

	// What PopList and the walks of the hot list find.
	listed     [][]string
	states     map[string]store.CandidateState
	unseeded   bool
	lastOffset int64
	pending    []store.PartitionRef

	stored map[uuid.UUID]store.Segment // by partition
}

func (f *fakeStore) claim(name, queue, partition string, p store.Pop) ([]store.Popped, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name, queue, partition, p, time.Now()})
	if f.onClaim != nil {
		f.onClaim()
	}
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	if len(f.claims) == 0 || time.Now().Before(f.due) || f.hidden {
		return nil, nil
	}
	c := f.claims[0]
	f.claims = f.claims[1:]
	for i := range c {
		for j := range c[i].Segments {
			s := &c[i].Segments[j]
			if slices.Contains(p.Known, store.KnownSegment{PartitionID: c[i].PartitionID, Base: s.Base, CreatedAt: s.CreatedAt}) {
				s.Blob = nil
			}
		}
	}
	return c, nil
}

func (f *fakeStore) probe(name, queue, partition string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name: name, queue: queue, partition: partition, at: time.Now()})
	if f.onProbe != nil {
		f.onProbe()
	}
	return len(f.claims) > 0 && !time.Now().Before(f.due) || f.hidden, nil
}

// PopEstimate counts the messages of the next claim.
func (f *fakeStore) PopEstimate(_ context.Context, _ uuid.UUID, queue, _ string, _, limit int) (int, error) {
	if pending, err := f.probe("estimate", queue, ""); err != nil || !pending {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.claims[0] {
		for _, s := range c.Segments {
			n += s.Take
		}
	}
	return min(n, limit), nil
}

func (f *fakeStore) add(claims ...[]store.Popped) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, claims...)
}

// total returns how often the store was used.
func (f *fakeStore) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

// count returns how often a method was called.
func (f *fakeStore) count(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.name == name {
			n++
		}
	}
	return n
}

func (f *fakeStore) PopWildcard(_ context.Context, queue string, p store.Pop) ([]store.Popped, error) {
	return f.claim("wildcard", queue, "", p)
}

func (f *fakeStore) PopSpecific(_ context.Context, queue, partition string, p store.Pop) ([]store.Popped, error) {
	return f.claim("specific", queue, partition, p)
}

func (f *fakeStore) PopDiscover(_ context.Context, namespace, task string, p store.Pop) ([]store.Popped, error) {
	return f.claim("discover", namespace, task, p)
}

func (f *fakeStore) HasPending(_ context.Context, _ uuid.UUID, queue, _ string) (bool, error) {
	return f.probe("pending", queue, "")
}

func (f *fakeStore) PartitionHasPending(_ context.Context, _ uuid.UUID, queue, partition, _ string) (bool, error) {
	return f.probe("pending", queue, partition)
}

// LanesPending asks about every lane as PartitionHasPending does.
func (f *fakeStore) LanesPending(_ context.Context, lanes []store.LaneGroup) (found []int, err error) {
	for i, l := range lanes {
		if pending, _ := f.probe("pending", l.Queue, l.Partition); pending {
			found = append(found, i)
		}
	}
	return found, nil
}

// PopList claims what PopWildcard would, if it is among the candidates.
func (f *fakeStore) PopList(_ context.Context, queue string, partitions []string, skip bool, p store.Pop) (store.PopListResult, error) {
	f.mu.Lock()
	f.listed = append(f.listed, partitions)
	result := store.PopListResult{Unseeded: f.unseeded}
	for _, name := range partitions {
		if s, ok := f.states[name]; ok {
			result.States = append(result.States, s)
		}
	}
	f.mu.Unlock()
	var err error
	result.Claimed, err = f.claim("list", queue, "", p)
	for _, c := range result.Claimed {
		result.States = append(result.States, store.CandidateState{Partition: c.Partition, State: store.StateTook, LastOffset: f.lastOffset})
	}
	return result, err
}

// PopMulti claims those prepared claims whose partitions are asked for.
func (f *fakeStore) PopMulti(_ context.Context, m store.MultiPop) ([]store.PopServed, error) {
	served := make([]store.PopServed, len(m.Claims))
	f.mu.Lock()
	f.multis = append(f.multis, m)
	f.mu.Unlock()
	for i, c := range m.Claims {
		served[i] = f.serve(c.Partition)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name: "multi", queue: m.Queue, at: time.Now()})
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	return served, nil
}

// serve takes the prepared claim of a partition.
func (f *fakeStore) serve(partition string) (s store.PopServed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range f.claims {
		if c != nil && c[0].Partition == partition {
			f.claims = slices.Delete(f.claims, i, i+1)
			return store.PopServed{Popped: c[0], LastOffset: f.lastOffset}
		}
	}
	return s
}

// SegmentAt reads a stored segment.
func (f *fakeStore) SegmentAt(_ context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name: "segment", at: time.Now()})
	s, ok := f.stored[partition]
	return s, ok && s.Base == offset, nil
}

// HotlistReseed lists the lanes that a walk finds.
func (f *fakeStore) HotlistReseed(_ context.Context, _ uuid.UUID, _, _ string, after uuid.UUID, _ int) ([]store.PartitionRef, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name: "reseed", at: time.Now()})
	if after != uuid.Nil {
		return nil, nil
	}
	return f.pending, nil
}

// HotlistRecent lists what was written lately.
func (f *fakeStore) HotlistRecent(_ context.Context, rings []store.HotlistRing, _ time.Duration, _ int) (rows []store.HotlistRow, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{name: "recent", at: time.Now()})
	f.rings = append(f.rings, rings...)
	for i, r := range rings {
		for _, name := range f.recent[r.Queue+"/"+r.Group] {
			rows = append(rows, store.HotlistRow{Ring: i, PartitionRef: store.PartitionRef{ID: idOf(name), Name: name}})
		}
	}
	return rows, nil
}

// idOf is the id of a partition in what was written lately.
func idOf(partition string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(partition)) }

// write notes what was written lately to a queue that group g reads.
func (f *fakeStore) write(queue string, partitions ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recent = map[string][]string{queue + "/g": partitions}
}

func (f *fakeStore) DiscoverHasPending(_ context.Context, _ uuid.UUID, namespace, task, _ string) (bool, error) {
	return f.probe("pending", namespace, task)
}

func (f *fakeStore) QueueSettings(context.Context, uuid.UUID, string) (store.QueueSettings, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings++
	return store.QueueSettings{MinPopWaitMillis: f.minWait}, true, nil
}
