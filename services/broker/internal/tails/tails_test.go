package tails_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/services/broker/internal/tails"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a lane and a segment cost beside blobs, and how many lanes and segments there
// may be.
const (
	laneBytes, segmentBytes = 200, 64
	maxLanes, maxUnread     = 16384, 1024
)

func setup(t require.TestingT, limit int64) *tails.Cache {
	c, err := tails.New(limit)
	require.NoError(t, err)
	return c
}

// lane has an id made of a number.
func lane(n int) uuid.UUID { return uuid.UUID{14: byte(n >> 8), 15: byte(n)} }

// seg is a segment of some messages whose blob has size bytes.
func seg(base int64, count, size int) tails.Segment {
	return tails.Segment{Base: base, Count: count, CreatedAt: time.Unix(base, 0), Blob: make([]byte, size)}
}

// follow has lanes followed.
func follow(t require.TestingT, c *tails.Cache, lanes ...int) {
	for _, n := range lanes {
		_, ok := c.Find(lane(n), 0)
		require.False(t, ok)
	}
}

func has(c *tails.Cache, n int, offset int64) bool {
	_, ok := c.Find(lane(n), offset)
	return ok
}

func TestALaneIsFollowedOnceSomebodyLooks(t *testing.T) {
	t.Parallel()
	c := setup(t, 1<<20)
	c.Wrote(lane(1), seg(0, 3, 10))
	require.Zero(t, c.Bytes())
	follow(t, c, 1)
	require.EqualValues(t, laneBytes, c.Bytes())
	require.False(t, has(c, 1, 0), "what was written before is not known")

	c.Wrote(lane(1), seg(3, 3, 10))
	c.Wrote(lane(2), seg(3, 3, 10))
	c.Wrote(lane(1), seg(6, 1, 20))
	require.EqualValues(t, laneBytes+2*segmentBytes+30, c.Bytes())
	for offset := int64(3); offset < 6; offset++ {
		got, ok := c.Find(lane(1), offset)
		require.True(t, ok)
		require.Equal(t, seg(3, 3, 10), got)
		require.EqualValues(t, 5, got.End())
	}
	require.True(t, has(c, 1, 6))
	require.False(t, has(c, 1, 2))
	require.False(t, has(c, 1, 7))
	require.False(t, has(c, 2, 3))
}

func TestGapsHoldNothing(t *testing.T) {
	t.Parallel()
	c := setup(t, 1<<20)
	follow(t, c, 1)
	for _, base := range []int64{10, 20, 22} {
		c.Wrote(lane(1), seg(base, 2, 1))
	}
	for offset := int64(8); offset < 26; offset++ {
		want := offset == 10 || offset == 11 || offset >= 20 && offset <= 23
		require.Equal(t, want, has(c, 1, offset), offset)
	}
}

// A failover may lose what was committed last: the offsets begin again.
func TestALaneWhoseOffsetsGoBackBeginsAnew(t *testing.T) {
	t.Parallel()
	for _, again := range []tails.Segment{seg(0, 3, 9), seg(3, 3, 9), seg(2, 9, 9), seg(5, 1, 9)} {
		c := setup(t, 1<<20)
		follow(t, c, 1)
		c.Wrote(lane(1), seg(1, 2, 1))
		c.Wrote(lane(1), seg(3, 3, 1))
		c.Wrote(lane(1), again)
		require.EqualValues(t, laneBytes+segmentBytes+9, c.Bytes())
		got, ok := c.Find(lane(1), again.Base)
		require.True(t, ok)
		require.Equal(t, again, got)
		require.False(t, has(c, 1, again.Base-1))
		require.False(t, has(c, 1, again.End()+1))
		c.Wrote(lane(1), seg(20, 1, 9))
		require.True(t, has(c, 1, again.Base))
		require.True(t, has(c, 1, 20))
	}
}

func TestTheLimitOfBytes(t *testing.T) {
	t.Parallel()
	const one = laneBytes + segmentBytes + 100
	for _, tt := range []struct {
		name         string
		limit        int64
		first, other bool
	}{
		{"both", 2 * one, true, true},
		{"one byte less", 2*one - 1, false, true},
		{"one", one, false, true},
		{"none", one - 1, false, false},
		{"not even lanes", laneBytes - 1, false, false},
		{"nothing", 0, false, false},
	} {
		c := setup(t, tt.limit)
		follow(t, c, 1, 2)
		require.LessOrEqual(t, c.Bytes(), tt.limit, tt.name)
		c.Wrote(lane(1), seg(0, 1, 100))
		c.Wrote(lane(2), seg(0, 1, 100))
		require.LessOrEqual(t, c.Bytes(), tt.limit, tt.name)
		require.Equal(t, tt.other, has(c, 2, 0), tt.name)
		require.Equal(t, tt.first, has(c, 1, 0), tt.name)
	}

	// Who was looked for last stays.
	c := setup(t, 2*one+laneBytes)
	follow(t, c, 1, 2)
	c.Wrote(lane(1), seg(0, 1, 100))
	c.Wrote(lane(2), seg(0, 1, 100))
	require.True(t, has(c, 1, 0))
	follow(t, c, 3)
	c.Wrote(lane(3), seg(0, 1, 1))
	require.True(t, has(c, 1, 0))
	require.True(t, has(c, 3, 0))
	require.False(t, has(c, 2, 0))

	// A segment that has no room ends a lane, so that the rest of it can go.
	c = setup(t, one)
	follow(t, c, 1)
	c.Wrote(lane(1), seg(0, 1, one-segmentBytes+1))
	require.Zero(t, c.Bytes())
}

func TestTheLimitOfLanes(t *testing.T) {
	t.Parallel()
	c := setup(t, 1<<40)
	for n := range maxLanes {
		follow(t, c, n)
		c.Wrote(lane(n), seg(0, 1, 1))
	}
	require.EqualValues(t, maxLanes*(laneBytes+segmentBytes+1), c.Bytes())
	require.True(t, has(c, 0, 0))
	follow(t, c, maxLanes)
	require.EqualValues(t, maxLanes*(laneBytes+segmentBytes+1)-segmentBytes-1, c.Bytes())
	require.True(t, has(c, 0, 0))
	require.False(t, has(c, 1, 0), "nobody has looked for it the longest")
}

func TestALaneKeepsItsNewestSegments(t *testing.T) {
	t.Parallel()
	c := setup(t, 1<<40)
	follow(t, c, 1)
	for base := range int64(maxUnread) {
		c.Wrote(lane(1), seg(base, 1, 1))
	}
	require.True(t, has(c, 1, 0))
	full := c.Bytes()
	require.EqualValues(t, laneBytes+maxUnread*(segmentBytes+1), full)
	c.Wrote(lane(1), seg(maxUnread, 1, 1))
	require.Equal(t, full, c.Bytes())
	require.False(t, has(c, 1, 0))
	require.True(t, has(c, 1, 1))
	require.True(t, has(c, 1, maxUnread))
}

func TestALaneThatNobodyReadsIsNoLongerFollowed(t *testing.T) {
	t.Parallel()
	c := setup(t, 1<<40)
	follow(t, c, 1)
	base := int64(0)
	write := func(n int) {
		for range n {
			c.Wrote(lane(1), seg(base, 1, 1))
			base++
		}
	}
	write(maxUnread)
	require.False(t, has(c, 1, base), "a look in vain is one, too")
	write(maxUnread)
	require.True(t, has(c, 1, base-1))
	write(maxUnread + 1)
	require.Zero(t, c.Bytes())
	write(1)
	require.Zero(t, c.Bytes())
	require.False(t, has(c, 1, base-1))
	write(1)
	require.True(t, has(c, 1, base-1), "that look has it followed again")
}

func TestNoCache(t *testing.T) {
	t.Parallel()
	var c *tails.Cache
	c.Wrote(lane(1), seg(0, 1, 1))
	require.False(t, has(c, 1, 0))
	c.Wrote(lane(1), seg(1, 1, 1))
	require.False(t, has(c, 1, 1))
	require.Zero(t, c.Bytes())
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	const limit, lanes = 8 * (laneBytes + 20*segmentBytes), 12
	c := setup(t, limit)
	var group sync.WaitGroup
	for n := range lanes {
		group.Go(func() {
			for base := range int64(3 * maxUnread) {
				c.Wrote(lane(n), seg(base, 1, 1))
			}
		})
		group.Go(func() {
			for offset := range int64(3 * maxUnread) {
				if got, ok := c.Find(lane(n), offset); ok && got.Base != offset {
					t.Errorf("offset %d is not in the segment at %d", offset, got.Base)
				}
				if b := c.Bytes(); b < 0 || b > limit {
					t.Errorf("%d bytes", b)
				}
			}
		})
	}
	group.Wait()
	for n := range lanes { // each has no room for it
		has(c, n, 0)
		c.Wrote(lane(n), seg(1<<40, 1, limit))
	}
	require.Zero(t, c.Bytes())
}

// modelled is a lane of the model, which follows each forever.
type modelled struct {
	segments []tails.Segment
	bytes    int64
}

// With room for all, the cache knows what a plain list does.
func TestTheCacheAgainstAPlainList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := setup(t, 1<<40)
		lanes := make(map[int]*modelled)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n, at := rapid.IntRange(0, 3).Draw(t, "lane"), rapid.Int64Range(0, 60).Draw(t, "offset")
			m := lanes[n]
			if rapid.Bool().Draw(t, "write") {
				s := seg(at, rapid.IntRange(1, 4).Draw(t, "count"), rapid.IntRange(0, 9).Draw(t, "size"))
				c.Wrote(lane(n), s)
				if m == nil {
					continue
				}
				if n := len(m.segments); n > 0 && m.segments[n-1].End() >= at {
					*m = modelled{bytes: laneBytes}
				}
				m.segments = append(m.segments, s)
				m.bytes += int64(len(s.Blob)) + segmentBytes
				continue
			}
			if m == nil {
				m = &modelled{bytes: laneBytes}
				lanes[n] = m
			}
			var want tails.Segment
			found := false
			for _, s := range m.segments {
				if s.Base <= at && at <= s.End() {
					want, found = s, true
				}
			}
			got, ok := c.Find(lane(n), at)
			require.Equal(t, found, ok)
			require.Equal(t, want, got)
		}
		bytes := int64(0)
		for _, m := range lanes {
			bytes += m.bytes
		}
		require.Equal(t, bytes, c.Bytes())
	})
}
