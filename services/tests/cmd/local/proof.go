package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	proofQueue     = "welcome"
	retentionQueue = "welcome-retention"

	// retentionTimeout is far beyond the second that the message may wait and the
	// cycle after it.
	retentionTimeout = time.Minute
	pollPause        = 50 * time.Millisecond
)

type pushResult struct {
	MessageID string `json:"message_id"`
	Status    string `json:"status"`
}

type popResult struct {
	Messages []struct {
		ID            string          `json:"id"`
		TransactionID string          `json:"transactionId"`
		PartitionID   string          `json:"partitionId"`
		LeaseID       string          `json:"leaseId"`
		Data          json.RawMessage `json:"data"`
	} `json:"messages"`
}

type queueDetail struct {
	Totals struct {
		Total int `json:"total"`
	} `json:"totals"`
}

type ackResult struct {
	Success bool    `json:"success"`
	Error   *string `json:"error"`
}

// proveStack pushes, pops and acknowledges one message, in a lane of its own
// so that what earlier runs left behind cannot disturb it.
func proveStack(ctx context.Context, base string, c *console) error {
	lane := "run-" + strconv.FormatInt(time.Now().UnixMilli(), 10)

	var pushed []pushResult
	body := map[string]any{"items": []any{map[string]any{
		"queue": proofQueue, "partition": lane, "payload": map[string]string{"hello": "queen"},
	}}}
	if err := call(ctx, http.MethodPost, base+"/api/v1/push", body, http.StatusCreated, &pushed); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	if len(pushed) != 1 || pushed[0].Status != "queued" {
		return fmt.Errorf("push: unexpected answer %+v", pushed)
	}

	var popped popResult
	popURL := base + "/api/v1/pop/queue/" + proofQueue + "/partition/" + url.PathEscape(lane) + "?batch=1"
	if err := call(ctx, http.MethodGet, popURL, nil, http.StatusOK, &popped); err != nil {
		return fmt.Errorf("pop: %w", err)
	}
	if len(popped.Messages) != 1 || popped.Messages[0].ID != pushed[0].MessageID {
		return fmt.Errorf("pop: unexpected answer %+v", popped)
	}
	m := popped.Messages[0]

	var acked []ackResult
	ack := map[string]string{"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID}
	if err := call(ctx, http.MethodPost, base+"/api/v1/ack", ack, http.StatusOK, &acked); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	if len(acked) != 1 || !acked[0].Success {
		return fmt.Errorf("ack: unexpected answer %+v", acked)
	}
	c.step("first message pushed, popped (%s) and acknowledged", m.Data)
	return nil
}

// proveRetention pushes a message into a queue that keeps messages for one second
// and waits until the maintainer has removed it.
func proveRetention(ctx context.Context, base string, c *console) error {
	ctx, cancel := context.WithTimeoutCause(ctx, retentionTimeout, fmt.Errorf("the message is still there after %s", retentionTimeout))
	defer cancel()
	body := map[string]any{"queue": retentionQueue, "options": map[string]any{"maxWaitTimeSeconds": 1}}
	if err := call(ctx, http.MethodPost, base+"/api/v1/configure", body, http.StatusOK, new(json.RawMessage)); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	var pushed []pushResult
	body = map[string]any{"items": []any{map[string]any{"queue": retentionQueue, "payload": "gone in a moment"}}}
	if err := call(ctx, http.MethodPost, base+"/api/v1/push", body, http.StatusCreated, &pushed); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	began := time.Now()
	gone, err := until(ctx, func() (bool, error) {
		var detail queueDetail
		err := call(ctx, http.MethodGet, base+"/api/v1/resources/queues/"+retentionQueue, nil, http.StatusOK, &detail)
		return detail.Totals.Total == 0, err
	})
	if err != nil {
		return fmt.Errorf("read the queue: %w", err)
	}
	c.step("a message that may wait for 1 s was removed after %s", short(gone.Sub(began)))
	return nil
}
