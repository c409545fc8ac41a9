package stats

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

// Walk is a measurement of the retained bytes.
type Walk = walk

// Work stands in for the database.
type Work struct {
	Refresh func(ctx context.Context, every time.Duration) (store.StatsTurn, Summary, error)
	Begin   func(ctx context.Context, every time.Duration) (Walk, store.StatsTurn, error)
}

// NewWith is New with other work.
func NewWith(cfg Config, log *slog.Logger, meter metric.Meter, work Work) (*Reconciler, error) {
	r, err := New(cfg, Deps{Log: log, Meter: meter})
	if err != nil {
		return nil, err
	}
	r.refresh, r.begin = work.Refresh, work.Begin
	return r, nil
}
