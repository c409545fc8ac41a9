package retention

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
)

// journal writes the log lines of the cycles.
type journal struct {
	log    *slog.Logger
	errors logging.Quiet
	// evicted is what the eviction's own turns did since the last cycle. It is
	// told with the next one: turns may come every second.
	evicted Phase
	turned  map[uuid.UUID]struct{} // the queues that they worked on
}

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, turned: map[uuid.UUID]struct{}{}, errors: logging.Quiet{Every: ErrorQuiet}}
}

// cycle tells of one cycle: at info when something was deleted, at debug else.
func (j *journal) cycle(ctx context.Context, r Report, err error) {
	if errors.Is(err, ErrNotLeader) {
		j.log.DebugContext(ctx, "cycle skipped, another replica leads")
		return
	}
	j.failed(ctx, err)
	evicted := r.Phase(PhaseEviction)
	evicted.add(j.evicted)
	level := slog.LevelDebug
	if r.Deleted() || evicted.deleted() {
		level = slog.LevelInfo
	} else if err != nil {
		return // its line is there, or was left out
	}
	j.note(r)
	queues := len(j.turned)
	j.evicted, j.turned = Phase{}, map[uuid.UUID]struct{}{}
	retention, txns := r.Phase(PhaseRetention), r.Phase(PhaseTxns)
	var timedOut int64
	for _, p := range r.Phases {
		timedOut += p.TimedOut
	}
	j.log.LogAttrs(ctx, level, "swept",
		slog.Int(logging.KeyQueues, queues),
		slog.Int64(logging.KeySegmentsDeleted, retention.Segments),
		slog.Int64(logging.KeyTxnsPurged, txns.Rows),
		slog.Int64(logging.KeyMaxWaitEvicted, evicted.Segments),
		slog.Int64(logging.KeyPartitionsDeleted, r.Phase(PhaseCleanup).Rows),
		slog.Int64(logging.KeyMetricsPurged, r.Phase(PhaseMetrics).Rows),
		slog.Int64(logging.KeyDue, retention.Lanes+txns.Lanes+evicted.Lanes),
		slog.Int64(logging.KeyBackedOff, retention.Held),
		slog.Int64(logging.KeyTimedOut, timedOut),
		slog.Int64(logging.KeyElapsedMs, r.Elapsed.Milliseconds()))
	if n := r.Phase(PhaseWalk).Rows; n > 0 {
		j.log.WarnContext(ctx, "watermarks of partitions were wrong and have been repaired", slog.Int64(logging.KeyCount, n))
	}
}

// turn tells of nothing but errors, and keeps what was evicted for the next cycle.
func (j *journal) turn(ctx context.Context, r Report, err error) {
	j.evicted.add(r.Phase(PhaseEviction))
	j.note(r)
	if !errors.Is(err, ErrNotLeader) {
		j.failed(ctx, err)
	}
}

// note remembers which queues were worked on.
func (j *journal) note(r Report) {
	for _, q := range r.Queues {
		j.turned[q.ID] = struct{}{}
	}
}

func (j *journal) failed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil { // stopping is no failure
		return
	}
	if left, ok := j.errors.Speak(); ok {
		j.log.ErrorContext(ctx, "retention cycle failed and will be tried again", slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
}
