package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// DLQOutcome is the answer of DLQHead. Error is a wire text; OK is false exactly
// when it is set.
type DLQOutcome struct {
	OK    bool
	Error string
	ID    uuid.UUID // of the dead-letter row
}

// DLQHead files a poison message, steps the cursor over it and gives the lease
// back (log_dlq_head_v1). It never fails on content: a payload that jsonb
// refuses is stored as {"$raw": base64}, and so is one that looks like that
// form already (design rule 9). DecodeSnapshot undoes it.
func (s *Store) DLQHead(ctx context.Context, d DeadLetter) (DLQOutcome, error) {
	d.Error = storable(d.Error)
	if isRawForm(d.Payload) || !fitsJSONB(d.Payload) {
		return s.dlqHead(ctx, d, rawForm(d.Payload))
	}
	out, err := s.dlqHead(ctx, d, d.Payload)
	if refusedByJSONB(err) {
		return s.dlqHead(ctx, d, rawForm(d.Payload))
	}
	return out, err
}

func (s *Store) dlqHead(ctx context.Context, d DeadLetter, payload []byte) (DLQOutcome, error) {
	text, err := s.rawJSON(ctx, "dead-letter", `SELECT queen.log_dlq_head_v1($1, $2, $3, $4, $5, $6, $7, $8)`,
		d.PartitionID, d.Group, d.Worker, d.Offset, d.MessageID, d.TransactionID, string(payload), d.Error)
	if err != nil {
		return DLQOutcome{}, err
	}
	var out DLQOutcome
	if err := json.Unmarshal(text, &out); err != nil {
		return DLQOutcome{}, fmt.Errorf("dead-letter: %w: %w", errAnswer, err)
	}
	return out, nil
}

// refusedByJSONB recognises what the jsonb type answers to content it cannot
// hold: class 22 (no JSON, bad escapes, numbers out of range), a nesting beyond
// the server's stack (54001), a string or document beyond its limits (54000).
func refusedByJSONB(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (class(pg) == "22" || class(pg) == "54")
}

// storable drops what a text column refuses.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}
