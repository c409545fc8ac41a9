package e2e_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestRepeatedIDIsADuplicateOfTheOriginal(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	first := b.Push(t, harness.Item{Queue: q, TransactionID: "a", Payload: "first"})[0]
	require.Equal(t, "queued", first.Status)
	second := b.Push(t, harness.Item{Queue: q, TransactionID: "a", Payload: "second"})[0]
	require.Equal(t, "duplicate", second.Status)
	require.Equal(t, first.MessageID, second.MessageID)
	require.Equal(t, []string{`"first"`}, b.Pop(t, q, "").Payloads())
}

func TestSameIDIsFreeInEveryPartition(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t,
		harness.Item{Queue: q, Partition: "p1", TransactionID: "a", Payload: 1},
		harness.Item{Queue: q, Partition: "p2", TransactionID: "a", Payload: 2},
		harness.Item{Queue: q + "-2", Partition: "p1", TransactionID: "a", Payload: 3})
	b.PushQueued(t, harness.Item{Queue: q, Partition: "p3", TransactionID: "a", Payload: 4})
}

func TestTripleInOneRequestStoresOne(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	triple := func() []harness.PushResult {
		return b.Push(t,
			harness.Item{Queue: q, TransactionID: "a", Payload: 1}, harness.Item{Queue: q, TransactionID: "b", Payload: 2},
			harness.Item{Queue: q, TransactionID: "a", Payload: 3}, harness.Item{Queue: q, TransactionID: "a", Payload: 4})
	}
	r := triple()
	require.Equal(t, []string{"queued", "queued", "duplicate", "duplicate"}, statuses(r))
	require.Equal(t, r[0].MessageID, r[2].MessageID)
	require.Equal(t, r[0].MessageID, r[3].MessageID)
	require.NotEqual(t, r[0].MessageID, r[1].MessageID)

	again := triple()
	require.Equal(t, []string{"duplicate", "duplicate", "duplicate", "duplicate"}, statuses(again), "all repeat a stored one")
	for i := range r {
		require.Equal(t, r[i].MessageID, again[i].MessageID)
	}
	require.Equal(t, []string{"1", "2"}, b.Pop(t, q, "").Payloads())
}

func TestDuplicatesAreStrippedAndTheRestIsStored(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	old := b.Push(t, harness.Item{Queue: q, TransactionID: "old-1", Payload: 1}, harness.Item{Queue: q, TransactionID: "old-2", Payload: 2})
	r := b.Push(t,
		harness.Item{Queue: q, TransactionID: "new-1", Payload: 3}, harness.Item{Queue: q, TransactionID: "old-2", Payload: 4},
		harness.Item{Queue: q, TransactionID: "new-2", Payload: 5}, harness.Item{Queue: q, TransactionID: "old-1", Payload: 6},
		harness.Item{Queue: q, TransactionID: "old-1", Payload: 7}, harness.Item{Queue: q, Payload: 8})
	require.Equal(t, []string{"queued", "duplicate", "queued", "duplicate", "duplicate", "queued"}, statuses(r))
	require.Equal(t, old[1].MessageID, r[1].MessageID)
	require.Equal(t, old[0].MessageID, r[3].MessageID)
	require.Equal(t, old[0].MessageID, r[4].MessageID)
	p := b.Pop(t, q, "")
	require.Equal(t, []string{"1", "2", "3", "5", "8"}, p.Payloads())
	require.Equal(t, []string{r[0].MessageID, r[2].MessageID, r[5].MessageID},
		[]string{p.Messages[2].ID, p.Messages[3].ID, p.Messages[4].ID})
}

func TestOriginalIsFoundDeepInsideALaterSegment(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "", 10)
	items := make([]harness.Item, 50)
	for i := range items {
		items[i] = harness.Item{Queue: q, TransactionID: fmt.Sprintf("t-%d", i), Payload: i}
	}
	stored := b.Push(t, items...)
	b.PushTogether(t, q, "", 10)
	for _, i := range []int{0, 17, 49} {
		r := b.Push(t, items[i])[0]
		require.Equal(t, []string{"duplicate", stored[i].MessageID}, []string{r.Status, r.MessageID})
	}
}

func TestConcurrentPushesOfOneIDStoreOne(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for round := range 5 {
		results := make([]harness.PushResult, 8)
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() {
				r, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: fmt.Sprint(round), TransactionID: "one", Payload: i})
				if errs[i] = err; err == nil {
					results[i] = r[0]
				}
			})
		}
		wg.Wait()
		queued := 0
		for i, r := range results {
			require.NoError(t, errs[i])
			if r.Status == "queued" {
				queued++
			} else {
				require.Equal(t, "duplicate", r.Status)
			}
			require.Equal(t, results[0].MessageID, r.MessageID, "everybody learns the winner's id")
		}
		require.Equal(t, 1, queued)
		p := b.PopPartition(t, q, fmt.Sprint(round), "")
		require.Len(t, p.Messages, 1)
		require.Equal(t, results[0].MessageID, p.Messages[0].ID)
	}
}

func TestConcurrentBatchesThatOverlapStoreEachIDOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const pushers, ids = 6, 40
	all := make([][]harness.PushResult, pushers)
	var wg sync.WaitGroup
	for w := range pushers {
		wg.Go(func() {
			items := make([]harness.Item, ids)
			for i := range items {
				items[i] = harness.Item{Queue: q, TransactionID: fmt.Sprintf("t-%d", (i+w*7)%ids), Payload: w}
			}
			all[w], _ = b.TryPush(t.Context(), items...)
		})
	}
	wg.Wait()
	winner, queued := map[string]string{}, map[string]int{}
	for _, results := range all {
		require.Len(t, results, ids)
		for _, r := range results {
			require.Contains(t, []string{"queued", "duplicate"}, r.Status)
			if r.Status == "queued" {
				queued[r.TransactionID]++
				winner[r.TransactionID] = r.MessageID
			}
		}
	}
	require.Len(t, queued, ids)
	for _, results := range all {
		for _, r := range results {
			require.Equal(t, 1, queued[r.TransactionID])
			require.Equal(t, winner[r.TransactionID], r.MessageID)
		}
	}
	require.Len(t, b.Pop(t, q, "batch=1000").Messages, ids)
}

func TestIDIsFreeAgainAfterTheWindow(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"dedupWindowSeconds":60}`)
	item := harness.Item{Queue: q, TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	require.Equal(t, "duplicate", b.Push(t, item)[0].Status)
	age(t, b, q, 59)
	require.Equal(t, "duplicate", b.Push(t, item)[0].Status, "still inside the window")
	age(t, b, q, 2)
	b.PushQueued(t, item)
	require.Equal(t, "duplicate", b.Push(t, item)[0].Status, "of the second one")
}

func TestIDIsFreeAgainAfterTheSidecarIsPurged(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	item := harness.Item{Queue: q, TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	pid := b.DB.PartitionID(t, q, "Default")
	b.DB.Exec(t, `DELETE FROM queen.log_txns WHERE partition_id = $1`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET txns_start = last_offset + 1 WHERE id = $1`, pid)
	b.PushQueued(t, item)
}

func TestDuplicateOfALostOriginalCarriesTheZeroID(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q, TransactionID: "a", Payload: 1})
	b.PushQueued(t, harness.Item{Queue: q, TransactionID: "b", Payload: 2})
	pid := b.DB.PartitionID(t, q, "Default")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 0`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = 1 WHERE id = $1`, pid)
	r := b.Push(t, harness.Item{Queue: q, TransactionID: "a", Payload: 3}, harness.Item{Queue: q, TransactionID: "c", Payload: 4})
	require.Equal(t, []string{"duplicate", "queued"}, statuses(r))
	require.Equal(t, zeroUUID, r[0].MessageID)
	require.Equal(t, []string{"2", "4"}, b.Pop(t, q, "").Payloads())
}

func TestWindowZeroSwitchesDeduplicationOff(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"dedupWindowSeconds":0}`)
	item := harness.Item{Queue: q, TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	b.PushQueued(t, item)
	p := b.Pop(t, q, "")
	require.Len(t, p.Messages, 2)
	b.AckOK(t, "", p.Messages[1].Ack("completed"))
	b.RequireNone(t, harness.PopPath(q, ""))
	require.Equal(t, int64(2), harness.Value[int64](t, b.DB,
		`SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, b.DB.PartitionID(t, q, "Default")), "hashes are written all the same")
}

func TestWindowChangeTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	item := harness.Item{Queue: q, TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	b.Configure(t, q, `{"dedupWindowSeconds":0}`)
	b.PushQueued(t, item)
	b.Configure(t, q, `{}`)
	require.Equal(t, "duplicate", b.Push(t, item)[0].Status)
}

func TestMintedIDIsADuplicateWhenSentBack(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	id := b.PushQueued(t, harness.Item{Queue: q, Payload: 1})[0]
	r := b.Push(t, harness.Item{Queue: q, TransactionID: id, Payload: 2}, harness.Item{Queue: q, Payload: 3})
	require.Equal(t, []string{"duplicate", "queued"}, statuses(r))
	require.Equal(t, id, r[0].MessageID)
}

func TestRecreatedPartitionHasNoMemory(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	item := harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	b.DeleteQueue(t, q)
	b.PushQueued(t, item)
	require.Equal(t, "duplicate", b.Push(t, item)[0].Status)
}

func statuses(results []harness.PushResult) []string {
	out := make([]string, len(results))
	for i, r := range results {
		out[i] = r.Status
	}
	return out
}

// age moves everything stored on a queue into the past.
func age(t *testing.T, b *harness.Broker, queue string, seconds int) {
	t.Helper()
	for _, table := range []string{"log_txns", "log_segments"} {
		b.DB.Exec(t, `UPDATE queen.`+table+` x SET created_at = x.created_at - make_interval(secs => $2)
			FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
			WHERE p.id = x.partition_id AND q.name = $1`, queue, seconds)
	}
}
