package hotlist

import (
	"encoding/binary"
	"sync"

	"github.com/google/uuid"
)

const atlasShards = 64

// atlas finds lanes of all queues by their partition id. It stores no ids: what it
// finds is a guess that the caller compares with the queue's table. So its locks
// are never held together with any other.
type atlas struct {
	shards [atlasShards]atlasShard
}

type atlasShard struct {
	mu    sync.Mutex
	spots []spot
	used  int
}

// spot is where a lane is: the serial number of its queue (0: an empty cell) and
// its own.
type spot struct {
	hash  uint32
	queue uint32
	lane  int32
}

// locate picks the shard and the hash of an id from its random part.
func (a *atlas) locate(id uuid.UUID) (*atlasShard, uint32) {
	// Mixed, as nothing forbids ids that were counted up.
	h := binary.BigEndian.Uint64(id[8:]) ^ binary.BigEndian.Uint64(id[:8])
	h *= 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	return &a.shards[h>>(64-6)], uint32(h >> 16)
}

func (s *atlasShard) home(hash uint32) int { return cell(uint64(hash)<<32, len(s.spots)) }

func (s *atlasShard) next(i int) int {
	if i++; i == len(s.spots) {
		return 0
	}
	return i
}

// add enters a lane. It must not be there yet.
func (a *atlas) add(id uuid.UUID, queue uint32, lane int32) {
	s, hash := a.locate(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if crowded(s.used+1, len(s.spots)) {
		old := s.spots
		s.spots = make([]spot, larger(len(old)))
		for _, p := range old {
			if p.queue != 0 {
				s.put(p)
			}
		}
	}
	s.put(spot{hash, queue, lane})
	s.used++
}

func (s *atlasShard) put(p spot) {
	i := s.home(p.hash)
	for s.spots[i].queue != 0 {
		i = s.next(i)
	}
	s.spots[i] = p
}

// remove takes a lane out, if it is there.
func (a *atlas) remove(id uuid.UUID, queue uint32, lane int32) {
	s, hash := a.locate(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return
	}
	want := spot{hash, queue, lane}
	i := s.home(hash)
	for s.spots[i] != want {
		if s.spots[i].queue == 0 {
			return
		}
		i = s.next(i)
	}
	gap := i
	for j := s.next(i); s.spots[j].queue != 0; j = s.next(j) {
		if between(gap, s.home(s.spots[j].hash), j) {
			continue
		}
		s.spots[gap] = s.spots[j]
		gap = j
	}
	s.spots[gap] = spot{}
	s.used--
}

// find appends the lanes that may have an id; nearly always that is one or none.
func (a *atlas) find(id uuid.UUID, into []spot) []spot {
	s, hash := a.locate(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == 0 {
		return into
	}
	for i := s.home(hash); s.spots[i].queue != 0; i = s.next(i) {
		if s.spots[i].hash == hash {
			into = append(into, s.spots[i])
		}
	}
	return into
}
