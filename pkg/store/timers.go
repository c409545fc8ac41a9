package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// TimersRefused is a call of timer operations that was refused for what it asked.
// Nothing was written.
//
//nolint:errname // it is an answer, named for what became of the call
type TimersRefused struct {
	Text  string // names the operation and what is wrong with it
	Hint  string // what is right, or nothing
	cause error
}

// Error implements error.
func (e *TimersRefused) Error() string { return e.Text }

// Unwrap gives the error of the database.
func (e *TimersRefused) Unwrap() error { return e.cause }

// TimersApplied is the outcome of timer operations.
type TimersApplied struct {
	Results RawJSON // an array, by position
	// Next is the earliest instant for which a timer was scheduled; zero when none
	// was. A sweeper wants to know.
	Next time.Time
	// Statuses are those of the results, by position: scheduled, rescheduled,
	// cancelled, absent or too_late.
	Statuses []string
}

// TimersApply schedules, reschedules and cancels timers of one tenant, all of it or
// nothing (log_timers_apply_v1). ops is a JSON array; producerSub is who asks, "" for
// nobody. What the call is refused for comes back as *TimersRefused.
func (s *Store) TimersApply(ctx context.Context, tenant uuid.UUID, producerSub string, ops json.RawMessage) (TimersApplied, error) {
	text, err := s.rawJSON(ctx, "timer operations", `SELECT queen.log_timers_apply_v1($1, $2, $3)`, []byte(ops), tenant, producerSub)
	if err != nil {
		return TimersApplied{}, timersError(err)
	}
	return timersApplied(text)
}

// timersApplied looks for the statuses and the earliest delivery in the results.
func timersApplied(text []byte) (TimersApplied, error) {
	var results []struct {
		Status    string    `json:"status"`
		DeliverAt time.Time `json:"deliverAt"` // scheduled and rescheduled only
	}
	if err := json.Unmarshal(text, &results); err != nil {
		return TimersApplied{}, fmt.Errorf("timer operations: %w: %w", errAnswer, err)
	}
	out := TimersApplied{Results: text, Statuses: make([]string, len(results))}
	for i, r := range results {
		out.Statuses[i] = r.Status
		if at := r.DeliverAt; !at.IsZero() && (out.Next.IsZero() || at.Before(out.Next)) {
			out.Next = at
		}
	}
	return out, nil
}

// timersError gives a refusal of timer operations its form, and leaves other errors
// as they are.
func timersError(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.Code == "22023": // ours, and that of the base64 decoder
		return &TimersRefused{Text: pg.Message, Hint: pg.Hint, cause: err}
	case refusedByJSONB(err):
		return &TimersRefused{Text: "QTIMER the operations cannot be read as JSON: " + pg.Message, cause: err}
	}
	return err
}

// TimerPeek is one timer with its payload; a miss has "found" false
// (log_timers_peek_v1).
func (s *Store) TimerPeek(ctx context.Context, tenant uuid.UUID, queue, key string) (RawJSON, error) {
	return s.rawJSON(ctx, "peek timer", `SELECT queen.log_timers_peek_v1($1, $2, $3)`, tenant, queue, key)
}

// TimersList is one page of the timers of a queue in the order of their keys, without
// payloads (log_timers_list_v1). A zero limit is the usual one of 100.
func (s *Store) TimersList(ctx context.Context, tenant uuid.UUID, queue, after string, limit int) (RawJSON, error) {
	var rows *int
	if limit != 0 {
		rows = &limit
	}
	out, err := s.rawJSON(ctx, "list timers", `SELECT queen.log_timers_list_v1($1, $2, $3, $4)`, tenant, queue, after, rows)
	return out, timersError(err)
}

// TimersCount counts the timers of a queue whose keys begin with prefix
// (log_timers_count_v1).
func (s *Store) TimersCount(ctx context.Context, tenant uuid.UUID, queue, prefix string) (n int64, err error) {
	err = s.scanOne(ctx, "count timers", `SELECT queen.log_timers_count_v1($1, $2, $3)`, []any{tenant, queue, prefix}, &n)
	return n, timersError(err)
}
