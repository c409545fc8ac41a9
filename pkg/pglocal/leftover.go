package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrInUse says that another process of ours runs a server on the same folder.
var ErrInUse = errors.New("in use by another process")

// lockFolder keeps two starters off one folder. The lock dies with its process.
func lockFolder(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create %s: %w", dir, err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w (process %s)", dir, ErrInUse, strings.TrimSpace(string(holder)))
	}
	// Only information for the message above; the lock is what counts.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	return func() { _ = f.Close() }, nil
}

// stopLeftover ends a postmaster that still runs on data although its starter
// is gone. The pid file of a dead one is removed by PostgreSQL itself, unless
// the pid meanwhile belongs to someone else; then by us.
func stopLeftover(ctx context.Context, data string, logf func(string, ...any)) error {
	path := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the pid of an earlier server: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || !runsOn(ctx, pid, data) {
		return os.Remove(path)
	}
	logf("stopping the server that an earlier run left behind (process %d)", pid)
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the server left behind as process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout,
		fmt.Errorf("the server left behind as process %d does not stop", pid))
	defer cancel()
	for runsOn(ctx, pid, data) {
		if err := wait(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// runsOn tells whether pid is a live postgres whose command line names data.
func runsOn(ctx context.Context, pid int, data string) bool {
	if pid <= 1 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		// No /proc: macOS and the BSDs.
		if line, err = exec.CommandContext(ctx, "ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output(); err != nil {
			return false
		}
	}
	text := strings.ReplaceAll(string(line), "\x00", " ")
	return strings.Contains(text, "postgres") && strings.Contains(text+" ", data+" ")
}

// wait pauses a polling loop.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
