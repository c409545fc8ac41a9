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
		frames[i] = segment.Frame{MessageID: uuid.New(), TransactionID: fmt.Sprint("t", i), Payload: fmt.Append(nil, i)}
	}
	frames[7].ProducerSub = "me"
	blob, _, err := packer.Pack(frames)
	require.NoError(t, err)
	d, err := reader.Decode(blob)
	require.NoError(t, err)
	require.Positive(t, d.Size())
	for _, r := range [][2]int{{0, 50}, {7, 1}, {49, 1}, {10, 20}, {50, 0}, {49, 2}, {50, 1}, {-1, 1}, {0, -1}} {
		var want, got []segment.Frame
		wantErr := reader.Unpack(blob, r[0], r[1], func(_ int, f segment.Frame) error {
			f.TransactionID, f.ProducerSub, f.Payload = string([]byte(f.TransactionID)), string([]byte(f.ProducerSub)), append([]byte(nil), f.Payload...)
			want = append(want, f)
			return nil
		})
		gotErr := d.Unpack(r[0], r[1], func(_ int, f segment.Frame) error {
			got = append(got, f)
			return nil
		})
		require.Equal(t, want, got, r)
		if wantErr == nil {
			require.NoError(t, gotErr)
			continue
		}
		require.ErrorIs(t, wantErr, segment.ErrCorrupt)
		require.ErrorIs(t, gotErr, segment.ErrCorrupt)
	}
	_, err = reader.Decode(blob[:len(blob)/2])
	require.ErrorIs(t, err, segment.ErrCorrupt)
}
