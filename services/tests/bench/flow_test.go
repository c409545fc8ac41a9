package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeBroker is a queue that can misbehave.
type fakeBroker struct {
	mu       sync.Mutex
	waiting  []string // payloads
	accepted int
	status   string // of pushed messages
	loses    int    // every n-th message vanishes
	repeats  int    // every n-th message comes twice
	refuses  int    // every n-th acknowledgement fails
	acked    int
	busy     int // so many requests are refused first
}

func (f *fakeBroker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	if f.busy > 0 {
		f.busy--
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	switch {
	case r.URL.Path == "/api/v1/push":
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, f.push(body))
	case strings.HasPrefix(r.URL.Path, "/api/v1/pop/"):
		if len(f.waiting) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = io.WriteString(w, f.pop())
	case strings.HasPrefix(r.URL.Path, "/api/v1/ack"):
		_, _ = io.WriteString(w, f.ack(body))
	}
}

func (f *fakeBroker) push(body []byte) string {
	var request pushed
	if err := json.Unmarshal(body, &request); err != nil {
		return err.Error()
	}
	var answer []string
	for _, item := range request.Items {
		f.accepted++
		answer = append(answer, `{"status":"`+f.status+`"}`)
		if f.loses > 0 && f.accepted%f.loses == 0 {
			continue
		}
		f.waiting = append(f.waiting, string(item.Payload))
		if f.repeats > 0 && f.accepted%f.repeats == 0 {
			f.waiting = append(f.waiting, string(item.Payload))
		}
	}
	return "[" + strings.Join(answer, ",") + "]"
}

func (f *fakeBroker) pop() string {
	var messages []string
	for i, payload := range f.waiting {
		messages = append(messages, fmt.Sprintf(`{"transactionId":"t-%d","data":%s,"partitionId":"p","leaseId":"l"}`, i, payload))
	}
	f.waiting = nil
	return `{"messages":[` + strings.Join(messages, ",") + "]}"
}

func (f *fakeBroker) ack(body []byte) string {
	var answer []string
	for range strings.Count(string(body), `"transactionId"`) {
		f.acked++
		answer = append(answer, fmt.Sprintf(`{"success":%t}`, f.refuses == 0 || f.acked%f.refuses != 0))
	}
	return "[" + strings.Join(answer, ",") + "]"
}

// runFake runs 20 pushes of 5 messages against a fake broker.
func runFake(t *testing.T, f *fakeBroker, more func(*flow)) block {
	t.Helper()
	if f.status == "" {
		f.status = "queued"
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	short := tinyScale
	short.Quiet = 300 * time.Millisecond
	s := &stack{lab: &lab{scale: short}, brokers: []*service{{addr: server.Listener.Addr().String()}}}
	fl := flow{
		shape: shape{Queue: "q", Batch: 5, Lanes: 4}, pushers: 2, requests: 20,
		groups: 1, consumers: 1, popBatch: 10, popLanes: 2,
	}
	if more != nil {
		more(&fl)
	}
	load, err := newWorkload(fl.shape)
	require.NoError(t, err)
	r, w := fl.prepare(s, load), newWindow()
	w.open(time.Now().Add(-time.Second))
	r.run(t.Context(), make(chan struct{}), w)
	var b block
	b.pushed, b.acked = r.counts()
	r.report(&b)
	return b
}

func TestAFlowCountsWhatWentAllTheWay(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]func(*flow){
		"ack/batch":  nil,
		"single ack": func(f *flow) { f.singleAck = true },
		"bounded":    func(f *flow) { f.outstanding = 10 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := runFake(t, &fakeBroker{}, more)
			require.NoError(t, b.err)
			require.Zero(t, b.failures)
			require.Equal(t, int64(100), b.pushed)
			require.Equal(t, int64(100), b.acked)
			require.Equal(t, int64(20), b.push.TotalCount())
			require.Equal(t, int64(100), b.end.TotalCount())
			require.Positive(t, b.pop.TotalCount())
		})
	}
}

func TestWrongAnswersAreFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broker   *fakeBroker
		failures int64
		text     string
	}{
		"lost messages": {&fakeBroker{loses: 10}, 10, "100 messages pushed, 90 acknowledged"},
		// The run ends with the last message it waits for, some repeats still to come.
		"repeated messages":   {&fakeBroker{repeats: 10}, 1, "100 messages pushed, 1"},
		"refused pushes":      {&fakeBroker{status: "failed"}, 20, `"status":"failed"`},
		"unwanted duplicates": {&fakeBroker{status: "duplicate"}, 20, `"status":"duplicate"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := runFake(t, c.broker, nil)
			require.ErrorContains(t, b.err, c.text)
			// Messages of refused pushes arrive all the same, which fails again.
			require.GreaterOrEqual(t, b.failures, c.failures)
		})
	}
	t.Run("refused acknowledgements", func(t *testing.T) {
		t.Parallel()
		b := runFake(t, &fakeBroker{refuses: 10}, nil)
		require.ErrorContains(t, b.err, "ack/batch answered 200")
		require.Equal(t, int64(90), b.acked)
	})
}

func TestOnlyAPatientLoadRepeatsWhatWasRefused(t *testing.T) {
	t.Parallel()
	b := runFake(t, &fakeBroker{busy: 3}, func(f *flow) { f.patient = true })
	require.NoError(t, b.err)
	require.Equal(t, int64(100), b.acked)
	b = runFake(t, &fakeBroker{busy: 3}, nil)
	require.ErrorContains(t, b.err, "answered 429")
	require.Equal(t, int64(3), b.failures)
}

func TestDuplicatesCanBeWhatIsWanted(t *testing.T) {
	t.Parallel()
	b := runFake(t, &fakeBroker{status: "duplicate"}, func(f *flow) { f.status, f.groups = duplicateMark, 0 })
	require.NoError(t, b.err)
	require.Equal(t, int64(100), b.pushed)
}

func TestMessagesThatWereNeverSentAreLateEverywhere(t *testing.T) {
	t.Parallel()
	s := &stack{lab: &lab{}}
	r := flow{shape: shape{Batch: 100}, groups: 1}.prepare(s, nil)
	for range 3 {
		_ = r.push.unsent.RecordValue(500_000)
	}
	var b block
	r.report(&b)
	require.Equal(t, int64(3), b.push.TotalCount())
	require.Equal(t, int64(300), b.end.TotalCount(), "one batch is a hundred messages")
	require.InDelta(t, 500, b.endP99(), 1)
}

func TestABacklogIsReadAgainByANewGroup(t *testing.T) {
	t.Parallel()
	k := &backlog{queue: "q", total: 100}
	first := k.next(nil)
	require.Equal(t, "group-0", first.group)
	require.Equal(t, int64(100), first.limit)
	first.done.messages.Add(30)
	second := k.next(nil)
	require.Equal(t, "group-0", second.group)
	require.Equal(t, int64(70), second.limit)
	second.done.messages.Add(40)
	third := k.next(nil)
	require.Equal(t, "group-1", third.group)
	require.Equal(t, int64(100), third.limit)
}

func TestAnAnsweredPopIsNotParked(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/parked" {
			<-release
		}
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, "busy")
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	conns := []*conn{{addr: server.Listener.Addr().String()}, {addr: server.Listener.Addr().String()}}
	for i, path := range []string{"/parked", "/answered"} {
		require.NoError(t, conns[i].send(t.Context(), newRequest(http.MethodGet, path, "")))
		t.Cleanup(conns[i].close)
	}
	require.NoError(t, allWaiting(conns[:1]))
	require.EqualError(t, allWaiting(conns), "1 of 2 pops did not stay parked: answered 429: busy")
}
