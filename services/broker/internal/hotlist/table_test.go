package hotlist

import (
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTableFindsWhatItNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table := newTable(maphash.MakeSeed())
		want := map[string]int32{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			name := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "name"))
			lane, known := table.lookup(name)
			old, ok := want[name]
			require.Equal(t, ok, known)
			switch {
			case known:
				require.Equal(t, old, lane)
				if rapid.Bool().Draw(t, "remove") {
					table.remove(lane)
					delete(want, name)
				}
			default:
				want[name] = table.insert(name)
			}
		}
		require.Equal(t, len(want), table.used)
		for name, lane := range want {
			got, ok := table.lookup(name)
			require.True(t, ok)
			require.Equal(t, lane, got)
		}
	})
}

func TestAtlasFindsWhatItWasGiven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := &atlas{}
		type place struct {
			queue uint32
			lane  int32
		}
		want := map[uuid.UUID][]place{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			id := uuid.UUID{15: byte(rapid.IntRange(0, 80).Draw(t, "id"))}
			p := place{uint32(rapid.IntRange(1, 3).Draw(t, "queue")), int32(rapid.IntRange(0, 2).Draw(t, "lane"))}
			if i := slices.Index(want[id], p); i >= 0 {
				a.remove(id, p.queue, p.lane)
				want[id] = slices.Delete(want[id], i, i+1)
				continue
			}
			if rapid.IntRange(0, 9).Draw(t, "vain") == 0 {
				a.remove(id, p.queue, p.lane)
			}
			a.add(id, p.queue, p.lane)
			want[id] = append(want[id], p)
		}
		for id, places := range want {
			var got []place
			for _, s := range a.find(id, nil) {
				got = append(got, place{s.queue, s.lane})
			}
			require.ElementsMatch(t, places, got)
		}
	})
}

func TestHeapGivesTheEarliestFirst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h heap
		var want []int64
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				h.prune(func(v visit) bool { return v.due%3 != 0 })
				want = slices.DeleteFunc(want, func(d int64) bool { return d%3 == 0 })
			case 1, 2, 3:
				if len(want) > 0 {
					require.Equal(t, want[0], h.pop().due)
					want = want[1:]
				}
			default:
				due := rapid.Int64Range(0, 50).Draw(t, "due")
				h.push(visit{due: due})
				want = append(want, due)
				slices.Sort(want)
			}
		}
		for _, due := range want {
			require.Equal(t, due, h.pop().due)
		}
		require.Empty(t, h)
	})
}

func TestVectorKeepsWhatItHolds(t *testing.T) {
	t.Parallel()
	const pageLen = 1 << (pageBits + 1)
	v := vector[int32]{wide: 1}
	for n := int32(1); n < 3*pageLen; n++ {
		v.extend(n)
		require.Equal(t, n, v.n)
		require.Zero(t, *v.at(n - 1))
		*v.at(n - 1) = n
	}
	v.extend(10 * pageLen)
	v.extend(7)
	require.EqualValues(t, 10*pageLen, v.n)
	for i := range v.n {
		want := int32(0)
		if i < 3*pageLen-1 {
			want = i + 1
		}
		require.Equal(t, want, *v.at(i))
	}
}
