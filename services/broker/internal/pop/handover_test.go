package pop_test

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/tails"
)

// oneByOne asks for single messages.
func oneByOne(timeout time.Duration) pop.Request {
	q := query(timeout > 0, timeout)
	q.Batch = 1
	return wildcard(q)
}

// reading has a consumer lease the first message of lane "a", and returns the whole
// segment and the ack that ends the lease.
func (b *bundle) reading(t *testing.T, payloads ...string) (store.Popped, store.AckRow) {
	t.Helper()
	b.known(t, "a")
	whole := b.claimOf(t, "a", 0, payloads...)
	first := whole
	first.Segments = []store.PoppedSegment{whole.Segments[0]}
	first.Segments[0].Take = 1
	b.store.lastOffset = 200
	b.store.add([]store.Popped{first})
	body, err := b.svc.Pop(t.Context(), oneByOne(0))
	require.NoError(t, err)
	return whole, store.AckRow{PartitionID: whole.PartitionID, Group: "g", Worker: decode(t, body).LeaseID, End: whole.Segments[0].Base, Count: 1}
}

// boarding parks a request and has it ride with a row.
func (b *bundle) boarding(t *testing.T, req pop.Request, row store.AckRow) (<-chan answer, ackfusion.Rides) {
	t.Helper()
	out := b.start(t.Context(), req)
	synctest.Wait()
	rides := b.svc.Board([]store.AckRow{row})
	require.NotNil(t, rides)
	return out, rides
}

func TestALaneIsHandedOverWhereItsNextMessagesAreInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		whole, row := b.reading(t, "0", "1", "2", "3")
		asked := len(b.store.calls)
		for i := 1; i < 4; i++ {
			req := oneByOne(500 * time.Millisecond)
			req.Query.LeaseSeconds = 7
			out, rides := b.boarding(t, req, row)
			next := rides.Next()
			require.Empty(t, next.Pops)
			require.Len(t, next.Handovers, 1)
			h := next.Handovers[0]
			s := whole.Segments[0]
			require.NotEqual(t, row.Worker, h.Worker)
			require.Equal(t, store.Handover{
				Worker: h.Worker, LeaseSeconds: 7, Until: s.Base + int64(i),
				Segment: store.KnownSegment{PartitionID: whole.PartitionID, Base: s.Base, CreatedAt: s.CreatedAt},
			}, h)
			require.Equal(t, []int{0}, rides.Land(store.NextServed{Handed: []int64{200}}, nil))
			a := <-out
			require.NoError(t, a.err)
			r := decode(t, a.body)
			require.Equal(t, h.Worker, r.LeaseID)
			require.Equal(t, whole.PartitionID.String(), r.PartitionID)
			require.Len(t, r.Messages, 1)
			require.Equal(t, strconv.Itoa(i), string(r.Messages[0].Data))
			require.Equal(t, s.CreatedAt, r.Messages[0].CreatedAt)
			told := b.told[len(b.told)-1]
			require.Equal(t, []any{whole.PartitionID, "g", h.Worker, h.Until}, []any{told.partition, told.group, told.worker, told.end})
			row.Worker, row.End = h.Worker, h.Until
		}
		require.Len(t, b.store.calls, asked, "nothing was read")
		out, rides := b.boarding(t, oneByOne(100*time.Millisecond), row)
		require.Empty(t, rides.Next().Handovers, "the segment is at its end")
		rides.Land(store.NextServed{}, errTimeout)
		<-out
	})
}

// writtenBehind tells of a segment that was written right behind a row, of a lane that
// somebody has looked for before.
func (b *bundle) writtenBehind(t *testing.T, row store.AckRow, payloads ...string) store.PoppedSegment {
	t.Helper()
	_, ok := b.tails.Find(row.PartitionID, row.End+1)
	require.False(t, ok)
	s := b.claimOf(t, "a", 0, payloads...).Segments[0]
	at, err := time.Parse(time.RFC3339, s.CreatedAt)
	require.NoError(t, err)
	b.tails.Wrote(row.PartitionID, tails.Segment{Base: row.End + 1, Count: len(payloads), CreatedAt: at, Blob: s.Blob})
	return s
}

func TestALaneIsHandedOverRightBehindItsProducers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		_, row := b.reading(t, "0")
		written := b.writtenBehind(t, row, "1", "2", "3")
		req := oneByOne(time.Second)
		req.Query.Batch = 2
		out, rides := b.boarding(t, req, row)
		h := rides.Next().Handovers
		require.Len(t, h, 1)
		require.Equal(t, row.End+2, h[0].Until)
		require.Equal(t, store.KnownSegment{PartitionID: row.PartitionID, Base: row.End + 1, CreatedAt: written.CreatedAt}, h[0].Segment)
		rides.Land(store.NextServed{Handed: []int64{200}}, nil)
		a := <-out
		require.NoError(t, a.err)
		r := decode(t, a.body)
		require.Len(t, r.Messages, 2)
		require.Equal(t, "1", string(r.Messages[0].Data))
		require.Equal(t, "2", string(r.Messages[1].Data))
	})
}

// Acks wait while a segment is decoded for a handover: a large one is not.
func TestLargeSegmentsAreLeftToClaims(t *testing.T) {
	t.Parallel()
	for kib, handed := range map[int]bool{500: true, 520: false} {
		synctest.Test(t, func(t *testing.T) {
			b := setupFused(t, pop.Config{})
			_, row := b.reading(t, "0")
			b.writtenBehind(t, row, "1", strconv.Quote(strings.Repeat("x", kib<<10)))
			out, rides := b.boarding(t, oneByOne(100*time.Millisecond), row)
			require.Equal(t, handed, len(rides.Next().Handovers) == 1)
			rides.Land(store.NextServed{}, errTimeout)
			<-out
		})
	}
}

func TestAHandoverThatIsRefusedLeavesThePopToItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		_, row := b.reading(t, "0", "1")
		out, rides := b.boarding(t, oneByOne(500*time.Millisecond), row)
		require.Len(t, rides.Next().Handovers, 1)
		b.store.states = map[string]store.CandidateState{"a": {Partition: "a", State: store.StateEmpty}}
		require.Empty(t, rides.Land(store.NextServed{Handed: []int64{store.Refused}}, nil))
		a := <-out
		require.NoError(t, a.err)
		require.Nil(t, a.body, "it has gone on waiting")
		require.Equal(t, 1, b.store.count("list"), "and looked for itself")
	})
}

func TestWhatIsNotHandedOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payloads []string
		cache    int64
		change   func(req *pop.Request, row *store.AckRow)
	}{
		"more than is left of the segment": {[]string{"0", "1"}, 0, func(r *pop.Request, _ *store.AckRow) { r.Query.Batch = 2 }},
		"what does not follow the batch":   {[]string{"0", "1", "2"}, 0, func(_ *pop.Request, row *store.AckRow) { row.End++ }},
		"very large messages":              {[]string{"0", strconv.Quote(strings.Repeat("x", 600<<10)), "2"}, 0, nil},
		"anything without a segment cache": {[]string{"0", "1"}, -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupFused(t, pop.Config{SegmentCache: c.cache})
				_, row := b.reading(t, c.payloads...)
				req := oneByOne(100 * time.Millisecond)
				if c.change != nil {
					c.change(&req, &row)
				}
				out, rides := b.boarding(t, req, row)
				require.Empty(t, rides.Next().Handovers)
				require.Len(t, rides.Next().Pops, 1)
				rides.Land(store.NextServed{}, errTimeout)
				<-out
			})
		})
	}
}
