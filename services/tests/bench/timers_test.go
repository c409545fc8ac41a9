package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSeriesOfAService(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("# HELP a help\n# TYPE a counter\na 7\nb{x=\"1 2\",y=\"3\"} 1.5e+02\n\nbroken\nb nothing\n"))
	}))
	t.Cleanup(server.Close)
	got, err := (&service{addr: server.Listener.Addr().String()}).metrics(t.Context())
	require.NoError(t, err)
	require.Equal(t, series{"a": 7, `b{x="1 2",y="3"}`: 150}, got)
}

func TestGrowthOfSeries(t *testing.T) {
	t.Parallel()
	before := []series{{"a": 5}, nil, nil}
	got, err := growth(before, []series{{"a": 8}, nil, {"a": 2}}, "a")
	require.NoError(t, err)
	require.Equal(t, []float64{3, 2}, got, "one that does not run has none")
	_, err = growth(before, []series{{"b": 8}, nil, nil}, "a")
	require.ErrorContains(t, err, "no series a")
}

func TestRatesAreThoseOfEachSweeper(t *testing.T) {
	t.Parallel()
	e := emptied{before: []series{{"a": 0}, {"a": 10}}, after: []series{{"a": 10}, {"a": 40}}, watched: 2 * time.Second}
	got, err := rates([]emptied{e, e}, "a")
	require.NoError(t, err)
	require.Equal(t, []float64{5, 15, 5, 15}, got)
}

func TestTimersAreKnownByTheirTransaction(t *testing.T) {
	t.Parallel()
	n, err := timerNumber("txn-99", 100)
	require.NoError(t, err)
	require.Equal(t, 99, n)
	for _, foreign := range []string{"txn-100", "txn-", "txn--1", "99", "txn-9x"} {
		_, err := timerNumber(foreign, 100)
		require.Error(t, err, foreign)
	}
}

func TestScheduleRequest(t *testing.T) {
	t.Parallel()
	payload, err := newPayload(payloadBytes)
	require.NoError(t, err)
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	_, body, _ := strings.Cut(string(scheduleRequest("q", 103, at, payload)), "\r\n\r\n")
	var request struct {
		Operations []struct {
			Op, Queue, Partition, TimerKey, Txn, Payload string
			DelayMs                                      *int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &request))
	require.Len(t, request.Operations, 1)
	op := request.Operations[0]
	require.Equal(t, []string{"schedule", "q", laneName(3), "timer-103", "txn-103"}, []string{op.Op, op.Queue, op.Partition, op.TimerKey, op.Txn})
	require.Zero(t, *op.DelayMs)
	text, err := base64.StdEncoding.DecodeString(op.Payload)
	require.NoError(t, err)
	var sent struct{ T int64 }
	require.NoError(t, json.Unmarshal(text, &sent))
	require.Equal(t, at.UnixMicro(), sent.T)
}

// endless is a load that only its end stops.
type endless struct{ runner }

func (endless) run(ctx context.Context, stop <-chan struct{}, _ *window) {
	select {
	case <-stop:
	case <-ctx.Done():
	}
}

func TestALoadEndsWithSomethingElse(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	close(closed)
	until{endless{}, closed}.run(t.Context(), make(chan struct{}), nil)
	until{endless{}, make(chan struct{})}.run(t.Context(), closed, nil)
}
