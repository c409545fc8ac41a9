package announce_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/lanes"
)

var errRepair = errors.New("the database is away")

var (
	tenant = uuid.UUID{15: 1}
	lane   = uuid.UUID{15: 2}
	due    = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

// calls notes what was told to whom, in order.
type calls struct{ list []string }

func (c *calls) note(format string, args ...any) {
	c.list = append(c.list, fmt.Sprintf(format, args...))
}

func (c *calls) take() []string {
	list := c.list
	c.list = nil
	return list
}

type (
	hotList struct{ *calls }
	waker   struct{ *calls }
	peers   struct{ *calls }
	cache   struct{ *calls }

	switches struct{ *calls }
	timers   struct{ *calls }
)

func (h hotList) Pushed(_ uuid.UUID, q, p string, n int) { h.note("hot pushed %s/%s %d", q, p, n) }
func (h hotList) Mark(_ uuid.UUID, q, p string, n int)   { h.note("hot mark %s/%s %d", q, p, n) }
func (h hotList) MarkGroup(_ uuid.UUID, q, p, g string)  { h.note("hot mark %s/%s of %s", q, p, g) }
func (h hotList) Taken(t hotlist.Taking) {
	h.note("hot taken %s/%s of %s", t.Queue, t.Partition, t.Group)
}
func (h hotList) DropGroup(_ uuid.UUID, q, g string) { h.note("hot drop %s of %s", g, q) }
func (h hotList) Repair(_ context.Context, _ uuid.UUID, q, g string) error {
	h.note("hot repair %s of %s", g, q)
	return errRepair
}
func (h hotList) Promote(id uuid.UUID, g string)           { h.note("hot promote %d of %s", id[15], g) }
func (h hotList) Changed(_ uuid.UUID, q string)            { h.note("hot changed %s", q) }
func (h hotList) DropQueue(_ uuid.UUID, q string)          { h.note("hot drop %s", q) }
func (w waker) Wake(_ uuid.UUID, q, p string)              { w.note("wake %s/%s", q, p) }
func (w waker) FreePinned(_ uuid.UUID, q, p, g string)     { w.note("free %s/%s/%s", q, p, g) }
func (p peers) Pushed(_ uuid.UUID, q, l string, n int)     { p.note("peers pushed %s/%s %d", q, l, n) }
func (p peers) CursorMoved(_ uuid.UUID, q, l, g string)    { p.note("peers moved %s/%s of %s", q, l, g) }
func (p peers) QueueChanged(_ uuid.UUID, q string, d bool) { p.note("peers changed %s %t", q, d) }
func (c cache) QueueChanged(_ uuid.UUID, q string, d bool) { c.note("cache changed %s %t", q, d) }
func (p peers) Taken(t hotlist.Taking) {
	p.note("peers taken %s/%s of %s", t.Queue, t.Partition, t.Group)
}
func (p peers) TimerDue(at time.Time) { p.note("peers timer %s", at.UTC().Format(time.RFC3339)) }
func (p peers) FlagsChanged()         { p.note("peers flags") }
func (t timers) Due(in time.Duration) { t.note("timers %s", in) }
func (s switches) Kick()              { s.note("switches") }
func (p peers) Rank(lane uint64) int  { return int(lane) }
func (p peers) Released(r announce.Release) {
	p.note("peers released %d %s/%s of %s %t", r.PartitionID[15], r.Queue, r.Partition, r.Group, r.Full)
}

type announcement struct {
	name string
	run  func(a *announce.Announcer)
	want []string
}

func check(t *testing.T, build func(c *calls) *announce.Announcer, cases []announcement) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &calls{}
			tc.run(build(c))
			require.Equal(t, tc.want, c.take())
		})
	}
}

func full(c *calls) *announce.Announcer {
	return &announce.Announcer{
		Local: announce.Local{HotList: hotList{c}, Waker: waker{c}, Caches: []announce.QueueCache{cache{c}}, Switches: []announce.Switches{switches{c}}},
		Peers: peers{c}, Timers: timers{c},
	}
}

func TestEverybodyIsTold(t *testing.T) {
	t.Parallel()
	check(t, full, []announcement{
		{
			"push marks quietly", func(a *announce.Announcer) { a.Pushed(tenant, "q", "p", 3) },
			[]string{"hot pushed q/p 3", "peers pushed q/p 3"},
		},
		{
			"other writes mark at once", func(a *announce.Announcer) { a.Wake(tenant, "q", "p") },
			[]string{"hot mark q/p 1", "peers pushed q/p 1"},
		},
		{
			"the lane need not be known", func(a *announce.Announcer) { a.Wake(tenant, "q", "") },
			[]string{"hot mark q/ 1", "peers pushed q/ 1"},
		},
		{
			"without a queue only discovery is woken", func(a *announce.Announcer) { a.Wake(tenant, "", "p") },
			[]string{"wake /p"},
		},
		{
			"a full release promotes", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "q", "p", true) },
			[]string{"hot promote 2 of g", "free q/p/g", "peers released 2 q/p of g true"},
		},
		{
			"what a release left is marked first", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "q", "p", false) },
			[]string{"hot mark q/p of g", "hot promote 2 of g", "free q/p/g", "peers released 2 q/p of g false"},
		},
		{
			"a full release needs no name", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "", "", true) },
			[]string{"hot promote 2 of g", "peers released 2 / of g true"},
		},
		{
			"without a name what is left must not be cleared", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "", "", false) },
			[]string{"peers released 2 / of g false"},
		},
		{
			"a cursor concerns one group", func(a *announce.Announcer) { a.CursorMoved(tenant, "q", "p", "g") },
			[]string{"hot mark q/p of g", "wake q/p", "peers moved q/p of g"},
		},
		{
			"all cursors concern one group", func(a *announce.Announcer) { _ = a.CursorsMoved(context.Background(), tenant, "q", "g") },
			[]string{"peers moved q/ of g", "hot repair g of q", "wake q/"},
		},
		{
			"a deleted group is forgotten", func(a *announce.Announcer) { a.GroupDeleted(tenant, "q", "g") },
			[]string{"hot drop g of q", "wake q/", "peers moved q/ of g"},
		},
		{
			"caches are clear before anybody looks", func(a *announce.Announcer) { a.QueueChanged(tenant, "q", false) },
			[]string{"cache changed q false", "hot changed q", "wake q/", "peers changed q false"},
		},
		{
			"timers are a matter of the sweepers", func(a *announce.Announcer) { a.TimerDue(due, time.Hour) },
			[]string{"timers 1h0m0s", "peers timer 2026-11-30T12:00:00Z"},
		},
		{
			"switches are read by everybody", func(a *announce.Announcer) { a.FlagsChanged() },
			[]string{"switches", "peers flags"},
		},
		{
			"a deleted queue is forgotten", func(a *announce.Announcer) { a.QueueChanged(tenant, "q", true) },
			[]string{"cache changed q true", "hot drop q", "wake q/", "peers changed q true"},
		},
	})
}

func TestTheHubAloneIsEnough(t *testing.T) {
	t.Parallel()
	alone := func(c *calls) *announce.Announcer { return &announce.Announcer{Local: announce.Local{Waker: waker{c}}} }
	check(t, alone, []announcement{
		{"pushed", func(a *announce.Announcer) { a.Pushed(tenant, "q", "p", 3) }, []string{"wake q/p"}},
		{"wake", func(a *announce.Announcer) { a.Wake(tenant, "q", "p") }, []string{"wake q/p"}},
		{"released", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "q", "p", false) }, []string{"wake q/p"}},
		{"released, unknown", func(a *announce.Announcer) { a.Released(tenant, lane, "g", "", "", true) }, nil},
		{"cursor moved", func(a *announce.Announcer) { a.CursorMoved(tenant, "q", "", "g") }, []string{"wake q/"}},
		{"cursors moved", func(a *announce.Announcer) { _ = a.CursorsMoved(context.Background(), tenant, "q", "g") }, []string{"wake q/"}},
		{"group deleted", func(a *announce.Announcer) { a.GroupDeleted(tenant, "q", "g") }, []string{"wake q/"}},
		{"queue changed", func(a *announce.Announcer) { a.QueueChanged(tenant, "q", true) }, []string{"wake q/"}},
		{"timer due", func(a *announce.Announcer) { a.TimerDue(due, 0) }, nil},
		{"flags changed", func(a *announce.Announcer) { a.FlagsChanged() }, nil},
	})
}

func TestWhoeverMovedCursorsHearsOfAFailedLook(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, full(&calls{}).CursorsMoved(t.Context(), tenant, "q", "g"), errRepair)
	alone := &announce.Announcer{Local: announce.Local{Waker: waker{&calls{}}}}
	require.NoError(t, alone.CursorsMoved(t.Context(), tenant, "q", "g"))
}

func TestReleasedLanesGetTheirNames(t *testing.T) {
	t.Parallel()
	memo, err := lanes.NewMemo(8)
	require.NoError(t, err)
	memo.Put(lane, lanes.Lane{Tenant: tenant, Queue: "q", Partition: "p"})
	c := &calls{}
	a := full(c)
	a.Lanes = memo
	a.Released(tenant, lane, "g", "", "", false)
	require.Equal(t, []string{"hot mark q/p of g", "hot promote 2 of g", "free q/p/g", "peers released 2 q/p of g false"}, c.take())
	a.Released(uuid.UUID{9}, lane, "g", "", "", false)
	require.Equal(t, []string{"peers released 2 / of g false"}, c.take(), "an id in the hands of another tenant names nothing")
}

// An ack that reached another broker than the pop frees the lane here at once.
func TestRule14ReleaseHintFreesTheLane(t *testing.T) {
	t.Parallel()
	c := &calls{}
	a := full(c)
	a.Local.Released(announce.Release{Tenant: tenant, PartitionID: lane, Group: "g", Queue: "q", Partition: "p", Full: true})
	require.Equal(t, []string{"hot promote 2 of g", "free q/p/g"}, c.take())
}

func TestWhatAPeerToldIsNotPassedOn(t *testing.T) {
	t.Parallel()
	c := &calls{}
	a := full(c)
	local := &a.Local
	local.Marked(tenant, "q", "p", 1)
	local.Released(announce.Release{Tenant: tenant, PartitionID: lane, Group: "g", Full: true})
	local.CursorMoved(tenant, "q", "p", "g")
	local.QueueChanged(tenant, "q", false)
	local.FlagsChanged()
	for _, call := range c.take() {
		require.NotContains(t, call, "peers")
	}
}

func BenchmarkPushed(b *testing.B) {
	b.ReportAllocs()
	a := &announce.Announcer{Local: announce.Local{Waker: silent{}}}
	for b.Loop() {
		a.Pushed(tenant, "q", "p", 1)
	}
}

type silent struct{}

func (silent) Wake(uuid.UUID, string, string) {}

func (silent) FreePinned(uuid.UUID, string, string, string) {}

func TestClaimsAreToldToThePeersAlone(t *testing.T) {
	t.Parallel()
	c := &calls{}
	taking := hotlist.Taking{Queue: "q", Partition: "p", Group: "g"}
	a := &announce.Announcer{Local: announce.Local{HotList: hotList{c}, Waker: waker{c}}, Peers: peers{c}}
	a.Taken(taking)
	require.Equal(t, []string{"peers taken q/p of g"}, c.take())
	require.Equal(t, 2, a.Rank(2))
	a.Local.Taken(taking)
	require.Equal(t, []string{"hot taken q/p of g"}, c.take())
	a.Peers, a.HotList = nil, nil
	a.Taken(taking)
	a.Local.Taken(taking)
	require.Zero(t, a.Rank(2))
	require.Empty(t, c.take())
}
