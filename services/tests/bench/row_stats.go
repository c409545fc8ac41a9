package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	statsQueue    = "stats"
	statsGroups   = 3
	statsSegments = 2 // of a lane
	statsMessages = 10
	statsTouched  = 0.05 // of all segments, in one refresh: single looks, no scan
	statsRefresh  = 500  // milliseconds
	statsPause    = 20   // times the last refresh
	// statsLook is rare enough not to slow down what it looks at.
	statsLook = 20 * time.Millisecond
	// statsLong is how long a maintainer is watched if its refreshes, and with them
	// the pauses, take so much time that few of them fit in.
	statsLong = 2 * time.Minute
	// statsEvery asks for refreshes more often than a database of this size allows.
	statsEvery = "STATS_INTERVAL_MS=1000"
)

// runStats measures the refreshes of a maintainer that has made the first one:
// while all is read, and while the slowest group is in the middle of every lane, so
// that the age of what is pending is not at its start.
func runStats(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		many := bulk{
			queue: statsQueue, lanes: b.scale.Lanes, segments: statsSegments, messages: statsMessages,
			age: idleAge, groups: statsGroups,
		}
		if err := s.makeMany(ctx, many, staleOff); err != nil {
			return err
		}
		if err := b.firstStats(ctx, s); err != nil {
			return err
		}
		if err := b.statsOf(ctx, s, out, many, ""); err != nil {
			return err
		}
		many.unread = 0.5
		if err := s.unread(ctx, many); err != nil {
			return err
		}
		return b.statsOf(ctx, s, out, many, ", lanes half read")
	})
}

// statsOf adds the figures of the lanes as they are, and makes sure that what was so
// quick was right, too.
func (b *bench) statsOf(ctx context.Context, s *stack, out *outcome, k bulk, which string) error {
	before, err := s.touched(ctx)
	if err != nil {
		return err
	}
	seen, statement, err := b.watchStats(ctx, s)
	if err != nil {
		return err
	}
	after, err := s.touched(ctx)
	if err != nil {
		return err
	}
	share := (after - before) / float64(len(seen)*k.total())
	out.add("refresh"+which, "ms", seen.millis(), under(statsRefresh))
	out.add("pause/refresh, least"+which, "", []float64{slices.Min(seen.pauses())}, atLeast(statsPause))
	out.add("segment rows touched/segments"+which, "", []float64{share}, under(statsTouched))
	out.tell("longest statement"+which, "ms", []float64{statement.Seconds() * 1000})
	return s.checkStats(ctx, k)
}

// unread sets the cursor of the last group back.
func (s *stack) unread(ctx context.Context, k bulk) error {
	const q = `UPDATE queen.log_consumers AS c SET committed = p.last_offset - ceil($3::float8 * (p.last_offset + 1))::bigint
		FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
		WHERE c.partition_id = p.id AND q.name = $1 AND c.consumer_group = $2`
	if _, err := s.db.Exec(ctx, q, k.queue, groupName(k.groups-1), k.unread); err != nil {
		return fmt.Errorf("set the cursors back: %w", err)
	}
	return s.settle(ctx)
}

// firstStats lets a maintainer do everything once. The size of what is retained
// needs a look at all segments, which is due again only after several minutes.
func (b *bench) firstStats(ctx context.Context, s *stack) error {
	const q = `SELECT EXISTS (SELECT FROM queen.stats AS t JOIN queen.queues AS q ON t.stat_key = q.id::text
		WHERE q.name = $1 AND t.stat_type = 'queue' AND t.retained_bytes > 0)`
	return b.maintained(ctx, s, nil, func() error {
		return s.await(ctx, "the first statistics", func() (done bool, err error) {
			err = s.db.QueryRow(ctx, q, statsQueue).Scan(&done)
			return done, err
		})
	})
}

// refreshMsg is the message with which the maintainer logs a refresh.
const refreshMsg = "statistics refreshed"

// refresh is what that line tells.
type refresh struct {
	Time    time.Time     `json:"time"` // of its end
	Elapsed time.Duration `json:"elapsed"`
}

// refreshes are those of one maintainer, in their order.
type refreshes []refresh

// millis are the durations.
func (r refreshes) millis() []float64 {
	var ms []float64
	for _, one := range r {
		ms = append(ms, one.Elapsed.Seconds()*1000)
	}
	return ms
}

// pauses are the times to the next start, in durations of the refresh before.
func (r refreshes) pauses() []float64 {
	var ratios []float64
	for i := range len(r) - 1 {
		next := r[i+1].Time.Add(-r[i+1].Elapsed)
		ratios = append(ratios, next.Sub(r[i].Time).Seconds()/r[i].Elapsed.Seconds())
	}
	return ratios
}

// watchStats sees some refreshes of a maintainer that would make many, and how long
// the longest statement under the lock of the statistics took.
func (b *bench) watchStats(ctx context.Context, s *stack) (seen refreshes, statement time.Duration, err error) {
	err = b.maintained(ctx, s, []string{statsEvery}, func() error {
		w := startWatch(ctx, s.db, statsLock, statsLook, func(v sight) { statement = max(statement, v.statement) })
		began := time.Now()
		err := s.await(ctx, "refreshes", func() (_ bool, err error) {
			seen, err = logLines[refresh](s.maintainer, says(refreshMsg))
			return len(seen) > b.scale.Cycles || len(seen) > 1 && time.Since(began) > statsLong, err
		})
		return errors.Join(err, w.end())
	})
	return seen, statement, err
}

// checkStats compares the statistics with what was written.
func (s *stack) checkStats(ctx context.Context, k bulk) error {
	const q = `SELECT t.total_messages, t.pending_messages FROM queen.stats AS t JOIN queen.queues AS q ON t.stat_key = q.id::text
		WHERE q.name = $1 AND t.stat_type = 'queue'`
	var total, pending int
	if err := s.db.QueryRow(ctx, q, k.queue).Scan(&total, &pending); err != nil {
		return fmt.Errorf("read the statistics: %w", err)
	}
	all := k.total() * k.messages
	if want := int(k.unread * float64(all)); total != all || pending != want {
		return fmt.Errorf("the statistics say %d messages, %d of them pending, not %d and %d", total, pending, all, want)
	}
	return nil
}
