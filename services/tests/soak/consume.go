package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// message is what a consumer needs of a delivered one.
type message struct {
	TransactionID string  `json:"transactionId"`
	PartitionID   string  `json:"partitionId"`
	Partition     string  `json:"partition"`
	LeaseID       string  `json:"leaseId"`
	Attempt       int     `json:"deliveryAttempt"`
	Data          payload `json:"data"`
}

type ack struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
}

type ackResult struct {
	Success bool    `json:"success"`
	Error   *string `json:"error"`
}

// consumer pops and acknowledges for a group.
type consumer struct {
	cfg    *Config
	client *client
	tally  *tally
	book   *book
	group  string
	path   string
}

func newConsumer(cfg *Config, c *client, t *tally, b *book, queue, group string) *consumer {
	q := url.Values{
		"consumerGroup": {group}, "subscriptionMode": {"all"}, "batch": {strconv.Itoa(cfg.Batch)}, "partitions": {strconv.Itoa(cfg.Claim)},
		"leaseSeconds": {strconv.Itoa(int(cfg.Lease / time.Second))}, "wait": {"true"}, "timeout": {strconv.FormatInt(cfg.Poll.Milliseconds(), 10)},
	}
	return &consumer{
		cfg: cfg, client: c, tally: t, book: b, group: group,
		path: "/api/v1/pop/queue/" + url.PathEscape(queue) + "?" + q.Encode(),
	}
}

// run consumes until ctx ends.
func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		got, err := c.client.ask(ctx, request{"pop", http.MethodGet, c.path, nil, http.StatusOK})
		if err != nil || got.status == http.StatusNoContent {
			sleep(ctx, pauseMin) // a broker that is about to end answers at once
			continue
		}
		arrived := time.Now()
		var popped struct {
			Messages []message `json:"messages"`
		}
		if err := json.Unmarshal(got.body, &popped); err != nil || len(popped.Messages) == 0 {
			c.tally.surprised("pop unreadable", "%v: %.200s", err, got.body)
			continue
		}
		if deliveries, err := c.note(popped.Messages, got.asked, arrived); err != nil {
			c.tally.surprised("pop unreadable", "%v", err)
		} else {
			c.settle(context.WithoutCancel(ctx), popped.Messages, deliveries)
		}
	}
}

// note has the book judge every lane of an answer.
func (c *consumer) note(messages []message, asked, arrived time.Time) ([]*delivery, error) {
	var out []*delivery
	for from := 0; from < len(messages); {
		to, numbers := from, []int(nil)
		for ; to < len(messages) && messages[to].Partition == messages[from].Partition; to++ {
			numbers = append(numbers, messages[to].Data.N)
			if messages[to].Attempt > 1 {
				c.tally.reclaimed.Add(1)
			}
		}
		lane, err := strconv.Atoi(strings.TrimPrefix(messages[from].Partition, lanePrefix))
		if err != nil || lane < 0 || lane >= len(c.book.lanes) {
			return nil, fmt.Errorf("%s: a lane that nobody pushed to: %q", c.book.name, messages[from].Partition)
		}
		out = append(out, c.book.deliver(lane, numbers, asked, arrived))
		from = to
	}
	return out, nil
}

// settle acknowledges an answer as a whole. A delivery whose lease has ended meanwhile
// comes again.
func (c *consumer) settle(ctx context.Context, messages []message, deliveries []*delivery) {
	acks := make([]ack, len(messages))
	for i, m := range messages {
		acks[i] = ack{m.TransactionID, m.PartitionID, m.LeaseID, "completed"}
	}
	body, err := json.Marshal(map[string]any{"consumerGroup": c.group, "acknowledgments": acks})
	if err != nil {
		c.tally.surprised("ack", "encode: %v", err)
		return
	}
	got, err := c.client.ask(ctx, request{"ack", http.MethodPost, "/api/v1/ack/batch", body, http.StatusOK})
	if err != nil || got.lost > 0 {
		for _, d := range deliveries {
			c.book.lose(d)
		}
	}
	var results []ackResult
	if err == nil {
		err = json.Unmarshal(got.body, &results)
	}
	if err != nil || len(results) != len(messages) {
		if err == nil || got.status != 0 {
			c.tally.surprised("ack unreadable", "%v: %.200s", err, got.body)
		}
		return
	}
	at := 0
	for _, d := range deliveries {
		c.conclude(d, results[at:at+d.size], got.lost > 0)
		at += d.size
	}
}

// conclude notes what became of the acknowledgement of one delivery.
func (c *consumer) conclude(d *delivery, results []ackResult, unsure bool) {
	for _, r := range results {
		if r.Success {
			continue
		}
		if held := time.Since(d.asked); held < c.book.lease && !unsure {
			c.tally.surprised("ack refused", "%s: lane %d from %d after %v: %s", c.book.name, d.lane, d.first, held, text(r.Error))
		}
		return
	}
	c.book.acknowledge(d)
}

func text(s *string) string {
	if s == nil {
		return "no reason"
	}
	return *s
}
