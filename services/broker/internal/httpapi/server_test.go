package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

func TestStopWaitsForRunningRequestsAndTellsClientsToLeave(t *testing.T) {
	t.Parallel()
	b := setup(t)
	parked, wake := make(chan struct{}), make(chan struct{})
	b.pop = func(context.Context, pop.Request) ([]byte, error) {
		close(parked)
		<-wake
		return []byte(`{}`), nil
	}
	conn, r := b.dial()
	_, err := io.WriteString(conn, "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-parked
	stopped := make(chan error, 1)
	go func() { stopped <- b.stop() }()
	// The port closes at once, while the request still runs.
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.addr+"/status", nil)
		require.NoError(t, err)
		res, err := b.client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	}, 10*time.Second, time.Millisecond)
	close(wake)
	head := readHead(t, r)
	require.Contains(t, head, "HTTP/1.1 200 OK\r\n")
	require.Contains(t, head, "Connection: close\r\n")
	require.NoError(t, <-stopped)
}

func TestLeavingEndsConnectionsByTheirAnswersOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waiting, wake := make(chan struct{}), make(chan struct{})
	b.pop = func(context.Context, pop.Request) ([]byte, error) {
		close(waiting)
		<-wake
		return []byte(`{}`), nil
	}
	closes := func(conn io.Writer, r *bufio.Reader) bool {
		_, err := io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		res, _ := answer(t, r)
		require.Equal(t, http.StatusOK, res.StatusCode)
		return res.Close
	}
	resting, ri := b.dial()
	require.False(t, closes(resting, ri))
	busy, rb := b.dial()
	_, err := io.WriteString(busy, "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-waiting

	b.server.Leave()
	close(wake)
	late, rl := b.dial()
	require.True(t, closes(late, rl), "new connections are still served")
	require.True(t, closes(resting, ri), "one that rests may send a request")
	require.Contains(t, readHead(t, rb), "Connection: close\r\n", "one that was asked before")
	for _, r := range []*bufio.Reader{rl, ri} {
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestStopCutsWhatOutlastsTheDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	parked, ended := make(chan struct{}), make(chan struct{})
	b.pop = func(ctx context.Context, _ pop.Request) ([]byte, error) {
		close(parked)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}
	conn, _ := b.dial()
	_, err := io.WriteString(conn, "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-parked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, b.server.Stop(ctx), "drain")
	<-ended
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	err := httpapi.NewServer(b.addr, http.NotFoundHandler(), logtest.New(t)).Start(t.Context())
	require.ErrorContains(t, err, b.addr)
	require.ErrorContains(t, err, "another process uses this port, change PORT or QUEEN_BIND_ADDR")
}

func TestTheLogOfAFailureNamesWhatItConcerns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pop = func(context.Context, pop.Request) ([]byte, error) { return nil, errors.New("broken") }
	b.want("GET", "/api/v1/pop/queue/q%20r/partition/p/1?consumerGroup=g", "", http.StatusInternalServerError, `{"error":"internal error"}`)
	require.Contains(t, b.log.String(), `msg="request failed" method=GET route=/api/v1/pop/queue/:queue/partition/* status=500 `+
		`queue="q r" partition=p/1 group=g error=broken`)
}
