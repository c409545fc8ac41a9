package ackfusion

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/logging"
)

// summaryEvery is how often the log tells how well acks share transactions.
const summaryEvery = 10 * time.Second

type metrics struct {
	flights, batches metric.Int64Counter

	// Since the last summary.
	commits, rows atomic.Int64
	logger        *slog.Logger
	summary       rate.Sometimes
}

func newMetrics(meter metric.Meter, logger *slog.Logger) (*metrics, error) {
	m := &metrics{
		logger:  logger.With(slog.String(logging.KeyComponent, "ack-fusion")),
		summary: rate.Sometimes{Interval: summaryEvery},
	}
	var err1, err2 error
	m.flights, err1 = meter.Int64Counter("queen.ack.fusion.commits", metric.WithDescription("Transactions of full-batch acks."))
	m.batches, err2 = meter.Int64Counter("queen.ack.fusion.rows", metric.WithDescription("Cursors moved, or refused, by those transactions."))
	m.summary.Do(func() {}) // the first one comes after an interval
	return m, errors.Join(err1, err2)
}

func (m *metrics) committed(ctx context.Context, rows int) {
	m.flights.Add(ctx, 1)
	m.batches.Add(ctx, int64(rows))
	m.commits.Add(1)
	m.rows.Add(int64(rows))
	m.summary.Do(func() {
		commits, rows := m.commits.Swap(0), m.rows.Swap(0)
		m.logger.InfoContext(ctx, "coalesce summary", slog.Int64(logging.KeyCommits, commits), slog.Int64(logging.KeyRows, rows),
			slog.Float64(logging.KeyRowsPerCommit, float64(rows)/float64(max(commits, 1))))
	})
}
