package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// fakes stand in for the engines. Each function may be replaced by a test; the
// defaults answer something recognisable.
type fakes struct {
	push      func(ctx context.Context, items []wire.PushItem) ([]wire.PushResult, error)
	pop       func(ctx context.Context, req pop.Request) ([]byte, error)
	ack       func(req wire.AckRequest) []wire.AckResult
	ackErr    error // refuses acks as a whole
	extend    func(lease string, seconds int) (wire.ExtendResult, error)
	run       func(req wire.TxRequest) (wire.TxResponse, error)
	configure func(queue string, options json.RawMessage, merge bool) (store.RawJSON, error)
	queues    func(verb, queue string) (store.RawJSON, error)
	dlq       func(f store.DLQFilter) (store.RawJSON, error)
	ping      func(ctx context.Context) error
	modes     modesFake

	mu      sync.Mutex
	changed []string
}

func newFakes() *fakes {
	return &fakes{
		push: func(_ context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
			var rs []wire.PushResult
			for i, it := range items {
				rs = append(rs, wire.PushResult{Index: i, TransactionID: it.TransactionID, QueueName: it.Queue, Status: wire.StatusQueued})
			}
			return rs, nil
		},
		pop: func(context.Context, pop.Request) ([]byte, error) { return nil, nil },
		ack: func(req wire.AckRequest) []wire.AckResult {
			var rs []wire.AckResult
			for i, it := range req.Items {
				rs = append(rs, wire.AckResult{Index: i, TransactionID: it.TransactionID, Success: true})
			}
			return rs
		},
		extend: func(lease string, _ int) (wire.ExtendResult, error) { return wire.ExtendResult{LeaseID: lease}, nil },
		run: func(wire.TxRequest) (wire.TxResponse, error) {
			return wire.TxResponse{TransactionID: "tx", Success: true}, nil
		},
		configure: func(queue string, _ json.RawMessage, _ bool) (store.RawJSON, error) {
			return store.RawJSON(`{"configured":true,"queue":"` + queue + `"}`), nil
		},
		queues: func(verb, queue string) (store.RawJSON, error) {
			return json.Marshal(map[string]string{"verb": verb, "queue": queue})
		},
		dlq: func(store.DLQFilter) (store.RawJSON, error) {
			return store.RawJSON(`{"messages":[],"pagination":{"limit":100,"offset":0},"total":0}`), nil
		},
		ping: func(context.Context) error { return nil },
	}
}

type (
	pushFake  struct{ *fakes }
	popFake   struct{ *fakes }
	ackFake   struct{ *fakes }
	txFake    struct{ *fakes }
	storeFake struct{ *fakes }
	// lettersFake only lists.
	lettersFake struct {
		*fakes
		httpapi.DeadLetters
	}
	dbFake struct{ *fakes }
)

func (f pushFake) Push(ctx context.Context, _ uuid.UUID, _ string, items []wire.PushItem) ([]wire.PushResult, error) {
	return f.push(ctx, items)
}
func (f popFake) Pop(ctx context.Context, req pop.Request) ([]byte, error) { return f.pop(ctx, req) }
func (f ackFake) Ack(_ context.Context, _ uuid.UUID, req wire.AckRequest) ([]wire.AckResult, error) {
	return f.ack(req), f.ackErr
}
func (f ackFake) Extend(_ context.Context, _ uuid.UUID, lease string, seconds int) (wire.ExtendResult, error) {
	return f.extend(lease, seconds)
}
func (f txFake) Run(_ context.Context, _ uuid.UUID, _ string, req wire.TxRequest) (wire.TxResponse, error) {
	return f.run(req)
}
func (f storeFake) Configure(_ context.Context, _ uuid.UUID, queue string, options json.RawMessage, merge bool) (store.RawJSON, error) {
	return f.configure(queue, options, merge)
}
func (f storeFake) DeleteQueue(_ context.Context, _ uuid.UUID, queue string) (store.RawJSON, error) {
	return f.queues("delete", queue)
}
func (f storeFake) ListQueues(_ context.Context, _ uuid.UUID, cached bool) (store.RawJSON, error) {
	if cached {
		return f.queues("list cached", "")
	}
	return f.queues("list", "")
}
func (f storeFake) GetQueue(_ context.Context, _ uuid.UUID, queue string) (store.RawJSON, error) {
	return f.queues("get", queue)
}
func (f lettersFake) DLQMessages(_ context.Context, filter store.DLQFilter) (store.RawJSON, error) {
	return f.dlq(filter)
}
func (f dbFake) Ping(ctx context.Context) error { return f.ping(ctx) }
func (f dbFake) Stat() pgdb.Stat                { return pgdb.Stat{Size: 7, Idle: 3} }

// modesFake are modes in memory. err says that the record cannot be reached.
type modesFake struct {
	push, pop atomic.Bool
	err       error
}

func (f *modesFake) PushMaintenance() bool      { return f.push.Load() }
func (f *modesFake) PopMaintenance() bool       { return f.pop.Load() }
func (f *modesFake) Read(context.Context) error { return f.err }
func (f *modesFake) SetPush(_ context.Context, on bool) bool {
	f.push.Store(on)
	return f.err == nil
}
func (f *modesFake) SetPop(_ context.Context, on bool) bool {
	f.pop.Store(on)
	return f.err == nil
}

func (f *fakes) queueChanged(_ uuid.UUID, queue string, deleted bool) {
	if deleted {
		queue += " deleted"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, queue)
}

func (f *fakes) flagsChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, "flags")
}

func (f *fakes) notified(_ uuid.UUID, queue, partition string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, "notify "+queue+"/"+partition)
}

// bundle is a surface over fakes that listens on a free port.
type bundle struct {
	*fakes
	t      testing.TB
	log    *logtest.Recorder
	addr   string
	client *http.Client
	api    *httpapi.API
	server *httpapi.Server
	stop   func() error // stops the server and reports how that went
}

func setup(t *testing.T, adjust ...func(*httpapi.Config)) *bundle {
	t.Helper()
	cfg := httpapi.Config{
		Version: "1.2.3", MaxBodyBytes: 1 << 20, MaxInflightBytes: 4 << 20,
		PopDefaults: wire.PopDefaults{Timeout: 30e9, SubMode: wire.ModeAll},
	}
	for _, fn := range adjust {
		fn(&cfg)
	}
	return start(t, cfg, func(*httpapi.Deps) {})
}

// setupWith replaces some of the fakes.
func setupWith(t testing.TB, replace func(*httpapi.Deps)) *bundle {
	t.Helper()
	return start(t, httpapi.Config{
		Version: "1.2.3", MaxBodyBytes: 1 << 20, MaxInflightBytes: 4 << 20,
		PopDefaults: wire.PopDefaults{Timeout: 30e9, SubMode: wire.ModeAll},
	}, replace)
}

func start(t testing.TB, cfg httpapi.Config, replace func(*httpapi.Deps)) *bundle {
	t.Helper()
	log, lines := logtest.NewRecorder()
	b := &bundle{fakes: newFakes(), t: t, log: lines, client: &http.Client{Transport: &http.Transport{}}}
	tel, err := telemetry.New(t.Context(), telemetry.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	deps := httpapi.Deps{
		Push: pushFake{b.fakes}, Pop: popFake{b.fakes}, Ack: ackFake{b.fakes}, Transaction: txFake{b.fakes},
		Store: storeFake{b.fakes}, DeadLetters: lettersFake{fakes: b.fakes}, Database: dbFake{b.fakes}, QueueChanged: b.queueChanged, Notify: b.notified,
		Modes: &b.modes, FlagsChanged: b.flagsChanged,
		MeshStats: func() any { return map[string]string{"some": "stats"} },
		Log:       log, Meter: tel.Meters.Meter(""), Prometheus: tel.Handler(log), Tracers: tel.Tracers, Propagator: tel.Propagator,
	}
	replace(&deps)
	b.api, err = httpapi.New(cfg, deps)
	require.NoError(t, err)
	b.server = httpapi.NewServer("127.0.0.1:0", b.api, log)
	require.NoError(t, b.server.Start(t.Context()))
	b.addr = b.server.Addr()

	g := lifecycle.NewGroup(lifecycle.Config{}, log)
	g.Add(lifecycle.Component{Name: "server", Run: b.server.Run, Stop: b.server.Stop})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		b.client.CloseIdleConnections()
		cancel()
		return <-done
	})
	t.Cleanup(func() { require.NoError(t, b.stop()) })
	return b
}

// call sends one request with the path exactly as given.
func (b *bundle) call(method, path, body string) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+b.addr+path, strings.NewReader(body))
	require.NoError(b.t, err)
	res, err := b.client.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return res, string(got)
}

// want sends a request and compares status and body of the answer, which must be JSON.
func (b *bundle) want(method, path, body string, status int, answer string) {
	b.t.Helper()
	res, got := b.call(method, path, body)
	require.Equal(b.t, status, res.StatusCode, "%s %s: %s", method, path, got)
	require.Equal(b.t, answer, got, "%s %s", method, path)
	require.Equal(b.t, "application/json", res.Header.Get("Content-Type"), "%s %s", method, path)
}

// dial opens a connection for requests written by hand.
func (b *bundle) dial() (net.Conn, *bufio.Reader) {
	b.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(b.t.Context(), "tcp", b.addr)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReader(conn)
}

// readHead reads status line and headers as they came over the wire.
func readHead(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if line == "\r\n" {
			return head.String()
		}
		head.WriteString(line)
	}
}
