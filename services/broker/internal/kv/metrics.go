package kv

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/wire"
)

// The kinds of operations.
const (
	get = iota
	getMany
	getPrefix
	put
	putIfAbsent
	remove
	incr
	unknown
	operations
)

func operationNames() [operations]string {
	return [operations]string{"get", "getMany", "getPrefix", "put", "putIfAbsent", "delete", "incr", "unknown"}
}

// kinds are how many operations of each kind a call has.
type kinds [operations]int

// What becomes of a call, and of each of its operations.
const (
	applied = iota // carried out, conditional writes that were not applied included
	lost           // a required write was not applied
	refused        // for what it asked
	broken         // by the database
	outcomes
)

func outcomeNames() [outcomes]string {
	return [outcomes]string{"ok", "precondition", "refused", "failed"}
}

func outcomeOf(a Answer, err error) int {
	var r *wire.Refusal
	switch {
	case a.Lost != nil:
		return lost
	case err == nil:
		return applied
	case errors.As(err, &r) && r.Status < 500:
		return refused
	}
	return broken
}

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	operations, bytes metric.Int64Counter
	duration          metric.Float64Histogram
	millis            *telemetry.Quantiles
	labels            [operations][outcomes][]metric.AddOption
	carried           []metric.AddOption
	read, written     []metric.AddOption
	outcomes          [outcomes][]metric.RecordOption
}

func newMetrics(meter metric.Meter, s *shed, coalesced func() int64) (*metrics, error) {
	m := &metrics{millis: telemetry.NewQuantiles()}
	var errs [3]error
	m.operations, errs[0] = meter.Int64Counter("queen.kv.ops", metric.WithDescription(
		"Operations on keys that reached the database, by path (of their own, or in a transaction), kind and what became of their call."))
	m.duration, errs[1] = meter.Float64Histogram("queen.kv.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the calls of the database, with the wait for a connection."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	_, errs[2] = meter.Int64ObservableGauge("queen.kv.writes_paused",
		metric.WithDescription("1 while writes are turned away because calls find no connection."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			paused := int64(0)
			if s.on() {
				paused = 1
			}
			o.Observe(paused)
			return nil
		}))
	if err := errors.Join(append(errs[:], m.surface(meter, coalesced))...); err != nil {
		return nil, err
	}
	m.carried = add(m.operations, attribute.String("path", "transaction"), attribute.String("op", "any"), attribute.String("outcome", "ok"))
	m.read, m.written = add(m.bytes, attribute.String("direction", "out")), add(m.bytes, attribute.String("direction", "in"))
	for o, outcome := range outcomeNames() {
		m.outcomes[o] = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", outcome)))}
		for k, kind := range operationNames() {
			m.labels[k][o] = add(m.operations, attribute.String("path", "standalone"), attribute.String("op", kind), attribute.String("outcome", outcome))
		}
	}
	return m, nil
}

// add is the label of a series, which is shown from the start.
func add(c metric.Int64Counter, attrs ...attribute.KeyValue) []metric.AddOption {
	label := []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	c.Add(context.Background(), 0, label...)
	return label
}

// surface are the families that dashboards know beside those.
func (m *metrics) surface(meter metric.Meter, coalesced func() int64) error {
	var errs [3]error
	m.bytes, errs[0] = meter.Int64Counter("queen.kv.bytes",
		metric.WithDescription("Bytes of operations on keys outside of transactions (in), and of what was answered (out)."))
	_, errs[1] = meter.Float64ObservableGauge("queen.kv.op_duration", metric.WithUnit("ms"),
		metric.WithDescription("Duration of the calls of the database: median and 99th percentile of the last minutes."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			m.millis.Each(func(quantile string, value float64) {
				o.Observe(value, metric.WithAttributes(attribute.String("quantile", quantile)))
			})
			return nil
		}))
	_, errs[2] = meter.Int64ObservableCounter("queen.kv.singleflight_coalesced",
		metric.WithDescription("Operations on single keys that went along in the call of another."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(coalesced())
			return nil
		}))
	return errors.Join(errs[:]...)
}

// moved counts the bytes of operations, and of what was answered.
func (m *metrics) moved(in, out int) {
	m.bytes.Add(context.Background(), int64(in), m.written...)
	m.bytes.Add(context.Background(), int64(out), m.read...)
}

func (m *metrics) done(ks kinds, outcome int, took time.Duration) {
	ctx := context.Background()
	for k, n := range ks {
		if n > 0 {
			m.operations.Add(ctx, int64(n), m.labels[k][outcome]...)
		}
	}
	m.duration.Record(ctx, took.Seconds(), m.outcomes[outcome]...)
	m.millis.Observe(float64(took) / float64(time.Millisecond))
}
