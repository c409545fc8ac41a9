package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func pushBody(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"bench","partition":"lane-7","transactionId":%q,"payload":{"d":%q}}`,
			uuid.NewString(), strings.Repeat("x", 240))
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func BenchmarkParsePush100x256(b *testing.B) {
	body := pushBody(100)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := wire.ParsePush(body); err != nil {
			b.Fatal(err)
		}
	}
}

func ackBody(n int) []byte {
	partition, lease := uuid.NewString(), uuid.NewString()
	acks := make([]string, n)
	for i := range acks {
		acks[i] = fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"completed","leaseId":%q,"error":null}`,
			uuid.NewString(), partition, lease)
	}
	return []byte(`{"consumerGroup":"g","acknowledgments":[` + strings.Join(acks, ",") + `]}`)
}

func txBody(n int) []byte {
	ops := make([]string, 0, 2*n)
	for range n {
		ops = append(ops,
			fmt.Sprintf(`{"items":[{"queue":"q","partition":"p","payload":{"d":%q},"transactionId":%q}],"type":"push"}`, strings.Repeat("x", 240), uuid.NewString()),
			fmt.Sprintf(`{"transactionId":%q,"partitionId":"0199aa10-1111-7abc-8def-000000000001","status":"completed","type":"ack"}`, uuid.NewString()))
	}
	return []byte(`{"operations":[` + strings.Join(ops, ",") + `],"requiredLeases":["l"]}`)
}

func BenchmarkParseAckBatch100(b *testing.B) {
	body := ackBody(100)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := wire.ParseAckBatch(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseTransaction100(b *testing.B) {
	body := txBody(50)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := wire.ParseTransaction(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendPop100x256(b *testing.B) {
	h := wire.PopHeader{Queue: "bench", Partition: "lane-7", PartitionID: uuid.NewString(), LeaseID: uuid.NewString(), Group: "g", PartitionsClaimed: 1}
	m := wire.PopMessage{
		ID: uuid.New(), TransactionID: uuid.NewString(), Data: []byte(`{"d":"` + strings.Repeat("x", 248) + `"}`),
	}
	tail := wire.AppendPopTail(nil, &h, &wire.PopTail{
		CreatedAt: "2026-03-01T08:00:00.000123Z", PartitionID: h.PartitionID, Partition: h.Partition, Attempt: 1,
	})
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = wire.AppendPopStart(dst[:0], h)
		for i := range 100 {
			dst = wire.AppendPopMessage(dst, i == 0, &m, tail)
		}
		dst = wire.AppendPopEnd(dst, h)
	}
	b.SetBytes(int64(len(dst)))
}

// One allocation per item is its transaction id; the rest is per request.
func TestParsingAllocatesOneStringPerItem(t *testing.T) {
	perItem := func(parse func(body []byte) error, body func(n int) []byte) float64 {
		count := func(n int) float64 {
			text := body(n)
			return testing.AllocsPerRun(20, func() {
				if err := parse(text); err != nil {
					t.Fatal(err)
				}
			})
		}
		return (count(300) - count(100)) / 200
	}
	require.Less(t, perItem(func(b []byte) error { _, err := wire.ParsePush(b); return err }, pushBody), 1.1)
	require.Less(t, perItem(func(b []byte) error { _, err := wire.ParseAckBatch(b); return err }, ackBody), 1.1)
	// Two operations, and the type of each.
	require.Less(t, perItem(func(b []byte) error { _, err := wire.ParseTransaction(b); return err }, txBody), 4.1)
}

func TestRenderingAllocatesNothing(t *testing.T) {
	h := wire.PopHeader{Queue: "q", LeaseID: "l", Group: "g", PartitionsClaimed: 1}
	m := wire.PopMessage{ID: uuid.New(), TransactionID: "t", HasTrace: true, Data: []byte("{}"), ProducerSub: "me"}
	tail := make([]byte, 0, 1<<10)
	dst := make([]byte, 0, 1<<14)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		out := wire.AppendPopStart(dst, h)
		end := wire.AppendPopTail(tail, &h, &wire.PopTail{CreatedAt: "C", Partition: "p"})
		for i := range 10 {
			out = wire.AppendPopMessage(out, i == 0, &m, end)
		}
		out = wire.AppendPopEnd(out, h)
		out = wire.AppendPushResults(out, []wire.PushResult{{MessageID: m.ID, TransactionID: "t", QueueName: "q", Status: wire.StatusQueued}})
		_ = wire.AppendAckResults(out, []wire.AckResult{{TransactionID: "t", Success: true}})
	}))
}
