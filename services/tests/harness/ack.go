package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ack is one acknowledgement. Empty texts are left out of the request.
type Ack struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        string `json:"status,omitempty"`
	LeaseID       string `json:"leaseId,omitempty"`
	Error         string `json:"error,omitempty"`
	// ConsumerGroup is read by the single route and in transactions only.
	ConsumerGroup string `json:"consumerGroup,omitempty"`
}

// AckResult is the verdict on one acknowledgement.
type AckResult struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

// ErrorText is the reason of a refusal, or "".
func (r AckResult) ErrorText() string {
	if r.Error == nil {
		return ""
	}
	return *r.Error
}

// TryAck sends a batch for a group ("" for none); an answer other than 200 is
// an error.
func (c *Client) TryAck(ctx context.Context, group string, acks ...Ack) ([]AckResult, error) {
	request := map[string]any{"acknowledgments": acks}
	if group != "" {
		request["consumerGroup"] = group
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	a, err := c.callAgain(ctx, http.MethodPost, "/api/v1/ack/batch", body)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("ack answered %s", a)
	}
	var results []AckResult
	if err := decode(a, &results); err != nil {
		return nil, err
	}
	if len(results) != len(acks) {
		return nil, fmt.Errorf("ack of %d items answered %s", len(acks), a)
	}
	return results, nil
}

// Ack sends a batch for a group ("" for none) and requires one verdict each.
func (c *Client) Ack(t testing.TB, group string, acks ...Ack) []AckResult {
	t.Helper()
	results, err := c.TryAck(t.Context(), group, acks...)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, i, r.Index)
		require.Equal(t, acks[i].TransactionID, r.TransactionID)
		require.Equal(t, r.Success, r.Error == nil, "an accepted item has no error and a refused one has: %+v", r)
	}
	return results
}

// AckOK sends a batch and requires every item accepted.
func (c *Client) AckOK(t testing.TB, group string, acks ...Ack) []AckResult {
	t.Helper()
	results := c.Ack(t, group, acks...)
	for _, r := range results {
		require.True(t, r.Success, "%+v: %s", r, r.ErrorText())
	}
	return results
}

// AckOne uses the single route.
func (c *Client) AckOne(t testing.TB, ack Ack) AckResult {
	t.Helper()
	body, err := json.Marshal(ack)
	require.NoError(t, err)
	a := c.Post(t, "/api/v1/ack", string(body))
	require.Equal(t, http.StatusOK, a.Status, a)
	var results []AckResult
	a.Into(t, &results)
	require.Len(t, results, 1, "the single route answers an array of one: %s", a)
	return results[0]
}

// Extended is the answer to a lease extension.
type Extended struct {
	LeaseID        string  `json:"leaseId"`
	Success        bool    `json:"success"`
	Renewed        int     `json:"renewed"`
	NewExpiresAt   *string `json:"newExpiresAt"`
	ExpiresAt      *string `json:"expiresAt"`
	LeaseExpiresAt *string `json:"lease_expires_at"`
}

// Extend prolongs a lease with the given body.
func (c *Client) Extend(t testing.TB, leaseID, body string) Extended {
	t.Helper()
	a := c.Post(t, "/api/v1/lease/"+url.PathEscape(leaseID)+"/extend", body)
	require.Equal(t, http.StatusOK, a.Status, a)
	var e Extended
	a.Into(t, &e)
	return e
}
