package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestParseTrace(t *testing.T) {
	t.Parallel()
	names := strings.Repeat(`"n",`, wire.MaxTraceNames-1) + `"n"`
	for body, want := range map[string]wire.Trace{
		`{"transactionId":"t","partitionId":"p","data":null}`: {
			TransactionID: "t", PartitionID: "p", ConsumerGroup: wire.QueueModeGroup, EventType: "info", Data: []byte(`null`),
		},
		`{"transactionId":"t","partitionId":"p","data":{"a": 1},"consumerGroup":"g","eventType":"e","traceNames":["a",1,null,{"x":[]},"","b"],"workerId":7}`: {
			TransactionID: "t", PartitionID: "p", ConsumerGroup: "g", EventType: "e", Data: []byte(`{"a": 1}`), Names: []string{"a", "b"},
		},
		`{"transactionId":"t","partitionId":"p","data":1,"traceNames":"one","consumerGroup":null,"eventType":null}`: {
			TransactionID: "t", PartitionID: "p", ConsumerGroup: wire.QueueModeGroup, EventType: "info", Data: []byte(`1`), Names: []string{"one"},
		},
		`{"transactionId":"t","partitionId":"p","data":1,"traceNames":{"no":"name"}}`: {
			TransactionID: "t", PartitionID: "p", ConsumerGroup: wire.QueueModeGroup, EventType: "info", Data: []byte(`1`),
		},
		`{"transactionId":"t","partitionId":"p","data":1,"traceNames":[` + names + `]}`: {
			TransactionID: "t", PartitionID: "p", ConsumerGroup: wire.QueueModeGroup, EventType: "info", Data: []byte(`1`),
			Names: strings.Split(strings.Repeat("n,", wire.MaxTraceNames-1)+"n", ","),
		},
	} {
		got, err := wire.ParseTrace([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
	}
	for body, want := range map[string]string{
		`{"transactionId":"t","data":1}`:                                                         "transactionId and partitionId are required",
		`{"partitionId":"p","data":1}`:                                                           "transactionId and partitionId are required",
		`{"transactionId":"t","partitionId":"p"}`:                                                "data is required",
		`{"transactionId":"t","partitionId":"p","data":1,"data":2}`:                              `bad body: key "data" is given twice`,
		`{"transactionId":"t","partitionId":"p","data":1,"eventType":5}`:                         "bad body: eventType: a string is allowed here, got a number",
		`{"transactionId":1}`:                                                                    "bad body: transactionId: a string is allowed here, got a number",
		`{"transactionId":"t","partitionId":"p","data":1} x`:                                     "bad body: 1 bytes follow the JSON object",
		`{"transactionId":"t","partitionId":"p","data":1,"traceNames":["n",` + names + `]}`:      "bad body: traceNames: more than 100 names",
		`{"data":1,"traceNames":"` + strings.Repeat("n", wire.MaxTraceNameBytes+1) + `"}`:        "bad body: traceNames: a name is longer than 1024 bytes",
		`{"transactionId":"` + strings.Repeat("t", wire.MaxTransactionIDBytes+1) + `","data":1}`: "bad body: transactionId: longer than 1024 bytes",
	} {
		_, err := wire.ParseTrace([]byte(body))
		require.EqualError(t, err, want, "%.100s", body)
	}
}

func TestParseReplay(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.Destination{
		"": {}, " \n": {}, `{}`: {}, `{"queue":null,"partition":null,"other":[1]}`: {},
		`{"queue":" a ","partition":"b"}`: {Queue: "a", Partition: "b"}, `{"partition":"b"}`: {Partition: "b"},
	} {
		got, err := wire.ParseReplay([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
	}
	for body, want := range map[string]string{
		`{"queue":""}`:              "queue must not be blank; leave it out to keep that of the dead letter",
		`{"partition":"  "}`:        "partition must not be blank; leave it out to keep that of the dead letter",
		`{"queue":"a","queue":"b"}`: `bad body: key "queue" is given twice`,
		`{"queue":{}}`:              "bad body: queue: a string is allowed here, got an object",
		`null`:                      "bad body: an object is allowed here, got null",
		`{"queue":"a"}{}`:           "bad body: 2 bytes follow the JSON object",
	} {
		_, err := wire.ParseReplay([]byte(body))
		require.EqualError(t, err, want, body)
	}
}
