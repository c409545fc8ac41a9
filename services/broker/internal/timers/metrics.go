package timers

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// The calls, as metrics name them.
const (
	callApply = iota
	callPeek
	callList
	callCount
	calls
)

const (
	opKey     = attribute.Key("op")
	statusKey = attribute.Key("status")
	reasonKey = attribute.Key("reason")
	callKey   = attribute.Key("call")
)

// procedureReason stands for everything that a procedure refuses: its texts name
// operations, and so are without number. otherReason stands for the rest.
const (
	procedureReason = "procedure"
	otherReason     = "other"
)

// countedReasons are the labels of refusals; a refusal without a reason of its own
// counts under its code.
func countedReasons() []string {
	return []string{
		ReasonBadBody, ReasonBadOp, ReasonTooManyOps, ReasonServerOwned, ReasonQueueRequired, ReasonDelayRequired, ReasonPayloadRequired,
		ReasonPayloadNotBase64, ReasonPayloadTooLarge, ReasonHorizon, procedureReason, reasonPool, reasonTimeout, reasonConnection,
		reasonUnreadable, reasonMissing, quota.CodeTimersAbsent, CodeMisconfigured, CodeError,
		wire.CodeRateLimited, wire.CodeFeatureGated, quota.CodeTimersDisabled, quota.CodeTimersQuota, otherReason,
	}
}

// operation is the label of one operation and what became of it.
type operation struct {
	kind   Kind
	status string
}

// outcomes are the operations that there can be.
func outcomes() []operation {
	return []operation{
		{Schedule, "scheduled"}, {Schedule, "rescheduled"}, {Schedule, "too_late"},
		{Reschedule, "scheduled"}, {Reschedule, "rescheduled"}, {Reschedule, "too_late"},
		{Cancel, "cancelled"}, {Cancel, "absent"}, {Cancel, "too_late"},
	}
}

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	operations, refused, payload metric.Int64Counter
	duration                     metric.Float64Histogram

	outcomes map[operation]metric.MeasurementOption
	reasons  map[string]metric.MeasurementOption
	calls    [calls]metric.MeasurementOption
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{outcomes: make(map[operation]metric.MeasurementOption), reasons: make(map[string]metric.MeasurementOption)}
	var errs [4]error
	m.operations, errs[0] = meter.Int64Counter("queen.timers.operations",
		metric.WithDescription("Operations on timers that were carried out, by kind and by what became of them."))
	m.refused, errs[1] = meter.Int64Counter("queen.timers.refused", metric.WithDescription("Calls of the timer routes that were refused, by reason."))
	m.payload, errs[2] = meter.Int64Counter("queen.timers.payload", metric.WithUnit("By"), metric.WithDescription("Payload bytes of scheduled timers."))
	m.duration, errs[3] = meter.Float64Histogram("queen.timers.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of calls of the database for timers, the wait for a connection included."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.prepare(context.Background())
	return m, nil
}

// prepare makes the attribute sets, and every counter exist from the start: what
// appears with its first increment has no rate.
func (m *metrics) prepare(ctx context.Context) {
	m.payload.Add(ctx, 0)
	for _, o := range outcomes() {
		m.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(opKey.String(o.kind.String()), statusKey.String(o.status)))
		m.operations.Add(ctx, 0, m.outcomes[o])
	}
	for _, r := range countedReasons() {
		m.reasons[r] = metric.WithAttributeSet(attribute.NewSet(reasonKey.String(r)))
		m.refused.Add(ctx, 0, m.reasons[r])
	}
	for c, name := range [calls]string{"apply", "peek", "list", "count"} {
		m.calls[c] = metric.WithAttributeSet(attribute.NewSet(callKey.String(name)))
	}
}

// applied counts operations that were carried out.
func (m *metrics) applied(ctx context.Context, kinds []Kind, statuses []string, payloadBytes int64) {
	for i, status := range statuses {
		if label, ok := m.outcomes[operation{kinds[i], status}]; ok {
			m.operations.Add(ctx, 1, label)
		}
	}
	m.payload.Add(ctx, payloadBytes)
}

// refusal counts a refused call.
func (m *metrics) refusal(ctx context.Context, r *wire.Refusal) {
	label := r.Code
	switch _, known := m.reasons[r.Reason]; {
	case known:
		label = r.Reason
	case strings.HasPrefix(r.Reason, procedurePrefix):
		label = procedureReason
	}
	option, ok := m.reasons[label]
	if !ok {
		option = m.reasons[otherReason]
	}
	m.refused.Add(ctx, 1, option)
}

func (m *metrics) took(ctx context.Context, call int, began time.Time) {
	m.duration.Record(ctx, time.Since(began).Seconds(), m.calls[call])
}
