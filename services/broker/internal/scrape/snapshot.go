package scrape

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

const (
	queueKey  = attribute.Key("queue")
	resultKey = attribute.Key("result")
	statKey   = attribute.Key("stat")
	scopeKey  = attribute.Key("scope")
)

// snapshot is an answer of the database, with its labels ready: they are what costs
// time when there are many queues.
type snapshot struct {
	cluster     store.WorkerMetrics
	rates       []rate
	deadLetters []letters
	letters     int64
}

type rate struct {
	store.QueueRate
	queue, success, failed, mean, longest metric.MeasurementOption
}

type letters struct {
	count int64
	queue metric.MeasurementOption
}

func newSnapshot(m *store.PrometheusMetrics) *snapshot {
	s := &snapshot{cluster: m.Cluster, rates: make([]rate, len(m.Rates)), deadLetters: make([]letters, len(m.DeadLetters))}
	for i := range m.Rates {
		queue := queueKey.String(m.Rates[i].Queue)
		s.rates[i] = rate{
			QueueRate: m.Rates[i], queue: labelled(queue),
			success: labelled(queue, resultKey.String("success")), failed: labelled(queue, resultKey.String("failed")),
			mean: labelled(queue, statKey.String("avg")), longest: labelled(queue, statKey.String("max")),
		}
	}
	for i := range m.DeadLetters {
		s.deadLetters[i] = letters{m.DeadLetters[i].Count, labelled(queueKey.String(m.DeadLetters[i].Queue))}
		s.letters += m.DeadLetters[i].Count
	}
	return s
}

func labelled(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}
