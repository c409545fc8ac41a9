package ack

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// Extend renews every live lease of a worker. The registry knows where the leases
// are that this broker has given out, or has renewed before; others are searched
// once.
func (s *Service) Extend(ctx context.Context, _ uuid.UUID, leaseID string, seconds int) (wire.ExtendResult, error) {
	res := wire.ExtendResult{LeaseID: leaseID}
	at, err := s.cursors(ctx, leaseID)
	if err != nil || len(at) == 0 {
		return res, err
	}
	release, err := s.Admission.Acquire(ctx, admission.Ack)
	if err != nil {
		return res, err
	}
	defer release()
	err = retry.Do(ctx, time.Now().Add(s.deadline), func(ctx context.Context) error {
		var err error
		res.Renewed, res.ExpiresAt, err = s.Store.RenewLanes(ctx, leaseID, seconds, at)
		return err
	})
	if err == nil && res.Renewed > 0 {
		s.Admission.Commit()
		s.Registry.Keep(leaseID, lanesOf(at), time.Duration(min(seconds, maxKeep))*time.Second)
	}
	return res, err
}

// maxKeep bounds, in seconds, how long a renewed lease is remembered. One that is
// forgotten is searched again.
const maxKeep = 24 * 60 * 60

// cursors are all cursors at which a lease can be live.
func (s *Service) cursors(ctx context.Context, leaseID string) ([]store.CursorKey, error) {
	known, ok := s.Registry.Lanes(leaseID)
	if !ok {
		return s.finder.find(ctx, leaseID, s.deadline)
	}
	at := make([]store.CursorKey, len(known))
	for i, l := range known {
		at[i] = store.CursorKey{PartitionID: l.Partition, Group: l.Group}
	}
	return at, nil
}

func lanesOf(at []store.CursorKey) []registry.Lane {
	out := make([]registry.Lane, len(at))
	for i, k := range at {
		out[i] = registry.Lane{Partition: k.PartitionID, Group: k.Group}
	}
	return out
}

// finder searches leases that the registry does not know. A search reads every
// cursor, so there is one at a time, for all who have asked by then, and after it
// a pause of twice its length: however many unknown leases are asked for, it takes
// a third of one connection.
type finder struct {
	store     Store
	admission *admission.Gate

	mu      sync.Mutex
	next    *search // gathers those who ask, nil while nobody does
	running bool
}

// searchPause is the longest pause after a search.
const searchPause = 5 * time.Second

// search is one pass over the cursors.
type search struct {
	workers []string
	done    chan struct{}
	found   map[string][]store.CursorKey
	err     error
}

// find returns the cursors at which a worker holds live leases.
func (f *finder) find(ctx context.Context, worker string, patience time.Duration) ([]store.CursorKey, error) {
	s := f.join(ctx, worker, patience)
	select {
	case <-s.done:
		return s.found[worker], s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join adds a worker to the next search, which begins after it was asked for.
func (f *finder) join(ctx context.Context, worker string, patience time.Duration) *search {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &search{done: make(chan struct{})}
	}
	if !slices.Contains(f.next.workers, worker) {
		f.next.workers = append(f.next.workers, worker)
	}
	if !f.running {
		f.running = true
		go f.run(context.WithoutCancel(ctx), patience)
	}
	return f.next
}

// run searches until nobody asks any more.
func (f *finder) run(ctx context.Context, patience time.Duration) {
	for {
		f.mu.Lock()
		s := f.next
		f.next = nil
		f.running = s != nil
		f.mu.Unlock()
		if s == nil {
			return
		}
		began := time.Now()
		s.found, s.err = f.search(ctx, s.workers, patience)
		close(s.done)
		time.Sleep(min(2*time.Since(began), searchPause))
	}
}

func (f *finder) search(ctx context.Context, workers []string, patience time.Duration) (found map[string][]store.CursorKey, err error) {
	release, err := f.admission.Acquire(ctx, admission.Ack)
	if err != nil {
		return nil, err
	}
	defer release()
	err = retry.Read(ctx, time.Now().Add(patience), func(ctx context.Context) error {
		var err error
		found, err = f.store.FindLeases(ctx, workers)
		return err
	})
	return found, err
}
