package timers

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

// The classes of failures, as metrics name them.
const (
	classTransient     = "transient"     // says nothing about the timer
	classPermanent     = "permanent"     // comes back however often it is tried
	classConfiguration = "configuration" // the schema is not what it should be
	classLost          = "lost"          // the answer did not come, and the timer is still there
)

// giveBackReason says why timers are given back that have not failed.
type giveBackReason struct {
	text    string
	backoff time.Duration
}

// stopping gives timers back for others to take at once.
var stopping = giveBackReason{text: "its sweeper was stopped"} //nolint:gochecknoglobals // a constant

// backoff is the pause after so many permanent failures: full jitter, drawn by r in
// [0, 1), between least and a bound that doubles with every failure up to most.
func backoff(least, most time.Duration, failures int, r float64) time.Duration {
	bound := least
	for ; failures > 0 && bound < most; failures-- {
		bound = min(2*bound, most)
	}
	return least + time.Duration(r*float64(bound-least))
}

// giveBack gives timers back without a failure.
func (d *drain) giveBack(ctx context.Context, timers []*held, why giveBackReason) {
	d.release(ctx, timers, store.TimerFailure{Backoff: why.backoff, Error: why.text, Transient: true, MaxAttempts: d.cfg.MaxAttempts})
}

// transient deals with a failure that says nothing about the timers.
func (d *drain) transient(ctx context.Context, timers []*held, err error) {
	d.trouble(err)
	d.complain(ctx, "timers could not be fired and will be tried again", timers, err)
	d.countFailed(ctx, classTransient, len(timers))
	d.giveBack(ctx, timers, giveBackReason{text: err.Error(), backoff: d.cfg.TransientBackoff})
}

// misconfigured deals with a failure of the schema. It counts as an attempt, and so
// is tried less and less often. But it is nothing that a timer could be blamed for: no
// timer is dead-lettered for it, and all fire once the schema is repaired.
func (d *drain) misconfigured(ctx context.Context, timers []*held, err error) {
	d.trouble(err)
	d.complain(ctx, "timers could not be fired: the schema does not have what it needs", timers, err)
	d.countFailed(ctx, classConfiguration, len(timers))
	d.blame(ctx, timers, err)
}

// refused deals with timers that cannot be fired as they are.
func (d *drain) refused(ctx context.Context, timers []*held, err error) {
	d.complain(ctx, "timers cannot be fired", timers, err)
	d.countFailed(ctx, classPermanent, len(timers))
	if exhausted := d.blame(ctx, timers, err); len(exhausted) > 0 {
		d.metrics.poisoned.Add(ctx, int64(len(exhausted)))
		d.deadLetter(ctx, timers, exhausted, err)
	}
}

// blame counts an attempt of timers and gives them back for the time that those of
// their attempts call for. It returns those that have used theirs up.
func (d *drain) blame(ctx context.Context, timers []*held, err error) (exhausted []store.ExhaustedTimer) {
	byAttempts := map[int][]*held{}
	for _, h := range timers {
		byAttempts[h.Attempts] = append(byAttempts[h.Attempts], h)
	}
	for attempts, group := range byAttempts {
		out, _ := d.release(ctx, group, store.TimerFailure{
			Backoff: backoff(d.cfg.BackoffMin, d.cfg.BackoffMax, attempts+1, rand.Float64()),
			Error:   err.Error(), MaxAttempts: d.cfg.MaxAttempts,
		})
		exhausted = append(exhausted, out.Exhausted...)
	}
	return exhausted
}

// release gives timers back. Those that are not this sweeper's any more are left alone.
// It is tried again while its time lasts, because what cost a fire its connection costs
// this one its own, and a lease is long. When it fails for good they wait for the end of
// that. The time is its own, since the context may have ended just when it is needed.
func (d *drain) release(ctx context.Context, timers []*held, f store.TimerFailure) (out store.TimersFailed, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), GiveBackTime)
	defer cancel()
	keys := make([]store.HeldTimer, len(timers))
	for i, h := range timers {
		keys[i] = store.HeldTimer{TimerKey: h.TimerKey, Token: h.Token}
	}
	out, err := d.db.TimersFail(ctx, keys, f)
	for err != nil && store.Classify(err) == store.Transient && lifecycle.Sleep(ctx, giveBackPause) {
		out, err = d.db.TimersFail(ctx, keys, f)
	}
	if err != nil {
		d.trouble(err)
		d.complain(ctx, "timers could not be given back and wait for the end of their lease", timers, err)
		return out, false
	}
	return out, true
}

// deadLetter moves timers whose attempts are used up among the dead letters, with what
// their consumer would have got. When that fails they are tried once more after their
// backoff, fail, and come here again.
func (d *drain) deadLetter(ctx context.Context, timers []*held, exhausted []store.ExhaustedTimer, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), GiveBackTime)
	defer cancel()
	byKey := make(map[store.TimerKey]*held, len(timers))
	for _, h := range timers {
		byKey[h.TimerKey] = h
	}
	for _, e := range exhausted {
		letter := store.TimerLetter{TimerKey: e.TimerKey, Payload: d.remains(byKey[e.TimerKey]), Error: cause.Error()}
		archived, _, err := d.db.TimersDeadLetter(ctx, []store.TimerLetter{letter}, d.cfg.MaxAttempts)
		if err != nil {
			d.complain(ctx, "timer could not be dead-lettered and will be tried again", []*held{byKey[e.TimerKey]}, err)
			if store.Classify(err) == store.Transient {
				d.trouble(err)
				return
			}
			continue
		}
		if archived == 0 { // rescheduled meanwhile
			continue
		}
		d.metrics.deadLettered.Add(ctx, 1)
		d.metrics.phases.Rows(ctx, phases.Fire, 1)
		d.count(func(sum *Report) { sum.DeadLettered++ })
		d.log.WarnContext(ctx, "timer was dead-lettered", slog.String(logging.KeyTenant, e.Tenant.String()),
			slog.String(logging.KeyQueue, e.Queue), slog.String(logging.KeyTimerKey, e.Key), slog.Int(logging.KeyAttempt, e.Attempts), logging.Err(cause))
	}
}

// remains is the payload of a timer for its dead letter: as it was scheduled, where it
// cannot be decompressed.
func (d *drain) remains(h *held) []byte {
	payload, err := d.loader.payload(h)
	if err != nil {
		return h.Payload
	}
	return payload
}

func (d *drain) claimFailed(ctx context.Context, err error) {
	d.trouble(err)
	d.complain(ctx, "timers could not be claimed", nil, err)
}

func (d *drain) countFailed(ctx context.Context, class string, n int) {
	d.metrics.failed(ctx, class, n)
	d.count(func(sum *Report) { sum.Failed += n })
}

// complain logs a failure, one line of a kind in a while.
func (s *Sweeper) complain(ctx context.Context, what string, timers []*held, err error) {
	s.quiet.Lock()
	q, ok := s.lines[what]
	if !ok {
		q = &logging.Quiet{Every: errorQuiet}
		s.lines[what] = q
	}
	left, speak := q.Speak()
	s.quiet.Unlock()
	if speak {
		attrs := []slog.Attr{slog.String(logging.KeyReason, what), slog.Int(logging.KeyCount, len(timers)), slog.Int(logging.KeyNotLogged, left)}
		if len(timers) > 0 && timers[0] != nil { // those of a fire are of one lane, or of a few: the first stands for them
			attrs = append(attrs, slog.String(logging.KeyQueue, timers[0].Queue), slog.String(logging.KeyPartition, timers[0].Partition))
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "work on timers failed", append(attrs, logging.Err(err))...)
	}
}
