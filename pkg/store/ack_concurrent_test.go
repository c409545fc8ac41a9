package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// Transactions over crossing lanes and groups, acks, renewals and pushes beside
// them, every one in an order of its own: no deadlock, and each bundle is there
// or not as a whole.
func TestConcurrentTransactionsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const workers, rounds, lanes, groups = 8, 30, 5, 3
	b := setup(t)
	pids := make([]uuid.UUID, lanes)
	for l := range lanes {
		pids[l] = b.queued(segment("q", fmt.Sprint("p", l), 1)).PartitionID
		for g := range groups {
			b.cursorAt(pids[l], fmt.Sprint("g", g), -1)
		}
	}
	bundle := func(id uint64) store.Transaction {
		tx := store.Transaction{Tenant: store.DefaultTenant()}
		for _, l := range rand.Perm(lanes)[:1+rand.IntN(lanes)] {
			// Lanes 3 and 4 lie in another queue, which the first one creates.
			tx.Pushes = append(tx.Pushes, txPush([]string{"q", "q2"}[l/3], fmt.Sprint("p", l), id))
		}
		for range 1 + rand.IntN(lanes*groups) {
			a := txAck(pids[rand.IntN(lanes)], fmt.Sprint("g", rand.IntN(groups)), "", 1)
			if !slices.ContainsFunc(tx.Acks, func(o store.TxAck) bool { return o.PartitionID == a.PartitionID && o.Group == a.Group }) {
				tx.Acks = append(tx.Acks, a)
			}
		}
		if id%4 == 0 { // one in four fails at its last step
			tx.Acks = append(tx.Acks, txAck(uuid.Max, "g0", "", 1))
		}
		return tx
	}

	var mu sync.Mutex
	stored := make(map[uint64]int)
	var group errgroup.Group
	for w := range workers {
		group.Go(func() error {
			for r := range rounds {
				id := uint64(1000 + w*rounds + r)
				tx := bundle(id)
				_, err := b.store.Transaction(t.Context(), tx)
				var refused *store.TxRefused
				if err != nil && (!errors.As(err, &refused) || id%4 != 0) {
					return err
				}
				mu.Lock()
				if err == nil {
					stored[id] = len(tx.Pushes)
				}
				mu.Unlock()
				switch w % 3 { // 40P01 can come from any of these
				case 0:
					_, err = b.store.AckMulti(t.Context(), []store.AckRow{
						{PartitionID: pids[r%lanes], Group: "g1"}, {PartitionID: pids[(r+1)%lanes], Group: "g0"}, {PartitionID: pids[(r+3)%lanes], Group: "g2"},
					})
				case 1:
					_, err = b.store.AckByHash(t.Context(), pids[r%lanes], "g0", "", hashes(1), nil)
				default:
					_, err = b.store.PushMulti(t.Context(), []store.PushSegment{fresh("q2", "p4", 1), fresh("q", "p0", 1), fresh("q2", "p3", 1)})
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())

	for w := range workers * rounds {
		id := uint64(1000 + w)
		require.EqualValues(t, stored[id], b.count(`SELECT count(*) FROM queen.log_txns WHERE hashes = $1`, hash(id)), "bundle %d", id)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers WHERE committed NOT IN (-1, 0)`))
}

// Consumers of one lane pop and acknowledge, in whole batches, in parts and with
// nacks, while others push: every message is completed, in order, and by the
// holder of its lease alone.
func TestAcksRacePops(t *testing.T) {
	t.Parallel()
	const consumers, messages = 6, 150
	b := setup(t)
	pid := b.queued(segment("q", "p", 0)).PartitionID
	var group errgroup.Group
	group.Go(func() error {
		for id := uint64(1); id < messages; id++ {
			if _, err := b.store.PushMulti(t.Context(), []store.PushSegment{segment("q", "p", id)}); err != nil {
				return err
			}
		}
		return nil
	})
	var mu sync.Mutex
	next := int64(0) // the first offset that nobody has completed
	for range consumers {
		group.Go(func() error {
			for {
				mu.Lock()
				done := next >= messages
				mu.Unlock()
				if done {
					return nil
				}
				worker := uuid.NewString()
				popped, err := b.store.PopSpecific(t.Context(), "q", "p", store.Pop{
					Tenant: store.DefaultTenant(), Group: store.QueueModeGroup, Budget: 1 + rand.IntN(5), LeaseSeconds: 60, Worker: worker,
				})
				if err != nil {
					return err
				}
				if len(popped) == 0 {
					continue
				}
				first := popped[0].Segments[0].Base + int64(popped[0].Segments[0].Start)
				last := first
				for _, s := range popped[0].Segments {
					last = s.Base + int64(s.Start+s.Take) - 1
				}
				mu.Lock()
				expected := next
				mu.Unlock()
				if first != expected {
					return fmt.Errorf("delivered %d, want %d", first, expected)
				}
				if out, err := b.store.AckByHash(t.Context(), pid, store.QueueModeGroup, "intruder", hashes(uint64(last)), nil); err != nil || out.OK {
					return fmt.Errorf("an intruder's ack: %v %w", out, err)
				}
				upto := first + rand.Int64N(last-first+2) - 1 // one below first: nothing
				mu.Lock()
				next = upto + 1 // before the release lets others see it
				mu.Unlock()
				ids, states := []uint64{uint64(upto + 1)}, statuses(retry)
				if upto >= first {
					ids, states = append(ids, uint64(upto)), append(states, ok)
				}
				out, err := b.store.AckByHash(t.Context(), pid, store.QueueModeGroup, worker, hashes(ids...), states)
				if err != nil {
					return err
				}
				if upto == last { // the signal lay above the batch and resolves nowhere
					out.Unresolved = nil
				}
				if !out.OK || !out.Released || out.Offset != upto || len(out.Unresolved) > 0 {
					return fmt.Errorf("ack up to %d of %d to %d: %+v", upto, first, last, out)
				}
			}
		})
	}
	require.NoError(t, group.Wait())
	row := b.state(pid, store.QueueModeGroup)
	require.Equal(t, int64(messages-1), row.Committed)
	require.EqualValues(t, messages, row.Consumed)
	require.Nil(t, row.Worker)
}

// A transaction waits for its lanes in id order, whatever order it names them in.
func TestTransactionLocksLanesBeforeItPushes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, r := b.queued(segment("q", "p", 1)).PartitionID, b.queued(segment("q", "r", 1)).PartitionID
	low, high := "p", "r"
	lowID := p
	if slices.Compare(p[:], r[:]) > 0 {
		low, high, lowID = high, low, r
	}
	done := make(chan error, 1)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, lowID); err != nil {
				return err
			}
			go func() {
				_, err := b.store.Transaction(t.Context(), store.Transaction{
					Tenant: store.DefaultTenant(), Pushes: []store.TxPush{txPush("q", high, 2), txPush("q", low, 2)},
				})
				done <- err
			}()
			if err := waitUntilBlocked(ctx, tx, 1); err != nil {
				return err
			}
			// It waits for the low lane and holds nothing yet: the high one is free.
			_, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id <> $1 FOR NO KEY UPDATE NOWAIT`, lowID)
			return err
		})
	}))
	require.NoError(t, <-done)
}
