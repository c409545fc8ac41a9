package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// timersAtOnce are scheduled by one request.
const timersAtOnce = 100

// Timers of a round are due after what a request takes, over some time.
const (
	timersAfter = time.Second
	timersOver  = 3 * time.Second
)

// timerQueue is where the messages of timers go.
func timerQueue(cfg *Config) string { return cfg.Queue + "-timers" }

// timer is a scheduled message. The transaction id keeps a repeated request from having
// it delivered twice.
type timer struct {
	Op        string `json:"op"`
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
	TimerKey  string `json:"timerKey"`
	Txn       string `json:"txn"`
	DelayMS   int64  `json:"delayMs"`
	Payload   []byte `json:"payload"`
}

// scheduler schedules a message for each lane, and the next ones when all have come.
type scheduler struct {
	cfg    *Config
	client *client
	tally  *tally
	book   *book
	rounds int // begun
}

func (s *scheduler) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.rounds++
		for from := 0; from < s.cfg.Lanes; from += timersAtOnce {
			if !s.schedule(context.WithoutCancel(ctx), from, min(from+timersAtOnce, s.cfg.Lanes)) {
				return
			}
		}
		for s.book.rest() > 0 && sleep(ctx, restEvery) {
			continue
		}
	}
}

// schedule reports false where the lanes cannot go on.
func (s *scheduler) schedule(ctx context.Context, from, to int) bool {
	message, err := json.Marshal(payload{N: s.rounds})
	if err != nil {
		s.tally.surprised("timer", "encode: %v", err)
		return false
	}
	var timers []timer
	for l := from; l < to; l++ {
		due := timersAfter + timersOver*time.Duration(l)/time.Duration(s.cfg.Lanes)
		name := fmt.Sprintf("%d-%d", l, s.rounds)
		timers = append(timers, timer{"schedule", timerQueue(s.cfg), laneName(l), name, name, due.Milliseconds(), message})
	}
	body, err := json.Marshal(map[string]any{"operations": timers})
	if err != nil {
		s.tally.surprised("timer", "encode: %v", err)
		return false
	}
	got, err := s.client.ask(ctx, request{"timer", http.MethodPost, "/api/v1/timers", body, http.StatusOK})
	if err != nil {
		return false
	}
	var answer struct {
		Results []struct {
			OK bool `json:"ok"`
		} `json:"results"`
	}
	if err := json.Unmarshal(got.body, &answer); err != nil || len(answer.Results) != len(timers) {
		s.tally.surprised("timer unreadable", "%v: %.200s", err, got.body)
		return false
	}
	for i, r := range answer.Results {
		if !r.OK {
			s.tally.surprised("timer refused", "%.200s", got.body)
			return false
		}
		s.tally.scheduled.Add(1)
		s.book.store(from+i, s.rounds)
	}
	return true
}
