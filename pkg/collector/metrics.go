package collector

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments show how the collector itself does.
type instruments struct {
	flushes         metric.Int64Counter
	written, failed []metric.AddOption
}

func newInstruments(meter metric.Meter, c *Counters) (*instruments, error) {
	m := &instruments{written: outcome("written"), failed: outcome("failed")}
	var errs [2]error
	m.flushes, errs[0] = meter.Int64Counter("queen.collector.flushes",
		metric.WithDescription("Attempts to write what this process has counted, by outcome."))
	if errs[0] == nil { // shown from the start
		m.flushes.Add(context.Background(), 0, m.written...)
		m.flushes.Add(context.Background(), 0, m.failed...)
	}
	_, errs[1] = meter.Int64ObservableCounter("queen.collector.unattributed",
		metric.WithDescription("Counts that are missing at their queue, because too many queues were in use at once."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(c.dropped.Load())
			return nil
		}))
	return m, errors.Join(append(errs[:], observe(meter))...)
}

// observe shows the state of the process.
func observe(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.process.resident_memory", metric.WithUnit("By"),
		metric.WithDescription("Memory that the process occupies."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(ResidentBytes())
			return nil
		}))
	var lag loopLag
	_, err2 := meter.Float64ObservableGauge("queen.event_loop_lag_avg", metric.WithUnit("ms"),
		metric.WithDescription("Mean time that goroutines which could run waited for a processor, over some seconds."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(lag.read(time.Now()))
			return nil
		}))
	return errors.Join(err1, err2)
}

// observeTotals shows what the process has done for queues since it began.
func observeTotals(meter metric.Meter, c *Counters) error {
	counters := []struct {
		name, help string
		value      func(*Counts) int64
	}{
		{"push_requests", "Push requests answered by this process.", func(n *Counts) int64 { return n.PushRequests }},
		{"push_messages", "Messages stored by this process.", func(n *Counts) int64 { return n.PushMessages }},
		{"pop_requests", "Pop requests answered by this process.", func(n *Counts) int64 { return n.PopRequests }},
		{"pop_messages", "Messages delivered by this process.", func(n *Counts) int64 { return n.PopMessages }},
		{"ack_requests", "Requests with acks answered by this process.", func(n *Counts) int64 { return n.AckRequests }},
		{"ack_messages", "Acks settled by this process, refused ones included.", func(n *Counts) int64 { return n.AckSuccess + n.AckFailed }},
	}
	all := make([]metric.Observable, len(counters))
	observers := make([]metric.Int64ObservableCounter, len(counters))
	for i, k := range counters {
		made, err := meter.Int64ObservableCounter("queen.process."+k.name, metric.WithDescription(k.help))
		if err != nil {
			return err
		}
		all[i], observers[i] = made, made
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		totals := c.Totals()
		for i, k := range counters {
			o.ObserveInt64(observers[i], k.value(&totals))
		}
		return nil
	}, all...)
	return err
}

// lagWindow is the time over which the lag is a mean.
const lagWindow = 10 * time.Second

// loopLag is the mean wait for a processor over the last window that has ended.
type loopLag struct {
	mu      sync.Mutex
	sampler process
	mean    float64 // milliseconds
}

func (l *loopLag) read(now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.sampler.at) < lagWindow {
		return l.mean
	}
	l.sampler.at, l.mean = now, 0
	if mean, _ := l.sampler.schedule(); mean != nil {
		l.mean = *mean
	}
	return l.mean
}

func outcome(name string) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))}
}

func (m *instruments) flushed(ctx context.Context, err error) {
	if err != nil {
		m.flushes.Add(ctx, 1, m.failed...)
		return
	}
	m.flushes.Add(ctx, 1, m.written...)
}
