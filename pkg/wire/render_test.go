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

func TestResultsOfRidersFollowTheOperations(t *testing.T) {
	t.Parallel()
	riders, n, err := wire.AppendRiderResults(nil, wire.RiderKV, 1, []byte(`[{"op": "get", "key": "k", "found": false, "index": 0}, {"op": "put", "index": 1, "value": {"index": 9}, "applied": true, "version": 9007199254740993}]`))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	riders, n, err = wire.AppendRiderResults(riders, wire.RiderTimer, 3, []byte(` [{"ok": true, "type": "x", "opIndex": 7, "status": "scheduled"}] `))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	const rest = `{"index":1,"type":"kv","opIndex":0,"op":"get","key":"k","found":false},` +
		`{"index":2,"type":"kv","opIndex":1,"op":"put","value":{"index": 9},"applied":true,"version":9007199254740993},` +
		`{"index":3,"type":"timer","opIndex":0,"ok":true,"status":"scheduled"}]}`
	require.Equal(t, `{"transactionId":"x","success":true,"results":[{"index":0,"type":"ack","success":true,"transactionId":"u","error":null,"dlq":false},`+rest,
		string(wire.AppendTxResponse(nil, wire.TxResponse{TransactionID: "x", Success: true, Results: []wire.TxResult{{Op: wire.TxAck, TransactionID: "u"}}, Riders: riders})))
	require.Equal(t, `{"transactionId":"x","success":true,"results":[`+rest,
		string(wire.AppendTxResponse(nil, wire.TxResponse{TransactionID: "x", Success: true, Riders: riders})))
	out, n, err := wire.AppendRiderResults([]byte("x"), wire.RiderKV, 1, []byte(`[]`))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, "x", string(out))
}

func TestResultsThatAreNoArrayOfObjectsAreAnError(t *testing.T) {
	t.Parallel()
	for _, results := range []string{``, `null`, `{}`, `[1]`, `[{},null]`, `[{}`, `[{"a"}]`, `[{"a":}]`, `[{"a":1]`, `[{},"x"]`} {
		_, _, err := wire.AppendRiderResults(nil, wire.RiderKV, 0, []byte(results))
		require.Error(t, err, results)
	}
}

func TestALostPreconditionSaysWhatIsThere(t *testing.T) {
	t.Parallel()
	resp := wire.TxResponse{TransactionID: "x", Reason: wire.ReasonKVPrecondition, Error: "lost", Lost: &wire.TxLost{
		Known: true, Index: 3, Reason: "exists", Version: 9007199254740993, Value: []byte(`{"by": "x"}`),
	}}
	require.Equal(t, `{"transactionId":"x","success":false,"ok":false,"reason":"kv_precondition","error":"lost","failedIndex":3,"kvReason":"exists","version":9007199254740993,"value":{"by": "x"},"results":[]}`,
		string(wire.AppendTxResponse(nil, resp)))
	resp.Lost = &wire.TxLost{Known: true, Reason: "absent"}
	require.Equal(t, `{"transactionId":"x","success":false,"ok":false,"reason":"kv_precondition","error":"lost","failedIndex":0,"kvReason":"absent","version":0,"value":null,"results":[]}`,
		string(wire.AppendTxResponse(nil, resp)))
	resp.Lost = &wire.TxLost{}
	require.Equal(t, `{"transactionId":"x","success":false,"ok":false,"reason":"kv_precondition","error":"lost","results":[]}`,
		string(wire.AppendTxResponse(nil, resp)))
	require.Equal(t, `{"transactionId":"x","success":false,"reason":"kv_disabled","error":"kv_disabled","detail":"off","results":[]}`,
		string(wire.AppendTxResponse(nil, wire.TxResponse{TransactionID: "x", Reason: "kv_disabled", Error: "kv_disabled", Detail: "off"})))
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
