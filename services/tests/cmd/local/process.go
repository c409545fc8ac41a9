package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// stopGrace is how long a service may take to stop before it is killed: a
// little over its own shutdown deadline of 25 s.
const stopGrace = 30 * time.Second

// process is one started service.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *processLog
	done chan struct{} // closed when the process has ended
	err  error         // valid after done
}

// startProcess starts a binary in a process group of its own, so that an
// interrupt typed at the terminal reaches only this program, which then stops
// its services in order.
func startProcess(name, path string, env []string, log *processLog) (*process, error) {
	p := &process{name: name, log: log, done: make(chan struct{})}
	p.cmd = exec.Command(path)
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

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop asks the process to end and waits; past the grace period it is killed.
func (p *process) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// buildService builds one service of the workspace into the private folder.
func buildService(ctx context.Context, root, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("build %s: %w\n%s", filepath.Base(out), err, text)
	}
	return nil
}

// checkPort tells early, and by name, that a port cannot be had.
func checkPort(port int, variable string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d is taken (%w); choose another one: make run %s=%d", port, err, variable, port+1000)
	}
	return l.Close()
}

func (p *process) wait(started chan<- error) {
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}
