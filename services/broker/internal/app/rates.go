package app

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/batches"
)

// newRates assembles what the log tells at intervals.
func (a *App) newRates() *rates.Reporter {
	r := rates.New(a.cfg.Rates.Config, a.log, a.engine.traffic, a.db.Rates, a.engine.gate.Rates)
	r.Detail(func(ctx context.Context, _ time.Duration) { a.tellSizes(ctx) })
	r.Detail(func(ctx context.Context, elapsed time.Duration) { a.tellQueues(ctx, elapsed) })
	return r
}

// percentiles are the names of quantiles in the log.
var percentiles = map[string]string{"0.5": "p50", "0.99": "p99"}

// traffic tells what moved, and how long the calls took that moved it.
func (e *engine) traffic(s *rates.Sample) {
	n := e.counters.Totals()
	s.Total(logging.KeyPushRate, n.PushMessages)
	s.Total(logging.KeyPopRate, n.PopMessages)
	s.Total(logging.KeyAckRate, n.AckSuccess)
	s.Total(logging.KeyAckFailedRate, n.AckFailed)
	s.Total(logging.KeyPushRequestsRate, n.PushRequests)
	s.Total(logging.KeyPopRequestsRate, n.PopRequests)
	s.Total(logging.KeyPopEmptyRate, n.PopEmpty)
	s.Total(logging.KeyAckRequestsRate, n.AckRequests)
	s.Total(logging.KeyTransactionsRate, n.Transactions)
	for _, op := range []batches.Op{batches.Push, batches.Pop, batches.Ack} {
		e.batches.EachMillis(op, func(quantile string, ms float64) {
			key := op.String() + "_ms_" + percentiles[quantile]
			s.State(slog.Float64(key, math.Round(ms*100)/100)) //nolint:sloglint // push, pop and ack, as all else is named
		})
	}
	s.State(slog.Int(logging.KeyParked, e.pops.Waiting()))
}

// tellSizes logs how much memory the process and its caches take.
func (a *App) tellSizes(ctx context.Context) {
	e := a.engine
	a.log.InfoContext(ctx, "sizes", slog.Float64(logging.KeyRSSGB, math.Round(float64(collector.ResidentBytes())/(1<<30)*1000)/1000),
		slog.Int64(logging.KeyDedupBytes, e.marks.Bytes()), slog.Int64(logging.KeyRegistryBytes, e.registry.Bytes()), slog.Int64(logging.KeySegmentCacheBytes, e.pops.CachedBytes()))
}

// tellQueues logs what moved in the busiest queues.
func (a *App) tellQueues(ctx context.Context, elapsed time.Duration) {
	for _, t := range a.engine.counters.Busiest(a.cfg.Rates.TopQueues) {
		attrs := []slog.Attr{
			slog.String(logging.KeyQueue, t.Key.Name()),
			slog.Float64(logging.KeyPushRate, rates.PerSecond(t.Pushed, elapsed)), slog.Float64(logging.KeyPopRate, rates.PerSecond(t.Popped, elapsed)),
			slog.Float64(logging.KeyAckRate, rates.PerSecond(t.Acked, elapsed)), slog.Int64(logging.KeyParked, t.Parked),
		}
		if tenant := t.Key.Tenant(); tenant != store.DefaultTenant() {
			attrs = append(attrs, slog.String(logging.KeyTenant, tenant.String()))
		}
		a.log.LogAttrs(ctx, slog.LevelInfo, "queue rates", attrs...)
	}
}
