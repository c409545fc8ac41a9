package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Message is one delivered message.
type Message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	TraceID         *string         `json:"traceId"`
	Data            json.RawMessage `json:"data"`
	ProducerSub     *string         `json:"producerSub"`
	CreatedAt       string          `json:"createdAt"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	ConsumerGroup   string          `json:"consumerGroup"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
}

// Popped is the answer to one pop; it is empty after a 204.
type Popped struct {
	Answer            `json:"-"`
	Success           bool      `json:"success"`
	Queue             string    `json:"queue"`
	Partition         string    `json:"partition"`
	PartitionID       string    `json:"partitionId"`
	LeaseID           string    `json:"leaseId"`
	ConsumerGroup     string    `json:"consumerGroup"`
	Messages          []Message `json:"messages"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
}

// PopPath is the address of a pop of one queue. query is what follows the
// question mark.
func PopPath(queue, query string) string {
	return "/api/v1/pop/queue/" + url.PathEscape(queue) + "?" + query
}

// PopPartitionPath is the address of a pop of one partition.
func PopPartitionPath(queue, partition, query string) string {
	return "/api/v1/pop/queue/" + url.PathEscape(queue) + "/partition/" + url.PathEscape(partition) + "?" + query
}

// TryPop pops by address; an answer other than 200 and 204 is an error.
func (c *Client) TryPop(ctx context.Context, path string) (Popped, error) {
	a, err := c.callAgain(ctx, http.MethodGet, path, nil)
	if err != nil {
		return Popped{}, err
	}
	p := Popped{Answer: a}
	switch a.Status {
	case http.StatusNoContent:
		return p, nil
	case http.StatusOK:
		return p, decode(a, &p)
	default:
		return p, fmt.Errorf("GET %s answered %s", path, a)
	}
}

func (c *Client) pop(t testing.TB, path string) Popped {
	t.Helper()
	p, err := c.TryPop(t.Context(), path)
	require.NoError(t, err)
	return p
}

// popPatience is how long Pop is repeated while nothing is delivered: a broker
// picks partitions from memory, and may not have heard yet what another broker
// stored or what the test changed in the database.
const popPatience = 5 * time.Second

// hintTime is what brokers get to hear of each other's writes before a pop of
// theirs is compared with all that was written.
const hintTime = 100 * time.Millisecond

// Pop pops from whichever partitions of a queue the broker chooses. The test
// expects something there; RequireNone looks for nothing.
func (c *Client) Pop(t testing.TB, queue, query string) Popped {
	t.Helper()
	if len(c.urls) > 1 {
		time.Sleep(hintTime)
	}
	for deadline := time.Now().Add(popPatience); ; time.Sleep(pollEvery) {
		p := c.pop(t, PopPath(queue, query))
		if p.Status != http.StatusNoContent || strings.Contains(query, "wait=true") || time.Now().After(deadline) {
			return p
		}
	}
}

// RequireNone requires that no broker has anything to deliver.
func (c *Client) RequireNone(t testing.TB, path string) {
	t.Helper()
	for range c.urls {
		c.pop(t, path).RequireEmpty(t)
	}
}

// PopPartition pops from one partition.
func (c *Client) PopPartition(t testing.TB, queue, partition, query string) Popped {
	t.Helper()
	return c.pop(t, PopPartitionPath(queue, partition, query))
}

// Discover pops by namespace or task.
func (c *Client) Discover(t testing.TB, query string) Popped {
	t.Helper()
	return c.pop(t, "/api/v1/pop?"+query)
}

// RequireEmpty requires that nothing was delivered.
func (p Popped) RequireEmpty(t testing.TB) {
	t.Helper()
	require.Equal(t, http.StatusNoContent, p.Status, "nothing to deliver: %s", p.Answer)
}

// Payloads are the delivered JSON texts in order.
func (p Popped) Payloads() []string {
	out := make([]string, len(p.Messages))
	for i, m := range p.Messages {
		out[i] = string(m.Data)
	}
	return out
}

// IDs are the delivered transaction ids in order.
func (p Popped) IDs() []string {
	out := make([]string, len(p.Messages))
	for i, m := range p.Messages {
		out[i] = m.TransactionID
	}
	return out
}

// Partitions are the distinct partition names in order of appearance.
func (p Popped) Partitions() []string {
	var out []string
	seen := map[string]bool{}
	for _, m := range p.Messages {
		if !seen[m.Partition] {
			seen[m.Partition] = true
			out = append(out, m.Partition)
		}
	}
	return out
}

// Acks acknowledges every delivered message with one status.
func (p Popped) Acks(status string) []Ack {
	out := make([]Ack, len(p.Messages))
	for i, m := range p.Messages {
		out[i] = m.Ack(status)
	}
	return out
}

// Ack is the acknowledgement of the message under its lease.
func (m Message) Ack(status string) Ack {
	return Ack{TransactionID: m.TransactionID, PartitionID: m.PartitionID, Status: status, LeaseID: m.LeaseID}
}
