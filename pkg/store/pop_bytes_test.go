package store_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	queensegment "github.com/queenmq/queen/pkg/segment"
)

// packed is a segment of n frames whose payloads are size equal bytes each: zstd
// makes next to nothing of them. decoded is what it unpacks to.
func packed(t *testing.T, n, size int) (blob []byte, decoded int64) {
	t.Helper()
	packer, err := queensegment.NewPacker(queensegment.DefaultLevel)
	require.NoError(t, err)
	frames := make([]queensegment.Frame, n)
	for i := range frames {
		frames[i] = queensegment.Frame{TransactionID: strconv.Itoa(i % 10), Payload: bytes.Repeat([]byte{'7'}, size)}
	}
	blob, _, err = packer.Pack(frames)
	require.NoError(t, err)
	const frame = 4 + 1 + 16 + 2 + 1 // length, flags, message id, length and byte of the transaction id
	return blob, int64(n * (frame + size))
}

func TestBlobSizeIsReadFromTheFrameHeader(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	size := func(blob []byte) int64 { return b.count(`SELECT queen.log_blob_size($1)`, blob) }
	// Around the limits of the size field's widths, and past a TOAST chunk.
	for _, payload := range []int{0, 1, 200, 231, 232, 255, 256, 300, 65500, 65767, 65768, 65800, 1 << 20, 20 << 20} {
		blob, decoded := packed(t, 1, payload)
		require.Equal(t, decoded, size(blob), payload)
	}
	for header, want := range map[string]int64{
		"28b52ffd20" + "07" + "000000":                      7,          // single segment, one byte
		"28b52ffd60" + "0100" + "0000":                      257,        // two bytes, plus 256
		"28b52ffd40" + "58" + "0100" + "00":                 257,        // with a window byte
		"28b52ffda0" + "00000180":                           2147549184, // four bytes, unsigned
		"28b52ffde3" + "aabbccdd" + "0000000001" + "000000": 1 << 32,    // eight bytes behind a dictionary id
		"28b52ffde0" + "ffffffffffffffff":                   9223372036854775807,
		"28b52ffd00" + "58" + "00000000":                    10, // no size given: stored length
		"28b52ffde0" + "0000":                               7,  // cut short: stored length
		"28b52ffd":                                          4,
		"":                                                  0,
		"00b52ffd2007":                                      6, // not zstd
	} {
		blob, err := hex.DecodeString(header)
		require.NoError(t, err)
		require.Equal(t, want, size(blob), header)
	}
}

func TestByteBoundCutsAReplyBeforeLeasing(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob, decoded := packed(t, 10, 1000)
	per := decoded / 10
	pid := b.lay("q", "p", laid{0, 10, hour, blob}, laid{10, 10, hour, blob})
	for i, tt := range []struct{ bound, want int64 }{
		{1, 1}, {per - 1, 1}, {per, 1}, {2*per - 1, 1}, {2 * per, 2}, {decoded - 1, 9}, {decoded, 10}, {decoded + per - 1, 10},
		{decoded + per, 11}, {2*decoded - 1, 19}, {2 * decoded, 20}, {1 << 40, 20}, {0, 20}, {-1, 20},
	} {
		group := "g" + string(rune('a'+i))
		p := popArgs(group, 100)
		p.MaxBytes = tt.bound
		require.Equal(t, []span{{"p", 0, tt.want - 1}}, b.specific("q", "p", p), "%d bytes", tt.bound)
		require.Equal(t, tt.want-1, b.cursor(pid, group).BatchEnd, "%d bytes", tt.bound)
	}
	var bound string
	for range 8 {
		b.one([]any{&bound}, `SELECT coalesce(current_setting('queen.pop_max_bytes', TRUE), '')`)
		require.Empty(t, bound, "the bound belongs to one transaction")
	}
	for _, odd := range []string{"", "0", "-5", "much", "99999999999999999999"} {
		b.inTx(func(ctx context.Context, tx pgx.Tx) error {
			var n int64
			err := tx.QueryRow(ctx, `SELECT queen.log_pop_max_bytes() FROM set_config('queen.pop_max_bytes', $1, TRUE)`, odd).Scan(&n)
			require.Equal(t, int64(16<<20), n, odd)
			return err
		})
	}
}

func TestByteBoundHoldsAcrossPartitions(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob, decoded := packed(t, 10, 1000)
	per := decoded / 10
	names := []string{"a", "b", "c"}
	pids := map[string]uuid.UUID{}
	for _, n := range names {
		pids[n] = b.lay("q", n, laid{0, 10, hour, blob})
	}
	for i, tt := range []struct {
		bound int64
		want  []span
	}{
		{1, []span{{"a", 0, 0}}},
		{decoded, []span{{"a", 0, 9}}},
		{decoded + per - 1, []span{{"a", 0, 9}}},
		{decoded + per, []span{{"a", 0, 9}, {"b", 0, 0}}},
		{2*decoded + 3*per, []span{{"a", 0, 9}, {"b", 0, 9}, {"c", 0, 2}}},
	} {
		group := "g" + string(rune('a'+i))
		p := popArgs(group, 100)
		p.MaxBytes = tt.bound
		r := b.list("q", names, p)
		require.Equal(t, tt.want, spans(r.Claimed), "%d bytes", tt.bound)
		require.Len(t, r.States, len(tt.want), "no verdict on what the bound cut off")
		require.Equal(t, int64(len(tt.want)), b.count(`SELECT count(*) FROM queen.log_consumers
			WHERE consumer_group = $1 AND worker_id IS NOT NULL`, group), "later partitions are not leased")

		p = popArgs(group+"w", 100)
		p.MaxBytes = tt.bound
		var want, got int64
		for _, s := range tt.want {
			want += s.last + 1
		}
		for _, s := range b.wildcard("q", p) {
			got += s.last + 1
		}
		require.Equal(t, want, got, "wildcard, %d bytes", tt.bound)
	}
}

// TestByteBoundDefaultsTo16MiBOfDecodedBytes uses payloads of which zstd leaves a
// few kilobytes: a bound on stored bytes would let all of it pass.
func TestByteBoundDefaultsTo16MiBOfDecodedBytes(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob, decoded := packed(t, 6, 1<<20)
	require.Less(t, len(blob), 64<<10)
	b.lay("q", "p", laid{0, 6, hour, blob}, laid{6, 6, hour, blob}, laid{12, 6, hour, blob}, laid{18, 6, hour, blob})
	fit := (16 << 20) / (decoded / 6)
	require.Equal(t, int64(15), fit)
	require.Equal(t, []span{{"p", 0, fit - 1}}, b.specific("q", "p", popArgs("g", 100)))
	require.Equal(t, []span{{"p", 0, fit - 1}}, b.wildcard("q", popArgs("w", 100)))

	huge, _ := packed(t, 1, 20<<20)
	b.lay("big", "p", laid{0, 1, hour, huge}, laid{1, 1, hour, huge})
	require.Equal(t, []span{{"p", 0, 0}}, b.specific("big", "p", popArgs("g", 100)), "at least one message")
}
