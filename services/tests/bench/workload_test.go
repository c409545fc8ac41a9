package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
)

type pushed struct {
	Items []struct {
		Queue         string `json:"queue"`
		Partition     string `json:"partition"`
		TransactionID string `json:"transactionId"`
		Payload       json.RawMessage
	} `json:"items"`
}

// filled is the body of the n-th request; its head names the body's length.
func filled(t *testing.T, w *workload, n int) pushed {
	t.Helper()
	request := w.fill(nil, n, newRand(1), time.UnixMicro(1700000000000001))
	head, body, ok := bytes.Cut(request, []byte("\r\n\r\n"))
	require.True(t, ok)
	require.Contains(t, string(head), "POST /api/v1/push HTTP/1.1\r\n")
	require.Equal(t, string(appendHead(nil, "POST", "/api/v1/push", len(body))), string(head)+"\r\n\r\n")
	var p pushed
	require.NoError(t, json.Unmarshal(body, &p))
	require.Len(t, p.Items, w.shape.Batch)
	for _, item := range p.Items {
		require.Equal(t, w.shape.Queue, item.Queue)
		require.Len(t, item.Payload, w.shape.Bytes)
		require.Contains(t, string(item.Payload), `{"t":1700000000000001,"d":"`)
	}
	return p
}

func TestRequestsOfOneLane(t *testing.T) {
	t.Parallel()
	w, err := newWorkload(shape{Queue: "q", Batch: 3, Lanes: 10, Stride: 1000})
	require.NoError(t, err)
	for _, item := range filled(t, w, 27).Items {
		require.Equal(t, "lane-0007000", item.Partition)
		require.Empty(t, item.TransactionID)
	}
	require.NotEqual(t, filled(t, w, 0).Items[0].Payload, filled(t, w, 1).Items[0].Payload)
}

func TestRequestsOverManyLanes(t *testing.T) {
	t.Parallel()
	w, err := newWorkload(shape{Queue: "q", Batch: 4, Lanes: 10, Spread: true})
	require.NoError(t, err)
	var lanes []string
	for _, item := range filled(t, w, 2).Items {
		lanes = append(lanes, item.Partition)
	}
	require.Equal(t, []string{"lane-0000008", "lane-0000009", "lane-0000000", "lane-0000001"}, lanes)

	w, err = newWorkload(shape{Queue: "q", Batch: 100, Lanes: 1000, Spread: true, Random: true})
	require.NoError(t, err)
	distinct := map[string]bool{}
	for _, item := range filled(t, w, 2).Items {
		distinct[item.Partition] = true
	}
	require.Greater(t, len(distinct), 80)
}

func TestTransactionIDs(t *testing.T) {
	t.Parallel()
	w, err := newWorkload(shape{Queue: "q", Batch: 50, Lanes: 2, ClientIDs: true})
	require.NoError(t, err)
	distinct := map[string]bool{}
	for _, item := range filled(t, w, 0).Items {
		require.Len(t, item.TransactionID, idDigits)
		distinct[item.TransactionID] = true
	}
	require.Len(t, distinct, 50)

	w, err = newWorkload(shape{Queue: "q", Batch: 5, Lanes: 2, ClientIDs: true, Repeat: 4})
	require.NoError(t, err)
	require.Equal(t, filled(t, w, 1).Items[3].TransactionID, filled(t, w, 5).Items[3].TransactionID)
	require.NotEqual(t, filled(t, w, 1).Items[3].TransactionID, filled(t, w, 2).Items[3].TransactionID)
}

func TestTheFloorsWriteTheSameMessages(t *testing.T) {
	t.Parallel()
	w, err := newWorkload(shape{Queue: "q", Batch: 7, Lanes: 2})
	require.NoError(t, err)
	p, err := w.pack()
	require.NoError(t, err)
	require.Len(t, p.blobs, distinctBodies)
	reader, err := segment.NewReader(1 << 20)
	require.NoError(t, err)
	f, err := reader.Frame(p.blobs[5], 6)
	require.NoError(t, err)
	require.Equal(t, w.payloads[5][6], f.Payload)
	require.Len(t, p.hashes[5], 7*segment.HashSize)
}
