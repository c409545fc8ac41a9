package hotlist

import (
	"fmt"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/store"
)

// lane is a partition as the database has it, with one group's cursor.
type lane struct {
	written   []time.Time // by offset
	committed int64
	until     time.Time // of the lease
	batchEnd  int64
	leased    bool
}

func (l *lane) last() int64 { return int64(len(l.written)) - 1 }

func (l *lane) pending() bool { return l.last() > l.committed }

// database is what the list is a memory of.
type database struct {
	*bench
	settings store.QueueSettings
	lanes    map[string]*lane
}

func (d *database) names() []string {
	names := make([]string, 0, len(d.lanes))
	for name := range d.lanes {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (d *database) write(name string, n int) {
	l := d.lanes[name]
	if l == nil {
		l = &lane{committed: -1}
		d.lanes[name] = l
	}
	for range n {
		l.written = append(l.written, d.now())
	}
}

func (d *database) seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// visible is the last offset that a pop may see.
func (d *database) visible(l *lane, skipWindow bool) int64 {
	if w := d.seconds(d.settings.WindowBuffer); w > 0 && !skipWindow && l.last() >= 0 && l.written[l.last()].After(d.now().Add(-w)) {
		return -1
	}
	end := l.last()
	for end >= 0 && l.written[end].After(d.now().Add(-d.seconds(d.settings.DelayedProcessing))) {
		end--
	}
	return end
}

// claim is what log_pop_list_v1 does with candidates.
func (d *database) claim(c *Checkout, budget, width int, autoAck bool, locked func() bool) (verdicts []Verdict) {
	for _, name := range c.Partitions() {
		if budget == 0 || width == 0 {
			break
		}
		v := Verdict{Partition: name, PartitionID: idOf(name), Kind: Nothing}
		l := d.lanes[name]
		switch {
		case l == nil:
		case l.leased && !l.until.Before(d.now()):
			v.Kind, v.Until = Leased, l.until
		case l.pending() && locked():
			v.Kind, v.Until = Locked, d.now().Add(250*time.Millisecond)
		default:
			end := min(d.visible(l, c.SkipWindow()), l.committed+int64(budget))
			switch {
			case end > l.committed:
				budget -= int(end - l.committed)
				width--
				v.BatchEnd, v.LastOffset, v.Count = end, l.last(), int(end-l.committed)
				if v.Kind = TookAutoAck; autoAck {
					l.committed, l.leased = end, false
				} else {
					v.Kind, v.Until = Took, d.now().Add(3*time.Second)
					l.leased, l.until, l.batchEnd = true, v.Until, end
				}
			case l.pending():
				v.Kind, v.Until = Leased, d.now().Add(250*time.Millisecond)
			}
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// offer makes the store list what is pending.
func (d *database) offer() {
	var names []string
	for _, name := range d.names() {
		if d.lanes[name].pending() {
			names = append(names, name)
		}
	}
	d.store.list(names...)
}

// claimed is a check-out whose claim has been made.
type claimed struct {
	*Checkout
	verdicts []Verdict
}

// machine makes random steps.
type machine struct {
	*database
	hand []claimed
}

func (m *machine) step(t *rapid.T) {
	name := fmt.Sprintf("lane-%d", rapid.IntRange(0, 11).Draw(t, "lane"))
	heard := rapid.IntRange(0, 3).Draw(t, "lost") > 0
	switch rapid.IntRange(0, 13).Draw(t, "step") {
	case 0, 1, 2:
		n := rapid.IntRange(1, 4).Draw(t, "messages")
		m.write(name, n)
		switch {
		case !heard:
		case rapid.Bool().Draw(t, "quiet"):
			m.Pushed(tenant, "q", name, n)
		default:
			m.Mark(tenant, "q", name, n)
		}
	case 3, 4:
		m.pop(t)
	case 5, 6:
		m.checkIn(t)
	case 7:
		m.ack(t, name, heard)
	case 8:
		m.pass(time.Duration(rapid.IntRange(1, 2500).Draw(t, "ms")) * time.Millisecond)
	case 9:
		m.offer()
		require.NoError(t, m.Reseed(m.t.Context(), tenant, "q", "g"))
	case 10:
		if l := m.lanes[name]; l != nil && l.committed >= 0 { // a seek back
			l.committed, l.leased = rapid.Int64Range(-1, l.committed).Draw(t, "to"), false
			if heard {
				m.MarkGroup(tenant, "q", name, "g")
			}
		}
	case 11:
		m.sweep()
	case 12:
		m.elsewhere(t, name, heard)
	case 13: // forged, or very late
		m.Taken(Taking{
			Tenant: tenant, Queue: "q", Partition: name, Group: "g", Count: rapid.IntRange(1, 4).Draw(t, "count"),
			Emptied: rapid.Bool().Draw(t, "emptied"), Leased: rapid.Bool().Draw(t, "leased"),
		})
	}
	m.check()
}

func (m *machine) pop(t *rapid.T) {
	c, state := m.Checkout(tenant, "q", "g", rapid.IntRange(1, 6).Draw(t, "k"), rapid.IntRange(1, 10).Draw(t, "batch"))
	if state != Served {
		return
	}
	m.hand = append(m.hand, claimed{c, m.claim(c, rapid.IntRange(1, 6).Draw(t, "budget"), rapid.IntRange(1, 3).Draw(t, "width"),
		rapid.Bool().Draw(t, "autoAck"), func() bool { return rapid.IntRange(0, 4).Draw(t, "locked") == 0 })})
}

// elsewhere is a claim of another broker.
func (m *machine) elsewhere(t *rapid.T, name string, heard bool) {
	l := m.lanes[name]
	if l == nil || !l.pending() || l.leased && !l.until.Before(m.now()) {
		return
	}
	from := l.committed
	end := rapid.Int64Range(from+1, l.last()).Draw(t, "end")
	lease := rapid.Bool().Draw(t, "lease")
	if l.leased = lease; lease {
		l.until, l.batchEnd = m.now().Add(3*time.Second), end
	} else {
		l.committed = end
	}
	if heard {
		m.Taken(Taking{Tenant: tenant, Queue: "q", Partition: name, Group: "g", Count: int(end - from), Emptied: end == l.last(), Leased: lease})
	}
}

func (m *machine) checkIn(t *rapid.T) {
	if len(m.hand) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.hand)-1).Draw(t, "hand")
	c := m.hand[i]
	m.hand = append(m.hand[:i], m.hand[i+1:]...)
	switch rapid.IntRange(0, 9).Draw(t, "how") {
	case 0: // never comes back
	case 1:
		c.Abandon()
	default:
		c.Return(c.verdicts)
		c.Abandon()
	}
}

// ack ends a lease: all of it, or nothing of it.
func (m *machine) ack(t *rapid.T, name string, heard bool) {
	l := m.lanes[name]
	if l == nil || !l.leased {
		return
	}
	l.leased = false
	if rapid.Bool().Draw(t, "failed") {
		if heard {
			m.MarkGroup(tenant, "q", name, "g")
			m.Promote(idOf(name), "g")
		}
		return
	}
	l.committed = max(l.committed, l.batchEnd)
	if heard {
		m.Promote(idOf(name), "g")
	}
}

func TestNothingIsStrandedOnceAReseedRan(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]store.QueueSettings{"plain": plain, "windowed": windowed, "delayed": delayed, "both": both} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				b := setup(t, Config{Shards: rapid.IntRange(1, 3).Draw(rt, "shards"), WindowBatch: 5})
				b.store.settings["q"] = settings
				b.deps.Peers = &fakePeers{rank: func(lane uint64) int { return int(lane % 3) }}
				b.reseed()
				m := &machine{database: &database{bench: b, settings: settings, lanes: map[string]*lane{}}}
				for range rapid.IntRange(1, 120).Draw(rt, "steps") {
					m.step(rt)
				}
				m.finish(rt)
			})
		})
	}
}

// finish lets everybody go, walks once, and has what is left consumed by pops that
// ask nobody but the list.
func (m *machine) finish(t *rapid.T) {
	m.pass(Stranded + time.Second)
	m.offer()
	require.NoError(t, m.Reseed(m.t.Context(), tenant, "q", "g"))
	m.check()
	for _, name := range m.names() {
		if m.lanes[name].pending() {
			require.Contains(t, []state{ready, wheel}, m.stateOf(name), "%s is pending", name)
		}
	}
	m.store.list()
	for round := 0; ; round++ {
		left := 0
		for _, l := range m.lanes {
			if l.pending() {
				left++
			}
		}
		if left == 0 {
			break
		}
		require.Less(t, round, 400, "%d lanes are never served", left)
		m.pass(500 * time.Millisecond)
		if c, state := m.Checkout(tenant, "q", "g", 4, 100); state == Served {
			c.Return(m.claim(c, 100, 2, true, func() bool { return false }))
		}
	}
	m.check()
}
