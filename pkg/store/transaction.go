package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
	// Of the riders: operations that are malformed, or too large.
	TxReasonBadRequest = "bad_request"
	TxReasonTooLarge   = "payload_too_large"
)

// TxRefused is a transaction that was rolled back for what it asked.
//
//nolint:errname // it is an answer, named for what became of the transaction
type TxRefused struct {
	Reason string
	Text   string // for the wire; ends with what happened to the transaction
	cause  error
}

// Error implements error.
func (e *TxRefused) Error() string { return e.Text }

// Unwrap gives the error of the database.
func (e *TxRefused) Unwrap() error { return e.cause }

const (
	// sqlstateAckRejected is raised by log_transaction_wire_v1 alone.
	sqlstateAckRejected = "QT001"

	// Messages of the procedures begin with a Q, those of timers with this; what
	// PostgreSQL itself has to say about an argument does not.
	procedurePrefix = "Q"
	timersPrefix    = "QTIMER "

	rolledBack = "transaction rolled back"
)

// refusal reads out of an error that the database has answered no, and would
// again; nil when it is something else.
func (t *Transaction) refusal(err error) *TxRefused {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || Classify(err) != Permanent || Ambiguous(err) {
		return nil
	}
	refused := t.riderRefusal(pg)
	switch {
	case refused != nil:
	case pg.Code == "23505" && pg.ConstraintName == "": // raised by the procedure, not by an index
		refused = &TxRefused{Reason: TxReasonDuplicate, Text: pg.Message}
	case pg.Code == sqlstateAckRejected:
		refused = &TxRefused{Reason: TxReasonAckRejected, Text: pg.Message}
	case pg.Code == "22023":
		refused = &TxRefused{Reason: TxReasonMisaligned, Text: pg.Message}
	default:
		refused = &TxRefused{Reason: TxReasonDBError, Text: pg.Message}
	}
	refused.cause = err
	if !strings.HasSuffix(refused.Text, rolledBack) {
		refused.Text += "; " + rolledBack
	}
	return refused
}

// riderRefusal is the refusal of riders; nil when they are not the reason, or not
// there.
func (t *Transaction) riderRefusal(pg *pgconn.PgError) *TxRefused {
	if len(t.KV) == 0 && len(t.Timers) == 0 {
		return nil
	}
	var kv *KVRefused
	switch {
	case pg.Code == "22023" && strings.HasPrefix(pg.Message, procedurePrefix) && !strings.HasPrefix(pg.Message, timersPrefix):
		return nil
	case errors.As(kvError(pg), &kv) && kv.TooLarge:
		return &TxRefused{Reason: TxReasonTooLarge, Text: kv.Error()}
	case kv != nil && kv.Reason == pg.Message:
		return &TxRefused{Reason: TxReasonBadRequest, Text: kv.Error()}
	case pg.Code == "22023" || refusedByJSONB(pg):
		return &TxRefused{Reason: TxReasonBadRequest, Text: pg.Message}
	}
	return nil
}

type txPushJSON struct {
	Queue       string     `json:"queue"`
	Partition   string     `json:"partition"`
	Count       int        `json:"count"`
	HashesHex   string     `json:"hashesHex"`
	Blob        []byte     `json:"blobB64"` // encoding/json writes bytes as base64
	Verified    int64      `json:"verified"`
	PartitionID *uuid.UUID `json:"partitionId,omitempty"`
	Window      int        `json:"window,omitempty"`
}

type txAckJSON struct {
	PartitionID uuid.UUID    `json:"partitionId"`
	Group       string       `json:"group"`
	Worker      string       `json:"worker,omitempty"`
	Workers     []string     `json:"workers,omitempty"`
	Acks        []txHashJSON `json:"acks,omitzero"`
	Upto        *int64       `json:"uptoOff,omitempty"`
	Count       int          `json:"count,omitempty"`
	Whole       bool         `json:"whole,omitempty"`
}

type txHashJSON struct {
	Hash   string    `json:"h"`
	Status AckStatus `json:"status"`
}

func (t Transaction) encode() ([]byte, error) {
	pushes := make([]txPushJSON, len(t.Pushes))
	for i := range t.Pushes {
		p := &t.Pushes[i]
		pushes[i] = txPushJSON{
			Queue: p.Queue, Partition: p.Partition, Count: p.Count, HashesHex: hex.EncodeToString(p.Hashes), Blob: p.Blob,
			Verified: p.Verified, Window: p.Window,
		}
		if p.PartitionID != uuid.Nil {
			pushes[i].PartitionID = &p.PartitionID
		}
	}
	acks := make([]txAckJSON, len(t.Acks))
	for i := range t.Acks {
		a := &t.Acks[i]
		if len(a.Statuses) != len(a.Hashes) {
			return nil, &TxRefused{Reason: TxReasonMisaligned, Text: fmt.Sprintf("ack %d has %d hashes and %d statuses; %s",
				i, len(a.Hashes), len(a.Statuses), rolledBack)}
		}
		acks[i] = a.encode()
	}
	request := map[string]any{"pushes": pushes, "acks": acks, "_tenant": t.Tenant}
	for name, rider := range map[string]json.RawMessage{"kv": t.KV, "timers": t.Timers} {
		if len(rider) == 0 {
			continue
		}
		if !json.Valid(rider) {
			return nil, &TxRefused{Reason: TxReasonBadRequest, Text: fmt.Sprintf("%s is no JSON; %s", name, rolledBack)}
		}
		request[name] = rider
	}
	if t.ProducerSub != "" {
		request["_producerSub"] = t.ProducerSub
	}
	return json.Marshal(request)
}

func (a *TxAck) encode() txAckJSON {
	out := txAckJSON{PartitionID: a.PartitionID, Group: a.Group, Worker: a.Worker, Workers: a.Workers}
	if a.Whole {
		out.Upto, out.Count, out.Whole = &a.End, len(a.Hashes), true
		return out
	}
	out.Acks = make([]txHashJSON, len(a.Hashes))
	for k := range a.Hashes {
		out.Acks[k] = txHashJSON{hex.EncodeToString(a.Hashes[k][:]), a.Statuses[k]}
	}
	return out
}

// Transaction runs pushes, acks and riders atomically (log_transaction_wire_v1).
// What the bundle itself is refused for comes back as *TxRefused, a key/value write
// that was required and lost as *KVPrecondition; nothing was written then.
func (s *Store) Transaction(ctx context.Context, t Transaction) (TransactionResult, error) {
	body, err := t.encode()
	if err != nil {
		return TransactionResult{}, fmt.Errorf("transaction: write the request: %w", err)
	}
	text, err := s.rawJSON(ctx, "transaction", `SELECT queen.log_transaction_wire_v1($1)`, body)
	if err != nil {
		var lost *KVPrecondition
		if errors.As(kvError(err), &lost) {
			return TransactionResult{}, lost
		}
		if refused := t.refusal(err); refused != nil {
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
		KV     RawJSON `json:"kv"`
		Timers RawJSON `json:"timers"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return TransactionResult{}, fmt.Errorf("transaction: %w: %w", errAnswer, err)
	}
	if len(answer.Pushes) != len(t.Pushes) || len(answer.Acks) != len(t.Acks) {
		return TransactionResult{}, fmt.Errorf("transaction: %w: %d and %d verdicts for %d pushes and %d acks", errAnswer,
			len(answer.Pushes), len(answer.Acks), len(t.Pushes), len(t.Acks))
	}
	result := TransactionResult{Acks: make([]AckOutcome, len(t.Acks)), KV: answer.KV}
	if len(answer.Timers) > 0 {
		var err error
		if result.Timers, err = timersApplied(answer.Timers); err != nil {
			return TransactionResult{}, fmt.Errorf("transaction: %w", err)
		}
	}
	for _, p := range answer.Pushes {
		result.Pushes = append(result.Pushes, PushVerdict{
			Status: PushQueued, PartitionID: p.PartitionID, BaseOffset: p.BaseOffset, CreatedAt: p.CreatedAt,
		})
	}
	for _, a := range answer.Acks {
		if a.Index < 0 || a.Index >= len(t.Acks) {
			return TransactionResult{}, fmt.Errorf("transaction: %w: verdict for ack %d of %d", errAnswer, a.Index, len(t.Acks))
		}
		ack := &t.Acks[a.Index]
		result.Acks[a.Index] = a.outcome(ack.Hashes, ack.Statuses)
		if ack.Whole {
			result.Acks[a.Index].Released = true // or the transaction would have been refused
		}
	}
	return result, nil
}
