package segment_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

// stored is a zstd frame written by hand around at most 255 bytes: magic, a
// header of single segment with a one-byte content size, and one raw block.
func stored(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	require.NoError(t, err)
	require.Less(t, len(raw), 256)
	block := len(raw)<<3 | 1
	blob := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, byte(len(raw)), byte(block), byte(block >> 8), byte(block >> 16)}
	return append(blob, raw...)
}

func TestDamagedBlobsAreErrors(t *testing.T) {
	t.Parallel()
	r := newReader(t, 0)
	m := strings.Repeat("11", 16)
	for name, blob := range map[string][]byte{
		"empty":                 nil,
		"no zstd":               []byte("not a zstd frame at all"),
		"trailing bytes":        compress(t, "15000000"+"00"+m+"0100"+"61"+"31"+"ffff"),
		"frame beyond the end":  compress(t, "ffffff7f"+"00"+m+"0000"),
		"zero length":           compress(t, "00000000"),
		"unknown flag":          compress(t, "13000000"+"08"+m+"0000"),
		"trace cut short":       compress(t, "13000000"+"01"+m+"0000"),
		"txn beyond the body":   compress(t, "13000000"+"00"+m+"ff00"),
		"producer beyond":       compress(t, "15000000"+"02"+m+"0000"+"ff00"),
		"producer length short": compress(t, "13000000"+"02"+m+"0000"),
		"body under the least":  compress(t, "12000000"+"00"+m+"00"),
		"skippable frame":       {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4},
		"two zstd frames":       append(stored(t, "15000000"+"00"+m+"0100"+"61"+"31"), stored(t, "15000000"+"00"+m+"0100"+"61"+"31")...),
		"bytes behind":          append(stored(t, "15000000"+"00"+m+"0100"+"61"+"31"), 1, 2, 3),
		"unknown dictionary":    append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 1}, 9, 0, 0, 1),
		"declares too little":   {0x28, 0xb5, 0x2f, 0xfd, 0x20, 1, 3<<3 | 1, 0, 0, 1, 2, 3},
		"declares too much":     {0x28, 0xb5, 0x2f, 0xfd, 0x20, 200, 3<<3 | 1, 0, 0, 1, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := r.Count(blob)
			require.ErrorIs(t, err, segment.ErrCorrupt)
			_, err = r.Frame(blob, 1)
			require.ErrorIs(t, err, segment.ErrCorrupt)
		})
	}
}

func TestDecodedSizeIsCapped(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	r := newReader(t, limit)
	overhead := 4 + 1 + 16 + 2
	for _, tc := range []struct {
		payload int
		want    error
	}{{limit - overhead, nil}, {limit - overhead + 1, segment.ErrTooLarge}, {100 << 20, segment.ErrTooLarge}} {
		blob, _, err := newPacker(t).Pack([]segment.Frame{{Payload: bytes.Repeat([]byte{'1'}, tc.payload)}})
		require.NoError(t, err)
		_, err = r.Frame(blob, 0)
		require.ErrorIs(t, err, tc.want)
	}
}

func TestEveryFlippedByteAndEveryCutIsAnErrorOrData(t *testing.T) {
	t.Parallel()
	r := newReader(t, 1<<20)
	blob, _, err := newPacker(t).Pack(sample(5))
	require.NoError(t, err)
	for cut := range blob {
		_, err := r.Count(blob[:cut])
		require.ErrorIs(t, err, segment.ErrCorrupt, "cut at %d", cut)
	}
	for i := range blob {
		for _, bits := range []byte{0x01, 0x80, 0xff} {
			damaged := bytes.Clone(blob)
			damaged[i] ^= bits
			if _, err := r.Count(damaged); err != nil && !isOurs(err) {
				t.Fatalf("byte %d ^ %#x: %v", i, bits, err)
			}
		}
	}
}

func isOurs(err error) bool {
	return errors.Is(err, segment.ErrCorrupt) || errors.Is(err, segment.ErrTooLarge)
}

// Reads the process's allocations, so it must not run beside other tests.
func TestADeclaredSizeIsNotTakenOnTrust(t *testing.T) {
	r := newReader(t, 0)
	// 255 MiB declared in four bytes, one empty block behind.
	blob := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0xf0, 0x0f, 1, 0, 0}
	_, err := r.Count(blob)
	require.ErrorIs(t, err, segment.ErrCorrupt)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = r.Count(blob)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, segment.ErrCorrupt)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}

func TestASizeLeftOutIsAccepted(t *testing.T) {
	t.Parallel()
	p := newPacker(t)
	frames := sample(20)
	blob, _, err := p.Pack(frames)
	require.NoError(t, err)
	raw := decompress(t, blob)

	// Another implementation may stream, and then knows no size up front.
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(64<<10))
	require.NoError(t, err)
	for _, part := range [][]byte{raw[:100], raw[100:]} {
		_, err = w.Write(part)
		require.NoError(t, err)
		require.NoError(t, w.Flush())
	}
	require.NoError(t, w.Close())
	_, known, err := segment.DecodedSize(b.Bytes())
	require.NoError(t, err)
	require.False(t, known)
	n, err := newReader(t, 0).Count(b.Bytes())
	require.NoError(t, err)
	require.Equal(t, 20, n)

	_, err = newReader(t, 64<<10).Count(b.Bytes())
	require.NoError(t, err, "%d bytes fit", len(raw))
	var huge bytes.Buffer
	w.Reset(&huge)
	for range 100 {
		_, err = w.Write(make([]byte, 64<<10))
		require.NoError(t, err)
		require.NoError(t, w.Flush())
	}
	require.NoError(t, w.Close())
	_, err = newReader(t, 1<<20).Count(huge.Bytes())
	require.ErrorIs(t, err, segment.ErrTooLarge)
}

// The SQL side reads the size out of the header without decoding the blob.
func TestTheHeaderTellsTheSize(t *testing.T) {
	t.Parallel()
	const overhead = 4 + 1 + 16 + 2
	for _, size := range []int{overhead, 255, 256, 65791, 65792, 1 << 20, 9 << 20} {
		blob, _, err := newPacker(t).Pack([]segment.Frame{{Payload: bytes.Repeat([]byte{'7'}, size-overhead)}})
		require.NoError(t, err)
		var h zstd.Header
		require.NoError(t, h.Decode(blob[:min(len(blob), 18)]))
		require.True(t, h.HasFCS)
		require.True(t, h.SingleSegment)
		require.False(t, h.HasCheckSum)
		require.EqualValues(t, size, h.FrameContentSize)
		got, known, err := segment.DecodedSize(blob)
		require.NoError(t, err)
		require.True(t, known)
		require.EqualValues(t, size, got)
	}
	_, _, err := segment.DecodedSize([]byte("plain text"))
	require.ErrorIs(t, err, segment.ErrCorrupt)
}

func TestNothingIsPackedThatCannotBeRead(t *testing.T) {
	t.Parallel()
	part := make([]byte, segment.MaxDecodedBytes/4)
	frames := []segment.Frame{{Payload: part}, {Payload: part}, {Payload: part}, {Payload: part}}
	_, _, err := newPacker(t).Pack(frames)
	require.ErrorIs(t, err, segment.ErrTooLarge)
}
