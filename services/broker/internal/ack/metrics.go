package ack

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/wire"
)

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	items metric.Int64Counter
	// by status, then outcome
	labels [statuses][outcomes][]metric.AddOption
}

const (
	completed = iota
	failed
	retried
	deadLettered
	statuses
)

const (
	accepted = iota
	noop
	refused
	outcomes
)

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{}
	for s, status := range [statuses]string{wire.AckCompleted, wire.AckFailed, wire.AckRetry, wire.AckDLQ} {
		for o, outcome := range [outcomes]string{"accepted", "noop", "refused"} {
			set := attribute.NewSet(attribute.String("status", status), attribute.String("outcome", outcome))
			m.labels[s][o] = []metric.AddOption{metric.WithAttributeSet(set)}
		}
	}
	var err error
	m.items, err = meter.Int64Counter("queen.ack.items",
		metric.WithDescription("Acknowledged items by the status sent and by what became of it."))
	return m, errors.Join(err)
}

func (m *metrics) acknowledged(ctx context.Context, items []wire.AckItem, results []wire.AckResult) {
	var counts [statuses][outcomes]int64
	for i := range items {
		status := completed
		switch items[i].Status {
		case wire.AckFailed:
			status = failed
		case wire.AckRetry:
			status = retried
		case wire.AckDLQ:
			status = deadLettered
		}
		outcome := refused
		switch {
		case results[i].Noop:
			outcome = noop
		case results[i].Success:
			outcome = accepted
		}
		counts[status][outcome]++
	}
	for s := range counts {
		for o, n := range counts[s] {
			if n > 0 {
				m.items.Add(ctx, n, m.labels[s][o]...)
			}
		}
	}
}
