package logtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// New returns a logger that writes to t.Log. Lines that come after the end of
// the test, from a goroutine that is still stopping, are dropped.
func New(t testing.TB) *slog.Logger {
	t.Helper()
	w := &testWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu     sync.Mutex
	t      testing.TB
	closed bool
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.t.Log(strings.TrimRight(string(p), "\n"))
	}
	return len(p), nil
}

func (w *testWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// Recorder keeps what was logged.
type Recorder struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// NewRecorder returns a logger of all levels and the recorder of its lines.
func NewRecorder() (*slog.Logger, *Recorder) {
	r := &Recorder{}
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug - 4})), r
}

// Write appends one line; it is for the logger.
func (r *Recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

// String returns everything logged so far, one line a record.
func (r *Recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}
