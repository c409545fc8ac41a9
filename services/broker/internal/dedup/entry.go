package dedup

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// entryOverhead is what a lane costs without its memory and its names.
const entryOverhead = 512

// step is what a lane needs next before it can answer.
type step int

const (
	stepAnswer   step = iota
	stepNothing       // there is nothing to verify
	stepScan          // it is barred
	stepReadLane      // id, window and tip are not known, or too old
	stepReadPage      // verified is too far behind the tip
)

// entry is one lane.
type entry struct {
	lane  Lane
	used  atomic.Int64  // when a mark was last asked for, in nanoseconds
	token chan struct{} // held by whoever reads for the lane

	mu     sync.Mutex
	dead   bool // evicted: what is left of it must not be used
	gen    int  // counts how often what was remembered became void
	absent bool // the queue exists, the partition did not at seen
	ready  bool // memory holds all of the window up to verified
	barred time.Time
	id     uuid.UUID
	window int
	seen   time.Time // when id and window were read; zero: unknown
	tipAt  time.Time // when tip was last confirmed by a read
	// foreign: others have written to the lane since the last read but one.
	foreign bool
	// cold: its window is not read to the end yet. asked: a mark was given.
	cold, asked   bool
	verified, tip int64
	memory        memory
	reserved      int64 // bytes set aside while the lane is hydrated
	charged       int64 // bytes the budget counts for it
}

func newEntry(lane Lane) *entry { return &entry{lane: lane, token: make(chan struct{}, 1)} }

func (e *entry) overhead() int64 {
	return entryOverhead + int64(len(e.lane.Queue)+len(e.lane.Partition))
}

// next says what the lane needs to answer with a gap.
func (e *entry) next(now time.Time, gap int64) step {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.nextLocked(now, gap)
}

func (e *entry) nextLocked(now time.Time, gap int64) step {
	switch age := now.Sub(e.seen); {
	case now.Before(e.barred):
		return stepScan
	case e.seen.IsZero() || age >= memoTTL || e.absent && age >= absentTTL:
		return stepReadLane
	case e.absent || e.window <= 0:
		return stepNothing
	case !e.ready || e.foreign && now.Sub(e.tipAt) >= busyTTL:
		return stepReadLane
	case e.tip-e.verified > gap, e.cold && e.asked && gap <= gapAtOnce && e.tip > e.verified:
		// What few ids a cold lane has are read when it is pushed to again.
		return stepReadPage
	}
	return stepAnswer
}

// recall answers from memory, if that can be done at once.
func (e *entry) recall(q *query, now time.Time) (Mark, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead || e.nextLocked(now, gapAtOnce) != stepAnswer {
		return Mark{}, false
	}
	return e.answerLocked(q), true
}

// answer says what is verified, however far behind that is.
func (e *entry) answer(q *query) Mark {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.answerLocked(q)
}

func (e *entry) answerLocked(q *query) Mark {
	if e.dead || !e.ready {
		return unmarked()
	}
	e.asked = true
	e.memory.find(q)
	return Mark{PartitionID: e.id, Window: e.window, Verified: e.verified}
}

// wrote appends a segment that this broker has committed, and returns the bytes
// to charge.
func (e *entry) wrote(p *builders, id uuid.UUID, base, at int64, hashes []byte) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	end := base + int64(len(hashes)/hashSize) - 1
	if e.absent && base == 0 && e.window > 0 {
		// The first segment of a lane that was not there: its whole window.
		e.absent, e.ready, e.id, e.verified, e.tip = false, true, id, -1, -1
		e.tipAt = e.seen
	}
	switch {
	case e.dead || !e.ready:
		return 0
	case id != e.id:
		e.voidLocked()
	case base > e.verified+1:
		// Others wrote in between; a page brings both.
		e.foreign, e.tip = true, max(e.tip, end)
	case base == e.verified+1:
		e.appendLocked(p, base, hashes, at)
		e.tip = max(e.tip, end)
	case !e.memory.holds(base, hashes):
		// A page brought this offset with other hashes: it was assigned twice.
		e.voidLocked()
	}
	return e.chargeLocked()
}

func (e *entry) appendLocked(p *builders, base int64, hashes []byte, at int64) {
	e.memory.append(p, base, hashes, at)
	e.verified = base + int64(len(hashes)/hashSize) - 1
	e.memory.expire(e.memory.newest - int64(e.window+slack)*1e6)
}

// voidLocked forgets what is remembered, and the memo.
func (e *entry) voidLocked() {
	e.gen++
	e.absent, e.ready, e.foreign, e.cold, e.asked, e.seen = false, false, false, false, false, time.Time{}
	e.memory, e.reserved = memory{}, 0
}

// chargeLocked returns by how much the lane has grown since it was last charged.
func (e *entry) chargeLocked() int64 {
	want := e.overhead() + max(e.memory.bytes(), e.reserved)
	if e.dead {
		want = 0
	}
	grown := want - e.charged
	e.charged = want
	return grown
}

// known is the id and the window that a read of the lane need not look for.
func (e *entry) known() (gen int, id uuid.UUID, window int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ready {
		return e.gen, uuid.Nil, 0
	}
	return e.gen, e.id, e.window
}

// learnt applies a read of the lane that was sent at a time. cold tells that its
// window has to be read from the start, by the generation that follows.
func (e *entry) learnt(gen int, l store.LaneState, found bool, sent, got time.Time) (cold bool, next int, grown int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case gen != e.gen || e.dead:
		return false, e.gen, 0
	case !found || l.PartitionID == uuid.Nil || l.Window <= 0:
		e.voidLocked()
		// Without a queue there is no window yet: a push creates it with the
		// default, a client with anything.
		e.absent, e.window, e.seen = !found || l.PartitionID == uuid.Nil, l.Window, got
	case l.Start != store.NoStart:
		e.voidLocked()
		cold = true
	case e.ready && l.PartitionID == e.id && l.Last >= e.verified:
		e.foreign = l.Last > e.tip
		e.tip = max(e.tip, l.Last)
		e.window, e.seen, e.tipAt = l.Window, sent, sent
	default:
		e.voidLocked() // offsets were taken back: ask for the start
	}
	return cold, e.gen, e.chargeLocked()
}

// hydrate makes a lane ready from the start of its window on.
func (e *entry) hydrate(gen int, l store.LaneState, sent time.Time, reserve int64) (grown int64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if gen != e.gen || e.dead {
		return 0, false
	}
	e.ready, e.cold, e.id, e.window, e.seen, e.tipAt = true, true, l.PartitionID, l.Window, sent, sent
	e.verified, e.tip, e.reserved, e.barred = l.Start-1, l.Last, reserve, time.Time{}
	return e.chargeLocked(), true
}

// bar gives up on a lane for a while.
func (e *entry) bar(until time.Time) (grown int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.voidLocked()
	e.barred = until
	return e.chargeLocked()
}

// bury ends an entry that left the map.
func (e *entry) bury() (grown int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.voidLocked()
	e.dead = true
	return e.chargeLocked()
}

// position is where the next page begins.
type position struct {
	gen           int
	id            uuid.UUID
	verified, tip int64
	cold          bool
}

func (e *entry) position() position {
	e.mu.Lock()
	defer e.mu.Unlock()
	return position{e.gen, e.id, e.verified, e.tip, e.cold}
}

// took appends a page that was read from a position.
func (e *entry) took(p *builders, from position, page *store.Sidecar) (grown int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from.gen != e.gen || e.dead {
		return 0
	}
	at := page.Newest.UnixMicro()
	page.Rows(func(base, _ int64, hashes []byte) {
		if base > e.verified { // not appended meanwhile by wrote
			e.appendLocked(p, base, hashes, at)
		}
	})
	if len(page.Bases) == 0 {
		e.verified = max(e.verified, from.tip) // the rows up to there were purged
	}
	e.tip = max(e.tip, e.verified)
	if e.tip-e.verified <= gapAtOnce {
		e.cold, e.reserved = false, 0
	}
	return e.chargeLocked()
}
