package retention_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	modelQueues = 12
	modelRounds = 25
	longRounds  = 300

	// tick is by how much data gets older at a time. No window is near a multiple
	// of it, so that the time a run takes decides nothing.
	tick = 400
)

// model is what one queue of one lane should hold, at ages in seconds.
type model struct {
	start, last, txns int
	live, hashes      []segment
	cursors           map[string]int
	removed           map[string]int64

	age, consumed, wait, dedup int // windows; 0: none
	enabled                    bool
}

type segment struct{ base, end, age int }

func newModel() *model {
	return &model{last: -1, cursors: map[string]int{}, removed: map[string]int64{}, dedup: 3600}
}

func (m *model) push(n int) {
	s := segment{base: m.last + 1, end: m.last + n}
	m.live, m.hashes, m.last = append(m.live, s), append(m.hashes, s), s.end
}

func (m *model) grow(older int) {
	for _, list := range [][]segment{m.live, m.hashes} {
		for i := range list {
			list[i].age += older
		}
	}
}

// consume answers how many of up to n messages a group gets.
func (m *model) consume(group string, n int) int {
	committed, known := m.cursors[group]
	if !known {
		committed = -1
	}
	from := max(committed+1, m.start)
	n = min(n, m.last-from+1)
	m.cursors[group] = committed
	if n > 0 {
		m.cursors[group] = from + n - 1
	}
	return max(n, 0)
}

// firstYoung is the base of the first segment that is not older than a window.
func (m *model) firstYoung(list []segment, window int) int {
	if i := slices.IndexFunc(list, func(s segment) bool { return s.age < window }); i >= 0 {
		return list[i].base
	}
	return m.last + 1
}

// cycle is what a cycle does to the lane.
func (m *model) cycle() {
	boundary, rule := m.start, byAge
	if m.enabled && m.age > 0 {
		boundary = max(boundary, m.firstYoung(m.live, m.age))
	}
	if m.enabled && m.consumed > 0 && len(m.cursors) > 0 {
		slowest := slices.Min(slices.Collect(maps.Values(m.cursors))) + 1
		if b := min(slowest, m.firstYoung(m.live, m.consumed)); b > boundary {
			boundary, rule = b, byConsumed
		}
	}
	m.cut(boundary, rule)

	window := max(m.dedup, m.consumed, 900)
	m.txns = m.firstYoung(m.hashes, window)
	m.hashes = slices.DeleteFunc(m.hashes, func(s segment) bool { return s.end < m.txns })

	if m.wait > 0 {
		m.cut(m.firstYoung(m.live, m.wait), byMaxWait)
	}
}

// cut takes the whole segments below a boundary.
func (m *model) cut(boundary int, rule string) {
	for len(m.live) > 0 && m.live[0].end < boundary {
		m.removed[rule] += int64(m.live[0].end - m.live[0].base + 1)
		m.start = m.live[0].end + 1
		m.live = m.live[1:]
	}
}

// configure chooses windows: none of them is a multiple of tick.
func (m *model) configure(rng *rand.Rand) string {
	pick := func(windows ...int) int { return windows[rng.IntN(len(windows))] }
	m.enabled = rng.IntN(4) > 0
	m.age, m.consumed, m.wait = pick(0, 0, 3000, 5000), pick(0, 1000, 2200), pick(0, 0, 0, 5800)
	m.dedup = pick(0, 60, 1000, 3000)
	return fmt.Sprintf(`{"retentionEnabled":%t,"retentionSeconds":%d,"completedRetentionSeconds":%d,"maxWaitTimeSeconds":%d,"dedupWindowSeconds":%d}`,
		m.enabled, m.age, m.consumed, m.wait, m.dedup)
}

// TestRetentionBehavesLikeTheModel does random things to several queues and lets
// a cycle run after each round: what is left is exactly what the model has left.
// So nothing unconsumed is lost to the rule of the consumed, the watermark is the
// first live segment or one above the last offset, and no offset comes twice.
func TestRetentionBehavesLikeTheModel(t *testing.T) {
	t.Parallel()
	x := own(t)
	rng := seeded(t)
	cells, models := make([]*cell, modelQueues), make([]*model, modelQueues)
	for i := range cells {
		cells[i], models[i] = x.another(t), newModel()
		cells[i].Configure(t, cells[i].queue, models[i].configure(rng))
		cells[i].together(t, 1)
		models[i].push(1)
	}
	rounds := modelRounds
	if harness.Long() {
		rounds = longRounds
	}
	for round := range rounds {
		for i, c := range cells {
			for range 1 + rng.IntN(4) {
				c.act(t, rng, models[i])
			}
			models[i].cycle()
		}
		x.cycle(t, "QUEEN_PARTITION_CLEANUP_ENABLED=false", "RETENTION_BATCH_SIZE="+strconv.Itoa(1+rng.IntN(1000)))
		for i, c := range cells {
			c.requireModel(t, models[i], round)
		}
		requireSound(t, x.DB)
	}
}

// act does one random thing to the queue and to its model.
func (c *cell) act(t *testing.T, rng *rand.Rand, m *model) {
	t.Helper()
	group := "g" + strconv.Itoa(rng.IntN(3))
	switch n := 1 + rng.IntN(5); rng.IntN(9) {
	case 0, 1, 2:
		c.together(t, n)
		m.push(n)
	case 3, 4:
		p := c.PopPartition(t, c.queue, lane, fmt.Sprintf("autoAck=true&batch=%d&consumerGroup=%s", n, group))
		require.Len(t, p.Messages, m.consume(group, n))
	case 5, 6, 7:
		c.age(t, m.last, time.Duration(n)*tick*time.Second)
		m.grow(n * tick)
	default:
		if rng.IntN(2) == 0 {
			c.Configure(t, c.queue, m.configure(rng))
			return
		}
		c.DB.Exec(t, `DELETE FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, c.pid(t, lane), group)
		delete(m.cursors, group)
	}
}

func (c *cell) requireModel(t *testing.T, m *model, round int) {
	t.Helper()
	require.Equal(t, marks{start: int64(m.start), last: int64(m.last), txns: int64(m.txns)}, c.marks(t), "round %d, %s: %+v", round, c.queue, m)
	// A step of a few rows names the rule by its own boundary; the sum is the same.
	var want, got int64
	for _, n := range m.removed {
		want += n
	}
	removed := c.removed(t)
	for _, n := range removed {
		got += n
	}
	require.Equal(t, want, got, "round %d, %s: %+v", round, c.queue, m)
	require.Equal(t, m.removed[byMaxWait], removed[byMaxWait], "round %d, %s: %+v", round, c.queue, m)
	for group, committed := range m.cursors {
		// A pop that finds nothing may move a cursor over what is gone.
		require.EqualValues(t, max(committed+1, m.start), max(c.DB.Committed(t, c.queue, lane, group)+1, int64(m.start)),
			"round %d, %s, %s: %+v", round, c.queue, group, m)
	}
}
