package harness

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Configure sets a queue's options (a JSON object) and answers the body.
func (c *Client) Configure(t testing.TB, queue, options string) map[string]any {
	t.Helper()
	body, err := json.Marshal(map[string]any{"queue": queue, "options": json.RawMessage(options)})
	require.NoError(t, err)
	a := c.Post(t, "/api/v1/configure", string(body))
	require.Equal(t, http.StatusOK, a.Status, a)
	object := a.Object(t)
	require.Equal(t, true, object["configured"])
	return object
}

// DeleteQueue removes a queue and answers the body.
func (c *Client) DeleteQueue(t testing.TB, queue string) map[string]any {
	t.Helper()
	a := c.Delete(t, "/api/v1/resources/queues/"+url.PathEscape(queue))
	require.Equal(t, http.StatusOK, a.Status, a)
	return a.Object(t)
}

// DeadLetter is one dead-lettered message.
type DeadLetter struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	ConsumerGroup string          `json:"consumerGroup"`
	ErrorMessage  string          `json:"errorMessage"`
	RetryCount    int             `json:"retryCount"`
	Data          json.RawMessage `json:"data"`
	ProducerSub   *string         `json:"producerSub"`
	CreatedAt     string          `json:"createdAt"`
	FailedAt      string          `json:"failedAt"`
}

// DLQ lists the dead letters of a queue. more is appended to the query.
func (c *Client) DLQ(t testing.TB, queue, more string) []DeadLetter {
	t.Helper()
	a := c.Get(t, "/api/v1/dlq?queue="+url.QueryEscape(queue)+more)
	require.Equal(t, http.StatusOK, a.Status, a)
	var page struct {
		Messages []DeadLetter `json:"messages"`
		Total    *int         `json:"total"`
	}
	a.Into(t, &page)
	require.NotNil(t, page.Messages, "messages is an array: %s", a)
	require.NotNil(t, page.Total, "total is present: %s", a)
	require.Len(t, page.Messages, *page.Total)
	return page.Messages
}
