package ackfusion

import (
	"cmp"
	"context"
	"time"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// Direct is a Fuser that fuses nothing: one call for each batch, under one slot
// for the request.
type Direct struct {
	Store     Store
	Admission *admission.Gate
	Batches   *batches.Recorder
	// Deadline is how long a request may start another attempt (default 10 s).
	Deadline time.Duration
}

// Ack is Fuser.Ack.
func (d *Direct) Ack(ctx context.Context, rows []store.AckRow) ([]Verdict, error) {
	release, err := d.Admission.Acquire(ctx, admission.Ack)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx = context.WithoutCancel(ctx)
	deadline := time.Now().Add(cmp.Or(d.Deadline, DeadlineDefault))
	verdicts := make([]Verdict, len(rows))
	for i := range rows {
		verdicts[i] = d.commit(ctx, deadline, rows[i:i+1])
	}
	return verdicts, nil
}

func (d *Direct) commit(ctx context.Context, deadline time.Time, batch []store.AckRow) Verdict {
	var out []store.AckOutcome
	err := retry.Do(ctx, deadline, func(ctx context.Context) error {
		var err error
		began := time.Now()
		out, err = d.Store.AckWhole(ctx, batch, true)
		d.Batches.Fired(ctx, batches.Ack, len(batch), time.Since(began))
		return err
	})
	switch {
	case err == nil && out[0].OK:
		d.Admission.Commit()
		return Verdict{State: Committed}
	case err == nil:
		return Verdict{State: Rejected}
	case store.Ambiguous(err):
		return Verdict{State: Unknown, Err: err}
	default:
		return Verdict{State: Failed, Err: err}
	}
}
