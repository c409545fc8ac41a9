package scrape

import (
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

// instruments are the families that a look at the database fills, and those that tell
// of this broker.
type instruments struct {
	all []metric.Observable

	totals         [9]metric.Int64ObservableCounter
	acks           metric.Int64ObservableCounter
	rates          [8]metric.Float64ObservableGauge
	ackRate, lag   metric.Float64ObservableGauge
	letters, depth metric.Int64ObservableGauge

	parked, healthy metric.Int64ObservableGauge
}

// totals are the counters of the installation.
var totals = [...]struct { //nolint:gochecknoglobals // a constant
	name, help string
	value      func(*store.WorkerMetrics) int64
}{
	{"push_requests", "Push requests of all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.PushRequests }},
	{"push_messages", "Messages stored by all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.PushMessages }},
	{"pop_requests", "Pop requests of all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.PopRequests }},
	{"pop_messages", "Messages delivered by all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.PopMessages }},
	{"ack_requests", "Requests with acks of all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.AckRequests }},
	{"ack_messages", "Acks settled by all brokers, ever, refused ones included.", func(w *store.WorkerMetrics) int64 { return w.AckSuccess + w.AckFailed }},
	{"transactions", "Transactions of all brokers, ever.", func(w *store.WorkerMetrics) int64 { return w.Transactions }},
	{"db_errors", "Work of all brokers that the database did not do, ever.", func(w *store.WorkerMetrics) int64 { return w.DatabaseErrors }},
	{"dlq", "Messages that all brokers have dead-lettered, ever.", func(w *store.WorkerMetrics) int64 { return w.DeadLetters }},
}

// rates are the gauges of queues. Each tells of the last minute that is known.
var rates = [...]struct { //nolint:gochecknoglobals // a constant
	name, unit, help string
	value            func(*store.QueueRate) float64
}{
	{"push_requests_per_minute", "", "Push requests of a queue in its last minute.", func(r *store.QueueRate) float64 { return float64(r.PushRequests) }},
	{"push_messages_per_minute", "", "Messages stored in a queue in its last minute.", func(r *store.QueueRate) float64 { return float64(r.PushMessages) }},
	{"pop_messages_per_minute", "", "Messages of a queue delivered in its last minute.", func(r *store.QueueRate) float64 { return float64(r.PopMessages) }},
	{"pop_empty_per_minute", "", "Pops of a queue that found nothing in its last minute.", func(r *store.QueueRate) float64 { return float64(r.PopEmpty) }},
	{"transactions_per_minute", "", "Transactions with a queue in its last minute.", func(r *store.QueueRate) float64 { return float64(r.Transactions) }},
	{"conflated_per_minute", "", "Messages replaced by newer ones of their key: none, this version keeps all.", func(*store.QueueRate) float64 { return 0 }},
	{"parked_consumers", "", "Pops that waited for a queue in its last minute, on average.", func(r *store.QueueRate) float64 { return r.Parked }},
	{"metrics_age", "s", "Age of the last minute of a queue, from its beginning.", func(r *store.QueueRate) float64 { return r.AgeSeconds }},
}

func (in *instruments) cluster(meter metric.Meter) error {
	errs := make([]error, len(totals)+1)
	for i, c := range totals {
		in.totals[i], errs[i] = meter.Int64ObservableCounter("queen.cluster."+c.name, metric.WithDescription(c.help))
		in.all = append(in.all, in.totals[i])
	}
	in.acks, errs[len(totals)] = meter.Int64ObservableCounter("queen.cluster.ack", metric.WithDescription("Acks settled by all brokers, ever, by result."))
	in.all = append(in.all, in.acks)
	return errors.Join(errs...)
}

func (in *instruments) queues(meter metric.Meter) error {
	errs := make([]error, len(rates)+4)
	for i, g := range rates {
		in.rates[i], errs[i] = meter.Float64ObservableGauge("queen.queue."+g.name, metric.WithDescription(g.help), metric.WithUnit(g.unit))
		in.all = append(in.all, in.rates[i])
	}
	in.ackRate, errs[len(rates)] = meter.Float64ObservableGauge("queen.queue.ack_per_minute",
		metric.WithDescription("Acks of a queue in its last minute, by result."))
	in.lag, errs[len(rates)+1] = meter.Float64ObservableGauge("queen.queue.pop_lag", metric.WithUnit("ms"),
		metric.WithDescription("Age of the messages of a queue at their delivery, in its last minute."))
	in.letters, errs[len(rates)+2] = meter.Int64ObservableGauge("queen.dlq_depth", metric.WithDescription("Dead letters of all queues."))
	in.depth, errs[len(rates)+3] = meter.Int64ObservableGauge("queen.dlq_depth_by_queue", metric.WithDescription("Dead letters of a queue."))
	in.all = append(in.all, in.ackRate, in.lag, in.letters, in.depth)
	return errors.Join(errs...)
}

func (in *instruments) local(meter metric.Meter) error {
	var errs [2]error
	in.parked, errs[0] = meter.Int64ObservableGauge("queen.parked_long_polls",
		metric.WithDescription("Pops that wait at this broker, by queue."))
	in.healthy, errs[1] = meter.Int64ObservableGauge("queen.file_buffer_db_healthy",
		metric.WithDescription("1 while the database answers this broker."))
	in.all = append(in.all, in.parked, in.healthy)
	return errors.Join(errs[:]...)
}

// observe tells what the database said.
func (in *instruments) observe(s *snapshot, o metric.Observer) {
	scope := scopeKey.String("cluster")
	cluster := labelled(scope)
	for i, c := range totals {
		o.ObserveInt64(in.totals[i], c.value(&s.cluster), cluster)
	}
	o.ObserveInt64(in.acks, s.cluster.AckSuccess, labelled(scope, resultKey.String("success")))
	o.ObserveInt64(in.acks, s.cluster.AckFailed, labelled(scope, resultKey.String("failed")))
	for i := range s.rates {
		r := &s.rates[i]
		for k, g := range rates {
			o.ObserveFloat64(in.rates[k], g.value(&r.QueueRate), r.queue)
		}
		o.ObserveFloat64(in.ackRate, float64(r.AckSuccess), r.success)
		o.ObserveFloat64(in.ackRate, float64(r.AckFailed), r.failed)
		o.ObserveFloat64(in.lag, r.AvgLagMillis, r.mean)
		o.ObserveFloat64(in.lag, r.MaxLagMillis, r.longest)
	}
	o.ObserveInt64(in.letters, s.letters, cluster)
	for i := range s.deadLetters {
		o.ObserveInt64(in.depth, s.deadLetters[i].count, s.deadLetters[i].queue)
	}
}

// observeLocal tells of this broker.
func (in *instruments) observeLocal(parked map[string]int64, healthy bool, o metric.Observer) {
	for name, n := range parked {
		o.ObserveInt64(in.parked, n, labelled(queueKey.String(name)))
	}
	o.ObserveInt64(in.healthy, bit(healthy))
}

func bit(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
