package kv

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

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
	operations metric.Int64Counter
	duration   metric.Float64Histogram
	labels     [operations][outcomes][]metric.AddOption
	outcomes   [outcomes][]metric.RecordOption
}

func newMetrics(meter metric.Meter, s *shed) (*metrics, error) {
	m := &metrics{}
	var errs [3]error
	m.operations, errs[0] = meter.Int64Counter("queen.kv.ops", metric.WithDescription(
		"Operations on keys that reached the database outside of transactions, by kind and by what became of their call."))
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
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for o, outcome := range outcomeNames() {
		m.outcomes[o] = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", outcome)))}
		for k, kind := range operationNames() {
			set := attribute.NewSet(attribute.String("op", kind), attribute.String("outcome", outcome))
			m.labels[k][o] = []metric.AddOption{metric.WithAttributeSet(set)}
			m.operations.Add(context.Background(), 0, m.labels[k][o]...) // shown from the start
		}
	}
	return m, nil
}

func (m *metrics) done(ks kinds, outcome int, took time.Duration) {
	ctx := context.Background()
	for k, n := range ks {
		if n > 0 {
			m.operations.Add(ctx, int64(n), m.labels[k][outcome]...)
		}
	}
	m.duration.Record(ctx, took.Seconds(), m.outcomes[outcome]...)
}
