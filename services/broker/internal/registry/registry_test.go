package registry_test

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/services/broker/internal/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	minute = time.Minute
	group  = "g"
	worker = "0199aa10-2222-7abc-8def-000000000001"
)

var pid = uuid.MustParse("0199aa10-1111-7abc-8def-000000000001")

// clock is moved by the test.
type clock struct{ now time.Time }

func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func setup(t testing.TB, bytes int64) (*registry.Registry, *clock) {
	t.Helper()
	c := &clock{time.Unix(1_700_000_000, 0)}
	return registry.New(registry.Config{Bytes: bytes, Now: func() time.Time { return c.now }}), c
}

// ids are hashes of numbered transactions.
func ids(ns ...uint64) [][16]byte {
	out := make([][16]byte, len(ns))
	for i, n := range ns {
		binary.BigEndian.PutUint64(out[i][8:], n)
	}
	return out
}

func span(from, to uint64) (ns []uint64) {
	for n := from; n < to; n++ {
		ns = append(ns, n)
	}
	return ns
}

func flat(hashes [][16]byte) (out []byte) {
	for i := range hashes {
		out = append(out, hashes[i][:]...)
	}
	return out
}

func TestAnAckOfTheWholeBatchMatchesOnce(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	r.Delivered(pid, group, worker, 41, flat(ids(1, 2, 3)), minute)
	end, ok := r.Match(pid, group, worker, ids(3, 1, 2))
	require.True(t, ok, "in any order")
	require.EqualValues(t, 41, end)
	_, ok = r.Match(pid, group, worker, ids(1, 2, 3))
	require.False(t, ok)
}

func TestWhatIsNotTheBatchDoesNotMatch(t *testing.T) {
	t.Parallel()
	for name, acked := range map[string][][16]byte{
		"a part":                  ids(1, 2),
		"more":                    ids(1, 2, 3, 4),
		"another id":              ids(1, 2, 4),
		"a repeated id":           ids(1, 2, 3, 3),
		"a repeat for an id":      ids(1, 2, 2),
		"nothing":                 nil,
		"ids of which one is nil": append(ids(1, 2), [16]byte{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := setup(t, 0)
			r.Delivered(pid, group, worker, 41, flat(ids(1, 2, 3)), minute)
			_, ok := r.Match(pid, group, worker, acked)
			require.False(t, ok)
			_, ok = r.Match(pid, group, worker, ids(1, 2, 3))
			require.True(t, ok, "a failed match forgets nothing")
		})
	}
}

func TestABatchBelongsToItsLaneGroupAndLease(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	r.Delivered(pid, group, worker, 41, flat(ids(1)), minute)
	for _, c := range []struct {
		partition     uuid.UUID
		group, worker string
	}{{uuid.New(), group, worker}, {pid, "h", worker}, {pid, group, "w"}, {pid, group, ""}} {
		_, ok := r.Match(c.partition, c.group, c.worker, ids(1))
		require.False(t, ok)
	}
	r.Delivered(pid, group, "w", 41, flat(ids(1)), minute)
	_, ok := r.Match(pid, group, worker, ids(1))
	require.False(t, ok, "the lane was delivered again")
	_, ok = r.Match(pid, group, "w", ids(1))
	require.True(t, ok)
	r.Delivered(pid, group, "w", 41, flat(ids(1)), minute)
	r.Drop(pid, group)
	_, ok = r.Match(pid, group, "w", ids(1))
	require.False(t, ok)
}

func TestRule16ABatchWithARepeatedIDIsNotRemembered(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	r.Delivered(pid, group, "before", 9, flat(ids(1, 2)), minute)
	r.Delivered(pid, group, worker, 41, flat(ids(1, 2, 1)), minute)
	_, ok := r.Match(pid, group, worker, ids(1, 2, 1))
	require.False(t, ok)
	_, ok = r.Match(pid, group, "before", ids(1, 2))
	require.False(t, ok, "nor is the one before it")
	lanes, ok := r.Lanes(worker)
	require.True(t, ok)
	require.Equal(t, []registry.Lane{{Partition: pid, Group: group}}, lanes)
}

func TestEntriesOutliveTheirLeaseBySlack(t *testing.T) {
	t.Parallel()
	r, c := setup(t, 0)
	deliver := func() { r.Delivered(pid, group, worker, 41, flat(ids(1)), minute) }
	deliver()
	c.advance(minute + registry.Slack - 1)
	_, ok := r.Lanes(worker)
	require.True(t, ok)
	_, ok = r.Match(pid, group, worker, ids(1))
	require.True(t, ok)
	deliver()
	c.advance(minute + registry.Slack)
	_, ok = r.Match(pid, group, worker, ids(1))
	require.False(t, ok)
	_, ok = r.Lanes(worker)
	require.False(t, ok)
}

func TestTheOldestGoesWhenTheMemoryIsUsedUp(t *testing.T) {
	t.Parallel()
	const bytes = 1 << 20
	r, _ := setup(t, bytes)
	n := 2 * bytes / 256
	for i := range n {
		r.Delivered(lane(i), group, strconv.Itoa(i), 1, flat(ids(1)), minute)
	}
	kept := 0
	for i := range n {
		if _, ok := r.Match(lane(i), group, strconv.Itoa(i), ids(1)); ok {
			kept++
		}
	}
	require.Greater(t, kept, n/10)
	require.Less(t, kept, n/2)
	_, ok := r.Lanes("0")
	require.False(t, ok)
	_, ok = r.Lanes(strconv.Itoa(n - 1))
	require.True(t, ok)
}

func lane(i int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], uint64(i))
	return id
}

// The test runs alone, so that the heap is its own.
func TestEntriesCostAtMostWhatTheyAreCountedFor(t *testing.T) { //nolint:paralleltest // see above
	r, _ := setup(t, 1<<30)
	const n, counted = 30_000, 280 + 240 + 2*36 + 24
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		r.Delivered(lane(i), group, uuid.NewString(), 1, flat(ids(1)), minute)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%d bytes for a batch and its lease", used)
	require.Less(t, used, int64(counted))
	_, ok := r.Match(lane(0), group, "", ids(1))
	require.False(t, ok)
}

func TestTheSweepFreesWhatHasExpired(t *testing.T) {
	t.Parallel()
	r, c := setup(t, 1<<20)
	// Long leases first: they are the next to be evicted.
	for i := range 300 {
		r.Delivered(lane(i), group, strconv.Itoa(i), 1, flat(ids(1)), time.Hour)
	}
	for i := 300; i < 900; i++ {
		r.Delivered(lane(i), group, strconv.Itoa(i), 1, flat(ids(1)), time.Second)
	}
	c.advance(minute)
	for i := 900; i < 1500; i++ {
		r.Delivered(lane(i), group, strconv.Itoa(i), 1, flat(ids(1)), time.Second)
	}
	_, ok := r.Match(lane(0), group, "0", ids(1))
	require.True(t, ok)
}

func TestTheLanesOfALease(t *testing.T) {
	t.Parallel()
	r, c := setup(t, 0)
	other := registry.Lane{Partition: uuid.New(), Group: group}
	mine := registry.Lane{Partition: pid, Group: group}
	r.Delivered(pid, group, worker, 1, flat(ids(1)), minute)
	r.Delivered(other.Partition, group, worker, 1, flat(ids(1)), minute)
	r.Drop(pid, group)
	lanes, ok := r.Lanes(worker)
	require.True(t, ok)
	require.Equal(t, []registry.Lane{mine, other}, lanes)

	r.Released(pid, group, worker)
	r.Released(pid, group, worker)
	lanes, _ = r.Lanes(worker)
	require.Equal(t, []registry.Lane{other}, lanes)
	r.Released(other.Partition, group, worker)
	_, ok = r.Lanes(worker)
	require.False(t, ok)
	r.Released(pid, group, worker)

	r.Keep(worker, []registry.Lane{mine}, time.Second)
	r.Keep(worker, []registry.Lane{mine}, minute)
	c.advance(minute)
	lanes, ok = r.Lanes(worker)
	require.True(t, ok)
	require.Equal(t, []registry.Lane{mine}, lanes)
}

func TestABatchOfWhichNothingCameIsPutBack(t *testing.T) {
	t.Parallel()
	r, c := setup(t, 0)
	r.Delivered(pid, group, worker, 41, flat(ids(1, 2)), minute)
	taken, ok := r.Take(pid, group, worker, ids(1, 2))
	require.True(t, ok)
	require.EqualValues(t, 41, taken.End)
	r.PutBack(taken)
	end, ok := r.Match(pid, group, worker, ids(2, 1))
	require.True(t, ok)
	require.EqualValues(t, 41, end)

	r.Delivered(pid, group, "w", 50, flat(ids(3)), minute)
	r.PutBack(taken)
	_, ok = r.Match(pid, group, "w", ids(3))
	require.True(t, ok, "not over a newer one")
	r.PutBack(taken)
	c.advance(minute + registry.Slack)
	_, ok = r.Match(pid, group, worker, ids(1, 2))
	require.False(t, ok, "it does not live longer")
}

func TestALeaseForgetsItsOwnBatch(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	for forgetting, kept := range map[string]bool{"w": true, worker: false, "": false} {
		r.Delivered(pid, group, worker, 1, flat(ids(1)), minute)
		r.Forget(pid, group, forgetting)
		_, ok := r.Match(pid, group, worker, ids(1))
		require.Equal(t, kept, ok)
	}
}

func TestLeasesAreRememberedWithoutBatches(t *testing.T) {
	t.Parallel()
	r := registry.New(registry.Config{LeasesOnly: true})
	r.Delivered(pid, group, worker, 1, flat(ids(1)), minute)
	_, ok := r.Match(pid, group, worker, ids(1))
	require.False(t, ok)
	_, ok = r.Lanes(worker)
	require.True(t, ok)
}

func TestNoRegistryRemembersNothing(t *testing.T) {
	t.Parallel()
	var r *registry.Registry
	r.Delivered(pid, group, worker, 1, flat(ids(1)), minute)
	r.Keep(worker, []registry.Lane{{}}, minute)
	r.Drop(pid, group)
	r.Released(pid, group, worker)
	r.Forget(pid, group, worker)
	r.PutBack(registry.Taken{})
	_, ok := r.Match(pid, group, worker, ids(1))
	require.False(t, ok)
	_, ok = r.Lanes(worker)
	require.False(t, ok)
}

func TestOfTwoAcksAtOnceOneMatches(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	for range 200 {
		r.Delivered(pid, group, worker, 1, flat(ids(span(0, 50)...)), minute)
		var matched atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, ok := r.Match(pid, group, worker, ids(span(0, 50)...)); ok {
					matched.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, matched.Load())
	}
}

// Against a set of ids, over a small universe so that near misses are common.
func TestMatchAgainstAModel(t *testing.T) {
	t.Parallel()
	r, _ := setup(t, 0)
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.Uint64Range(0, 6), 1, 6)
		given, acked := some.Draw(t, "delivered"), some.Draw(t, "acked")
		r.Delivered(pid, group, worker, 7, flat(ids(given...)), minute)
		set := make(map[uint64]int)
		for _, n := range given {
			set[n]++
		}
		want := len(set) == len(given) && len(acked) == len(given)
		for _, n := range acked {
			set[n]--
			want = want && set[n] == 0
		}
		_, ok := r.Match(pid, group, worker, ids(acked...))
		if ok != want {
			t.Fatalf("delivered %v, acked %v: match %v, want %v", given, acked, ok, want)
		}
		r.Drop(pid, group)
	})
}

func BenchmarkDeliverAndMatch(b *testing.B) {
	for _, n := range []uint64{1, 100, 1000} {
		b.Run(strconv.FormatUint(n, 10), func(b *testing.B) {
			r, _ := setup(b, 0)
			hashes := ids(span(0, n)...)
			blob := flat(hashes)
			b.ReportAllocs()
			for b.Loop() {
				r.Delivered(pid, group, worker, 1, blob, minute)
				if _, ok := r.Match(pid, group, worker, hashes); !ok {
					b.Fatal("no match")
				}
				r.Released(pid, group, worker)
			}
		})
	}
}
