package ack_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ack"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/registry"
)

// delivered tells the registry of a batch of ids.
func (b *bundle) delivered(partition uuid.UUID, worker string, end int64, ids ...string) {
	var hashes []byte
	for _, id := range ids {
		h := segment.Hash(id)
		hashes = append(hashes, h[:]...)
	}
	b.registry.Delivered(partition, "g", worker, end, hashes, time.Minute)
}

func (b *bundle) known(partition uuid.UUID, worker string, ids ...string) bool {
	hashes := make([][16]byte, len(ids))
	for i, id := range ids {
		hashes[i] = segment.Hash(id)
	}
	_, ok := b.registry.Match(partition, "g", worker, hashes)
	return ok
}

func done(results []wire.AckResult) bool {
	for _, r := range results {
		if !r.Success || !r.LeaseReleased || r.Noop || r.DLQ || r.Error != "" {
			return false
		}
	}
	return true
}

func TestAWholeBatchIsOneMoveOfTheCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a", "b")
	b.delivered(pid2, "w", 9, "c")
	rs := b.ack(t, item("b", pid1, wire.AckCompleted, "w"), item("c", pid2, wire.AckCompleted, "w"), item("a", pid1, wire.AckCompleted, "w"))
	require.True(t, done(rs))
	require.Empty(t, b.store.calls)
	require.Equal(t, [][]store.AckRow{
		{{PartitionID: pid1, Group: "g", Worker: "w", End: 7, Count: 2}},
		{{PartitionID: pid2, Group: "g", Worker: "w", End: 9, Count: 1}},
	}, b.store.whole)
	require.Equal(t, []ended{{tenant, pid1, "g", true}, {tenant, pid2, "g", true}}, b.ended)
	_, ok := b.registry.Lanes("w")
	require.False(t, ok)
}

func TestWhatIsNotAWholeBatchGoesByItsHashes(t *testing.T) {
	t.Parallel()
	for name, items := range map[string][]wire.AckItem{
		"a part":                   {item("a", pid1, wire.AckCompleted, "w")},
		"a negative status":        {item("a", pid1, wire.AckCompleted, "w"), item("b", pid1, wire.AckFailed, "w")},
		"a repeated id":            {item("a", pid1, wire.AckCompleted, "w"), item("b", pid1, wire.AckCompleted, "w"), item("a", pid1, wire.AckCompleted, "w")},
		"no lease":                 {item("a", pid1, wire.AckCompleted, ""), item("b", pid1, wire.AckCompleted, "")},
		"two leases on one cursor": {item("a", pid1, wire.AckCompleted, "w"), item("b", pid1, wire.AckCompleted, "w"), item("a", pid1, wire.AckCompleted, "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.delivered(pid1, "w", 7, "a", "b")
			b.ack(t, items...)
			require.Empty(t, b.store.whole)
			require.False(t, b.known(pid1, "w", "a", "b"), "the cursor may have moved")
		})
	}
}

func TestAStrangersAckForgetsNoBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a", "b")
	b.ack(t, item("a", pid1, wire.AckCompleted, "x"), item("b", pid1, wire.AckCompleted, "x"))
	require.Empty(t, b.store.whole)
	require.True(t, b.known(pid1, "w", "a", "b"))
}

func TestARefusedBatchGoesByItsHashes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a")
	b.delivered(pid2, "w", 7, "b")
	b.store.refused = map[uuid.UUID]string{pid1: "batch partly committed"}
	b.store.outcomes[pid1] = store.AckOutcome{OK: true, Noop: []int{0}}
	rs := b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckCompleted, "w"))
	require.Equal(t, wire.AckResult{Index: 0, TransactionID: "a", Success: true, Noop: true}, rs[0])
	require.True(t, done(rs[1:]))
	require.Len(t, b.store.calls, 1)
}

// The hash form cannot tell its own lease's end from any other: it would call the
// batch refused that is done.
func TestALostAnswerIsLookedUp(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("ack batch: %w", context.DeadlineExceeded)
	gone := store.AckOutcome{Error: "invalid or expired lease"}
	for name, c := range map[string]struct {
		byHash    store.AckOutcome
		committed int64
		want      wire.AckResult
	}{
		"committed":            {gone, 7, wire.AckResult{TransactionID: "a", Success: true, LeaseReleased: true}},
		"committed and passed": {gone, 12, wire.AckResult{TransactionID: "a", Success: true, LeaseReleased: true}},
		"not committed":        {store.AckOutcome{OK: true, Released: true}, -1, wire.AckResult{TransactionID: "a", Success: true, LeaseReleased: true}},
		"expired before":       {gone, 6, wire.AckResult{TransactionID: "a", Error: gone.Error}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.delivered(pid1, "w", 7, "a")
			b.store.wholeErr = []error{lost}
			b.store.outcomes[pid1], b.store.committed = c.byHash, c.committed
			require.Equal(t, []wire.AckResult{c.want}, b.ack(t, item("a", pid1, wire.AckCompleted, "w")))
			require.Len(t, b.store.whole, 1)
			require.Len(t, b.store.calls, 1)
		})
	}
}

func TestAFailedBatchFailsItsItemsAndCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a")
	b.delivered(pid2, "w", 7, "b")
	b.store.wholeErr = []error{&pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}}
	rs := b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckCompleted, "w"))
	require.Equal(t, wire.AckResult{TransactionID: "a", Error: "data exception"}, rs[0])
	require.True(t, done(rs[1:]))
	require.True(t, done(b.ack(t, item("a", pid1, wire.AckCompleted, "w"))))
	require.Len(t, b.store.whole, 3)
	require.Empty(t, b.store.calls)
}

func TestAnAbortedBatchIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.delivered(pid1, "w", 7, "a")
		aborted := &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
		b.store.wholeErr = []error{aborted, aborted}
		require.True(t, done(b.ack(t, item("a", pid1, wire.AckCompleted, "w"))))
		require.Len(t, b.store.whole, 3)
	})
}

// fill takes all slots until the returned function is called.
func (b *bundle) fill(t *testing.T) (free func()) {
	t.Helper()
	var held []func()
	for {
		release, err := b.gate.Acquire(t.Context(), admission.Ack)
		if err != nil {
			break
		}
		held = append(held, release)
	}
	return func() {
		for _, release := range held {
			release()
		}
	}
}

func TestOverloadForgetsNoBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a")
	whole, part := item("a", pid1, wire.AckCompleted, "w"), item("x", pid2, wire.AckCompleted, "w")
	free := b.fill(t)
	for _, items := range [][]wire.AckItem{{whole}, {whole, part}} {
		_, err := b.svc.Ack(t.Context(), tenant, wire.AckRequest{Items: items})
		require.ErrorIs(t, err, ack.ErrOverloaded)
	}
	free()
	require.True(t, done(b.ack(t, whole)))
	require.Len(t, b.store.whole, 1)
}

// Once something was changed an overload is the answer of its items alone.
func TestOverloadAfterAPartWasDone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a")
	b.svc.Batches = overloaded{}
	rs := b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("x", pid2, wire.AckCompleted, "w"))
	require.Equal(t, wire.AckResult{TransactionID: "a", Error: "overloaded"}, rs[0])
	require.True(t, rs[1].Success)
	require.True(t, b.known(pid1, "w", "a"))

	b = setup(t)
	b.delivered(pid1, "w", 7, "a")
	b.delivered(pid2, "w", 7, "b")
	b.store.refused = map[uuid.UUID]string{pid2: "invalid or expired lease"}
	b.svc.Batches = thenFull{b.svc.Batches, func() { b.fill(t) }}
	rs = b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckCompleted, "w"))
	require.True(t, done(rs[:1]))
	require.Equal(t, "overloaded", rs[1].Error)
}

type overloaded struct{}

func (overloaded) Ack(context.Context, []store.AckRow) ([]ackfusion.Verdict, error) {
	return nil, ack.ErrOverloaded
}

// thenFull fills the gate after the whole batches.
type thenFull struct {
	ack.Batches
	fill func()
}

func (f thenFull) Ack(ctx context.Context, batches []store.AckRow) ([]ackfusion.Verdict, error) {
	verdicts, err := f.Batches.Ack(ctx, batches)
	f.fill()
	return verdicts, err
}

func TestWithoutARegistryAcksGoByTheirHashes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.svc.Registry = (*registry.Registry)(nil)
	b.ack(t, item("a", pid1, wire.AckCompleted, "w"))
	require.Len(t, b.store.calls, 1)
}

type committing struct{}

func (committing) Ack(_ context.Context, batches []store.AckRow) ([]ackfusion.Verdict, error) {
	return make([]ackfusion.Verdict, len(batches)), nil
}

// What an ack costs beside its transaction.
func BenchmarkAckOfAWholeBatch(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := build(b)
			s.svc.Batches = committing{}
			req := wire.AckRequest{}
			var hashes []byte
			for i := range n {
				it := item(fmt.Sprint("m", i), pid1, wire.AckCompleted, "w")
				h := segment.Hash(it.TransactionID)
				req.Items, hashes = append(req.Items, it), append(hashes, h[:]...)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.registry.Delivered(pid1, "g", "w", 7, hashes, time.Minute)
				rs, err := s.svc.Ack(context.Background(), tenant, req)
				if err != nil || !done(rs) {
					b.Fatal(rs, err)
				}
				s.ended = s.ended[:0]
			}
		})
	}
}
