package hotlist

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
)

var tenant = uuid.UUID{15: 1}

// bench is a List over a clock and a store that the test drives.
type bench struct {
	*List
	t     testing.TB
	store *fakeStore
	waker *fakeWaker

	mu    sync.Mutex
	clock time.Time
}

func setup(t testing.TB, cfg Config) *bench {
	b := &bench{t: t, store: &fakeStore{settings: map[string]store.QueueSettings{}, lanes: map[string][]store.PartitionRef{}}, waker: &fakeWaker{}}
	b.clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := New(cfg, Deps{
		Store: b.store, Waker: b.waker, Meter: noop.Meter{}, Logger: logtest.New(t), Now: b.now,
	})
	require.NoError(t, err)
	b.List = l
	return b
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

func (b *bench) advance(d time.Duration) {
	b.mu.Lock()
	b.clock = b.clock.Add(d)
	b.mu.Unlock()
}

// pass lets time go by, with a beat at its end if one is due.
func (b *bench) pass(d time.Duration) {
	b.advance(d)
	if p := b.planned.Load(); p != 0 && p <= b.List.now() {
		b.beat()
	}
}

// reseed makes the ring of group g on queue q.
func (b *bench) reseed() {
	b.t.Helper()
	require.NoError(b.t, b.Reseed(b.t.Context(), tenant, "q", "g"))
}

func (b *bench) queueOf() *queue { return b.queue(tenant, "q") }

func (b *bench) ringOf() *ring { return b.queueOf().find("g") }

// slotOf is a copy of what the ring knows of a lane.
func (b *bench) slotOf(partition string) slot {
	b.t.Helper()
	q := b.queueOf()
	q.mu.RLock()
	lane, ok := q.table.lookup(partition)
	q.mu.RUnlock()
	if !ok {
		return slot{}
	}
	s, i := b.ringOf().sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.slot(i)
}

func (b *bench) stateOf(partition string) state { return b.slotOf(partition).state }

// due is how long a lane on the wheel has to wait.
func (b *bench) due(partition string) time.Duration {
	b.t.Helper()
	x := b.slotOf(partition)
	require.Equal(b.t, wheel, x.state)
	return time.Duration(x.at - b.List.now())
}

// take checks out k lanes.
func (b *bench) take(k int) *Checkout {
	b.t.Helper()
	c, state := b.Checkout(tenant, "q", "g", k, 1<<20)
	require.Equal(b.t, Served, state)
	return c
}

// verdict returns one lane with a verdict.
func (b *bench) verdict(v Verdict) {
	b.t.Helper()
	c := b.take(1)
	require.Equal(b.t, []string{v.Partition}, c.Partitions())
	c.Return([]Verdict{v})
}

// check verifies that lists, heaps and counters agree with the slots.
func (b *bench) check() {
	b.t.Helper()
	for _, r := range b.rings() {
		listed := 0
		for i := range r.subs {
			s := &r.subs[i]
			s.mu.Lock()
			var count [states]int
			for j := range s.slots.n {
				x := s.slots.at(j)
				count[x.state]++
				if x.state == wheel {
					require.True(b.t, slices.Contains(s.heap, visit{x.at, j}), "a parked slot is in the heap")
					require.True(b.t, r.armed.Load())
				}
			}
			n, prev := 0, int32(none)
			for j := s.head; j != none; j = s.slots.at(j).next {
				require.Equal(b.t, ready, s.slots.at(j).state)
				require.Equal(b.t, prev, s.slots.at(j).prev)
				prev = j
				n++
			}
			require.Equal(b.t, s.tail, prev)
			require.Equal(b.t, count[ready], n)
			for st := ready; st < states; st++ {
				require.Equal(b.t, count[st], s.count[st])
			}
			listed += n
			s.mu.Unlock()
		}
		require.Equal(b.t, int64(listed), r.ready.Load())
	}
}

// fakeWaker notes the wakes.
type fakeWaker struct {
	mu    sync.Mutex
	lanes []string
	heard chan struct{} // when set, told of every wake
}

func (w *fakeWaker) Free(tenant uuid.UUID, queue, _ string) { w.Wake(tenant, queue, "freed") }

func (w *fakeWaker) Wake(_ uuid.UUID, _, partition string) {
	w.mu.Lock()
	w.lanes = append(w.lanes, partition)
	w.mu.Unlock()
	if w.heard != nil {
		select {
		case w.heard <- struct{}{}:
		default:
		}
	}
}

// fakeStore lists prepared lanes.
type fakeStore struct {
	mu       sync.Mutex
	settings map[string]store.QueueSettings
	lanes    map[string][]store.PartitionRef // by queue and group
	recent   map[string][]store.PartitionRef
	err      error
	pages    int
	watches  []time.Duration
	reads    int // of settings
	onPage   func(after uuid.UUID)
}

func (f *fakeStore) QueueSettings(_ context.Context, _ uuid.UUID, queue string) (store.QueueSettings, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	s, ok := f.settings[queue]
	return s, ok, f.err
}

func (f *fakeStore) HotlistReseed(ctx context.Context, _ uuid.UUID, queue, group string, after uuid.UUID, limit int) ([]store.PartitionRef, error) {
	f.mu.Lock()
	onPage := f.onPage
	f.mu.Unlock()
	if onPage != nil {
		onPage(after)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages++
	if f.err != nil || ctx.Err() != nil {
		return nil, cmpOr(f.err, ctx.Err())
	}
	all := f.lanes[queue+"/"+group]
	i, _ := slices.BinarySearchFunc(all, after, func(r store.PartitionRef, id uuid.UUID) int { return bytes.Compare(r.ID[:], id[:]) })
	if i < len(all) && all[i].ID == after {
		i++
	}
	return slices.Clone(all[i:min(i+limit, len(all))]), nil
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (f *fakeStore) HotlistRecent(_ context.Context, rings []store.HotlistRing, within time.Duration, limit int) ([]store.HotlistRow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches = append(f.watches, within)
	var rows []store.HotlistRow
	for i, r := range rings {
		refs := f.recent[r.Queue+"/"+r.Group]
		for _, ref := range refs[:min(limit, len(refs))] {
			rows = append(rows, store.HotlistRow{Ring: i, PartitionRef: ref})
		}
	}
	return rows, f.err
}

// list sets the pending lanes of queue q and group g.
func (f *fakeStore) list(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	refs := make([]store.PartitionRef, len(names))
	for i, name := range names {
		refs[i] = store.PartitionRef{ID: idOf(name), Name: name}
	}
	slices.SortFunc(refs, func(a, b store.PartitionRef) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	f.lanes["q/g"] = refs
}

func idOf(name string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)) }

func (w *fakeWaker) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lanes := w.lanes
	w.lanes = nil
	return lanes
}
