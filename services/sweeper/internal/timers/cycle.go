package timers

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/kv"
)

// onceRows is after how many timers Once leaves the rest: more than that would not have
// been due when it began.
const onceRows = 10_000_000

// Run makes cycles until ctx ends, and then finishes the fire that is under way and
// gives back what it has claimed beyond that. No error ends it.
func (s *Sweeper) Run(ctx context.Context) error {
	s.switches.lookQuietly(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { s.switches.run(ctx) })
	for ctx.Err() == nil {
		report, r := s.cycle(ctx)
		s.metrics.turned(ctx, time.Since(report.Began))
		s.upkeep.Turn(ctx, kv.Cycle{Shards: store.Shards(s.first), Shed: s.pressure.sheds(), Empty: r.empty()})
		s.pause(ctx, r)
	}
	s.summary.flush(ctx, s.log)
	beside.Wait()
	s.upkeep.Wait()
	return nil
}

// cycle probes and drains.
func (s *Sweeper) cycle(ctx context.Context) (Report, rest) {
	report := Report{Began: time.Now()}
	s.first = (s.first + 1) % store.SweepShards
	due, err := s.probe(ctx)
	if err != nil {
		return report, s.unknown(ctx, err)
	}
	report.Due, report.DueCapped, report.Late, report.FireOff = due.Due, due.Capped, due.Late, !s.switches.fire()
	if due.Due == 0 {
		s.pressure.felt(false, false, 0)
		return report, rest{next: due.Next, pressure: s.pressure.level}
	}
	if report.FireOff {
		return report, rest{off: true, pressure: s.pressure.level}
	}
	d := s.timedDrain(ctx)
	s.pressure.felt(d.failed, d.capped(), due.Late)
	report.add(d.sum)
	report.Elapsed = time.Since(report.Began)
	s.tell(ctx, report)
	return report, s.after(d)
}

// after is what a drain leaves behind. One that took timers and fired none has met
// another sweeper, as has one that took none.
func (s *Sweeper) after(d *drain) rest {
	r := rest{pressure: s.pressure.level, work: d.failed || d.taken > 0 && d.sum.Stale < d.taken}
	if !r.work {
		r.missed = true
		r.jitter = s.cfg.EmptyClaimMin + rand.N(s.cfg.EmptyClaimMax-s.cfg.EmptyClaimMin+1)
	}
	return r
}

// probe asks what is due.
func (s *Sweeper) probe(ctx context.Context) (store.TimersDue, error) {
	s.bell.probing()
	due, err := s.db.TimersDue(ctx, store.Shards(s.first), s.cfg.DueCap)
	if err != nil {
		return due, err
	}
	s.bell.probed(due.Now)
	s.metrics.probed(ctx, due)
	s.haste.felt(due.Late)
	return due, nil
}

// unknown is what a probe that failed leaves behind.
func (s *Sweeper) unknown(ctx context.Context, err error) rest {
	s.pressure.felt(true, false, 0)
	if ctx.Err() == nil {
		s.complain(ctx, "timers could not be looked for", nil, err)
	}
	return rest{work: true, pressure: s.pressure.level}
}

func (s *Sweeper) timedDrain(ctx context.Context) *drain {
	ctx, span := s.tracer.Start(ctx, "timers drain")
	d := s.drain(ctx)
	endDrain(span, d)
	s.sums.add(d.sum)
	return d
}

// pause sleeps until the next cycle. Gates of the upkeep, and hints, make it shorter.
func (s *Sweeper) pause(ctx context.Context, r rest) {
	s.metrics.slept(ctx, r)
	now := time.Now()
	defer func() { s.metrics.phases.Slept(time.Since(now)) }()
	wake, least := now.Add(s.cfg.sleep(r)), now.Add(s.cfg.least(r))
	if at, ok := s.upkeep.Next(); ok && at.Before(wake) && !r.missed {
		wake = at
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(s.bell.until(wake, least)))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-s.bell.ring:
		}
	}
}

// Once drains what is due now, measures and prunes, and reports what it did, also when
// it failed on its way.
func (s *Sweeper) Once(ctx context.Context) (Report, error) {
	began := time.Now()
	report, err := s.drainAll(ctx)
	kept, err2 := s.upkeep.Once(ctx, store.Shards(s.first))
	report.Began = began
	report.Pruned, report.Unpruned, report.UnprunedCapped = kept.Expired.Deleted, kept.Expired.Unpruned, kept.Expired.Capped
	report.ExpiryLag, report.Tenants, report.Sampled = kept.Expired.Lag, len(kept.Usage.Tenants), kept.Usage.Sampled
	report.Elapsed = time.Since(began)
	return report, errors.Join(err, err2)
}

// drainAll makes cycles until one delivers nothing.
func (s *Sweeper) drainAll(ctx context.Context) (sum Report, err error) {
	if err := s.switches.look(ctx); err != nil {
		return sum, err
	}
	for first := true; sum.Claimed < onceRows && ctx.Err() == nil; first = false {
		due, err := s.probe(ctx)
		if err != nil {
			return sum, err
		}
		if first {
			sum.Due, sum.DueCapped, sum.Late, sum.FireOff = due.Due, due.Capped, due.Late, !s.switches.fire()
		}
		if due.Due == 0 || sum.FireOff {
			return sum, nil
		}
		d := s.timedDrain(ctx)
		sum.add(d.sum)
		if d.failed || d.sum.Fired+d.sum.DeadLettered == 0 {
			return sum, d.problem
		}
	}
	return sum, ctx.Err()
}

// tell logs what a cycle did: each in detail, and all of a minute in one line.
func (s *Sweeper) tell(ctx context.Context, r Report) {
	s.log.DebugContext(ctx, "timers were due", slog.Int(logging.KeyDue, r.Due), slog.Duration(logging.KeyLate, r.Late), slog.Int(logging.KeyClaimed, r.Claimed),
		slog.Int(logging.KeyFired, r.Fired), slog.Int(logging.KeySegments, r.Segments), slog.Int(logging.KeyStale, r.Stale), slog.Int(logging.KeyFailed, r.Failed),
		slog.Duration(logging.KeyElapsed, r.Elapsed))
	s.summary.add(ctx, s.log, r)
}

// summary gathers what the line of a minute tells.
type summary struct {
	sum    Report
	spoken time.Time
}

func (m *summary) add(ctx context.Context, log *slog.Logger, r Report) {
	m.sum.add(r)
	m.sum.Late = max(m.sum.Late, r.Late)
	if time.Since(m.spoken) >= summaryEvery {
		m.flush(ctx, log)
	}
}

func (m *summary) flush(ctx context.Context, log *slog.Logger) {
	if m.sum.Claimed == 0 {
		return
	}
	log.InfoContext(ctx, "timers were fired", slog.Int(logging.KeyFired, m.sum.Fired), slog.Int(logging.KeyStale, m.sum.Stale),
		slog.Int(logging.KeyFailed, m.sum.Failed), slog.Int(logging.KeyDeadLettered, m.sum.DeadLettered), slog.Duration(logging.KeyLatest, m.sum.Late))
	m.sum, m.spoken = Report{}, time.Now()
}
