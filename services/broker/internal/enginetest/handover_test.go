package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// relay is consumers of one group that take messages one by one, and what they got.
type relay struct {
	*engine
	refuse func(n int) bool // nack the n-th delivery

	mu   sync.Mutex
	got  map[string][]string // by lane, what was acknowledged as completed
	left int
	n    int
	done context.CancelFunc
}

// run consumes until everything has been acknowledged.
func (r *relay) run(ctx context.Context, consumers int) {
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for ctx.Err() == nil {
				ms, err := r.try(ctx, "q", waiting(5*time.Second), batch(1), group("g"))
				if err != nil && !errors.Is(err, context.Canceled) {
					r.t.Error(err)
					return
				}
				for _, m := range ms {
					r.settle(m)
				}
			}
		})
	}
	wg.Wait()
}

// settle notes a message and then acknowledges it: the next one of its lane cannot be
// delivered before.
func (r *relay) settle(m message) {
	r.mu.Lock()
	r.n++
	status := wire.AckCompleted
	if r.refuse != nil && r.refuse(r.n) {
		status = wire.AckFailed
	}
	if status == wire.AckCompleted {
		r.got[m.Partition] = append(r.got[m.Partition], m.TransactionID)
	}
	r.mu.Unlock()
	for _, a := range r.acked(ackOf(m, "g", status)) {
		if !a.Success {
			r.t.Error(a.Error)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if status == wire.AckCompleted {
		r.left--
	}
	if r.left == 0 {
		r.done()
	}
}

// TestMessagesTakenOneByOneGoFromHandToHand lets more consumers than lanes take single
// messages, with and without what was pushed in memory, and with failures in between.
func TestMessagesTakenOneByOneGoFromHandToHand(t *testing.T) {
	t.Parallel()
	const lanes, rounds = 3, 40
	for name, c := range map[string]struct {
		shape
		least  int64 // handovers
		refuse func(n int) bool
	}{
		"accelerated":         {shape{}, lanes * rounds / 4, nil},
		"with failures":       {shape{}, lanes * rounds / 8, func(n int) bool { return n%7 == 0 }},
		"no segment cache":    {shape{pops: pop.Config{SegmentCache: -1}}, 0, nil},
		"no accelerators":     {shape{plain: true}, 0, nil},
		"no hot list, either": {shape{plain: true, cold: true}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := assemble(t, pgtest.New(t), c.shape)
			e.configure("q", `{"retryLimit":100}`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := &relay{engine: e, refuse: c.refuse, got: make(map[string][]string), left: lanes * rounds, done: cancel}
			want := make(map[string][]string)
			var pushing sync.WaitGroup
			pushing.Go(func() {
				for n := 0; n < rounds; {
					some := min(1+rand.IntN(4), rounds-n)
					var all []wire.PushItem
					for l := range lanes {
						lane := fmt.Sprint("lane", l)
						for i := range some {
							all = append(all, item("q", lane, fmt.Sprint(n+i)))
							want[lane] = append(want[lane], fmt.Sprint(n+i))
						}
					}
					e.queued(all...)
					n += some
				}
			})
			r.run(ctx, 3*lanes)
			pushing.Wait()
			require.Equal(t, want, r.got)
			require.GreaterOrEqual(t, e.handed.Load(), c.least)
			if c.least == 0 {
				require.Zero(t, e.handed.Load())
			}
			t.Logf("%d of %d messages were handed over", e.handed.Load(), lanes*rounds)
		})
	}
}
