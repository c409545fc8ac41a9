package enginetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

func pushOp(queue, partition, id string) wire.TxOp {
	return wire.TxOp{Kind: wire.TxPush, Push: item(queue, partition, id)}
}

func ackOp(m message, status, lease string) wire.TxOp {
	a := ackOf(m, store.QueueModeGroup, status)
	a.LeaseID = lease
	return wire.TxOp{Kind: wire.TxAck, Ack: a}
}

func (e *engine) run(leases []string, ops ...wire.TxOp) wire.TxResponse {
	e.t.Helper()
	resp, err := e.tx.Run(e.t.Context(), tenant, "", wire.TxRequest{Ops: ops, RequiredLeases: leases})
	require.NoError(e.t, err)
	return resp
}

func TestABundleMovesMessagesAtomically(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("src", "a", "m", 2)...)
	ms := e.popped("src")
	resp := e.run([]string{ms[0].LeaseID}, ackOp(ms[0], wire.AckCompleted, ""), pushOp("dst", "x", "d"), pushOp("dst", "y", ""),
		pushOp("dst", "x", "d"), ackOp(ms[1], wire.AckCompleted, ""))
	require.True(t, resp.Success, resp.Error)
	require.Len(t, resp.Results, 5)
	require.True(t, resp.Results[3].Duplicate)
	require.Equal(t, resp.Results[1].MessageID, resp.Results[3].MessageID)
	require.Empty(t, e.popped("src"))
	dst := e.popped("dst", partitions(5))
	require.Len(t, dst, 2)
}

func TestRefusedBundlesLeaveNoTrace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason, text string
		run          func(e *engine, ms []message) wire.TxResponse
	}{
		"stored transaction id": {wire.ReasonDuplicate, "QDUP", func(e *engine, ms []message) wire.TxResponse {
			e.queued(item("dst", "a", "d"))
			require.Len(e.t, e.popped("dst", autoAck), 1)
			return e.run(nil, pushOp("dst", "b", "n"), pushOp("dst", "a", "d"), ackOp(ms[0], wire.AckCompleted, ms[0].LeaseID))
		}},
		"unknown transaction id": {wire.ReasonAckRejected, "unknown transactionId", func(e *engine, ms []message) wire.TxResponse {
			ghost := ms[1]
			ghost.TransactionID = "ghost"
			return e.run([]string{ms[0].LeaseID}, pushOp("dst", "a", "n"), ackOp(ms[0], wire.AckCompleted, ""), ackOp(ghost, wire.AckCompleted, ""))
		}},
		"foreign lease of the operation": {wire.ReasonAckRejected, "rolled back", func(e *engine, ms []message) wire.TxResponse {
			return e.run([]string{ms[0].LeaseID}, pushOp("dst", "a", "n"), ackOp(ms[0], wire.AckCompleted, "somebody"))
		}},
		"foreign leases of the request": {wire.ReasonAckRejected, "rolled back", func(e *engine, ms []message) wire.TxResponse {
			return e.run([]string{"somebody", "else"}, pushOp("dst", "a", "n"), ackOp(ms[0], wire.AckCompleted, ""))
		}},
		"unknown partition": {wire.ReasonAckRejected, "rolled back", func(e *engine, ms []message) wire.TxResponse {
			nowhere := ms[0]
			nowhere.PartitionID = "0199aa10-1111-7abc-8def-000000000001"
			return e.run(nil, pushOp("dst", "a", "n"), ackOp(nowhere, wire.AckCompleted, ""))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			e.queued(items("src", "a", "m", 2)...)
			ms := e.popped("src")
			resp := c.run(e, ms)
			require.False(t, resp.Success)
			require.Equal(t, c.reason, resp.Reason)
			require.Contains(t, resp.Error, c.text)
			require.Empty(t, resp.Results)
			require.Empty(t, e.popped("dst", partitions(5)))
			e.settle(wire.AckRetry, ms[0]) // the lease is still ours, the cursor where it was
			require.Equal(t, []string{"m0", "m1"}, ids(e.popped("src")))
		})
	}
}

func TestABundleDeadLetters(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure("src", `{"retryLimit":0}`)
	e.queued(items("src", "a", "m", 2)...)
	ms := e.popped("src")
	nack := ackOp(ms[0], wire.AckFailed, "")
	nack.Ack.Error = "boom"
	resp := e.run([]string{ms[0].LeaseID}, nack, pushOp("dst", "a", "n"))
	require.True(t, resp.Success, resp.Error)
	require.True(t, resp.Results[0].DLQ)
	require.Equal(t, map[string]string{"m0": "boom"}, e.dead("src"))
	require.Equal(t, []string{"n"}, ids(e.popped("dst")))
	require.Equal(t, []string{"m1"}, ids(e.popped("src", waiting(time.Minute))))
}

func TestAnUncheckedAckNeedsNoLease(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("src", "a", "m", 2)...)
	ms := e.popped("src")
	resp := e.run(nil, ackOp(ms[1], wire.AckCompleted, ""))
	require.True(t, resp.Success, resp.Error)
	require.Empty(t, e.popped("src"))
}
