package segment_test

import (
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	r, err := segment.NewReader(limit)
	require.NoError(t, err)
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	squeeze := func(s string) []byte { return w.EncodeAll([]byte(s), nil) }
	for name, tc := range map[string]struct {
		data []byte
		want string
		err  error
	}{
		"one frame":         {squeeze("hello"), "hello", nil},
		"two frames":        {append(squeeze("hel"), squeeze("lo")...), "hello", nil},
		"nothing":           {nil, "", nil},
		"the cap":           {squeeze(strings.Repeat("x", limit)), strings.Repeat("x", limit), nil},
		"more than the cap": {squeeze(strings.Repeat("x", limit+1)), "", segment.ErrTooLarge},
		"more in two":       {append(squeeze(strings.Repeat("x", limit)), squeeze("x")...), "", segment.ErrTooLarge},
		"no zstd":           {[]byte("hello"), "", segment.ErrCorrupt},
		"cut short":         {squeeze("hello")[:8], "", segment.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := r.Expand(tc.data)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want, string(out))
		})
	}
}
