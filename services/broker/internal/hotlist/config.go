package hotlist

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

// Defaults of Config.
const (
	ShardsDefault      = 8
	ReseedDefault      = 30 * time.Second
	WindowBatchDefault = 100
	AttentionDefault   = 5 * time.Second
	TopRingsDefault    = 10
	SettingsAgeDefault = 30 * time.Second
)

// Cadences and bounds.
const (
	// WakeTick is how long the wakes of a busy queue are folded into one; the
	// first one after a pause is given at once.
	WakeTick = 5 * time.Millisecond
	// WheelTick is how often due lanes are looked for at least.
	WheelTick = 50 * time.Millisecond
	// FloorTick is how often rings that are due for a walk are looked for.
	FloorTick = 2 * time.Second
	// WatchTick is how often the lanes written lately are read for those who wait.
	WatchTick = time.Second
	// WatchSpan is how far back the watch looks: a tick, the second by which
	// last_write_at may be late, and one to spare.
	WatchSpan = 3 * time.Second
	// LeaseParkMax bounds how long a leased lane is left alone.
	LeaseParkMax = time.Second
	// Elsewhere is how long a lane is left alone that another broker has leased. It
	// is short, since the word that the lease has ended may have come before; a claim
	// finds a longer lease, and learns its end.
	Elsewhere = 20 * time.Millisecond
	// Yield is how long a lane is left to each broker that comes before this one,
	// while they are in each other's way: the time of a claim and of its hint.
	Yield = 10 * time.Millisecond
	// LockPark is how long a lane is left alone whose row was merely locked;
	// LockJitter is added at random.
	LockPark   = 20 * time.Millisecond
	LockJitter = 10 * time.Millisecond
	// Grace covers the gap between a commit's own time and what others see of it.
	Grace = 300 * time.Millisecond
	// Stranded is when a check-out is given up. It is beyond every statement's
	// deadline.
	Stranded = 2 * time.Minute
	// PageSize and MaxPages bound one walk, MaxLanes the table of one queue.
	PageSize = 10_000
	MaxPages = 200
	MaxLanes = PageSize * MaxPages

	revisitMin   = 50 * time.Millisecond // of a lane that may hide something
	ambiguity    = 2*Grace + time.Second // after which it hides nothing any more
	phaseSpread  = 15 * time.Second      // least spread of the walks
	walkPause    = 50 * time.Millisecond // least pause between two walks of a ring
	walkShare    = 4                     // a ring that owes one pauses that many times its last walk
	walkers      = 2                     // walks at once
	watchBatch   = 256                   // rings of one statement of the watch
	watchLimit   = 5000                  // lanes of one ring in one statement
	watchSpanMax = time.Minute
	wakeMax      = 64   // pops woken for the lanes of one tick of the wheel, or of one page
	foldMax      = 4096 // lanes a queue folds into one wake; beyond, everybody looks
	internChunk  = 512  // names taken in under one lock
	collectChunk = 8192 // lanes looked at under one lock
	collectMin   = 1024 // lanes a table may always have
	reportEvery  = 30 * time.Second
)

// limits are the bounds of walks and tables; tests take smaller ones.
type limits struct{ page, pages, lanes int }

// Config tunes a List. Zero values take the defaults.
type Config struct {
	Shards int           // locks of a ring
	Reseed time.Duration // between two walks of a ring
	// IdleSweep is how long a queue nobody touches is remembered, and a ring
	// nobody pops; 0 is for ever.
	IdleSweep   time.Duration
	WindowBatch int // marks that end the window of a lane early
	// Attention is how long after a fruitless check-out somebody is taken to wait
	// for the group. Keep it above the longest pause between two looks of a
	// parked pop.
	Attention time.Duration
	TopRings  int // rings that the report names
	// SettingsAge is when the settings of a queue are read again.
	SettingsAge time.Duration
}

func (c Config) withDefaults() Config {
	c.Shards = cmp.Or(c.Shards, ShardsDefault)
	c.Reseed = cmp.Or(c.Reseed, ReseedDefault)
	c.WindowBatch = min(cmp.Or(c.WindowBatch, WindowBatchDefault), math.MaxInt32)
	c.Attention = cmp.Or(c.Attention, AttentionDefault)
	c.TopRings = cmp.Or(c.TopRings, TopRingsDefault)
	c.SettingsAge = cmp.Or(c.SettingsAge, SettingsAgeDefault)
	return c
}

// Store is the part of the store that the list reads.
type Store interface {
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (store.QueueSettings, bool, error)
	HotlistReseed(ctx context.Context, tenant uuid.UUID, queue, group string, after uuid.UUID, limit int) ([]store.PartitionRef, error)
	HotlistRecent(ctx context.Context, rings []store.HotlistRing, within time.Duration, limit int) ([]store.HotlistRow, error)
}

// Waker wakes the pops that wait for a lane; an empty partition is any lane.
type Waker interface {
	Wake(tenant uuid.UUID, queue, partition string)
	// Free wakes one pop of a group.
	Free(tenant uuid.UUID, queue, group string)
}

// Peers are the other brokers. No method blocks.
type Peers interface {
	// Taken tells them what a claim took.
	Taken(t Taking)
	// Rank is how many of them come before this broker in the order of a lane, for
	// which a number stands. Brokers that know each other agree about it.
	Rank(lane uint64) int
}

// Deps are what a List works with.
type Deps struct {
	Store Store
	Waker Waker
	// Admit takes the slot of one page of a walk; nil admits everything.
	Admit  func(ctx context.Context) (release func(), err error)
	Peers  Peers // nil: there are no other brokers
	Meter  metric.Meter
	Logger *slog.Logger
	// Now is the clock, time.Now when nil.
	Now func() time.Time
}
