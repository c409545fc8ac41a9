// Package sweeper_test drives built sweepers beside built brokers and checks that
// every timer becomes exactly one message, whatever happens to the processes, the
// connections and the server in between.
//
// Faults come at a known place: the proxy between a service and PostgreSQL keeps the
// statement, or its answer, until the test has done its damage.
package sweeper_test

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m))
}

const (
	// patience bounds what has to happen sooner or later.
	patience = 30 * time.Second
	// later is so far away, in milliseconds, that no test sees it.
	later = 3_600_000
	// shortLease lets a test see the end of a lease that nobody fires under.
	shortLease = "QUEEN_SWEEPER_LEASE_MS=1000"

	timersPath   = "/api/v1/timers"
	txPath       = "/api/v1/transaction"
	switchesPath = "/api/v1/system/kv-timers"
)

// The statements of a sweeper by what their texts hold.
const (
	claimCall = "log_timers_claim_v1"
	fireCall  = "log_timers_fire_v1"
	probeCall = "log_timers_due_v1"
	applyCall = "log_timers_apply_v1"
)

// object is a JSON object.
type object = map[string]any

// cell is a broker with a database of its own, a queue, and what was promised to
// arrive in it.
type cell struct {
	*harness.Broker
	queue    string
	promises []promise
}

// promise is a timer that a broker has taken.
type promise struct {
	id, lane string
	deliver  time.Time
}

func newCell(b *harness.Broker) *cell {
	return &cell{Broker: b, queue: "q-" + cryptorand.Text()[:8]}
}

// own is a broker of the test's own.
func own(t *testing.T, env ...string) *cell {
	t.Helper()
	return newCell(harness.StartOne(t, env...))
}

// through is the way to the database of a service behind a proxy.
func through(p *harness.Proxy) []string {
	host, port, _ := strings.Cut(p.Addr(), ":")
	return []string{"PG_HOST=" + host, "PG_PORT=" + port}
}

// schedule is one operation.
func schedule(queue, key, lane string, delayMs int) object {
	return object{
		"op": "schedule", "queue": queue, "timerKey": key, "partition": lane, "delayMs": delayMs, "txn": "txn-" + key,
		"payload": base64.StdEncoding.EncodeToString([]byte(`"` + key + `"`)),
	}
}

// operate sends operations on timers.
func (c *cell) operate(ctx context.Context, ops ...object) (harness.Answer, error) {
	body, err := json.Marshal(object{"operations": ops})
	if err != nil {
		return harness.Answer{}, err
	}
	return c.Call(ctx, http.MethodPost, timersPath, body, "Content-Type", "application/json")
}

// promise schedules timers and notes what the broker promises.
func (c *cell) promise(t *testing.T, ops ...object) []object {
	t.Helper()
	var all []object
	for chunk := range slices.Chunk(ops, 250) {
		a, err := c.operate(t.Context(), chunk...)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, a.Status, a)
		var answer struct {
			Results []object `json:"results"`
		}
		a.Into(t, &answer)
		require.Len(t, answer.Results, len(chunk))
		for i, r := range answer.Results {
			require.Equal(t, "scheduled", r["status"], r)
			c.note(t, r, chunk[i]["partition"].(string))
		}
		all = append(all, answer.Results...)
	}
	return all
}

func (c *cell) note(t *testing.T, result object, lane string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, result["deliverAt"].(string))
	require.NoError(t, err)
	c.promises = append(c.promises, promise{id: result["messageId"].(string), lane: lane, deliver: at})
}

// backlog is n timers that are due, in an order of their own, spread over lanes.
func (c *cell) backlog(t *testing.T, n, lanes int) []object {
	t.Helper()
	return c.late(evenKeys(t, c.DB, n), lanes)
}

// late are timers of these keys, due 10 ms one after the other, in a random order.
func (c *cell) late(keys []string, lanes int) []object {
	n := len(keys)
	ops := make([]object, n)
	for i, key := range keys {
		ops[i] = schedule(c.queue, key, fmt.Sprintf("lane-%02d", i%lanes), -10*(n-i))
	}
	rand.Shuffle(n, func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	return ops
}

// evenKeys are n keys of timers, as many in one shard as in another: a claim takes all
// of them up to its rows, since no shard has more than its share.
func evenKeys(t *testing.T, db *harness.Database, n int) []string {
	t.Helper()
	return harness.Value[[]string](t, db, `SELECT array_agg(k.key ORDER BY random()) FROM (
		SELECT s.key FROM (
			SELECT 'k' || g AS key, row_number() OVER (PARTITION BY hashtextextended('k' || g, 0) & 63 ORDER BY g) AS place
			FROM generate_series(1, $1 * 8 + 1000) AS g) AS s
		ORDER BY s.place, s.key LIMIT $1) AS k`, n)
}

// pending counts the timers of the test's queue.
func (c *cell) pending(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.log_timers WHERE queue LIKE $1 || '%'`, c.queue)
}

// claimed counts those under a lease.
func (c *cell) claimed(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.log_timers WHERE claim_token IS NOT NULL AND claimed_until > clock_timestamp()`)
}

// stored counts the messages that the lanes of the test's queue have been given.
func (c *cell) stored(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT COALESCE(sum(p.last_offset + 1), 0)::int FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name LIKE $1 || '%'`, c.queue)
}

// fired waits until no timer of the test's queue is left.
func (c *cell) fired(t *testing.T) {
	t.Helper()
	harness.Eventually(t, patience, "every timer is fired", func() bool { return c.pending(t) == 0 })
}

// messages reads all lanes of the test's queue, each from its beginning. A broker
// whose server was away may refuse at first: then all is read once more.
func (c *cell) messages(t *testing.T) map[string][]string {
	t.Helper()
	lanes := harness.Value[[]string](t, c.DB, `SELECT COALESCE(array_agg(p.name), '{}') FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, c.queue)
	var out map[string][]string
	harness.Eventually(t, patience, "the messages can be read", func() bool {
		group := "reader-" + cryptorand.Text()[:8]
		out = map[string][]string{}
		for _, lane := range lanes {
			ids, err := c.read(t.Context(), lane, group)
			if err != nil {
				return false
			}
			out[lane] = ids
		}
		return true
	})
	return out
}

// read is one lane by a group that has read nothing yet.
func (c *cell) read(ctx context.Context, lane, group string) (ids []string, err error) {
	for {
		p, err := c.TryPop(ctx, harness.PopPartitionPath(c.queue, lane, "autoAck=true&batch=1000&subscriptionMode=all&consumerGroup="+group))
		if err != nil || len(p.Messages) == 0 {
			return ids, err
		}
		for _, m := range p.Messages {
			ids = append(ids, m.ID)
		}
	}
}

// requireOnce requires that no timer is left and that each became exactly one message,
// in its lane.
func (c *cell) requireOnce(t *testing.T) {
	t.Helper()
	c.fired(t)
	var want, got []string
	for _, p := range c.promises {
		want = append(want, p.lane+" "+p.id)
	}
	for lane, ids := range c.messages(t) {
		for _, id := range ids {
			got = append(got, lane+" "+id)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)
	require.Equal(t, len(want), c.stored(t), "no offset without a message")
}

// requireOrder requires of every lane that its messages came in the order of their
// instants.
func (c *cell) requireOrder(t *testing.T) {
	t.Helper()
	at := map[string]time.Time{}
	for _, p := range c.promises {
		at[p.id] = p.deliver
	}
	for lane, ids := range c.messages(t) {
		require.True(t, slices.IsSortedFunc(ids, func(a, b string) int { return at[a].Compare(at[b]) }), lane)
	}
}

// flip sets the switches of an operator.
func (c *cell) flip(t *testing.T, body string) object {
	t.Helper()
	a := c.Post(t, switchesPath, body)
	require.Equal(t, http.StatusOK, a.Status, a)
	o := a.Object(t)
	require.Equal(t, true, o["mirrored"], a)
	return o
}

// metricOf reads one series that may not be there yet.
func metricOf(t *testing.T, s *harness.Sweeper, name string) float64 {
	t.Helper()
	a := s.Get(t, "/metrics/prometheus")
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(a.Body)
	if found == nil {
		return 0
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(t, err)
	return v
}

// await waits for a channel.
func await(t *testing.T, caught <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-caught:
	case <-time.After(patience):
		require.Fail(t, "not within "+patience.String(), what)
	}
}

func timerPath(queue, key string) string {
	return timersPath + "/" + url.PathEscape(queue) + "/" + url.PathEscape(key)
}

// seeded is a source of randomness; its seed is printed with a failure.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("QUEEN_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with QUEEN_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

func decode(a harness.Answer, v any) error {
	if a.Status != http.StatusOK {
		return fmt.Errorf("answered %s", a)
	}
	return json.Unmarshal(a.Body, v)
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// noise is a text that does not compress.
func noise(rng *rand.Rand, n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[rng.IntN(64)]
	}
	return string(text)
}
