package segment_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

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

			for _, blob := range [][]byte{stored(t, tc.hex), compress(t, tc.hex)} {
				got, err := newReader(t, 0).Frame(blob, 0)
				require.NoError(t, err)
				require.Equal(t, tc.frame, got)
			}
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

// Printed by xxhsum 0.8.1 -H2, the reference implementation; one input for each
// of the lengths it treats differently.
func TestHashIsBigEndianXXH3(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"":                                     "99aa06d3014798d86001c324468d497f",
		"a":                                    "a96faf705af16834e6c632b61e964e1f",
		"abc":                                  "06b05ab6733a618578af5f94892f3950",
		"inv-7":                                "4ac1f8693105c1d3caa26e3b6eedf795",
		"é🐝":                                   "cc6392213534527a13b9a3b455e1ef29",
		"0199aa10-1111-7abc-8def-000000000001": "e680e7fd1ed90c974f92723dc03494e5",
		strings.Repeat("x", 17):                "9e8a29b5dfc13013416e526dfb687d89",
		strings.Repeat("x", 129):               "e7f1abc92bce4135ae9ec8f29e5baa27",
		strings.Repeat("x", 241):               "586c2f1b13edf30f14da9e5c301a6a1d",
		strings.Repeat("x", 1024):              "445dcf97d7880d62fc56a7ce85b3164a",
	} {
		h := segment.Hash(input)
		require.Equal(t, want, hex.EncodeToString(h[:]), "%.40s", input)
		require.Equal(t, append([]byte("kept"), h[:]...), segment.AppendHash([]byte("kept"), input))
	}
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
	for i, f := range frames {
		h := segment.Hash(f.TransactionID)
		require.Equal(t, h[:], hashes[16*i:16*i+16], "slot %d belongs to frame %d", i, i)
	}
	last, err := r.Frame(blob, 99)
	require.NoError(t, err)
	require.Equal(t, frames[99], last)

	none := func(int, segment.Frame) error { t.Fatal("called"); return nil }
	require.NoError(t, r.Unpack(blob, 0, 0, none))
	require.NoError(t, r.Unpack(blob, 100, 0, none))
	for _, bad := range [][2]int{{100, 1}, {101, 0}, {-1, 1}, {0, -1}, {math.MaxInt, math.MaxInt}} {
		require.ErrorIs(t, r.Unpack(blob, bad[0], bad[1], none), segment.ErrCorrupt, bad)
	}
	require.ErrorIs(t, r.Unpack(blob, 90, 11, func(int, segment.Frame) error { return nil }), segment.ErrCorrupt)
	_, err = r.Frame(blob, -1)
	require.ErrorIs(t, err, segment.ErrCorrupt)

	stop := errors.New("stop")
	require.ErrorIs(t, r.Unpack(blob, 0, 100, func(int, segment.Frame) error { return stop }), stop)
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

// random frames do not compress.
func random(n int) []segment.Frame {
	frames := sample(n)
	for i := range frames {
		payload := make([]byte, 256)
		for j := 0; j < len(payload); j += 16 {
			v := uuid.New()
			copy(payload[j:], v[:])
		}
		frames[i].Payload = payload
	}
	return frames
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

// The collector may empty a pool between runs, and the race detector does so at
// random; hence the slack. It is far below one per frame.
const allocationSlack = 20

func TestPackingAllocatesNothingPerFrame(t *testing.T) {
	p := newPacker(t)
	pack := func(frames []segment.Frame) float64 {
		return testing.AllocsPerRun(20, func() {
			if _, _, err := p.Pack(frames); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, frames := range [][]segment.Frame{sample(1), sample(100), sample(400), random(400)} {
		require.LessOrEqual(t, pack(frames), 2.0+allocationSlack, "the two blobs, for %d frames", len(frames))
	}
}

func TestUnpackingAllocatesNothingPerFrame(t *testing.T) {
	r := newReader(t, 0)
	for _, frames := range [][]segment.Frame{sample(1), sample(100), sample(400), random(400)} {
		blob, _, err := newPacker(t).Pack(frames)
		require.NoError(t, err)
		allocated := testing.AllocsPerRun(20, func() {
			if err := r.Unpack(blob, 0, len(frames), func(int, segment.Frame) error { return nil }); err != nil {
				t.Fatal(err)
			}
		})
		require.LessOrEqual(t, allocated, 0.0+allocationSlack, "for %d frames", len(frames))
	}
}

// Nothing that the packer or the reader hands out may change when it is used
// again, from as many goroutines as there are.
func TestPackersAndReadersAreShared(t *testing.T) {
	t.Parallel()
	p, r := newPacker(t), newReader(t, 0)
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			for n := 1; n < 60; n += 7 {
				frames := random(n)
				blob, hashes, err := p.Pack(frames)
				if err != nil {
					return err
				}
				if _, _, err := p.Pack(sample(50)); err != nil {
					return err
				}
				kept, err := r.Frame(blob, n-1)
				if err != nil {
					return err
				}
				err = r.Unpack(blob, 0, n, func(i int, f segment.Frame) error {
					h := segment.Hash(frames[i].TransactionID)
					if !bytes.Equal(f.Payload, frames[i].Payload) || !bytes.Equal(h[:], hashes[16*i:16*i+16]) {
						return fmt.Errorf("frame %d of %d is another", i, n)
					}
					return nil
				})
				if err != nil {
					return err
				}
				if !bytes.Equal(kept.Payload, frames[n-1].Payload) || kept.TransactionID != frames[n-1].TransactionID {
					return errors.New("a copied frame changed")
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// Repeats far apart and few, none at all, and many: whatever encoder is chosen,
// the frames come back, and repetitive payloads profit from the level.
func TestEveryKindOfPayloadSurvivesTheChoiceOfTheEncoder(t *testing.T) {
	t.Parallel()
	noise := rand.New(rand.NewPCG(1, 2))
	random := func() []byte {
		b := make([]byte, 200)
		for i := range b {
			b[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[noise.IntN(64)]
		}
		return b
	}
	same := random()
	for name, payload := range map[string]func(i int) []byte{
		"random":        func(int) []byte { return random() },
		"equal":         func(int) []byte { return same },
		"random, equal": func(i int) []byte { return map[bool][]byte{true: random(), false: same}[i < 100] },
		"tiny":          func(int) []byte { return []byte("1") },
	} {
		for _, level := range []int{1, 3, 9} {
			packer, err := segment.NewPacker(level)
			require.NoError(t, err)
			reader, err := segment.NewReader(0)
			require.NoError(t, err)
			for _, n := range []int{1, 2, 40, 300} {
				frames := make([]segment.Frame, n)
				raw := 0
				for i := range frames {
					frames[i] = segment.Frame{TransactionID: fmt.Sprint(i), Payload: payload(i)}
					raw += frames[i].Size()
				}
				blob, _, err := packer.Pack(frames)
				require.NoError(t, err)
				got := 0
				require.NoError(t, reader.Unpack(blob, 0, n, func(i int, f segment.Frame) error {
					require.Equal(t, frames[i].Payload, f.Payload)
					got++
					return nil
				}))
				require.Equal(t, n, got)
				if name == "equal" && n == 300 {
					require.Less(t, len(blob), raw/10)
				}
			}
		}
	}
}
