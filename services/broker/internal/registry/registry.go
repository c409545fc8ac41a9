package registry

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"
	"unique"

	"github.com/google/uuid"
)

// Bounds of the registry.
const (
	// BytesDefault is the memory it may take.
	BytesDefault = 64 << 20
	// Slack is how long an entry outlives the lease it was made for.
	Slack = 10 * time.Second
	// sweepEvery is the least time between two searches for what has outlived it.
	sweepEvery = 5 * time.Second

	shardCount = 16

	// What an entry costs beside its texts, with its share of map and list.
	batchBytes = 280
	leaseBytes = 240
	laneBytes  = 24
)

// Config holds the settings of a Registry. Zero values take the defaults.
type Config struct {
	// Bytes bounds the memory of the registry (default 64 MiB).
	Bytes int64
	// LeasesOnly has it remember no batches, so that nothing ever matches.
	LeasesOnly bool
	// Now is the clock (default time.Now).
	Now func() time.Time
}

// Lane is one cursor that a lease covers.
type Lane struct {
	Partition uuid.UUID
	Group     string
}

type key struct {
	partition uuid.UUID
	group     unique.Handle[string]
}

// batch is what a lease delivered of one lane.
type batch struct {
	worker string
	end    int64
	count  int
	set    sum
}

// Taken is a batch that was matched and thereby forgotten.
type Taken struct {
	End int64 // the last offset of the batch

	key     key
	batch   batch
	expires time.Time
}

// Registry remembers delivered batches. It is safe for concurrent use; a nil one
// remembers nothing.
type Registry struct {
	now     func() time.Time
	sets    bool // whether batches are remembered
	mix     *mixer
	seed    maphash.Seed
	batches [shardCount]*memory[key, batch]
	leases  [shardCount]*memory[string, []key]
}

// Bytes is about how much memory the registry takes.
func (r *Registry) Bytes() (n int64) {
	if r == nil {
		return 0
	}
	for i := range r.batches {
		n += r.batches[i].size() + r.leases[i].size()
	}
	return n
}

// New builds a Registry.
func New(cfg Config) *Registry {
	r := &Registry{now: cfg.Now, sets: !cfg.LeasesOnly, mix: newMixer(), seed: maphash.MakeSeed()}
	if r.now == nil {
		r.now = time.Now
	}
	// Batches and leases get half of the memory each.
	each := cmp.Or(cfg.Bytes, BytesDefault) / shardCount / 2
	for i := range shardCount {
		r.batches[i] = newMemory[key, batch](each, r.now())
		r.leases[i] = newMemory[string, []key](each, r.now())
	}
	return r
}

func (r *Registry) batchesOf(k key) *memory[key, batch] {
	// Ids are random at their end, whatever their version.
	return r.batches[binary.BigEndian.Uint32(k.partition[12:])%shardCount]
}

func (r *Registry) leasesOf(worker string) *memory[string, []key] {
	return r.leases[maphash.String(r.seed, worker)%shardCount]
}

// Delivered remembers one leased batch: hashes are those of every frame delivered
// of the partition, 16 bytes each, and end is the last offset of the lease, which
// runs for lease from now. It keeps worker and no other argument. A batch with a
// repeated hash replaces its predecessor, but is not remembered itself.
func (r *Registry) Delivered(partition uuid.UUID, group, worker string, end int64, hashes []byte, lease time.Duration) {
	if r == nil || len(hashes) < hashSize || worker == "" {
		return
	}
	now, k := r.now(), key{partition, unique.Make(group)}
	expires := now.Add(lease + Slack)
	r.cover(worker, k, now, expires)
	if !r.sets {
		return
	}
	m := r.batchesOf(k)
	set, ok := r.mix.distinct(hashes)
	if !ok {
		m.drop(k)
		return
	}
	m.put(k, batch{worker: worker, end: end, count: len(hashes) / hashSize, set: set}, batchCost(worker), now, expires)
}

func batchCost(worker string) int64 { return int64(batchBytes + len(worker)) }

// Match tells whether an ack under the lease worker names exactly the batch that
// was delivered under it, and where that batch ends. It forgets the batch.
func (r *Registry) Match(partition uuid.UUID, group, worker string, hashes [][hashSize]byte) (end int64, ok bool) {
	t, ok := r.Take(partition, group, worker, hashes)
	return t.End, ok
}

// Take is Match for a caller who may find that nothing came of it, and then uses
// PutBack.
func (r *Registry) Take(partition uuid.UUID, group, worker string, hashes [][hashSize]byte) (t Taken, ok bool) {
	if r == nil || !r.sets || worker == "" {
		return Taken{}, false
	}
	k := key{partition, unique.Make(group)}
	m := r.batchesOf(k)
	it, ok := m.get(k, r.now())
	b := it.value
	if !ok || b.worker != worker || b.count != len(hashes) || b.set != r.mix.digest(hashes) {
		return Taken{}, false
	}
	// Of two acks at once one takes it.
	if !m.take(k, func(held batch) bool { return held == b }) {
		return Taken{}, false
	}
	return Taken{End: b.end, key: k, batch: b, expires: it.expires}, true
}

// PutBack remembers a batch again of which surely nothing was committed, unless
// the lane was delivered anew.
func (r *Registry) PutBack(t Taken) {
	if r == nil {
		return
	}
	r.batchesOf(t.key).restore(t.key, item[batch]{t.batch, batchCost(t.batch.worker), t.expires}, r.now())
}

// Forget forgets the batch of a lease, before the database is told anything else
// about it than that all of it is done. Without a worker it is Drop.
func (r *Registry) Forget(partition uuid.UUID, group, worker string) {
	if r == nil {
		return
	}
	k := key{partition, unique.Make(group)}
	r.batchesOf(k).take(k, func(held batch) bool { return worker == "" || held.worker == worker })
}

// Drop forgets the batch of a lane and group, whose cursor was moved, or may have
// been, in another way.
func (r *Registry) Drop(partition uuid.UUID, group string) {
	if r == nil {
		return
	}
	k := key{partition, unique.Make(group)}
	r.batchesOf(k).drop(k)
}

// cover adds a lane to those of a lease. A lease is delivered by one pop in one
// go; that it is evicted half way would take as many leases at once as the
// smallest memory holds, thousands.
func (r *Registry) cover(worker string, k key, now, expires time.Time) {
	m := r.leasesOf(worker)
	m.change(worker, now, expires, func(lanes []key) ([]key, int64) {
		if !slices.Contains(lanes, k) {
			lanes = append(lanes, k)
		}
		return lanes, leaseCost(worker, lanes)
	})
}

func leaseCost(worker string, lanes []key) int64 {
	return int64(leaseBytes + len(worker) + cap(lanes)*laneBytes)
}

// Released notes that a lease has ended on one of its lanes.
func (r *Registry) Released(partition uuid.UUID, group, worker string) {
	if r == nil || worker == "" {
		return
	}
	k := key{partition, unique.Make(group)}
	r.leasesOf(worker).change(worker, time.Time{}, time.Time{}, func(lanes []key) ([]key, int64) {
		if i := slices.Index(lanes, k); i >= 0 {
			lanes = slices.Delete(lanes, i, i+1)
		}
		if len(lanes) == 0 {
			return nil, 0
		}
		return lanes, leaseCost(worker, lanes)
	})
}

// Lanes returns all lanes on which a lease may be live. Not ok means that the
// registry does not know the lease.
func (r *Registry) Lanes(worker string) (lanes []Lane, ok bool) {
	if r == nil {
		return nil, false
	}
	r.leasesOf(worker).view(worker, r.now(), func(keys []key) {
		lanes, ok = make([]Lane, len(keys)), true
		for i, k := range keys {
			lanes[i] = Lane{k.partition, k.group.Value()}
		}
	})
	return lanes, ok
}

// Keep remembers a lease that runs for another while: all lanes on which it may
// be live.
func (r *Registry) Keep(worker string, lanes []Lane, lease time.Duration) {
	if r == nil || worker == "" || len(lanes) == 0 {
		return
	}
	keys := make([]key, len(lanes))
	for i, l := range lanes {
		keys[i] = key{l.Partition, unique.Make(l.Group)}
	}
	now := r.now()
	r.leasesOf(worker).put(worker, keys, leaseCost(worker, keys), now, now.Add(lease+Slack))
}
