package dedup

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

const (
	// MaxSuspects is the most sidecar rows of one mark.
	MaxSuspects = 1024
	// MaxSuspectFrames is the most frames in them, a single row excepted. SQL reads
	// either number in about 5 ms.
	MaxSuspectFrames = 16384

	// WaitDefault is how long a mark waits for its lane to be read.
	WaitDefault = 5 * time.Second
	// ReadersDefault is the number of reads at once: each takes a connection.
	ReadersDefault = 4

	slack       = 5 // seconds of the window's start that are kept beyond it
	pageOffsets = 32768
	memoTTL     = 30 * time.Second // of id and window
	busyTTL     = 3 * time.Second  // of the tip while others write to the lane
	absentTTL   = time.Second
	cooldown    = 30 * time.Second // of a barred lane

	gapAtOnce    = 256   // SQL searches these in 0.2 ms at worst: rows of one frame
	gapImpatient = 16384 // 10 ms at worst
	impatience   = 500 * time.Millisecond

	windowMemo = 4096 // queues
)

// Lane names one partition.
type Lane struct {
	Tenant           uuid.UUID
	Queue, Partition string
}

// Mark is what the cache can vouch for. It is handed to SQL, which decides.
type Mark struct {
	PartitionID uuid.UUID // uuid.Nil: nothing known
	Window      int       // seconds the mark was built for
	// Verified: no hash of the segment occurs at or below this offset, except in
	// Suspects. store.VerifiedNone when the cache cannot vouch.
	Verified int64
	// Suspects are base offsets of sidecar rows at or below Verified that may hold
	// one of the hashes, ascending, at most MaxSuspects. When duplicates were found
	// in more rows than that, they are the newest of the rows: should they leave
	// the window before SQL looks, then so have the others.
	Suspects []int64
}

func unmarked() Mark { return Mark{Verified: store.VerifiedNone} }

// Store is the part of the store that the cache reads from.
type Store interface {
	Lane(ctx context.Context, tenant uuid.UUID, queue, partition string, slack int, known uuid.UUID, window int) (store.LaneState, bool, error)
	SidecarPage(ctx context.Context, partition uuid.UUID, after int64, maxOffsets int) (store.Sidecar, error)
	SidecarRows(ctx context.Context, partition uuid.UUID, bases []int64) (store.Sidecar, error)
}

// Config bounds a Cache.
type Config struct {
	Bytes   int64         // of memory
	Wait    time.Duration // 0: WaitDefault
	Readers int           // 0: ReadersDefault
}

// Deps are what a Cache works with.
type Deps struct {
	Store  Store
	Meter  metric.Meter
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Cache remembers the dedup windows of lanes. It is safe for concurrent use. A
// nil *Cache vouches for nothing.
type Cache struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics
	readers chan struct{}
	// windowless is when a queue was last seen without a window. Its lanes need
	// no entries.
	windowless *lru.Cache[queueKey, time.Time]
	queries    queries
	builders   builders
	budget
}

type queueKey struct {
	tenant uuid.UUID
	queue  string
}

// Bytes is about how much memory the cache takes; none where it is nil.
func (c *Cache) Bytes() int64 {
	if c == nil {
		return 0
	}
	return c.used.Load()
}

// New returns an empty cache.
func New(cfg Config, deps Deps) (*Cache, error) {
	if cfg.Bytes <= 0 || cfg.Wait < 0 || cfg.Readers < 0 {
		return nil, errors.New("a dedup cache needs a budget")
	}
	cfg.Wait, cfg.Readers = cmp.Or(cfg.Wait, WaitDefault), cmp.Or(cfg.Readers, ReadersDefault)
	c := &Cache{cfg: cfg, store: deps.Store, log: deps.Logger, now: deps.Now, readers: make(chan struct{}, cfg.Readers)}
	if c.now == nil {
		c.now = time.Now
	}
	var err error
	if c.windowless, err = lru.New[queueKey, time.Time](windowMemo); err != nil {
		return nil, err
	}
	if err := c.init(cfg.Bytes); err != nil {
		return nil, err
	}
	c.metrics, err = newMetrics(deps.Meter, &c.budget)
	return c, err
}

// Mark answers for the hashes of one segment, 16 bytes each. It hydrates a cold
// lane and catches up with other writers by lock-free reads, so it may take
// database time, up to Config.Wait; it needs no admission slot. It never fails:
// what it cannot vouch for it leaves to SQL.
func (c *Cache) Mark(ctx context.Context, lane Lane, hashes []byte) Mark {
	if c == nil || len(hashes) < hashSize {
		return unmarked()
	}
	q := c.queries.get(hashes)
	defer c.queries.put(q)
	now := c.now()
	if e := c.peek(lane, now); e != nil {
		if m, ok := e.recall(q, now); ok {
			return c.narrow(ctx, m, q)
		}
	}
	if seen, ok := c.windowless.Get(queueKey{lane.Tenant, lane.Queue}); ok && now.Sub(seen) < memoTTL {
		return unmarked()
	}
	return c.learn(ctx, lane, q, now)
}

// TryMark is Mark where that needs no reading.
func (c *Cache) TryMark(lane Lane, hashes []byte) (m Mark, ok bool) {
	if c == nil || len(hashes) < hashSize {
		return unmarked(), true
	}
	q := c.queries.get(hashes)
	defer c.queries.put(q)
	now := c.now()
	if e := c.peek(lane, now); e != nil {
		if m, ok = e.recall(q, now); ok {
			return c.name(m, q)
		}
	}
	seen, known := c.windowless.Get(queueKey{lane.Tenant, lane.Queue})
	return unmarked(), known && now.Sub(seen) < memoTTL
}

// name names the suspects of a mark, if they are few.
func (c *Cache) name(m Mark, q *query) (Mark, bool) {
	if q.overflow() {
		return m, false
	}
	q.settle()
	if !within(q.rows) {
		return m, false
	}
	for _, r := range q.rows {
		m.Suspects = append(m.Suspects, r.base)
	}
	c.metrics.suspects.Add(context.Background(), int64(len(m.Suspects)))
	return m, true
}

// Wrote records a committed segment of this broker: base offset and hashes as
// stored. Segments of lanes that are not remembered are ignored.
func (c *Cache) Wrote(lane Lane, partition uuid.UUID, base int64, createdAt time.Time, hashes []byte) {
	if c == nil || len(hashes) < hashSize {
		return
	}
	if e := c.find(lane); e != nil {
		grown := e.wrote(&c.builders, partition, base, createdAt.UnixMicro(), hashes)
		c.charge(e, grown)
	}
}

// Forget drops a lane.
func (c *Cache) Forget(lane Lane) {
	if c == nil {
		return
	}
	c.windowless.Remove(queueKey{lane.Tenant, lane.Queue})
	c.remove(lane)
}

// QueueChanged is ForgetQueue for announcements.
func (c *Cache) QueueChanged(tenant uuid.UUID, queue string, _ bool) { c.ForgetQueue(tenant, queue) }

// ForgetQueue drops all lanes of a queue, and what is known of its window: it
// was deleted or configured.
func (c *Cache) ForgetQueue(tenant uuid.UUID, queue string) {
	if c == nil {
		return
	}
	c.windowless.Remove(queueKey{tenant, queue})
	for _, lane := range c.known(func(l Lane) bool { return l.Tenant == tenant && l.Queue == queue }) {
		c.remove(lane)
	}
}

// narrow finishes a mark: its suspects are named, or, when there are too many of
// them, read and compared first.
func (c *Cache) narrow(ctx context.Context, m Mark, q *query) Mark {
	if len(q.rows) == 0 {
		return m
	}
	if named, few := c.name(m, q); few {
		return named
	}
	all := !q.overflow()
	q.settle()
	if !c.confirm(ctx, m.PartitionID, q) {
		return unmarked()
	}
	if !all && len(q.rows) == 0 {
		return unmarked() // 65536 strangers in a row; the rest was not looked at
	}
	for _, r := range q.rows {
		m.Suspects = append(m.Suspects, r.base)
	}
	c.metrics.suspects.Add(ctx, int64(len(m.Suspects)))
	return m
}

// within tells whether rows are few enough to be read under a lock.
func within(rows []row) bool {
	frames := 0
	for _, r := range rows {
		frames += r.frames
	}
	return len(rows) <= MaxSuspects && (frames <= MaxSuspectFrames || len(rows) == 1)
}
