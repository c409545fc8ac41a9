package scrape

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// unbuilt are the families of what this version does not have: a disk spool, and queues in
// memory. Dashboards and alerts made for them find zeros.
func unbuilt(meter metric.Meter) error {
	var errs []error
	for _, g := range []struct{ name, unit, help string }{
		{"queen.file_buffer_pending", "", "Messages in the disk spool: none, this version has no spool."},
		{"queen.file_buffer_failed", "", "Messages that the disk spool gave up: none, this version has no spool."},
		{"queen.ephemeral.bytes", "By", "Bytes of queues in memory: none, this version has no such queues."},
		{"queen.ephemeral.queues", "", "Queues in memory: none, this version has no such queues."},
	} {
		_, err := meter.Int64ObservableGauge(g.name, metric.WithUnit(g.unit), metric.WithDescription(g.help), metric.WithInt64Callback(zero("")))
		errs = append(errs, err)
	}
	for _, c := range []struct {
		name, help string
		key        attribute.Key
		values     []string
	}{
		{"queen.ephemeral.messages", "Messages of queues in memory, by verb.", "verb", []string{"push", "pop", "ack"}},
		{"queen.ephemeral.dropped", "Messages dropped by queues in memory, by cause.", "cause", []string{"bounds", "ttl", "retry"}},
		{"queen.ephemeral.forwarded", "Requests handed to the broker that has a queue in memory.", "", nil},
		{"queen.ephemeral.wipes", "Times that queues in memory were lost.", "", nil},
	} {
		_, err := meter.Int64ObservableCounter(c.name, metric.WithDescription(c.help), metric.WithInt64Callback(zero(c.key, c.values...)))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// zero observes nothing of anything.
func zero(key attribute.Key, values ...string) metric.Int64Callback {
	return func(_ context.Context, o metric.Int64Observer) error {
		if key == "" {
			o.Observe(0)
		}
		for _, v := range values {
			o.Observe(0, metric.WithAttributes(key.String(v)))
		}
		return nil
	}
}
