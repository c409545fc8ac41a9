package hotlist

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

const manyLanes = 100_000

// heapAlive is what the heap holds after a collection.
func heapAlive() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// manyRefs are lanes with random ids, ascending as a walk lists them.
func manyRefs(n int) []store.PartitionRef {
	refs := make([]store.PartitionRef, n)
	for i := range refs {
		id := uuid.New()
		id[0], id[1], id[2], id[3] = 0, byte(i>>16), byte(i>>8), byte(i)
		refs[i] = store.PartitionRef{ID: id, Name: fmt.Sprintf("partition-%06d", i)}
	}
	return refs
}

// TestMemoryPerLane measures what 100,000 lanes take whose ids are known, in the
// rings of one group and of two. It does not run beside others, which would allocate
// meanwhile.
func TestMemoryPerLane(t *testing.T) {
	b := setup(t, Config{})
	b.store.lanes["q/g"] = manyRefs(manyLanes)
	b.store.lanes["q/h"] = b.store.lanes["q/g"]

	names := namesAlone(b.store.lanes["q/g"])
	before := heapAlive()
	b.reseed()
	one := heapAlive() - before
	require.NoError(t, b.Reseed(t.Context(), tenant, "q", "h"))
	two := heapAlive() - before
	require.Equal(t, manyLanes, b.census().lanes)
	per := func(n int64) float64 { return float64(n) / manyLanes }
	t.Logf("bytes per lane: %.1f in all, %.1f of it for the names; the second group %.1f", per(one), per(names), per(two-one))
	require.LessOrEqual(t, per(one-names), 64.0)
	require.LessOrEqual(t, per(two-one), 32.0)
}

// namesAlone is what the names of the lanes take by themselves.
func namesAlone(refs []store.PartitionRef) int64 {
	before := heapAlive()
	headers := make([]string, 0, len(refs))
	for _, ref := range refs {
		headers = append(headers, strings.Clone(ref.Name))
	}
	alive := heapAlive()
	runtime.KeepAlive(headers)
	return alive - before
}

func TestCheckoutAndReturnAllocateTwice(t *testing.T) {
	b := setupQueue(t, plain)
	b.deps.Waker = quiet{}
	for _, lane := range names(100) {
		b.Pushed(tenant, "q", lane, 1)
	}
	var vs [64]Verdict
	allocs := testing.AllocsPerRun(1000, func() {
		c, _ := b.Checkout(tenant, "q", "g", 2, 1000)
		for i, p := range c.Partitions() {
			vs[i] = Verdict{Partition: p, PartitionID: uuid.UUID{15: 1, 14: byte(i)}, Kind: TookAutoAck, LastOffset: 1}
		}
		c.Return(vs[:len(c.Partitions())])
		c.Abandon()
	})
	require.LessOrEqual(t, allocs, 3.0, "the check-out, its names, and what the atlas needs for a new id")
	require.Zero(t, testing.AllocsPerRun(1000, func() { b.Pushed(tenant, "q", "lane-000001", 1) }))
	b.drainAll()
	require.Zero(t, testing.AllocsPerRun(1000, func() { b.Checkout(tenant, "q", "g", 2, 1000) }), "nothing is ready")
}

// cpu reports the processor time of an operation: on a busy machine the clock on the
// wall says nothing.
func cpu(b *testing.B) (stop func()) {
	used := func() int64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkCheckoutReturn claims from 100 active lanes among few or many.
func BenchmarkCheckoutReturn(b *testing.B) {
	for _, lanes := range []int{100, manyLanes} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			l := setup(b, Config{})
			refs := manyRefs(lanes)
			l.store.lanes["q/g"] = refs
			l.reseed()
			l.drainIDs(refs)
			l.deps.Waker = quiet{}
			for i := range 100 {
				l.Pushed(tenant, "q", refs[i*(lanes/100)].Name, 1)
			}
			var vs [64]Verdict
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				c, _ := l.Checkout(tenant, "q", "g", 2, 1000)
				for i, p := range c.Partitions() {
					vs[i] = Verdict{Partition: p, Kind: TookAutoAck, LastOffset: 1}
				}
				c.Return(vs[:len(c.Partitions())])
				c.Abandon()
			}
		})
	}
}

// drainIDs empties the lanes of a walk.
func (b *bench) drainIDs(refs []store.PartitionRef) {
	for taken := 0; taken < len(refs); {
		c := b.take(64)
		vs := make([]Verdict, len(c.Partitions()))
		for i, p := range c.Partitions() {
			vs[i] = Verdict{Partition: p, Kind: Nothing}
		}
		taken += len(vs)
		c.Return(vs)
	}
}

func BenchmarkPushed(b *testing.B) {
	l := setup(b, Config{})
	refs := manyRefs(manyLanes)
	l.store.lanes["q/g"] = refs
	l.reseed()
	l.deps.Waker = quiet{}
	b.ReportAllocs()
	defer cpu(b)()
	i := 0
	for b.Loop() {
		l.Pushed(tenant, "q", refs[i].Name, 1)
		if i += 7919; i >= manyLanes {
			i -= manyLanes
		}
	}
}

// quiet hears nothing.
type quiet struct{}

func (quiet) Wake(uuid.UUID, string, string) {}

func (quiet) Free(uuid.UUID, string, string) {}

// BenchmarkPromote leases a lane and frees it.
func BenchmarkPromote(b *testing.B) {
	l := setup(b, Config{})
	refs := manyRefs(manyLanes)
	l.store.lanes["q/g"] = refs
	l.reseed()
	l.drainIDs(refs)
	l.Pushed(tenant, "q", refs[0].Name, 1)
	l.deps.Waker = quiet{}
	v := []Verdict{{Partition: refs[0].Name, PartitionID: refs[0].ID, Kind: Took, LastOffset: 1}}
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		c, _ := l.Checkout(tenant, "q", "g", 2, 1000)
		c.Return(v)
		l.Promote(refs[0].ID, "g")
	}
}

// BenchmarkReseed takes in lanes that are not known yet.
func BenchmarkReseed(b *testing.B) {
	refs := manyRefs(manyLanes)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		l := setup(b, Config{})
		l.store.lanes["q/g"] = refs
		l.reseed()
	}
}
