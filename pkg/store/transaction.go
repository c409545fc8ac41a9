package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// Reasons of a refused transaction, as the wire names them.
const (
	TxReasonDuplicate   = "duplicate"
	TxReasonAckRejected = "ack_rejected"
	TxReasonMisaligned  = "misaligned"
	TxReasonDBError     = "db_error"
)

// TxRefused is a transaction that was rolled back for what it asked.
type TxRefused struct {
	Reason string
	Text   string
}

// Error implements error.
func (e *TxRefused) Error() string { return e.Text }

// sqlstateAckRejected is raised by log_transaction_wire_v1 alone.
const sqlstateAckRejected = "QT001"

// refusal reads a definite refusal out of an error; nil when it is something else.
func refusal(err error) *TxRefused {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case "23505":
		if pg.ConstraintName == "" { // raised by the procedure, not by an index
			return &TxRefused{Reason: TxReasonDuplicate, Text: pg.Message}
		}
	case sqlstateAckRejected:
		return &TxRefused{Reason: TxReasonAckRejected, Text: pg.Message}
	case "22023":
		return &TxRefused{Reason: TxReasonMisaligned, Text: pg.Message}
	}
	return nil
}

type txPushJSON struct {
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
	Count     int    `json:"count"`
	HashesHex string `json:"hashesHex"`
	Blob      []byte `json:"blobB64"` // encoding/json writes bytes as base64
	Verified  int64  `json:"verified"`
}

type txAckJSON struct {
	PartitionID uuid.UUID    `json:"partitionId"`
	Group       string       `json:"group"`
	Worker      string       `json:"worker,omitempty"`
	Workers     []string     `json:"workers,omitempty"`
	Acks        []txHashJSON `json:"acks"`
}

type txHashJSON struct {
	Hash   string    `json:"h"`
	Status AckStatus `json:"status"`
}

func (t Transaction) encode() ([]byte, error) {
	pushes := make([]txPushJSON, len(t.Pushes))
	for i, p := range t.Pushes {
		verified := p.Verified
		if verified == 0 {
			verified = VerifiedNone // the zero value vouches for nothing
		}
		pushes[i] = txPushJSON{p.Queue, p.Partition, p.Count, hex.EncodeToString(p.Hashes), p.Blob, verified}
	}
	acks := make([]txAckJSON, len(t.Acks))
	for i, a := range t.Acks {
		acks[i] = txAckJSON{PartitionID: a.PartitionID, Group: a.Group, Worker: a.Worker, Workers: a.Workers}
		for k := range a.Hashes {
			acks[i].Acks = append(acks[i].Acks, txHashJSON{hex.EncodeToString(a.Hashes[k][:]), a.Statuses[k]})
		}
	}
	return json.Marshal(map[string]any{"pushes": pushes, "acks": acks, "_tenant": t.Tenant})
}

// Transaction runs pushes and acks atomically (log_transaction_wire_v1). What
// the bundle itself is refused for comes back as *TxRefused; nothing was written
// then.
func (s *Store) Transaction(ctx context.Context, t Transaction) (TransactionResult, error) {
	body, err := t.encode()
	if err != nil {
		return TransactionResult{}, fmt.Errorf("transaction: write the request: %w", err)
	}
	text, err := s.rawJSON(ctx, "transaction", `SELECT queen.log_transaction_wire_v1($1)`, string(body))
	if err != nil {
		if refused := refusal(err); refused != nil {
			return TransactionResult{}, refused
		}
		return TransactionResult{}, err
	}
	return decodeTransaction(text, t)
}

func decodeTransaction(text []byte, t Transaction) (TransactionResult, error) {
	var answer struct {
		Pushes []struct {
			BaseOffset  int64     `json:"baseOffset"`
			CreatedAt   time.Time `json:"createdAt"`
			PartitionID uuid.UUID `json:"partitionId"`
		} `json:"pushes"`
		Acks []struct {
			ackVerdict
			Index int `json:"index"`
		} `json:"acks"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return TransactionResult{}, fmt.Errorf("transaction: %w: %w", errAnswer, err)
	}
	if len(answer.Pushes) != len(t.Pushes) || len(answer.Acks) != len(t.Acks) {
		return TransactionResult{}, fmt.Errorf("transaction: %d and %d verdicts for %d pushes and %d acks",
			len(answer.Pushes), len(answer.Acks), len(t.Pushes), len(t.Acks))
	}
	result := TransactionResult{Acks: make([]AckOutcome, len(t.Acks))}
	for _, p := range answer.Pushes {
		result.Pushes = append(result.Pushes, PushVerdict{
			Status: PushQueued, PartitionID: p.PartitionID, BaseOffset: p.BaseOffset, CreatedAt: p.CreatedAt,
		})
	}
	for _, a := range answer.Acks {
		if a.Index < 0 || a.Index >= len(t.Acks) {
			return TransactionResult{}, fmt.Errorf("transaction: verdict for ack %d of %d", a.Index, len(t.Acks))
		}
		result.Acks[a.Index] = a.outcome(t.Acks[a.Index].Hashes)
	}
	return result, nil
}
