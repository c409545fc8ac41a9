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
	gauges := map[string]struct {
		help  string
		value func(pgdb.Stat) int64
	}{
		"queen.db_pool_size":    {"Open connections.", func(s pgdb.Stat) int64 { return int64(s.Size) }},
		"queen.db_pool_idle":    {"Open connections that nobody uses.", func(s pgdb.Stat) int64 { return int64(s.Idle) }},
		"queen.db_pool_active":  {"Connections in use.", func(s pgdb.Stat) int64 { return int64(s.InUse) }},
		"queen.db_pool_waiting": {"Callers waiting for a connection.", func(s pgdb.Stat) int64 { return int64(s.Waiting) }},
		"queen.uptime_seconds": {"Age of the process.", func(pgdb.Stat) int64 {
			return int64(time.Since(began).Seconds())
		}},
	}
	for name, g := range gauges {
		_, err := meter.Int64ObservableGauge(name, metric.WithDescription(g.help),
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
