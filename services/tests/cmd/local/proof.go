package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	for {
		var detail queueDetail
		if err := call(ctx, http.MethodGet, base+"/api/v1/resources/queues/"+retentionQueue, nil, http.StatusOK, &detail); err != nil {
			return fmt.Errorf("read the queue: %w", err)
		}
		if detail.Totals.Total == 0 {
			c.step("a message that may wait for 1 s was removed after %s", time.Since(began).Round(10*time.Millisecond))
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollPause):
		}
	}
}

// call sends one JSON request and decodes the answer, which must carry want.
func call(ctx context.Context, method, target string, body any, want int, into any) error {
	var r io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != want {
		return fmt.Errorf("%s %s answered %s: %s", method, target, res.Status, text)
	}
	return json.Unmarshal(text, into)
}

// welcome is what the person sees once everything works.
func welcome(base string, cfg config) string {
	return fmt.Sprintf(`
  Queen is ready:  %[1]s
  Health and metrics: broker http://127.0.0.1:%[2]d, maintainer http://127.0.0.1:%[4]d

  Try it from another terminal:

    curl -s %[1]s/api/v1/push -d '{"items":[{"queue":"orders","partition":"customer-7","payload":{"n":1}}]}'
    curl -s '%[1]s/api/v1/pop/queue/orders?batch=10&autoAck=true'
    curl -s %[1]s/api/v1/resources/queues

  Data and logs are in %[3]s/. Ctrl-C stops everything; make run RESET=1 starts empty.

`, base, cfg.opsPort, defaultDir, cfg.maintainerOpsPort)
}
