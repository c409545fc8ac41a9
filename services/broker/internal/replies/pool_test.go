package replies_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/replies"
)

func TestBuffersHaveRoomAndAreEmpty(t *testing.T) {
	t.Parallel()
	var none *replies.Pool
	for _, p := range []*replies.Pool{none, {}} {
		for range 3 {
			for _, n := range []int{0, 1, 4095, 4096, 4097, 1 << 20, 4 << 20, 4<<20 + 1, 20 << 20} {
				buf := p.Get(n)
				require.Empty(t, buf)
				require.GreaterOrEqual(t, cap(buf), n)
				p.Put(append(buf, "used"...))
			}
		}
		p.Put(nil)
		p.Put(make([]byte, 5000)) // not one of its sizes
	}
}
