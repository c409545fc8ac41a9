package dedup

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hash is the well-mixed hash of id n.
func hash(n uint64) []byte {
	r := rand.New(rand.NewPCG(n, 7))
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.Uint64()), r.Uint64())
}

func hashes(ids ...uint64) (out []byte) {
	for _, id := range ids {
		out = append(out, hash(id)...)
	}
	return out
}

// random fills n hashes of ids that occur nowhere else.
func random(n int) []byte {
	out := make([]byte, 0, n*hashSize)
	for range n {
		out = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(out, rand.Uint64()), rand.Uint64())
	}
	return out
}

func find(m *memory, want []byte) []row {
	var p queries
	q := p.get(want)
	m.find(q)
	q.settle()
	return slices.Clone(q.rows)
}

// What is in memory is found, row by row, through appends, seals and expiry, and
// the accounts are exact.
func TestMemoryFindsEveryRowItHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type stored struct {
			row
			ids []uint64
			at  int64
		}
		var m memory
		var p builders
		var rows []stored
		next, at, id := int64(rapid.IntRange(0, 9).Draw(t, "first")), int64(1000), uint64(0)
		sizes := rapid.SampledFrom([]int{1, 1, 2, 7, 100, 1500, blockIDs - 1, blockIDs, blockIDs + 1, 9000})
		for range rapid.IntRange(1, 40).Draw(t, "rows") {
			n := sizes.Draw(t, "frames")
			if rapid.IntRange(0, 9).Draw(t, "hole") == 0 {
				next += int64(rapid.IntRange(1, 300).Draw(t, "length"))
			}
			ids := make([]uint64, n)
			for i := range ids {
				id++
				ids[i] = id
			}
			if rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				ids[0] = 1 + id/2 // stored once before, while there was no window
			}
			at += int64(rapid.IntRange(0, 5).Draw(t, "pause"))
			m.append(&p, next, hashes(ids...), at)
			rows = append(rows, stored{row{next, n}, ids, at})
			next += int64(n)
			if rapid.IntRange(0, 7).Draw(t, "expire") == 0 {
				before := at - int64(rapid.IntRange(0, 40).Draw(t, "age"))
				m.expire(before)
				rows = slices.DeleteFunc(rows, func(r stored) bool { return r.at < before })
			}
		}
		sum := m.open.bytes()
		for _, g := range m.groups {
			sum += groupOverhead + filterBytes(g.filter)
			for _, b := range g.blocks {
				sum += b.bytes()
			}
		}
		require.Equal(t, sum, m.bytes())
		for _, r := range rows {
			require.True(t, m.holds(r.base, hashes(r.ids...)))
			require.False(t, m.holds(r.base, random(r.frames)))
			for _, id := range []uint64{r.ids[0], r.ids[len(r.ids)-1], r.ids[len(r.ids)/2]} {
				require.Contains(t, find(&m, hash(id)), r.row)
			}
		}
		require.LessOrEqual(t, len(find(&m, random(1))), 1)
	})
}

func TestMemoryOfManyCopiesOfOneID(t *testing.T) {
	t.Parallel()
	var m memory
	var p builders
	start := time.Now()
	const rows = groupBlocks*blockIDs/64 + 1
	for i := range int64(rows) {
		m.append(&p, 64*i, hashes(slices.Repeat([]uint64{7}, 64)...), 1)
	}
	require.True(t, m.groups[0].full)
	require.NotNil(t, m.groups[0].filter)
	for _, b := range m.groups[0].blocks {
		require.NotNil(t, b.filter, "filters are built at the first attempts")
	}
	require.Less(t, time.Since(start), 20*time.Second)
	require.Len(t, find(&m, hash(7)), rows)
	require.Empty(t, find(&m, hash(8)))
}

func TestFiltersLetFewStrangersPass(t *testing.T) {
	t.Parallel()
	m := filled(groupBlocks*blockIDs, 100)
	passed := 0
	const tries = 100_000
	var p queries
	for range tries / 1000 {
		q := p.get(random(1000))
		for _, fp := range q.fps {
			if mayHold(m.groups[0].filter, fp) {
				passed++
			}
		}
		m.find(q)
		require.LessOrEqual(t, len(q.rows), 3, "262144 fingerprints of 32 bits answer for one stranger in 16384")
	}
	require.Less(t, passed, tries/200)
}

func filled(ids, rowLen int) *memory {
	var m memory
	var p builders
	for base := 0; base < ids; base += rowLen {
		m.append(&p, int64(base), random(rowLen), 1)
	}
	if len(m.open.keys) > 0 {
		m.add(&p, m.open.seal(&p))
		m.open = open{}
	}
	return &m
}

func TestRule08SealedIDsCostAtMostEightBytes(t *testing.T) {
	const ids = 4 * groupBlocks * blockIDs // a million
	for _, rowLen := range []int{1, 64, 1000, 3000} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := filled(ids, rowLen)
		runtime.GC()
		runtime.GC() // empties the pool of builders too
		runtime.ReadMemStats(&after)
		heap := float64(after.HeapAlloc-before.HeapAlloc) / ids
		counted := float64(m.bytes()) / ids
		t.Logf("rows of %d: %.2f bytes an id on the heap, %.2f counted", rowLen, heap, counted)
		require.LessOrEqual(t, heap, 8.0)
		require.LessOrEqual(t, counted, 8.0)
		require.InEpsilon(t, heap, counted, 0.1, "the budget counts what is there")
		runtime.KeepAlive(m)
	}
}

func BenchmarkSeal(b *testing.B) {
	all := random(blockIDs * groupBlocks)
	b.ReportAllocs()
	for b.Loop() {
		var m memory
		var p builders
		for base := 0; base < len(all)/hashSize; base += 128 {
			m.append(&p, int64(base), all[base*hashSize:(base+128)*hashSize], 1)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(blockIDs*groupBlocks), "ns/id")
}

func BenchmarkFind(b *testing.B) {
	m := filled(14_400_000, 100) // an hour of 4000 messages a second
	var p queries
	for name, want := range map[string][]byte{"strangers": random(64), "known": nil} {
		b.Run(name, func(b *testing.B) {
			if want == nil {
				known := random(6400)
				var p builders
				m.append(&p, 20_000_000, known, 1)
				want = known[:64*hashSize]
			}
			b.ReportAllocs()
			for b.Loop() {
				q := p.get(want)
				m.find(q)
				p.put(q)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/id")
		})
	}
}
