package ackfusion

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

// State is what became of a row.
type State int

// The states.
const (
	Committed State = iota // the batch is done and its lease has ended
	Rejected               // the database refused: nothing was changed
	Unknown                // the answer was lost
	Failed                 // nothing was changed, for a reason that lies not in the row
)

// Verdict is the outcome of one row. Err is nil for Committed and Rejected, and
// ErrOverloaded for a row that nobody had time for.
type Verdict struct {
	State State
	Err   error
	// Handed says that a waiting pop has leased the lane anew.
	Handed bool
}

// ErrOverloaded refuses what changed nothing.
var ErrOverloaded = admission.ErrOverloaded

// Store is the part of the store that fusion needs.
type Store interface {
	AckWhole(ctx context.Context, rows []store.AckRow, wait bool) ([]store.AckOutcome, error)
	AckAndPop(ctx context.Context, rows []store.AckRow, wait bool, next store.Next) ([]store.AckOutcome, store.NextServed, error)
}

// Riders knows pops that wait for the lanes of acks.
type Riders interface {
	// Board returns the pops that may ride with these rows, nil for none.
	Board(rows []store.AckRow) Rides
}

// Rides are pops that claim in the transaction that ends the leases they wait for.
type Rides interface {
	// Next are their claims.
	Next() store.Next
	// Requests adds theirs to those that share the transaction.
	Requests(set *spans.Set)
	// Land tells them what they got. It is called once, and returns the rows, by
	// number, whose lanes are leased anew.
	Land(served store.NextServed, err error) (handed []int)
}

// Config holds the settings of a Fuser. Zero values take the defaults.
type Config struct {
	// Shards divides the lanes (default 1).
	Shards int
	// Hold is the tick in which flights are measured (default 3 ms). It delays
	// nothing.
	Hold time.Duration
	// MaxRows is the most rows of one transaction (default 128).
	MaxRows int
	// Deadline is how long a flight may start another attempt (default 10 s).
	Deadline time.Duration
}

// Defaults of Config.
const (
	ShardsDefault   = 1
	HoldDefault     = 3 * time.Millisecond
	MaxRowsDefault  = 128
	DeadlineDefault = 10 * time.Second

	// stuckTicks is after how many ticks a flight counts as stuck: about 0.1 s,
	// several times the slowest ordinary commit.
	stuckTicks = 32
)

// Deps are what a Fuser works with.
type Deps struct {
	Store     Store
	Admission *admission.Gate
	Batches   *batches.Recorder
	// Riders has waiting pops claim along; nil: they claim afterwards.
	Riders Riders
	Meter  metric.Meter
	Logger *slog.Logger
}

// Fuser commits full-batch acks. It is safe for concurrent use.
type Fuser struct {
	Deps
	cfg     Config
	metrics *metrics
	shards  []*shard
}

// New builds a Fuser. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Fuser, error) {
	f := &Fuser{Deps: deps, cfg: Config{
		Shards: cmp.Or(cfg.Shards, ShardsDefault), Hold: cmp.Or(cfg.Hold, HoldDefault),
		MaxRows: cmp.Or(cfg.MaxRows, MaxRowsDefault), Deadline: cmp.Or(cfg.Deadline, DeadlineDefault),
	}}
	var err error
	if f.metrics, err = newMetrics(deps.Meter, deps.Logger); err != nil {
		return nil, fmt.Errorf("create ack fusion metrics: %w", err)
	}
	f.shards = make([]*shard, f.cfg.Shards)
	for i := range f.shards {
		f.shards[i] = &shard{Fuser: f, waiting: make(map[key]*row)}
	}
	return f, nil
}

func (f *Fuser) shardOf(partition uuid.UUID) *shard {
	// Ids are random at their end, whatever their version.
	return f.shards[binary.BigEndian.Uint32(partition[12:])%uint32(len(f.shards))]
}

// Ack commits the batches of one request and returns a verdict for each. An error
// (ErrOverloaded, or the context's) means that nothing was changed. A client that
// leaves after that does not stop its acks.
func (f *Fuser) Ack(ctx context.Context, batches []store.AckRow) ([]Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	leave, err := f.Admission.Enter(ctx, admission.Ack)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	span := spans.Of(ctx)
	rows := make([]*row, len(batches))
	var leads []*shard
	for i := range batches {
		s := f.shardOf(batches[i].PartitionID)
		var lead bool
		if rows[i], lead = s.add(&batches[i], span); lead {
			leads = append(leads, s)
		}
	}
	for i, s := range leads {
		if i < len(leads)-1 {
			go s.lead(ctx)
		} else if s.fly(ctx) { // one flight only: this request has an answer then
			go s.lead(ctx)
		}
	}
	return f.await(rows), nil
}

// await collects the verdicts, and withdraws rows that nobody takes in time.
func (f *Fuser) await(rows []*row) []Verdict {
	verdicts := make([]Verdict, len(rows))
	var patience *time.Timer
	for i, r := range rows {
		select {
		case <-r.done:
			verdicts[i] = r.verdict
			continue
		default:
		}
		if patience == nil {
			patience = time.NewTimer(f.Admission.MaxWait())
			defer patience.Stop()
		}
		select {
		case <-r.done:
		case <-patience.C:
			patience.Reset(0) // for the next row
			f.shardOf(r.batch.PartitionID).withdraw(r)
			<-r.done
		}
		verdicts[i] = r.verdict
	}
	return verdicts
}
