package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/boot"
	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ack"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/browse"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/dedup"
	"github.com/queenmq/queen/services/broker/internal/fusion"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/lookout"
	"github.com/queenmq/queen/services/broker/internal/mesh"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/modes"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
	"github.com/queenmq/queen/services/broker/internal/push"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/replay"
	"github.com/queenmq/queen/services/broker/internal/replies"
	"github.com/queenmq/queen/services/broker/internal/scrape"
	"github.com/queenmq/queen/services/broker/internal/tails"
	"github.com/queenmq/queen/services/broker/internal/transact"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

// engine is what stands between the HTTP surface and the store.
type engine struct {
	gate         *admission.Gate
	hot          *hotlist.List
	store        *store.Store
	modes        *modes.Modes
	announcer    *announce.Announcer
	mesh         *mesh.Mesh
	lookout      *lookout.Lookout
	pushes       *push.Service
	pops         *pop.Service
	acks         *ack.Service
	transactions *transact.Service
	collector    *collector.Collector
	scrape       *scrape.Scrape
	browser      *browse.Service
	mover        *replay.Service

	// What the log tells of.
	counters *collector.Counters
	batches  *batches.Recorder
	marks    *dedup.Cache // nil when switched off
	registry *registry.Registry
}

// shared are the parts that several services of the engine use.
type shared struct {
	store     *store.Store
	packer    *segment.Packer
	reader    *segment.Reader
	gate      *admission.Gate
	hub       *wake.Hub
	modes     *modes.Modes
	hot       *hotlist.List // nil when it is switched off
	lanes     *lanes.Memo
	announcer *announce.Announcer
	ids       *mint.Source
	letters   *deadletter.Filer
	marks     *dedup.Cache       // nil when switched off
	tails     *tails.Cache       // nil when switched off
	registry  *registry.Registry // of the batches that pops have delivered under leases
	counters  *collector.Counters
	batches   *batches.Recorder
	lookout   *lookout.Lookout
}

func newShared(cfg *config.Config, db *pgdb.DB, tel *telemetry.Telemetry, log *slog.Logger) (*shared, error) {
	s := &shared{store: store.New(db), hub: wake.NewHub(), ids: mint.NewSource(), counters: collector.NewCounters(collector.QueuesDefault)}
	var err error
	if s.batches, err = batches.New(tel.Meters.Meter(serviceName + "/batches")); err != nil {
		return nil, err
	}
	if s.packer, err = segment.NewPacker(cfg.Engine.ZstdLevel); err != nil {
		return nil, err
	}
	if s.reader, err = segment.NewReader(0); err != nil {
		return nil, err
	}
	if s.lanes, err = lanes.NewMemo(lanes.SizeDefault); err != nil {
		return nil, err
	}
	s.modes, err = modes.New(modes.Deps{Store: s.store, Meter: tel.Meters.Meter(serviceName + "/modes"), Logger: log, PopsHeld: s.hub.Rouse})
	if err != nil {
		return nil, err
	}
	s.announcer = &announce.Announcer{Local: announce.Local{Waker: s.hub, Lanes: s.lanes, Switches: []announce.Switches{s.modes}}}
	s.gate, err = admission.New(s.admissionConfig(cfg, log), tel.Meters.Meter(serviceName+"/admission"))
	if err != nil {
		return nil, err
	}
	s.lookout, err = lookout.New(lookout.Deps{Store: s.store, Meter: tel.Meters.Meter(serviceName + "/lookout"), Logger: log})
	if err != nil {
		return nil, err
	}
	s.announcer.Timers = s.lookout
	s.letters = deadletter.NewFiler(s.store, s.reader, log)
	s.registry = registry.New(registry.Config{Bytes: int64(cfg.Acks.RegistryMB) << 20, LeasesOnly: !cfg.Acks.Registry})
	if err := s.heat(cfg, tel, log); err != nil {
		return nil, err
	}
	if n := segmentCache(cfg); n > 0 {
		if s.tails, err = tails.New(n / tailsShare); err != nil {
			return nil, err
		}
	}
	return s, s.remember(cfg, tel, log)
}

// remember makes the dedup cache, unless it is switched off.
func (s *shared) remember(cfg *config.Config, tel *telemetry.Telemetry, log *slog.Logger) (err error) {
	if !cfg.Dedup.Cache {
		return nil
	}
	s.marks, err = dedup.New(dedup.Config{Bytes: int64(cfg.Dedup.CacheMB) << 20}, dedup.Deps{
		Store: s.store, Meter: tel.Meters.Meter(serviceName + "/dedup"), Logger: log,
	})
	s.announcer.Caches = append(s.announcer.Caches, s.marks)
	return err
}

// heat makes the hot list, unless it is switched off.
func (s *shared) heat(cfg *config.Config, tel *telemetry.Telemetry, log *slog.Logger) (err error) {
	if !cfg.Hotlist.Enabled {
		return nil
	}
	s.hot, err = hotlist.New(hotlist.Config{
		Shards: cfg.HotlistShards(), Reseed: cfg.Hotlist.Reseed, IdleSweep: cfg.Hotlist.IdleSweep, WindowBatch: cfg.Hotlist.WindowBatch,
		SettingsAge: cfg.Engine.SettingsAge(),
	}, hotlist.Deps{
		Store: s.store, Waker: s.hub, Meter: tel.Meters.Meter(serviceName + "/hotlist"), Logger: log,
		Peers: s.announcer,
		Admit: func(ctx context.Context) (func(), error) { return s.gate.Acquire(ctx, admission.Maint) },
	})
	s.announcer.HotList = s.hot
	return err
}

func newEngine(cfg *config.Config, db *boot.Database, tel *telemetry.Telemetry, log *slog.Logger) (*engine, error) {
	s, err := newShared(cfg, db.DB, tel, log)
	if err != nil {
		return nil, fmt.Errorf("build the engine: %w", err)
	}
	e := &engine{
		hot: s.hot, store: s.store, modes: s.modes, gate: s.gate, announcer: s.announcer, lookout: s.lookout,
		counters: s.counters, batches: s.batches, marks: s.marks, registry: s.registry,
	}
	if e.pushes, err = newPush(cfg, s, tel, log); err != nil {
		return nil, err
	}
	if e.pops, err = newPop(cfg, s, tel, log); err != nil {
		return nil, err
	}
	e.announcer.Caches = append(e.announcer.Caches, e.pops)
	if e.acks, err = newAck(cfg, s, e.pops, tel, log); err != nil {
		return nil, err
	}
	e.transactions, err = transact.New(transact.Config{KV: kvLimits(cfg)}, transact.Deps{
		Store: s.store, Packer: s.packer, Letters: s.letters, Admission: s.gate, Announcer: s.announcer, Registry: s.registry, Marks: s.marks, IDs: s.ids,
		Counters: s.counters, Lanes: s.lanes, Meter: tel.Meters.Meter(serviceName + "/transact"), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	e.browser = browse.New(browse.Config{PreviewBytes: cfg.Browse.PreviewBytes}, browse.Deps{Store: s.store, Reader: s.reader, Logger: log})
	e.mover = replay.New(cfg.Engine.PushDeadline, replay.Deps{
		Store: s.store, Packer: s.packer, IDs: s.ids, Announcer: s.announcer, Counters: s.counters,
	})
	e.collector, err = collector.New(cfg.Metrics, collector.Deps{
		Store: s.store, Pool: db.Stat, Counters: s.counters, Meter: tel.Meters.Meter(serviceName + "/collector"), Log: log,
		Replica: store.Replica{Service: "broker", Host: cfg.Server.ServerID, Port: cfg.Server.Port, PID: os.Getpid()},
	})
	if err != nil {
		return nil, err
	}
	e.scrape, err = scrape.New(scrape.Config{MaxQueues: cfg.Metrics.MaxQueues}, scrape.Deps{
		Store: s.store, Waiting: s.counters.Waiting,
		Meter: tel.Meters.Meter(serviceName + "/scrape"), Log: log,
	})
	if err != nil {
		return nil, err
	}
	return e, e.join(cfg, db, tel, log)
}

// join makes the engine a member of the hint pool.
func (e *engine) join(cfg *config.Config, db *boot.Database, tel *telemetry.Telemetry, log *slog.Logger) (err error) {
	e.mesh, err = mesh.New(cfg.Mesh, mesh.Deps{
		ServerID: cfg.Server.ServerID, Local: &e.announcer.Local,
		Maintenance: func() wire.Maintenance {
			return wire.Maintenance{Push: e.modes.PushMaintenance(), Pop: e.modes.PopMaintenance()}
		},
		Installation: func(ctx context.Context) (id uuid.UUID, err error) {
			err = db.Retry(ctx, func(ctx context.Context) (err error) {
				id, err = e.store.Installation(ctx)
				return err
			})
			return id, err
		},
		Log: log, Meter: tel.Meters.Meter(serviceName + "/mesh"),
	})
	if err != nil {
		return err
	}
	e.announcer.Peers = e.mesh.Peers()
	e.lookout.Linked, e.lookout.Waiting = e.mesh.Sweepers, e.pops.Waiting
	e.lookout.Looks = []func(context.Context) error{e.hot.Look, e.pops.Look}
	return nil
}

// deps is the engine as the HTTP surface sees it.
func (e *engine) deps() httpapi.Deps {
	return httpapi.Deps{
		Push: e.pushes, Pop: e.pops, Ack: e.acks, Transaction: e.transactions, Store: e.store,
		Modes: e.modes, Groups: e.store, GroupNews: e.announcer, Analytics: e.store,
		Browser: e.browser, DeadLetters: e.store, Mover: e.mover, Traces: e.store,
		Admit:        func(ctx context.Context) (func(), error) { return e.gate.Acquire(ctx, admission.Maint) },
		Replies:      e.pops.Replies,
		QueueChanged: e.announcer.QueueChanged, FlagsChanged: e.announcer.FlagsChanged, Notify: e.announcer.Wake, MeshStats: e.mesh.Stats,
	}
}

// newPush builds the push path. What pushes share is in the fuser.
func newPush(cfg *config.Config, s *shared, tel *telemetry.Telemetry, log *slog.Logger) (*push.Service, error) {
	fuser, err := fusion.New(fusion.Config{
		Shards: cfg.Fusion.Shards, MaxInflight: cfg.Fusion.MaxInflight, BundleMax: cfg.Fusion.BundleMax,
	}, fusion.Deps{
		Store: s.store, Packer: s.packer, Reader: s.reader, Admission: s.gate, Announcer: s.announcer, Marks: s.marks, Tails: s.tails, Batches: s.batches,
		Meter: tel.Meters.Meter(serviceName + "/fusion"), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return push.New(push.Config{Deadline: cfg.Engine.PushDeadline}, push.Deps{
		Fuser: fuser, Admission: s.gate, IDs: s.ids, Counters: s.counters, Held: s.modes.PushMaintenance,
		Meter: tel.Meters.Meter(serviceName + "/push"),
	})
}

// tailsShare is the part of the segment cache for what was written last.
const tailsShare = 4

// segmentCache is the memory for segments, in bytes; 0: none.
func segmentCache(cfg *config.Config) int64 { return int64(cfg.Flow.SegmentCacheMB) << 20 }

// newPop builds the pop path. What pops share is in the fuser.
func newPop(cfg *config.Config, s *shared, tel *telemetry.Telemetry, log *slog.Logger) (*pop.Service, error) {
	var fuser *popfusion.Fuser
	if cfg.PopFusion.Enabled {
		var err error
		fuser, err = popfusion.New(popfusion.Config{MaxClaims: cfg.PopFusion.MaxClaims, MaxPace: cmp.Or(cfg.PopFusion.MaxPace, -1)}, popfusion.Deps{
			Store: s.store, Admission: s.gate, Batches: s.batches, Meter: tel.Meters.Meter(serviceName + "/popfusion"),
		})
		if err != nil {
			return nil, err
		}
	}
	return pop.New(popConfig(cfg), pop.Deps{
		Store: s.store, Reader: s.reader, Admission: s.gate, Hub: s.hub, Lanes: s.lanes, HotList: s.hot, Batches: s.batches, Fusion: fuser, Tails: s.tails, Registry: s.registry,
		Replies: new(replies.Pool), IDs: s.ids, Counters: s.counters, OnPark: s.lookout.Kick, Suspended: s.modes.PopMaintenance,
		Meter: tel.Meters.Meter(serviceName + "/pop"), Logger: log,
	})
}

// newAck builds the ack path. What acks share is in the fuser.
func newAck(cfg *config.Config, s *shared, pops *pop.Service, tel *telemetry.Telemetry, log *slog.Logger) (*ack.Service, error) {
	var batches ack.Batches = &ackfusion.Direct{Store: s.store, Admission: s.gate, Batches: s.batches}
	if cfg.Acks.Fusion {
		fuser, err := ackfusion.New(ackfusion.Config{Shards: cfg.Acks.FusionShards, Hold: cfg.Acks.FusionHold}, ackfusion.Deps{
			Store: s.store, Admission: s.gate, Batches: s.batches, Riders: pops, Meter: tel.Meters.Meter(serviceName + "/ackfusion"), Logger: log,
		})
		if err != nil {
			return nil, err
		}
		batches = fuser
	}
	return ack.New(ack.Config{}, ack.Deps{
		Store: s.store, Batches: batches, Registry: s.registry, Letters: s.letters, Admission: s.gate, Announcer: s.announcer,
		Counters: s.counters, Lanes: s.lanes, Meter: tel.Meters.Meter(serviceName + "/ack"), Logger: log,
	})
}

func (s *shared) admissionConfig(cfg *config.Config, log *slog.Logger) admission.Config {
	b := cfg.Budget
	c := admission.Config{
		Slots: cfg.Slots(), Min: b.Min, Init: b.Init, Max: b.Max, NoSync: b.NoSync,
		Tick: b.Tick, TrainGap: time.Duration(b.TrainGap) * time.Microsecond,
		Shares:     admission.Shares{Push: b.SharePush, Pop: b.SharePop, Ack: b.ShareAck, Maint: b.ShareMaint},
		MaxWaiting: b.MaxWaiting,
	}
	if b.Trace {
		c.Trace = log
	}
	if cfg.Hotlist.Enabled {
		c.PopAge = func() (time.Duration, int) { return s.hot.Oldest() } // the list, made later, needs the gate
	}
	return c
}

func popConfig(cfg *config.Config) pop.Config {
	return pop.Config{
		InitialInterval: cfg.Flow.InitialInterval, BackoffThreshold: cfg.Flow.Threshold,
		BackoffMultiplier: cfg.Flow.Multiplier, MaxInterval: cfg.Flow.MaxInterval, PendingGate: cfg.Flow.PendingGate,
		MaxParked: cfg.Flow.MaxParked, SegmentCache: cmp.Or(segmentCache(cfg)-segmentCache(cfg)/tailsShare, -1),
		SettingsAge: cfg.Engine.SettingsAge(),
	}
}

func popDefaults(cfg *config.Config) wire.PopDefaults {
	return wire.PopDefaults{Timeout: cfg.Flow.DefaultTimeout, SubMode: cfg.Flow.SubscriptionMode}
}
