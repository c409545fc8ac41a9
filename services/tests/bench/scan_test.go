package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// An answer as the broker writes it.
const popAnswer = `{"success":true,"queue":"w1","partition":"lane-0000001","partitionId":"p-1","leaseId":"l-9",` +
	`"consumerGroup":"group-0","messages":[` +
	`{"id":"i-1","transactionId":"t-1","traceId":null,"data":{"t":1700000000000001,"d":"abc"},"producerSub":null,` +
	`"createdAt":"2026-03-01T08:00:00.000123Z","partitionId":"p-1","partition":"lane-0000001","leaseId":"l-9",` +
	`"consumerGroup":"group-0","deliveryAttempt":1},` +
	`{"id":"i-2","transactionId":"t-2","traceId":null,"data":{"t":1700000000000002,"d":"def"},"producerSub":null,` +
	`"createdAt":"2026-03-01T08:00:00.000123Z","partitionId":"p-2","partition":"lane-0000002","leaseId":"l-9",` +
	`"consumerGroup":"group-0","deliveryAttempt":1}],"partitionsClaimed":2}`

func TestScanPop(t *testing.T) {
	t.Parallel()
	got, err := scanPop(nil, []byte(popAnswer))
	require.NoError(t, err)
	require.Equal(t, []message{
		{transactionID: []byte("t-1"), partitionID: []byte("p-1"), leaseID: []byte("l-9"), sent: 1700000000000001},
		{transactionID: []byte("t-2"), partitionID: []byte("p-2"), leaseID: []byte("l-9"), sent: 1700000000000002},
	}, got)

	got, err = scanPop(nil, []byte(`{"success":true,"messages":[]}`))
	require.NoError(t, err)
	require.Empty(t, got)

	for cut := len(popAnswer) - len(`"consumerGroup":"group-0","deliveryAttempt":1}],"partitionsClaimed":2}`) - 3; cut > 700; cut -= 50 {
		_, err = scanPop(nil, []byte(popAnswer[:cut]))
		require.ErrorIs(t, err, errMessage, "cut at %d", cut)
	}
}

func TestAckBodies(t *testing.T) {
	t.Parallel()
	messages, err := scanPop(nil, []byte(popAnswer))
	require.NoError(t, err)
	body := appendAcks(nil, "g", messages)
	require.True(t, json.Valid(body))
	require.JSONEq(t, `{"consumerGroup":"g","acknowledgments":[
		{"transactionId":"t-1","partitionId":"p-1","leaseId":"l-9"},
		{"transactionId":"t-2","partitionId":"p-2","leaseId":"l-9"}]}`, string(body))
	require.JSONEq(t, `{"consumerGroup":"g","transactionId":"t-1","partitionId":"p-1","leaseId":"l-9"}`,
		string(appendAck(nil, "g", messages[0])))
}

func TestOddShowsWhatIsWrong(t *testing.T) {
	t.Parallel()
	body := `[{"index":0,"status":"queued"},{"index":1,"status":"failed"},{"index":2,"status":"queued"}]`
	require.Equal(t, `"status":"failed"},{"index":2,"status":"queued"}]`, string(odd([]byte(body), queuedMark)))
	require.Equal(t, "[]", string(odd([]byte("[]"), queuedMark)))
	require.Equal(t, `[{"status":"queued"}]`, string(odd([]byte(`[{"status":"queued"}]`), queuedMark)), "too few of them")
}
