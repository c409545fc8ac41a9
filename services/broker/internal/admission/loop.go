package admission

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

// seen is what the gate notes down between two ticks.
type seen struct {
	exhausted bool
	capped    [classes]bool
	done      [classes]int
	// times are how long slots of the hot path were held. The newest overwrite the
	// oldest.
	times [timesKept]time.Duration
	timed int
}

const timesKept = 256

// Run adapts the budget until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
	ticker := time.NewTicker(g.cfg.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			g.tick(ctx)
		}
	}
}

// tick lets the law judge what was seen and hands on what it adds.
func (g *Gate) tick(ctx context.Context) {
	pops := g.lookAtPops()
	g.mu.Lock()
	s := g.look(time.Now(), pops)
	made := g.law.step(s)
	g.shown = s.trains
	g.handOn()
	g.mu.Unlock()
	if g.cfg.Trace == nil {
		return
	}
	for _, d := range made {
		g.cfg.Trace.LogAttrs(ctx, slog.LevelInfo, "admission", slog.String(logging.KeyDecision, d.what), slog.String(logging.KeyLane, d.lane),
			slog.Int(logging.KeyFrom, d.from), slog.Int(logging.KeyTo, d.to), slog.Bool(logging.KeyExhausted, s.exhausted), slog.Duration(logging.KeyOldest, s.oldest),
			slog.Duration(logging.KeyCycle, s.trains.cycle), slog.Duration(logging.KeyCommitTime, s.commitTime),
			slog.Int(logging.KeyTrains, s.trains.count), slog.Int(logging.KeyCommits, s.trains.commits))
	}
}

// lookAtPops asks about lanes that are ready when the answer matters. Whoever
// knows has locks of its own, so the gate is not locked meanwhile.
func (g *Gate) lookAtPops() laneSight {
	g.mu.Lock()
	matters := g.seen.capped[Pop] || g.law.lanes[Pop].probing
	g.mu.Unlock()
	if g.cfg.PopAge == nil || !matters {
		return laneSight{}
	}
	age, depth := g.cfg.PopAge()
	return laneSight{aged: true, age: age, depth: depth}
}

// look sums up the time since the previous tick.
func (g *Gate) look(now time.Time, pops laneSight) sight {
	s := sight{trains: g.trains.take(), exhausted: g.seen.exhausted, oldest: g.oldest(now)}
	s.commitTime = g.seen.commitTime(s.trains.commits)
	s.lanes[Pop] = pops
	for c := range s.lanes {
		s.lanes[c].capped, s.lanes[c].done = g.seen.capped[c], g.seen.done[c]
	}
	g.seen = seen{}
	return s
}

// outlierParts is the inverse of the part of the transactions that may be stuck,
// behind a lock say, without all being taken for late.
const outlierParts = 8

// oldest is the age of the oldest transaction of the hot path, outliers aside.
func (g *Gate) oldest(now time.Time) time.Duration {
	skip := (g.live.len - g.lanes[Maint].inUse) / outlierParts
	for t := g.live.head; t != nil; t = t.next {
		if t.class == Maint {
			continue
		}
		if skip--; skip < 0 {
			return now.Sub(t.since)
		}
	}
	return 0
}

// note remembers how long a slot was held.
func (s *seen) note(c Class, took time.Duration) {
	s.done[c]++
	if c != Maint {
		s.times[s.timed%timesKept] = took
		s.timed++
	}
}

// commitTime is the 10th percentile of the times of so many transactions, or 0.
// A slot may also find nothing to commit; those are taken to be the shortest.
func (s *seen) commitTime(commits int) time.Duration {
	if commits < leastCommits {
		return 0
	}
	times := s.times[:min(s.timed, timesKept)]
	slices.Sort(times)
	if idle := s.timed - commits; idle > 0 {
		times = times[idle*len(times)/s.timed:]
	}
	if len(times) == 0 {
		return 0
	}
	return max(1, times[len(times)/10])
}
