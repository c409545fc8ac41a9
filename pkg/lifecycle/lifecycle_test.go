package lifecycle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal notes what happened, in order.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) note(event string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, event)
}

func (j *journal) component(name string) lifecycle.Component {
	return lifecycle.Component{
		Name:  name,
		Start: func(context.Context) error { j.note("start " + name); return nil },
		Run: func(ctx context.Context) error {
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), lifecycle.ErrStop) {
				j.note("ended " + name)
			}
			return ctx.Err()
		},
		Stop: func(context.Context) error { j.note("stop " + name); return nil },
	}
}

func newGroup(t *testing.T, j *journal, timeout time.Duration) *lifecycle.Group {
	return lifecycle.NewGroup(lifecycle.Config{
		StopTimeout: timeout,
		Started:     func() { j.note("started") },
		Stopping:    func() { j.note("stopping") },
	}, logtest.New(t))
}

func TestGroupStartsInOrderAndStopsInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(t, &j, 0)
		g.Add(j.component("a"))
		g.Add(j.component("b"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, []string{"start a", "start b", "started"}, j.events)

		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"stopping", "stop b", "ended b", "stop a", "ended a"}, j.events[3:])
	})
}

func TestGroupNamesWhatFailedAndStopsTheRest(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		broken lifecycle.Component
		want   string
		events []string
	}{
		"start fails": {
			lifecycle.Component{Name: "x", Start: func(context.Context) error { return boom }},
			"start x: boom", []string{"start a", "stopping", "stop a", "ended a"},
		},
		"run fails": {
			lifecycle.Component{Name: "x", Run: func(context.Context) error { return boom }},
			"x: boom", []string{"start a", "started", "stopping", "stop a", "ended a"},
		},
		"run ends": {
			lifecycle.Component{Name: "x", Run: func(context.Context) error { return nil }},
			"x: ended by itself", []string{"start a", "started", "stopping", "stop a", "ended a"},
		},
		"stop fails": {
			lifecycle.Component{
				Name: "x", Run: func(context.Context) error { return boom },
				Stop: func(context.Context) error { return errors.New("stuck") },
			},
			"x: boom\nstop x: stuck", []string{"start a", "started", "stopping", "stop a", "ended a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var j journal
				g := newGroup(t, &j, 0)
				g.Add(j.component("a"))
				g.Add(tc.broken)
				require.EqualError(t, g.Run(t.Context()), tc.want)
				require.Equal(t, tc.events, j.events)
			})
		})
	}
}

// TestGroupGoesOnForTheDelay uses the clock of the bubble.
func TestGroupGoesOnForTheDelay(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		delay  time.Duration
		fails  time.Duration // of a component, after the group was asked to stop
		want   error
		took   time.Duration
		events []string
	}{
		"none":                 {0, time.Hour, nil, 0, []string{"stopping"}},
		"whole":                {time.Minute, time.Hour, nil, time.Minute, []string{"asked", "stopping"}},
		"cut short by a fault": {time.Minute, time.Second, boom, time.Second, []string{"asked", "stopping"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var j journal
				g := lifecycle.NewGroup(lifecycle.Config{
					StopDelay: tc.delay, StopTimeout: time.Second,
					Asked: func() { j.note("asked") }, Stopping: func() { j.note("stopping") },
				}, logtest.New(t))
				ctx, cancel := context.WithCancel(t.Context())
				g.Add(lifecycle.Component{Name: "x", Run: func(own context.Context) error {
					select {
					case <-own.Done():
						return own.Err()
					case <-time.After(tc.fails):
						return boom
					}
				}})
				done := make(chan error)
				go func() { done <- g.Run(ctx) }()
				synctest.Wait()
				began := time.Now()
				cancel()
				require.ErrorIs(t, <-done, tc.want)
				require.Equal(t, tc.took, time.Since(began))
				require.Equal(t, tc.events, j.events)
			})
		})
	}
}

func TestGroupAskedToStopWhileStartingDoesNotDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := lifecycle.NewGroup(lifecycle.Config{StopDelay: time.Hour, Asked: func() { t.Error("asked") }}, logtest.New(t))
		g.Add(lifecycle.Component{Name: "slow", Start: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		ctx, halt := context.WithCancel(t.Context())
		began := time.Now()
		go func() { synctest.Wait(); halt() }()
		require.NoError(t, g.Run(ctx))
		require.Zero(t, time.Since(began))
	})
}

func TestGroupGivesUpStartingWhenAStartedComponentFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(t, &j, 0)
		g.Add(lifecycle.Component{Name: "x", Run: func(context.Context) error { return errors.New("boom") }})
		g.Add(lifecycle.Component{Name: "slow", Start: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		g.Add(j.component("never"))
		require.EqualError(t, g.Run(t.Context()), "x: boom")
		require.Equal(t, []string{"stopping"}, j.events)
	})
}

func TestGroupStopsWhatStartedAlthoughItWasGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(t, &j, 0)
		g.Add(lifecycle.Component{Name: "x", Run: func(context.Context) error { return errors.New("boom") }})
		stubborn := j.component("stubborn")
		stubborn.Start = func(ctx context.Context) error { <-ctx.Done(); return nil }
		g.Add(stubborn)
		require.EqualError(t, g.Run(t.Context()), "x: boom")
		require.Equal(t, []string{"stopping", "stop stubborn", "ended stubborn"}, j.events)
	})
}

func TestGroupAskedToStopWhileStartingIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGroup(t, &j, 0)
		g.Add(j.component("a"))
		g.Add(lifecycle.Component{Name: "slow", Start: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stop, halt := context.WithCancel(ctx)
		go func() { synctest.Wait(); halt() }()
		require.NoError(t, g.Run(stop))
		require.Equal(t, []string{"start a", "stopping", "stop a", "ended a"}, j.events)
	})
}

func TestGroupCancelledBeforeItStartsOnlyReleases(t *testing.T) {
	t.Parallel()
	var j journal
	g := newGroup(t, &j, 0)
	g.Add(j.component("a"))
	g.Add(lifecycle.Component{Name: "held", Stop: func(context.Context) error { j.note("release held"); return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, g.Run(ctx))
	require.Equal(t, []string{"stopping", "release held"}, j.events)
}

func TestGroupReleasesWhatExistsWhenAnEarlierStartFails(t *testing.T) {
	t.Parallel()
	var j journal
	g := newGroup(t, &j, 0)
	g.Add(lifecycle.Component{Name: "x", Start: func(context.Context) error { return errors.New("boom") }})
	g.Add(j.component("never"))
	g.Add(lifecycle.Component{Name: "held", Stop: func(context.Context) error { j.note("release held"); return nil }})
	require.EqualError(t, g.Run(t.Context()), "start x: boom")
	require.Equal(t, []string{"stopping", "release held"}, j.events)
}

func TestGroupNamesWhatDoesNotStopWithinTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var j journal
		release := make(chan struct{})
		defer close(release)
		g := newGroup(t, &j, 3*time.Second)
		g.Add(j.component("a"))
		g.Add(lifecycle.Component{Name: "deaf", Run: func(context.Context) error { <-release; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		go func() { synctest.Wait(); cancel() }()
		err := g.Run(ctx)
		require.ErrorIs(t, err, lifecycle.ErrStopTimeout)
		require.EqualError(t, err, "stop deaf: stop deadline passed")
		require.Less(t, time.Since(began), 4*time.Second) // of the bubble's own clock
		require.Contains(t, j.events, "ended a")
	})
}

func TestLoopBacksOffWhileItFailsAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var starts []time.Time
		log, lines := logtest.NewRecorder()
		loop := lifecycle.Loop{Name: "sweep", Interval: time.Second, Log: log, RunOnce: func(context.Context) error {
			starts = append(starts, time.Now())
			switch len(starts) {
			case 1, 2, 3:
				return errors.New("boom")
			case 6:
				cancel()
				return ctx.Err()
			}
			return nil
		}}
		require.NoError(t, loop.Run(ctx))
		for i, want := range []time.Duration{100, 200, 400, 1000, 1000} {
			require.InEpsilon(t, want*time.Millisecond, starts[i+1].Sub(starts[i]), 0.11)
		}
		require.Contains(t, lines.String(), "component=sweep attempt=3")
		require.NotContains(t, lines.String(), "attempt=4", "stopping is not logged as a failure")
	})
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	t.Parallel()
	for failures, want := range []time.Duration{1, 2, 4, 5, 5} {
		require.InEpsilon(t, want*time.Second, lifecycle.Backoff(failures, time.Second, 5*time.Second), 0.11)
	}
	require.LessOrEqual(t, lifecycle.Backoff(1<<30, time.Second, time.Hour), 66*time.Minute)
	require.Zero(t, lifecycle.Backoff(3, 0, 0))
}
