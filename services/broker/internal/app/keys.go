package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/boot"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

const (
	// kvStatementTimeout ends a call on keys or timers: each is a few rows, and what
	// takes longer holds locks that others wait for.
	kvStatementTimeout = 5 * time.Second
	// kvAcquireTimeout and kvWaiting bound the wait for a connection; more callers
	// than that would not be served within it.
	kvAcquireTimeout = time.Second
	kvWaiting        = 1024
)

// keys is what serves keys, and timers with the same connections and quotas.
type keys struct {
	db      *boot.Database
	store   *store.Store
	quotas  *quota.Keeper
	service *kv.Service
	edge    *timers.Edge
	timers  *timers.Service
}

// newKeys opens the pool for keys and timers and builds what is on top of it.
// Switches and quotas are read over the main pool: they must be known also while this
// one is used up.
func newKeys(ctx context.Context, cfg *config.Config, e *engine, tel *telemetry.Telemetry, log *slog.Logger) (k *keys, err error) {
	k = &keys{}
	if k.db, err = boot.Open(ctx, kvPostgres(cfg), cfg.Server.BootDBWait, tel, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			k.db.Close()
		}
	}()
	err = k.db.ObserveStates(tel.Meters.Meter(serviceName), "queen.kv_pool",
		"Connections of the pool for keys and timers, and callers waiting for one, by state.")
	if err != nil {
		return nil, err
	}
	k.store = store.New(k.db.DB)
	k.quotas, err = quota.New(quotaConfig(cfg), quota.Deps{Store: e.store, Meter: tel.Meters.Meter(serviceName + "/quota"), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("build the quotas: %w", err)
	}
	k.service, err = kv.New(kv.Config{Limits: kvLimits(cfg), PageLimit: cfg.KV.PrefixLimit, ShedAfter: cfg.KV.ShedAfter, Flights: cfg.KVFlights()}, kv.Deps{
		Store: k.store, Gate: k.quotas, Meter: tel.Meters.Meter(serviceName + "/kv"),
	})
	if err != nil {
		return nil, fmt.Errorf("build the service of keys: %w", err)
	}
	k.edge = timersEdge(cfg, k.quotas)
	if k.timers, err = newTimers(k, e.announcer, tel); err != nil {
		return nil, err
	}
	// What rides in transactions is charged to the same quotas. It uses the
	// connections of the transactions.
	e.transactions.Quota, e.transactions.Timers, e.transactions.KeysCarried = k.quotas, k.edge, k.service.Carried
	return k, nil
}

// addTo gives the HTTP surface what it needs of keys and timers.
func (k *keys) addTo(deps *httpapi.Deps) {
	deps.Keys, deps.Timers, deps.Switches = k.service, k.timers, k.quotas
}

// kvPostgres is the database as it is reached for keys and timers.
func kvPostgres(cfg *config.Config) pgdb.Config {
	c := cfg.Postgres
	c.PoolSize = cfg.KVPoolSize()
	c.StatementTimeout = min(c.StatementTimeout, int(kvStatementTimeout.Milliseconds()))
	c.ServerEnds = true
	c.AcquireTimeout, c.MaxWaiting = kvAcquireTimeout, kvWaiting
	return c
}

// kvLimits are the bounds of one call, also inside a transaction.
func kvLimits(cfg *config.Config) kv.Limits {
	return kv.Limits{
		MaxOps: cfg.KV.MaxOpsPerCall, MaxKeys: cfg.KV.MaxKeysPerCall,
		MaxValueBytes: cfg.KV.MaxValueBytes, MaxKeyBytes: cfg.KV.MaxKeyBytes,
	}
}

func quotaConfig(cfg *config.Config) quota.Config {
	c := cfg.KV
	return quota.Config{
		MaxTenants: c.MaxTenants, Refresh: c.QuotaRefresh, ReleasePercent: c.ReleasePercent, HotPercent: c.HotPercent,
		Horizon: cfg.Timers.Horizon(), RequireGrant: c.RequireGrant,
		ReadRate: c.ReadRate, ReadBurst: c.ReadBurst, WriteRate: c.WriteRate, WriteBurst: c.WriteBurst, CellRate: c.CellRate,
	}
}
