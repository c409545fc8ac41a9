package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Transaction is one bundle. Operations holds what PushOp and AckOp made.
type Transaction struct {
	Operations     []any    `json:"operations"`
	RequiredLeases []string `json:"requiredLeases,omitempty"`
}

// TxResult is the outcome of one flattened operation.
type TxResult struct {
	Index         int     `json:"index"`
	Type          string  `json:"type"`
	Success       bool    `json:"success"`
	TransactionID string  `json:"transactionId"`
	MessageID     string  `json:"messageId"`
	QueueName     string  `json:"queueName"`
	Duplicate     bool    `json:"duplicate"`
	DLQ           bool    `json:"dlq"`
	Error         *string `json:"error"`
}

// TxAnswer is the outcome of a bundle.
type TxAnswer struct {
	Answer        `json:"-"`
	TransactionID string     `json:"transactionId"`
	Success       bool       `json:"success"`
	Reason        string     `json:"reason"`
	Error         string     `json:"error"`
	Results       []TxResult `json:"results"`
}

// PushOp is a push operation in the form with items.
func PushOp(items ...Item) any {
	return map[string]any{"type": "push", "items": items}
}

// AckOp is an ack operation.
func AckOp(ack Ack) any {
	return struct {
		Type string `json:"type"`
		Ack
	}{"ack", ack}
}

// TryTransact runs a bundle; an answer other than 200 is an error.
func (c *Client) TryTransact(ctx context.Context, tx Transaction) (TxAnswer, error) {
	body, err := json.Marshal(tx)
	if err != nil {
		return TxAnswer{}, err
	}
	a, err := c.callAgain(ctx, http.MethodPost, "/api/v1/transaction", body)
	if err != nil {
		return TxAnswer{}, err
	}
	if a.Status != http.StatusOK {
		return TxAnswer{}, fmt.Errorf("transaction answered %s", a)
	}
	answer := TxAnswer{Answer: a}
	return answer, decode(a, &answer)
}

// Transact runs a bundle and requires a processed answer.
func (c *Client) Transact(t testing.TB, tx Transaction) TxAnswer {
	t.Helper()
	answer, err := c.TryTransact(t.Context(), tx)
	require.NoError(t, err)
	require.NotEmpty(t, answer.TransactionID)
	return answer
}

// Commit runs a bundle and requires that it was committed.
func (c *Client) Commit(t testing.TB, tx Transaction) TxAnswer {
	t.Helper()
	answer := c.Transact(t, tx)
	require.True(t, answer.Success, "%s", answer.Answer)
	for i, r := range answer.Results {
		require.Equal(t, i, r.Index)
		require.True(t, r.Success)
	}
	return answer
}

// Refuse runs a bundle and requires that it was rolled back for a reason.
func (c *Client) Refuse(t testing.TB, reason string, tx Transaction) TxAnswer {
	t.Helper()
	answer := c.Transact(t, tx)
	require.False(t, answer.Success, "%s", answer.Answer)
	require.Equal(t, reason, answer.Reason, "%s", answer.Answer)
	require.NotEmpty(t, answer.Error)
	require.Contains(t, string(answer.Body), `"results":[]`, "a rolled back bundle has no results")
	return answer
}

// TransactRaw sends a body as it is.
func (c *Client) TransactRaw(t testing.TB, body string) TxAnswer {
	t.Helper()
	a := c.Post(t, "/api/v1/transaction", body)
	require.Equal(t, http.StatusOK, a.Status, a)
	answer := TxAnswer{Answer: a}
	a.Into(t, &answer)
	return answer
}
