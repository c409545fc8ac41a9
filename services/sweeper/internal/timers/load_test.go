package timers

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

func newLoader(t *testing.T, limit int64) *loader {
	t.Helper()
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(t, err)
	reader, err := segment.NewReader(PayloadMax)
	require.NoError(t, err)
	return &loader{packer: packer, reader: reader, limit: limit, time: time.Hour, seed: maphash.MakeSeed()}
}

func timer(key, partition, payload string) *held {
	return &held{ClaimedTimer: store.ClaimedTimer{
		TimerKey:  store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: key},
		Partition: partition, Txn: "txn-" + key, MessageID: uuid.New(), Payload: []byte(payload), Token: uuid.New(),
	}}
}

// frames are those of a segment.
func frames(t *testing.T, blob []byte, n int) (out []segment.Frame) {
	t.Helper()
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	for i := range n {
		f, err := reader.Frame(blob, i)
		require.NoError(t, err)
		out = append(out, f)
	}
	return out
}

func keysOf(volleys []volley) (out []string) {
	for _, v := range volleys {
		var lanes []string
		for _, s := range v {
			lanes = append(lanes, s.Partition+":"+strings.Join(s.Keys, ","))
		}
		out = append(out, strings.Join(lanes, " "))
	}
	return out
}

func TestTimersArePackedByLane(t *testing.T) {
	t.Parallel()
	l := newLoader(t, 1<<20)
	a, b, c := timer("a", "x", `1`), timer("b", "y", `2`), timer("c", "x", `3`)
	c.Encrypted, c.ProducerSub = true, "somebody"
	other := timer("a", "x", `4`)
	other.Tenant = uuid.New()
	volleys, misfits, _ := l.load([]*held{a, b, c, other})
	require.Empty(t, misfits)
	require.Equal(t, []string{"x:a,c y:b x:a"}, keysOf(volleys), "never without the tenant")
	x := volleys[0][0]
	require.Equal(t, []uuid.UUID{a.Token, c.Token}, x.Tokens)
	require.Len(t, x.Hashes, 2*segment.HashSize)
	require.Equal(t, []segment.Frame{
		{MessageID: a.MessageID, TransactionID: "txn-a", Payload: []byte(`1`)},
		{MessageID: c.MessageID, TransactionID: "txn-c", Payload: []byte(`3`), Encrypted: true, ProducerSub: "somebody"},
	}, frames(t, x.Blob, 2))
}

// What is no JSON would spoil the answers that it stands in.
func TestPayloadsThatAreNoJSONArePackedAsBase64(t *testing.T) {
	t.Parallel()
	zipped := timer("c", "x", string(squeezed(t, `{`)))
	zipped.PayloadZstd = true
	volleys, misfits, _ := newLoader(t, 1<<20).load([]*held{timer("a", "x", `1},{"id":2`), timer("b", "x", ` {"a": 1} `), zipped})
	require.Empty(t, misfits)
	var got []string
	for _, f := range frames(t, volleys[0][0].Blob, 3) {
		got = append(got, string(f.Payload))
	}
	require.Equal(t, []string{`{"$raw":"MX0seyJpZCI6Mg=="}`, ` {"a": 1} `, `{"$raw":"ew=="}`}, got)
}

func TestAVolleyIsCappedInBytes(t *testing.T) {
	t.Parallel()
	timers := func() (out []*held) {
		for i := range 4 {
			out = append(out, timer(fmt.Sprint(i), fmt.Sprint("p", i%2), strings.Repeat("7", 100)))
		}
		return out
	}
	f := segment.Frame{TransactionID: "txn-0", Payload: make([]byte, 100)}
	size := int64(f.Size())
	for limit, want := range map[int64][]string{
		4 * size:   {"p0:0,2 p1:1,3"},
		4*size - 1: {"p0:0,2 p1:1", "p1:3"},
		2 * size:   {"p0:0 p1:1", "p0:2 p1:3"},
		2*size - 1: {"p0:0", "p1:1", "p0:2", "p1:3"},
		1:          {"p0:0", "p1:1", "p0:2", "p1:3"}, // what is larger than the cap goes alone
	} {
		volleys, misfits, _ := newLoader(t, limit).load(timers())
		require.Empty(t, misfits)
		require.Equal(t, want, keysOf(volleys), "%d bytes", limit)
	}
}

func squeezed(t *testing.T, parts ...string) (out []byte) {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	for _, p := range parts {
		out = w.EncodeAll([]byte(p), out)
	}
	require.NoError(t, w.Close())
	return out
}

func TestAVolleyIsCappedInLanes(t *testing.T) {
	t.Parallel()
	for lanes, want := range map[int][]int{FireLanes: {FireLanes}, FireLanes + 1: {FireLanes, 1}, 2*FireLanes + 3: {FireLanes, FireLanes, 3}} {
		var timers []*held
		for i := range 2 * lanes {
			timers = append(timers, timer(fmt.Sprint(i), fmt.Sprint("lane-", i%lanes), `{}`))
		}
		volleys, misfits, left := newLoader(t, 1<<20).load(timers)
		require.Empty(t, misfits)
		require.Empty(t, left)
		var got []int
		for _, v := range volleys {
			got = append(got, len(v))
			for _, s := range v {
				require.Len(t, s.timers, 2, "a lane is in one volley")
			}
		}
		require.Equal(t, want, got)
	}
}

func TestACompressedPayloadIsDecompressed(t *testing.T) {
	t.Parallel()
	h := timer("a", "p", "")
	h.PayloadZstd, h.Payload = true, squeezed(t, `{"text":`, `"hello"}`)
	volleys, misfits, _ := newLoader(t, 1<<20).load([]*held{h})
	require.Empty(t, misfits)
	require.JSONEq(t, `{"text":"hello"}`, string(frames(t, volleys[0][0].Blob, 1)[0].Payload), "in one frame or several")
}

// Otherwise a batch whose packing outlasts its lease would fire nothing, and come back.
func TestABatchIsPackedForALimitedTime(t *testing.T) {
	t.Parallel()
	l := newLoader(t, 1<<20)
	broken, zipped := timer("c", "p", "no zstd"), timer("d", "p", string(squeezed(t, "4")))
	broken.PayloadZstd, zipped.PayloadZstd = true, true
	batch := []*held{timer("a", "p", "1"), timer("b", "p", "2"), broken, zipped, timer("e", "p", "5"), timer("f", "other", "6")}
	_, _, left := l.load(batch)
	require.Empty(t, left)
	l.time = 0
	volleys, misfits, left := l.load(batch)
	require.Equal(t, []string{"p:a,b other:f"}, keysOf(volleys), "of other lanes none has to wait")
	require.Empty(t, misfits)
	require.Equal(t, batch[2:5], left)
	volleys, misfits, left = l.load(left)
	require.Empty(t, volleys)
	require.Len(t, misfits, 1, "one at least is tried")
	require.Equal(t, batch[3:5], left)
	volleys, _, left = l.load(left)
	require.Equal(t, []string{"p:d,e"}, keysOf(volleys))
	require.Empty(t, left)
}

func TestWhatCannotBePackedIsLeftOut(t *testing.T) {
	t.Parallel()
	broken := timer("broken", "p", "no zstd")
	broken.PayloadZstd = true
	bomb := timer("bomb", "p", "")
	bomb.PayloadZstd, bomb.Payload = true, squeezed(t, strings.Repeat("x", PayloadMax+1))
	largest := timer("largest", "p", "")
	largest.PayloadZstd, largest.Payload = true, squeezed(t, strings.Repeat("x", PayloadMax))
	long := timer("long", "p", "{}")
	long.ProducerSub = strings.Repeat("x", segment.MaxIDBytes+1)
	longest := timer("longest", "p", "{}")
	longest.ProducerSub = long.ProducerSub[1:]
	volleys, misfits, _ := newLoader(t, 1<<30).load([]*held{timer("a", "p", "{}"), broken, long, bomb, largest, longest, timer("z", "p", "{}")})
	require.Equal(t, []string{"p:a,largest,longest,z"}, keysOf(volleys))
	errs := map[string]error{}
	for _, m := range misfits {
		errs[m.timer.Key] = m.err
	}
	require.Len(t, errs, 3)
	require.ErrorIs(t, errs["broken"], segment.ErrCorrupt)
	require.ErrorIs(t, errs["bomb"], segment.ErrTooLarge)
	require.ErrorIs(t, errs["long"], segment.ErrFieldTooLong)

	volleys, misfits, _ = newLoader(t, 1<<30).load([]*held{long})
	require.Empty(t, volleys)
	require.Len(t, misfits, 1)
}

func TestALaneIsWithOneWorker(t *testing.T) {
	t.Parallel()
	l := newLoader(t, 1<<20)
	var timers []*held
	for i := range 1000 {
		timers = append(timers, timer(fmt.Sprint(i), fmt.Sprint("p", i%50), ""))
	}
	require.Len(t, l.spread(timers, 1), 1)
	where, total := map[string]int{}, 0
	for w, part := range l.spread(timers, 4) {
		require.NotEmpty(t, part)
		total += len(part)
		for _, h := range part {
			if was, ok := where[h.Partition]; ok {
				require.Equal(t, was, w)
			}
			where[h.Partition] = w
		}
	}
	require.Equal(t, 1000, total)
}
