package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Levels beyond those of slog.
const (
	LevelTrace = slog.LevelDebug - 4
	LevelOff   = slog.LevelError + 1000
)

// Config says what is logged and how.
type Config struct {
	// Level is the least level that is logged. RUST_LOG is the older name and
	// wins, as operators of the original system expect.
	Level Level `envconfig:"RUST_LOG" alias:"LOG_LEVEL" default:"info"`
	// JSON switches from text to one JSON object a line.
	JSON bool `envconfig:"QUEEN_LOG_JSON" default:"false"`
}

// Level is a log level as an operator writes it.
type Level slog.Level

// UnmarshalText accepts the level names in any case.
func (l *Level) UnmarshalText(text []byte) error {
	switch strings.ToLower(strings.TrimSpace(string(text))) {
	case "trace":
		*l = Level(LevelTrace)
	case "debug":
		*l = Level(slog.LevelDebug)
	case "info":
		*l = Level(slog.LevelInfo)
	case "warn", "warning":
		*l = Level(slog.LevelWarn)
	case "error":
		*l = Level(slog.LevelError)
	case "off":
		*l = Level(LevelOff)
	default:
		// pkg/config completes this sentence with "is allowed".
		return fmt.Errorf("one level out of trace, debug, info, warn, error, off (no filters per target)")
	}
	return nil
}

// String returns the name that UnmarshalText accepts.
func (l Level) String() string {
	switch slog.Level(l) {
	case LevelTrace:
		return "trace"
	case LevelOff:
		return "off"
	}
	return strings.ToLower(slog.Level(l).String())
}

// New returns a logger that writes to w. Lines logged under a context with a
// span carry its ids.
func New(w io.Writer, cfg Config) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.Level(cfg.Level)}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if cfg.JSON {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(spanHandler{h})
}

// spanHandler adds the ids of the context's span.
type spanHandler struct{ slog.Handler }

func (h spanHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String(KeyTrace, sc.TraceID().String()), slog.String(KeySpan, sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h spanHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return spanHandler{h.Handler.WithAttrs(attrs)}
}

func (h spanHandler) WithGroup(name string) slog.Handler {
	return spanHandler{h.Handler.WithGroup(name)}
}

// Err is the attribute of an error.
func Err(err error) slog.Attr { return slog.Any(KeyError, err) }
