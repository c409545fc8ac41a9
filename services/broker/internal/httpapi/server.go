package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
)

const (
	readHeaderTimeout = 10 * time.Second
	// idleTimeout outlasts the 60 s after which common load balancers drop idle
	// connections, so that they never send a request into a closing one.
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 128 << 10
	addrVariables  = "PORT or QUEEN_BIND_ADDR"
)

// Server is the listener for clients.
type Server struct {
	addr string
	log  *slog.Logger
	http *http.Server
	api  *API // nil when the handler is another one, which parks nothing
	ln   net.Listener
}

// NewServer builds the server; Start opens its port. There is no deadline for a
// whole request, which would cut long polls: headers, bodies and answers each
// have their own.
func NewServer(addr string, handler http.Handler, log *slog.Logger) *Server {
	s := &Server{addr: addr, log: log, http: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}
	if api, ok := handler.(*API); ok {
		s.api = api
		api.lot.http = s.http
	}
	return s
}

// Start opens the port.
func (s *Server) Start(ctx context.Context) error {
	ln, err := lifecycle.Listen(ctx, s.addr, addrVariables)
	if err != nil {
		return err
	}
	s.ln = ln
	s.log.InfoContext(ctx, "listening for clients", slog.String(logging.KeyAddr, ln.Addr().String()))
	return nil
}

// Addr is where the server listens; it is for after Start.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Run serves until Stop.
func (s *Server) Run(ctx context.Context) error {
	if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	<-ctx.Done() // Serve returns when the stop begins
	return nil
}

// Leave tells clients to leave: from now on an answer ends its connection, so that the
// next request goes elsewhere. Connections that rest are left alone, since a request
// may be on its way on them.
func (s *Server) Leave() {
	if s.api != nil {
		s.api.leaving.Store(true)
	}
}

// Stop closes the port, tells clients to leave and waits for running requests.
// At the deadline of ctx their connections are cut.
func (s *Server) Stop(ctx context.Context) error {
	s.Leave()
	if s.api != nil {
		s.api.lot.close()
	}
	var errs []error
	if err := s.http.Shutdown(ctx); err != nil {
		errs = append(errs, fmt.Errorf("drain: %w", err), s.http.Close())
	}
	if s.api != nil {
		if err := s.api.lot.wait(ctx); err != nil {
			errs = append(errs, fmt.Errorf("drain parked pops: %w", err))
		}
	}
	return errors.Join(errs...)
}
