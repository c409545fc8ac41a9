package segment_test

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

func BenchmarkPack100x256(b *testing.B) {
	for name, frames := range map[string][]segment.Frame{
		"compressible": sample(100), "random": random(100), "text": text(100), "text of 4": text(4),
	} {
		b.Run(name, func(b *testing.B) {
			p := newPacker(b)
			b.ReportAllocs()
			b.SetBytes(100 * 256)
			for b.Loop() {
				if _, _, err := p.Pack(frames); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// text is random too, in base64.
func text(n int) []segment.Frame {
	frames := random(n)
	for i := range frames {
		frames[i].Payload = []byte(`{"t":1764500000000000,"d":"` + base64.RawURLEncoding.EncodeToString(frames[i].Payload[:171]) + `"}`)
	}
	return frames
}

func BenchmarkPack1x256(b *testing.B) {
	p, frames := newPacker(b), sample(1)
	b.ReportAllocs()
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

func BenchmarkLastFrameOf1000(b *testing.B) {
	r := newReader(b, 0)
	blob, _, err := newPacker(b).Pack(sample(1000))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Frame(blob, 999); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = segment.Hash("0199aa10-1111-7abc-8def-000000000001")
	}
}
