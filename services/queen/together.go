package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// The services.
const (
	nameBroker     = "broker"
	nameMaintainer = "maintainer"
	nameSweeper    = "sweeper"
)

// ended says which service ended and how.
type ended struct {
	name string
	err  error
}

// together runs the services as children until ctx ends or one of them does, and
// then stops the others. One that ends by itself is a failure whatever its exit code:
// what it was there for is not done any more.
func together(ctx context.Context, self string, env []string, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan ended)
	running := 0
	var failures []error
	for _, name := range []string{nameBroker, nameMaintainer, nameSweeper} {
		child := service(ctx, self, name, env)
		child.Stdout, child.Stderr = stdout, stderr
		if err := child.Start(); err != nil {
			failures = append(failures, fmt.Errorf("start the %s: %w", name, err))
			cancel()
			break
		}
		running++
		go func() { ends <- ended{name, child.Wait()} }()
	}
	for ; running > 0; running-- {
		e := <-ends
		if ctx.Err() == nil {
			failures = append(failures, fmt.Errorf("the %s ended by itself: %s", e.name, outcome(e.err)))
			cancel()
		} else if err := failure(e); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// failure is nil for a child that stopped as it was asked to, or that the signal found
// before it listened for one.
func failure(e ended) error {
	var exit *exec.ExitError
	switch {
	case e.err == nil, errors.Is(e.err, context.Canceled):
		return nil
	case errors.As(e.err, &exit) && signalOf(exit) == syscall.SIGTERM:
		return nil
	}
	return fmt.Errorf("stop the %s: %w", e.name, e.err)
}

// signalOf is what ended a process, -1 when it exited.
func signalOf(e *exec.ExitError) syscall.Signal {
	if status, ok := e.Sys().(syscall.WaitStatus); ok {
		return status.Signal()
	}
	return -1
}

func outcome(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// service prepares one child. It gets SIGTERM when ctx ends, and time to stop by
// itself; each knows its own deadline. It is a process group of its own, so that an
// interrupt at the terminal reaches it once, through us.
func service(ctx context.Context, self, name string, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, self, name)
	cmd.Env = append(slices.Clone(env), hints(name, env)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = childAttributes()
	return cmd
}

// The ports on which broker and sweeper tell each other of what is new.
const (
	brokerHints  = "6633"
	sweeperHints = "6634"
	loopback     = "127.0.0.1"
)

// hints joins broker and sweeper within the machine, unless the settings name peers
// or switch hints off: a timer is then delivered milliseconds after its time, not up to
// a second.
func hints(name string, env []string) []string {
	own, other := brokerHints, sweeperHints
	switch {
	case name == nameMaintainer, sets(env, "QUEEN_MESH_PEERS"), sets(env, "QUEEN_UDP_PEERS"):
		return nil
	case name == nameSweeper:
		own, other = other, own
	}
	return []string{
		"QUEEN_MESH_PEERS=" + loopback + ":" + other, "QUEEN_MESH_PORT=" + own,
		"QUEEN_MESH_BIND_ADDR=" + loopback, "QUEEN_MESH_ADVERTISE_HOST=" + loopback,
	}
}

func sets(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}
