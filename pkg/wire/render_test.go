package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestAckResultsAreRendered(t *testing.T) {
	t.Parallel()
	got := wire.AppendAckResults(nil, []wire.AckResult{
		{Index: 0, TransactionID: "a", Success: true, LeaseReleased: true, DLQ: true},
		{Index: 1, TransactionID: "b", Error: `no "x"`},
		{Index: 2, TransactionID: "c", Success: true, Noop: true},
	})
	require.Equal(t, `[{"index":0,"transactionId":"a","success":true,"error":null,"leaseReleased":true,"dlq":true},`+
		`{"index":1,"transactionId":"b","success":false,"error":"no \"x\"","leaseReleased":false,"dlq":false},`+
		`{"index":2,"transactionId":"c","success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":true}]`, string(got))
	require.Equal(t, "[]", string(wire.AppendAckResults(nil, nil)))
}

func TestExtendResultsAreRendered(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{"leaseId":"l","success":true,"renewed":2,"newExpiresAt":"T","expiresAt":"T","lease_expires_at":"T"}`,
		string(wire.AppendExtendResult(nil, wire.ExtendResult{LeaseID: "l", Renewed: 2, ExpiresAt: "T"})))
	require.Equal(t, `{"leaseId":"l","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`,
		string(wire.AppendExtendResult(nil, wire.ExtendResult{LeaseID: "l"})))
}

func TestTransactionResponsesAreRendered(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse(traceText)
	require.Equal(t, `{"transactionId":"x","success":true,"results":[`+
		`{"index":0,"type":"push","success":true,"transactionId":"t","messageId":"`+traceText+`","queueName":"q","duplicate":true},`+
		`{"index":1,"type":"ack","success":true,"transactionId":"u","error":null,"dlq":true}]}`,
		string(wire.AppendTxResponse(nil, wire.TxResponse{TransactionID: "x", Success: true, Results: []wire.TxResult{
			{Op: wire.TxPush, TransactionID: "t", MessageID: id, QueueName: "q", Duplicate: true},
			{Op: wire.TxAck, TransactionID: "u", DLQ: true},
		}})))
	require.Equal(t, `{"transactionId":"x","success":false,"reason":"duplicate","error":"QDUP","results":[]}`,
		string(wire.AppendTxResponse(nil, wire.TxResponse{TransactionID: "x", Reason: wire.ReasonDuplicate, Error: "QDUP"})))
}

func TestAPopIsRendered(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse(traceText)
	h := wire.PopHeader{Queue: "q", Partition: "p", PartitionID: "pid", LeaseID: "lease", Group: "g", PartitionsClaimed: 1}
	body := wire.AppendPopStart(nil, h)
	body = wire.AppendPopMessage(body, true, &wire.PopMessage{ID: id, TransactionID: "t", Data: []byte(`{"n" : 7}`)},
		wire.AppendPopTail(nil, &h, &wire.PopTail{CreatedAt: "2026-03-01T08:00:00.000123Z", PartitionID: "pid", Partition: "p", Attempt: 1}))
	body = wire.AppendPopMessage(body, false, &wire.PopMessage{
		ID: id, TransactionID: "u", TraceID: id, HasTrace: true, Data: []byte("null"), ProducerSub: "me",
	}, wire.AppendPopTail(nil, &h, &wire.PopTail{CreatedAt: "C", PartitionID: "pid", Partition: "p", Attempt: 2}))
	body = wire.AppendPopEnd(body, h)
	require.Equal(t, `{"success":true,"queue":"q","partition":"p","partitionId":"pid","leaseId":"lease","consumerGroup":"g","messages":[`+
		`{"id":"`+traceText+`","transactionId":"t","traceId":null,"data":{"n" : 7},"producerSub":null,"createdAt":"2026-03-01T08:00:00.000123Z",`+
		`"partitionId":"pid","partition":"p","leaseId":"lease","consumerGroup":"g","deliveryAttempt":1},`+
		`{"id":"`+traceText+`","transactionId":"u","traceId":"`+traceText+`","data":null,"producerSub":"me","createdAt":"C",`+
		`"partitionId":"pid","partition":"p","leaseId":"lease","consumerGroup":"g","deliveryAttempt":2}],"partitionsClaimed":1}`, string(body))
	require.True(t, json.Valid(body))
}

func TestErrorsAreRendered(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{"error":"a\n\"b\""}`, string(wire.AppendError(nil, "a\n\"b\"")))
}

func TestStringsAreEscaped(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                      `""`,
		`"\`:                    `"\"\\"`,
		"\b\f\n\r\t\x00\x1f":    `"\b\f\n\r\t\u0000\u001f"`,
		"<a>&'/":                `"<a>&'/"`,
		"é🐝\u2028\x7f\u0085":    "\"é🐝\u2028\x7f\u0085\"",
		"cut\xff short\xe2\x82": "\"cut\ufffd short\ufffd\ufffd\"",
	} {
		got := string(wire.AppendError(nil, s))
		require.Equal(t, `{"error":`+want+`}`, got)
		require.True(t, json.Valid([]byte(got)))
	}
}
