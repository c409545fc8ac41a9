package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"
)

// ask is a route that is read again and again.
type ask struct {
	name string
	addr string
	path func(i int) string // of the i-th time
	// An answer is the wanted one if it holds the mark that many times.
	mark  string
	marks int
	under float64 // milliseconds; 0: no target
	size  float64 // megabytes that answers have to stay under; 0: no target

	millis, megabytes []float64
}

// askAll reads every route in turn, in rounds.
func (b *bench) askAll(ctx context.Context, asks []*ask) error {
	conns := map[string]*conn{}
	for _, a := range asks {
		if conns[a.addr] == nil {
			conns[a.addr] = &conn{addr: a.addr}
			defer conns[a.addr].close()
		}
	}
	for i := range b.scale.Asks {
		progress("  round %d of %d", i+1, b.scale.Asks)
		next := time.Now().Add(b.scale.AskGap)
		for _, a := range asks {
			if err := a.once(ctx, conns[a.addr], i); err != nil {
				return err
			}
		}
		if i+1 < b.scale.Asks && !waitUntil(ctx, next) {
			return ctx.Err()
		}
	}
	return nil
}

// once is one answer, from the request to its last byte.
func (a *ask) once(ctx context.Context, c *conn, i int) error {
	request := newRequest(http.MethodGet, a.path(i), "")
	began := time.Now()
	got, err := c.do(ctx, request)
	took := time.Since(began)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", a.name, err)
	case got.status != http.StatusOK:
		return unexpected(request, got)
	}
	if n := bytes.Count(got.body, []byte(a.mark)); n != a.marks {
		return fmt.Errorf("%s: %q stands in it %d times, not %d: %w", a.name, a.mark, n, a.marks, unexpected(request, got))
	}
	a.millis = append(a.millis, took.Seconds()*1000)
	a.megabytes = append(a.megabytes, float64(len(got.body))/1e6)
	return nil
}

// report adds the time, and the size where it has a target.
func (a *ask) report(out *outcome) {
	limit := want{}
	if a.under > 0 {
		limit = under(a.under)
	}
	out.add(a.name, "ms", a.millis, limit)
	if a.size > 0 {
		out.add(a.name, "MB", a.megabytes, under(a.size))
	}
}
