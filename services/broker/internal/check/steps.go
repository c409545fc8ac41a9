package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// The steps, in their order.
const (
	stepHealth    = "health"
	stepConfigure = "configure"
	stepPush      = "push"
	stepPop       = "pop"
	stepAck       = "ack"
	stepTimer     = "timer"
	stepKey       = "key"
	stepDelete    = "delete"
)

const (
	lane     = "messages"
	timed    = "timers" // lane of the timer
	timerKey = "timer"
	keyName  = "key"
	count    = 3 // messages

	timerDelay = 300 * time.Millisecond
	// popWait is how long one pop waits; waits of proxies are often a minute.
	popWait = 5 * time.Second
	// popPause is between two of them: where pops are held back they answer at once.
	popPause = 100 * time.Millisecond
)

type step struct {
	name  string
	needs []string
	run   func(context.Context) (detail string, err error)
}

func (c *check) steps() []step {
	return []step{
		{stepHealth, nil, c.health},
		{stepConfigure, []string{stepHealth}, c.configure},
		{stepPush, []string{stepConfigure}, c.push},
		{stepPop, []string{stepPush}, c.pop},
		{stepAck, []string{stepPop}, c.ack},
		{stepTimer, []string{stepConfigure}, c.timer},
		{stepKey, []string{stepHealth}, c.key},
		{stepDelete, []string{stepConfigure}, c.delete},
	}
}

// message is one that was pushed, and then one that was popped.
type message struct {
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	LeaseID       string          `json:"leaseId"`
	ID            string          `json:"id"`
	Data          json.RawMessage `json:"data"`
}

func (c *check) health(ctx context.Context) (string, error) {
	var r struct {
		Status   string `json:"status"`
		Database string `json:"database"`
		Version  string `json:"version"`
	}
	status, err := c.call(ctx, http.MethodGet, "/health", nil, &r, http.StatusOK, http.StatusServiceUnavailable)
	switch {
	case err != nil:
		return "", err
	case r.Status == "" || r.Database == "":
		return "", fmt.Errorf("answered %d without a broker's health: is this a Queen?", status)
	case status != http.StatusOK:
		return "", fmt.Errorf("the broker is %s: its database is %s", r.Status, r.Database)
	}
	c.report.Version = r.Version
	return "version " + r.Version, nil
}

func (c *check) configure(ctx context.Context) (string, error) {
	c.began = true
	_, err := c.call(ctx, http.MethodPost, "/api/v1/configure",
		map[string]any{"queue": c.queue, "options": map[string]any{}}, nil, http.StatusOK, http.StatusCreated)
	return "", err
}

func (c *check) payload(n int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"check":%q,"number":%d}`, c.queue, n))
}

func (c *check) push(ctx context.Context) (string, error) {
	items := make([]map[string]any, count)
	for i := range items {
		items[i] = map[string]any{
			"queue": c.queue, "partition": lane, "transactionId": fmt.Sprintf("%s-%d", c.queue, i), "payload": c.payload(i),
		}
	}
	var results []struct {
		Status string `json:"status"`
		Error  string `json:"error"`
	}
	_, err := c.call(ctx, http.MethodPost, "/api/v1/push", map[string]any{"items": items}, &results, http.StatusCreated, http.StatusOK)
	if err != nil {
		return "", err
	}
	if len(results) != count {
		return "", fmt.Errorf("%d messages were answered with %d results", count, len(results))
	}
	for i, r := range results {
		// A proxy may have sent it twice.
		if r.Status != "queued" && r.Status != "duplicate" {
			return "", fmt.Errorf("message %d is %q: %s", i, r.Status, shorten(r.Error))
		}
	}
	return fmt.Sprintf("%d messages", count), nil
}

// popLane takes what a lane holds, and waits for it where wait is above 0.
func (c *check) popLane(ctx context.Context, partition, query string, wait time.Duration) ([]message, error) {
	path := fmt.Sprintf("/api/v1/pop/queue/%s/partition/%s?batch=%d%s", c.queue, partition, count+1, query)
	if wait > 0 {
		path += fmt.Sprintf("&wait=true&timeout=%d", wait.Milliseconds())
	}
	var r struct {
		Messages []message `json:"messages"`
	}
	_, err := c.call(ctx, http.MethodGet, path, nil, &r, http.StatusOK, http.StatusNoContent)
	return r.Messages, err
}

func (c *check) pop(ctx context.Context) (string, error) {
	got, err := c.popLane(ctx, lane, "", min(popWait, c.timeout/2))
	switch {
	case err != nil:
		return "", err
	case len(got) == 0:
		return "", fmt.Errorf("none of %d messages came: pops may be held back (pop maintenance)", count)
	case len(got) != count:
		return "", fmt.Errorf("%d messages came instead of %d", len(got), count)
	}
	for i, m := range got {
		if want := fmt.Sprintf("%s-%d", c.queue, i); m.TransactionID != want {
			return "", fmt.Errorf("message %d is %q and not %q: they are out of order", i, m.TransactionID, want)
		}
		if !sameJSON(m.Data, c.payload(i)) {
			return "", fmt.Errorf("message %d came with another payload: %s", i, shorten(string(m.Data)))
		}
	}
	c.messages = got
	return "in order, payloads unchanged", nil
}

func (c *check) ack(ctx context.Context) (string, error) {
	acks := make([]map[string]any, len(c.messages))
	for i, m := range c.messages {
		acks[i] = map[string]any{
			"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID, "status": "completed",
		}
	}
	var results []struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
	}
	_, err := c.call(ctx, http.MethodPost, "/api/v1/ack/batch", map[string]any{"acknowledgments": acks}, &results, http.StatusOK)
	if err != nil {
		return "", err
	}
	for i, r := range results {
		if !r.Success {
			return "", fmt.Errorf("message %d was not acknowledged: %s", i, shorten(r.Error))
		}
	}
	if len(results) != len(acks) {
		return "", fmt.Errorf("%d acknowledgements were answered with %d results", len(acks), len(results))
	}
	left, err := c.popLane(ctx, lane, "", 0)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d messages came again", len(left))
	}
	return "none comes again", err
}

func (c *check) timer(ctx context.Context) (string, error) {
	id, err := c.schedule(ctx)
	if err != nil {
		return "", fmt.Errorf("schedule: %w", err)
	}
	due := time.Now().Add(timerDelay)
	for {
		got, err := c.popLane(ctx, timed, "&autoAck=true", popWait)
		if ctx.Err() != nil {
			return "", fmt.Errorf("no message %s after the time of its timer: does a sweeper run on this database, and is it ready?",
				time.Since(due).Round(time.Second))
		}
		if err != nil {
			return "", err
		}
		if len(got) > 0 {
			return c.delivered(got, id, due)
		}
		_ = pause(ctx, popPause)
	}
}

// delivered judges what came of the timer.
func (c *check) delivered(got []message, id string, due time.Time) (string, error) {
	late := time.Since(due)
	switch {
	case len(got) != 1 || got[0].ID != id:
		return "", fmt.Errorf("%d messages came, and the first is not the one that was promised", len(got))
	case !sameJSON(got[0].Data, c.payload(count)):
		return "", fmt.Errorf("the message came with another payload: %s", shorten(string(got[0].Data)))
	}
	return fmt.Sprintf("the message came %s after its time", late.Round(time.Millisecond)), nil
}

func (c *check) schedule(ctx context.Context) (messageID string, err error) {
	var r struct {
		Results []struct {
			OK        bool   `json:"ok"`
			Status    string `json:"status"`
			Error     string `json:"error"`
			MessageID string `json:"messageId"`
		} `json:"results"`
	}
	op := map[string]any{
		"op": "schedule", "queue": c.queue, "partition": timed, "timerKey": timerKey, "txn": timerKey,
		"delayMs": timerDelay.Milliseconds(), "payload": []byte(c.payload(count)), // base64 in JSON
	}
	_, err = c.call(ctx, http.MethodPost, "/api/v1/timers", map[string]any{"operations": []any{op}}, &r, http.StatusOK)
	if err != nil {
		return "", err
	}
	if len(r.Results) != 1 || !r.Results[0].OK {
		return "", fmt.Errorf("it was not scheduled: %+v", r.Results)
	}
	return r.Results[0].MessageID, nil
}

func (c *check) keyPath() string { return "/api/v1/kv/" + c.queue + "/" + keyName }

func (c *check) key(ctx context.Context) (string, error) {
	c.began = true
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"write", c.writeKey}, {"read", c.readKey}, {"delete", c.deleteKey}} {
		if err := part.run(ctx); err != nil {
			return "", fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return "written, read, deleted", nil
}

// keyAnswer is what a broker says of a key.
type keyAnswer struct {
	Applied bool            `json:"applied"`
	Found   bool            `json:"found"`
	Value   json.RawMessage `json:"value"`
}

// keyLife is the net under a check that is killed.
const keyLife = time.Hour

func (c *check) writeKey(ctx context.Context) error {
	var r keyAnswer
	body := map[string]any{"value": c.payload(0), "ttlSeconds": int(keyLife.Seconds())}
	_, err := c.call(ctx, http.MethodPut, c.keyPath(), body, &r, http.StatusOK)
	if err == nil && !r.Applied {
		err = errors.New("it was not applied")
	}
	return err
}

func (c *check) readKey(ctx context.Context) error {
	var r keyAnswer
	_, err := c.call(ctx, http.MethodGet, c.keyPath(), nil, &r, http.StatusOK)
	if err == nil && (!r.Found || !sameJSON(r.Value, c.payload(0))) {
		err = fmt.Errorf("another value came: %s", shorten(string(r.Value)))
	}
	return err
}

func (c *check) deleteKey(ctx context.Context) error {
	if _, err := c.call(ctx, http.MethodDelete, c.keyPath(), nil, nil, http.StatusOK); err != nil {
		return err
	}
	var r keyAnswer
	_, err := c.call(ctx, http.MethodGet, c.keyPath(), nil, &r, http.StatusOK)
	if err == nil && r.Found {
		err = errors.New("the key is still there")
	}
	return err
}

// delete removes all of it; the queue must have been there.
func (c *check) delete(ctx context.Context) (string, error) {
	if !c.passed[stepTimer] {
		if err := c.cancelTimer(ctx); err != nil {
			return "", fmt.Errorf("cancel the timer: %w", err)
		}
	}
	if !c.passed[stepKey] {
		if _, err := c.call(ctx, http.MethodDelete, c.keyPath(), nil, nil, http.StatusOK); err != nil {
			return "", fmt.Errorf("delete the key: %w", err)
		}
	}
	var r struct {
		Deleted bool `json:"deleted"`
	}
	if _, err := c.call(ctx, http.MethodDelete, "/api/v1/resources/queues/"+c.queue, nil, &r, http.StatusOK); err != nil {
		return "", err
	}
	if !r.Deleted {
		return "", errors.New("the queue was gone already")
	}
	return "nothing is left", nil
}

// sameJSON compares values, whatever the spelling.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	text := func(v any) string {
		out, _ := json.Marshal(v)
		return string(out)
	}
	return text(x) == text(y)
}
