package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// hopLeast is the least time that a pop waits before its message comes.
	hopLeast = 20 * time.Millisecond
	// meshLooks is how long the services may take to find each other, which shows
	// in hopsInARow quick deliveries.
	meshLooks  = 10
	hopsInARow = 5
)

// hopper has single messages delivered to pops that are parked.
type hopper struct {
	queue    string
	from, to *conn
	limit    time.Duration // of a quick delivery
	parks    time.Duration // up to how much longer than hopLeast a pop waits
	// request asks for a message that says when it was asked for, and accepted is in
	// the answer.
	request  func(n int, at time.Time) []byte
	accepted []byte
	n        int
}

func (h *hopper) close() {
	h.from.close()
	h.to.close()
}

// settle waits for the services to find each other. If they do not, the figures
// will show it.
func (h *hopper) settle(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for quick := 0; quick < hopsInARow && time.Now().Before(deadline); quick++ {
		d, err := h.hop(ctx)
		if err != nil {
			return err
		}
		if d > h.limit {
			quick = -1
		}
	}
	return nil
}

// hops measures so many deliveries.
func (h *hopper) hops(ctx context.Context, n int) (*hdrhistogram.Histogram, error) {
	hops := newHistogram()
	for range n {
		d, err := h.hop(ctx)
		if err != nil {
			return nil, err
		}
		_ = hops.RecordValue(max(d.Microseconds(), 1))
	}
	return hops, nil
}

// hop parks a pop, asks for a message, waits for it and acknowledges it.
func (h *hopper) hop(ctx context.Context) (time.Duration, error) {
	h.n++
	pop := popRequest(h.queue, groupName(0), 1, 1, requestTimeout/2, "")
	if err := h.to.send(ctx, pop); err != nil {
		return 0, err
	}
	if !waitUntil(ctx, time.Now().Add(hopLeast+time.Duration(newRand(h.n).Int64N(int64(h.parks))))) {
		return 0, ctx.Err()
	}
	began := time.Now()
	request := h.request(h.n, began)
	a, err := h.from.do(ctx, request)
	if err == nil && bytes.Count(a.body, h.accepted) != 1 {
		err = unexpected(request, a)
	}
	if err != nil {
		return 0, err
	}
	if a, err = h.to.receive(); err != nil {
		return 0, err
	}
	d := time.Since(began)
	messages, err := scanPop(nil, a.body)
	if err == nil && (len(messages) != 1 || messages[0].sent != began.UnixMicro()) {
		err = unexpected(pop, a)
	}
	if err != nil {
		return 0, err
	}
	return d, h.ack(ctx, messages[0])
}

func (h *hopper) ack(ctx context.Context, m message) error {
	request := newRequest(http.MethodPost, "/api/v1/ack", string(appendAck(nil, groupName(0), m)))
	a, err := h.to.do(ctx, request)
	if err == nil && !bytes.Contains(a.body, succeededMark) {
		err = fmt.Errorf("ack: %w", unexpected(request, a))
	}
	return err
}
