package hotlist

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestRetake(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		queue store.QueueSettings
		do    func(b *bench)
		batch int
		want  bool
	}{
		"a lease that left something":            {plain, func(b *bench) { b.push(1); b.taken(8) }, 100, true},
		"one that left nothing":                  {plain, func(b *bench) { b.push(1); b.taken(9) }, 1, false},
		"with a new message":                     {plain, func(b *bench) { b.push(1); b.taken(9); b.push(1) }, 1, true},
		"with one too few for the batch":         {plain, func(b *bench) { b.push(1); b.taken(9); b.push(9) }, 10, false},
		"with as many":                           {plain, func(b *bench) { b.push(1); b.taken(9); b.push(10) }, 10, true},
		"a lane that is ready":                   {plain, func(b *bench) { b.push(1); b.taken(8); b.acked() }, 1, false},
		"a lane that is idle":                    {plain, func(b *bench) { b.push(1); b.taken(9); b.acked() }, 1, false},
		"a lane in hand":                         {plain, func(b *bench) { b.push(1); b.taken(8); b.back(); b.take(1) }, 1, false},
		"the lease of somebody else":             {plain, func(b *bench) { b.push(1); b.is(Leased) }, 1, true},
		"a queue with a window decides for SQL":  {windowed, func(b *bench) { b.push(100); b.taken(8) }, 1, false},
		"and so does one with a delay":           {delayed, func(b *bench) { b.rows(); b.taken(8) }, 1, false},
		"after the pause the lane is there anew": {plain, func(b *bench) { b.push(1); b.taken(8); b.pass(LeaseParkMax + 2*WheelTick) }, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, tc.queue)
			tc.do(b)
			was := b.slotOf("p")
			c := b.Retake(idOf("p"), "g", tc.batch)
			require.Equal(t, tc.want, c != nil)
			if c == nil {
				require.Equal(t, was, b.slotOf("p"))
				return
			}
			require.Equal(t, []string{"p"}, c.Partitions())
			require.False(t, c.SkipWindow())
			require.Equal(t, inflight, b.stateOf("p"))
			require.Nil(t, b.Retake(idOf("p"), "g", 1), "once")
			c.Abandon()
			b.check()
		})
	}
}

func TestRetakenLanesGoWhereTheirVerdictsWantThem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settle func(b *bench, c *Checkout)
		want   state
	}{
		"leased anew, with something left": {func(b *bench, c *Checkout) { c.Return([]Verdict{leasedTo(b, 8)}) }, wheel},
		"leased anew, until its own end":   {func(b *bench, c *Checkout) { c.Return([]Verdict{leasedTo(b, 9)}); b.acked() }, idle},
		"nothing was claimed":              {func(_ *bench, c *Checkout) { c.Return(nil) }, ready},
		"not tried, the lease still runs":  {func(b *bench, c *Checkout) { c.Return([]Verdict{verdictOf(b, Leased)}) }, wheel},
		"not tried, and then it ends":      {func(b *bench, c *Checkout) { c.Return([]Verdict{verdictOf(b, Leased)}); b.acked() }, ready},
		"not tried, it has ended":          {func(b *bench, c *Checkout) { b.acked(); c.Return([]Verdict{verdictOf(b, Leased)}) }, ready},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, plain)
			b.push(1)
			b.taken(8)
			c := b.Retake(idOf("p"), "g", 1)
			require.NotNil(t, c)
			tc.settle(b, c)
			require.Equal(t, tc.want, b.stateOf("p"))
			b.check()
		})
	}
}

func TestRetakeOfTheUnknown(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.push(1)
	b.taken(8)
	require.Nil(t, b.Retake(uuid.New(), "g", 1))
	require.Nil(t, b.Retake(idOf("p"), "h", 1))
	b.DropQueue(tenant, "q")
	require.Nil(t, b.Retake(idOf("p"), "g", 1))
	var none *List
	require.Nil(t, none.Retake(idOf("p"), "g", 1))
}

func TestAFreedLaneWakesAtOnceAndOneGroup(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.push(1)
	b.taken(8)
	b.waker.take()
	b.acked()
	require.Equal(t, []string{"freed"}, b.waker.take())
	for range 3 { // again and again, without a tick between
		b.taken(8)
		b.acked()
		require.Equal(t, []string{"freed"}, b.waker.take())
	}
	b.taken(9)
	b.acked()
	require.Empty(t, b.waker.take(), "nothing is there")
	b.advance(time.Second)
}
