package timers

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// FireLanes is into how many lanes one call fires at most. Pushes wait for the lanes
	// of a call until its commit, and what a call costs is lanes: five calls into 20 each
	// take as long as one into 100, but hold a lane for a fifth of the time.
	FireLanes = 20
	// PayloadMax is up to where a compressed payload is decompressed.
	PayloadMax = 64 << 20
	// LoadTime is after how long no compressed timer of a batch is packed any more, or a
	// quarter of the lease where that is less. A compressed payload of some KB may take as
	// long as thousands of plain ones: packing a batch of such would outlast their lease,
	// again and again, and fire none.
	LoadTime = time.Second
)

// held is a claimed timer.
type held struct {
	store.ClaimedTimer
	at time.Time // when the claim was answered, by this process's clock
}

// late is how late the timer is at an instant.
func (h *held) late(now time.Time) time.Duration { return h.Late + now.Sub(h.at) }

// shot is a packed segment and the timers that are its frames.
type shot struct {
	store.FireSegment
	timers []*held
}

// volley is what one call fires, in one transaction: at most one shot for each lane,
// and at most FireLanes of them.
type volley []shot

func (v volley) timers() []*held {
	if len(v) == 1 {
		return v[0].timers
	}
	var all []*held
	for i := range v {
		all = append(all, v[i].timers...)
	}
	return all
}

func timersOf(volleys []volley) (all []*held) {
	for _, v := range volleys {
		all = append(all, v.timers()...)
	}
	return all
}

func (v volley) segments() []store.FireSegment {
	segs := make([]store.FireSegment, len(v))
	for i := range v {
		segs[i] = v[i].FireSegment
	}
	return segs
}

// lane is where a timer is delivered.
type lane struct {
	tenant           uuid.UUID
	queue, partition string
}

func laneOf(h *held) lane { return lane{h.Tenant, h.Queue, h.Partition} }

// misfit is a timer that no segment can hold.
type misfit struct {
	timer *held
	err   error
}

// loader packs timers.
type loader struct {
	packer *segment.Packer
	reader *segment.Reader
	limit  int64 // bytes of the frames of one volley
	time   time.Duration
	seed   maphash.Seed
}

// spread deals timers out to n workers. A lane is always with the same one: so its
// frames keep their order, and no two fires of this process want its lock.
func (l *loader) spread(timers []*held, n int) [][]*held {
	if n == 1 {
		return [][]*held{timers}
	}
	out := make([][]*held, n)
	for _, h := range timers {
		i := maphash.Comparable(l.seed, laneOf(h)) % uint64(n)
		out[i] = append(out[i], h)
	}
	return out
}

// load packs timers into volleys, in their order. Compressed ones that its time is too
// short for, of which the first timer is none, are left with what follows in their lanes.
func (l *loader) load(timers []*held) (volleys []volley, misfits []misfit, left []*held) {
	began, c := time.Now(), newCharge()
	late := map[lane]bool{}
	for i, h := range timers {
		if late[laneOf(h)] || i > 0 && h.PayloadZstd && time.Since(began) >= l.time {
			late[laneOf(h)] = true
			left = append(left, h)
			continue
		}
		f, err := l.frame(h)
		if err != nil {
			misfits = append(misfits, misfit{h, err})
			continue
		}
		if size := int64(f.Size()); c.bytes > 0 && c.bytes+size > l.limit {
			volleys, misfits = l.seal(c, volleys, misfits)
			c = newCharge()
		}
		c.add(h, f)
	}
	volleys, misfits = l.seal(c, volleys, misfits)
	return volleys, misfits, left
}

// frame is the message of a timer.
func (l *loader) frame(h *held) (segment.Frame, error) {
	payload, err := l.payload(h)
	if err != nil {
		return segment.Frame{}, err
	}
	return segment.Frame{
		MessageID: h.MessageID, TransactionID: h.Txn, ProducerSub: h.ProducerSub, Encrypted: h.Encrypted, Payload: store.AsJSON(payload),
	}, nil
}

// payload is what a consumer gets.
func (l *loader) payload(h *held) ([]byte, error) {
	if !h.PayloadZstd {
		return h.Payload, nil
	}
	payload, err := l.reader.Expand(h.Payload)
	if err != nil {
		return nil, fmt.Errorf("decompress the payload: %w", err)
	}
	return payload, nil
}

// charge is a volley before it is packed.
type charge struct {
	bytes int64
	lanes []*laneLoad
	at    map[lane]*laneLoad
}

// laneLoad is what a volley holds for one lane.
type laneLoad struct {
	lane
	timers []*held
	frames []segment.Frame
}

func newCharge() *charge { return &charge{at: map[lane]*laneLoad{}} }

func (c *charge) add(h *held, f segment.Frame) {
	where := laneOf(h)
	l, ok := c.at[where]
	if !ok {
		l = &laneLoad{lane: where}
		c.at[where] = l
		c.lanes = append(c.lanes, l)
	}
	l.timers, l.frames = append(l.timers, h), append(l.frames, f)
	c.bytes += int64(f.Size())
}

// seal packs a charge and adds it to the volleys, so many lanes in each.
func (l *loader) seal(c *charge, volleys []volley, misfits []misfit) ([]volley, []misfit) {
	v := make(volley, 0, len(c.lanes))
	for _, lane := range c.lanes {
		s, bad := l.pack(lane)
		misfits = append(misfits, bad...)
		if len(s.timers) > 0 {
			v = append(v, s)
		}
	}
	return slices.AppendSeq(volleys, slices.Chunk(v, FireLanes)), misfits
}

// pack makes a segment of the timers of a lane. When that cannot be, those with which
// it cannot are left out.
func (l *loader) pack(in *laneLoad) (s shot, misfits []misfit) {
	blob, hashes, err := l.packer.Pack(in.frames)
	if err != nil {
		in, misfits = l.sieve(in)
		if len(in.frames) == 0 {
			return s, misfits
		}
		if blob, hashes, err = l.packer.Pack(in.frames); err != nil {
			for _, h := range in.timers {
				misfits = append(misfits, misfit{h, fmt.Errorf("pack: %w", err)})
			}
			return s, misfits
		}
	}
	s.FireSegment = store.FireSegment{
		Tenant: in.tenant, Queue: in.queue, Partition: in.partition, Hashes: hashes, Blob: blob,
		Keys: make([]string, len(in.timers)), Tokens: make([]uuid.UUID, len(in.timers)),
	}
	for i, h := range in.timers {
		s.Keys[i], s.Tokens[i] = h.Key, h.Token
	}
	s.timers = in.timers
	return s, misfits
}

// sieve tries each frame of a lane alone.
func (l *loader) sieve(in *laneLoad) (good *laneLoad, misfits []misfit) {
	good = &laneLoad{lane: in.lane}
	for i := range in.frames {
		if _, _, err := l.packer.Pack(in.frames[i : i+1]); err != nil {
			misfits = append(misfits, misfit{in.timers[i], fmt.Errorf("pack: %w", err)})
			continue
		}
		good.timers, good.frames = append(good.timers, in.timers[i]), append(good.frames, in.frames[i])
	}
	return good, misfits
}
