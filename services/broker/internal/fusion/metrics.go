package fusion

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/retry"

	"github.com/queenmq/queen/pkg/logging"
)

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	calls                                  metric.Int64Counter
	perSegment, perBundle                  metric.Int64Histogram
	committed, aborted, ambiguous, refused []metric.AddOption
}

func newMetrics(meter metric.Meter) (m *metrics, err error) {
	m = &metrics{
		committed: outcome("committed"), aborted: outcome("aborted"), ambiguous: outcome("ambiguous"), refused: outcome("refused"),
	}
	if m.calls, err = meter.Int64Counter("queen.push.calls",
		metric.WithDescription("Database calls of pushes by outcome.")); err != nil {
		return nil, err
	}
	if m.perSegment, err = meter.Int64Histogram("queen.fusion.items_per_segment",
		metric.WithDescription("Messages of a submitted segment."),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000)); err != nil {
		return nil, err
	}
	m.perBundle, err = meter.Int64Histogram("queen.fusion.segments_per_bundle",
		metric.WithDescription("Segments of a submitted bundle."),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
	return m, err
}

func outcome(value string) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", value)))}
}

// call counts one submitted bundle.
func (m *metrics) call(ctx context.Context, segments []store.PushSegment, err error) {
	label := m.refused
	switch {
	case err == nil:
		label = m.committed
	case retry.Definite(err):
		label = m.aborted
	case store.Ambiguous(err):
		label = m.ambiguous
	}
	m.calls.Add(ctx, 1, label...)
	m.perBundle.Record(ctx, int64(len(segments)))
	for i := range segments {
		m.perSegment.Record(ctx, int64(segments[i].Count))
	}
}

const summaryInterval = 10 * time.Second

// summary gathers the log line that tells how well pushes share transactions.
type summary struct {
	every             rate.Sometimes
	commits, segments atomic.Int64
}

func (s *summary) bundle(segments int) {
	s.commits.Add(1)
	s.segments.Add(int64(segments))
}

func (s *summary) log(ctx context.Context, log *slog.Logger) {
	s.every.Do(func() {
		commits, segments := s.commits.Swap(0), s.segments.Swap(0)
		if commits == 0 {
			return
		}
		log.DebugContext(ctx, "bundle summary", slog.Int64(logging.KeyCommits, commits), slog.Int64(logging.KeySegments, segments),
			slog.Float64(logging.KeySegmentsPerCommit, float64(segments)/float64(commits)))
	})
}
