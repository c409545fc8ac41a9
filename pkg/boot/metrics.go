package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
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
	if err := errors.Join(err, d.observePool(meter), d.observeWaits(meter)); err != nil {
		return fmt.Errorf("create process metrics: %w", err)
	}
	return nil
}

// states are what connections, and those who want one, can be.
var states = [...]struct { //nolint:gochecknoglobals // a constant
	name, help string
	value      func(*pgdb.Stat) int
}{
	{"size", "Open connections.", func(s *pgdb.Stat) int { return s.Size }},
	{"idle", "Open connections that nobody uses.", func(s *pgdb.Stat) int { return s.Idle }},
	{"active", "Connections in use.", func(s *pgdb.Stat) int { return s.InUse }},
	{"max", "Connections that may be open.", func(s *pgdb.Stat) int { return s.Max }},
	{"waiting", "Callers waiting for a connection.", func(s *pgdb.Stat) int { return s.Waiting }},
}

func (d *Database) observePool(meter metric.Meter) error {
	var errs []error
	for _, g := range states {
		_, err := meter.Int64ObservableGauge("queen.db_pool_"+g.name, metric.WithDescription(g.help),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				s := d.Stat()
				o.Observe(int64(g.value(&s)))
				return nil
			}))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// observeWaits shows how often, and for how long, the pool was used up.
func (d *Database) observeWaits(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableCounter("queen.db_pool_waits",
		metric.WithDescription("Times that somebody had to wait for a connection, because none was idle."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(d.Stat().Waits)
			return nil
		}))
	_, err2 := meter.Float64ObservableCounter("queen.db_pool_wait", metric.WithUnit("s"),
		metric.WithDescription("Time that all of them have waited."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(d.Stat().WaitTime.Seconds())
			return nil
		}))
	return errors.Join(err1, err2)
}

// ObserveStates shows another connection pool of the process as one gauge, by state.
func (d *Database) ObserveStates(meter metric.Meter, name, help string) error {
	_, err := meter.Int64ObservableGauge(name, metric.WithDescription(help),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			s := d.Stat()
			for _, g := range states {
				o.Observe(int64(g.value(&s)), metric.WithAttributes(attribute.String("state", g.name)))
			}
			return nil
		}))
	if err != nil {
		return fmt.Errorf("create pool metrics: %w", err)
	}
	return nil
}
