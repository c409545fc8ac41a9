package hints_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/hints"
)

var (
	tenant = uuid.UUID{15: 1}
	lane   = uuid.UUID{15: 7}
)

func all() []hints.Hint {
	return []hints.Hint{
		{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Partition: "p", Count: 3},
		{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Count: 1},
		{Kind: hints.CursorMoved, Tenant: tenant, Queue: "q", Partition: "p", Group: "g"},
		{Kind: hints.TimerDue, At: time.UnixMilli(1_700_000_000_123)},
		{Kind: hints.Released, Tenant: tenant, Queue: "q", Partition: "ü", PartitionID: lane, Group: "g", Full: true},
		{Kind: hints.Released, Tenant: tenant, PartitionID: lane, Group: "g"},
		{Kind: hints.QueueChanged, Tenant: uuid.UUID{9}, Queue: "q", Deleted: true},
		{Kind: hints.QueueChanged, Tenant: uuid.UUID{9}, Queue: "q"},
		{Kind: hints.FlagsChanged},
		{Kind: hints.Taken, Tenant: tenant, Queue: "q", Partition: "p", Group: "g", Count: 7, Emptied: true, Leased: true},
		{Kind: hints.Taken, Tenant: tenant, Queue: "q", Partition: "p", Group: "g", Count: 1, Leased: true},
	}
}

func TestEveryKindSurvivesTheTrip(t *testing.T) {
	t.Parallel()
	payload, ok := hints.Encode(all()...)
	require.True(t, ok)
	got, err := hints.Decode(payload)
	require.NoError(t, err)
	require.Equal(t, all(), got)
}

func TestTheQueueIsSentOnce(t *testing.T) {
	t.Parallel()
	one := hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: strings.Repeat("q", 200), Partition: "p1", Count: 1}
	two := one
	two.Partition = "p2"
	first, _ := hints.Encode(one)
	both, _ := hints.Encode(one, two)
	require.Less(t, len(both)-len(first), 10)
}

// record is one record as another version might write it.
func record(code byte, body string) string {
	return string(binary.AppendUvarint([]byte{code}, uint64(len(body)))) + body
}

func TestWhatIsNotKnownIsSkipped(t *testing.T) {
	t.Parallel()
	scope := record(0, string(tenant[:])+"q")
	want := hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Partition: "p", Count: 2}
	for name, payload := range map[string]string{
		"a kind":              "\x01" + scope + record(99, "whatever") + record(1, "\x02\x01p"),
		"the end of a record": "\x01" + scope + record(1, "\x02\x01pmore"),
		"a kind before":       "\x01" + record(200, "") + scope + record(1, "\x02\x01p"),
	} {
		got, err := hints.Decode([]byte(payload))
		require.NoError(t, err, name)
		require.Equal(t, []hints.Hint{want}, got, name)
	}
	_, err := hints.Decode([]byte("\x02" + scope))
	require.ErrorIs(t, err, hints.ErrVersion)
	_, err = hints.Decode([]byte("{\"version\":3}"))
	require.ErrorIs(t, err, hints.ErrVersion)
}

func TestMalformedPayloadsGiveNothing(t *testing.T) {
	t.Parallel()
	scope := record(0, string(tenant[:])+"q")
	good := scope + record(1, "\x01\x01p")
	for name, payload := range map[string]string{
		"empty":                   "",
		"oversized":               "\x01" + strings.Repeat(record(99, "x"), hints.MaxDatagram/3+1),
		"cut short":               "\x01" + good[:len(good)-1],
		"no scope":                "\x01" + record(1, "\x01\x01p"),
		"no queue":                "\x01" + record(0, string(tenant[:])) + record(1, "\x01\x01p"),
		"half a tenant":           "\x01" + record(0, "tenant"),
		"length beyond the end":   "\x01" + good + "\x01\x7f",
		"length of ten bytes":     "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"text beyond the record":  "\x01" + scope + record(1, "\x01\x05p"),
		"not UTF-8":               "\x01" + scope + record(1, "\x01\x01\xff"),
		"queue not UTF-8":         "\x01" + record(0, string(tenant[:])+"\xff"),
		"too many messages":       "\x01" + scope + record(1, "\xff\xff\xff\x7f\x01p"),
		"release without an id":   "\x01" + scope + record(3, "\x01abc"),
		"timer without an hour":   "\x01" + record(4, ""),
		"good ones before a flaw": "\x01" + good + "\x01",
	} {
		got, err := hints.Decode([]byte(payload))
		require.ErrorIs(t, err, hints.ErrMalformed, name)
		require.Empty(t, got, name)
	}
}

// What the limits on names allow fits, or means more with less in it.
func TestLongNamesFitOrDegrade(t *testing.T) {
	t.Parallel()
	queue, wide, long := strings.Repeat("q", 255), strings.Repeat("𝐪", 255), strings.Repeat("x", 1024)
	for name, tc := range map[string]struct{ in, want hints.Hint }{
		"a long lane fits": {
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "queue", Partition: long, Count: 2},
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "queue", Partition: long, Count: 2},
		},
		"a long queue fits": {
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: wide, Partition: "p", Count: 2},
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: wide, Partition: "p", Count: 2},
		},
		"both do not": {
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: queue, Partition: long, Count: 2},
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: queue, Count: 2},
		},
		"a cursor becomes that of the queue": {
			hints.Hint{Kind: hints.CursorMoved, Tenant: tenant, Queue: "queue", Partition: long, Group: long},
			hints.Hint{Kind: hints.CursorMoved, Tenant: tenant, Queue: "queue", Group: long},
		},
		"and then that of every group": {
			hints.Hint{Kind: hints.CursorMoved, Tenant: tenant, Queue: wide, Partition: long, Group: long},
			hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: wide, Count: 1},
		},
		"a lease keeps its id": {
			hints.Hint{Kind: hints.Released, Tenant: tenant, Queue: wide, Partition: long, PartitionID: lane, Group: long, Full: true},
			hints.Hint{Kind: hints.Released, Tenant: tenant, PartitionID: lane, Group: long, Full: true},
		},
		"a changed queue fits": {
			hints.Hint{Kind: hints.QueueChanged, Tenant: tenant, Queue: wide},
			hints.Hint{Kind: hints.QueueChanged, Tenant: tenant, Queue: wide},
		},
	} {
		h := tc.in
		payload, ok := hints.Encode(h)
		for !ok {
			require.True(t, hints.Shorten(&h), name)
			payload, ok = hints.Encode(h)
		}
		require.LessOrEqual(t, len(payload), hints.MaxPayload, name)
		got, err := hints.Decode(payload)
		require.NoError(t, err, name)
		require.Equal(t, []hints.Hint{tc.want}, got, name)
	}
	beyond := hints.Hint{Kind: hints.QueueChanged, Tenant: tenant, Queue: strings.Repeat("x", hints.MaxPayload)}
	_, ok := hints.Encode(beyond)
	require.False(t, ok)
	require.False(t, hints.Shorten(&beyond), "nothing can be left out")
}

// Whatever arrives costs nothing but its reading, and what was read means the
// same when it is written again.
func FuzzDecode(f *testing.F) {
	for i := range all() {
		payload, _ := hints.Encode(all()[i])
		f.Add(payload)
	}
	payload, _ := hints.Encode(all()...)
	f.Add(payload)
	f.Add([]byte("\x01\x63\x00"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := hints.Decode(payload)
		if err != nil {
			require.Empty(t, got)
			return
		}
		require.LessOrEqual(t, len(got), len(payload))
		for _, h := range got {
			again, ok := hints.Encode(h)
			if !ok {
				continue // it shared its queue with others
			}
			back, err := hints.Decode(again)
			require.NoError(t, err)
			require.Equal(t, []hints.Hint{h}, back)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	b.ReportAllocs()
	list := all()
	for b.Loop() {
		hints.Encode(list...)
	}
}

func BenchmarkDecode(b *testing.B) {
	b.ReportAllocs()
	payload, _ := hints.Encode(all()...)
	for b.Loop() {
		if _, err := hints.Decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}

// Whoever looks at the instant of the hint finds the timer due.
func TestAnInstantIsRoundedUp(t *testing.T) {
	t.Parallel()
	for micros, millis := range map[int64]int64{5000: 5, 5001: 6, 5999: 6, 6000: 6} {
		payload, ok := hints.Encode(hints.Hint{Kind: hints.TimerDue, At: time.UnixMicro(micros)})
		require.True(t, ok)
		list, err := hints.Decode(payload)
		require.NoError(t, err)
		require.Equal(t, []hints.Hint{{Kind: hints.TimerDue, At: time.UnixMilli(millis)}}, list)
	}
}
