package rolling_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// probeEvery is how often readiness is looked at.
	probeEvery = 50 * time.Millisecond
	// lag is how much later the last client follows a change of the endpoints.
	lag = 300 * time.Millisecond
)

// errNoEndpoint says that no broker is ready.
var errNoEndpoint = errors.New("no endpoint is ready")

// endpoints is what a Kubernetes Service is to its clients: a new connection goes to one
// of the brokers that were ready a moment ago, and stays there for as long as it lasts.
type endpoints struct {
	mu    sync.Mutex
	ready []string
	turn  int
}

// DialContext opens a connection to the next broker, whatever the address says.
func (e *endpoints) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	e.mu.Lock()
	if len(e.ready) == 0 {
		e.mu.Unlock()
		return nil, errNoEndpoint
	}
	address := e.ready[e.turn%len(e.ready)]
	e.turn++
	e.mu.Unlock()
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// set adds or removes a broker.
func (e *endpoints) set(address string, ready bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = slices.DeleteFunc(e.ready, func(a string) bool { return a == address })
	if ready {
		e.ready = append(e.ready, address)
	}
}

// has tells whether new connections may go to a broker.
func (e *endpoints) has(b *harness.Broker) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.ready, addressOf(b))
}

// follow keeps the endpoints as the broker's readiness was, a while ago, until ctx ends.
func (e *endpoints) follow(ctx context.Context, b *harness.Broker) {
	for was := false; wait(ctx, probeEvery); {
		if is, _ := b.Ready(ctx); is != was {
			if was = is; !wait(ctx, lag) {
				return
			}
			e.set(addressOf(b), is)
		}
	}
}

func addressOf(b *harness.Broker) string { return strings.TrimPrefix(b.URL, "http://") }

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
