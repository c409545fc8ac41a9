package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DLQFilter selects dead-lettered messages. Zero values do not filter.
type DLQFilter struct {
	Tenant        uuid.UUID
	Queue         string
	ConsumerGroup string
	Partition     string
	From, To      time.Time // of the failure
	Limit, Offset int
	After         string // the "next" of an earlier page
}

func (f DLQFilter) filters() filters {
	out := newFilters(f.Tenant)
	out.text("queue", f.Queue)
	out.text("consumerGroup", f.ConsumerGroup)
	out.text("partition", f.Partition)
	out.instant("from", f.From)
	out.instant("to", f.To)
	return out
}

// DLQMessages lists dead letters, newest first (get_dlq_messages_v1): a hundred
// when f has no limit. A payload that jsonb could not hold is shown in the form
// it is stored in, {"$raw": base64}: spliced in as it was pushed, it would make
// the page unreadable for the parsers that it has already defeated.
func (s *Store) DLQMessages(ctx context.Context, f DLQFilter) (RawJSON, error) {
	filters := f.filters()
	filters.page(f.Limit, f.Offset, f.After)
	body, err := filters.json()
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	doc, err := s.rawJSON(ctx, "list dead letters", `SELECT queen.get_dlq_messages_v1($1)`, body)
	return doc, browseError(err)
}

// Letter is one dead letter.
type Letter struct {
	ID               uuid.UUID
	Queue, Partition string
	Group            string
	TransactionID    string
	Payload          []byte // as it was pushed, or nearly: jsonb keeps values, not spellings
}

// DLQLetter reads a dead letter by its id (log_dlq_find_v1); false for one that the
// tenant does not have.
func (s *Store) DLQLetter(ctx context.Context, tenant, id uuid.UUID) (Letter, bool, error) {
	return s.letter(ctx, id, nil, nil, tenant)
}

// DLQNewest reads the newest dead letter at an address, one of a timer only where
// there is no other (log_dlq_find_v1).
func (s *Store) DLQNewest(ctx context.Context, tenant, partition uuid.UUID, txn string) (Letter, bool, error) {
	return s.letter(ctx, nil, partition, txn, tenant)
}

func (s *Store) letter(ctx context.Context, args ...any) (Letter, bool, error) {
	var l Letter
	err := s.scanOne(ctx, "read dead letter",
		`SELECT r_id, r_queue, r_partition, r_group, r_txn, r_payload FROM queen.log_dlq_find_v1($1, $2, $3, $4)`, args,
		&l.ID, &l.Queue, &l.Partition, &l.Group, &l.TransactionID, &l.Payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return Letter{}, false, nil
	}
	l.Payload = DecodeSnapshot(l.Payload)
	return l, err == nil, err
}

// Replay is a dead letter on its way back into a lane.
type Replay struct {
	Tenant           uuid.UUID
	ID               uuid.UUID // of the letter
	Queue, Partition string    // created where they are missing
	Hash, Blob       []byte    // a segment of one message
}

// ReplayResult is what became of a replay.
type ReplayResult string

// The results of a replay.
const (
	ReplayMoved     ReplayResult = "moved"
	ReplayDuplicate ReplayResult = "duplicate" // the lane has the message: nothing was changed
	ReplayGone      ReplayResult = "gone"      // there is no such letter
)

// Replayed is the answer to a Replay.
type Replayed struct {
	Result ReplayResult `json:"result"`
	Offset int64        `json:"offset"` // moved: of the message; duplicate: of the one that is there
}

// DLQReplay moves a dead letter to the end of a lane, in one transaction
// (log_dlq_replay_v1).
func (s *Store) DLQReplay(ctx context.Context, r Replay) (Replayed, error) {
	text, err := s.rawJSON(ctx, "replay dead letter", `SELECT queen.log_dlq_replay_v1($1, $2, $3, $4, $5, $6)`,
		r.ID, r.Queue, r.Partition, r.Hash, r.Blob, r.Tenant)
	if err != nil {
		return Replayed{}, err
	}
	var out Replayed
	if err := json.Unmarshal(text, &out); err != nil {
		return Replayed{}, fmt.Errorf("replay dead letter: %w: %w", errAnswer, err)
	}
	return out, nil
}

// DLQDelete deletes the dead letters at an address, those of all groups, and counts
// them (log_dlq_delete_v1).
func (s *Store) DLQDelete(ctx context.Context, tenant, partition uuid.UUID, txn string) (n int64, err error) {
	err = s.scanOne(ctx, "delete dead letters", `SELECT queen.log_dlq_delete_v1($1, $2, $3)`, []any{partition, txn, tenant}, &n)
	return n, err
}

// DLQPurge deletes up to rows of the dead letters that f selects, in one transaction,
// and counts them (log_dlq_purge_step_v1). f names a queue; the page is not looked at.
func (s *Store) DLQPurge(ctx context.Context, f DLQFilter, rows int) (n int64, err error) {
	body, err := f.filters().json()
	if err != nil {
		return 0, fmt.Errorf("purge dead letters: %w", err)
	}
	err = s.scanOne(ctx, "purge dead letters", `SELECT queen.log_dlq_purge_step_v1($1, $2)`, []any{body, rows}, &n)
	return n, err
}
