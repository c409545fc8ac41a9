package segment_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

func newPacker(t testing.TB) *segment.Packer {
	t.Helper()
	p, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(t, err)
	return p
}

func newReader(t testing.TB, maxDecoded int) *segment.Reader {
	t.Helper()
	r, err := segment.NewReader(maxDecoded)
	require.NoError(t, err)
	return r
}

func id(b byte) uuid.UUID { return uuid.UUID(bytes.Repeat([]byte{b}, 16)) }

// The vectors are written out by hand from the layout.
func TestFrameLayout(t *testing.T) {
	t.Parallel()
	m, tr := strings.Repeat("11", 16), strings.Repeat("22", 16)
	for name, tc := range map[string]struct {
		frame segment.Frame
		hex   string
	}{
		"plain": {
			segment.Frame{MessageID: id(0x11), TransactionID: "ab", Payload: []byte(`{}`)},
			"17000000" + "00" + m + "0200" + "6162" + "7b7d",
		},
		"trace": {
			segment.Frame{MessageID: id(0x11), HasTrace: true, TraceID: id(0x22), TransactionID: "ab", Payload: []byte(`1`)},
			"26000000" + "01" + m + tr + "0200" + "6162" + "31",
		},
		"producer": {
			segment.Frame{MessageID: id(0x11), TransactionID: "", ProducerSub: "xyz", Payload: []byte(`1`)},
			"19000000" + "02" + m + "0000" + "0300" + "78797a" + "31",
		},
		"encrypted": {
			segment.Frame{MessageID: id(0x11), Encrypted: true, TransactionID: "a", Payload: []byte(`1`)},
			"15000000" + "04" + m + "0100" + "61" + "31",
		},
		"everything": {
			segment.Frame{
				MessageID: id(0x11), HasTrace: true, TraceID: id(0x22), Encrypted: true,
				TransactionID: "a", ProducerSub: "x", Payload: []byte(`1`),
			},
			"28000000" + "07" + m + tr + "0100" + "61" + "0100" + "78" + "31",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blob, hashes, err := newPacker(t).Pack([]segment.Frame{tc.frame})
			require.NoError(t, err)
			require.Len(t, hashes, 16)
			require.Equal(t, tc.hex, hex.EncodeToString(decompress(t, blob)))

			stored := compress(t, tc.hex)
			got, err := newReader(t, 0).Frame(stored, 0)
			require.NoError(t, err)
			require.Equal(t, tc.frame, got)
		})
	}
}

func decompress(t testing.TB, blob []byte) []byte {
	t.Helper()
	d, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer d.Close()
	raw, err := d.DecodeAll(blob, nil)
	require.NoError(t, err)
	return raw
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	require.NoError(t, err)
	e, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return e.EncodeAll(raw, nil)
}

// Values of the reference implementation of XXH3 with 128 bits, seed 0.
func TestHashIsBigEndianXXH3(t *testing.T) {
	t.Parallel()
	h := segment.Hash("")
	require.Equal(t, "99aa06d3014798d86001c324468d497f", hex.EncodeToString(h[:]))
	require.Equal(t, h[:], segment.AppendHash(nil, ""))
}

func TestSlicesComeBackInOrder(t *testing.T) {
	t.Parallel()
	frames := make([]segment.Frame, 100)
	for i := range frames {
		frames[i] = segment.Frame{
			MessageID: id(byte(i)), TransactionID: fmt.Sprint("t", i), Payload: fmt.Appendf(nil, `{"n":%d}`, i),
		}
	}
	blob, hashes, err := newPacker(t).Pack(frames)
	require.NoError(t, err)
	require.Len(t, hashes, 1600)
	r := newReader(t, 0)
	n, err := r.Count(blob)
	require.NoError(t, err)
	require.Equal(t, 100, n)

	var seen []int
	require.NoError(t, r.Unpack(blob, 40, 20, func(i int, f segment.Frame) error {
		seen = append(seen, i)
		require.Equal(t, frames[i].TransactionID, f.TransactionID)
		require.Equal(t, frames[i].Payload, f.Payload)
		return nil
	}))
	require.Len(t, seen, 20)
	require.Equal(t, 40, seen[0])
	require.ErrorIs(t, r.Unpack(blob, 90, 11, func(int, segment.Frame) error { return nil }), segment.ErrCorrupt)

	stop := errors.New("stop")
	require.ErrorIs(t, r.Unpack(blob, 0, 100, func(int, segment.Frame) error { return stop }), stop)
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := r.Count(blob)
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

func TestFieldsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	p := newPacker(t)
	fits, long := strings.Repeat("x", segment.MaxIDBytes), strings.Repeat("x", segment.MaxIDBytes+1)
	_, _, err := p.Pack([]segment.Frame{{TransactionID: fits, ProducerSub: fits}})
	require.NoError(t, err)
	_, _, err = p.Pack([]segment.Frame{{TransactionID: long}})
	require.ErrorIs(t, err, segment.ErrFieldTooLong)
	_, _, err = p.Pack([]segment.Frame{{ProducerSub: long}})
	require.ErrorIs(t, err, segment.ErrFieldTooLong)
	_, _, err = p.Pack(nil)
	require.Error(t, err)
}

func TestLevelsOutsideTheRangeAreRefused(t *testing.T) {
	t.Parallel()
	for _, level := range []int{1, 3, 22} {
		_, err := segment.NewPacker(level)
		require.NoError(t, err)
	}
	for _, level := range []int{0, 23, -1} {
		_, err := segment.NewPacker(level)
		require.ErrorContains(t, err, "1 to 22 is allowed")
	}
}

func sample(n int) []segment.Frame {
	frames := make([]segment.Frame, n)
	for i := range frames {
		v := uuid.New()
		frames[i] = segment.Frame{
			MessageID: v, TransactionID: v.String(),
			Payload: []byte(`"` + strings.Repeat(v.String(), 7) + `"`),
		}
	}
	return frames
}

func TestPackingAllocatesNothingPerFrame(t *testing.T) {
	p := newPacker(t)
	few, many := sample(10), sample(100)
	pack := func(frames []segment.Frame) float64 {
		return testing.AllocsPerRun(50, func() {
			if _, _, err := p.Pack(frames); err != nil {
				t.Fatal(err)
			}
		})
	}
	pack(many)
	require.InDelta(t, pack(few), pack(many), 3)
}

func TestUnpackingAllocatesNothingPerFrame(t *testing.T) {
	r := newReader(t, 0)
	blob, _, err := newPacker(t).Pack(sample(100))
	require.NoError(t, err)
	unpack := func(take int) float64 {
		return testing.AllocsPerRun(50, func() {
			if err := r.Unpack(blob, 0, take, func(int, segment.Frame) error { return nil }); err != nil {
				t.Fatal(err)
			}
		})
	}
	unpack(100)
	require.InDelta(t, unpack(1), unpack(100), 3)
}

func FuzzUnpack(f *testing.F) {
	p := newPacker(f)
	blob, _, err := p.Pack(sample(3))
	require.NoError(f, err)
	f.Add(blob)
	f.Add([]byte{})
	r := newReader(f, 1<<20)
	f.Fuzz(func(t *testing.T, blob []byte) {
		n, err := r.Count(blob)
		if err != nil {
			return
		}
		require.NoError(t, r.Unpack(blob, 0, n, func(int, segment.Frame) error { return nil }))
	})
}

func FuzzFrames(f *testing.F) {
	r := newReader(f, 1<<20)
	e, err := zstd.NewWriter(nil)
	require.NoError(f, err)
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, raw []byte) {
		_, _ = r.Count(e.EncodeAll(raw, nil)) // must not panic, whatever the frames say
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("t", "sub", []byte(`{"a":1}`), true, true)
	p, r := newPacker(f), newReader(f, 0)
	f.Fuzz(func(t *testing.T, txn, sub string, payload []byte, trace, encrypted bool) {
		in := segment.Frame{MessageID: id(1), TransactionID: txn, ProducerSub: sub, Payload: payload, HasTrace: trace, Encrypted: encrypted}
		if trace {
			in.TraceID = id(2)
		}
		blob, _, err := p.Pack([]segment.Frame{in})
		if err != nil {
			require.ErrorIs(t, err, segment.ErrFieldTooLong)
			return
		}
		out, err := r.Frame(blob, 0)
		require.NoError(t, err)
		require.Equal(t, string(in.Payload), string(out.Payload))
		in.Payload, out.Payload = nil, nil
		require.Equal(t, in, out)
	})
}

func BenchmarkPack100x256(b *testing.B) {
	p, frames := newPacker(b), sample(100)
	b.ReportAllocs()
	b.SetBytes(100 * 256)
	for b.Loop() {
		if _, _, err := p.Pack(frames); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnpack100x256(b *testing.B) {
	r := newReader(b, 0)
	blob, _, err := newPacker(b).Pack(sample(100))
	require.NoError(b, err)
	b.ReportAllocs()
	b.SetBytes(100 * 256)
	for b.Loop() {
		if err := r.Unpack(blob, 0, 100, func(int, segment.Frame) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
