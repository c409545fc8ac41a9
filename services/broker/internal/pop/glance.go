package pop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

const (
	// glanceSpan is how far back a glance looks: as the watch of the hot list does.
	glanceSpan = 3 * time.Second
	// glanceBatch and glanceLanes bound one statement: groups of queues, and lanes of
	// each.
	glanceBatch = 256
	glanceLanes = 1000
	// glanceMemory is how long a glance is remembered.
	glanceMemory = time.Second
	// glanceWakes bounds the pops of one topic that a glance wakes.
	glanceWakes = 64
)

// ring is a group of a queue, in which some topics wait.
type ring struct {
	store.HotlistRing
	watches []*watch
}

// Look wakes the pops that may find something written in the last seconds, except
// those that the hot list serves. It is a re-check out of turn, for somebody who knows
// that it is worth it; what it overlooks is found by an ordinary one.
func (s *Service) Look(ctx context.Context) error {
	rings, discoveries := s.rechecks.rings()
	for some := range slices.Chunk(rings, glanceBatch) {
		if err := s.glance(ctx, some); err != nil {
			return err
		}
	}
	for _, w := range discoveries {
		pending, err := s.Store.DiscoverHasPending(ctx, w.topic.Tenant, w.query[1], w.query[2], w.query[0])
		if err != nil {
			return fmt.Errorf("look for messages by labels: %w", err)
		}
		var seen map[uuid.UUID]struct{}
		if pending {
			seen = map[uuid.UUID]struct{}{{}: {}} // somewhere
		}
		s.sight(w, seen)
	}
	return nil
}

// glance asks for the lanes written lately of some rings.
func (s *Service) glance(ctx context.Context, rings []ring) error {
	asked := make([]store.HotlistRing, len(rings))
	for i := range rings {
		asked[i] = rings[i].HotlistRing
	}
	rows, err := s.Store.HotlistRecent(ctx, asked, glanceSpan, glanceLanes)
	if err != nil {
		return fmt.Errorf("look for messages written lately: %w", err)
	}
	lanes := make([][]store.PartitionRef, len(rings))
	for i := range rows {
		lanes[rows[i].Ring] = append(lanes[rows[i].Ring], rows[i].PartitionRef)
	}
	for i := range rings {
		for _, w := range rings[i].watches {
			s.sight(w, w.among(lanes[i]))
		}
	}
	return nil
}

// sight wakes a pop for every lane that the last glance did not see.
func (s *Service) sight(w *watch, seen map[uuid.UUID]struct{}) {
	for range min(s.rechecks.news(w, seen), glanceWakes) {
		s.Hub.Found(w.topic)
	}
}

// among picks the lanes that a topic is about.
func (w *watch) among(lanes []store.PartitionRef) map[uuid.UUID]struct{} {
	ids := make(map[uuid.UUID]struct{})
	for i := range lanes {
		if w.route == Wildcard || lanes[i].Name == w.topic.Partition {
			ids[lanes[i].ID] = struct{}{}
		}
	}
	return ids
}

// rings gathers the topics that the hot list does not serve: those of queues by
// their groups, the others one by one.
func (r *rechecks) rings() (rings []ring, discoveries []*watch) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	outdated := now.Sub(r.glanced) > glanceMemory
	r.glanced = now
	places := make(map[store.HotlistRing]int)
	for _, w := range r.watches {
		if outdated {
			w.seen = nil
		}
		switch {
		case w.memory:
		case w.route == Discover:
			discoveries = append(discoveries, w)
		default:
			key := store.HotlistRing{Tenant: w.topic.Tenant, Queue: w.topic.Queue, Group: w.query[0]}
			i, ok := places[key]
			if !ok {
				i = len(rings)
				places[key] = i
				rings = append(rings, ring{HotlistRing: key})
			}
			rings[i].watches = append(rings[i].watches, w)
		}
	}
	return rings, discoveries
}

// news counts the lanes that the glance before did not see. Messages that stay are
// leased or delayed, and not worth a claim at every glance.
func (r *rechecks) news(w *watch, seen map[uuid.UUID]struct{}) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range seen {
		if _, ok := w.seen[id]; !ok {
			n++
		}
	}
	w.seen = seen
	return n
}
