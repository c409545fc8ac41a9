// Package workertest runs a worker in the process of a test.
package workertest

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is how long a test waits for what has to happen.
const Patience = 20 * time.Second

// App is what can be run.
type App interface {
	Run(ctx context.Context) error
	Started() <-chan struct{}
	OpsAddr() string
}

// Process is a worker under test.
type Process struct {
	t      testing.TB
	app    App
	client *http.Client
	cancel context.CancelFunc
	done   chan error
}

// Launch runs a worker in the background until the test ends.
func Launch(t testing.TB, app App) *Process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &Process{t: t, app: app, client: &http.Client{Transport: &http.Transport{}}, cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- app.Run(ctx) }()
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		cancel()
	})
	return p
}

// Work waits until the worker works.
func (p *Process) Work() {
	p.t.Helper()
	select {
	case <-p.app.Started():
	case err := <-p.done:
		p.t.Fatalf("the worker ended: %v", err)
	case <-time.After(Patience):
		p.t.Fatal("the worker does not start")
	}
}

// Stop asks the worker to stop and returns how it ended.
func (p *Process) Stop() error {
	p.client.CloseIdleConnections()
	p.cancel()
	return p.Wait()
}

// Wait returns how the worker ended by itself.
func (p *Process) Wait() error { return <-p.done }

// Get asks the operations listener.
func (p *Process) Get(path string) (status int, body string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.app.OpsAddr()+path, nil)
	require.NoError(p.t, err)
	res, err := p.client.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(p.t, err)
	return res.StatusCode, string(text)
}
