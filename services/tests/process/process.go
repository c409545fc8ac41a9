// Package process builds and runs the service binaries for whatever drives
// them from outside: the local stack, the load driver and the test suite.
package process

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// StopGrace is how long a service may take to stop before it is killed: a
	// little over its own shutdown deadline of 25 s.
	StopGrace = 30 * time.Second

	pollInterval = 20 * time.Millisecond
)

// Process is one started binary.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // valid after done
}

// Start runs a binary in a process group of its own, so that an interrupt typed
// at the terminal reaches only the parent, which then stops its children in
// order. On Linux the child is told to stop when its parent dies. Output of
// both streams goes to log.
func Start(name, path string, env []string, log io.Writer, args ...string) (*Process, error) {
	p := &Process{name: name, done: make(chan struct{})}
	// The caller stops the process; no context ends it.
	p.cmd = exec.CommandContext(context.Background(), path, args...)
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = childAttributes()
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func (p *Process) wait(started chan<- error) {
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err tells how the process ended; it waits for the end. A clean exit is nil.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Stop asks the process to end and waits; past StopGrace it is killed. A paused
// process goes on for it.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.Resume()
	select {
	case <-p.done:
	case <-time.After(StopGrace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return p.err
}

// Kill ends the process at once (SIGKILL) and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Pause stops the process where it is (SIGSTOP), until Resume.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Signal sends any signal.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Build compiles one package of the workspace into the file out.
func Build(ctx context.Context, root, pkg, out string, flags ...string) error {
	args := append([]string{"build", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("build %s: %w\n%s", filepath.Base(out), err, text)
	}
	return nil
}

// WaitHealthy polls a health URL until it answers 200, the process ends, or ctx ends.
func (p *Process) WaitHealthy(ctx context.Context, url string) error {
	for {
		if healthy(ctx, url) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was healthy: %w", p.name, p.err)
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy: %w", p.name, context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

func healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
