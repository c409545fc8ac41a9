package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/process"
)

const bootTimeout = 90 * time.Second

// service is one process under test. It may be started again, on the same port.
type service struct {
	name  string
	path  string // of the binary
	ready string // URL that answers 200 once it is up
	env   []string
	proc  *process.Process
	log   *outputLog
}

func newService(name, path, ready string, env []string) *service {
	env = slices.Concat([]string{"GORACE=halt_on_error=0"}, env)
	return &service{name: name, path: path, ready: ready, env: env, log: &outputLog{}}
}

// launch starts the process.
func (s *service) launch() (err error) {
	s.proc, err = process.Start(s.name, s.path, s.env, s.log)
	return err
}

// boot starts the process and waits until it is up.
func (s *service) boot(ctx context.Context) error {
	since := s.log.position()
	if err := s.launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("no answer within %s", bootTimeout))
	defer cancel()
	if err := s.proc.WaitHealthy(ctx, s.ready); err != nil {
		s.proc.Kill()
		return fmt.Errorf("%w\n%s", err, s.log.text(since))
	}
	return nil
}

// Kill ends the one process as a power cut would (SIGKILL).
func (s *service) Kill() { s.proc.Kill() }

// Pause stops the one process where it is (SIGSTOP), until Resume or its end.
func (s *service) Pause(t testing.TB) {
	t.Helper()
	require.NoError(t, s.proc.Pause())
}

// Resume lets a paused process go on.
func (s *service) Resume(t testing.TB) {
	t.Helper()
	require.NoError(t, s.proc.Resume())
}

// PID is the process id of the one process.
func (s *service) PID() int { return s.proc.PID() }

// Terminate asks the one process to stop (SIGTERM) and requires a clean exit.
func (s *service) Terminate(t testing.TB) {
	t.Helper()
	require.NoError(t, s.proc.Stop())
}

// TryTerminate is Terminate for a goroutine beside the test's own.
func (s *service) TryTerminate() error { return s.proc.Stop() }

// Signal sends a signal to the one process.
func (s *service) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	require.NoError(t, s.proc.Signal(sig))
}

// Ended is closed once the process has ended, and Err then tells how.
func (s *service) Ended() <-chan struct{} { return s.proc.Done() }

// Err is how the process ended; a clean exit is nil.
func (s *service) Err() error { return s.proc.Err() }

// PeakMemory is the most resident memory that the one process has had, in bytes, or
// 0 where the system does not tell.
func (s *service) PeakMemory(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			require.NoError(t, err, line)
			return kib << 10
		}
	}
	return 0
}

// Log is what the one process has written, all starts together.
func (s *service) Log() string { return s.log.text(0) }

// Run starts the binary once more with the given arguments and environment on
// top, waits for its end, and answers its output.
func (s *service) Run(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	r := execute(t, s.path, slices.Concat(s.env, env), args...)
	if r.Code != 0 {
		return r.Stdout + r.Stderr, fmt.Errorf("%s ended with exit code %d", s.name, r.Code)
	}
	return r.Stdout + r.Stderr, nil
}

// Ended is how a command ended.
type Ended struct {
	Code           int
	Stdout, Stderr string
}

// execute runs a binary to its end.
func execute(t testing.TB, path string, env []string, args ...string) Ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.NoError(t, ctx.Err(), "%s %v did not end", path, args)
	return Ended{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// stop ends the process and reports what went wrong in it. One that was killed on
// purpose has ended already.
func (s *service) stop() error {
	return errors.Join(s.end(), checkLog(s.name, s.log.text(0)))
}

func (s *service) end() error {
	if s.proc == nil {
		return nil
	}
	select {
	case <-s.proc.Done():
		return nil
	default:
	}
	if err := s.proc.Stop(); err != nil {
		return fmt.Errorf("stop the %s: %w\n%s", s.name, err, s.log.tail(0))
	}
	return nil
}
