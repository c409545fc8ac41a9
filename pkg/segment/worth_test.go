package segment_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

// What is compressed and what is stored as it is, and how large it becomes.
func TestCompressionIsSpentWhereItPays(t *testing.T) {
	t.Parallel()
	var noise *rand.Rand // the same in each run of a case
	text := func(n int) string {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(noise.Uint32())
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	order := func(int) string {
		return fmt.Sprintf(`{"orderId":"%08x","customer":{"id":%d,"country":"DE"},"items":[{"sku":"A-%d","quantity":%d}],"paid":true}`,
			noise.Uint32(), noise.IntN(1e6), noise.IntN(1e4), noise.IntN(10))
	}
	words := strings.Fields("the queue keeps every message in order until all groups of a partition have seen it while consumers come and go " +
		"nothing is lost when a broker stops since only the database knows what was committed and a lease ends by itself")
	prose := func(int) string {
		var b strings.Builder
		for b.Len() < 4000 {
			b.WriteString(words[noise.IntN(len(words))] + " ")
		}
		return `"` + b.String() + `"`
	}
	for name, tc := range map[string]struct {
		payload func(int) string
		n       int
		most    float64 // of the size as it is
		stored  bool
	}{
		"random, large":     {func(int) string { return `{"d":"` + text(180) + `"}` }, 100, 1.001, true},
		"random, small":     {func(int) string { return `{"d":"` + text(180) + `"}` }, 3, 1.02, true},
		"one tiny":          {func(int) string { return `1` }, 1, 1.5, true},
		"orders, large":     {order, 100, 0.5, false},
		"orders, small":     {order, 8, 0.75, false},
		"prose":             {prose, 3, 0.5, false},
		"random, then same": {func(i int) string { return map[bool]string{true: text(180), false: order(0)}[i < 40] }, 200, 0.7, false},
	} {
		noise = rand.New(rand.NewPCG(3, 4))
		frames, raw := make([]segment.Frame, tc.n), 0
		for i := range frames {
			id := uuid.UUID{}
			binary.LittleEndian.PutUint64(id[:], noise.Uint64())
			binary.LittleEndian.PutUint64(id[8:], noise.Uint64())
			frames[i] = segment.Frame{MessageID: id, TransactionID: fmt.Sprint(i), Payload: []byte(tc.payload(i))}
			raw += frames[i].Size()
		}
		blob, _, err := newPacker(t).Pack(frames)
		require.NoError(t, err)
		require.Less(t, float64(len(blob)), tc.most*float64(raw), name)
		var h zstd.Header
		require.NoError(t, h.Decode(blob))
		require.Equal(t, tc.stored, !h.FirstBlock.Compressed, name)
		n, err := newReader(t, 0).Count(blob)
		require.NoError(t, err)
		require.Equal(t, tc.n, n, name)

		careful, err := segment.NewPacker(segment.DefaultLevel + 1)
		require.NoError(t, err)
		smaller, _, err := careful.Pack(frames)
		require.NoError(t, err)
		require.LessOrEqual(t, len(smaller), len(blob)+len(blob)/10, name)
	}
}

// A segment that is stored as it is may be longer than a zstd block.
func TestWhatIsStoredAsItIsComesBack(t *testing.T) {
	t.Parallel()
	noise := rand.New(rand.NewPCG(5, 6))
	const overhead = 4 + 1 + 16 + 2
	for _, size := range []int{overhead, 255, 256, 65791, 65792, 128 << 10, 128<<10 + 1, 1 << 20} {
		payload := make([]byte, size-overhead)
		for i := range payload {
			payload[i] = byte(noise.Uint32())
		}
		blob, _, err := newPacker(t).Pack([]segment.Frame{{Payload: payload}})
		require.NoError(t, err)
		require.LessOrEqual(t, len(blob), size+13+3*(size>>17))
		require.Len(t, decompress(t, blob), size)
		declared, known, err := segment.DecodedSize(blob)
		require.NoError(t, err)
		require.True(t, known)
		require.EqualValues(t, size, declared)
		f, err := newReader(t, 0).Frame(blob, 0)
		require.NoError(t, err)
		require.Equal(t, string(payload), string(f.Payload))
	}
}
