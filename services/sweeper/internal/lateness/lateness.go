// Package lateness shows how late the timers of each tenant are fired, as gauges. What all
// tenants have together is for a histogram.
package lateness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
)

// TenantsMax is how many tenants have series of their own: those that came first. Others
// are counted, once for each of their timers.
const TenantsMax = 1024

// Recorder knows the lateness of tenants. It is safe for concurrent use.
type Recorder struct {
	dropped metric.Int64Counter

	mu      sync.RWMutex
	tenants map[uuid.UUID]*telemetry.Quantiles
}

// New returns a Recorder that knows the default tenant only.
func New(meter metric.Meter) (*Recorder, error) {
	r := &Recorder{tenants: map[uuid.UUID]*telemetry.Quantiles{store.DefaultTenant(): telemetry.NewQuantiles()}}
	var errs [2]error
	r.dropped, errs[0] = meter.Int64Counter("queen.timers.fire_lag_tenants_dropped",
		metric.WithDescription("Timers fired for tenants whose lag is not shown, because too many others are."))
	_, errs[1] = meter.Float64ObservableGauge("queen.timers.fire_lag", metric.WithUnit("s"),
		metric.WithDescription("How late timers of a tenant were fired: median and 99th percentile of the last minutes."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			r.observe(o)
			return nil
		}))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("create the metrics of lateness: %w", err)
	}
	r.dropped.Add(context.Background(), 0)
	return r, nil
}

func (r *Recorder) observe(o metric.Float64Observer) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for tenant, lags := range r.tenants {
		name := attribute.String("tenant", tenant.String())
		lags.Each(func(quantile string, value float64) {
			o.Observe(value, metric.WithAttributes(name, attribute.String("quantile", quantile)))
		})
	}
}

// Fired notes that a timer was fired so late.
func (r *Recorder) Fired(ctx context.Context, tenant uuid.UUID, late time.Duration) {
	if lags := r.of(tenant); lags != nil {
		lags.Observe(late.Seconds())
		return
	}
	r.dropped.Add(ctx, 1)
}

// of is what is known of a tenant, nil when there is no room for another one.
func (r *Recorder) of(tenant uuid.UUID) *telemetry.Quantiles {
	r.mu.RLock()
	lags, full := r.tenants[tenant], len(r.tenants) >= TenantsMax
	r.mu.RUnlock()
	if lags != nil || full {
		return lags
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if lags = r.tenants[tenant]; lags == nil && len(r.tenants) < TenantsMax {
		lags = telemetry.NewQuantiles()
		r.tenants[tenant] = lags
	}
	return lags
}
