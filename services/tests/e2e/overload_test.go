package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// requireOverloaded requires the answer that existing clients repeat.
func requireOverloaded(t *testing.T, a harness.Answer) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.Status, a)
	require.NotEmpty(t, a.ErrorText(t))
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
}

func TestBodiesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_MAX_BODY_BYTES=1000000", "QUEEN_MAX_INFLIGHT_BYTES=1000000")
	q := queueName(t)
	body := fmt.Sprintf(`{"items":[{"queue":%q,"payload":"%s"}]}`, q, strings.Repeat("x", 900000))
	slow := dial(t, b)
	slow.send(t, fmt.Sprintf("POST /api/v1/push HTTP/1.1\nHost: queen\nContent-Length: %d\nExpect: 100-continue\n\n", len(body)))
	require.True(t, strings.HasPrefix(slow.head(t), "HTTP/1.1 100"), "its bytes are reserved now")

	refused := fmt.Appendf(nil, `{"items":[{"queue":%q,"payload":"%s"}]}`, q+"-2", strings.Repeat("y", 200000))
	a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/push", refused)
	require.NoError(t, err)
	requireOverloaded(t, a)
	require.False(t, b.DB.HasQueue(t, q+"-2"), "nothing stored")

	_, err = io.WriteString(slow, body)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(slow.head(t), "HTTP/1.1 201"), "the slow one is served")
	a, err = b.Call(t.Context(), http.MethodPost, "/api/v1/push", refused)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.Status, a)
}

func TestWaitingForTheDatabaseIsBounded(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "DB_POOL_SIZE=2", "QUEEN_STMT_TIMEOUT_MS=60000", "QUEEN_PUSH_DEADLINE_MS=60000")
	q := queueName(t)
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=1")
	release := lockTable(t, b, "log_consumers")
	first := park(t.Context(), b, harness.PopPath(q, "consumerGroup=g"))
	harness.Eventually(t, 10*time.Second, "the slot is taken", func() bool { return waitingStatements(t, b) > 0 })

	type call struct{ method, path, body string }
	answers := make(chan harness.Answer)
	calls := []call{
		{"GET", harness.PopPath(q, "consumerGroup=h"), ""},
		{"POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":1}]}`, q+"-2")},
		{"POST", "/api/v1/ack/batch", `{"acknowledgments":[` + mustJSON(t, p.Messages[0].Ack("completed")) + `]}`},
		{"POST", "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"push","queue":%q,"payload":1}]}`, q+"-2")},
	}
	for _, c := range calls {
		go func() {
			var body []byte
			if c.body != "" {
				body = []byte(c.body)
			}
			a, err := b.Call(context.WithoutCancel(t.Context()), c.method, c.path, body)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range calls {
		requireOverloaded(t, <-answers)
	}
	require.False(t, b.DB.HasQueue(t, q+"-2"), "nothing stored")
	release()
	require.Equal(t, numbers(0, 2), first.answer(t).Payloads())
	b.AckOK(t, "", p.Acks("completed")...)
}

// consume pops and acks a few messages at a time until the returned function is
// called, which answers how that went. It tries nothing twice.
func consume(t *testing.T, b *harness.Broker, queue string) (finish func() tally) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan tally, 1)
	go func() {
		var own tally
		for ctx.Err() == nil {
			own.consumeOnce(context.WithoutCancel(ctx), b, queue)
			time.Sleep(20 * time.Millisecond) // a consumer that does something with them
		}
		result <- own
	}()
	t.Cleanup(cancel)
	return func() tally { cancel(); return <-result }
}

func (t *tally) consumeOnce(ctx context.Context, b *harness.Broker, queue string) {
	call := func(method, path string, body []byte) (harness.Answer, bool) {
		began := time.Now()
		a, err := b.Call(ctx, method, path, body)
		t.slowest = max(t.slowest, time.Since(began))
		if err != nil || a.Status != http.StatusOK {
			if err != nil || a.Status != http.StatusNoContent {
				t.unexpected = append(t.unexpected, fmt.Sprint(path, " ", a, " ", err))
			}
			return a, false
		}
		return a, true
	}
	a, ok := call(http.MethodGet, harness.PopPath(queue, "batch=5"), nil)
	if !ok {
		return
	}
	var p harness.Popped
	if err := json.Unmarshal(a.Body, &p); err != nil {
		t.unexpected = append(t.unexpected, err.Error())
		return
	}
	acks, err := json.Marshal(map[string]any{"acknowledgments": p.Acks("completed")})
	if err != nil {
		t.unexpected = append(t.unexpected, err.Error())
		return
	}
	if _, ok := call(http.MethodPost, "/api/v1/ack/batch", acks); ok {
		t.accepted += len(p.Messages)
	}
}

// Twenty times what the broker can do arrive for a while: 15 seconds, or a whole
// minute with QUEEN_TEST_LONG=1. Each push transaction is made to last at least
// 100 ms, so that it is the database that sets the pace and not the processor,
// which the load, the broker and PostgreSQL share here.
func TestTwentyTimesTheCapacityIsRefusedInBounds(t *testing.T) {
	duration := 15 * time.Second
	if os.Getenv("QUEEN_TEST_LONG") == "1" {
		duration = time.Minute
	}
	b := harness.StartOne(t, "DB_POOL_SIZE=4", "QUEEN_MAX_BODY_BYTES=16384", "QUEEN_MAX_INFLIGHT_BYTES=16384",
		"QUEEN_ADMISSION_MAX_WAITING=32", "GOMAXPROCS=2")
	q := queueName(t)
	b.DB.Exec(t, `CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
		$$BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END$$`)
	b.DB.Exec(t, `CREATE TRIGGER slow AFTER INSERT ON queen.log_segments FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`)
	f := newFlood(b, q, 16, 1500)

	consumed := consume(t, b, q)
	first := f.closed(t, 24, time.Second) // makes the lanes
	const measured = 5 * time.Second
	before := f.closed(t, 24, measured)
	require.Empty(t, before.unexpected)
	most := float64(before.accepted) / measured.Seconds()
	require.Positive(t, most)

	// The first part brings everything that is bounded to its bound.
	warm := f.open(t, 160, 20*most, duration/3)
	memory := resident(t, b)
	over := f.open(t, 160, 20*most, duration)
	grown := resident(t, b) - memory
	served := consumed()

	offered, accepted := float64(over.sent)/duration.Seconds(), float64(over.accepted)/duration.Seconds()
	require.Empty(t, served.unexpected, "pops and acks get through")
	require.Positive(t, served.accepted)
	t.Logf("at most %.0f/s; offered %.0f/s, accepted %.0f/s, slowest answer %s; consumed %d, slowest %s; memory %d MiB and %d KiB more",
		most, offered, accepted, over.slowest, served.accepted, served.slowest, memory>>20, grown>>10)
	require.Empty(t, warm.unexpected)
	require.Empty(t, over.unexpected)
	require.Greater(t, offered, 10*most, "the load kept up with its plan by half at least")
	require.GreaterOrEqual(t, accepted, 0.8*most)
	require.Positive(t, over.refused)
	require.Less(t, over.slowest, 20*time.Second, "10 s in a queue and the deadline of a push")
	require.Less(t, served.slowest, 20*time.Second)
	require.Less(t, grown, memory/4+16<<20, "memory stays flat")
	require.Equal(t, over.sent, over.accepted+over.refused)

	total := first.accepted + before.accepted + warm.accepted + over.accepted
	stored := harness.Value[int](t, b.DB, `SELECT coalesce(sum(s.end_offset - s.base_offset + 1), 0)::int FROM queen.log_segments s`)
	require.Equal(t, total, stored, "what was accepted, and nothing else")
}
