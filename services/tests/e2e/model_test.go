package e2e_test

import (
	"fmt"
	"slices"

	"github.com/queenmq/queen/services/tests/harness"
)

// model is what one queue should look like: logs as lists of transaction ids
// (the offset is the index) and one cursor per lane and group.
type model struct {
	lanes      map[string][]string
	cursors    map[reader]*cursor
	registered map[string]bool // groups with a durable record
	dead       []string        // group, lane and id of every dead letter
	retryLimit int
	deadOn     bool
}

type reader struct{ lane, group string }

// cursor is the expected row of queen.log_consumers.
type cursor struct {
	committed     int
	batchEnd      int // -1: none
	worker        string
	live          bool // the lease has not run out
	retries       int
	attemptOffset int // -1: none
	attempts      int
	consumed      int
}

func newModel() *model {
	return &model{lanes: map[string][]string{}, cursors: map[reader]*cursor{}, registered: map[string]bool{}, retryLimit: 3, deadOn: true}
}

func newCursor(committed int) *cursor {
	return &cursor{committed: committed, batchEnd: -1, attemptOffset: -1}
}

func (c *cursor) String() string { return fmt.Sprintf("%+v", *c) }

// push answers which ids are new, and appends them.
func (m *model) push(lane string, ids []string) []bool {
	fresh := make([]bool, len(ids))
	for i, id := range ids {
		if fresh[i] = !slices.Contains(m.lanes[lane], id); fresh[i] {
			m.lanes[lane] = append(m.lanes[lane], id)
		}
	}
	return fresh
}

// seed makes the cursor of a group on its first contact with a lane. Groups
// with a record have had all lanes of that moment seeded, so whatever comes
// later is new to them in full.
func (m *model) seed(r reader, tail bool) *cursor {
	if m.cursors[r] == nil {
		committed := -1
		if tail && r.group != harness.QueueMode && !m.registered[r.group] {
			committed = len(m.lanes[r.lane]) - 1
		}
		m.cursors[r] = newCursor(committed)
	}
	return m.cursors[r]
}

// register seeds every lane on the first wildcard pop of a group.
func (m *model) register(group string, tail bool) {
	if m.registered[group] {
		return
	}
	for lane := range m.lanes {
		m.seed(reader{lane, group}, tail)
	}
	m.registered[group] = true
}

// pending is what a pop of a lane could deliver now.
func (m *model) pending(r reader) int {
	c := m.cursors[r]
	switch {
	case c == nil:
		return len(m.lanes[r.lane])
	case c.live:
		return 0
	}
	return len(m.lanes[r.lane]) - 1 - c.committed
}

// deliver moves a cursor as a pop of n messages does.
func (m *model) deliver(r reader, n int, worker string, auto bool) (ids []string, attempt int) {
	c := m.seed(r, false)
	first := c.committed + 1
	ids = m.lanes[r.lane][first : first+n]
	if auto {
		c.committed, c.batchEnd, c.worker, c.live = c.committed+n, -1, "", false
		c.consumed += n
		return ids, 1
	}
	if c.attemptOffset == first {
		c.attempts++
	} else {
		c.attemptOffset, c.attempts = first, 1
	}
	c.batchEnd, c.worker, c.live = c.committed+n, worker, true
	return ids, c.attempts
}

// item is one acknowledgement: what is sent, and what should be answered.
type item struct {
	id, status string

	success, noop bool
	err           string
}

// ack settles the items of one lane, lease and group, and answers the flags
// that they share.
func (m *model) ack(r reader, lease string, items []item) (released, dead bool) {
	c := m.cursors[r]
	switch {
	case c == nil:
		refuse(items, "consumer not found")
		return false, false
	case lease != "" && (c.worker != lease || !c.live):
		refuse(items, leaseText)
		return false, false
	}
	signal, signalAt, newest := "", -1, c.committed
	for i := range items {
		at := m.resolve(r, c, &items[i])
		if at < 0 || items[i].status == "completed" {
			continue
		}
		if signalAt < 0 || at < signalAt || (at == signalAt && rank(items[i].status) > rank(signal)) {
			signal, signalAt = items[i].status, at
		}
	}
	for i := range items {
		at := slices.Index(m.lanes[r.lane], items[i].id)
		if items[i].success && !items[i].noop && items[i].status == "completed" && (signalAt < 0 || at < signalAt) {
			newest = max(newest, at)
		}
	}
	c.consumed += newest - c.committed
	c.committed = newest
	return m.settle(r, c, signal, signalAt)
}

func refuse(items []item, text string) {
	for i := range items {
		items[i].err = text
	}
}

func rank(status string) int { return slices.Index([]string{"", "retry", "failed", "dlq"}, status) }

// resolve finds an item's offset if it can act, and sets its verdict.
func (m *model) resolve(r reader, c *cursor, it *item) int {
	at := slices.Index(m.lanes[r.lane], it.id)
	switch {
	case at >= 0 && at <= c.committed && it.status == "completed":
		it.success, it.noop = true, true
	case at >= 0 && at <= c.committed:
		it.err = committedText
	case at < 0 || (c.batchEnd >= 0 && at > c.batchEnd):
		it.err = unresolvedText
	default:
		it.success = true
		return at
	}
	return -1
}

// settle ends an ack: what the head signal does to the lease and the budget.
func (m *model) settle(r reader, c *cursor, signal string, at int) (released, dead bool) {
	if c.batchEnd < 0 {
		return false, false
	}
	switch {
	case signal == "dlq", signal == "failed" && c.retries >= m.retryLimit && m.deadOn:
		m.dead = append(m.dead, r.group+" "+r.lane+" "+m.lanes[r.lane][at])
		c.committed = max(c.committed, at)
		c.consumed++
		c.reset()
		return true, true
	case signal == "failed" && c.retries >= m.retryLimit: // dropped
		c.committed = at
		c.consumed++
		c.release()
		c.retries = 0
		return true, false
	case signal == "failed":
		c.retries++
		c.release()
		return true, false
	case signal == "retry":
		c.release()
		return true, false
	case c.committed >= c.batchEnd:
		c.reset()
		return true, false
	}
	return false, false
}

func (c *cursor) release() { c.batchEnd, c.worker, c.live = -1, "", false }

func (c *cursor) reset() {
	c.release()
	c.retries, c.attemptOffset, c.attempts = 0, -1, 0
}
