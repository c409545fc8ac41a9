package wire_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

// requireDelivered renders a pushed message into the answer of a pop, and expects
// an ordinary JSON reader to find the same bytes.
func requireDelivered(t *testing.T, it wire.PushItem) {
	t.Helper()
	h := wire.PopHeader{Queue: it.Queue, Partition: it.Partition, LeaseID: "l", Group: "g", PartitionsClaimed: 1}
	out := wire.AppendPopStart(nil, h)
	out = wire.AppendPopMessage(out, true, &wire.PopMessage{ID: uuid.Nil, TransactionID: it.TransactionID, Data: it.Payload},
		wire.AppendPopTail(nil, &h, &wire.PopTail{Partition: it.Partition, Attempt: 1}))
	out = wire.AppendPopEnd(out, h)
	var popped struct {
		Queue    string `json:"queue"`
		Messages []struct {
			TransactionID string          `json:"transactionId"`
			Partition     string          `json:"partition"`
			Data          json.RawMessage `json:"data"`
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal(out, &popped), "%s", out)
	require.Len(t, popped.Messages, 1)
	m := popped.Messages[0]
	require.Equal(t, []string{it.Queue, it.Partition, it.TransactionID, string(it.Payload)},
		[]string{popped.Queue, m.Partition, m.TransactionID, string(m.Data)})
}

func FuzzParsePush(f *testing.F) {
	f.Add([]byte(`{"items":[{"queue":"q","partition":"p","transactionId":"t","payload":{"a":[1,"\ud800"]}}]}`))
	for _, body := range badBodies() {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		items, err := wire.ParsePush(body)
		if err != nil {
			var bad *wire.Error
			require.ErrorAs(t, err, &bad)
			return
		}
		require.True(t, json.Valid(body))
		for _, it := range items {
			require.Contains(t, string(body), string(it.Payload))
			require.NotEmpty(t, it.Queue)
			require.NotEmpty(t, it.Partition)
			require.NoError(t, wire.CheckName(wire.KindQueue, it.Queue))
			require.NoError(t, wire.CheckName(wire.KindPartition, it.Partition))
			require.NoError(t, wire.CheckName(wire.KindTransactionID, it.TransactionID))
			requireDelivered(t, it)
			out := wire.AppendPushResults(nil, []wire.PushResult{{TransactionID: it.TransactionID, QueueName: it.Queue, Status: wire.StatusQueued}})
			require.True(t, json.Valid(out), "%s", out)
		}
	})
}

func FuzzParseTransaction(f *testing.F) {
	f.Add([]byte(`{"operations":[{"queue":"q","payload":"\ud800","traceId":"0199aa10-1111-4abc-8def-000000000001","type":"push"}],"kv":[{}]}`))
	f.Add([]byte(`{"operations":[ {"type":"pop"} , {"items":null}]}`))
	f.Add([]byte(`{"kv" : [{"op":"get","ns":"n","key":"[\ud800"}] ,"timers":[ [] ]}`))
	f.Add([]byte(`{"operations":[{"type":"kv"}],"timers":{}}`))
	f.Add([]byte(`{"operations":[{"type":"push","items":[{"queue":"q","data":[1]}]},{"type":"ack","transactionId":"t"}],"requiredLeases":["l"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := wire.ParseTransaction(body)
		if err != nil {
			requireBad(t, err, string(body))
			return
		}
		require.True(t, json.Valid(body))
		for _, rider := range []json.RawMessage{req.KV, req.Timers} {
			if rider != nil {
				require.Contains(t, string(body), string(rider))
				var elements []json.RawMessage
				require.NoError(t, json.Unmarshal(rider, &elements), "%s", rider)
				require.NotEmpty(t, elements)
			}
		}
		for _, op := range req.Ops {
			if op.Kind == wire.TxAck {
				require.NotEmpty(t, op.Ack.Group)
				continue
			}
			if string(op.Push.Payload) != "{}" { // else perhaps the default
				require.Contains(t, string(body), string(op.Push.Payload))
			}
			requireDelivered(t, op.Push)
		}
	})
}

func FuzzAppendRiderResults(f *testing.F) {
	f.Add([]byte(`[{"op": "put", "key": "k", "index": 0, "value": {"type": 1}, "version": 12}, {}]`))
	f.Add([]byte(`[{"type":[],"\u0069ndex":"\ud800","a":1e400}, 7]`))
	f.Fuzz(func(t *testing.T, results []byte) {
		out, n, err := wire.AppendRiderResults(nil, wire.RiderTimer, 5, results)
		var sent []map[string]json.RawMessage
		if json.Unmarshal(results, &sent) != nil {
			return // and an error is only promised for what is no array of objects
		}
		if err != nil {
			require.Contains(t, string(results), "null", "of all values without members this one is read as a map")
			return
		}
		var got []map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte("["+string(out)+"]"), &got), "%s", out)
		require.Len(t, got, n)
		require.Len(t, sent, n)
		for i := range got {
			require.Equal(t, []string{fmt.Sprint(5 + i), `"timer"`, fmt.Sprint(i)},
				[]string{string(got[i]["index"]), string(got[i]["type"]), string(got[i]["opIndex"])})
			for _, stamp := range []string{"index", "type", "opIndex"} {
				delete(got[i], stamp)
				delete(sent[i], stamp)
			}
			require.Equal(t, sent[i], got[i])
		}
	})
}

func FuzzParseAck(f *testing.F) {
	f.Add([]byte(`{"acknowledgments":[{"transactionId":"t","error":"\ud800"}],"consumerGroup":"g"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func([]byte) (wire.AckRequest, error){wire.ParseAck, wire.ParseAckBatch} {
			req, err := parse(body)
			if err != nil {
				requireBad(t, err, string(body))
				continue
			}
			for i, item := range req.Items {
				out := wire.AppendAckResults(nil, []wire.AckResult{{Index: i, TransactionID: item.TransactionID, Error: item.Error}})
				require.True(t, json.Valid(out), "%s", out)
			}
		}
	})
}

func FuzzParseConfigure(f *testing.F) {
	f.Add([]byte(`{"queue":"q","namespace":"n","options":{"leaseTime":1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := wire.ParseConfigure(body)
		if err != nil {
			requireBad(t, err, string(body))
			return
		}
		require.True(t, json.Valid(req.Options))
	})
}

func FuzzPopQuery(f *testing.F) {
	f.Add("batch=5&wait=true&consumerGroup=g")
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := wire.ParsePopQuery(values, defaults())
		if err != nil {
			requireBad(t, err, query)
			return
		}
		require.Positive(t, q.Batch)
		require.NotEmpty(t, q.Group)
		require.GreaterOrEqual(t, q.Timeout, time.Duration(0))
	})
}

func FuzzParseExtend(f *testing.F) {
	f.Add([]byte(`{"seconds":5}`))
	f.Add([]byte(`{"seconds":1e400,"x":[{}]} `))
	f.Fuzz(func(t *testing.T, body []byte) { require.Positive(t, wire.ParseExtend(body)) })
}
