package soak

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// reader is a book of one lane and a clock that a test moves.
type reader struct {
	*book
	t   *testing.T
	now time.Time
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, now: time.Now()}
	r.book = newBook("g", &Config{Lanes: 1, Lease: 10 * time.Second}, newTally())
	r.store(0, 100)
	return r
}

// get delivers, a second after it was asked for.
func (r *reader) get(numbers ...int) *delivery {
	r.now = r.now.Add(2 * time.Second)
	return r.deliver(0, numbers, r.now.Add(-time.Second), r.now)
}

// ack acknowledges by the clock of the test.
func (r *reader) ack(d *delivery) {
	r.acknowledge(d)
	s := &r.lanes[0]
	s.commits[len(s.commits)-1].at = r.now
}

func TestBookKnowsWhatMayBeDelivered(t *testing.T) {
	t.Parallel()
	type counts struct{ disordered, duplicates, redelivered, delivered int64 }
	for name, tc := range map[string]struct {
		story func(r *reader)
		want  counts
	}{
		"one after the other": {func(r *reader) { r.ack(r.get(1, 2)); r.ack(r.get(3)) }, counts{delivered: 3}},
		"a gap":               {func(r *reader) { r.get(1); r.get(3) }, counts{disordered: 1, delivered: 3}},
		"a gap at the start":  {func(r *reader) { r.get(2) }, counts{disordered: 1, delivered: 2}},
		"a gap within":        {func(r *reader) { r.get(1, 3) }, counts{disordered: 1, delivered: 3}},
		"stored twice":        {func(r *reader) { r.get(1, 2, 2, 3) }, counts{disordered: 1, delivered: 3}},
		"backwards":           {func(r *reader) { r.get(2, 1) }, counts{disordered: 2, delivered: 2}},
		"again after the lease": {func(r *reader) {
			r.get(1, 2)
			r.now = r.now.Add(7 * time.Second)
			r.get(1, 2, 3)
		}, counts{redelivered: 2, delivered: 3}},
		"again a moment before the lease ends": {func(r *reader) {
			r.get(1, 2)
			r.now = r.now.Add(7*time.Second - time.Millisecond)
			r.get(1, 2)
		}, counts{duplicates: 2, delivered: 2}},
		"again where an answer was lost": {func(r *reader) { r.lose(r.get(1, 2)); r.get(1, 2) }, counts{redelivered: 2, delivered: 2}},
		"again although acknowledged": {func(r *reader) {
			r.ack(r.get(1, 2))
			r.now = r.now.Add(time.Minute)
			r.get(2, 3)
		}, counts{duplicates: 1, delivered: 3}},
		"acknowledged after the pop was sent": {func(r *reader) {
			d := r.get(1, 2)
			asked := r.now
			r.now = r.now.Add(time.Minute)
			r.ack(d)
			r.deliver(0, []int{1, 2}, asked, r.now)
		}, counts{redelivered: 2, delivered: 2}},
		"acknowledged in part before the pop was sent": {func(r *reader) {
			r.ack(r.get(1, 2))
			d := r.get(3, 4)
			asked := r.now
			r.now = r.now.Add(time.Minute)
			r.ack(d)
			r.deliver(0, []int{2, 3, 4}, asked, r.now)
		}, counts{duplicates: 3, delivered: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReader(t)
			tc.story(r)
			require.Equal(t, tc.want, counts{
				r.tally.outOfOrder.Load(), r.tally.duplicates.Load(), r.tally.redelivered.Load(), r.tally.delivered.Load(),
			}, r.tally.problems)
		})
	}
}

func TestBookEndsWithWhatWasStored(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	r.store(0, 3)
	r.ack(r.get(1))
	require.Equal(t, 2, r.rest())
	r.close(func(int) int { return 3 })
	require.EqualValues(t, 2, r.tally.lost.Load())

	r.ack(r.get(2, 3))
	require.Zero(t, r.rest())
	r.get(4) // sent, and not answered
	r.close(func(int) int { return 4 })
	require.EqualValues(t, 2, r.tally.lost.Load())
	require.Zero(t, r.tally.outOfOrder.Load())
	r.close(func(int) int { return 3 })
	require.EqualValues(t, 1, r.tally.outOfOrder.Load(), "it was invented")
}

func TestBookForgetsCommitsThatNoPopNeeds(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	s := &r.lanes[0]
	for n := 1; n <= 5; n++ {
		r.acknowledge(r.get(n))
		s.commits[len(s.commits)-1].at = time.Now().Add(-memory - time.Second)
	}
	r.acknowledge(r.get(6))
	require.Len(t, s.commits, 2)
	require.Equal(t, 5, s.committed(time.Now().Add(-memory)))
	require.Equal(t, 6, s.done())
}
