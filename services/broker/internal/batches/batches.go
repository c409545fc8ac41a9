// Package batches counts the calls of the database by which messages are stored, claimed
// and acknowledged: how many, for how much, and how long they take. A call is a
// transaction, which ends with its commit.
package batches

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/telemetry"
)

// Op is what a call is for.
type Op int

// The kinds of calls, and what their items are.
const (
	Push Op = iota // messages submitted, repeats included
	Pop            // messages claimed
	Ack            // batches whose cursor was to move
	ops
)

// String is the label of the kind.
func (o Op) String() string { return [ops]string{"push", "pop", "ack"}[o] }

// Recorder counts calls. It is safe for concurrent use; nil counts nothing.
type Recorder struct {
	fired, items metric.Int64Counter
	duration     metric.Float64Histogram
	kinds        [ops]*kind
}

// kind is what is kept of one kind of calls.
type kind struct {
	add    []metric.AddOption
	record []metric.RecordOption
	label  metric.MeasurementOption
	millis *telemetry.Quantiles
	size   recent
}

// New returns a Recorder that has counted nothing.
func New(meter metric.Meter) (*Recorder, error) {
	r := &Recorder{}
	var errs [4]error
	r.fired, errs[0] = meter.Int64Counter("queen.batches_fired", metric.WithDescription("Calls of the database, by what they were for."))
	r.items, errs[1] = meter.Int64Counter("queen.batch_items_fired",
		metric.WithDescription("Messages pushed and popped by those calls, repeats included, and batches acknowledged."))
	r.duration, errs[2] = meter.Float64Histogram("queen.commit.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of those calls, to the end of their commit."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	for o := range ops {
		label := metric.WithAttributeSet(attribute.NewSet(attribute.String("op", o.String())))
		r.kinds[o] = &kind{
			add: []metric.AddOption{label}, record: []metric.RecordOption{label}, label: label, millis: telemetry.NewQuantiles(),
		}
	}
	errs[3] = r.observe(meter)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("create the metrics of batches: %w", err)
	}
	for _, k := range r.kinds { // shown from the start: what appears with its first increment has no rate
		r.fired.Add(context.Background(), 0, k.add...)
		r.items.Add(context.Background(), 0, k.add...)
	}
	return r, nil
}

// observe shows what was recorded lately.
func (r *Recorder) observe(meter metric.Meter) error {
	_, err1 := meter.Float64ObservableGauge("queen.fusion.items_per_batch",
		metric.WithDescription("Items of a call, on average over the last minutes."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for _, k := range r.kinds {
				o.Observe(k.size.mean(time.Now()), k.label)
			}
			return nil
		}))
	_, err2 := meter.Float64ObservableGauge("queen.batch_rtt", metric.WithUnit("ms"),
		metric.WithDescription("Duration of a call: median and 99th percentile of the last minutes."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for op, k := range r.kinds {
				name := attribute.String("op", Op(op).String())
				k.millis.Each(func(quantile string, value float64) {
					o.Observe(value, metric.WithAttributes(name, attribute.String("quantile", quantile)))
				})
			}
			return nil
		}))
	return errors.Join(err1, err2)
}

// Fired counts a call that took so long.
func (r *Recorder) Fired(ctx context.Context, op Op, items int, took time.Duration) {
	if r == nil {
		return
	}
	k := r.kinds[op]
	r.fired.Add(ctx, 1, k.add...)
	r.items.Add(ctx, int64(items), k.add...)
	r.duration.Record(ctx, took.Seconds(), k.record...)
	k.millis.Observe(float64(took) / float64(time.Millisecond))
	k.size.add(time.Now(), items)
}

// EachMillis tells the median and the 99th percentile of the calls of lately, in
// milliseconds, as 0.5 and 0.99.
func (r *Recorder) EachMillis(op Op, tell func(quantile string, value float64)) {
	r.kinds[op].millis.Each(tell)
}

// window is how long a value counts in a mean at least; it counts twice as long at most.
const window = time.Minute

// recent is the mean of what was added lately.
type recent struct {
	mu            sync.Mutex
	began         time.Time // the current window
	now, previous sum
}

type sum struct{ count, items int64 }

func (r *recent) add(at time.Time, items int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(at)
	r.now.count++
	r.now.items += int64(items)
}

// mean is 0 while nothing was added.
func (r *recent) mean(at time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(at)
	return float64(r.now.items+r.previous.items) / float64(max(r.now.count+r.previous.count, 1))
}

// turn begins another window when the current one is over.
func (r *recent) turn(at time.Time) {
	switch age := at.Sub(r.began); {
	case age >= 2*window:
		r.began, r.now, r.previous = at, sum{}, sum{}
	case age >= window:
		r.began, r.now, r.previous = at, sum{}, r.now
	}
}
