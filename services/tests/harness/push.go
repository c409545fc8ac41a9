package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Item is one message to push. Empty texts are left out of the request.
type Item struct {
	Queue         string `json:"queue"`
	Partition     string `json:"partition,omitempty"`
	TransactionID string `json:"transactionId,omitempty"`
	Payload       any    `json:"payload"`
}

// PushResult is the verdict on one item.
type PushResult struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
	Error         string `json:"error"`
}

// TryPush pushes items; an answer other than 201 is an error.
func (c *Client) TryPush(ctx context.Context, items ...Item) ([]PushResult, error) {
	body, err := json.Marshal(map[string]any{"items": items})
	if err != nil {
		return nil, err
	}
	a, err := c.callAgain(ctx, http.MethodPost, "/api/v1/push", body)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusCreated {
		return nil, fmt.Errorf("push answered %s", a)
	}
	var results []PushResult
	if err := decode(a, &results); err != nil {
		return nil, err
	}
	if len(results) != len(items) {
		return nil, fmt.Errorf("push of %d items answered %s", len(items), a)
	}
	return results, nil
}

// Push pushes items and requires one verdict for each.
func (c *Client) Push(t testing.TB, items ...Item) []PushResult {
	t.Helper()
	results, err := c.TryPush(t.Context(), items...)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, i, r.Index)
		require.Equal(t, items[i].Queue, r.QueueName)
	}
	return results
}

// PushQueued pushes items, requires all of them stored, and answers their
// transaction ids.
func (c *Client) PushQueued(t testing.TB, items ...Item) []string {
	t.Helper()
	ids := make([]string, len(items))
	for i, r := range c.Push(t, items...) {
		require.Equal(t, "queued", r.Status, "item %d: %+v", i, r)
		ids[i] = r.TransactionID
	}
	return ids
}

// PushEach pushes payloads 0 to n-1 to one partition, one request each, so
// that each becomes a segment of its own.
func (c *Client) PushEach(t testing.TB, queue, partition string, n int) []string {
	t.Helper()
	ids := make([]string, 0, n)
	for i := range n {
		ids = append(ids, c.PushQueued(t, Item{Queue: queue, Partition: partition, Payload: i})...)
	}
	return ids
}

// PushTogether pushes payloads 0 to n-1 to one partition in one request.
func (c *Client) PushTogether(t testing.TB, queue, partition string, n int) []string {
	t.Helper()
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{Queue: queue, Partition: partition, Payload: i}
	}
	return c.PushQueued(t, items...)
}
