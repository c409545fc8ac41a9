package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// rawKey marks a snapshot that jsonb could not hold as it was.
const rawKey = "$raw"

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
// form already (design rule 9).
func (s *Store) DLQHead(ctx context.Context, d DeadLetter) (DLQOutcome, error) {
	payload := d.Payload
	if isRawForm(payload) {
		payload = rawForm(payload)
	}
	out, err := s.dlqHead(ctx, d, payload)
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
// hold: class 22 (NUL, lone surrogates, numbers out of range), a nesting beyond
// the server's stack (54001), a string or document beyond its limits (54000).
func refusedByJSONB(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code[:2] == "22" || pg.Code[:2] == "54")
}

func rawForm(payload []byte) []byte {
	out := []byte(`{"` + rawKey + `":"`)
	out = base64.StdEncoding.AppendEncode(out, payload)
	return append(out, `"}`...)
}

// isRawForm tells whether a payload is an object with the marker as only key.
func isRawForm(payload []byte) bool {
	if !bytes.Contains(payload, []byte(rawKey)) {
		return false
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(payload, &object) != nil || len(object) != 1 {
		return false
	}
	_, marked := object[rawKey]
	return marked
}
