package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// ledger follows what a group of poppers was given.
type ledger struct {
	mu     sync.Mutex
	holder map[uuid.UUID]string
	next   map[uuid.UUID]int64
	total  int64
}

// claim notes a batch. Two holders of one lane, a skipped offset or a repeated
// one is an error.
func (l *ledger) claim(p store.Popped, worker string) (last int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.holder[p.PartitionID]; other != "" {
		return 0, fmt.Errorf("%s: leased to %s and to %s", p.Partition, other, worker)
	}
	l.holder[p.PartitionID] = worker
	for _, s := range p.Segments {
		first := s.Base + int64(s.Start)
		if first != l.next[p.PartitionID] {
			return 0, fmt.Errorf("%s: delivered %d, wanted %d", p.Partition, first, l.next[p.PartitionID])
		}
		l.next[p.PartitionID] = first + int64(s.Take)
		l.total += int64(s.Take)
	}
	return l.next[p.PartitionID] - 1, nil
}

func (l *ledger) release(pid uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holder, pid)
}

func (l *ledger) done(want int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total >= want
}

// TestSixteenPoppersShareTenLanesInOrder mixes every kind of pop with pushes:
// a lane has one live batch at a time, and its offsets come in order, once.
func TestSixteenPoppersShareTenLanesInOrder(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	const lanes, rounds, frames = 10, 12, 4
	names := make([]string, lanes)
	for i := range names {
		names[i] = fmt.Sprintf("lane%d", i)
	}
	l := &ledger{holder: map[uuid.UUID]string{}, next: map[uuid.UUID]int64{}}
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error {
		for range rounds {
			segs := make([]store.PushSegment, lanes)
			for i, n := range names {
				segs[i] = fresh("q", n, frames)
			}
			if _, err := b.store.PushMulti(ctx, segs); err != nil {
				return err
			}
		}
		return nil
	})
	for n := range 16 {
		worker := fmt.Sprintf("w%d", n)
		p := store.Pop{Tenant: store.DefaultTenant(), Group: "g", Budget: 1 + n, Worker: worker, MaxPartitions: 1 + n%3, LeaseSeconds: 600}
		group.Go(func() error {
			for i := 0; !l.done(lanes * rounds * frames); i++ {
				popped, err := anyPop(ctx, b.store, i+n, names, p)
				if err != nil {
					return err
				}
				for _, batch := range popped {
					last, err := l.claim(batch, worker)
					if err != nil {
						return err
					}
					l.release(batch.PartitionID)
					out, err := b.store.AckAt(ctx, batch.PartitionID, "g", worker, last, true, 0)
					if err != nil {
						return err
					}
					if !out.OK {
						return fmt.Errorf("ack of %s by %s: %s", batch.Partition, worker, out.Error)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, int64(lanes*rounds*frames), l.total)
	require.Equal(t, int64(lanes), b.count(`SELECT count(*) FROM queen.log_consumers AS c JOIN queen.log_partitions AS p
		ON p.id = c.partition_id WHERE c.committed = p.last_offset AND c.worker_id IS NULL`))
}

func anyPop(ctx context.Context, s *store.Store, n int, names []string, p store.Pop) ([]store.Popped, error) {
	switch n % 4 {
	case 0:
		return s.PopWildcard(ctx, "q", p)
	case 1:
		return s.PopSpecific(ctx, "q", names[n%len(names)], p)
	case 2:
		return s.PopDiscover(ctx, "", "", p)
	default:
		k := n % len(names)
		r, err := s.PopList(ctx, "q", append(append([]string{}, names[k:]...), names[:k]...), false, p)
		return r.Claimed, err
	}
}

// TestPopThatRacesTheCreationOfItsPartitionNamesIt pops while the push that
// creates the partition commits.
func TestPopThatRacesTheCreationOfItsPartitionNamesIt(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	for i := range 40 {
		lane := fmt.Sprintf("lane%d", i)
		group, ctx := errgroup.WithContext(t.Context())
		group.Go(func() error {
			_, err := b.store.PushMulti(ctx, []store.PushSegment{fresh("q", lane, 1)})
			return err
		})
		for n := range 3 {
			group.Go(func() error { return popUntilServed(ctx, b, lane, fmt.Sprintf("g%d", n), n == 0) })
		}
		require.NoError(t, group.Wait())
	}
}

// popUntilServed pops one lane, as JSON or as the store does, until it delivers.
func popUntilServed(ctx context.Context, b *popBench, lane, group string, wire bool) error {
	for ctx.Err() == nil {
		var id string
		var n int
		var err error
		if wire {
			err = b.db.Do(ctx, "test", func(ctx context.Context, conn *pgx.Conn) error {
				return conn.QueryRow(ctx, `SELECT r ->> 'partitionId', jsonb_array_length(r -> 'segments')
					FROM queen.log_pop_specific_v1('q', $1, $2, 10, 60, 'w', FALSE, 'all', '') AS r`, lane, group).Scan(&id, &n)
			})
		} else {
			var popped []store.Popped
			popped, err = b.store.PopSpecific(ctx, "q", lane, popArgs(group, 10))
			if n = len(popped); n > 0 {
				id = popped[0].PartitionID.String()
			}
		}
		if err != nil {
			return err
		}
		if n > 0 {
			if id == "" || id == uuid.Nil.String() {
				return fmt.Errorf("%s: delivered without a partition id", lane)
			}
			return nil
		}
	}
	return ctx.Err()
}

// TestFirstContactsAndBulkSeedsDoNotDeadlock lets lists in every order, single
// pops and registrations of the same groups make cursors at once, against
// deletions of the queue.
func TestFirstContactsAndBulkSeedsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	names := make([]string, 12)
	for i := range names {
		names[i] = fmt.Sprintf("lane%d", i)
	}
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error {
		for range 15 {
			segs := make([]store.PushSegment, len(names))
			for i, n := range names {
				segs[i] = fresh("q", n, 1)
			}
			if _, err := b.store.PushMulti(ctx, segs); err != nil {
				return fmt.Errorf("push: %w", err)
			}
			if _, err := b.store.DeleteQueue(ctx, store.DefaultTenant(), "q"); err != nil {
				return fmt.Errorf("delete: %w", err)
			}
		}
		return nil
	})
	for n := range 7 {
		group.Go(func() error {
			for i := range 60 {
				p := popArgs(fmt.Sprintf("g%d", i/4), 100)
				p.MaxPartitions = len(names)
				if _, err := anyPop(ctx, b.store, i+n, names, p); err != nil {
					return fmt.Errorf("pop %d: %w", (i+n)%4, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}
