package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/services/broker/internal/http1"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// parkAfter is how long a pop waits in the ordinary way before its connection is
// taken to the lot: where messages flow, most are answered sooner.
const parkAfter = 50 * time.Millisecond

// errParked says that a request goes on in the lot, which answers it.
var errParked = errors.New("parked")

// lot keeps the connections of pops that wait. net/http holds a goroutine of
// 8 KiB, another that watches for the client to leave, and three buffers of 10 KiB
// for each of them: 27 KiB altogether. Here it is one small goroutine.
//
// A connection is taken from the server, answered, and once its client has begun the
// next request given back as if it were new.
type lot struct {
	api    *API
	server *http1.Server // nil: nothing is parked here

	mu      sync.Mutex
	spots   map[*spot]struct{}
	coming  int // requests on their way in
	closing bool
	empty   chan struct{} // closed once it is closing and empty
}

func newLot(a *API) *lot {
	return &lot{api: a, spots: make(map[*spot]struct{}), empty: make(chan struct{})}
}

// takes says whether the connection of a request can be parked: one of HTTP/1.1
// that is to be kept, and that nobody traces as a whole.
func (l *lot) takes(r *http.Request) bool {
	return l.server != nil && l.api.deps.Tracers == nil && r.TLS == nil && r.ProtoMajor == 1 && r.ProtoMinor == 1 &&
		!r.Close && r.ContentLength == 0
}

// park takes the connection of a request that waits. It reports false when it
// cannot be had.
func (l *lot) park(c echo.Context, parked *pop.Parked, began time.Time) bool {
	l.mu.Lock()
	l.coming++
	l.mu.Unlock()
	conn, early, err := take(c.Response())
	if err != nil {
		l.admit(nil)
		return false
	}
	c.Response().Committed = true // by somebody else
	s := &spot{lot: l, conn: conn, parked: parked, began: began, route: c.Path(), early: early, answered: make(chan struct{})}
	l.admit(s)
	parked.Answer(s.answer)
	go s.run()
	return true
}

// take takes a connection over, with what the client has sent ahead.
func take(w http.ResponseWriter) (conn net.Conn, early []byte, err error) {
	if conn, early, ok := http1.Take(w); ok {
		return conn, early, nil
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		early = make([]byte, n)
		_, _ = io.ReadFull(buffered, early) // they are there
	}
	return http1.Unwrap(conn), early, nil
}

// admit ends the way in.
func (l *lot) admit(s *spot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming--
	if s != nil {
		l.spots[s] = struct{}{}
	}
	l.settle()
}

func (l *lot) leave(s *spot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.spots, s)
	l.settle()
}

func (l *lot) settle() {
	if l.closing && l.coming == 0 && len(l.spots) == 0 {
		select {
		case <-l.empty:
		default:
			close(l.empty)
		}
	}
}

func (l *lot) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// close tells clients to leave once they have been answered, and those that wait
// for nothing at once.
func (l *lot) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	for s := range l.spots {
		s.interruptIdle()
	}
	l.settle()
}

// wait returns when the lot is empty. At the deadline of ctx it cuts what is left.
func (l *lot) wait(ctx context.Context) error {
	select {
	case <-l.empty:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for s := range l.spots {
		_ = s.conn.Close()
	}
	l.mu.Unlock()
	return ctx.Err()
}
