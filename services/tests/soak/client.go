package soak

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	answerPatience = 30 * time.Second // beyond what a pop waits
	maxReply       = 64 << 20

	pauseMin = 10 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// The kinds of errors.
const (
	kindRefused = "refused" // nobody listens: nothing has happened
	kindReset   = "reset"
	kindClosed  = "closed" // the connection ended without an answer
	kindTimeout = "timeout"
	kindOther   = "other"
)

// closedIdle is what the transport says of a kept connection that the server closed. It
// has no value for it.
const closedIdle = "server closed idle connection"

// errGivenUp says that a request had no usable answer for as long as it was repeated.
var errGivenUp = errors.New("given up")

// client sends requests as the users' clients do: it repeats what was not answered, and
// what the answer says to repeat.
type client struct {
	cfg   *Config
	tally *tally
	http  *http.Client
	next  atomic.Uint64
}

func newClient(cfg *Config, t *tally) *client {
	return &client{cfg: cfg, tally: t, http: &http.Client{
		Timeout: cfg.Poll + answerPatience,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: maxClients, DialContext: cfg.Dial, DisableCompression: true, Proxy: nil,
		},
	}}
}

// request is what is asked for.
type request struct {
	what         string // in the verdict
	method, path string
	body         []byte
	status       int // that is wanted; 204 is as good
}

// reply is an answer of the wanted status.
type reply struct {
	status int
	body   []byte
	asked  time.Time // when the attempt was sent that was answered
	// lost is how many attempts before it may have been carried out.
	lost int
}

// ask sends a request until it is answered as wanted. Its context ends the repetitions.
func (c *client) ask(ctx context.Context, r request) (reply, error) {
	began, lost := time.Now(), 0
	for attempt := 0; ; attempt++ {
		got, err := c.once(ctx, r)
		kind := kindOf(err)
		switch {
		case ctx.Err() != nil:
			return reply{lost: lost + 1}, ctx.Err()
		case kind != "":
			c.tally.failed(r.what, kind, "%v", err)
			if kind != kindRefused {
				lost++
			}
			if kind == kindTimeout || kind == kindOther {
				c.tally.surprised(r.what+" "+kind, "%v", err)
			}
		case got.status == r.status || got.status == http.StatusNoContent:
			c.tally.took(r.what, time.Since(began))
			got.lost += lost
			return got, nil
		case got.status != http.StatusTooManyRequests && got.status != http.StatusServiceUnavailable:
			c.tally.surprised(fmt.Sprintf("%s %d", r.what, got.status), "%.200s", got.body)
			lost++
		default:
			c.tally.deferred(fmt.Sprintf("%s %d %s", r.what, got.status, reasonOf(got.body)))
		}
		if time.Since(began) > c.cfg.Patience {
			c.tally.unanswered.Add(1)
			c.tally.problem("%s was given up after %v", r.what, time.Since(began).Round(time.Millisecond))
			return reply{lost: lost}, errGivenUp
		}
		if attempt+1 >= len(c.cfg.URLs) { // each of them was tried
			sleep(ctx, min(pauseMin<<min(attempt, 10), pauseMax))
		}
	}
}

// reasonOf is the code of an error, or its text where it has none.
func reasonOf(body []byte) string {
	var e struct{ Error, Code string }
	_ = json.Unmarshal(body, &e) // what is no such object has no reason
	return cmp.Or(e.Code, e.Error)
}

// once sends a request once.
func (c *client) once(ctx context.Context, r request) (reply, error) {
	target := c.cfg.URLs[(c.next.Add(1)-1)%uint64(len(c.cfg.URLs))] + r.path
	var conns []string
	// The transport repeats some requests by itself when a kept connection turns out to
	// be closed. Clients of other languages do not.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		conns = append(conns, fmt.Sprintf("%v to %v, idle for %v", i.Conn.LocalAddr(), i.Conn.RemoteAddr(), i.IdleTime))
	}})
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	asked := time.Now()
	res, err := c.http.Do(req)
	lost := max(len(conns)-1, 0)
	for _, conn := range conns[:lost] {
		c.tally.failed(r.what, kindClosed, "%s: repeated by the transport", conn)
	}
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return reply{}, err
	}
	c.tally.answered(r.what, res.StatusCode)
	return reply{status: res.StatusCode, body: body, asked: asked, lost: lost}, nil
}

// kindOf is empty where there is no error.
func kindOf(err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ECONNREFUSED):
		return kindRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return kindReset
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		strings.Contains(err.Error(), closedIdle):
		return kindClosed
	case errors.As(err, &timeout) && timeout.Timeout():
		return kindTimeout
	}
	return kindOther
}

// renew gives up idle connections now and then.
func (c *client) renew(ctx context.Context) {
	for c.cfg.Renew > 0 && sleep(ctx, c.cfg.Renew) {
		c.http.CloseIdleConnections()
	}
}

// sleep waits for about so long, and reports false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
