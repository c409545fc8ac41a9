package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/services/broker/internal/pop"
)

// spot is one connection in the lot. Its goroutine reads, and so notices when the
// client leaves; the answer interrupts it.
type spot struct {
	lot    *lot
	conn   net.Conn
	parked *pop.Parked
	began  time.Time
	route  string
	early  []byte // of the next request, which the client sent ahead
	byte   [1]byte

	answered chan struct{}
	body     []byte
	err      error

	mu   sync.Mutex
	idle bool // answered, and waiting for the next request
}

// longAgo as a deadline interrupts.
var longAgo = time.Unix(1, 0)

func (s *spot) run() {
	defer s.lot.leave(s)
	if !s.watch() {
		s.account(statusClientGone)
		_ = s.conn.Close()
		return
	}
	if !s.reply() || !s.next() {
		_ = s.conn.Close()
		return
	}
	s.lot.resume(s.conn, s.early)
}

// answer is called by whoever has the outcome of the pop.
func (s *spot) answer(body []byte, err error) {
	s.body, s.err = body, err
	close(s.answered)
	_ = s.conn.SetReadDeadline(longAgo)
}

// watch waits for the answer, and reports false when the client left before.
func (s *spot) watch() bool {
	if len(s.early) == 0 {
		n, err := s.conn.Read(s.byte[:])
		switch {
		case n > 0: // the rest of it stays where it is, and a client that leaves is noticed late
			s.early = s.byte[:n]
		case !errors.Is(err, os.ErrDeadlineExceeded):
			s.parked.Cancel()
			<-s.answered
			return false
		}
	}
	<-s.answered
	return true
}

// reply writes the answer and reports whether the connection stays.
func (s *spot) reply() bool {
	status, body, extra := s.outcome()
	defer s.account(status)
	if status == statusClientGone {
		return false
	}
	stays := !s.lot.api.leaving.Load()
	_ = s.conn.SetReadDeadline(time.Time{})
	_ = s.conn.SetWriteDeadline(time.Now().Add(answerPatience + transferTime(int64(len(body)))))
	parts := net.Buffers{appendHead(nil, status, len(body), stays, extra), body}
	_, err := parts.WriteTo(s.conn)
	if s.body != nil {
		s.lot.api.deps.Replies.Put(s.body)
		s.body = nil
	}
	_ = s.conn.SetWriteDeadline(time.Time{})
	return stays && err == nil
}

// place is what the request is about.
func (s *spot) place() []slog.Attr {
	req := s.parked.Request()
	return placeOfPop(&req)
}

// outcome is what the answer says; extra is a header line or nothing.
func (s *spot) outcome() (status int, body []byte, extra string) {
	switch {
	case s.err != nil:
		ctx := context.Background()
		f := failureOf(ctx, s.err)
		if errors.Is(s.err, context.Canceled) {
			return statusClientGone, nil, ""
		}
		s.lot.api.logFailure(ctx, http.MethodGet, s.route, s.place, f, s.err)
		if f.status == http.StatusTooManyRequests {
			extra = echo.HeaderRetryAfter + ": " + retryAfter() + "\r\n"
		}
		return f.status, errorJSON(f), extra
	case s.body == nil:
		return http.StatusNoContent, nil, ""
	}
	return http.StatusOK, s.body, ""
}

// appendHead writes the status line and the headers of an answer.
func appendHead(dst []byte, status, size int, stays bool, extra string) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(status)...)
	dst = append(dst, "\r\nDate: "...)
	dst = time.Now().UTC().AppendFormat(dst, http.TimeFormat)
	if status != http.StatusNoContent {
		dst = append(dst, "\r\nContent-Type: "+jsonType+"\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(size), 10)
	}
	dst = append(dst, "\r\n"...)
	dst = append(dst, extra...)
	if !stays {
		dst = append(dst, "Connection: close\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// next waits for the client to begin its next request.
func (s *spot) next() bool {
	s.body, s.parked = nil, nil
	if len(s.early) > 0 {
		return true
	}
	if !s.rest() {
		return false
	}
	n, err := s.conn.Read(s.byte[:])
	s.early = s.byte[:n]
	return n > 0 && err == nil && s.conn.SetReadDeadline(time.Time{}) == nil
}

// rest gives the client as long as an idle connection has.
func (s *spot) rest() bool {
	closing := s.lot.isClosing()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = true
	return !closing && s.conn.SetReadDeadline(time.Now().Add(idleTimeout)) == nil
}

// interruptIdle ends the wait for a next request.
func (s *spot) interruptIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle {
		_ = s.conn.SetReadDeadline(longAgo)
	}
}

func (s *spot) account(status int) {
	a := s.lot.api
	a.account(context.Background(), s.route, http.MethodGet, status, time.Since(s.began))
	a.metrics.active.Add(-1)
}
