package segment_test

import (
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

func FuzzUnpack(f *testing.F) {
	p := newPacker(f)
	blob, _, err := p.Pack(sample(3))
	require.NoError(f, err)
	f.Add(blob)
	f.Add(blob[:len(blob)/2])
	f.Add(append(blob, blob...))
	f.Add([]byte{})
	f.Add([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0})
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
	p := newPacker(f)
	blob, _, err := p.Pack(sample(3))
	require.NoError(f, err)
	f.Add(decompress(f, blob))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		blob := e.EncodeAll(raw, nil)
		n, err := r.Count(blob)
		if err != nil {
			require.ErrorIs(t, err, segment.ErrCorrupt)
			return
		}
		var frames []segment.Frame
		for i := range n {
			f, err := r.Frame(blob, i)
			require.NoError(t, err)
			frames = append(frames, f)
		}
		if n == 0 {
			return
		}
		// What can be read can be written, and says the same again.
		again, _, err := p.Pack(frames)
		require.NoError(t, err)
		require.NoError(t, r.Unpack(again, 0, n, func(i int, f segment.Frame) error {
			require.Equal(t, frames[i].TransactionID, f.TransactionID)
			require.Equal(t, string(frames[i].Payload), string(f.Payload))
			return nil
		}))
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
