package opsserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
)

const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	checkTimeout      = 5 * time.Second
	variable          = "QUEEN_OPS_ADDR"
)

// Config says where to listen.
type Config struct {
	// Addr is host:port; an empty text switches the listener off.
	Addr string `envconfig:"QUEEN_OPS_ADDR" default:":6640"`
	// Profiles serves Go's pprof. Profiles slow a process down and show its
	// inside, so they have to be asked for.
	Profiles bool `envconfig:"QUEEN_PPROF" default:"false"`
}

// Validate refuses an address without a port.
func (c Config) Validate() error {
	if c.Addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return &config.ValueError{Name: variable, Value: c.Addr, Allowed: "host:port, :port or nothing (off)"}
	}
	return nil
}

// Deps is what the routes report.
type Deps struct {
	Log     *slog.Logger
	Metrics http.Handler
	// Ready is nil when the service can do its work.
	Ready func(ctx context.Context) error
	// Health is nil when what the service depends on is reachable.
	Health func(ctx context.Context) error
}

// Server is the operations listener.
type Server struct {
	cfg  Config
	deps Deps
	http *http.Server
	ln   net.Listener
}

// New builds the server; Start opens its port.
func New(cfg Config, deps Deps) *Server {
	s := &Server{cfg: cfg, deps: deps}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(deps.Log.Handler(), slog.LevelWarn),
	}
	return s
}

// Component returns the server as a part of a process. With the listener off it
// does nothing.
func (s *Server) Component() lifecycle.Component {
	c := lifecycle.Component{Name: "operations listener"}
	if s.cfg.Addr != "" {
		c.Start, c.Run, c.Stop = s.Start, s.Run, s.Stop
	}
	return c
}

// Start opens the port.
func (s *Server) Start(ctx context.Context) error {
	ln, err := lifecycle.Listen(ctx, s.cfg.Addr, variable)
	if err != nil {
		return err
	}
	s.ln = ln
	s.deps.Log.InfoContext(ctx, "operations listener started",
		slog.String(logging.KeyAddr, ln.Addr().String()), slog.Bool(logging.KeyProfiles, s.cfg.Profiles))
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

// Stop closes the port and waits for running requests within the deadline.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("drain: %w", err), s.http.Close())
	}
	return nil
}

func (s *Server) routes() http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		code := http.StatusInternalServerError
		var he *echo.HTTPError
		if errors.As(err, &he) {
			code = he.Code
		}
		_ = c.JSON(code, map[string]string{"error": http.StatusText(code)})
	}
	e.GET("/live", func(c echo.Context) error { return c.JSON(http.StatusOK, status("live", nil)) })
	e.GET("/ready", func(c echo.Context) error { return s.report(c, "ready", s.deps.Ready) })
	e.GET("/health", func(c echo.Context) error { return s.report(c, "healthy", s.deps.Health) })
	metrics := echo.WrapHandler(s.deps.Metrics)
	e.GET("/metrics", metrics)
	e.GET("/metrics/prometheus", metrics)
	if s.cfg.Profiles {
		addProfiles(e)
	}
	return e
}

func addProfiles(e *echo.Echo) {
	e.GET("/debug/pprof/cmdline", echo.WrapHandler(http.HandlerFunc(pprof.Cmdline)))
	e.GET("/debug/pprof/profile", echo.WrapHandler(http.HandlerFunc(pprof.Profile)))
	e.GET("/debug/pprof/symbol", echo.WrapHandler(http.HandlerFunc(pprof.Symbol)))
	e.GET("/debug/pprof/trace", echo.WrapHandler(http.HandlerFunc(pprof.Trace)))
	e.GET("/debug/pprof/*", echo.WrapHandler(http.HandlerFunc(pprof.Index)))
}

func (s *Server) report(c echo.Context, word string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), checkTimeout)
	defer cancel()
	err := check(ctx)
	code := http.StatusOK
	if err != nil {
		code = http.StatusServiceUnavailable
	}
	return c.JSON(code, status(word, err))
}

func status(word string, err error) map[string]string {
	if err != nil {
		return map[string]string{"status": "not " + word, "reason": err.Error()}
	}
	return map[string]string{"status": word}
}
