package hints

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	kindKey      = attribute.Key("kind")
	roleKey      = attribute.Key("role")
	directionKey = attribute.Key("direction")
)

// What becomes of a datagram.
const (
	dirSent = iota
	dirReceived
	dirOverrun  // received while the inbox was full
	dirRejected // not of this pool, of another version, or malformed
	directions
)

// counts are the numbers behind the metrics and the status routes.
type counts struct {
	sent, received, dropped [kinds]atomic.Int64
	datagrams               [directions]atomic.Int64
}

func total(list *[kinds]atomic.Int64) (n int64) {
	for i := range list {
		n += list[i].Load()
	}
	return n
}

type metrics struct {
	flush metric.Int64Histogram
}

func newMetrics(meter metric.Meter, p *Pool) (*metrics, error) {
	m := &metrics{}
	var err error
	m.flush, err = meter.Int64Histogram("queen.mesh.flush.hints", metric.WithUnit("{hint}"),
		metric.WithDescription("Hints of one flush."), metric.WithExplicitBucketBoundaries(1, 4, 16, 64, 256, 1024, 4096))
	if err != nil {
		return nil, err
	}
	members, err := meter.Int64ObservableGauge("queen.mesh.members",
		metric.WithDescription("Other members of the hint pool, by role."))
	if err != nil {
		return nil, err
	}
	waiting, err := meter.Int64ObservableGauge("queen.mesh.waiting",
		metric.WithDescription("Hints that wait for a flush."))
	if err != nil {
		return nil, err
	}
	if _, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		p.observe(func(role Role, n int64) {
			o.ObserveInt64(members, n, metric.WithAttributes(roleKey.String(string(role))))
		})
		o.ObserveInt64(waiting, int64(p.batch.len()))
		return nil
	}, members, waiting); err != nil {
		return nil, err
	}
	return m, registerCounts(meter, &p.counts)
}

func registerCounts(meter metric.Meter, c *counts) error {
	byKind := []struct {
		name, text string
		list       *[kinds]atomic.Int64
	}{
		{"queen.mesh.hints.sent", "Hints sent to the pool.", &c.sent},
		{"queen.mesh.hints.received", "Hints received from the pool.", &c.received},
		{"queen.mesh.hints.dropped", "Hints that were not sent: the queue was full, or they fit no datagram.", &c.dropped},
	}
	for _, k := range byKind {
		_, err := meter.Int64ObservableCounter(k.name, metric.WithDescription(k.text),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				for kind := Pushed; kind < kinds; kind++ {
					o.Observe(k.list[kind].Load(), metric.WithAttributes(kindKey.String(kind.String())))
				}
				return nil
			}))
		if err != nil {
			return err
		}
	}
	names := [directions]string{"sent", "received", "overrun", "rejected"}
	_, err := meter.Int64ObservableCounter("queen.mesh.datagrams", metric.WithDescription("Datagrams of the hint pool."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for d := range directions {
				o.Observe(c.datagrams[d].Load(), metric.WithAttributes(directionKey.String(names[d])))
			}
			return nil
		}))
	return err
}
