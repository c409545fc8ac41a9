package quota

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/modes"
)

// Defaults of Config.
const (
	MaxTenantsDefault     = 10000
	RefreshDefault        = 30 * time.Second
	ReleasePercentDefault = 90
	HotPercentDefault     = 80
	HorizonDefault        = 90 * 24 * time.Hour
)

const (
	// hotShare is by how much sooner than others the quotas are read while a tenant
	// is close to a limit, and hotFloor how soon at the most.
	hotShare = 10
	hotFloor = time.Second
	// pauseRetry is when a request may come again that met a switch: sooner would
	// only be refused again, since people flip switches.
	pauseRetry = 5 * time.Second
)

// Config holds the bounds. Zero values of the first group mean the defaults.
type Config struct {
	MaxTenants     int           // whose rates and occupancy are remembered
	Refresh        time.Duration // between two readings of the quotas
	ReleasePercent int           // of a limit, below which a blocked tenant may go on
	HotPercent     int           // of a limit, from which the quotas are read sooner
	Horizon        time.Duration // how far ahead timers may be scheduled

	// RequireGrant refuses tenants without a quota row.
	RequireGrant bool
	// Tokens per second and in a full bucket, per tenant; a rate of 0 sets no bound.
	ReadRate, ReadBurst, WriteRate, WriteBurst int
	// CellRate bounds the operations of all tenants together, with a burst of one
	// second; 0 sets no bound.
	CellRate int
}

func (c Config) withDefaults() Config {
	c.MaxTenants = cmp.Or(c.MaxTenants, MaxTenantsDefault)
	c.Refresh = cmp.Or(c.Refresh, RefreshDefault)
	c.ReleasePercent = cmp.Or(c.ReleasePercent, ReleasePercentDefault)
	c.HotPercent = cmp.Or(c.HotPercent, HotPercentDefault)
	c.Horizon = cmp.Or(c.Horizon, HorizonDefault)
	return c
}

// Store is where switches, quotas and usage are recorded.
type Store interface {
	modes.Store
	KVQuotas(ctx context.Context, tenants int) ([]store.KVQuota, error)
}

// Deps are what a Keeper works with.
type Deps struct {
	Store  Store
	Meter  metric.Meter
	Logger *slog.Logger
}
