package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// DLQMessages lists dead letters, newest first (get_dlq_messages_v1). Payloads
// come back as they were pushed.
func (s *Store) DLQMessages(ctx context.Context, f DLQFilter) (RawJSON, error) {
	filters := map[string]any{"_tenant": f.Tenant, "limit": f.Limit, "offset": f.Offset}
	for key, value := range map[string]string{
		"queue": f.Queue, "consumerGroup": f.ConsumerGroup, "partition": f.Partition,
		"from": instant(f.From), "to": instant(f.To),
	} {
		if value != "" {
			filters[key] = value
		}
	}
	body, err := json.Marshal(filters)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: write the filters: %w", err)
	}
	answer, err := s.rawJSON(ctx, "list dead letters", `SELECT queen.get_dlq_messages_v1($1)`, string(body))
	if err != nil || !bytes.Contains(answer, []byte(rawKey)) {
		return answer, err
	}
	return restoreSnapshots(answer)
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// restoreSnapshots puts the payload's own bytes where the page holds the form
// that jsonb could store.
func restoreSnapshots(page RawJSON) (RawJSON, error) {
	var envelope map[string]json.RawMessage
	if err := json.Unmarshal(page, &envelope); err != nil {
		return nil, fmt.Errorf("list dead letters: %w: %w", errAnswer, err)
	}
	var messages []map[string]json.RawMessage
	if err := json.Unmarshal(envelope["messages"], &messages); err != nil {
		return nil, fmt.Errorf("list dead letters: %w: %w", errAnswer, err)
	}
	for _, m := range messages {
		m["data"] = DecodeSnapshot(m["data"])
	}
	var err error
	if envelope["messages"], err = json.Marshal(messages); err != nil {
		return nil, fmt.Errorf("list dead letters: %w: %w", errAnswer, err)
	}
	return json.Marshal(envelope)
}
