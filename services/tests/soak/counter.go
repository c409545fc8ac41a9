package soak

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// countEvery is the pause between two increments of one client.
const countEvery = 50 * time.Millisecond

const counterKey = "counter"

func counterPath(cfg *Config) string {
	return "/api/v1/kv/" + url.PathEscape(cfg.Queue) + "/" + counterKey
}

// counter increments a key and knows between which values it has to be.
type counter struct {
	cfg    *Config
	client *client
	tally  *tally
}

// run increments until ctx ends.
func (c *counter) run(ctx context.Context) {
	for sleep(ctx, countEvery) {
		c.increment(context.WithoutCancel(ctx))
	}
}

// increment counts once, and may have done so once more for each attempt that was not
// answered.
func (c *counter) increment(ctx context.Context) {
	body, err := json.Marshal(map[string]any{"operations": []any{map[string]any{
		"op": "incr", "ns": c.cfg.Queue, "key": counterKey, "delta": 1, "forever": true,
	}}})
	if err != nil {
		c.tally.surprised("count", "encode: %v", err)
		return
	}
	got, err := c.client.ask(ctx, request{"count", http.MethodPost, "/api/v1/kv", body, http.StatusOK})
	c.tally.unknown.Add(int64(got.lost))
	if err != nil {
		return
	}
	var answer struct {
		Results []struct {
			Applied bool `json:"applied"`
		} `json:"results"`
	}
	if err := json.Unmarshal(got.body, &answer); err != nil || len(answer.Results) != 1 || !answer.Results[0].Applied {
		c.tally.surprised("count unreadable", "%v: %.200s", err, got.body)
		return
	}
	c.tally.incremented.Add(1)
}

// judge reads the key. Every increment that was answered is in it, and of the others at
// most as many as there were.
func (c *counter) judge(ctx context.Context) {
	got, err := c.client.ask(ctx, request{"read", http.MethodGet, counterPath(c.cfg), nil, http.StatusOK})
	if err != nil {
		return
	}
	var answer struct {
		Value int64 `json:"value"`
	}
	if err := json.Unmarshal(got.body, &answer); err != nil {
		c.tally.surprised("read unreadable", "%v: %.200s", err, got.body)
		return
	}
	c.tally.value.Store(answer.Value)
	least, more := c.tally.incremented.Load(), c.tally.unknown.Load()
	if answer.Value < least || answer.Value > least+more {
		c.tally.surprised("counter", "it is %d after %d answered increments and %d without an answer", answer.Value, least, more)
	}
}
