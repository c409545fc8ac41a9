package timers

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

// fireAll fires volleys one after the other. When the drain is stopped, or the database
// is in trouble, what is left is given back; false says so.
func (d *drain) fireAll(ctx context.Context, volleys []volley) bool {
	for len(volleys) > 0 {
		d.giveWay()
		if d.stopped() {
			d.giveBack(ctx, timersOf(volleys), stopping)
			return false
		}
		var v volley
		if v, volleys = next(volleys, d.lanes()); !d.fire(ctx, v) {
			if left := timersOf(volleys); len(left) > 0 {
				d.giveBack(ctx, left, giveBackReason{text: "the database was in trouble", backoff: d.cfg.TransientBackoff})
			}
			return false
		}
	}
	return true
}

// next splits what one call is to fire off volleys.
func next(volleys []volley, lanes int) (v volley, left []volley) {
	if v = volleys[0]; len(v) <= lanes {
		return v, volleys[1:]
	}
	return v[:lanes], append([]volley{v[lanes:]}, volleys[1:]...)
}

// fire fires one volley, and reports false when nothing else should be tried now.
func (d *drain) fire(ctx context.Context, v volley) bool {
	ctx, span := d.startFire(ctx, v)
	defer span.End()
	var verdicts []store.FireVerdict
	var err error
	d.metrics.took(ctx, d.call(true, func() { verdicts, err = d.db.TimersFire(ctx, v.segments()) }))
	if err == nil {
		d.fired(ctx, v, verdicts)
		return true
	}
	span.SetStatus(codes.Error, err.Error())
	class := store.Classify(err)
	switch {
	case store.Ambiguous(err):
		d.lost(ctx, v, err)
		return false
	case class == store.Transient:
		d.transient(ctx, v.timers(), err)
		return false
	case class == store.RetryLater:
		d.misconfigured(ctx, v.timers(), err)
		return false
	case d.cfg.IsolateOnPermanent && (len(v) > 1 || len(v[0].timers) > 1):
		return d.isolate(ctx, v)
	}
	d.refused(ctx, v.timers(), err)
	return true
}

// fired notes what a volley has delivered. A segment is stale when one of its timers
// is not this sweeper's any more, or was locked just then. The others of it are.
func (d *drain) fired(ctx context.Context, v volley, verdicts []store.FireVerdict) {
	now := time.Now()
	var stale []*held
	for i := range v {
		s := &v[i]
		if !verdicts[i].Fired {
			stale = append(stale, s.timers...)
			continue
		}
		for _, h := range s.timers {
			d.metrics.lag(ctx, s.Tenant, h.late(now))
		}
		d.delivered(ctx, len(s.timers))
		d.count(func(sum *Report) { sum.Segments++ })
		d.announce(s.Tenant, s.Queue, s.Partition, len(s.timers))
	}
	if len(stale) == 0 {
		return
	}
	d.metrics.fired(ctx, resultStale, len(stale))
	d.count(func(sum *Report) {
		sum.Stale += len(stale)
		d.met = true
	})
	d.giveBack(ctx, stale, giveBackReason{text: "a timer of its segment was held by another sweeper"})
}

func (d *drain) delivered(ctx context.Context, n int) {
	d.metrics.fired(ctx, resultFired, n)
	d.metrics.phases.Rows(ctx, phases.Fire, n)
	d.count(func(sum *Report) { sum.Fired += n })
}

// lost deals with a fire whose answer did not come. It is not repeated: the rows tell
// what became of it. Those that are gone were delivered, for while the lease lasts
// nothing but their fire removes them. Where that cannot be told, announcing costs
// consumers a look.
func (d *drain) lost(ctx context.Context, v volley, err error) {
	for i := range v {
		d.announce(v[i].Tenant, v[i].Queue, v[i].Partition, len(v[i].timers))
	}
	timers := v.timers()
	d.trouble(err)
	d.complain(ctx, "answer of a fire was lost, the timers tell what became of it", timers, err)
	out, known := d.release(ctx, timers, store.TimerFailure{
		Backoff: d.cfg.TransientBackoff, Error: err.Error(), Transient: true, MaxAttempts: d.cfg.MaxAttempts,
	})
	if !known {
		d.countFailed(ctx, classLost, len(timers))
		return
	}
	d.countFailed(ctx, classLost, out.Failed)
	if gone := len(timers) - out.Failed; gone > 0 {
		d.delivered(ctx, gone)
	}
}

// isolate repeats a fire that failed for good piece by piece: one segment for each
// call, and of a segment that fails alone one timer.
func (d *drain) isolate(ctx context.Context, v volley) bool {
	d.metrics.isolations.Add(ctx, 1)
	var parts []volley
	if len(v) > 1 {
		for i := range v {
			parts = append(parts, v[i:i+1])
		}
		return d.fireAll(ctx, parts)
	}
	for _, h := range v[0].timers {
		single, misfits, _ := d.loader.load([]*held{h})
		for _, m := range misfits {
			d.refused(ctx, []*held{m.timer}, m.err)
		}
		parts = append(parts, single...)
	}
	return d.fireAll(ctx, parts)
}
