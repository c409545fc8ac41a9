package http1

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	bufferBytes = 4 << 10
	// slack is how much later than asked a deadline may be, so that it need not be
	// set for every request.
	slack = 30 * time.Second
	// drainTime is how long the rest of a body that nobody wanted may take.
	drainTime = 5 * time.Second
	// lingerTime is how long a client may take to read a last answer: closing with
	// its bytes unread would destroy it.
	lingerTime = 500 * time.Millisecond
)

// longAgo as a deadline interrupts.
var longAgo = time.Unix(1, 0)

// conn is one connection. One goroutine serves it; watch has another one read.
type conn struct {
	server   *Server
	nc       net.Conn
	remote   string
	patience time.Duration // with a client that sends no request

	buf      [bufferBytes]byte
	from, to int // what of it has been read and not consumed
	head     head
	out      writer

	bodyLeft int64 // of the current request, not consumed
	broken   bool  // the connection ends with this request
	taken    bool  // somebody else has the connection

	readBy, writeBy time.Time // the deadlines that are set

	mu       sync.Mutex
	idle     bool
	gone     bool          // the client
	watchers []func()      // to be told of a client that leaves
	watching chan struct{} // closed when the watch is over; nil: there is none
}

func newConn(s *Server, nc net.Conn, patience time.Duration) *conn {
	c := &conn{server: s, nc: nc, remote: nc.RemoteAddr().String(), patience: patience}
	c.out.conn = c
	return c
}

func (c *conn) serve() {
	defer c.end()
	for c.await() {
		n := c.head.parse(c.buf[c.from:c.to])
		if n == 0 {
			c.leave()
			c.server.handOver(c.nc, c.unread())
			return
		}
		c.from += n
		c.bodyLeft = c.head.length
		c.request()
		if c.taken || c.broken {
			return
		}
	}
}

// leave takes the connection off the server's books; it is somebody else's.
func (c *conn) leave() {
	c.taken = true
	c.server.forget(c)
}

func (c *conn) end() {
	if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // the very value is thrown
		c.server.cfg.Log.Error("connection panicked", slog.Any(logging.KeyPanic, p), slog.String(logging.KeyStack, string(debug.Stack())))
	}
	if c.taken {
		return
	}
	c.stopWatch()
	_ = c.nc.Close()
	c.server.forget(c)
}

// unread is a copy of what has been read and not consumed.
func (c *conn) unread() []byte { return append([]byte(nil), c.buf[c.from:c.to]...) }

// await waits for a next request to begin.
func (c *conn) await() bool {
	if c.from < c.to {
		return !c.server.closing.Load()
	}
	c.from, c.to = 0, 0
	if !c.rest() {
		return false
	}
	n, err := c.nc.Read(c.buf[:])
	c.mu.Lock()
	c.idle = false
	c.mu.Unlock()
	c.to, c.patience = n, c.server.cfg.Other.IdleTimeout
	return n > 0 && (err == nil || errors.Is(err, io.EOF))
}

// rest gives the client as long as an idle connection has. A deadline that is
// nearly as late as that stays.
func (c *conn) rest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	if c.server.closing.Load() {
		return false
	}
	now := time.Now()
	if c.readBy.Sub(now) < c.patience-slack || c.readBy.Sub(now) > c.patience {
		c.readBy = now.Add(c.patience)
		return c.nc.SetReadDeadline(c.readBy) == nil
	}
	return true
}

// interruptIdle ends the wait for a next request.
func (c *conn) interruptIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle {
		_ = c.nc.SetReadDeadline(longAgo)
	}
}

// request has the handler answer one request.
func (c *conn) request() {
	x := &requestContext{conn: c}
	defer x.end()
	h := &c.head
	u := h.url
	r := (&http.Request{
		Method: h.method, URL: &u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h.header,
		Body: http.NoBody, ContentLength: h.length, Host: h.host, RemoteAddr: c.remote, RequestURI: h.target,
	}).WithContext(x)
	if h.length > 0 {
		r.Body = (*body)(c)
	}
	if !c.arrived() && !c.readBy.IsZero() { // how long that may take is for the handler to say
		c.readBy = time.Time{}
		_ = c.nc.SetReadDeadline(c.readBy)
	}
	c.out.begin()
	c.server.cfg.Handler.ServeHTTP(&c.out, r)
	if c.taken {
		return
	}
	c.out.finish()
	c.stopWatch()
	if c.broken && c.bodyLeft > 0 {
		c.linger()
	}
}

// linger lets the client read the last answer.
func (c *conn) linger() {
	tcp, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || tcp.CloseWrite() != nil || c.nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.nc, maxBody))
}

// body is the body of the current request.
type body conn

// Read reads what has come with the head first.
func (b *body) Read(p []byte) (int, error) {
	c := (*conn)(b)
	if c.bodyLeft == 0 || len(p) == 0 {
		return 0, eof(c.bodyLeft)
	}
	p = p[:min(int64(len(p)), c.bodyLeft)]
	var n int
	var err error
	if c.from < c.to {
		n = copy(p, c.buf[c.from:c.to])
		c.from += n
	} else {
		n, err = c.nc.Read(p)
	}
	c.bodyLeft -= int64(n)
	switch {
	case c.bodyLeft == 0:
		c.startWatch()
		return n, io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	c.broken = c.broken || err != nil
	return n, err
}

func eof(left int64) error {
	if left == 0 {
		return io.EOF
	}
	return nil
}

// Close leaves the rest of the body to finish.
func (*body) Close() error { return nil }

// arrived says that the whole body has.
func (c *conn) arrived() bool { return c.bodyLeft == 0 || c.bodyLeft <= int64(c.to-c.from) }

// drain takes in what the handler left of the body.
func (c *conn) drain() {
	if c.broken || c.bodyLeft == 0 {
		return
	}
	if !c.arrived() {
		c.readBy = time.Now().Add(drainTime)
		_ = c.nc.SetReadDeadline(c.readBy)
	}
	_, err := io.Copy(io.Discard, (*body)(c))
	c.broken = c.broken || err != nil
}

// watch has cancel called when the client leaves before the request is answered.
func (c *conn) watch(cancel func()) {
	c.mu.Lock()
	c.watchers = append(c.watchers, cancel)
	c.mu.Unlock()
	c.startWatch()
}

// startWatch reads ahead, if somebody wants to know and the body is no longer in
// the way. What a client sends ahead ends the watch: it has not left.
func (c *conn) startWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.watchers) == 0 || c.watching != nil || c.bodyLeft > 0 || c.from < c.to {
		return
	}
	c.from, c.to = 0, 0
	if !c.readBy.IsZero() {
		c.readBy = time.Time{}
		_ = c.nc.SetReadDeadline(c.readBy)
	}
	c.watching = make(chan struct{})
	go func(over chan struct{}) {
		defer close(over)
		n, err := c.nc.Read(c.buf[:])
		c.to = n
		if n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.left()
		}
	}(c.watching)
}

func (c *conn) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, cancel := range c.watchers {
		cancel()
	}
}

// stopWatch returns when nobody else reads any more.
func (c *conn) stopWatch() {
	c.mu.Lock()
	over := c.watching
	c.watching, c.watchers = nil, nil
	c.mu.Unlock()
	if over == nil {
		return
	}
	select {
	case <-over:
	default:
		_ = c.nc.SetReadDeadline(longAgo)
		<-over
		_ = c.nc.SetReadDeadline(time.Time{})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = time.Time{}
	c.broken = c.broken || c.gone
}
