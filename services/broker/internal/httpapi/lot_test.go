package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

// claims is a store that delivers what a test has put into it.
type claims struct {
	pop.Store
	mu   sync.Mutex
	next []store.Popped
	err  error
}

func (s *claims) PopWildcard(context.Context, string, store.Pop) ([]store.Popped, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := s.next, s.err
	s.next, s.err = nil, nil
	return next, err
}

func (s *claims) HasPending(context.Context, uuid.UUID, string, string) (bool, error) {
	return false, nil
}

func (s *claims) QueueSettings(context.Context, uuid.UUID, string) (store.QueueSettings, bool, error) {
	return store.QueueSettings{}, true, nil
}

// parking is a surface over the real pop service.
type parking struct {
	*bundle
	svc   *pop.Service
	store *claims
	hub   *wake.Hub
}

func setupParking(t *testing.T) *parking {
	t.Helper()
	p := &parking{store: &claims{}, hub: wake.NewHub()}
	gate, err := admission.New(admission.Config{Slots: 6}, noop.Meter{})
	require.NoError(t, err)
	memo, err := lanes.NewMemo(16)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	p.svc, err = pop.New(pop.Config{}, pop.Deps{
		Store: p.store, Reader: reader, Admission: gate, Hub: p.hub, Lanes: memo, IDs: mint.NewSource(),
		Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	p.bundle = setupWith(t, func(d *httpapi.Deps) { d.Pop = p.svc })
	t.Cleanup(p.svc.Close)
	return p
}

// deliver has one parked pop find a message.
func (p *parking) deliver() {
	p.t.Helper()
	packer, err := segment.NewPacker(3)
	require.NoError(p.t, err)
	blob, _, err := packer.Pack([]segment.Frame{{MessageID: uuid.New(), TransactionID: "t", Payload: []byte(`"hello"`)}})
	require.NoError(p.t, err)
	p.store.mu.Lock()
	p.store.next = []store.Popped{{Partition: "p", PartitionID: uuid.New(), DeliveryAttempt: 1, Segments: []store.PoppedSegment{
		{Take: 1, Count: 1, CreatedAt: "2026-03-01T08:00:00.000123Z", Blob: blob},
	}}}
	p.store.mu.Unlock()
	p.hub.Wake(store.DefaultTenant(), "q", "p")
}

const longPoll = "GET /api/v1/pop/queue/q?wait=true&timeout=%d HTTP/1.1\r\nHost: x\r\n\r\n"

// ask sends a long poll and gives it the time to be parked.
func ask(t *testing.T, conn io.Writer, timeout time.Duration) {
	t.Helper()
	_, err := fmt.Fprintf(conn, longPoll, timeout.Milliseconds())
	require.NoError(t, err)
	time.Sleep(3 * httpapi.ParkAfter) // either way the answer has to be the same
}

// answer reads one answer.
func answer(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}

func TestAParkedPopIsAnsweredAsAnyOther(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	for range 3 { // on one connection
		ask(t, conn, 20*time.Second)
		p.deliver()
		parked, body := answer(t, r)
		require.Equal(t, http.StatusOK, parked.StatusCode)
		require.Contains(t, body, `"data":"hello"`)

		p.deliver()
		_, err := fmt.Fprintf(conn, longPoll, 0)
		require.NoError(t, err)
		ordinary, _ := answer(t, r)
		for _, res := range []*http.Response{parked, ordinary} {
			_, err := http.ParseTime(res.Header.Get("Date"))
			require.NoError(t, err)
			res.Header.Del("Date")
		}
		require.Equal(t, ordinary.Header, parked.Header)
		require.Equal(t, ordinary.ContentLength, parked.ContentLength)
	}
}

func TestAParkedPopEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	began := time.Now()
	ask(t, conn, 400*time.Millisecond)
	head := readHead(t, r)
	require.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond)
	require.True(t, strings.HasPrefix(head, "HTTP/1.1 204 No Content\r\n"), head)
	require.NotContains(t, head, "Content-")
	ask(t, conn, 400*time.Millisecond)
	require.True(t, strings.HasPrefix(readHead(t, r), "HTTP/1.1 204 "), "the connection goes on")
}

func TestARequestSentAheadOfAParkedPopIsAnsweredAfterIt(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	ask(t, conn, 20*time.Second)
	_, err := io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	p.deliver()
	_, body := answer(t, r)
	require.Contains(t, body, `"hello"`)
	res, _ := answer(t, r)
	require.Equal(t, http.StatusOK, res.StatusCode)
}

func TestAFailureOfAParkedPopIsTold(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	ask(t, conn, 20*time.Second)
	p.store.mu.Lock()
	p.store.err = errors.New("lost")
	p.store.mu.Unlock()
	p.hub.Wake(store.DefaultTenant(), "q", "p")
	res, body := answer(t, r)
	require.Equal(t, http.StatusInternalServerError, res.StatusCode)
	require.Equal(t, `{"error":"pop failed"}`, body)
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	require.Contains(t, p.log.String(), "request failed")
}

func TestALeavingClientEndsItsParkedPop(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, _ := p.dial()
	ask(t, conn, 20*time.Second)
	other, r := p.dial()
	ask(t, other, 20*time.Second)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool {
		_, metrics := p.call(http.MethodGet, "/metrics/prometheus", "")
		return strings.Contains(metrics, `http_server_active_requests 2`) || // the one that asks, too
			strings.Contains(metrics, `http_server_active_requests{otel_scope_name="",otel_scope_schema_url="",otel_scope_version=""} 2`)
	}, 10*time.Second, 10*time.Millisecond)
	p.deliver()
	_, body := answer(t, r)
	require.Contains(t, body, `"hello"`, "the message is not lost on it")
}

func TestAStopAnswersParkedPopsAndClosesTheirConnections(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	parked, r := p.dial()
	ask(t, parked, 20*time.Second)
	idle, ri := p.dial()
	ask(t, idle, 300*time.Millisecond)
	readHead(t, ri)
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	_, err := ri.ReadByte()
	require.ErrorIs(t, err, io.EOF, "an idle one is closed at once")
	p.svc.Close()
	head := readHead(t, r)
	require.True(t, strings.HasPrefix(head, "HTTP/1.1 204 "), head)
	require.Contains(t, head, "Connection: close\r\n")
	_, err = r.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-stopped)
}

func TestALeavingLotServesOnAndEndsConnectionsByTheirAnswers(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	parked, r := p.dial()
	ask(t, parked, 20*time.Second)
	resting, ri := p.dial()
	ask(t, resting, 200*time.Millisecond)
	readHead(t, ri)
	p.server.Leave()
	p.deliver()
	res, body := answer(t, r)
	require.Contains(t, body, `"data":"hello"`)
	require.True(t, res.Close)
	_, err := r.ReadByte()
	require.ErrorIs(t, err, io.EOF)

	ask(t, resting, 20*time.Second)
	p.deliver()
	res, body = answer(t, ri)
	require.Contains(t, body, `"data":"hello"`)
	require.True(t, res.Close)
}

func TestAStopWaitsForPopsThatAreParkedAfterItBegan(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	_, err := fmt.Fprintf(conn, longPoll, 20_000)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.svc.Waiting() == 1 }, 10*time.Second, time.Millisecond)
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	select {
	case err := <-stopped:
		require.Fail(t, "the pop is not answered yet", "%v", err)
	case <-time.After(20 * httpapi.ParkAfter): // the server is done with it long before
	}
	p.svc.Close()
	require.True(t, strings.HasPrefix(readHead(t, r), "HTTP/1.1 204 "))
	require.NoError(t, <-stopped)
}

func TestAStopCutsParkedPopsAtItsDeadline(t *testing.T) {
	t.Parallel()
	p := setupParking(t)
	conn, r := p.dial()
	ask(t, conn, 20*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, p.server.Stop(ctx), "drain parked pops")
	_, err := r.ReadByte()
	require.Error(t, err)
}

// TestParkedPopsCostLittle runs alone, so that the memory is its own. Both ends of
// each connection are counted.
func TestParkedPopsCostLittle(t *testing.T) { //nolint:paralleltest // see above
	const pops, bound = 2000, 20 << 10
	p := setupParking(t)
	before := inUse()
	conns := make([]net.Conn, pops)
	for i := range conns {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", p.addr)
		require.NoError(t, err)
		conns[i] = conn
		_, err = fmt.Fprintf(conn, "GET /api/v1/pop/queue/q%d?wait=true&timeout=600000&consumerGroup=workers&batch=10 HTTP/1.1\r\n"+
			"Host: queen.example:6632\r\nUser-Agent: node\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\r\n", i%10)
		require.NoError(t, err)
	}
	var each int64
	require.Eventually(t, func() bool {
		each = (inUse() - before) / pops
		return p.svc.Waiting() == pops && each <= bound
	}, 30*time.Second, 200*time.Millisecond, "%d bytes for each", each)
	t.Logf("%d bytes for each of %d parked pops", each, pops)
	p.svc.Close()
	for _, conn := range conns {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.NoError(t, res.Body.Close())
		require.NoError(t, conn.Close())
	}
}

// inUse is the memory of heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools still hold after the first
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
