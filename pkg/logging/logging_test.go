package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/logging"
)

func TestLevelReadsTheNamesItPrints(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"trace", "debug", "info", "warn", "error", "off"} {
		var l logging.Level
		require.NoError(t, l.UnmarshalText([]byte(" "+name+" ")))
		require.Equal(t, name, l.String())
	}
}

func TestConfigPrefersTheOlderNameAndRefusesFilters(t *testing.T) {
	t.Setenv("LOG_LEVEL", "error")
	t.Setenv("RUST_LOG", "DEBUG")
	var cfg logging.Config
	require.NoError(t, config.Load(&cfg))
	require.Equal(t, slog.LevelDebug, slog.Level(cfg.Level))

	t.Setenv("RUST_LOG", "")
	require.NoError(t, config.Load(&cfg))
	require.Equal(t, slog.LevelError, slog.Level(cfg.Level))

	t.Setenv("LOG_LEVEL", "info,queen::pop=debug")
	require.ErrorContains(t, config.Load(&cfg), `LOG_LEVEL="info,queen::pop=debug": one level out of trace, debug`)
}

func TestJSONLinesCarryTheSpanOfTheContext(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	log := logging.New(&buf, logging.Config{JSON: true}).With("service", "s").WithGroup("g")
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{15: 1}, SpanID: trace.SpanID{7: 2},
	}))
	log.InfoContext(ctx, "with span", logging.Err(errors.New("boom")))

	var line map[string]any
	require.NoError(t, json.Unmarshal(buf.Bytes(), &line))
	require.Equal(t, "s", line["service"])
	require.Equal(t, map[string]any{
		"error": "boom", "trace_id": "00000000000000000000000000000001", "span_id": "0000000000000002",
	}, line["g"])
}

func TestTextLinesBelowTheLevelAreDropped(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	log := logging.New(&buf, logging.Config{Level: logging.Level(slog.LevelWarn)})
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	require.NotContains(t, buf.String(), "quiet")
	require.Contains(t, buf.String(), "level=WARN msg=loud n=1\n")
}
