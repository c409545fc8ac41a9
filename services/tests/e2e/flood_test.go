package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// flood sends prepared pushes over its own connections, at the expense of as
// little processor time as possible: the broker runs on the same cores.
type flood struct {
	address  string
	requests [][]byte
}

// newFlood prepares pushes of one item each, spread over some lanes. The ids are
// left to the broker, so that each is a message of its own.
func newFlood(b *harness.Broker, queue string, lanes, payload int) *flood {
	f := &flood{address: strings.TrimPrefix(b.URL, "http://")}
	for lane := range lanes {
		body := fmt.Sprintf(`{"items":[{"queue":%q,"partition":"lane-%d","payload":%q}]}`, queue, lane, repeat(payload))
		f.requests = append(f.requests, fmt.Appendf(nil,
			"POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	return f
}

// tally is what the answers said.
type tally struct {
	sent, accepted, refused int
	unexpected              []string // other answers, and refusals without Retry-After
	slowest                 time.Duration
}

func (t *tally) add(other tally) {
	t.sent += other.sent
	t.accepted += other.accepted
	t.refused += other.refused
	t.unexpected = append(t.unexpected, other.unexpected...)
	t.slowest = max(t.slowest, other.slowest)
}

// closed lets a number of workers send one push after another.
func (f *flood) closed(t *testing.T, workers int, duration time.Duration) tally {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	return f.run(t, workers, func() bool { return ctx.Err() == nil })
}

// open sends at a rate that does not depend on the answers, as long as a
// connection is free.
func (f *flood) open(t *testing.T, connections int, perSecond float64, duration time.Duration) tally {
	t.Helper()
	due := make(chan struct{}, int(perSecond*duration.Seconds())+1)
	began := time.Now()
	go func() {
		defer close(due)
		for given := 0; time.Since(began) < duration; time.Sleep(2 * time.Millisecond) {
			for want := int(time.Since(began).Seconds() * perSecond); given < want; given++ {
				due <- struct{}{}
			}
		}
	}()
	return f.run(t, connections, func() bool {
		_, more := <-due
		return more && time.Since(began) < duration // what nobody could send in time is not sent
	})
}

func (f *flood) run(t *testing.T, workers int, next func() bool) tally {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all tally
	for w := range workers {
		wg.Go(func() {
			own, err := f.worker(w, next)
			mu.Lock()
			defer mu.Unlock()
			all.add(own)
			if err != nil {
				all.unexpected = append(all.unexpected, err.Error())
			}
		})
	}
	wg.Wait()
	return all
}

// answerLimit is beyond every deadline of the broker.
const answerLimit = time.Minute

func (f *flood) worker(number int, next func() bool) (tally, error) {
	var own tally
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		return own, err
	}
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for i := number; next(); i++ {
		began := time.Now()
		if err := conn.SetDeadline(began.Add(answerLimit)); err != nil {
			return own, err
		}
		if _, err := conn.Write(f.requests[i%len(f.requests)]); err != nil {
			return own, err
		}
		own.sent++
		if err := own.answer(r); err != nil {
			return own, err
		}
		own.slowest = max(own.slowest, time.Since(began))
	}
	return own, nil
}

// answer reads one response.
func (t *tally) answer(r *bufio.Reader) error {
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	after, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	switch {
	case res.StatusCode == http.StatusCreated && strings.Contains(string(text), `"status":"queued"`):
		t.accepted++
	case res.StatusCode == http.StatusTooManyRequests && after > 0:
		t.refused++
	default:
		t.unexpected = append(t.unexpected, fmt.Sprintf("%d %q %s", res.StatusCode, res.Header.Get("Retry-After"), text))
	}
	return nil
}

// resident is the memory a broker occupies.
func resident(t *testing.T, b *harness.Broker) int64 {
	t.Helper()
	a := b.Get(t, "/metrics")
	require.Equal(t, http.StatusOK, a.Status, a)
	var counters struct {
		Memory struct {
			RSS int64 `json:"rss"`
		} `json:"memory"`
	}
	a.Into(t, &counters)
	require.Positive(t, counters.Memory.RSS)
	return counters.Memory.RSS
}
