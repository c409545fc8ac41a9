package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// Trace is what a consumer has to tell about a message.
type Trace struct {
	Tenant        uuid.UUID
	PartitionID   string // as it was sent: the database says what is wrong with it
	TransactionID string
	ConsumerGroup string
	EventType     string
	Data          json.RawMessage
	WorkerID      string
	Names         []string
}

// RecordTrace stores a trace (record_trace_v1). Data that jsonb refuses is stored as
// {"$raw": base64}, like that of a dead letter.
func (s *Store) RecordTrace(ctx context.Context, t Trace) (RawJSON, error) {
	if isRawForm(t.Data) || !fitsJSONB(t.Data) {
		return s.recordTrace(ctx, t, rawForm(t.Data))
	}
	doc, err := s.recordTrace(ctx, t, t.Data)
	if refusedByJSONB(err) && uuid.Validate(t.PartitionID) == nil {
		return s.recordTrace(ctx, t, rawForm(t.Data))
	}
	return doc, err
}

func (s *Store) recordTrace(ctx context.Context, t Trace, data []byte) (RawJSON, error) {
	body, err := json.Marshal(map[string]any{
		"_tenant": t.Tenant, "partitionId": t.PartitionID, "transactionId": t.TransactionID, "consumerGroup": t.ConsumerGroup,
		"eventType": t.EventType, "data": json.RawMessage(data), "workerId": t.WorkerID, "traceNames": t.Names,
	})
	if err != nil {
		return nil, fmt.Errorf("record trace: write it: %w", err)
	}
	return s.rawJSON(ctx, "record trace", `SELECT queen.record_trace_v1($1)`, string(body))
}

// MessageTraces lists the traces of a message, oldest first (get_message_traces_v1).
func (s *Store) MessageTraces(ctx context.Context, tenant, partition uuid.UUID, txn string, p PageArgs) (RawJSON, error) {
	return s.traces(ctx, `SELECT queen.get_message_traces_v1($1, $2, $3, $4, $5)`, partition, txn, p.Limit, p.after(), tenant)
}

// TracesByName lists the traces that carry a name, oldest first
// (get_traces_by_name_v1).
func (s *Store) TracesByName(ctx context.Context, tenant uuid.UUID, name string, p PageArgs) (RawJSON, error) {
	return s.traces(ctx, `SELECT queen.get_traces_by_name_v1($1, $2, $3, $4, $5)`, name, p.Limit, p.Offset, p.after(), tenant)
}

// TraceNames lists the names that traces carry, the most recently seen first
// (get_available_trace_names_v1).
func (s *Store) TraceNames(ctx context.Context, tenant uuid.UUID, p PageArgs) (RawJSON, error) {
	return s.traces(ctx, `SELECT queen.get_available_trace_names_v1($1, $2, $3, $4)`, p.Limit, p.Offset, p.after(), tenant)
}

func (s *Store) traces(ctx context.Context, call string, args ...any) (RawJSON, error) {
	doc, err := s.rawJSON(ctx, "list traces", call, args...)
	return doc, browseError(err)
}

// PageArgs say which rows of a listing are shown.
type PageArgs struct {
	Limit, Offset int
	After         string // the "next" of an earlier page
}

// after is NULL for the first page.
func (p PageArgs) after() *string {
	if p.After == "" {
		return nil
	}
	return &p.After
}
