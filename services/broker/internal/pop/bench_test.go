package pop_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// BenchmarkPop renders 1000 messages of 256 bytes, out of segments of several
// sizes, under a lease.
func BenchmarkPop(b *testing.B) {
	for _, size := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("segments of %d", size), func(b *testing.B) { benchmarkPop(b, 1000, size) })
	}
}

func benchmarkPop(b *testing.B, messages, size int) {
	s := setup(b, pop.Config{})
	s.forget = true
	c := []store.Popped{s.segments(b, messages, size)}
	req := wildcard(query(false, 0))
	b.ReportAllocs()
	for b.Loop() {
		s.store.claims, s.store.calls = append(s.store.claims[:0], c), s.store.calls[:0]
		body, err := s.svc.Pop(b.Context(), req)
		require.NoError(b, err)
		require.NotEmpty(b, body)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(messages), "ns/msg")
}

// segments is a claim of whole segments of 256 byte messages.
func (b *bundle) segments(t testing.TB, messages, size int) store.Popped {
	t.Helper()
	c := store.Popped{Partition: "a", PartitionID: uuid.New(), DeliveryAttempt: 1}
	for base := 0; base < messages; base += size {
		frames := make([]segment.Frame, size)
		for i := range frames {
			payload := strings.Repeat(string(rune('a'+(base+i)%26)), 100) + uuid.NewString() + uuid.NewString() + strings.Repeat("x", 70)
			frames[i] = segment.Frame{MessageID: uuid.New(), TransactionID: uuid.NewString(), Payload: fmt.Appendf(nil, `{"d":%q}`, payload)}
		}
		blob, _, err := b.packer.Pack(frames)
		require.NoError(t, err)
		c.Segments = append(c.Segments, store.PoppedSegment{
			Base: int64(base), Take: size, Count: size, CreatedAt: "2026-03-01T08:00:00.000123Z", Blob: blob,
		})
	}
	return c
}

// One body and a few objects for each partition, but none for a message. The race
// detector has pools forget at random.
func TestRenderingAllocatesNothingForAMessage(t *testing.T) {
	count := func(messages, size int) float64 {
		b := setup(t, pop.Config{})
		b.forget = true
		c := []store.Popped{b.segments(t, messages, size)}
		req := wildcard(query(false, 0))
		return testing.AllocsPerRun(20, func() {
			b.store.claims, b.store.calls = append(b.store.claims[:0], c), b.store.calls[:0]
			_, err := b.svc.Pop(t.Context(), req)
			require.NoError(t, err)
		})
	}
	few := count(100, 100)
	require.Less(t, few, 50.0)
	require.Less(t, count(1000, 1000)-few, 100.0)
	require.Less(t, count(1000, 10)-few, 500.0)
}
