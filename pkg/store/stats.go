package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// How much one statement of the stats reconciler works on. Measured figures stand
// in sql/procedures/011_log_stats.sql.
const (
	statsPageLanes    = 50_000 // partitions that are summed up
	statsWriteQueues  = 500    // rows that are written
	statsPageSegments = 10_000 // segments whose bytes are summed up
)

// The lanes of the reconciler, as their clocks are called in system_state.
const (
	statsRefreshLane  = "stats_refresh"
	statsRetainedLane = "stats_retained_bytes"
)

// StatsState says what became of a turn of the stats reconciler.
type StatsState string

// The states of a turn.
const (
	StatsDone  StatsState = "done"
	StatsBusy  StatsState = "busy"  // somebody else holds the lock; nothing was done
	StatsEarly StatsState = "early" // it is not due yet; nothing was done
)

// StatsTurn is the outcome of a turn of the stats reconciler.
type StatsTurn struct {
	State StatsState
	// StatsEarly: since the last turn of any replica began, and until it is due.
	Since, Wait time.Duration
}

// StatsSummary is what a refresh of queen.stats did.
type StatsSummary struct {
	Queues      int64     `json:"queuesUpdated"`
	Partitions  int64     `json:"segPartitions"`
	Namespaces  int64     `json:"namespaces"`
	Tasks       int64     `json:"tasks"`
	RefreshedAt time.Time `json:"refreshedAt"`
}

// RefreshStats recomputes queen.stats in one transaction of short statements that
// holds lock 737002, unless somebody else refreshes or the last refresh of any
// replica, which began less than every ago or took more than a twentieth of the time
// since, makes it too early. An every of 0 is always due.
func (s *Store) RefreshStats(ctx context.Context, every time.Duration) (StatsTurn, StatsSummary, error) {
	return s.refreshStats(ctx, every, statsPageLanes, statsWriteQueues)
}

func (s *Store) refreshStats(ctx context.Context, every time.Duration, lanes, queues int) (turn StatsTurn, sum StatsSummary, err error) {
	turn, err = s.statsTurn(ctx, "refresh stats", func(ctx context.Context, tx pgx.Tx) (StatsTurn, error) {
		turn, err := statsDue(ctx, tx, statsRefreshLane, every)
		if err != nil || turn.State != StatsDone {
			return turn, err
		}
		sum, err = refreshStats(ctx, tx, lanes, queues)
		return turn, err
	})
	return turn, sum, err
}

// RefreshStatsNow does the same at once, in one call, without the lock and without
// moving the clock (log_refresh_all_stats_v1), and returns the summary for the wire.
func (s *Store) RefreshStatsNow(ctx context.Context) (RawJSON, error) {
	return s.rawJSON(ctx, "refresh stats", `SELECT queen.log_refresh_all_stats_v1()`)
}

// statsTurn runs fn in a transaction that holds the lock of the reconciler; without
// the lock it does nothing.
func (s *Store) statsTurn(ctx context.Context, name string, fn func(context.Context, pgx.Tx) (StatsTurn, error)) (turn StatsTurn, err error) {
	err = s.db.Do(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var locked bool
			if err := tx.QueryRow(ctx, `SELECT queen.log_stats_lock_v1()`).Scan(&locked); err != nil {
				return err
			}
			if !locked {
				turn = StatsTurn{State: StatsBusy}
				return nil
			}
			var err error
			turn, err = fn(ctx, tx)
			return err
		})
	})
	return turn, err
}

// statsDue asks the clock of a lane, in a statement of its own: the snapshot must
// be younger than the lock.
func statsDue(ctx context.Context, tx pgx.Tx, lane string, every time.Duration) (StatsTurn, error) {
	if every <= 0 {
		return StatsTurn{State: StatsDone}, nil
	}
	var since, wait int64 // milliseconds
	err := tx.QueryRow(ctx, `SELECT r_since, r_wait FROM queen.log_stats_clock_v1($1, $2)`, lane, every.Milliseconds()).Scan(&since, &wait)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return StatsTurn{}, err
	}
	if wait <= 0 {
		return StatsTurn{State: StatsDone}, nil
	}
	return StatsTurn{State: StatsEarly, Since: time.Duration(since) * time.Millisecond, Wait: time.Duration(wait) * time.Millisecond}, nil
}

// statsBegan sets the clock of a lane to the start of this transaction.
func statsBegan(ctx context.Context, tx pgx.Tx, lane string) error {
	_, err := tx.Exec(ctx, `SELECT queen.log_stats_began_v1($1)`, lane)
	return err
}

// queueFigures is what the pages say of one queue.
type queueFigures struct {
	queue                                           uuid.UUID
	partitions, total, pending, leased, deadLetters int64
	oldest                                          *time.Time
}

// refreshStats reads everything first, so that the transaction neither holds a row
// nor keeps the vacuum from anything while it reads, and writes then.
func refreshStats(ctx context.Context, tx pgx.Tx, lanes, queues int) (StatsSummary, error) {
	figures, err := statsFigures(ctx, tx, lanes)
	if err != nil {
		return StatsSummary{}, err
	}
	var written, partitions int64
	for chunk := range slices.Chunk(figures, queues) {
		n, err := writeFigures(ctx, tx, chunk)
		if err != nil {
			return StatsSummary{}, err
		}
		written += n
	}
	for _, f := range figures {
		partitions += f.partitions
	}
	var doc []byte
	if err := tx.QueryRow(ctx, `SELECT queen.log_stats_finish_v1($1, $2)`, written, partitions).Scan(&doc); err != nil {
		return StatsSummary{}, err
	}
	var sum StatsSummary
	if err := json.Unmarshal(doc, &sum); err != nil {
		return StatsSummary{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return sum, statsBegan(ctx, tx, statsRefreshLane)
}

// statsFigures adds up all pages: every queue, ascending by id.
func statsFigures(ctx context.Context, tx pgx.Tx, lanes int) ([]*queueFigures, error) {
	ids, err := statsQueues(ctx, tx)
	if err != nil {
		return nil, err
	}
	byQueue := make(map[uuid.UUID]*queueFigures, len(ids))
	for _, id := range ids {
		byQueue[id] = &queueFigures{queue: id}
	}
	for next := new(uuid.UUID); next != nil; {
		if next, err = addPage(ctx, tx, *next, lanes, byQueue); err != nil {
			return nil, err
		}
	}
	all := make([]*queueFigures, 0, len(byQueue))
	for _, f := range byQueue {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *queueFigures) int { return bytes.Compare(a.queue[:], b.queue[:]) })
	return all, nil
}

func statsQueues(ctx context.Context, tx pgx.Tx) (ids []uuid.UUID, err error) {
	return ids, tx.QueryRow(ctx, `SELECT queen.log_stats_queues_v1()`).Scan(&ids)
}

// addPage adds the figures of one page of partitions, and returns where the next
// one begins, nil behind the last.
func addPage(ctx context.Context, tx pgx.Tx, first uuid.UUID, lanes int, sums map[uuid.UUID]*queueFigures) (next *uuid.UUID, err error) {
	rows, err := tx.Query(ctx, `SELECT r_queue, r_partitions, r_total, r_pending, r_leased, r_dead_letter, r_oldest, r_next
		FROM queen.log_stats_page_v1($1, $2)`, first, lanes)
	if err != nil {
		return nil, err
	}
	var p queueFigures
	_, err = pgx.ForEachRow(rows, []any{&p.queue, &p.partitions, &p.total, &p.pending, &p.leased, &p.deadLetters, &p.oldest, &next}, func() error {
		sum, ok := sums[p.queue]
		if !ok { // created since the queues were listed
			sum = &queueFigures{queue: p.queue}
			sums[p.queue] = sum
		}
		sum.add(p)
		return nil
	})
	return next, err
}

func (f *queueFigures) add(p queueFigures) {
	f.partitions += p.partitions
	f.total += p.total
	f.pending += p.pending
	f.leased += p.leased
	f.deadLetters += p.deadLetters
	if p.oldest != nil && (f.oldest == nil || p.oldest.Before(*f.oldest)) {
		f.oldest = p.oldest
	}
}

// writeFigures writes the rows of some queues and returns how many there were.
func writeFigures(ctx context.Context, tx pgx.Tx, chunk []*queueFigures) (written int64, err error) {
	err = tx.QueryRow(ctx, `SELECT queen.log_stats_write_v1($1, $2, $3, $4, $5, $6, $7)`,
		values(chunk, func(f *queueFigures) uuid.UUID { return f.queue }),
		values(chunk, func(f *queueFigures) int64 { return f.partitions }),
		values(chunk, func(f *queueFigures) int64 { return f.total }),
		values(chunk, func(f *queueFigures) int64 { return f.pending }),
		values(chunk, func(f *queueFigures) int64 { return f.leased }),
		values(chunk, func(f *queueFigures) int64 { return f.deadLetters }),
		values(chunk, func(f *queueFigures) *time.Time { return f.oldest }),
	).Scan(&written)
	return written, err
}

// values is one member of all rows.
func values[R, V any](rows []R, value func(R) V) []V {
	out := make([]V, len(rows))
	for i, r := range rows {
		out[i] = value(r)
	}
	return out
}
