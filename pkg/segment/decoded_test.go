package segment_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

func TestDecodedUnpacksWhatTheReaderDoes(t *testing.T) {
	t.Parallel()
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	frames := make([]segment.Frame, 50)
	for i := range frames {
		frames[i] = segment.Frame{MessageID: uuid.New(), TransactionID: fmt.Sprint("t", i), Payload: fmt.Appendf(nil, "%40d", i)}
	}
	frames[7].ProducerSub = "me"
	blob, _, err := packer.Pack(frames)
	require.NoError(t, err)
	for _, c := range []struct {
		from, limit int
		first, n    int // what is there
	}{
		{0, 1 << 20, 0, 50}, {7, 1 << 20, 7, 43}, {49, 1 << 20, 49, 1}, {50, 1 << 20, 50, 0}, {60, 1 << 20, 60, 0},
		{10, 70, 10, 1}, {10, 66 * 5, 10, 5}, {10, 10, 10, 0},
	} {
		d, err := reader.Decode(blob, c.from, c.limit)
		require.NoError(t, err)
		require.LessOrEqual(t, d.Size(), min(c.limit, 8192)+4*64+64)
		require.True(t, d.Holds(c.first, c.n), c)
		require.False(t, d.Holds(c.first, c.n+1), c)
		require.False(t, d.Holds(c.first-1, 1), c)
		i := c.first
		require.NoError(t, d.Unpack(c.first, c.n, func(index int, f segment.Frame) error {
			require.Equal(t, i, index)
			require.Equal(t, frames[i], f)
			i++
			return nil
		}))
		require.Equal(t, c.first+c.n, i)
		require.ErrorIs(t, d.Unpack(c.first, c.n+1, nil), segment.ErrCorrupt)
	}
	_, err = reader.Decode(blob[:len(blob)/2], 0, 1<<20)
	require.ErrorIs(t, err, segment.ErrCorrupt)
}

func TestSpanIsTheBytesOfFrames(t *testing.T) {
	t.Parallel()
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	const n = 5
	frames := make([]segment.Frame, n)
	for i := range frames {
		frames[i] = segment.Frame{MessageID: uuid.New(), TransactionID: fmt.Sprint("t", i), Payload: fmt.Appendf(nil, "%*d", 10*i+1, i)}
	}
	blob, _, err := packer.Pack(frames)
	require.NoError(t, err)
	size, _, err := segment.DecodedSize(blob)
	require.NoError(t, err)
	whole, err := reader.Decode(blob, 0, 1<<20)
	require.NoError(t, err)
	require.EqualValues(t, size, whole.Span(0, n), "all of them are the segment")
	for from := range n {
		d, err := reader.Decode(blob, from, 1<<20)
		require.NoError(t, err)
		for start := from; start <= n; start++ {
			sum := 0
			for take := 0; start+take <= n; take++ {
				require.True(t, d.Holds(start, take))
				require.Equal(t, sum, d.Span(start, take), "%d from %d on", take, start)
				if start+take < n {
					one := d.Span(start+take, 1)
					require.Equal(t, whole.Span(0, 1)+10*(start+take), one, "payloads grow by ten bytes")
					sum += one
				}
			}
			require.False(t, d.Holds(start, n-start+1))
			require.False(t, d.Holds(start, -1))
		}
		require.False(t, d.Holds(from-1, 1))
	}

	// What the limit cut off is neither there nor counted.
	d, err := reader.Decode(blob, 1, whole.Span(1, 3))
	require.NoError(t, err)
	require.True(t, d.Holds(1, 3))
	require.False(t, d.Holds(1, 4))
	require.Equal(t, whole.Span(1, 3), d.Span(1, 3))
	require.Equal(t, whole.Span(3, 1), d.Span(3, 1), "the last one ends where what is there does")
	d, err = reader.Decode(blob, 1, whole.Span(1, 3)-1)
	require.NoError(t, err)
	require.False(t, d.Holds(1, 3))
}
