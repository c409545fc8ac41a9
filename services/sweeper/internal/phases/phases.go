// Package phases counts what the parts of a sweeper's cycle do: the fire of timers, the
// prune of keys and the rollup of usage.
package phases

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Phase is a part of the cycle.
type Phase int

// The parts, and what their rows are.
const (
	Fire   Phase = iota // timers delivered or dead-lettered
	Prune               // keys deleted
	Rollup              // tenants measured
	phases
)

// String is the label of the part.
func (p Phase) String() string { return [phases]string{"fire", "prune", "rollup"}[p] }

// Recorder counts by phase. It is safe for concurrent use; nil counts nothing.
type Recorder struct {
	rows, skipped, locked metric.Int64Counter
	labels                [phases]metric.MeasurementOption
	took                  [phases]atomic.Int64 // nanoseconds, the last time
	slept                 atomic.Int64         // nanoseconds, the last time
}

// New returns a Recorder that has counted nothing.
func New(meter metric.Meter) (*Recorder, error) {
	r := &Recorder{}
	var errs [5]error
	r.rows, errs[0] = meter.Int64Counter("queen.sweeper.rows",
		metric.WithDescription("Rows by phase: timers fired or dead-lettered, keys pruned, tenants measured."))
	r.skipped, errs[1] = meter.Int64Counter("queen.sweeper.phase_skipped",
		metric.WithDescription("Times that a phase had its turn and was left out, by phase: switched off, or shed under pressure."))
	r.locked, errs[2] = meter.Int64Counter("queen.sweeper.skip_locked",
		metric.WithDescription("Times that a phase found work and got none of it, by phase: others had it locked."))
	_, errs[3] = meter.Float64ObservableGauge("queen.sweeper.cycle", metric.WithUnit("ms"),
		metric.WithDescription("Duration of a phase when it was last made, by phase."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for p := range phases {
				o.Observe(millis(&r.took[p]), r.labels[p])
			}
			return nil
		}))
	_, errs[4] = meter.Float64ObservableGauge("queen.sweeper.sleep", metric.WithUnit("ms"),
		metric.WithDescription("Duration of the last pause between two cycles."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(millis(&r.slept))
			return nil
		}))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("create the metrics of phases: %w", err)
	}
	for p := range phases {
		r.labels[p] = metric.WithAttributeSet(attribute.NewSet(attribute.String("phase", p.String())))
		for _, c := range []metric.Int64Counter{r.rows, r.skipped, r.locked} { // shown from the start
			c.Add(context.Background(), 0, r.labels[p])
		}
	}
	return r, nil
}

func millis(ns *atomic.Int64) float64 { return float64(ns.Load()) / float64(time.Millisecond) }

// Took notes that a phase was made, and how long it took.
func (r *Recorder) Took(p Phase, elapsed time.Duration) {
	if r != nil {
		r.took[p].Store(int64(elapsed))
	}
}

// Slept notes the pause after a cycle.
func (r *Recorder) Slept(pause time.Duration) {
	if r != nil {
		r.slept.Store(int64(pause))
	}
}

// Rows counts what a phase has done.
func (r *Recorder) Rows(ctx context.Context, p Phase, n int) {
	if r != nil {
		r.rows.Add(ctx, int64(n), r.labels[p])
	}
}

// Skipped counts a turn of a phase that was left out.
func (r *Recorder) Skipped(ctx context.Context, p Phase) {
	if r != nil {
		r.skipped.Add(ctx, 1, r.labels[p])
	}
}

// Locked counts a turn of a phase in which others had all that there was.
func (r *Recorder) Locked(ctx context.Context, p Phase) {
	if r != nil {
		r.locked.Add(ctx, 1, r.labels[p])
	}
}
