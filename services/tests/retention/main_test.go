// Package retention_test drives built maintainers beside built brokers and
// checks what a client can observe of retention, and what stands in the
// database afterwards.
//
// Data gets old in two ways. A test that is about time waits; all others move
// the instants that the database holds into the past and let one cycle run.
package retention_test

import (
	cryptorand "crypto/rand"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m))
}

// lane is the partition that a test uses where one is enough.
const lane = "lane"

// ages that are far beyond and far within every window that a test sets.
const (
	longAgo = 1000 * time.Hour
	hour    = 3600 // the usual window in seconds
)

// cell is a broker whose database only the test itself has swept.
type cell struct {
	*harness.Broker
	queue string
	sweep *sync.Mutex // of the database: one cycle at a time
}

// sharedSweeps keeps the cycles of the common database apart.
var sharedSweeps sync.Mutex

// shared is the common broker and a queue of this test alone. Other tests sweep
// that database too, at any moment.
func shared(t *testing.T) *cell {
	t.Helper()
	return &cell{Broker: harness.Shared(t), queue: queueName(t), sweep: &sharedSweeps}
}

// own is a broker with a database of its own, which is swept only when the test
// says so.
func own(t *testing.T, env ...string) *cell {
	t.Helper()
	return &cell{Broker: harness.Start(t, env...), queue: queueName(t), sweep: new(sync.Mutex)}
}

// another is another queue in the same database.
func (c *cell) another(t *testing.T) *cell {
	t.Helper()
	return &cell{Broker: c.Broker, queue: queueName(t), sweep: c.sweep}
}

// queueName is unique and holds no dot, so that it derives no task.
func queueName(t *testing.T) string {
	t.Helper()
	name := regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(t.Name(), "-")
	return name[:min(len(name), 80)] + "-" + cryptorand.Text()[:8]
}

// cycle runs one cycle to its end and answers what it printed.
func (c *cell) cycle(t *testing.T, env ...string) string {
	t.Helper()
	c.sweep.Lock()
	defer c.sweep.Unlock()
	end := runOnce(t, c.DB, env...)
	require.Zero(t, end.Code, "%+v", end)
	return end.Stdout
}

// runOnce is cycle for a test that expects something else than its success.
func runOnce(t *testing.T, db *harness.Database, env ...string) harness.Ended {
	t.Helper()
	return harness.Maintain(t, db, env, "run-once")
}

// push stores n messages, each a segment of its own.
func (c *cell) push(t *testing.T, n int) []string {
	t.Helper()
	return c.PushEach(t, c.queue, lane, n)
}

// together stores n messages as one segment.
func (c *cell) together(t *testing.T, n int) []string {
	t.Helper()
	ids := c.PushTogether(t, c.queue, lane, n)
	return ids
}

// consume lets a group read n messages and commit them.
func (c *cell) consume(t *testing.T, group string, n int) {
	t.Helper()
	p := c.PopPartition(t, c.queue, lane, "autoAck=true&batch="+strconv.Itoa(n)+"&consumerGroup="+group)
	require.Len(t, p.Messages, n)
}

// lease lets a group take up to n messages and keep them.
func (c *cell) lease(t *testing.T, group string, n int) harness.Popped {
	t.Helper()
	p := c.PopPartition(t, c.queue, lane, "batch="+strconv.Itoa(n)+"&consumerGroup="+group)
	require.Len(t, p.Messages, n)
	return p
}

// all reads everything that a group has not read yet.
func (c *cell) all(t *testing.T, group string) []string {
	t.Helper()
	got := []string{}
	for {
		p := c.PopPartition(t, c.queue, lane, "autoAck=true&batch=1000&consumerGroup="+group)
		if len(p.Messages) == 0 {
			return got
		}
		got = append(got, p.Payloads()...)
	}
}

// numbers are the JSON texts of from to to-1, the payloads of push.
func numbers(from, to int) []string {
	out := make([]string, 0, max(0, to-from))
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// requireOptions reads the queue's options and requires these among them.
func requireOptions(t *testing.T, c *cell, want map[string]any) {
	t.Helper()
	a := c.Get(t, "/api/v1/resources/queues/"+c.queue)
	options, _ := a.Object(t)["options"].(map[string]any)
	for name, value := range want {
		require.Equal(t, value, options[name], "%s of %s", name, a)
	}
}
