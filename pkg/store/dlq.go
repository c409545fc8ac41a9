package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// DLQMessages lists dead letters, newest first (get_dlq_messages_v1): a hundred
// when f has no limit. A payload that jsonb could not hold is shown in the form
// it is stored in, {"$raw": base64}: spliced in as it was pushed, it would make
// the page unreadable for the parsers that it has already defeated.
func (s *Store) DLQMessages(ctx context.Context, f DLQFilter) (RawJSON, error) {
	filters := map[string]any{"_tenant": f.Tenant, "offset": f.Offset}
	if f.Limit > 0 {
		filters["limit"] = f.Limit
	}
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
	return s.rawJSON(ctx, "list dead letters", `SELECT queen.get_dlq_messages_v1($1)`, string(body))
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
