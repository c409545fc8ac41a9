// Package rolling_test replaces the processes of an installation one by one under load,
// as Kubernetes does: a process is told to stop and turns unready, a little later no new
// connection comes to it, it ends, and another one takes its place. Clients lose nothing,
// get nothing twice and see no answer that they would not repeat.
package rolling_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
	"github.com/queenmq/queen/services/tests/soak"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	// delay is for how long a broker serves on in these tests: several times what the
	// endpoints take to follow.
	delay = 2 * time.Second
	// idle is for how long clients keep a connection that they do not use. It has to be
	// shorter than the delay: HTTP/1.1 has no way to close a connection that rests without
	// hitting a request that is sent at that moment.
	idle = delay / 8

	// patience bounds what has to happen sooner or later.
	patience = 30 * time.Second

	brokers = 3
	// rounds of replacing everything are made when there is time.
	rounds = 10
)

// installation is three brokers behind a service, two sweepers and two maintainers, under
// load.
type installation struct {
	*harness.Stage
	t           *testing.T
	service     *endpoints
	maintainers []*harness.Maintainer

	stop    context.CancelFunc // of the load
	verdict chan soak.Verdict
}

func install(t *testing.T, shutdownDelay time.Duration) *installation {
	t.Helper()
	i := &installation{t: t, service: &endpoints{}, verdict: make(chan soak.Verdict, 1)}
	i.Stage = harness.StartSetup(t, harness.Setup{
		Brokers: brokers, Sweepers: 2, Ops: true,
		Env: []string{fmt.Sprintf("QUEEN_SHUTDOWN_DELAY_MS=%d", shutdownDelay.Milliseconds())},
	})
	for range 2 {
		i.maintainers = append(i.maintainers, harness.StartMaintainer(t, i.DB))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var followers sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		followers.Wait()
	})
	for _, b := range i.Each {
		followers.Go(func() { i.service.follow(ctx, b) })
		harness.Eventually(t, patience, "the broker is an endpoint", func() bool { return i.service.has(b) })
	}
	i.load()
	return i
}

// load starts clients of the service.
func (i *installation) load() {
	cfg := soak.Default()
	cfg.URLs, cfg.Queue, cfg.Dial = []string{"http://queen"}, "soak", i.service.DialContext
	cfg.For, cfg.Lanes, cfg.Rate, cfg.Lease, cfg.Renew = time.Hour, 200, 400, 20*time.Second, idle
	var ctx context.Context
	ctx, i.stop = context.WithCancel(context.WithoutCancel(i.t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		v, err := soak.Run(ctx, cfg)
		if err != nil {
			i.t.Errorf("run the load: %v", err)
		}
		i.verdict <- v
	})
	i.t.Cleanup(func() {
		i.stop()
		running.Wait()
	})
}

// finish ends the load and answers what came of it.
func (i *installation) finish() soak.Verdict {
	i.t.Helper()
	i.stop()
	v := <-i.verdict
	text, err := json.Marshal(v)
	require.NoError(i.t, err)
	i.t.Logf("%s", text)
	return v
}

// replaceBroker has a broker stop and another one take its place.
func (i *installation) replaceBroker(b *harness.Broker) {
	i.t.Helper()
	began := time.Now()
	b.Terminate(i.t)
	ended := time.Since(began)
	harness.Eventually(i.t, patience, "the broker is no endpoint", func() bool { return !i.service.has(b) })
	b.Restart(i.t)
	harness.Eventually(i.t, patience, "the broker is an endpoint", func() bool { return i.service.has(b) })
	i.t.Logf("%s: %s ended after %v, and another took its place after %v", began.Format(time.StampMilli), b.URL, ended.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// replaceAll replaces every process once.
func (i *installation) replaceAll() {
	i.t.Helper()
	for n, b := range i.Each {
		i.replaceBroker(b)
		if n < len(i.Sweepers) {
			i.Sweepers[n].Terminate(i.t)
			i.Sweepers[n].Restart(i.t)
			i.maintainers[n].Terminate(i.t)
			i.maintainers[n].Restart(i.t)
		}
	}
}

// requireNothingLost requires what holds however a process ends.
func requireNothingLost(t *testing.T, v soak.Verdict) {
	t.Helper()
	require.True(t, v.OK)
	require.Greater(t, v.Pushed, int64(100))
	require.Equal(t, v.Pushed, v.Acknowledged)
	require.Positive(t, v.Timers.Scheduled)
	require.Equal(t, v.Timers.Scheduled, v.Timers.Delivered)
	require.Positive(t, v.Counters.Value)
	require.Zero(t, v.Redelivered, "a delivery that was answered is acknowledged in time")
}

func turns() int {
	if harness.Long() {
		return rounds
	}
	return 1
}

func TestReplacingEveryProcessIsNotNoticed(t *testing.T) {
	t.Parallel()
	i := install(t, delay)
	for range turns() {
		i.replaceAll()
	}
	v := i.finish()
	requireNothingLost(t, v)
	require.Empty(t, v.Errors, "every request was answered")
	require.Zero(t, v.Reclaimed, "every delivery arrived")
	for what, statuses := range v.Answers {
		for status := range statuses {
			if !isKey(what) {
				require.Contains(t, []string{"200", "201", "204"}, status, what)
			}
		}
	}
}

// isKey tells requests about keys and timers. Where the machine is slow they are refused
// after a short while instead of waiting, whatever happens to brokers.
func isKey(what string) bool { return slices.Contains([]string{"count", "read", "timer"}, what) }

func TestReplacingEveryProcessWithoutDelayIsRepeatedByClients(t *testing.T) {
	t.Parallel()
	i := install(t, 0)
	for range turns() {
		i.replaceAll()
	}
	v := i.finish()
	requireNothingLost(t, v)
	for what, kinds := range v.Errors {
		for kind := range kinds {
			require.Contains(t, []string{"refused", "reset", "closed"}, kind, what)
		}
	}
}

func TestTheSecondSignalEndsADelayedStop(t *testing.T) {
	t.Parallel()
	b := harness.StartSetup(t, harness.Setup{Brokers: 1, Ops: true, Env: []string{"QUEEN_SHUTDOWN_DELAY_MS=300000"}}).Broker
	b.Signal(t, syscall.SIGTERM)
	harness.Eventually(t, patience, "the broker is unready", func() bool {
		is, why := b.Ready(t.Context())
		return !is && why == `{"reason":"stopping","status":"not ready"}`+"\n"
	})
	require.Len(t, b.PushEach(t, "q", "p", 1), 1)
	require.JSONEq(t, `"connected"`, fmt.Sprintf("%q", b.Get(t, "/health").Object(t)["database"]))
	b.Signal(t, syscall.SIGTERM)
	select {
	case <-b.Ended():
	case <-time.After(patience):
		require.Fail(t, "it goes on")
	}
	require.ErrorContains(t, b.Err(), "terminated")
}
