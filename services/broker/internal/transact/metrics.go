package transact

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/wire"
)

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	bundles, riders metric.Int64Counter
	labels          map[string][]metric.AddOption
	kinds           map[string]metric.AddOption // of riders
}

// Outcomes of a bundle beside the reasons of the wire.
const (
	outcomeCommitted  = "committed"
	outcomeOverloaded = "overloaded"
	outcomeUnknown    = "unknown"
	outcomeFailed     = "failed"
	outcomeHeldBack   = "held_back" // by switches, quotas or rates of keys and timers
)

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{labels: make(map[string][]metric.AddOption), kinds: make(map[string]metric.AddOption)}
	for _, o := range []string{
		outcomeCommitted, outcomeOverloaded, outcomeUnknown, outcomeFailed, outcomeHeldBack,
		wire.ReasonBadRequest, wire.ReasonDuplicate, wire.ReasonAckRejected, wire.ReasonMisaligned, wire.ReasonDBError,
		wire.ReasonKVPrecondition, wire.ReasonTimerHorizon, wire.ReasonTooLarge,
	} {
		set := attribute.NewSet(attribute.String("outcome", o))
		m.labels[o] = []metric.AddOption{metric.WithAttributeSet(set)}
	}
	for _, kind := range []string{wire.RiderKV, wire.RiderTimer} {
		m.kinds[kind] = metric.WithAttributeSet(attribute.NewSet(attribute.String("kind", kind)))
	}
	var err error
	m.riders, err = meter.Int64Counter("queen.transaction.riders",
		metric.WithDescription("Operations on keys and timers that were committed by transactions."))
	if err != nil {
		return nil, err
	}
	m.bundles, err = meter.Int64Counter("queen.transaction.bundles",
		metric.WithDescription("Transactions by outcome; a refused one is counted under its reason."))
	return m, err
}

func (m *metrics) answered(ctx context.Context, resp wire.TxResponse, err error) {
	outcome := resp.Reason
	var malformed *wire.Error
	var heldBack *wire.Refusal
	switch {
	case errors.As(err, &malformed):
		outcome = wire.ReasonBadRequest
	case errors.As(err, &heldBack):
		outcome = outcomeHeldBack
	case errors.Is(err, ErrOverloaded):
		outcome = outcomeOverloaded
	case errors.Is(err, ErrUnknown):
		outcome = outcomeUnknown
	case err != nil:
		outcome = outcomeFailed
	case resp.Success:
		outcome = outcomeCommitted
	}
	m.bundles.Add(ctx, 1, m.labels[outcome]...)
}

// carried counts the riders of a committed bundle.
func (m *metrics) carried(ctx context.Context, r *riders) {
	if r == nil {
		return
	}
	m.riders.Add(ctx, int64(r.keys.Ops), m.kinds[wire.RiderKV])
	m.riders.Add(ctx, int64(r.timers.Count), m.kinds[wire.RiderTimer])
}
