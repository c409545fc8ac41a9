package kv

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

// expire prunes until nothing is left, or for the given time; 0 is no limit. A call that
// finds less than it may take, or deletes nothing, is the last: what is left is held.
func (u *Upkeep) expire(ctx context.Context, shards []int16, limit time.Duration) (out store.KVExpired, err error) {
	ctx, span := u.tracer.Start(ctx, "keys "+PhasePrune)
	defer span.End()
	began, sum := time.Now(), 0
	for more := true; more; {
		if out, err = u.db.KVExpire(ctx, shards, u.cfg.ExpireBatch); err != nil {
			u.found = true // as far as anybody knows
			return store.KVExpired{Deleted: sum}, u.failed(ctx, &u.prune, began, err)
		}
		u.metrics.expired(ctx, out)
		u.phases.Rows(ctx, phases.Prune, out.Deleted)
		u.pruned.Add(int64(out.Deleted))
		sum += out.Deleted
		more = !out.Done && out.Deleted > 0 && (limit == 0 || time.Since(began) < limit)
	}
	u.found = sum > 0 || out.Unpruned > 0
	if sum == 0 && out.Unpruned > 0 {
		u.phases.Locked(ctx, phases.Prune)
	}
	u.done(ctx, &u.prune, began, slog.Int(logging.KeyPruned, sum), slog.Int(logging.KeyUnpruned, out.Unpruned))
	out.Deleted = sum
	return out, nil
}

// turn makes the parts of the upkeep whose gates were open. Failures are logged, and
// the next turn tries again.
func (u *Upkeep) turn(ctx context.Context, shards []int16, rollup, prune bool) {
	if rollup {
		_, _ = u.measure(ctx, shards)
	}
	if prune {
		_, _ = u.expire(ctx, shards, PruneTime)
	}
}

// measure takes the usage of all tenants, and the sizes of the tables.
func (u *Upkeep) measure(ctx context.Context, shards []int16) (store.KVUsage, error) {
	ctx, span := u.tracer.Start(ctx, "keys "+PhaseRollup)
	defer span.End()
	began := time.Now()
	usage, err := u.db.KVMeasure(ctx, shards, tenantsCounted)
	if err != nil {
		return usage, u.failed(ctx, &u.rollup, began, err)
	}
	u.metrics.measured(usage)
	u.phases.Rows(ctx, phases.Rollup, len(usage.Tenants))
	sizes, err := u.db.SweepTables(ctx)
	if err != nil {
		return usage, u.failed(ctx, &u.rollup, began, err)
	}
	u.metrics.sized(sizes)
	u.done(ctx, &u.rollup, began, slog.Int(logging.KeyTenants, len(usage.Tenants)), slog.Bool(logging.KeySampled, usage.Sampled))
	return usage, nil
}

func (u *Upkeep) done(ctx context.Context, p *phase, began time.Time, attrs ...slog.Attr) {
	elapsed := time.Since(began)
	u.metrics.ran(ctx, p.name, outcomeDone, elapsed)
	u.phases.Took(p.kind, elapsed)
	u.log.LogAttrs(ctx, slog.LevelDebug, "upkeep of keys made",
		append(attrs, slog.String(logging.KeyPhase, p.name), slog.Duration(logging.KeyElapsed, elapsed))...)
}

// failed logs a failure, and switches off a phase whose procedure is missing.
func (u *Upkeep) failed(ctx context.Context, p *phase, began time.Time, err error) error {
	err = fmt.Errorf("%s: %w", p.name, err)
	trace.SpanFromContext(ctx).SetStatus(codes.Error, err.Error())
	if ctx.Err() != nil { // it failed because it is being stopped
		return err
	}
	u.metrics.ran(ctx, p.name, outcomeFailed, time.Since(began))
	if store.Classify(err) == store.RetryLater {
		p.off = true
		u.metrics.switchOff(p.name)
		u.log.WarnContext(ctx, "part of the upkeep is off until the sweeper is restarted: the schema does not have what it needs",
			slog.String(logging.KeyPhase, p.name), logging.Err(err))
		return err
	}
	if left, ok := u.errors.Speak(); ok {
		u.log.WarnContext(ctx, "upkeep of keys failed and will be tried again", slog.String(logging.KeyPhase, p.name),
			slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
	return err
}
