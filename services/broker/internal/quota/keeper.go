package quota

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/modes"
)

// Keeper knows what tenants may do. It is safe for concurrent use.
type Keeper struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics

	switches *modes.Set

	quotas  atomic.Pointer[reading] // nil until the first reading
	tenants *lru.Cache[uuid.UUID, *tenant]
	cell    *rate.Limiter
	hot     atomic.Int64
}

// reading is what the database said about all tenants.
type reading struct {
	byTenant map[uuid.UUID]store.KVQuota
	at       time.Time
}

// New returns a Keeper that lets pass what needs no grant, until Run has read more.
func New(cfg Config, deps Deps) (*Keeper, error) {
	cfg = cfg.withDefaults()
	k := &Keeper{cfg: cfg, store: deps.Store, log: deps.Logger, cell: limiter(cfg.CellRate, cfg.CellRate)}
	k.switches = modes.NewSet(deps.Store, deps.Logger, switchFlags()...)
	var err error
	if k.tenants, err = lru.New[uuid.UUID, *tenant](cfg.MaxTenants); err != nil {
		return nil, err
	}
	k.metrics, err = newMetrics(deps.Meter, k)
	return k, err
}

// Start reads all of it once, so that the first request finds it known. What cannot be
// read is tried again by Run.
func (k *Keeper) Start(ctx context.Context) error {
	_, _ = k.switches.Read(ctx), k.readQuotas(ctx)
	return nil
}

// Run reads the switches every second, and the quotas as often as they are needed,
// until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	var both errgroup.Group
	both.Go(func() error { return k.switches.Run(ctx) })
	both.Go(func() error {
		k.watchQuotas(ctx)
		return nil
	})
	return both.Wait()
}

// watchQuotas looks every second whether the quotas are due: a tenant may come close
// to a limit at any time.
func (k *Keeper) watchQuotas(ctx context.Context) {
	every := time.NewTicker(hotFloor)
	defer every.Stop()
	var outage outage
	var last time.Time
	for {
		if k.countHot(); time.Since(last) >= k.patience(outage.on) {
			outage.tell(ctx, k.log, k.readQuotas(ctx))
			last = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// patience is how old a reading of the quotas may get.
func (k *Keeper) patience(failed bool) time.Duration {
	if failed || k.hot.Load() > 0 {
		// The ticks come a little early or late: half of one is let off.
		return max(k.cfg.Refresh/hotShare, hotFloor) - hotFloor/2
	}
	return k.cfg.Refresh - hotFloor/2
}

// countHot counts the tenants that are close to a limit.
func (k *Keeper) countHot() {
	hot := int64(0)
	for _, t := range k.tenants.Values() {
		if t.isHot(k.cfg.HotPercent) {
			hot++
		}
	}
	k.hot.Store(hot)
}

// outage logs the beginning and the end of a time in which quotas cannot be read.
type outage struct{ on bool }

func (o *outage) tell(ctx context.Context, log *slog.Logger, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !o.on:
		log.WarnContext(ctx, "quotas cannot be read, the last reading stays", logging.Err(err))
	case err == nil && o.on:
		log.InfoContext(ctx, "quotas are read again")
	}
	o.on = err != nil
}

// readQuotas reads the quotas and the usage, and applies them to the tenants at work.
func (k *Keeper) readQuotas(ctx context.Context) error {
	list, err := k.store.KVQuotas(ctx, k.cfg.MaxTenants)
	if err != nil {
		return err
	}
	next := &reading{byTenant: make(map[uuid.UUID]store.KVQuota, len(list)), at: time.Now()}
	for i := range list {
		next.byTenant[list[i].Tenant] = list[i]
	}
	k.quotas.Store(next)
	for _, t := range k.tenants.Values() {
		t.adopt(next.quota(t.id), &k.cfg)
	}
	return nil
}

// quota is that of a tenant; without a row it is enabled, and without limits.
func (r *reading) quota(id uuid.UUID) store.KVQuota {
	if r != nil {
		if q, ok := r.byTenant[id]; ok {
			return q
		}
	}
	return store.KVQuota{Tenant: id, Enabled: true}
}

// tenant is the state of a tenant, made when it is not remembered.
func (k *Keeper) tenant(id uuid.UUID) *tenant {
	if t, ok := k.tenants.Get(id); ok {
		return t
	}
	made := &tenant{id: id}
	made.adopt(k.quotas.Load().quota(id), &k.cfg)
	if known, ok, _ := k.tenants.PeekOrAdd(id, made); ok {
		return known
	}
	return made
}

// Horizon is how far ahead a tenant may schedule timers: the cell's horizon, narrowed
// by its own.
func (k *Keeper) Horizon(id uuid.UUID) time.Duration {
	q := k.quotas.Load().quota(id)
	if q.MaxHorizonS == nil || *q.MaxHorizonS >= int64(k.cfg.Horizon/time.Second) {
		return k.cfg.Horizon
	}
	return time.Duration(max(*q.MaxHorizonS, 0)) * time.Second
}

// Summary is what the keeper knows of quotas.
type Summary struct {
	Tenants int           // with a quota or usage on record
	Age     time.Duration // of the reading; 0 before the first
	Hot     int           // tenants close to a limit
}

// Summary tells how fresh the view is.
func (k *Keeper) Summary() Summary {
	r := k.quotas.Load()
	if r == nil {
		return Summary{}
	}
	return Summary{Tenants: len(r.byTenant), Age: time.Since(r.at), Hot: int(k.hot.Load())}
}
