package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

func TestTransactionWithRiders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 0, 4)
	b.kv(put("count", `"value":5,"forever":true`))
	before := time.Now().Add(-time.Hour)
	out := b.commit(store.Transaction{
		Pushes: []store.TxPush{txPush("fresh", "p", 1)}, Acks: []store.TxAck{txAck(pid, group, "w", 4)}, ProducerSub: "me",
		KV:     list([]string{getOp("none"), incr("count", `"delta":1`), `{"op":"putIfAbsent","ns":"n","key":"count","value":1,"ttlSeconds":9}`}[:2]),
		Timers: list([]string{schedule("later", 60_000), cancel("none"), schedule("soon", -1000)}),
	})
	require.Len(t, out.Pushes, 1)
	require.True(t, out.Acks[0].Released)
	kv := b.elements(out.KV, 2)
	require.Equal(t, element{"index": 0., "op": "get", "found": false, "key": "none"}, kv[0])
	require.Equal(t, 6., kv[1]["value"])
	timers := b.elements(out.Timers.Results, 3)
	require.Equal(t, []any{"scheduled", "absent", "scheduled"}, statusesOf(timers))
	require.Equal(t, timers[2]["deliverAt"], out.Timers.Next.UTC().Format("2006-01-02T15:04:05.000000Z"))
	require.True(t, out.Timers.Next.After(before))
	require.Equal(t, "me", b.peek("later")["producerSub"])
	require.EqualValues(t, 1, b.count(`SELECT count(DISTINCT x.at) FROM (SELECT updated_at AS at FROM queen.log_timers UNION ALL SELECT updated_at FROM queen.kv WHERE key = 'count') AS x`),
		"one instant for all riders")

	none := b.commit(store.Transaction{KV: []byte(`[]`), Timers: []byte(`null`)})
	require.Nil(t, none.KV)
	require.Equal(t, store.TimersApplied{}, none.Timers)
	only := b.commit(store.Transaction{KV: list([]string{getOp("count")})})
	require.Equal(t, 6., b.elements(only.KV, 1)[0]["value"])
	lost := b.commit(store.Transaction{KV: list([]string{incr("count", `"delta":1,"max":6`)}), Pushes: []store.TxPush{txPush("q", "p", 100)}})
	require.Equal(t, "limit", b.elements(lost.KV, 1)[0]["reason"], "a refusal that is not required does not fail the bundle")
	require.Len(t, lost.Pushes, 1)
}

// A bundle that fails, in whatever place and for whatever reason, leaves no trace: not
// in keys, timers, offsets or cursors.
func TestTransactionWithRidersRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	const required = `{"op":"putIfAbsent","ns":"n","key":"taken","value":1,"forever":true,"required":true}`
	good := func(b *bench, pid uuid.UUID) store.Transaction {
		return store.Transaction{
			Pushes: []store.TxPush{txPush("fresh", "p", 1), txPush("q", "p", 50)}, Acks: []store.TxAck{txAck(pid, group, "w", 1)},
			KV:     list([]string{put("new", `"value":1,"forever":true`), `{"op":"delete","ns":"n","key":"old"}`, incr("count", `"delta":1`)}),
			Timers: list([]string{schedule("new", 0), cancel("old"), schedule("moved", 60_000)}),
		}
	}
	cases := map[string]struct {
		bad    func(tx *store.Transaction)
		reason string // "" for a lost precondition
		text   string
	}{
		"a required key that is taken": {func(tx *store.Transaction) {
			tx.KV = list([]string{put("new", `"value":1,"forever":true`), required})
		}, "", ""},
		"a malformed key operation": {func(tx *store.Transaction) {
			tx.KV = list([]string{put("new", `"value":1,"forever":true`), put("b", `"value":1`)})
		}, store.TxReasonBadRequest, "kv_expiry_not_specified: operation 1: exactly one of ttlSeconds and \"forever\": true is needed; transaction rolled back"},
		"a value that is too large": {func(tx *store.Transaction) {
			tx.KV = list([]string{put("new", `"forever":true,"value":"`+strings.Repeat("x", 65535)+`"`)})
		}, store.TxReasonTooLarge, "kv_value_too_large: operation 0: a value has at most 65536 bytes as JSON text; transaction rolled back"},
		"a page": {func(tx *store.Transaction) {
			tx.KV = list([]string{`{"op":"getPrefix","ns":"n","prefix":"p"}`})
		}, store.TxReasonBadRequest, "kv_get_prefix_not_allowed_in_transaction: operation 0: getPrefix is not allowed in a transaction; transaction rolled back"},
		"65 key operations": {func(tx *store.Transaction) {
			tx.KV = list(repeated(65, func(i int) string { return put(fmt.Sprint(i), `"value":1,"forever":true`) }))
		}, store.TxReasonBadRequest, "kv_too_many_ops: 65 operations, and at most 64; transaction rolled back"},
		"257 keys": {func(tx *store.Transaction) {
			tx.KV = list([]string{`{"op":"getMany","ns":"n","keys":` + string(list(repeated(257, func(i int) string { return fmt.Sprintf(`"%d"`, i) }))) + `}`})
		}, store.TxReasonBadRequest, "kv_too_many_keys: operation 0: 257 keys so far, and at most 256; transaction rolled back"},
		"a key rider that is no array": {func(tx *store.Transaction) { tx.KV = []byte(`{}`) }, store.TxReasonMisaligned, "QTXN kv must be an array or null, not object; transaction rolled back"},
		"a key rider that is no JSON":  {func(tx *store.Transaction) { tx.KV = []byte(`[`) }, store.TxReasonBadRequest, "kv is no JSON; transaction rolled back"},
		"a key rider that jsonb refuses": {func(tx *store.Transaction) {
			tx.KV = list([]string{put("k", `"value":"\u0000","forever":true`)})
		}, store.TxReasonBadRequest, ""},
		"a malformed timer": {func(tx *store.Transaction) {
			tx.Timers = list([]string{schedule("new", 0), `{"op":"cancel","queue":"q"}`})
		}, store.TxReasonBadRequest, "QTIMER operation 1: queue and timerKey must be texts that are not empty; transaction rolled back"},
		"a payload that is no base64": {func(tx *store.Transaction) {
			tx.Timers = list([]string{`{"op":"schedule","queue":"q","timerKey":"new","delayMs":1,"txn":"t","payload":"*"}`})
		}, store.TxReasonBadRequest, ""},
		"a timer rider that is no array": {func(tx *store.Transaction) { tx.Timers = []byte(`7`) }, store.TxReasonMisaligned, "QTXN timers must be an array or null, not number; transaction rolled back"},
		"a stored transaction id": {func(tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, txPush("q", "p", 3))
		}, store.TxReasonDuplicate, ""},
		"a malformed push": {func(tx *store.Transaction) {
			tx.Pushes = append(tx.Pushes, store.TxPush{Queue: "q", Partition: "p", Count: 2, Hashes: hash(1), Blob: []byte{1}})
		}, store.TxReasonMisaligned, ""},
		"an unknown id": {func(tx *store.Transaction) { tx.Acks[0] = txAck(tx.Acks[0].PartitionID, group, "w", 99) }, store.TxReasonAckRejected, ""},
		"another lease": {func(tx *store.Transaction) { tx.Acks[0].Worker = "x" }, store.TxReasonAckRejected, ""},
		"a foreign partition": {func(tx *store.Transaction) {
			tx.Acks[0].PartitionID = uuid.UUID{1}
		}, store.TxReasonAckRejected, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pid := b.lane()
			b.leased(pid, group, "w", 0, 4)
			taken := b.kv(put("taken", `"value":{"by":"x"},"forever":true`), put("old", `"value":1,"forever":true`), put("count", `"value":1,"forever":true`))[0]
			b.timers(schedule("old", 60_000), schedule("moved", 1000))
			tx := good(b, pid)
			c.bad(&tx)
			before := b.dump()
			_, err := b.transact(tx)
			require.Equal(t, before, b.dump())
			require.Equal(t, store.Permanent, store.Classify(err))
			require.False(t, store.Ambiguous(err))
			if c.reason == "" {
				var lost *store.KVPrecondition
				require.ErrorAs(t, err, &lost)
				require.Equal(t, store.KVPrecondition{Known: true, Index: 1, Reason: "exists", Version: taken.version(t), Value: json.RawMessage(`{"by": "x"}`)}, bare(lost))
				return
			}
			var refused *store.TxRefused
			require.ErrorAs(t, err, &refused)
			require.Equal(t, c.reason, refused.Reason, refused.Text)
			if c.text != "" {
				require.Equal(t, c.text, refused.Text)
			}
			require.True(t, strings.HasSuffix(refused.Text, "; transaction rolled back"), refused.Text)
			require.Len(t, b.commit(good(b, pid)).Pushes, 2, "and without the fault it commits")
		})
	}
}

// A transaction locks keys, then timers, then partitions, then cursors: whoever waits
// for one holds nothing of what comes behind it.
func TestTransactionLockOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.kv(put("k", `"value":1,"forever":true`))
	b.timers(schedule("t", 60_000))
	tx := func() store.Transaction {
		return store.Transaction{
			Tenant: store.DefaultTenant(), Pushes: []store.TxPush{txPush("q", "p", 1000+rand.Uint64N(1<<40))}, Acks: []store.TxAck{txAck(pid, group, "w", 4)},
			KV: list([]string{incr("k", `"delta":1`)}), Timers: list([]string{schedule("t", 60_000)}),
		}
	}
	stages := []string{
		`SELECT FROM queen.kv WHERE key = 'k' FOR UPDATE`,
		`SELECT FROM queen.log_timers WHERE timer_key = 't' FOR UPDATE`,
		`SELECT FROM queen.log_partitions FOR UPDATE`,
		`SELECT FROM queen.log_consumers FOR UPDATE`,
	}
	for i, held := range stages {
		b.exec(`DELETE FROM queen.log_consumers`)
		b.leased(pid, group, "w", 0, 4)
		var group errgroup.Group
		require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(holder pgx.Tx) error {
				if _, err := holder.Exec(ctx, held); err != nil {
					return err
				}
				group.Go(func() error {
					_, err := b.store.Transaction(t.Context(), tx())
					return err
				})
				if err := waitUntilBlocked(ctx, holder, 1); err != nil {
					return err
				}
				for k, behind := range stages {
					_, err := b.query(strings.Replace(behind, "SELECT FROM", "SELECT 'free' FROM", 1) + ` NOWAIT LIMIT 1`)
					if k > i {
						require.NoError(t, err, "%s while %s", behind, held)
					} else {
						require.Equal(t, "55P03", sqlState(t, err), "%s while %s", behind, held)
					}
				}
				return nil
			})
		}))
		require.NoError(t, group.Wait())
	}
}

// Riders in opposite orders, with pushes and acks behind them, and sweepers and calls of
// single keys beside them, never deadlock.
func TestTransactionsWithRidersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pids := []uuid.UUID{b.laneOf("q0"), b.laneOf("q1"), b.laneOf("q2")}
	for _, pid := range pids {
		b.cursorAt(pid, group, -1)
	}
	var all errgroup.Group
	for range 5 {
		all.Go(func() error {
			for range 30 {
				tx := store.Transaction{Tenant: store.DefaultTenant()}
				var kv, timers []string
				for _, i := range rand.Perm(5) {
					kv = append(kv, incr(fmt.Sprintf("k%d", i), `"delta":1`))
					timers = append(timers, schedule(fmt.Sprintf("t%d", i), -rand.IntN(1000), fmt.Sprintf(`,"partition":"p%d"`, i)))
				}
				for _, i := range rand.Perm(3) {
					tx.Pushes = append(tx.Pushes, txPush(fmt.Sprintf("q%d", i), "p", 1000+rand.Uint64N(1<<40)))
					tx.Acks = append(tx.Acks, txAck(pids[i], group, "", 1))
				}
				tx.KV, tx.Timers = list(kv[rand.IntN(3):]), list(timers[rand.IntN(3):])
				if _, err := b.store.Transaction(t.Context(), tx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	all.Go(func() error {
		for range 40 {
			if _, err := b.sweepOnce(t.Context(), rand.IntN(64)); err != nil {
				return err
			}
		}
		return nil
	})
	all.Go(func() error {
		for range 60 {
			if _, err := b.apply(incr("k0", `"delta":1`), incr("k4", `"delta":1`)); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, all.Wait(), "40P01 here is a broken lock order")
}
