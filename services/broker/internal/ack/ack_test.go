package ack_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ack"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant = store.DefaultTenant()
	pid1   = uuid.MustParse("0199aa10-1111-7abc-8def-000000000001")
	pid2   = uuid.MustParse("0199aa10-1111-7abc-8def-000000000002")
)

const (
	stale      = "already committed: the cursor moved past this message before this ack"
	unresolved = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"
)

// call is one use of AckByHash.
type call struct {
	Partition     uuid.UUID
	Group, Worker string
	Hashes        [][16]byte
	Statuses      []store.AckStatus
}

// fakeStore answers by partition; errors come first, in order.
type fakeStore struct {
	calls    []call
	outcomes map[uuid.UUID]store.AckOutcome
	errs     map[uuid.UUID][]error
	onCall   func()

	segmentFound bool
	segment      store.Segment
	letters      []store.DeadLetter
	filed        store.DLQOutcome

	committed int64 // of every cursor
	leases    map[string][]store.CursorKey
	searched  [][]string
	onSearch  func()

	renewed  int
	expires  string
	renewErr error
	renewal  []any

	// The whole batches: calls, and what each answers before all are carried out.
	whole    [][]store.AckRow
	wholeErr []error
	refused  map[uuid.UUID]string
}

func (f *fakeStore) AckAndPop(
	context.Context, []store.AckRow, bool, store.Next,
) ([]store.AckOutcome, store.NextServed, error) {
	panic("nobody rides")
}

func (f *fakeStore) AckWhole(_ context.Context, rows []store.AckRow, _ bool) ([]store.AckOutcome, error) {
	f.whole = append(f.whole, rows)
	if len(f.wholeErr) > 0 {
		err := f.wholeErr[0]
		f.wholeErr = f.wholeErr[1:]
		if err != nil {
			return nil, err
		}
	}
	out := make([]store.AckOutcome, len(rows))
	for i, r := range rows {
		out[i] = store.AckOutcome{OK: true, Released: true}
		if text := f.refused[r.PartitionID]; text != "" {
			out[i] = store.AckOutcome{Error: text}
		}
	}
	return out, nil
}

func (f *fakeStore) Cursor(context.Context, uuid.UUID, string) (int64, bool, error) {
	return f.committed, true, nil
}

func (f *fakeStore) FindLeases(_ context.Context, workers []string) (map[string][]store.CursorKey, error) {
	if f.onSearch != nil {
		f.onSearch()
	}
	f.searched = append(f.searched, workers)
	return f.leases, nil
}

func (f *fakeStore) AckByHash(ctx context.Context, partition uuid.UUID, group, worker string, hashes [][16]byte, statuses []store.AckStatus) (store.AckOutcome, error) {
	f.calls = append(f.calls, call{partition, group, worker, hashes, statuses})
	if f.onCall != nil {
		f.onCall()
	}
	if err := ctx.Err(); err != nil {
		return store.AckOutcome{}, err
	}
	if errs := f.errs[partition]; len(errs) > 0 {
		f.errs[partition] = errs[1:]
		return store.AckOutcome{}, errs[0]
	}
	return f.outcomes[partition], nil
}

func (f *fakeStore) SegmentAt(context.Context, uuid.UUID, int64) (store.Segment, bool, error) {
	return f.segment, f.segmentFound, nil
}

func (f *fakeStore) DLQHead(_ context.Context, d store.DeadLetter) (store.DLQOutcome, error) {
	f.letters = append(f.letters, d)
	return f.filed, nil
}

func (f *fakeStore) RenewLanes(_ context.Context, worker string, seconds int, at []store.CursorKey) (int, string, error) {
	f.renewal = []any{worker, seconds, at}
	return f.renewed, f.expires, f.renewErr
}

type bundle struct {
	svc   *ack.Service
	store *fakeStore
	gate  *admission.Gate
	ended []ended

	registry *registry.Registry
}

// ended is an announced end of a lease.
type ended struct {
	Tenant, Partition uuid.UUID
	Group             string
	Full              bool
}

func (b *bundle) Released(t, partition uuid.UUID, group, _, _ string, full bool) {
	b.ended = append(b.ended, ended{t, partition, group, full})
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return build(t)
}

func build(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{store: &fakeStore{
		outcomes: map[uuid.UUID]store.AckOutcome{pid1: {OK: true}, pid2: {OK: true}},
		errs:     make(map[uuid.UUID][]error),
		filed:    store.DLQOutcome{OK: true}, segmentFound: true,
	}}
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	b.store.segment.Base = 6
	b.store.segment.End = 7
	b.store.segment.Blob, _, err = packer.Pack([]segment.Frame{
		{TransactionID: "head", Payload: []byte("1")}, {TransactionID: "poison", Payload: []byte("2")},
	})
	require.NoError(t, err)
	b.gate, err = admission.New(admission.Config{Slots: 2, MaxWait: time.Millisecond}, noop.Meter{})
	require.NoError(t, err)
	b.registry = registry.New(registry.Config{})
	logger := slog.New(slog.DiscardHandler)
	b.svc, err = ack.New(ack.Config{}, ack.Deps{
		Store: b.store, Batches: &ackfusion.Direct{Store: b.store, Admission: b.gate}, Registry: b.registry,
		Letters: deadletter.NewFiler(b.store, reader, logger), Admission: b.gate, Announcer: b,
		Counters: collector.NewCounters(64), Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	return b
}

func item(id string, partition uuid.UUID, status, lease string) wire.AckItem {
	return wire.AckItem{TransactionID: id, PartitionID: partition.String(), Status: status, LeaseID: lease, Group: "g"}
}

func (b *bundle) ack(t *testing.T, items ...wire.AckItem) []wire.AckResult {
	t.Helper()
	rs, err := b.svc.Ack(t.Context(), tenant, wire.AckRequest{Items: items})
	require.NoError(t, err)
	require.Len(t, rs, len(items))
	return rs
}

func TestItemsAreGroupedByPartitionLeaseAndGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := item("e", pid1, wire.AckCompleted, "w1")
	other.Group = "h"
	b.ack(t, item("a", pid1, wire.AckCompleted, "w1"), item("b", pid2, wire.AckRetry, "w1"),
		item("c", pid1, wire.AckFailed, "w2"), item("d", pid1, wire.AckDLQ, "w1"), other)
	want := []call{
		{pid1, "g", "w1", [][16]byte{segment.Hash("a"), segment.Hash("d")}, []store.AckStatus{"completed", "dlq"}},
		{pid2, "g", "w1", [][16]byte{segment.Hash("b")}, []store.AckStatus{"retry"}},
		{pid1, "g", "w2", [][16]byte{segment.Hash("c")}, []store.AckStatus{"failed"}},
		{pid1, "h", "w1", [][16]byte{segment.Hash("e")}, []store.AckStatus{"completed"}},
	}
	require.Empty(t, cmp.Diff(want, b.store.calls))
}

func TestResults(t *testing.T) {
	t.Parallel()
	items := []wire.AckItem{
		item("a", pid1, wire.AckCompleted, "w"), item("b", pid1, wire.AckFailed, "w"), item("a", pid1, wire.AckCompleted, "w"),
	}
	result := func(i int, id string, f func(*wire.AckResult)) wire.AckResult {
		r := wire.AckResult{Index: i, TransactionID: id, Success: true}
		f(&r)
		return r
	}
	all := func(f func(*wire.AckResult)) []wire.AckResult {
		return []wire.AckResult{result(0, "a", f), result(1, "b", f), result(2, "a", f)}
	}
	for name, c := range map[string]struct {
		outcome store.AckOutcome
		want    []wire.AckResult
	}{
		"released":       {store.AckOutcome{OK: true, Released: true}, all(func(r *wire.AckResult) { r.LeaseReleased = true })},
		"kept":           {store.AckOutcome{OK: true}, all(func(*wire.AckResult) {})},
		"dropped":        {store.AckOutcome{OK: true, Released: true, Dropped: true}, all(func(r *wire.AckResult) { r.LeaseReleased = true })},
		"no such lease":  {store.AckOutcome{Error: "invalid or expired lease"}, all(func(r *wire.AckResult) { r.Success, r.Error = false, "invalid or expired lease" })},
		"no such reader": {store.AckOutcome{Error: "consumer not found"}, all(func(r *wire.AckResult) { r.Success, r.Error = false, "consumer not found" })},
		"nothing to do": {store.AckOutcome{OK: true, Noop: []int{0, 2}, Stale: []int{1}}, []wire.AckResult{
			result(0, "a", func(r *wire.AckResult) { r.Noop = true }),
			result(1, "b", func(r *wire.AckResult) { r.Success, r.Error = false, stale }),
			result(2, "a", func(r *wire.AckResult) { r.Noop = true }),
		}},
		"one unknown": {store.AckOutcome{OK: true, Unresolved: []int{1}}, []wire.AckResult{
			result(0, "a", func(*wire.AckResult) {}),
			result(1, "b", func(r *wire.AckResult) { r.Success, r.Error = false, unresolved }),
			result(2, "a", func(*wire.AckResult) {}),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.store.outcomes[pid1] = c.outcome
			require.Empty(t, cmp.Diff(c.want, b.ack(t, items...)))
		})
	}
}

func TestOneIDUnderSeveralStatuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The store may name any mention of the id.
	b.store.outcomes[pid1] = store.AckOutcome{OK: true, Noop: []int{0}, Stale: []int{0}}
	rs := b.ack(t, item("a", pid1, wire.AckFailed, "w"), item("a", pid1, wire.AckCompleted, "w"), item("a", pid1, wire.AckRetry, "w"))
	require.Equal(t, []wire.AckResult{
		{Index: 0, TransactionID: "a", Error: stale},
		{Index: 1, TransactionID: "a", Success: true, Noop: true},
		{Index: 2, TransactionID: "a", Error: stale},
	}, rs)
}

func TestAMalformedPartitionIDFailsItsItemOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := item("a", pid1, wire.AckCompleted, "w")
	bad.PartitionID = `no"t`
	rs := b.ack(t, bad, item("b", pid1, wire.AckCompleted, "w"))
	require.Equal(t, `invalid input syntax for type uuid: "no"t"`, rs[0].Error)
	require.False(t, rs[0].Success)
	require.True(t, rs[1].Success)
	bad.PartitionID = ""
	require.Equal(t, `invalid input syntax for type uuid: ""`, b.ack(t, bad)[0].Error)
}

func TestAFailingGroupLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	many := func(err error) (errs []error) {
		for range 1000 {
			errs = append(errs, err)
		}
		return errs
	}
	aborted := &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "could not serialize"}
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
	for name, c := range map[string]struct {
		errs  []error
		text  string
		calls int // 0: more than one
	}{
		"no connection":      {many(fmt.Errorf("ack: %w", pgdb.ErrPool)), "pool", 0},
		"aborted for good":   {many(aborted), "could not serialize", 0},
		"aborted in passing": {[]error{aborted, aborted}, "", 3},
		"lost answer":        {many(fmt.Errorf("ack: %w", context.DeadlineExceeded)), "the database did not answer in time", 1},
		"refused":            {many(refused), "data exception", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				b.store.errs[pid1] = c.errs
				rs := b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckCompleted, "w"))
				require.Equal(t, c.text, rs[0].Error)
				require.Equal(t, c.text == "", rs[0].Success)
				require.True(t, rs[1].Success)
				if calls := len(b.store.calls) - 1; c.calls > 0 {
					require.Equal(t, c.calls, calls)
				} else {
					require.Greater(t, calls, 10)
				}
			})
		})
	}
}

func TestDeadLetterHandOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.outcomes[pid1] = store.AckOutcome{OK: true, DLQ: true, Offset: 7, Worker: "w"}
	early, poison := item("x", pid1, wire.AckFailed, "w"), item("poison", pid1, wire.AckFailed, "w")
	early.Error, poison.Error = "later", "boom"
	rs := b.ack(t, item("head", pid1, wire.AckCompleted, "w"), early, poison)
	for _, r := range rs {
		require.True(t, r.Success && r.DLQ && r.LeaseReleased)
	}
	require.Len(t, b.store.letters, 1)
	require.Equal(t, "poison", b.store.letters[0].TransactionID)
	require.Equal(t, "boom", b.store.letters[0].Error)
	require.Equal(t, "w", b.store.letters[0].Worker)
	require.Equal(t, []ended{{tenant, pid1, "g", false}}, b.ended)
}

func TestARejectedHandOffFailsTheItemsThatAskedForIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.segmentFound = false
	b.store.outcomes[pid1] = store.AckOutcome{OK: true, DLQ: true, Offset: 7, Worker: "w", Unresolved: []int{2}}
	rs := b.ack(t, item("head", pid1, wire.AckCompleted, "w"), item("poison", pid1, wire.AckDLQ, "w"), item("ghost", pid1, wire.AckDLQ, "w"))
	require.Equal(t, []wire.AckResult{
		{Index: 0, TransactionID: "head", Success: true},
		{Index: 1, TransactionID: "poison", Error: "dlq rejected"},
		{Index: 2, TransactionID: "ghost", Error: unresolved},
	}, rs)
	require.Empty(t, b.ended)
}

func TestOnlyAReleasedLaneIsAnnounced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.ack(t, item("a", pid1, wire.AckCompleted, "w"))
	require.Empty(t, b.ended)
	b.store.outcomes[pid1] = store.AckOutcome{OK: true, Released: true}
	b.store.outcomes[pid2] = store.AckOutcome{OK: true, Released: true}
	b.ack(t, item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckRetry, "w"))
	require.Equal(t, []ended{{tenant, pid1, "g", true}, {tenant, pid2, "g", false}}, b.ended)
}

func TestAClientThatLeavesDoesNotStopItsAcks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.store.onCall = cancel
	rs, err := b.svc.Ack(ctx, tenant, wire.AckRequest{Items: []wire.AckItem{
		item("a", pid1, wire.AckCompleted, "w"), item("b", pid2, wire.AckCompleted, "w"),
	}})
	require.NoError(t, err)
	require.True(t, rs[0].Success)
	require.True(t, rs[1].Success)
}

func TestOverloadChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		_, err := b.gate.Acquire(t.Context(), admission.Ack)
		require.NoError(t, err)
	}
	_, err := b.svc.Ack(t.Context(), tenant, wire.AckRequest{Items: []wire.AckItem{item("a", pid1, wire.AckCompleted, "w")}})
	require.ErrorIs(t, err, ack.ErrOverloaded)
	require.Empty(t, b.store.calls)
	_, err = b.svc.Extend(t.Context(), tenant, "w", 1)
	require.ErrorIs(t, err, ack.ErrOverloaded)
}

func TestExtend(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.leases = map[string][]store.CursorKey{"w": {{PartitionID: pid1, Group: "g"}}}
	b.store.renewed, b.store.expires = 1, "2026-03-01T08:00:00.000123Z"
	for range 2 {
		res, err := b.svc.Extend(t.Context(), tenant, "w", 30)
		require.NoError(t, err)
		require.Equal(t, wire.ExtendResult{LeaseID: "w", Renewed: 1, ExpiresAt: "2026-03-01T08:00:00.000123Z"}, res)
		require.Equal(t, []any{"w", 30, b.store.leases["w"]}, b.store.renewal)
	}
	require.Equal(t, [][]string{{"w"}}, b.store.searched, "once in the life of a lease")
}

func TestALeaseOfThisBrokerIsNotSearched(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w", 7, "a")
	b.delivered(pid2, "w", 7, "b")
	b.store.renewed = 2
	_, err := b.svc.Extend(t.Context(), tenant, "w", 30)
	require.NoError(t, err)
	require.Equal(t, []any{"w", 30, []store.CursorKey{{PartitionID: pid1, Group: "g"}, {PartitionID: pid2, Group: "g"}}}, b.store.renewal)
	require.Empty(t, b.store.searched)

	b.ack(t, item("a", pid1, wire.AckCompleted, "w"))
	_, err = b.svc.Extend(t.Context(), tenant, "w", 30)
	require.NoError(t, err)
	require.Equal(t, []any{"w", 30, []store.CursorKey{{PartitionID: pid2, Group: "g"}}}, b.store.renewal)
}

func TestAnUnknownLeaseRenewsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res, err := b.svc.Extend(t.Context(), tenant, "w", 30)
	require.NoError(t, err)
	require.Equal(t, wire.ExtendResult{LeaseID: "w"}, res)
	require.Nil(t, b.store.renewal)
}

// Whoever asks during a search shares the next one, which begins after a pause.
func TestUnknownLeasesAreSearchedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		const took = 100 * time.Millisecond
		b.store.onSearch = func() { time.Sleep(took) }
		start := time.Now()
		var wg sync.WaitGroup
		ask := func(id string) {
			wg.Go(func() {
				_, err := b.svc.Extend(context.Background(), tenant, id, 30)
				if err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, id := range []string{"a", "b", "c", "b"} {
			ask(id)
		}
		wg.Wait()
		require.Equal(t, [][]string{{"a"}, {"b", "c"}}, b.store.searched)
		require.Equal(t, took+2*took+took, time.Since(start))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.svc.Extend(ctx, tenant, "d", 30)
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(time.Second) // the search ends
	})
}

func TestExtendFailsWithItsCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.delivered(pid1, "w", 7, "a")
		b.store.renewErr = fmt.Errorf("renew lease: %w", pgdb.ErrPool)
		_, err := b.svc.Extend(t.Context(), tenant, "w", 30)
		require.ErrorIs(t, err, pgdb.ErrPool)
	})
}
