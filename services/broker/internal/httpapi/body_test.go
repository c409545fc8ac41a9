package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// pushOf is a push body of exactly n bytes.
func pushOf(n int) string {
	const head, tail = `{"items":[{"queue":"q","payload":"`, `"}]}`
	return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
}

// frame is what is around the payload of pushOf.
const frame = len(`{"items":[{"queue":"q","payload":}]}`)

func TestBodyLimitHoldsOnBothSidesOfIt(t *testing.T) {
	t.Parallel()
	const limit = 200_000 // beyond the first reservation of a chunked body
	b := setup(t, func(c *httpapi.Config) { c.MaxBodyBytes = limit })
	sizes := make(chan int, 1)
	b.push = func(_ context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
		sizes <- len(items[0].Payload)
		return nil, nil
	}
	for _, chunked := range []bool{false, true} {
		for _, size := range []int{100, 64 << 10, 64<<10 + 1, limit - 1, limit} {
			require.Equal(t, http.StatusCreated, b.send(pushOf(size), chunked).status, "%d %v", size, chunked)
			require.Equal(t, size-frame, <-sizes)
		}
		for _, size := range []int{limit + 1, limit + 100_000} {
			got := b.send(pushOf(size), chunked)
			require.Equal(t, http.StatusRequestEntityTooLarge, got.status, "%d %v", size, chunked)
			require.Equal(t, `{"error":"request body is too large"}`, got.body)
			require.Equal(t, "application/json", got.contentType)
		}
	}
}

type sent struct {
	status            int
	body, contentType string
	retryAfter        string
}

func (b *bundle) send(body string, chunked bool) sent {
	b.t.Helper()
	var r io.Reader = strings.NewReader(body)
	if chunked {
		r = io.NopCloser(r) // hides the length
	}
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.addr+"/api/v1/push", r)
	require.NoError(b.t, err)
	res, err := b.client.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return sent{res.StatusCode, string(got), res.Header.Get("Content-Type"), res.Header.Get("Retry-After")}
}

func TestAnnouncedLengthIsRefusedBeforeTheBodyIsSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, r := b.dial()
	_, err := io.WriteString(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	require.Contains(t, readHead(t, r), "HTTP/1.1 413 ")
}

func TestBodyThatDoesNotArriveIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) { c.MaxBodyBytes, c.BodyPatience = 1000, 20*time.Millisecond })
	for _, framing := range []string{"Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"} {
		conn, r := b.dial()
		_, err := io.WriteString(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n"+framing)
		require.NoError(t, err)
		head := readHead(t, r)
		require.Contains(t, head, "HTTP/1.1 408 ")
		require.Contains(t, head, "Connection: close\r\n")
	}
}

// large is a body that has to prove itself where 8 MiB may be in flight.
const large = 1 << 20

func announce(length int, sent string) string {
	return fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, sent)
}

func TestAnnouncedLengthTakesNoRoomBeforeItArrives(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = large, 8*large, 10*time.Millisecond
	})
	for i := range 12 { // more than the whole budget
		conn, _ := b.dial()
		_, err := io.WriteString(conn, announce(large, strings.Repeat("x", i*5000)))
		require.NoError(t, err)
	}
	for _, size := range []int{1000, 64 << 10, 65<<10 + 1, large} {
		require.Equal(t, http.StatusCreated, b.send(pushOf(size), false).status, size)
	}
}

func TestLargeBodiesArriveInEverySizeOfTheirBeginnings(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) { c.MaxBodyBytes, c.MaxInflightBytes = 4*large, 16*large })
	b.push = func(_ context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
		return []wire.PushResult{{QueueName: fmt.Sprint(len(items[0].Payload))}}, nil
	}
	var group sync.WaitGroup
	for _, size := range []int{64 << 10, 64<<10 + 1, 512 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 2 << 20, 4 << 20} {
		group.Go(func() {
			got := b.send(pushOf(size), false)
			if want := fmt.Sprintf(`"queueName":"%d"`, size-frame); got.status != http.StatusCreated || !strings.Contains(got.body, want) {
				t.Errorf("%d bytes: %d %s", size, got.status, got.body)
			}
		})
	}
	group.Wait()
}

func TestLargeBodyThatStopsIsGivenUpOrRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.BodyPatience = 100<<10, 8*large, 20*time.Millisecond
	})
	for _, sent := range []int{0, 1000, 64 << 10, 90 << 10} {
		conn, r := b.dial()
		_, err := io.WriteString(conn, announce(100<<10, strings.Repeat("x", sent)))
		require.NoError(t, err)
		require.Contains(t, readHead(t, r), "HTTP/1.1 408 ", sent)
		b.cutOff(announce(100<<10, strings.Repeat("x", sent)))
	}
	require.Eventually(t, func() bool {
		_, families := b.call("GET", "/metrics/prometheus", "")
		return strings.Contains(families, "\nqueen_http_inflight_body_bytes 0\n")
	}, 10*time.Second, 10*time.Millisecond)
}

func TestBodyDeadlineEndsWithTheBody(t *testing.T) {
	t.Parallel()
	const patience = 20 * time.Millisecond
	b := setup(t, func(c *httpapi.Config) { c.BodyPatience = patience })
	b.push = func(ctx context.Context, _ []wire.PushItem) ([]wire.PushResult, error) {
		// Longer than the body was allowed to take; the client is still there.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(3 * patience):
			return nil, nil
		}
	}
	require.Equal(t, http.StatusCreated, b.send(pushOf(1000), false).status)
	require.Equal(t, http.StatusCreated, b.send(pushOf(1000), true).status)
}

func TestRule15InflightBytesAreBoundedAndOverloadIsRetryable(t *testing.T) {
	t.Parallel()
	for _, chunked := range []bool{false, true} {
		t.Run(fmt.Sprintf("chunked %v", chunked), func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *httpapi.Config) {
				c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 150_000, 10*time.Millisecond
			})
			entered, leave := make(chan struct{}, 100), make(chan struct{})
			b.push = func(context.Context, []wire.PushItem) ([]wire.PushResult, error) {
				entered <- struct{}{}
				<-leave
				return nil, nil
			}
			var held sync.WaitGroup
			first := make(chan struct{})
			held.Go(func() {
				defer close(first)
				if got := b.send(pushOf(100_000), chunked); got.status != http.StatusCreated {
					t.Errorf("the held push answered %d", got.status)
				}
			})
			select {
			case <-entered:
			case <-first:
				t.FailNow()
			}
			got := b.send(pushOf(60_000), chunked)
			require.Equal(t, http.StatusTooManyRequests, got.status)
			require.Equal(t, `{"error":"overloaded, try again later"}`, got.body)
			require.Equal(t, "1", got.retryAfter)
			// What fits beside it still passes, and what has no body always does.
			held.Go(func() {
				if got := b.send(pushOf(50_000), false); got.status != http.StatusCreated {
					t.Errorf("the small push answered %d", got.status)
				}
			})
			<-entered
			b.want("GET", "/status", "", http.StatusOK, `{"status":"ok","engine":"segments-rust"}`)
			close(leave)
			held.Wait()
			// The bytes come back just after the answer.
			require.Eventually(t, func() bool { return b.send(pushOf(100_000), chunked).status == http.StatusCreated },
				10*time.Second, 10*time.Millisecond)
		})
	}
}

// manyItems is a push of n of the smallest items.
func manyItems(n int) string {
	return `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"queue":"q","payload":1},`, n), ",") + `]}`
}

// holdPush sends a push and returns when the engine has it; the push ends with
// the returned function.
func (b *bundle) holdPush(body string) (finish func()) {
	b.t.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	before := b.push
	b.push = func(context.Context, []wire.PushItem) ([]wire.PushResult, error) {
		close(entered)
		<-leave
		return nil, nil
	}
	go func() {
		defer close(done)
		if got := b.send(body, false); got.status != http.StatusCreated {
			b.t.Errorf("the held push answered %d", got.status)
		}
	}()
	<-entered
	b.push = before
	return func() { close(leave); <-done }
}

func TestRule15TinyItemsCountForWhatTheyCost(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 1<<20, 10*time.Millisecond
	})
	finish := b.holdPush(manyItems(1000)) // 26 kB, which cost 1000 KiB of 1024
	got := b.send(manyItems(30), false)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "1", got.retryAfter)
	require.Equal(t, http.StatusCreated, b.send(manyItems(20), false).status)
	for _, path := range []string{"/api/v1/ack/batch", "/api/v1/transaction"} {
		b.want("POST", path, strings.Repeat("{", 40), http.StatusTooManyRequests, `{"error":"overloaded, try again later"}`)
	}
	finish()
	require.Eventually(t, func() bool { return b.send(manyItems(30), false).status == http.StatusCreated },
		10*time.Second, 10*time.Millisecond)
}

func TestObjectsWithinPayloadsAreNoItems(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 1<<20, 10*time.Millisecond
	})
	nested := `{"items":[{"queue":"q","payload":[{}` + strings.Repeat(`,{}`, 900) + `]}]}`
	finish := b.holdPush(nested)
	require.Equal(t, http.StatusCreated, b.send(nested, false).status)
	finish()
}

func TestMoreItemsThanTheWholeBudgetAreServedAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 100_000, 10*time.Millisecond
	})
	finish := b.holdPush(manyItems(3000))
	require.Equal(t, http.StatusTooManyRequests, b.send(manyItems(1), false).status)
	finish()
}

func TestRequestsThatWaitForBytesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait, c.MaxWaiting = 100_000, 100_000, time.Minute, 1
	})
	finish := b.holdPush(pushOf(90_000))
	answers := make(chan int)
	for range 2 {
		go func() { answers <- b.send(pushOf(50_000), false).status }()
	}
	require.Equal(t, http.StatusTooManyRequests, <-answers, "there is room for one to wait")
	acked := make(chan struct{})
	go func() {
		defer close(acked) // pushes that wait are not in the way of joining
		b.want("POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`+strings.Repeat(" ", 20_000), http.StatusOK, "[]")
	}()
	finish()
	require.Equal(t, http.StatusCreated, <-answers)
	<-acked
}

func TestRoutesOfKeysAndTimersRefuseBodiesInTheirOwnWords(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 100_000, 10*time.Millisecond
	})
	finish := b.holdPush(pushOf(90_000))
	for path, reason := range map[string]string{"/api/v1/kv": "kv_bodies_in_flight", "/api/v1/timers": "timers_bodies_in_flight"} {
		res, got := b.call("POST", path, strings.Repeat(" ", 50_000)+"[]")
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.JSONEq(t, `{"error":"rate_limited","reason":"`+reason+`","detail":"too many request bodies are in flight"}`, got)
	}
	finish()
}

func TestRefusedBodiesGiveTheirBytesBack(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *httpapi.Config) {
		c.MaxBodyBytes, c.MaxInflightBytes, c.InflightWait = 100_000, 100_000, 10*time.Second
	})
	for range 5 {
		require.Equal(t, http.StatusRequestEntityTooLarge, b.send(pushOf(100_001), true).status)
		require.Equal(t, http.StatusBadRequest, b.send(strings.Repeat("x", 90_000), false).status)
		b.cutOff("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n{")
		b.cutOff("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{")
	}
	require.Equal(t, http.StatusCreated, b.send(pushOf(100_000), false).status)
}

// cutOff sends half a request, closes the sending side and waits for the end.
func (b *bundle) cutOff(text string) {
	b.t.Helper()
	conn, r := b.dial()
	_, err := io.WriteString(conn, text)
	require.NoError(b.t, err)
	require.NoError(b.t, conn.(interface{ CloseWrite() error }).CloseWrite())
	_, _ = io.Copy(io.Discard, r)
}

func TestBuffersOfOneRequestDoNotShowInAnother(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push = func(_ context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
		return []wire.PushResult{{TransactionID: items[0].TransactionID, QueueName: string(items[0].Payload)}}, nil
	}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 50 {
				payload := strings.Repeat(fmt.Sprintf("%d.%d,", worker, i), 1+i*20)
				got := b.send(fmt.Sprintf(`{"items":[{"queue":"q","payload":"%s"}]}`, payload), i%2 == 0)
				if !strings.Contains(got.body, `\"`+payload+`\"`) {
					t.Errorf("worker %d got something else back", worker)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestTimeToSendIsNotTimeToWaitForTheBudget(t *testing.T) {
	t.Parallel()
	const wait = 5 * time.Millisecond
	b := setup(t, func(c *httpapi.Config) { c.InflightWait = wait })
	body := pushOf(200_000)
	r, w := io.Pipe()
	go func() {
		half := len(body) / 2
		_, _ = io.WriteString(w, body[:half])
		time.Sleep(3 * wait)
		_, _ = io.WriteString(w, body[half:])
		_ = w.Close()
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.addr+"/api/v1/push", r)
	require.NoError(t, err)
	res, err := b.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
}
