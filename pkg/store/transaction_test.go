package store_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// txPush is segment for a transaction.
func txPush(queue, partition string, ids ...uint64) store.TxPush {
	s := segment(queue, partition, ids...)
	return store.TxPush{Queue: queue, Partition: partition, Count: s.Count, Hashes: s.Hashes, Blob: s.Blob}
}

// txAck completes ids.
func txAck(pid uuid.UUID, group, worker string, ids ...uint64) store.TxAck {
	a := store.TxAck{PartitionID: pid, Group: group, Worker: worker, Hashes: hashes(ids...)}
	for range ids {
		a.Statuses = append(a.Statuses, ok)
	}
	return a
}

func (b *bench) transact(t store.Transaction) (store.TransactionResult, error) {
	b.t.Helper()
	if t.Tenant == uuid.Nil {
		t.Tenant = store.DefaultTenant()
	}
	return b.store.Transaction(b.t.Context(), t)
}

func (b *bench) commit(t store.Transaction) store.TransactionResult {
	b.t.Helper()
	out, err := b.transact(t)
	require.NoError(b.t, err)
	require.Len(b.t, out.Acks, len(t.Acks))
	require.Len(b.t, out.Pushes, len(t.Pushes))
	return out
}

// wireTx calls the procedure with a request of the test's own.
func (b *bench) wireTx(request string) (answer string, err error) {
	b.t.Helper()
	err = b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.log_transaction_wire_v1($1)`, request).Scan(&answer)
	})
	return answer, err
}

// dump is the content of every table that a transaction may touch.
func (b *bench) dump() (text string) {
	b.t.Helper()
	b.one([]any{&text}, `SELECT jsonb_build_object(
		'queues', (SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM queen.queues t),
		'partitions', (SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM queen.log_partitions t),
		'segments', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, base_offset) FROM queen.log_segments t),
		'txns', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, base_offset) FROM queen.log_txns t),
		'consumers', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, consumer_group) FROM queen.log_consumers t),
		'kv', (SELECT jsonb_agg(to_jsonb(t) ORDER BY tenant_id, namespace, key) FROM queen.kv t),
		'timers', (SELECT jsonb_agg(to_jsonb(t) ORDER BY tenant_id, queue, timer_key) FROM queen.log_timers t))::text`)
	return text
}

func TestTransactionPushesAndAcks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.lane()
	r := b.queued(segment("q", "r", 10, 11)).PartitionID
	b.leased(p, "b", "w1", 0, 4)
	b.leased(p, "a", "w2", 0, 4)
	b.leased(r, "a", "w3", -1, 1)
	out := b.commit(store.Transaction{
		Pushes: []store.TxPush{txPush("new.task", "x", 1, 2), txPush("q", "p", 100), txPush("new.task", "x", 3), txPush("new.task", "y", 1)},
		Acks:   []store.TxAck{txAck(r, "a", "w3", 11), txAck(p, "b", "w1", 2, 3), txAck(p, "a", "", 4)},
	})
	require.Equal(t, []store.AckOutcome{
		{OK: true, Acked: 2, Offset: 1, Released: true},
		{OK: true, Acked: 3, Offset: 3},
		{OK: true, Acked: 4, Offset: 4, Released: true},
	}, out.Acks, "in the order of the request")
	require.Equal(t, finished(1, 12), b.state(r, "a"))
	require.Equal(t, held(3, 13, 1).Committed, b.state(p, "b").Committed)
	require.Equal(t, finished(4, 14), b.state(p, "a"))

	var bases []int64
	for i, v := range out.Pushes {
		require.Equal(t, store.PushQueued, v.Status)
		require.NotZero(t, v.CreatedAt)
		bases = append(bases, v.BaseOffset)
		seg, found, err := b.store.SegmentAt(t.Context(), v.PartitionID, v.BaseOffset)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, [][]byte{[]byte("frames [1 2]"), []byte("frames [100]"), []byte("frames [3]"), []byte("frames [1]")}[i], seg.Blob)
	}
	require.Equal(t, []int64{0, 8, 2, 0}, bases, "one lane twice is allocated in input order")
	require.Equal(t, out.Pushes[0].PartitionID, out.Pushes[2].PartitionID)
	require.Equal(t, p, out.Pushes[1].PartitionID)
	var namespace, task string
	b.one([]any{&namespace, &task}, `SELECT namespace, task FROM queen.queues WHERE name = 'new.task'`)
	require.Equal(t, []string{"new", "task"}, []string{namespace, task})
}

func TestTransactionOfNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, store.TransactionResult{Acks: []store.AckOutcome{}}, b.commit(store.Transaction{}))
}

func TestTransactionSignalsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.configure("q", `{"retryLimit":2}`, true)
	for _, g := range []string{"retry", "failed", "dlq"} {
		b.leased(pid, g, "w", 0, 4)
	}
	signal := func(g string, s store.AckStatus) store.TxAck {
		return store.TxAck{PartitionID: pid, Group: g, Worker: "w", Hashes: hashes(0, 1, 2), Statuses: statuses(s, ok, s)}
	}
	out := b.commit(store.Transaction{Acks: []store.TxAck{signal("retry", retry), signal("failed", failed), signal("dlq", dlq)}})
	require.Equal(t, []store.AckOutcome{
		{OK: true, Acked: 1, Offset: 1, Released: true, Stale: []int{0}},
		{OK: true, Acked: 1, Offset: 1, Released: true, Stale: []int{0}},
		{OK: true, Acked: 1, Offset: 2, DLQ: true, Worker: "w", Stale: []int{0}},
	}, out.Acks, "a message below the cursor is no failure")
	require.Equal(t, free(1, 11, 1), b.state(pid, "retry"))
	require.Equal(t, free(1, 11, 2), b.state(pid, "failed"))
	require.Equal(t, held(1, 11, 1), b.state(pid, "dlq"))
	filed, err := b.store.DLQHead(t.Context(), store.DeadLetter{PartitionID: pid, Group: "dlq", Worker: out.Acks[2].Worker, Offset: out.Acks[2].Offset, Payload: []byte(`1`)})
	require.NoError(t, err)
	require.True(t, filed.OK)
}

// Every refusal leaves the database as it was, in whatever place of the bundle
// it happens, and says so.
func TestTransactionRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	const (
		lost    = "QTXN ack failed: invalid or expired lease; transaction rolled back"
		unknown = "QTXN ack references unknown transactionId; transaction rolled back"
	)
	foreign := uuid.New()
	cases := map[string]struct {
		bad    func(b *bench, pid uuid.UUID, tx *store.Transaction)
		reason string
		text   string
	}{
		"a stored transaction id": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, txPush("q", "p", 77, 3))
		}, "duplicate", `QDUP duplicate messages in queue "q" partition "p"; transaction rolled back`},
		"an id repeated by two pushes": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, txPush("q", "new", 1), txPush("q", "new", 1))
		}, "duplicate", `QDUP duplicate messages in queue "q" partition "new"; transaction rolled back`},
		"an unknown id": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, group, "w", 1, 99))
		}, "ack_rejected", unknown},
		"an id above the batch": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, group, "w", 5))
		}, "ack_rejected", unknown},
		"an id that was purged": {func(b *bench, pid uuid.UUID, tx *store.Transaction) {
			b.exec(`UPDATE queen.log_partitions SET txns_start = 3 WHERE id = $1`, pid)
			tx.Acks = append(tx.Acks, txAck(pid, group, "w", 2))
		}, "ack_rejected", unknown},
		"another lease": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, group, "x", 1))
		}, "ack_rejected", lost},
		"an expired lease": {func(b *bench, pid uuid.UUID, tx *store.Transaction) {
			b.expireLease(pid, group)
			tx.Acks = append(tx.Acks, txAck(pid, group, "w", 1))
		}, "ack_rejected", lost},
		"a holder who is not listed": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, group, "", 1))
			tx.Acks[1].Workers = []string{"x", "y"}
		}, "ack_rejected", lost},
		"a listed holder whose lease expired": {func(b *bench, pid uuid.UUID, tx *store.Transaction) {
			b.expireLease(pid, group)
			tx.Acks = append(tx.Acks, txAck(pid, group, "", 1))
			tx.Acks[1].Workers = []string{"w"}
		}, "ack_rejected", lost},
		"a list, and no holder": {func(b *bench, pid uuid.UUID, tx *store.Transaction) {
			b.cursorAt(pid, "idle", 0)
			tx.Acks = append(tx.Acks, txAck(pid, "idle", "", 1))
			tx.Acks[1].Workers = []string{"w", ""}
		}, "ack_rejected", lost},
		"an operation's lease wins over the list": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, group, "x", 1))
			tx.Acks[1].Workers = []string{"w"}
		}, "ack_rejected", lost},
		"a group without a cursor": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(pid, "none", "", 1))
			tx.Acks[1].Workers = []string{"w"}
		}, "ack_rejected", "QTXN ack failed: consumer not found; transaction rolled back"},
		"an unknown partition": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, txAck(uuid.UUID{1}, group, "", 1))
		}, "ack_rejected", "QTXN ack references partition 01000000-0000-0000-0000-000000000000 that does not exist or is not owned by the tenant; transaction rolled back"},
		"another tenant's partition": {func(b *bench, _ uuid.UUID, tx *store.Transaction) {
			theirs := segment("q", "p", 1)
			theirs.Tenant = foreign
			pid := b.queued(theirs).PartitionID
			b.cursorAt(pid, group, -1)
			tx.Acks = append(tx.Acks, txAck(pid, group, "", 1))
		}, "ack_rejected", ""},
		"a malformed segment": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, store.TxPush{Queue: "q", Partition: "p", Count: 2, Hashes: hash(1), Blob: []byte{1}})
		}, "misaligned", "QPUSH bad segment: 2 messages, 16 bytes of hashes; transaction rolled back"},
		"a push without a queue": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, txPush("", "p", 1))
		}, "misaligned", "QTXN resolved 1 of 2 pushes; transaction rolled back"},
		"an ack without its statuses": {func(_ *bench, pid uuid.UUID, tx *store.Transaction) {
			tx.Acks = append(tx.Acks, store.TxAck{PartitionID: pid, Group: group, Hashes: hashes(1, 2), Statuses: statuses(ok)})
		}, "misaligned", "ack 1 has 2 hashes and 1 statuses; transaction rolled back"},
		"a name the database cannot hold": {func(_ *bench, _ uuid.UUID, tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, txPush("a\x00b", "p", 1))
		}, "db_error", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pid := b.lane()
			first := b.queued(segment("q", "first", 1)).PartitionID
			b.leased(pid, group, "w", 0, 4)
			b.leased(first, group, "w", -1, 0)
			tx := store.Transaction{
				Pushes: []store.TxPush{txPush("fresh", "p", 1)},
				Acks:   []store.TxAck{txAck(first, group, "w", 1)},
			}
			c.bad(b, pid, &tx)
			before := b.dump()
			_, err := b.transact(tx)
			var refused *store.TxRefused
			require.ErrorAs(t, err, &refused)
			require.Equal(t, c.reason, refused.Reason)
			if c.text != "" {
				require.Equal(t, c.text, refused.Text)
			}
			require.Regexp(t, "; transaction rolled back$", refused.Text)
			require.Equal(t, store.Permanent, store.Classify(err))
			require.False(t, store.Ambiguous(err))
			require.Equal(t, before, b.dump())
		})
	}
}

func TestTransactionAcceptsAnyOfTheListedHolders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, r := b.lane(), b.queued(segment("q", "r", 1)).PartitionID
	b.leased(p, group, "w1", 0, 4)
	b.leased(r, group, "w2", -1, 0)
	tx := store.Transaction{Acks: []store.TxAck{txAck(p, group, "", 4), txAck(r, group, "", 1)}}
	for i := range tx.Acks {
		tx.Acks[i].Workers = []string{"w2", "w1"}
	}
	for _, a := range b.commit(tx).Acks {
		require.True(t, a.Released)
	}
}

// With neither a lease nor a list the check is skipped, whoever holds the batch.
func TestTransactionAckWithoutLeasesIsNotChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 0, 4)
	b.expireLease(pid, group)
	require.True(t, b.commit(store.Transaction{Acks: []store.TxAck{txAck(pid, group, "", 4)}}).Acks[0].Released)
}

// A mark belongs to a lane id and a window; minted ids need no probe at all.
func TestTransactionMarks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	cases := map[string]struct {
		verified  int64
		pid       uuid.UUID
		window    int
		duplicate bool
	}{
		"none":                          {store.VerifiedNone, uuid.Nil, 0, true},
		"the zero value":                {0, uuid.Nil, 0, true},
		"without a lane":                {7, uuid.Nil, 3600, true},
		"of another lane":               {7, uuid.New(), 3600, true},
		"for a shorter window":          {7, pid, 3599, true},
		"beyond the end of the lane":    {1 << 40, pid, 3600, true},
		"below the stored one":          {2, pid, 3600, true},
		"above the stored one (a lie)":  {5, pid, 3600, false},
		"the ids are minted (also one)": {store.VerifiedMinted, uuid.Nil, 0, false},
	}
	for name, c := range cases {
		push := txPush("q", "p", 3)
		push.Verified, push.PartitionID, push.Window = c.verified, c.pid, c.window
		_, err := b.transact(store.Transaction{Pushes: []store.TxPush{push}, Acks: []store.TxAck{txAck(pid, "none", "", 1)}})
		var refused *store.TxRefused
		require.ErrorAs(t, err, &refused, name)
		want := "ack_rejected" // got beyond the pushes
		if c.duplicate {
			want = "duplicate"
		}
		require.Equal(t, want, refused.Reason, name)
	}
}

func TestTransactionWithoutDedupStoresAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"dedupWindowSeconds":0}`, true)
	b.lane()
	out := b.commit(store.Transaction{Pushes: []store.TxPush{txPush("q", "p", 3)}})
	require.Equal(t, int64(8), out.Pushes[0].BaseOffset)
}

// The request as the seeds describe it, in the forms that the store itself does
// not send.
func TestTransactionWireForms(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	ack := func(rest string) string {
		return fmt.Sprintf(`{"acks":[{"partitionId":%q,"group":"g",%s}]}`, pid, rest)
	}
	cases := map[string]struct {
		request, err string
		row          ackState
	}{
		"positional":                      {ack(`"worker":"w","uptoOff":4,"ok":true,"count":4`), "", finished(4, 14)},
		"positional above the batch":      {ack(`"worker":"w","uptoOff":9`), "", finished(4, 10)},
		"positional, not ok":              {ack(`"worker":"w","uptoOff":4,"ok":false,"count":4`), "", free(0, 10, 1)},
		"positional, another lease":       {ack(`"worker":"x","uptoOff":4`), "QTXN ack failed: invalid or expired lease; transaction rolled back", held(0, 10, 1)},
		"positional, listed holder":       {ack(`"workers":["w"],"uptoOff":4,"count":4`), "", finished(4, 14)},
		"hashes of the older form":        {ack(`"acks":[{"h":"` + hex.EncodeToString(hash(1)) + `"},{"h":"` + hex.EncodeToString(hash(2)) + `","ok":false}]`), "", free(1, 11, 2)},
		"no hashes":                       {ack(`"worker":"w","acks":[]`), "", held(0, 10, 1)},
		"an empty list of workers":        {ack(`"workers":[],"acks":[]`), "", held(0, 10, 1)},
		"a rider that is null":            {`{"kv":null,"timers":null,"acks":null,"pushes":null}`, "", held(0, 10, 1)},
		"a rider that is empty":           {`{"kv":[],"timers":[]}`, "", held(0, 10, 1)},
		"a rider of another type":         {`{"kv":{}}`, "QTXN kv must be an array or null, not object; transaction rolled back", held(0, 10, 1)},
		"a rider of yet another type":     {`{"timers":"x"}`, "QTXN timers must be an array or null, not string; transaction rolled back", held(0, 10, 1)},
		"a partition that is not named":   {`{"acks":[{"group":"g","acks":[]}]}`, "QTXN ack references partition", held(0, 10, 1)},
		"a push that names no partition":  {`{"pushes":[{"queue":"q","count":1,"hashesHex":"` + hex.EncodeToString(hash(70)) + `","blobB64":"eA=="}]}`, "QTXN resolved 0 of 1 pushes; transaction rolled back", held(0, 10, 1)},
		"positional without leased batch": {fmt.Sprintf(`{"acks":[{"partitionId":%q,"group":"idle","uptoOff":4}]}`, pid), "QTXN ack failed: no leased batch; transaction rolled back", held(0, 10, 1)},
	}
	for name, c := range cases {
		b.exec(`DELETE FROM queen.log_consumers`)
		b.leased(pid, group, "w", 0, 4)
		b.cursorAt(pid, "idle", 0)
		answer, err := b.wireTx(c.request)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			require.Equal(t, store.Permanent, store.Classify(err), name)
		} else {
			require.NoError(t, err, name)
			require.Equal(t, true, object(t, []byte(answer))["ok"], name)
		}
		require.Equal(t, c.row, b.state(pid, group), name)
	}
}

// Acks are answered in the order they were executed in, with their position.
func TestTransactionExecutesAcksInLockOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	for _, g := range []string{"a", "B", "é"} {
		b.leased(pid, g, "w", 0, 4)
	}
	var acks []string
	for _, g := range []string{"é", "a", "B"} {
		acks = append(acks, fmt.Sprintf(`{"partitionId":%q,"group":%q,"worker":"w","acks":[{"h":"%x","status":"dlq"}]}`, pid, g, hash(1)))
	}
	answer, err := b.wireTx(`{"acks":[` + acks[0] + `,` + acks[1] + `,` + acks[2] + `]}`)
	require.NoError(t, err)
	var out struct {
		Acks []struct {
			Group, Worker string
			PartitionID   uuid.UUID
			Index         int
			DLQ           bool
			Off           int64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &out))
	require.Len(t, out.Acks, 3)
	for i, want := range []struct {
		group string
		index int
	}{{"B", 2}, {"a", 1}, {"é", 0}} {
		a := out.Acks[i]
		require.Equal(t, want.group, a.Group)
		require.Equal(t, want.index, a.Index)
		require.Equal(t, []any{true, int64(1), "w", pid}, []any{a.DLQ, a.Off, a.Worker, a.PartitionID})
	}
}
