package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

// StopTimeoutDefault bounds the stop of a whole group.
const StopTimeoutDefault = 25 * time.Second

var (
	// ErrStop is the cause of the contexts that end because a component stops.
	ErrStop = errors.New("stopping")
	// ErrEnded is the failure of a component whose Run returned without one.
	ErrEnded = errors.New("ended by itself")
	// ErrStopTimeout says that the deadline passed while something was stopping.
	ErrStopTimeout = errors.New("stop deadline passed")
)

// Component is one part of a process. Every function may be nil.
type Component struct {
	Name string
	// Start returns once the next component may start. Its context ends when
	// the process is asked to stop.
	Start func(ctx context.Context) error
	// Run works until its context ends. Returning earlier, with or without an
	// error, is a failure that stops the whole group.
	Run func(ctx context.Context) error
	// Stop releases what Start took; it is called before the context of Run
	// ends, with the context that carries the deadline. A component with nothing
	// but Stop exists from the beginning: it is released whatever else failed.
	Stop func(ctx context.Context) error
}

// Config tunes a group.
type Config struct {
	StopTimeout time.Duration // default StopTimeoutDefault
	// StopDelay is how long a group that runs goes on after it was asked to stop. It is
	// no part of StopTimeout.
	StopDelay time.Duration
	// Started is called once every component runs.
	Started func()
	// Asked is called when the group was asked to stop and StopDelay begins, if there is one.
	Asked func()
	// Stopping is called when the stop begins, before the first component stops.
	Stopping func()
}

// Group is an ordered set of components.
type Group struct {
	cfg        Config
	log        *slog.Logger
	components []Component
	running    []*running
	failures   chan error
}

// running is a component that has been started.
type running struct {
	Component
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when Run has returned
}

// NewGroup returns an empty group.
func NewGroup(cfg Config, log *slog.Logger) *Group {
	if cfg.StopTimeout <= 0 {
		cfg.StopTimeout = StopTimeoutDefault
	}
	return &Group{cfg: cfg, log: log}
}

// Add appends a component. Later ones may rely on earlier ones.
func (g *Group) Add(c Component) { g.components = append(g.components, c) }

// Run starts the components, waits until ctx ends or one of them fails, and
// stops them, after a delay where it was asked to. A group runs once. The error names the component that failed and
// those that did not stop in time; a stop that was asked for and went well is nil.
func (g *Group) Run(ctx context.Context) error {
	g.failures = make(chan error, len(g.components))
	cause := g.startAll(ctx)
	if cause == nil && ctx.Err() == nil {
		if g.cfg.Started != nil {
			g.cfg.Started()
		}
		select {
		case <-ctx.Done():
			cause = g.goOn()
		case cause = <-g.failures:
		}
	}
	return errors.Join(cause, g.stopAll(ctx))
}

// goOn lets the delay pass, or reports what failed meanwhile.
func (g *Group) goOn() error {
	if g.cfg.StopDelay <= 0 {
		return nil
	}
	if g.cfg.Asked != nil {
		g.cfg.Asked()
	}
	timer := time.NewTimer(g.cfg.StopDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-g.failures:
		return err
	}
}

// startAll starts in order. After a failure, or once ctx has ended, which is no
// failure, it only takes in what exists already.
func (g *Group) startAll(ctx context.Context) error {
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	var failure error
	for _, c := range g.components {
		if c.Start == nil && c.Run == nil {
			g.running = append(g.running, g.launch(ctx, c))
			continue
		}
		if failure != nil || ctx.Err() != nil {
			continue
		}
		var ok bool
		if ok, failure = g.startOne(starting, cancel, c); ok {
			g.running = append(g.running, g.launch(ctx, c))
		}
		if ctx.Err() != nil && errors.Is(failure, context.Canceled) {
			failure = nil // asked to stop while starting
		}
	}
	return failure
}

// startOne reports whether the component has started, and what failed: it, or an
// earlier one meanwhile. In that case its start is called off.
func (g *Group) startOne(ctx context.Context, cancel context.CancelFunc, c Component) (started bool, failure error) {
	result := make(chan error, 1)
	go func() { result <- c.start(ctx) }()
	select {
	case failure = <-g.failures:
		cancel()
		return <-result == nil, failure
	case err := <-result:
		if err != nil {
			return false, fmt.Errorf("start %s: %w", c.Name, err)
		}
		return true, nil
	}
}

func (c Component) start(ctx context.Context) error {
	if c.Start == nil {
		return nil
	}
	return c.Start(ctx)
}

// launch runs the component on a context that only its own stop ends: a loop
// must not end before those that rely on it.
func (g *Group) launch(ctx context.Context, c Component) *running {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &running{Component: c, cancel: cancel, done: make(chan struct{})}
	if c.Run == nil {
		close(r.done)
		return r
	}
	go func() {
		defer close(r.done)
		err := c.Run(own)
		if own.Err() != nil {
			return
		}
		if err == nil {
			err = ErrEnded
		}
		g.failures <- fmt.Errorf("%s: %w", c.Name, err)
	}()
	return r
}

func (g *Group) stopAll(ctx context.Context) error {
	if g.cfg.Stopping != nil {
		g.cfg.Stopping()
	}
	stopping, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), g.cfg.StopTimeout, ErrStopTimeout)
	defer cancel()
	var problems []error
	for i := len(g.running) - 1; i >= 0; i-- {
		r := g.running[i]
		if err := r.stop(stopping); err != nil {
			g.log.ErrorContext(ctx, "component did not stop cleanly",
				slog.String(logging.KeyComponent, r.Name), logging.Err(err))
			problems = append(problems, fmt.Errorf("stop %s: %w", r.Name, err))
		}
	}
	return errors.Join(problems...)
}

// lastChance is how long a component may take to notice its end when another
// one has used up the deadline, so that only the culprit is blamed.
const lastChance = 100 * time.Millisecond

// stop gives every component its turn even after the deadline: cancelling is
// free, and what can be released at once still is.
func (r *running) stop(ctx context.Context) error {
	var err error
	if r.Stop != nil {
		err = r.Stop(ctx)
	}
	r.cancel(ErrStop)
	select {
	case <-r.done:
		return err
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return err
	case <-time.After(lastChance):
		return errors.Join(err, context.Cause(ctx))
	}
}
