package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestGhostIDChargesNothing(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, `{"retryLimit":0}`)
	for _, status := range []string{"completed", "failed", "retry", "dlq"} {
		ghost := p.Messages[0].Ack(status)
		ghost.TransactionID = "ghost"
		require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", ghost)), status)
		ghost.TransactionID = ""
		require.Equal(t, unresolvedText, b.AckOne(t, ghost).ErrorText(), "an empty id resolves to nothing")
	}
	row := b.DB.Cursor(t, q, "p", harness.QueueMode)
	require.Equal(t, []any{int64(-1), 0, true}, []any{row.Committed, row.RetryCount, row.Worker != nil})
	require.Empty(t, b.DLQ(t, q, ""))
	b.AckOK(t, "", p.Acks("completed")...)
	require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestGhostBesideRealItemsFailsAlone(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, "")
	ghost := p.Messages[0].Ack("failed")
	ghost.TransactionID = "ghost"
	got := b.Ack(t, "", ghost, p.Messages[0].Ack("completed"), p.Messages[1].Ack("completed"))
	require.Equal(t, unresolvedText, got[0].ErrorText())
	require.True(t, got[1].Success && got[2].Success)
	require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestAckAboveTheLeasedBatchIsUnresolvable(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ids := b.PushEach(t, q, "p", 4)
	p := b.Pop(t, q, "batch=2")
	above := p.Messages[0].Ack("completed")
	above.TransactionID = ids[2]
	require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", above)))
	above.LeaseID = ""
	require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", above)), "also without naming the lease")
	b.DB.ExpireLeases(t, q)
	require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", above)), "also while the lease is over but not taken")
	require.Equal(t, int64(-1), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestAckWithoutALeaseAnywhereIsUnbounded(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ids := b.PushEach(t, q, "p", 4)
	p := b.Pop(t, q, "batch=1")
	b.AckOK(t, "", p.Acks("retry")...)
	b.AckOK(t, "", harness.Ack{TransactionID: ids[2], PartitionID: p.PartitionID})
	require.Equal(t, numbers(3, 4), b.Pop(t, q, "").Payloads())
}

func TestPurgedHashesAreUnresolvable(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, "")
	b.DB.Exec(t, `DELETE FROM queen.log_txns WHERE partition_id = $1`, p.PartitionID)
	require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", p.Messages[0].Ack("completed"))))
	require.Equal(t, []verdict{{err: unresolvedText}}, verdicts(b.Ack(t, "", p.Messages[0].Ack("failed"))))
	require.Equal(t, int64(-1), b.DB.Committed(t, q, "p", harness.QueueMode))
	b.DB.ExpireLeases(t, q)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "").Payloads(), "they are delivered again")
}

func TestAckNamesALease(t *testing.T) {
	t.Parallel()
	t.Run("a wrong one is refused and moves nothing", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 2, "")
		for _, lease := range []string{"nonsense", "019a0000-0000-7000-8000-000000000000", zeroUUID} {
			acks := p.Acks("completed")
			for i := range acks {
				acks[i].LeaseID = lease
			}
			require.Equal(t, all(2, verdict{err: leaseText}), verdicts(b.Ack(t, "", acks...)))
		}
		require.Equal(t, int64(-1), b.DB.Committed(t, q, "p", harness.QueueMode))
		b.AckOK(t, "", p.Acks("completed")...)
	})
	t.Run("an expired one is refused, and lease-less it succeeds", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 2, "")
		b.DB.ExpireLeases(t, q)
		for _, status := range []string{"completed", "failed", "retry", "dlq"} {
			require.Equal(t, all(2, verdict{err: leaseText}), verdicts(b.Ack(t, "", p.Acks(status)...)), status)
		}
		for _, m := range p.Messages {
			ack := m.Ack("completed")
			ack.LeaseID = ""
			require.True(t, b.AckOne(t, ack).Success)
		}
		b.RequireNone(t, harness.PopPath(q, ""))
		require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
	})
	t.Run("one that another consumer took over is refused", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 2, "")
		b.DB.ExpireLeases(t, q)
		again := b.Pop(t, q, "")
		require.Equal(t, all(2, verdict{err: leaseText}), verdicts(b.Ack(t, "", p.Acks("completed")...)))
		require.Equal(t, all(2, verdict{err: leaseText}), verdicts(b.Ack(t, "", p.Acks("failed")...)), "a late nack cannot wedge the partition")
		b.AckOK(t, "", again.Acks("completed")...)
	})
	t.Run("without one the holder is overruled", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 3, "")
		ack := p.Messages[1].Ack("completed")
		ack.LeaseID = ""
		require.Equal(t, []verdict{{success: true}}, verdicts(b.Ack(t, "", ack)))
		require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
		b.AckOK(t, "", p.Messages[2].Ack("completed"))
	})
	t.Run("null and empty mean none", func(t *testing.T) {
		t.Parallel()
		for _, lease := range []string{`null`, `""`} {
			b, q, p := leased(t, 1, "")
			b.DB.ExpireLeases(t, q)
			a := b.Post(t, "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%s,"error":null,"consumerGroup":null,"status":null}`,
				p.Messages[0].TransactionID, p.PartitionID, lease))
			require.Equal(t, true, a.Objects(t)[0]["success"], a)
		}
	})
}

func TestMixedLeasesAreIndependentGroups(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, "")
	wrong := p.Messages[0].Ack("completed")
	wrong.LeaseID = "nonsense"
	got := b.Ack(t, "", wrong, p.Messages[0].Ack("completed"))
	require.Equal(t, leaseText, got[0].ErrorText())
	require.True(t, got[1].Success)
	require.Equal(t, int64(0), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestAckOfManyPartitionsInOneCall(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(3) {
		b.PushTogether(t, q, lane, 2)
	}
	p := b.Pop(t, q, "batch=100&partitions=3&consumerGroup=g")
	require.Len(t, p.Messages, 6)
	require.Len(t, p.Partitions(), 3)
	acks := p.Acks("completed")
	acks[1].Status = "failed" // the first partition only
	got := b.AckOK(t, "g", acks...)
	require.Equal(t, all(6, verdict{success: true, released: true}), verdicts(got))
	require.Equal(t, int64(0), b.DB.Committed(t, q, p.Messages[0].Partition, "g"))
	for _, lane := range p.Partitions()[1:] {
		require.Equal(t, int64(1), b.DB.Committed(t, q, lane, "g"))
	}
	require.Equal(t, []string{"1"}, b.Pop(t, q, "batch=100&partitions=3&consumerGroup=g").Payloads())
}

func TestAckOfTheWholeMultiPartitionBatch(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(3) {
		b.PushTogether(t, q, lane, 2)
	}
	p := b.Pop(t, q, "batch=100&partitions=3")
	require.Equal(t, all(6, verdict{success: true, released: true}), verdicts(b.Ack(t, "", p.Acks("completed")...)))
	b.RequireNone(t, harness.PopPath(q, "partitions=0"))
}

func TestAckOfAnUnknownAddress(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	id := p.Messages[0].TransactionID
	got := b.Ack(t, "",
		harness.Ack{TransactionID: id, PartitionID: "019a0000-0000-7000-8000-000000000000"},
		harness.Ack{TransactionID: id, PartitionID: "not-a-uuid"},
		harness.Ack{TransactionID: id, PartitionID: ""},
		p.Messages[0].Ack("completed"))
	require.Equal(t, "consumer not found", got[0].ErrorText())
	require.False(t, got[1].Success)
	require.NotEmpty(t, got[1].ErrorText())
	require.False(t, got[2].Success)
	require.NotEmpty(t, got[2].ErrorText())
	require.True(t, got[3].Success, "the others do not suffer")
	require.Equal(t, "consumer not found", b.Ack(t, "stranger", p.Messages[0].Ack("completed"))[0].ErrorText(), "a group that never popped")
	require.Nil(t, b.DB.Cursor(t, q, "p", "stranger"))
}

func TestGroupOfABatchIsTopLevelOnly(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	p := b.Pop(t, q, "consumerGroup=g")
	ack := p.Messages[0].Ack("completed")
	ack.ConsumerGroup = "g"
	require.Equal(t, "consumer not found", b.Ack(t, "", ack)[0].ErrorText(), "a group per item is not read by the batch route")
	require.True(t, b.AckOne(t, ack).Success, "it is by the single one")
}
