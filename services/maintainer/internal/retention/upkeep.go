package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// cleanUp removes partitions that are empty and were quiet for long enough.
func (c *cycle) cleanUp(ctx context.Context, out *Phase, b budget) error {
	if !c.cfg.Cleanup {
		return nil
	}
	due, err := c.session.ClockDue(ctx, cleanupClock, ClockPeriod)
	if err != nil {
		return fmt.Errorf("ask the clock: %w", err)
	}
	if !due && !c.cleaning {
		return nil
	}
	cutoff := c.plan.Now.Add(-c.cfg.CleanupAge)
	for {
		began := time.Now()
		step, err := c.session.CleanupStep(ctx, cutoff, c.cleaned, c.cleanup.rows)
		if gaveUp(err) && ctx.Err() == nil {
			out.TimedOut++
			c.cleanup.timedOut()
			return nil
		}
		if err != nil {
			c.cleaning, c.cleaned = false, store.LaneKey{} // anew in a minute
			return err
		}
		c.cleanup.took(time.Since(began))
		out.Lanes += int64(step.Examined)
		out.Rows += step.Deleted
		if c.cleaning, c.cleaned = !step.Done, step.Last; step.Done {
			c.cleaned = store.LaneKey{}
			return nil
		}
		if b.over(out.deleted()) {
			out.Unfinished = true
			return nil
		}
	}
}

// purgeMetrics removes old rows of the metrics tables, portion by portion. Its failure
// is no failure of the cycle, unless the session went with it.
func (c *cycle) purgeMetrics(ctx context.Context, out *Phase, b budget) error {
	cutoff := c.plan.Now.Add(-c.cfg.MetricsAge)
	for {
		rows, err := c.session.PurgeMetrics(ctx, cutoff, c.cfg.BatchSize)
		out.Rows += rows
		if err != nil {
			return c.notPurged(ctx, out, err)
		}
		if rows < int64(c.cfg.BatchSize) { // none of the tables had a full portion
			return nil
		}
		if b.over(true) {
			out.Unfinished = true
			return nil
		}
	}
}

func (c *cycle) notPurged(ctx context.Context, out *Phase, err error) error {
	if ctx.Err() != nil || c.lost() {
		return err
	}
	out.Failed++
	if left, ok := c.purgeErrors.Speak(); ok {
		c.log.WarnContext(ctx, "metrics were not purged", slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
	return nil
}

// walk looks for lanes whose watermark is wrong, so that no phase sees them.
func (c *cycle) walk(ctx context.Context, out *Phase, b budget) error {
	due, err := c.session.ClockDue(ctx, walkClock, ClockPeriod)
	if err != nil {
		return fmt.Errorf("ask the clock: %w", err)
	}
	if !due && !c.walking {
		return nil
	}
	var deep error
	if due {
		if deep = c.walkFrom(ctx, deepPlace, func(at uuid.UUID) (uuid.UUID, error) { return c.walkDeep(ctx, out, b, at) }); c.lost() {
			return deep
		}
	}
	c.walking = false
	return errors.Join(deep, c.walkFrom(ctx, shallowPlace, func(at uuid.UUID) (uuid.UUID, error) { return c.walkShallow(ctx, out, b, at) }))
}

// walkFrom goes on from a place, and keeps the one that was reached. After an error
// of PostgreSQL that is the beginning: a place that cannot be read, or gone on from,
// must not fail for ever.
func (c *cycle) walkFrom(ctx context.Context, place string, steps func(at uuid.UUID) (uuid.UUID, error)) error {
	at, err := c.session.Position(ctx, place)
	if err == nil {
		at, err = steps(at)
	}
	if err != nil {
		err, at = fmt.Errorf("walk by %s: %w", place, err), uuid.Nil
		if ctx.Err() != nil || c.lost() {
			return err
		}
	}
	if keep := c.session.SetPosition(ctx, place, at); keep != nil {
		err = errors.Join(err, fmt.Errorf("keep %s: %w", place, keep))
	}
	return err
}

// walkDeep reads a segment of every lane, once around, for WalkTime at most.
func (c *cycle) walkDeep(ctx context.Context, out *Phase, b budget, at uuid.UUID) (uuid.UUID, error) {
	for {
		w, ok, err := c.walkStep(ctx, out, at, true)
		if err != nil || !ok {
			return at, err
		}
		if at = w.Last; w.End {
			return uuid.Nil, nil
		}
		if time.Since(b.began) >= WalkTime {
			return at, nil
		}
	}
}

// walkShallow reads the lanes alone, and goes on while it finds something.
func (c *cycle) walkShallow(ctx context.Context, out *Phase, b budget, at uuid.UUID) (uuid.UUID, error) {
	for {
		w, ok, err := c.walkStep(ctx, out, at, false)
		if err != nil || !ok {
			return at, err
		}
		if at = w.Last; w.End {
			return uuid.Nil, nil
		}
		if w.Repaired == 0 {
			return at, nil
		}
		if b.over(true) {
			out.Unfinished, c.walking = true, true
			return at, nil
		}
	}
}

// walkStep makes one step; ok is false when the server gave it up.
func (c *cycle) walkStep(ctx context.Context, out *Phase, at uuid.UUID, deep bool) (w store.Walk, ok bool, err error) {
	w, err = c.session.WalkStep(ctx, at, walkLanes, deep)
	if gaveUp(err) && ctx.Err() == nil {
		out.TimedOut++
		return w, false, nil
	}
	out.Lanes += int64(w.Examined)
	out.Rows += int64(w.Repaired)
	return w, err == nil, err
}
