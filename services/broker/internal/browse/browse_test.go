package browse_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/browse"
)

var (
	lane    = uuid.MustParse("0190b7a4-0000-7000-8000-000000000001")
	errLost = errors.New("connection lost")
)

// fakeStore has one lane. What was read of it is noted.
type fakeStore struct {
	listing  string
	segments []store.Segment
	place    store.Place
	missing  bool // the lane
	state    store.RawJSON
	err      error

	asked  [][]store.SegmentKey
	bytes  int64
	search []int64
}

func (f *fakeStore) ListMessages(context.Context, store.MessageFilter) (store.RawJSON, error) {
	return store.RawJSON(f.listing), f.err
}

func (f *fakeStore) FindMessage(context.Context, uuid.UUID, uuid.UUID, [16]byte) (store.Place, bool, error) {
	return f.place, !f.missing, f.err
}

func (f *fakeStore) MessageState(context.Context, uuid.UUID, uuid.UUID, int64) (store.RawJSON, error) {
	return f.state, f.err
}

func (f *fakeStore) SegmentAt(_ context.Context, _ uuid.UUID, off int64) (store.Segment, bool, error) {
	for _, s := range f.segments {
		if s.Base <= off && off <= s.End {
			return s, true, nil
		}
	}
	return store.Segment{}, false, nil
}

func (f *fakeStore) SegmentsAt(_ context.Context, keys []store.SegmentKey, maxBytes int64) (map[store.SegmentKey]store.Segment, error) {
	f.asked, f.bytes = append(f.asked, keys), maxBytes
	out := make(map[store.SegmentKey]store.Segment)
	for _, key := range keys {
		if s, ok, _ := f.SegmentAt(context.Background(), key.PartitionID, key.Base); ok {
			out[key] = s
		}
	}
	return out, nil
}

func (f *fakeStore) SegmentsBelow(_ context.Context, _ uuid.UUID, below int64, maxRows int, _ int64) (out []store.Segment, err error) {
	f.search = append(f.search, below)
	for i := len(f.segments) - 1; i >= 0 && len(out) < maxRows; i-- {
		if f.segments[i].Base < below {
			out = append(out, f.segments[i])
		}
	}
	return out, nil
}

// bench is a service over a fake.
type bench struct {
	*fakeStore
	*browse.Service
	t      *testing.T
	packer *segment.Packer
}

func setup(t *testing.T, cfg browse.Config) *bench {
	t.Helper()
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(t, err)
	f := &fakeStore{state: store.RawJSON(`{"status":"pending"}`)}
	return &bench{f, browse.New(cfg, browse.Deps{Store: f, Reader: reader, Logger: slog.New(slog.DiscardHandler)}), t, packer}
}

// stored adds a segment with one frame per payload; transaction ids are t and the offset.
func (b *bench) stored(payloads ...string) {
	b.t.Helper()
	base := int64(0)
	if n := len(b.segments); n > 0 {
		base = b.segments[n-1].End + 1
	}
	var frames []segment.Frame
	for i, payload := range payloads {
		frames = append(frames, segment.Frame{MessageID: uuid.New(), TransactionID: fmt.Sprint("t", base+int64(i)), Payload: []byte(payload)})
	}
	blob, _, err := b.packer.Pack(frames)
	require.NoError(b.t, err)
	b.segments = append(b.segments, store.Segment{Base: base, End: base + int64(len(frames)) - 1, CreatedAt: time.Unix(1, 5e6), Blob: blob})
}

// listed makes the listing show frames, given as base and index.
func (b *bench) listed(places ...[2]int) {
	var rows []string
	for _, p := range places {
		rows = append(rows, fmt.Sprintf(`{"partitionId":%q,"segment":{"seq":%d,"frameIdx":%d},"busStatus":{}}`, lane, p[0], p[1]))
	}
	b.listing = fmt.Sprintf(`{"messages":[%s],"mode":{"type":"none"},"total":%d,"next":"mark"}`, strings.Join(rows, ","), len(rows))
}

type row struct {
	TransactionID    *string
	PayloadAvailable bool
	Data, Payload    json.RawMessage
	PayloadBytes     int
	PayloadPreview   string
}

func (b *bench) page() []row {
	b.t.Helper()
	doc, err := b.Page(b.t.Context(), store.MessageFilter{})
	require.NoError(b.t, err)
	var out struct {
		Messages []row
		Total    int
		Next     string
	}
	require.NoError(b.t, json.Unmarshal(doc, &out))
	require.Equal(b.t, "mark", out.Next)
	require.Len(b.t, out.Messages, out.Total)
	return out.Messages
}

func TestAPageReadsEachOfItsSegmentsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, browse.Config{PageBytes: 77})
	b.stored("0", "1", "2", "3")
	b.stored("4")
	b.stored("5", "6")
	b.listed([2]int{5, 1}, [2]int{0, 3}, [2]int{5, 0}, [2]int{0, 1})
	rows := b.page()
	for i, want := range []string{"6", "3", "5", "1"} {
		require.Equal(t, "t"+want, *rows[i].TransactionID)
		require.Equal(t, want, string(rows[i].Data))
		require.Equal(t, want, string(rows[i].Payload))
		require.True(t, rows[i].PayloadAvailable)
	}
	require.Equal(t, [][]store.SegmentKey{{{PartitionID: lane, Base: 5}, {PartitionID: lane, Base: 0}}}, b.asked, "two segments for four messages")
	require.Equal(t, int64(77), b.bytes)
}

func TestMessagesThatCannotBeReadAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t, browse.Config{})
	b.stored("0", "1")
	b.stored("2")
	b.segments[1].Blob = []byte("damaged")
	b.listed([2]int{9, 0}, [2]int{2, 0}, [2]int{0, 7}, [2]int{0, 0})
	rows := b.page()
	for _, r := range rows[:3] {
		require.False(t, r.PayloadAvailable)
		require.Nil(t, r.TransactionID)
		require.Equal(t, "null", string(r.Data))
	}
	require.True(t, rows[3].PayloadAvailable, "what lies before the damage")
}

func TestPreviews(t *testing.T) {
	t.Parallel()
	b := setup(t, browse.Config{PreviewBytes: 6})
	b.stored(`"1234"`, `"12345"`, `"123éx"`, ``, `{"a":"<"}`)
	b.listed([2]int{0, 0}, [2]int{0, 1}, [2]int{0, 2}, [2]int{0, 3})
	rows := b.page()
	require.Equal(t, row{rows[0].TransactionID, true, json.RawMessage(`"1234"`), json.RawMessage(`"1234"`), 0, ""}, rows[0], "as long as is allowed")
	require.Equal(t, row{rows[1].TransactionID, true, json.RawMessage(`null`), json.RawMessage(`null`), 7, `"12345`}, rows[1])
	require.Equal(t, `"123é`, rows[2].PayloadPreview)
	require.Equal(t, row{rows[3].TransactionID, true, json.RawMessage(`null`), json.RawMessage(`null`), 0, ""}, rows[3], "an empty one")
}

func (b *bench) message(txn string) (map[string]any, error) {
	b.t.Helper()
	doc, err := b.Message(b.t.Context(), store.DefaultTenant(), lane, txn)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	require.NoError(b.t, json.Unmarshal(doc, &out))
	return out, nil
}

func TestAMessageIsShownWhole(t *testing.T) {
	t.Parallel()
	b := setup(t, browse.Config{PreviewBytes: 1})
	b.stored(`"first"`, `{"a":"<&>"}`)
	b.place = store.Place{Offset: 1, Known: true}
	m, err := b.message("t1")
	require.NoError(t, err)
	require.Equal(t, "t1", m["transactionId"])
	require.Equal(t, map[string]any{"a": "<&>"}, m["payload"])
	require.Equal(t, m["payload"], m["data"])
	require.Equal(t, "1970-01-01T00:00:01.005Z", m["createdAt"])
	require.Equal(t, "pending", m["status"])
	require.Empty(t, b.search)
}

func TestMessagesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(b *bench)
		want   error
	}{
		"no lane":        {func(b *bench) { b.missing = true }, browse.ErrNotFound},
		"no segment":     {func(b *bench) { b.segments = nil }, browse.ErrNotFound},
		"damage":         {func(b *bench) { b.segments[0].Blob = []byte("x") }, browse.ErrDecode},
		"deleted since":  {func(b *bench) { b.state = nil }, browse.ErrNotFound},
		"not in sidecar": {func(b *bench) { b.place = store.Place{Floor: 1} }, browse.ErrNotFound},
		"database":       {func(b *bench) { b.err = errLost }, errLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, browse.Config{})
			b.stored("0")
			b.place = store.Place{Known: true}
			c.change(b)
			_, err := b.message("unknown")
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestTheSearchIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, browse.Config{ScanSegments: 100})
	for range 101 {
		b.stored("0")
	}
	b.place = store.Place{Floor: 101}
	m, err := b.message("t1")
	require.NoError(t, err, "the hundredth segment from the end")
	require.Equal(t, "t1", m["transactionId"])
	require.Equal(t, []int64{101, 37}, b.search)
	_, err = b.message("t0")
	require.ErrorIs(t, err, browse.ErrNotFound, "the next one")

	b.segments[50].Blob = []byte("damaged")
	_, err = b.message("t40")
	require.NoError(t, err, "damage does not end it")
}
