package harness

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// checkGrace is how long `broker check` may take to clean up once it was interrupted.
const checkGrace = 20 * time.Second

// Check runs `broker check`, without any variable of a database, to its end. It is
// asked to stop (SIGTERM) as soon as its output holds interruptAt, unless that is empty.
func Check(t testing.TB, interruptAt string, args ...string) Ended {
	t.Helper()
	path, err := current.broker()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, path, slices.Concat([]string{"check"}, args)...)
	cmd.Env = cleanEnvironment()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = checkGrace
	out := &trigger{mark: interruptAt, pull: cancel}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, context.Canceled) {
		require.NoError(t, err)
	}
	return Ended{Code: cmd.ProcessState.ExitCode(), Stdout: out.text.String(), Stderr: stderr.String()}
}

// trigger keeps what is written, and pulls when it holds a mark.
type trigger struct {
	mu   sync.Mutex
	text strings.Builder
	mark string
	pull func()
}

// Write implements io.Writer.
func (w *trigger) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if w.mark != "" && strings.Contains(w.text.String(), w.mark) {
		w.pull()
	}
	return len(p), nil
}
