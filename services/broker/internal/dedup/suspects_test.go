package dedup

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// twin is a hash that a lane remembers as it does h, and that is another.
func twin(h []byte) []byte {
	t := bytes.Clone(h)
	t[hashSize-1] ^= 1
	return t
}

// stored writes rows of the given length until there are n ids, and warms the lane.
func (b *bench) stored(t *testing.T, n, rowLen int) []byte {
	t.Helper()
	all := random(n)
	for rest := all; len(rest) > 0; rest = rest[rowLen*hashSize:] {
		b.store.write(lane, rest[:rowLen*hashSize])
	}
	b.Mark(t.Context(), lane, random(1))
	require.EqualValues(t, n-1, b.Mark(t.Context(), lane, random(1)).Verified)
	b.store.took()
	return all
}

func TestAFalsePositiveIsLeftToSQL(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, 3*blockIDs, 16)
	sealed, recent := all[:hashSize], all[len(all)-hashSize:]
	require.Equal(t, []int64{0, 3*blockIDs - 16}, b.Mark(t.Context(), lane, append(twin(sealed), twin(recent)...)).Suspects)
	require.Empty(t, b.store.took())
}

func TestRule07AllDuplicateTrafficNamesFewRows(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, 100_000, 1000)
	for at := 0; at < len(all); at += 10_000 * hashSize {
		m := b.Mark(t.Context(), lane, all[at:at+1000*hashSize])
		require.Contains(t, m.Suspects, int64(at/hashSize))
		require.LessOrEqual(t, len(m.Suspects), 3, "a thousand ids meet a stranger among 100000 once in forty times")
	}
	require.Empty(t, b.store.took())
}

func TestAsManySuspectsAsMayBeNamedAreNotRead(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, MaxSuspects+1, 1)
	m := b.Mark(t.Context(), lane, all[hashSize:])
	require.Len(t, m.Suspects, MaxSuspects)
	require.True(t, slices.IsSorted(m.Suspects))
	require.Empty(t, b.store.took())
}

// One row too many: the newest rows that do hold a duplicate are named. While one
// of them is in the window SQL refuses the segment.
func TestRule08TooManySuspectsAreConfirmedWithoutALock(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, 5000, 1)
	m := b.Mark(t.Context(), lane, all)
	require.EqualValues(t, 4999, m.Verified)
	require.Len(t, m.Suspects, MaxSuspects)
	require.EqualValues(t, 5000-MaxSuspects, m.Suspects[0])
	require.True(t, slices.IsSorted(m.Suspects))
	require.Contains(t, b.store.took(), "rows")
}

func TestTooManyFalseSuspectsAreDropped(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, 3000, 1)
	var asked []byte
	for i := range 3000 {
		h := all[i*hashSize : (i+1)*hashSize]
		if i%100 != 0 {
			h = twin(h)
		}
		asked = append(asked, h...)
	}
	m := b.Mark(t.Context(), lane, asked)
	require.EqualValues(t, 2999, m.Verified)
	require.Len(t, m.Suspects, 30)
	for i, base := range m.Suspects {
		require.EqualValues(t, 100*i, base)
	}
}

func TestSuspectsOfManyFramesAreFew(t *testing.T) {
	t.Parallel()
	const rowLen = MaxSuspectFrames / 8
	b := setup(t, Config{})
	all := b.stored(t, 12*rowLen, rowLen)
	var asked []byte
	for i := range 12 {
		asked = append(asked, all[i*rowLen*hashSize:(i*rowLen+1)*hashSize]...)
	}
	require.Len(t, b.Mark(t.Context(), lane, asked[:8*hashSize]).Suspects, 8)
	m := b.Mark(t.Context(), lane, asked)
	require.Equal(t, []int64{4 * rowLen, 5 * rowLen, 6 * rowLen, 7 * rowLen, 8 * rowLen, 9 * rowLen, 10 * rowLen, 11 * rowLen}, m.Suspects)

	huge := b.push(lane, random(MaxSuspectFrames+1))
	require.Equal(t, []int64{huge.base}, b.Mark(t.Context(), lane, huge.hashes[:hashSize]).Suspects, "a row longer than that alone")
}

func TestSuspectsThatCannotBeReadAreLeftToSQL(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	all := b.stored(t, 2*MaxSuspects, 1)
	b.store.err = errDown
	require.Equal(t, unmarked(), b.Mark(t.Context(), lane, all))
}

func TestCopiesOfOneIDEndTheSearch(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	for range manyRows/64 + 100 {
		for range 64 {
			b.store.write(lane, hash(1))
		}
	}
	b.Mark(t.Context(), lane, hash(2))
	last := b.store.lanes[lane].last
	m := b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, last, m.Verified)
	require.Len(t, m.Suspects, MaxSuspects)
	require.Equal(t, last, m.Suspects[MaxSuspects-1])
	require.Less(t, b.store.named, 3*pageOffsets)
}
