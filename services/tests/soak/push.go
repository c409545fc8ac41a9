package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// The statuses of a pushed message.
const (
	statusQueued    = "queued"
	statusDuplicate = "duplicate" // it is there already
)

// padding gives messages the size of small events.
const padding = 230

// payload is a message.
type payload struct {
	N int    `json:"n"`
	D string `json:"d"`
}

type item struct {
	Queue         string  `json:"queue"`
	Partition     string  `json:"partition"`
	TransactionID string  `json:"transactionId"`
	Payload       payload `json:"payload"`
}

// pushers push to the lanes, each to its own.
type pushers struct {
	cfg       *Config
	client    *client
	tally     *tally
	books     []*book
	attempted []atomic.Int64 // the highest number of each lane that was ever sent
	turn      atomic.Int64
	began     time.Time
}

func newPushers(cfg *Config, c *client, t *tally, books []*book) *pushers {
	return &pushers{cfg: cfg, client: c, tally: t, books: books, attempted: make([]atomic.Int64, cfg.Lanes), began: time.Now()}
}

// run pushes to every n-th lane, one message to each in turn, until ctx ends.
func (p *pushers) run(ctx context.Context, worker int) {
	for n := 1; ; n++ {
		for lane := worker; lane < p.cfg.Lanes; lane += p.cfg.Pushers {
			if !p.pace(ctx) || !p.push(context.WithoutCancel(ctx), lane, n) {
				return
			}
		}
	}
}

// pace waits for the time of the next message of all pushers.
func (p *pushers) pace(ctx context.Context) bool {
	if p.cfg.Rate > 0 {
		at := time.Duration(float64(p.turn.Add(1)-1) / p.cfg.Rate * float64(time.Second))
		if wait := at - time.Since(p.began); wait > 0 {
			t := time.NewTimer(wait)
			defer t.Stop()
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
	}
	return ctx.Err() == nil
}

// push sends one message until it is stored. It reports false where it gave up, and the
// lane cannot go on.
func (p *pushers) push(ctx context.Context, lane, n int) bool {
	p.attempted[lane].Store(int64(n))
	body, err := json.Marshal(map[string][]item{"items": {{
		Queue: p.cfg.Queue, Partition: laneName(lane), TransactionID: fmt.Sprintf("%d-%d", lane, n),
		Payload: payload{N: n, D: strings.Repeat("x", padding)},
	}}})
	if err != nil {
		p.tally.surprised("push", "encode: %v", err)
		return false
	}
	for lost, until := 0, time.Now().Add(p.cfg.Patience); ; {
		got, err := p.client.ask(ctx, request{"push", http.MethodPost, "/api/v1/push", body, http.StatusCreated})
		if err != nil {
			return false
		}
		lost += got.lost
		status := statusOf(got.body)
		if status == statusQueued || status == statusDuplicate && lost > 0 {
			p.tally.pushed.Add(1)
			for _, b := range p.books {
				b.store(lane, n)
			}
			return true
		}
		p.tally.surprised("push "+status, "lane %d, %d: %.200s", lane, n, got.body)
		if status == statusDuplicate || time.Now().After(until) {
			return false
		}
		lost++
		sleep(ctx, pauseMax)
	}
}

// statusOf is what became of the only message of a push.
func statusOf(body []byte) string {
	var results []struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &results); err != nil || len(results) != 1 {
		return "unreadable"
	}
	return results[0].Status
}
