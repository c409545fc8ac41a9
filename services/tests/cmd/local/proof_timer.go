package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	timerQueue = "welcome-timers"
	keyPath    = "/api/v1/kv/welcome/hello"

	// sweepTimeout is far beyond what a sweeper takes to come round.
	sweepTimeout = 30 * time.Second
)

// timerDelay leaves the pop below the time to be parked.
const timerDelay = 500 * time.Millisecond

type timerResults struct {
	Results []struct {
		OK        bool      `json:"ok"`
		Status    string    `json:"status"`
		MessageID string    `json:"messageId"`
		DeliverAt time.Time `json:"deliverAt"`
	} `json:"results"`
}

// proveTimer schedules a message and waits for it as a consumer does.
func proveTimer(ctx context.Context, base string, c *console) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, fmt.Errorf("no message after %s", sweepTimeout))
	defer cancel()
	lane := "run-" + strconv.FormatInt(time.Now().UnixMilli(), 10)
	body := map[string]any{"operations": []any{map[string]any{
		"op": "schedule", "queue": timerQueue, "partition": lane, "timerKey": lane, "txn": lane,
		"delayMs": timerDelay.Milliseconds(), "payload": []byte(`"in its time"`), // base64 in JSON
	}}}
	var scheduled timerResults
	if err := call(ctx, http.MethodPost, base+"/api/v1/timers", body, http.StatusOK, &scheduled); err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	began := time.Now()
	if len(scheduled.Results) != 1 || !scheduled.Results[0].OK {
		return fmt.Errorf("schedule: unexpected answer %+v", scheduled)
	}
	var popped popResult
	target := fmt.Sprintf("%s/api/v1/pop/queue/%s/partition/%s?autoAck=true&wait=true&timeout=%d",
		base, timerQueue, url.PathEscape(lane), sweepTimeout.Milliseconds())
	if err := call(ctx, http.MethodGet, target, nil, http.StatusOK, &popped); err != nil {
		return fmt.Errorf("pop: %w", err)
	}
	late := time.Since(began) - timerDelay
	if len(popped.Messages) != 1 || popped.Messages[0].ID != scheduled.Results[0].MessageID {
		return fmt.Errorf("pop: unexpected answer %+v", popped)
	}
	c.step("a message scheduled for %s later arrived %s after its time", timerDelay, late.Round(time.Millisecond))
	return nil
}

type keyResult struct {
	Found   bool   `json:"found"`
	Applied bool   `json:"applied"`
	Version uint64 `json:"version"`
}

type keyPage struct {
	Rows []struct {
		Key string `json:"key"`
	} `json:"rows"`
}

// proveKey writes a key that lives for a second and waits until it is hidden, and
// then until its row is gone.
func proveKey(ctx context.Context, base string, c *console) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, fmt.Errorf("the key is still there after %s", sweepTimeout))
	defer cancel()
	var put, got keyResult
	if err := call(ctx, http.MethodPut, base+keyPath, map[string]any{"value": "world", "ttlSeconds": 1}, http.StatusOK, &put); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	began := time.Now()
	if err := call(ctx, http.MethodGet, base+keyPath, nil, http.StatusOK, &got); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if !put.Applied || !got.Found || got.Version != put.Version {
		return fmt.Errorf("get: unexpected answer %+v after %+v", got, put)
	}
	hidden, err := until(ctx, func() (bool, error) {
		var r keyResult
		err := call(ctx, http.MethodGet, base+keyPath, nil, http.StatusOK, &r)
		return !r.Found, err
	})
	if err != nil {
		return fmt.Errorf("wait until it is hidden: %w", err)
	}
	pruned, err := until(ctx, func() (bool, error) {
		var page keyPage
		body := map[string]any{"namespace": "welcome", "includeExpired": true}
		err := call(ctx, http.MethodPost, base+"/api/v1/resources/kv/list", body, http.StatusOK, &page)
		return len(page.Rows) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait until it is pruned: %w", err)
	}
	c.step("a key that lives for 1 s was hidden after %s and pruned after %s", short(hidden.Sub(began)), short(pruned.Sub(began)))
	return nil
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// until asks until the answer is yes, and returns when that was.
func until(ctx context.Context, done func() (bool, error)) (time.Time, error) {
	for {
		ok, err := done()
		if ok || err != nil {
			return time.Now(), err
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(pollPause):
		}
	}
}
