package pop

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// outcome is how a request, or one claim of it, ended.
type outcome int

const (
	delivered outcome = iota
	empty
	refused // overloaded
	failed
	gone // the client left
	outcomes
)

func (o outcome) String() string {
	return [outcomes]string{"delivered", "empty", "refused", "failed", "gone"}[o]
}

// boarded is how a pop fared that rode in the transaction of an ack.
type boarded int

const (
	byHand  boarded = iota // its messages were in memory
	byClaim                // they were claimed
	inVain
	boardings
)

func (b boarded) String() string { return [boardings]string{"handed_over", "claimed", "in_vain"}[b] }

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	requests, claims, messages metric.Int64Counter
	rechecks                   metric.Int64Counter
	fills, fillMicros          metric.Int64Counter // waits for batches to fill
	targeted, wildcard         metric.Int64Counter
	rides                      metric.Int64Counter
	boarded                    [boardings][]metric.AddOption
	checked                    [outcomes][]metric.AddOption
	labels                     [routes][outcomes][]metric.AddOption
	route                      [routes][]metric.AddOption
}

func newMetrics(meter metric.Meter, parked *atomic.Int64) (*metrics, error) {
	m := &metrics{}
	for r := range routes {
		route := attribute.String("route", r.String())
		m.route[r] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(route))}
		for o := range outcomes {
			set := attribute.NewSet(route, attribute.String("outcome", o.String()))
			m.labels[r][o] = []metric.AddOption{metric.WithAttributeSet(set)}
		}
	}
	for b := range boardings {
		m.boarded[b] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", b.String())))}
	}
	for o, name := range map[outcome]string{empty: "answered", failed: failed.String()} {
		set := attribute.NewSet(attribute.String("outcome", name))
		m.checked[o] = []metric.AddOption{metric.WithAttributeSet(set)}
	}
	var errs [6]error
	m.requests, errs[0] = meter.Int64Counter("queen.pop.requests", metric.WithDescription("Pop requests by how they ended."))
	m.claims, errs[1] = meter.Int64Counter("queen.pop.claims", metric.WithDescription("Claims made in the database by how they ended."))
	m.messages, errs[2] = meter.Int64Counter("queen.pop.messages", metric.WithDescription("Messages delivered."))
	_, errs[3] = meter.Int64ObservableGauge("queen.pop.parked",
		metric.WithDescription("Pops waiting for messages."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(parked.Load())
			return nil
		}))
	m.rechecks, errs[4] = meter.Int64Counter("queen.pop.rechecks",
		metric.WithDescription("Statements on behalf of all parked pops, by whether they failed."))
	m.rides, errs[5] = meter.Int64Counter("queen.pop.rides",
		metric.WithDescription("Waiting pops that were to lease a lane in the transaction of its ack, by how they fared."))
	return m, errors.Join(append(errs[:], m.ways(meter))...)
}

// ways are the counters of how pops came to their messages, shown from the start: what
// appears with its first increment has no rate.
func (m *metrics) ways(meter metric.Meter) error {
	var errs []error
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, help string
	}{
		{&m.fills, "queen.pop.fill_wait", "Pops held back for their batch to fill (minPopWaitTime)."},
		{&m.fillMicros, "queen.pop.fill_wait_microseconds", "Microseconds that they were held back."},
		{&m.targeted, "queen.pop.targeted", "Pops of one partition, named by the client."},
		{&m.wildcard, "queen.pop.wildcard", "Pops of a queue, a namespace or a task."},
	} {
		var err error
		if *c.to, err = meter.Int64Counter(c.name, metric.WithDescription(c.help)); err == nil {
			(*c.to).Add(context.Background(), 0)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// held counts a pop that was held back for so long.
func (m *metrics) held(ctx context.Context, took time.Duration) {
	m.fills.Add(ctx, 1)
	m.fillMicros.Add(ctx, took.Microseconds())
}

func (m *metrics) answered(ctx context.Context, r Route, messages int, err error) outcome {
	o := empty
	switch {
	case err == nil && messages > 0:
		o = delivered
		m.messages.Add(ctx, int64(messages), m.route[r]...)
	case errors.Is(err, ErrOverloaded):
		o = refused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		o = gone
	case err != nil:
		o = failed
	}
	m.requests.Add(ctx, 1, m.labels[r][o]...)
	if r == Specific {
		m.targeted.Add(ctx, 1)
	} else {
		m.wildcard.Add(ctx, 1)
	}
	return o
}

func (m *metrics) claimed(ctx context.Context, r Route, partitions int, err error) {
	o := empty
	switch {
	case err != nil:
		o = failed
	case partitions > 0:
		o = delivered
	}
	m.claims.Add(ctx, 1, m.labels[r][o]...)
}

// rode counts a ride.
func (m *metrics) rode(ctx context.Context, byHandover, served bool) {
	b := inVain
	switch {
	case served && byHandover:
		b = byHand
	case served:
		b = byClaim
	}
	m.rides.Add(ctx, 1, m.boarded[b]...)
}

func (m *metrics) rechecked(ctx context.Context, err error) {
	o := empty
	if err != nil {
		o = failed
	}
	m.rechecks.Add(ctx, 1, m.checked[o]...)
}
