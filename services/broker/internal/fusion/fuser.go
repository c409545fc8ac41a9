package fusion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/dedup"
	"github.com/queenmq/queen/services/broker/internal/spans"
	"github.com/queenmq/queen/services/broker/internal/tails"
)

// ErrOverloaded is the error of a part that waited too long to be begun. Nothing
// of it was stored.
var ErrOverloaded = admission.ErrOverloaded

// Bounds of one database call.
const (
	// MaxBundleBytes is the most frame bytes, and so about the most blob bytes, of
	// a bundle. One part that is larger travels alone: it is one commit.
	MaxBundleBytes = 8 << 20
	// MaxSegmentMessages is where a segment takes in no further part.
	MaxSegmentMessages = 10_000
)

// Defaults of Config.
const (
	ShardsDefault    = 8
	BundleMaxDefault = 128
	AloneDefault     = 8
)

// slowBundle is how long the lanes that are ready wait for a bundle to be over: one
// that is repeated, or searched for what was refused, must not hold them up.
const slowBundle = 50 * time.Millisecond

// rememberedLanes bounds the lane ids that are remembered: about 5 MB.
const rememberedLanes = 32 << 10

// Store is the part of the store that fusion needs.
type Store interface {
	PushBundle(ctx context.Context, segments []store.PushSegment, wait store.LockWait) ([]store.PushVerdict, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (store.QueueSettings, bool, error)
}

// Announcer hears of committed messages.
type Announcer interface {
	Pushed(tenant uuid.UUID, queue, partition string, count int)
}

// Marks knows what the dedup windows of lanes hold: dedup.Cache.
type Marks interface {
	// TryMark answers for the hashes of one segment from memory, if it can.
	TryMark(lane Lane, hashes []byte) (dedup.Mark, bool)
	// Mark reads what it does not know; that can take seconds.
	Mark(ctx context.Context, lane Lane, hashes []byte) dedup.Mark
	// Wrote records a committed segment.
	Wrote(lane Lane, partition uuid.UUID, base int64, createdAt time.Time, hashes []byte)
}

// Lane names one partition.
type Lane = dedup.Lane

// Config holds the settings of a Fuser. Zero values take the defaults.
type Config struct {
	// Shards divides the queues (default 8, QUEEN_V2_FUSION_SHARDS).
	Shards int
	// MaxInflight is the most bundles of one shard at once (default: as many as
	// processors, QUEEN_V2_FUSION_MAX_INFLIGHT).
	MaxInflight int
	// BundleMax is the most lanes of one bundle (default 128, QUEEN_V2_BUNDLE_MAX).
	BundleMax int
	// Alone is the most lanes that are waited for outside bundles (default 8).
	Alone int
}

// Deps are what a Fuser works with.
type Deps struct {
	Store     Store
	Packer    *segment.Packer
	Reader    *segment.Reader
	Admission *admission.Gate
	Announcer Announcer
	Marks     Marks // nil vouches for nothing
	// Tails is told of every segment; nil: nobody reads right behind the writers.
	Tails   *tails.Cache
	Batches *batches.Recorder
	Meter   metric.Meter
	Logger  *slog.Logger
}

// Fuser stores parts. It is safe for concurrent use.
type Fuser struct {
	Deps
	cfg     Config
	seed    maphash.Seed
	shards  []shard
	alone   chan struct{} // a token per lane that is waited for alone
	ids     *lru.Cache[laneHash, uuid.UUID]
	metrics *metrics
	frames  framePool
	// failures keeps an outage from filling the log; the metrics count them all.
	failures rate.Sometimes
	summary  summary
}

// New builds a Fuser.
func New(cfg Config, deps Deps) (*Fuser, error) {
	cfg.Shards = cmp.Or(cfg.Shards, ShardsDefault)
	cfg.MaxInflight = cmp.Or(cfg.MaxInflight, runtime.GOMAXPROCS(0))
	cfg.BundleMax = cmp.Or(cfg.BundleMax, BundleMaxDefault)
	cfg.Alone = cmp.Or(cfg.Alone, AloneDefault)
	f := &Fuser{
		Deps: deps, cfg: cfg, seed: maphash.MakeSeed(), shards: make([]shard, cfg.Shards),
		alone: make(chan struct{}, cfg.Alone), failures: rate.Sometimes{Interval: time.Second},
		summary: summary{every: rate.Sometimes{Interval: summaryInterval}},
	}
	if f.Marks == nil {
		f.Marks = (*dedup.Cache)(nil)
	}
	for i := range f.shards {
		f.shards[i].lanes = make(map[Lane]*lane)
	}
	var err error
	if f.ids, err = lru.New[laneHash, uuid.UUID](rememberedLanes); err != nil {
		return nil, fmt.Errorf("create lane id memory: %w", err)
	}
	if f.metrics, err = newMetrics(deps.Meter); err != nil {
		return nil, fmt.Errorf("create fusion metrics: %w", err)
	}
	return f, nil
}

// Part is what one request adds to one lane, in order.
type Part struct {
	Lane
	Messages []Message
	// Minted says that every transaction id was minted for this request.
	Minted bool
	// Deadline is when no further attempt starts.
	Deadline time.Time

	bytes int
	owner *batch
}

// Outcome is what became of a message.
type Outcome uint8

// The outcomes.
const (
	Pending Outcome = iota
	Queued
	Duplicate
	Failed
)

// Message is one message and, once Push has returned, what became of it.
type Message struct {
	Frame   segment.Frame
	Outcome Outcome
	// Original, of a duplicate, is the message id of the stored original; the zero
	// id when it can no longer be read.
	Original uuid.UUID
	Err      error // of a failed one

	follows *Message // has the same transaction id and came first
}

// batch is the parts of one request.
type batch struct {
	ctx  context.Context // of the request, without its end
	span trace.Span      // of the request; nil when nobody records it
	left atomic.Int32
	done chan struct{}
}

// finish settles one part.
func (b *batch) finish() {
	if b.left.Add(-1) == 0 {
		close(b.done)
	}
}

// Push stores the parts of one request and returns when every message has its
// outcome. The lanes of parts are distinct. The end of ctx stops nothing.
func (f *Fuser) Push(ctx context.Context, parts []Part) {
	if len(parts) == 0 {
		return
	}
	b := &batch{ctx: context.WithoutCancel(ctx), span: spans.Of(ctx), done: make(chan struct{})}
	b.left.Store(int32(len(parts)))
	var at uint
	for i := range parts {
		p := &parts[i]
		p.owner = b
		for m := range p.Messages {
			p.bytes += p.Messages[m].Frame.Size()
		}
		if shard := f.shardOf(p.Queue); i == 0 || shard != at {
			if i > 0 {
				f.start(&f.shards[at])
			}
			at = shard
		}
		f.shards[at].add(p)
	}
	f.start(&f.shards[at])
	f.await(b, parts)
}

// await waits for the outcomes. A request of which nothing was settled for the
// longest wait that admission allows takes back the parts that nobody has begun.
func (f *Fuser) await(b *batch, parts []Part) {
	limit := time.NewTimer(f.Admission.MaxWait())
	defer limit.Stop()
	for left := b.left.Load(); ; {
		select {
		case <-b.done:
			return
		case <-limit.C:
		}
		now := b.left.Load()
		if now == left {
			f.withdraw(b, parts)
			<-b.done
			return
		}
		left = now
		limit.Reset(f.Admission.MaxWait())
	}
}

func (f *Fuser) withdraw(b *batch, parts []Part) {
	for i := range parts {
		p := &parts[i]
		if f.shards[f.shardOf(p.Queue)].withdraw(p) {
			p.fail(ErrOverloaded)
			b.finish()
		}
	}
}

// shardOf keeps the lanes of a queue together, so that one request's lanes share
// a transaction.
func (f *Fuser) shardOf(queue string) uint {
	return uint(maphash.String(f.seed, queue) % uint64(len(f.shards)))
}

// start runs one more bundle of a shard, if there is work and room for it.
func (f *Fuser) start(s *shard) {
	if s.begin(f.cfg.MaxInflight, false) {
		go f.drain(s)
	}
}

// startBeside is start where the bundles of the shard are not soon to be over.
func (f *Fuser) startBeside(s *shard) {
	if s.begin(max(f.cfg.MaxInflight, 2), true) {
		go f.drain(s)
	}
}

// drain writes bundles until the shard has no ready lane.
func (f *Fuser) drain(s *shard) {
	for {
		time.Sleep(s.linger())
		release, err := f.Admission.Acquire(context.Background(), admission.Push)
		if err != nil {
			// Requests that have waited as long take their parts back themselves.
			if errors.Is(err, ErrOverloaded) && s.retry() {
				continue
			}
			return
		}
		bundle := s.take(f.cfg.BundleMax)
		if len(bundle) > 0 {
			slow := time.AfterFunc(slowBundle, func() { f.startBeside(s) })
			f.write(s, bundle)
			slow.Stop()
			s.ended()
		}
		release()
		if len(bundle) == 0 {
			return
		}
	}
}

// write writes one bundle.
func (f *Fuser) write(s *shard, bundle []*flight) {
	ctx, span := startFlush(bundle)
	defer span.End()
	(&writer{Fuser: f, shard: s, ctx: ctx}).bundle(bundle)
}

// fail settles what is still pending.
func (p *Part) fail(err error) {
	for i := range p.Messages {
		p.Messages[i].fail(err)
	}
}

func (m *Message) fail(err error) {
	if m.Outcome == Pending {
		m.Outcome, m.Err = Failed, err
	}
}
