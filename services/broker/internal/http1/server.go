package http1

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

// Config is what a Server works with.
type Config struct {
	Handler http.Handler
	// Other takes the connections that are not plain. Its deadlines for the first
	// request and for idle connections hold here too.
	Other *http.Server
	Log   *slog.Logger
}

// Server accepts connections and serves them. It is safe for concurrent use.
type Server struct {
	cfg Config

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing atomic.Bool // changes under mu only
	ln      net.Listener
	empty   chan struct{} // closed once it is closing and has no connection
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, conns: make(map[*conn]struct{}), empty: make(chan struct{})}
}

// Pauses after a failure to accept, as net/http makes them.
const (
	acceptPause    = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Serve accepts connections until Shutdown, and then returns http.ErrServerClosed.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	s.ln = ln
	s.mu.Unlock()
	if s.closing.Load() {
		_ = ln.Close()
	}
	pause := acceptPause
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = acceptPause
			s.start(nc, nil, s.cfg.Other.ReadHeaderTimeout)
		case s.closing.Load():
			return http.ErrServerClosed
		case !temporary(err):
			return err
		default:
			s.cfg.Log.Warn("cannot accept a connection", logging.Err(err))
			time.Sleep(pause)
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

// temporary tells of a failure that says nothing of the listener: no descriptor is
// left, or the client was gone already.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// Adopt serves a connection of whose next request the beginning has been read.
func (s *Server) Adopt(nc net.Conn, first []byte) { s.start(nc, first, s.cfg.Other.IdleTimeout) }

func (s *Server) start(nc net.Conn, first []byte, patience time.Duration) {
	if len(first) > bufferBytes {
		s.handOver(nc, first)
		return
	}
	c := newConn(s, nc, patience)
	c.to = copy(c.buf[:], first)
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	go c.serve()
}

// handOver leaves a connection to net/http.
func (s *Server) handOver(nc net.Conn, first []byte) {
	_ = nc.SetDeadline(time.Time{})
	ln := &single{conn: &replay{Conn: nc, first: first}, addr: nc.LocalAddr()}
	if err := s.cfg.Other.Serve(ln); ln.conn != nil { // the server is stopping
		_ = err
		_ = nc.Close()
	}
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.settle()
}

func (s *Server) settle() {
	if s.closing.Load() && len(s.conns) == 0 {
		select {
		case <-s.empty:
		default:
			close(s.empty)
		}
	}
}

// Shutdown closes the port and the connections that wait for a request, and waits
// for requests under way, whose answers tell the clients to leave. At the end of
// ctx it cuts what is left and returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing.Store(true)
	if s.ln != nil {
		_ = s.ln.Close()
	}
	for c := range s.conns {
		c.interruptIdle()
	}
	s.settle()
	s.mu.Unlock()
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.nc.Close()
	}
	if len(s.conns) == 0 {
		return nil
	}
	return ctx.Err()
}
