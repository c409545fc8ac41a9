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
	"go.opentelemetry.io/otel/trace"

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
// A connection comes by being hijacked, is answered, and once its client has begun
// the next request it is handed back to the server as if it were new.
type lot struct {
	api  *API
	http *http.Server // nil: nothing is parked here

	mu      sync.Mutex
	spots   map[*spot]struct{}
	coming  int // requests on their way in
	closing bool
	empty   chan struct{} // of who waits for it; closed once it is empty
}

func newLot(a *API) *lot {
	return &lot{api: a, spots: make(map[*spot]struct{})}
}

// takes says whether the connection of a request can be parked: one of HTTP/1.1
// that is to be kept, and whose span does not have to last until its answer.
func (l *lot) takes(r *http.Request) bool {
	return l.http != nil && !trace.SpanFromContext(r.Context()).IsRecording() && r.TLS == nil && r.ProtoMajor == 1 && r.ProtoMinor == 1 &&
		!r.Close && r.ContentLength == 0
}

// park takes the connection of a request that waits. It reports false when it
// cannot be had.
func (l *lot) park(c echo.Context, parked *pop.Parked, began time.Time) bool {
	l.mu.Lock()
	l.coming++
	l.mu.Unlock()
	conn, buffered, err := http.NewResponseController(c.Response()).Hijack()
	if err != nil {
		l.admit(nil)
		return false
	}
	c.Response().Committed = true // by somebody else
	s := &spot{lot: l, conn: conn, parked: parked, began: began, route: c.Path(), answered: make(chan struct{})}
	if r, ok := conn.(*resumed); ok && len(r.first) == 0 {
		s.conn = r.Conn
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		s.early = make([]byte, n)
		_, _ = io.ReadFull(buffered, s.early) // they are there
	}
	l.admit(s)
	parked.Answer(s.answer)
	go s.run()
	return true
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
	if l.empty != nil && l.coming == 0 && len(l.spots) == 0 {
		close(l.empty)
		l.empty = nil
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
}

// wait returns when the lot is empty. Nothing may come any more: the server has no
// request that could. At the deadline of ctx it cuts what is left.
func (l *lot) wait(ctx context.Context) error {
	empty := make(chan struct{})
	l.mu.Lock()
	l.empty = empty
	l.settle()
	l.mu.Unlock()
	select {
	case <-empty:
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

// single is a listener of one connection.
type single struct {
	conn net.Conn
	addr net.Addr
}

// Accept returns the connection, once.
func (s *single) Accept() (net.Conn, error) {
	conn := s.conn
	if s.conn = nil; conn == nil {
		return nil, io.EOF
	}
	return conn, nil
}

// Close does nothing: the connection lives on.
func (s *single) Close() error { return nil }

// Addr is the local address of the connection.
func (s *single) Addr() net.Addr { return s.addr }

// resume hands a connection back to the server.
func (l *lot) resume(conn net.Conn, first []byte) {
	ln := &single{conn: &resumed{Conn: conn, first: first}, addr: conn.LocalAddr()}
	if err := l.http.Serve(ln); ln.conn != nil { // the server is stopping
		_ = err
		_ = conn.Close()
	}
}

// resumed is a connection of whose next request the beginning has been read.
type resumed struct {
	net.Conn
	first []byte
}

// Read returns the beginning first.
func (r *resumed) Read(p []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.first)
	r.first = r.first[n:]
	return n, nil
}
