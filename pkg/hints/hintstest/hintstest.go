// Package hintstest runs pools on this machine.
package hintstest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
)

// ProbesUnderWay has goleak overlook the probes of pools that were stopped: the library
// waits for none of them, and each ends by itself within a heartbeat.
func ProbesUnderWay() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")
}

// FreePort finds a port that is free for TCP and UDP.
func FreePort(t *testing.T) int {
	t.Helper()
	var lc net.ListenConfig
	for {
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		u, err := lc.ListenPacket(t.Context(), "udp", l.Addr().String())
		require.NoError(t, l.Close())
		if err == nil {
			require.NoError(t, u.Close())
			return l.Addr().(*net.TCPAddr).Port
		}
	}
}

// Start runs a pool until the test ends, or until the function that it returns is
// called.
func Start(t *testing.T, pool lifecycle.Component) (stop func()) {
	t.Helper()
	started := make(chan struct{})
	g := lifecycle.NewGroup(lifecycle.Config{Started: func() { close(started) }}, logtest.New(t))
	g.Add(pool)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	<-started
	return stop
}
