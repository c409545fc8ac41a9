package boot

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/pgdb"
)

// Observe shows the connection pool and the age of the process.
func (d *Database) Observe(meter metric.Meter) error {
	began := time.Now()
	_, err := meter.Int64ObservableGauge("queen.uptime_seconds", metric.WithDescription("Age of the process."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(time.Since(began).Seconds()))
			return nil
		}))
	if err != nil {
		return fmt.Errorf("create process metrics: %w", err)
	}
	return d.ObservePool(meter, "queen.db_pool")
}

// ObservePool shows the connection pool under names that begin with prefix.
func (d *Database) ObservePool(meter metric.Meter, prefix string) error {
	gauges := map[string]struct {
		help  string
		value func(pgdb.Stat) int64
	}{
		"size":    {"Open connections.", func(s pgdb.Stat) int64 { return int64(s.Size) }},
		"idle":    {"Open connections that nobody uses.", func(s pgdb.Stat) int64 { return int64(s.Idle) }},
		"active":  {"Connections in use.", func(s pgdb.Stat) int64 { return int64(s.InUse) }},
		"waiting": {"Callers waiting for a connection.", func(s pgdb.Stat) int64 { return int64(s.Waiting) }},
	}
	for name, g := range gauges {
		_, err := meter.Int64ObservableGauge(prefix+"_"+name, metric.WithDescription(g.help),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(g.value(d.Stat()))
				return nil
			}))
		if err != nil {
			return fmt.Errorf("create pool metrics: %w", err)
		}
	}
	return nil
}
