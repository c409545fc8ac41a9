package transact_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant = store.DefaultTenant()
	pid1   = uuid.MustParse("0199aa10-1111-7abc-8def-000000000001")
	pid2   = uuid.MustParse("0199aa10-1111-7abc-8def-000000000002")
)

type fakeStore struct {
	calls  []store.Transaction
	errs   []error
	acks   []store.AckOutcome // nil: all carried out
	kv     string             // results
	timers store.TimersApplied
	onCall func()

	segment store.Segment
	found   bool
	letters []store.DeadLetter
	filed   []error
}

func (f *fakeStore) Transaction(ctx context.Context, tx store.Transaction) (store.TransactionResult, error) {
	f.calls = append(f.calls, tx)
	if f.onCall != nil {
		f.onCall()
	}
	if err := ctx.Err(); err != nil {
		return store.TransactionResult{}, err
	}
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return store.TransactionResult{}, err
	}
	acks := f.acks
	if acks == nil {
		acks = make([]store.AckOutcome, len(tx.Acks))
		for i := range acks {
			acks[i].OK = true
		}
	}
	return store.TransactionResult{
		Pushes: make([]store.PushVerdict, len(tx.Pushes)), Acks: acks, KV: store.RawJSON(f.kv), Timers: f.timers,
	}, nil
}

func (f *fakeStore) SegmentAt(context.Context, uuid.UUID, int64) (store.Segment, bool, error) {
	return f.segment, f.found, nil
}

func (f *fakeStore) DLQHead(_ context.Context, d store.DeadLetter) (store.DLQOutcome, error) {
	f.letters = append(f.letters, d)
	if len(f.filed) > 0 {
		err := f.filed[0]
		f.filed = f.filed[1:]
		return store.DLQOutcome{}, err
	}
	return store.DLQOutcome{OK: true}, nil
}

// due is what sweepers are told of a timer.
type due struct {
	at time.Time
	in time.Duration
}

type bundle struct {
	svc    *transact.Service
	store  *fakeStore
	gate   *admission.Gate
	lanes  *lanes.Memo
	reader *segment.Reader
	woken  []lanes.Lane
	full   []bool // by released lease
	due    []due

	registry *registry.Registry
}

func (b *bundle) Wake(t uuid.UUID, queue, partition string) {
	b.woken = append(b.woken, lanes.Lane{Tenant: t, Queue: queue, Partition: partition})
}

func (b *bundle) Released(t, partition uuid.UUID, _, _, _ string, full bool) {
	b.full = append(b.full, full)
	if lane, ok := b.lanes.Get(partition); ok {
		b.Wake(t, lane.Queue, lane.Partition)
	}
}

func (b *bundle) TimerDue(at time.Time, in time.Duration) { b.due = append(b.due, due{at, in}) }

func setup(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{store: &fakeStore{found: true}, registry: registry.New(registry.Config{})}
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	b.reader, err = segment.NewReader(0)
	require.NoError(t, err)
	b.store.segment = store.Segment{Base: 7, End: 7}
	b.store.segment.Blob, _, err = packer.Pack([]segment.Frame{{TransactionID: "poison", Payload: []byte("2")}})
	require.NoError(t, err)
	b.gate, err = admission.New(admission.Config{Slots: 2, MaxWait: time.Millisecond}, noop.Meter{})
	require.NoError(t, err)
	b.lanes, err = lanes.NewMemo(4)
	require.NoError(t, err)
	logger := slog.New(slog.DiscardHandler)
	b.svc, err = transact.New(transact.Config{}, transact.Deps{
		Store: b.store, Packer: packer, Letters: deadletter.NewFiler(b.store, b.reader, logger), Admission: b.gate,
		Announcer: b, Registry: b.registry, IDs: mint.NewSource(), Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	return b
}

func pushOp(queue, partition, id, payload string) wire.TxOp {
	return wire.TxOp{Kind: wire.TxPush, Push: wire.PushItem{Queue: queue, Partition: partition, TransactionID: id, Payload: []byte(payload)}}
}

func ackOp(id string, partition uuid.UUID, status, lease string) wire.TxOp {
	return wire.TxOp{Kind: wire.TxAck, Ack: wire.AckItem{
		TransactionID: id, PartitionID: partition.String(), Status: status, LeaseID: lease, Group: "g",
	}}
}

func (b *bundle) run(t *testing.T, leases []string, ops ...wire.TxOp) wire.TxResponse {
	t.Helper()
	resp, err := b.svc.Run(t.Context(), tenant, "sub", wire.TxRequest{Ops: ops, RequiredLeases: leases})
	require.NoError(t, err)
	return resp
}

func TestPushesBecomeOneSegmentPerLane(t *testing.T) {
	t.Parallel()
	b := setup(t)
	traced := pushOp("q", "a", "", "4")
	traced.HasTrace, traced.TraceID = true, uuid.UUID{5}
	resp := b.run(t, nil, pushOp("q", "a", "x", "1"), pushOp("r", "a", "x", "2"), pushOp("q", "a", "x", "3"), traced)
	require.True(t, resp.Success)
	require.Len(t, b.store.calls, 1)
	tx := b.store.calls[0]
	require.Equal(t, tenant, tx.Tenant)
	require.Len(t, tx.Pushes, 2)
	require.Equal(t, 2, tx.Pushes[0].Count)

	first, err := b.reader.Frame(tx.Pushes[0].Blob, 0)
	require.NoError(t, err)
	require.Equal(t, "1", string(first.Payload), "the first of a repeated id wins")
	require.Equal(t, "sub", first.ProducerSub)
	last, err := b.reader.Frame(tx.Pushes[0].Blob, 1)
	require.NoError(t, err)
	require.Equal(t, uuid.UUID{5}, last.TraceID)
	hashes := append(segment.AppendHash(nil, "x"), segment.AppendHash(nil, last.TransactionID)...)
	require.Equal(t, hashes, tx.Pushes[0].Hashes)

	r := resp.Results
	require.Len(t, r, 4)
	require.Equal(t, first.MessageID, r[0].MessageID)
	require.Equal(t, wire.TxResult{Op: wire.TxPush, TransactionID: "x", MessageID: r[0].MessageID, QueueName: "q", Duplicate: true}, r[2])
	require.False(t, r[1].Duplicate, "another lane")
	require.Equal(t, r[3].MessageID.String(), r[3].TransactionID)
	require.ElementsMatch(t, []lanes.Lane{{Tenant: tenant, Queue: "q", Partition: "a"}, {Tenant: tenant, Queue: "r", Partition: "a"}}, b.woken)

	id, err := uuid.Parse(resp.TransactionID)
	require.NoError(t, err)
	for i := range r {
		require.NotEqual(t, id, r[i].MessageID)
	}
}

func TestAnAckWithoutLeaseJoinsTheOneThatNamesIt(t *testing.T) {
	t.Parallel()
	for name, ops := range map[string][]wire.TxOp{
		"named first": {ackOp("a", pid1, wire.AckCompleted, "l1"), ackOp("b", pid1, wire.AckCompleted, "")},
		"named last":  {ackOp("a", pid1, wire.AckCompleted, ""), ackOp("b", pid1, wire.AckCompleted, "l1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			require.True(t, b.run(t, []string{"l1"}, ops...).Success)
			require.Len(t, b.store.calls[0].Acks, 1)
			require.Equal(t, "l1", b.store.calls[0].Acks[0].Worker)
			require.Len(t, b.store.calls[0].Acks[0].Hashes, 2)
		})
	}
}

func TestAcksAreGroupedAndCarryTheirLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leases []string
		own    string
		want   store.TxAck
	}{
		"of the operation":       {nil, "own", store.TxAck{Worker: "own"}},
		"of the operation first": {[]string{"l1", "l2"}, "own", store.TxAck{Worker: "own"}},
		"one of those required":  {[]string{"l1", "l2"}, "", store.TxAck{Workers: []string{"l1", "l2"}}},
		"none":                   {nil, "", store.TxAck{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			resp := b.run(t, c.leases, ackOp("a", pid1, wire.AckCompleted, c.own), ackOp("b", pid2, wire.AckRetry, c.own), ackOp("c", pid1, wire.AckFailed, c.own))
			require.True(t, resp.Success)
			one, two := c.want, c.want
			one.PartitionID, one.Group = pid1, "g"
			one.Hashes, one.Statuses = [][16]byte{segment.Hash("a"), segment.Hash("c")}, []store.AckStatus{"completed", "failed"}
			two.PartitionID, two.Group = pid2, "g"
			two.Hashes, two.Statuses = [][16]byte{segment.Hash("b")}, []store.AckStatus{"retry"}
			require.Empty(t, cmp.Diff([]store.TxAck{one, two}, b.store.calls[0].Acks))
			require.Equal(t, []wire.TxResult{
				{Op: wire.TxAck, TransactionID: "a"}, {Op: wire.TxAck, TransactionID: "b"}, {Op: wire.TxAck, TransactionID: "c"},
			}, resp.Results)
		})
	}
}

func TestRefusedBundles(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{wire.ReasonDuplicate, wire.ReasonAckRejected, wire.ReasonMisaligned, wire.ReasonDBError} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.store.errs = []error{fmt.Errorf("transaction: %w", &store.TxRefused{Reason: reason, Text: "why; transaction rolled back"})}
			resp := b.run(t, nil, pushOp("q", "a", "x", "1"))
			require.Equal(t, wire.TxResponse{TransactionID: resp.TransactionID, Reason: reason, Error: "why; transaction rolled back"}, resp)
			require.Empty(t, b.woken)
			require.Len(t, b.store.calls, 1)
		})
	}
}

func TestAMalformedPartitionIDRollsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	op := ackOp("a", pid1, wire.AckCompleted, "")
	op.Ack.PartitionID = "nope"
	resp := b.run(t, nil, pushOp("q", "a", "x", "1"), op)
	require.False(t, resp.Success)
	require.Equal(t, wire.ReasonAckRejected, resp.Reason)
	require.Contains(t, resp.Error, "rolled back")
	require.Empty(t, resp.Results)
	require.Empty(t, b.store.calls)
}

func TestOnlyFirstSubmissionsOfMintedIDsSkipTheProbe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.errs = []error{&pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}}
	b.run(t, nil, pushOp("q", "minted", "", "1"), pushOp("q", "mixed", "", "1"), pushOp("q", "mixed", "x", "1"))
	require.Len(t, b.store.calls, 2)
	marks := make([]int64, 0, 4)
	for _, call := range b.store.calls {
		marks = append(marks, call.Pushes[0].Verified, call.Pushes[1].Verified)
	}
	require.Equal(t, []int64{store.VerifiedMinted, store.VerifiedNone, store.VerifiedNone, store.VerifiedNone}, marks)
}

func TestFailures(t *testing.T) {
	t.Parallel()
	many := func(err error) (errs []error) {
		for range 1000 {
			errs = append(errs, err)
		}
		return errs
	}
	aborted := &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	for name, c := range map[string]struct {
		errs  []error
		want  error
		calls int // 0: more than one
	}{
		"aborted in passing": {[]error{aborted, aborted}, nil, 3},
		"aborted for good":   {many(aborted), transact.ErrFailed, 0},
		"no connection":      {many(fmt.Errorf("transaction: %w", pgdb.ErrPool)), pgdb.ErrPool, 0},
		"lost answer":        {many(fmt.Errorf("transaction: %w", context.DeadlineExceeded)), transact.ErrUnknown, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				b.store.errs = c.errs
				resp, err := b.svc.Run(t.Context(), tenant, "", wire.TxRequest{Ops: []wire.TxOp{pushOp("q", "a", "x", "1")}})
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.want == nil, resp.Success)
				if c.calls > 0 {
					require.Len(t, b.store.calls, c.calls)
				} else {
					require.Greater(t, len(b.store.calls), 10)
				}
			})
		})
	}
}

func TestDeadLettersAreFiledAfterTheCommit(t *testing.T) {
	t.Parallel()
	aborted := &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "could not serialize"}
	refused := &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
	for name, c := range map[string]struct {
		filed   []error
		letters int
		wakes   int
	}{
		"at once":            {nil, 1, 2},
		"on another attempt": {[]error{aborted}, 2, 2},
		"not at all":         {[]error{refused}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.store.filed = c.filed
			b.store.acks = []store.AckOutcome{{OK: true, DLQ: true, Offset: 7, Worker: "w"}, {OK: true}}
			b.lanes.Put(pid1, lanes.Lane{Tenant: tenant, Queue: "src", Partition: "p"})
			poison := ackOp("poison", pid1, wire.AckDLQ, "w")
			poison.Ack.Error = "boom"
			resp := b.run(t, nil, poison, ackOp("b", pid2, wire.AckCompleted, "w"), pushOp("q", "a", "x", "1"))
			require.True(t, resp.Success)
			require.True(t, resp.Results[0].DLQ)
			require.False(t, resp.Results[1].DLQ)
			require.Len(t, b.store.letters, c.letters)
			require.Equal(t, "boom", b.store.letters[0].Error)
			require.Len(t, b.woken, c.wakes)
		})
	}
}

func TestReleasedLanesAreAnnounced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.acks = []store.AckOutcome{{OK: true, Released: true}}
	b.lanes.Put(pid1, lanes.Lane{Tenant: tenant, Queue: "src", Partition: "p"})
	b.run(t, nil, ackOp("a", pid1, wire.AckCompleted, "w"))
	require.Equal(t, []lanes.Lane{{Tenant: tenant, Queue: "src", Partition: "p"}}, b.woken)
}

func TestAClientThatLeavesDoesNotStopItsBundle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.store.onCall = cancel
	resp, err := b.svc.Run(ctx, tenant, "", wire.TxRequest{Ops: []wire.TxOp{pushOp("q", "a", "x", "1")}})
	require.NoError(t, err)
	require.True(t, resp.Success)
	_, err = b.svc.Run(ctx, tenant, "", wire.TxRequest{Ops: []wire.TxOp{pushOp("q", "a", "x", "1")}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestOverloadChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		_, err := b.gate.Acquire(t.Context(), admission.Push)
		require.NoError(t, err)
	}
	_, err := b.svc.Run(t.Context(), tenant, "", wire.TxRequest{Ops: []wire.TxOp{pushOp("q", "a", "x", "1")}})
	require.ErrorIs(t, err, transact.ErrOverloaded)
	require.Empty(t, b.store.calls)
}

func TestAnythingElseTheDatabaseAnswersIsARefusal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.errs = []error{fmt.Errorf("transaction: %w", &pgconn.PgError{Severity: "ERROR", Code: "22001", Message: "too long"})}
	resp := b.run(t, nil, pushOp("q", "a", "x", "1"))
	require.Equal(t, wire.TxResponse{TransactionID: resp.TransactionID, Reason: wire.ReasonDBError, Error: "too long"}, resp)
}

func TestWhatTheDatabaseRefusesIsInTheLog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	logger, lines := logtest.NewRecorder()
	b.svc.Logger = logger
	refusal := fmt.Errorf("transaction: %w", &pgconn.PgError{Severity: "ERROR", Code: "23514", Message: "no such luck"})
	b.store.errs = []error{refusal, refusal}
	for range 2 {
		require.Equal(t, wire.ReasonDBError, b.run(t, nil, pushOp("q", "a", "x", `"confidential"`)).Reason)
	}
	require.Equal(t, 1, strings.Count(lines.String(), "transaction failed"), "one line for an outage: %s", lines)
	for _, part := range []string{"level=ERROR", "queue=q", "partition=a", "count=1", "no such luck"} {
		require.Contains(t, lines.String(), part)
	}
	require.NotContains(t, lines.String(), "confidential")
}

func TestAnAnswerThatCannotBeReadIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.errs = []error{errors.New("transaction: read the answer")}
	_, err := b.svc.Run(t.Context(), tenant, "", wire.TxRequest{Ops: []wire.TxOp{pushOp("q", "a", "x", "1")}})
	require.ErrorIs(t, err, transact.ErrUnknown)
	require.Len(t, b.store.calls, 1)
}

// delivered tells the registry of a batch of ids.
func (b *bundle) delivered(partition uuid.UUID, worker string, end int64, ids ...string) {
	var hashes []byte
	for _, id := range ids {
		h := segment.Hash(id)
		hashes = append(hashes, h[:]...)
	}
	b.registry.Delivered(partition, "g", worker, end, hashes, time.Minute)
}

func (b *bundle) try(t *testing.T, ops ...wire.TxOp) (wire.TxResponse, error) {
	t.Helper()
	return b.svc.Run(t.Context(), tenant, "", wire.TxRequest{Ops: ops})
}

func TestAWholeBatchIsAcknowledgedByItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w1", 7, "a", "b")
	b.delivered(pid2, "w2", 9, "c", "d")
	b.store.acks = []store.AckOutcome{{OK: true, Released: true}, {OK: true, Released: true}}
	resp, err := b.try(t, ackOp("b", pid1, wire.AckCompleted, "w1"), ackOp("a", pid1, wire.AckCompleted, "w1"),
		ackOp("c", pid2, wire.AckCompleted, "w2"))
	require.NoError(t, err)
	require.True(t, resp.Success)
	acks := b.store.calls[0].Acks
	require.True(t, acks[0].Whole)
	require.EqualValues(t, 7, acks[0].End)
	require.False(t, acks[1].Whole, "a part of a batch")
	require.Equal(t, []bool{true, true}, b.full)
	_, ok := b.registry.Match(pid2, "g", "w2", [][16]byte{segment.Hash("c"), segment.Hash("d")})
	require.False(t, ok, "the cursor has moved")
}

func TestWhatIsNotAWholeBatchGoesByItsHashes(t *testing.T) {
	t.Parallel()
	for name, ops := range map[string][]wire.TxOp{
		"a signal":                 {ackOp("a", pid1, wire.AckCompleted, "w1"), ackOp("b", pid1, wire.AckFailed, "w1")},
		"a repeated id":            {ackOp("a", pid1, wire.AckCompleted, "w1"), ackOp("b", pid1, wire.AckCompleted, "w1"), ackOp("a", pid1, wire.AckCompleted, "w1")},
		"no lease":                 {ackOp("a", pid1, wire.AckCompleted, ""), ackOp("b", pid1, wire.AckCompleted, "")},
		"another lease":            {ackOp("a", pid1, wire.AckCompleted, "w"), ackOp("b", pid1, wire.AckCompleted, "w")},
		"two leases on one cursor": {ackOp("a", pid1, wire.AckCompleted, "w1"), ackOp("b", pid1, wire.AckCompleted, "w1"), ackOp("c", pid1, wire.AckCompleted, "w2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.delivered(pid1, "w1", 7, "a", "b")
			_, err := b.try(t, ops...)
			require.NoError(t, err)
			for _, a := range b.store.calls[0].Acks {
				require.False(t, a.Whole)
			}
		})
	}
}

func TestARefusedPositionGoesByItsHashes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delivered(pid1, "w1", 7, "a")
	b.store.errs = []error{&store.TxRefused{Reason: store.TxReasonAckRejected, Text: "QTXN ack failed: batch partly committed"}}
	resp, err := b.try(t, pushOp("q", "p", "", "1"), ackOp("a", pid1, wire.AckCompleted, "w1"))
	require.NoError(t, err)
	require.True(t, resp.Success)
	require.Len(t, b.store.calls, 2)
	require.True(t, b.store.calls[0].Acks[0].Whole)
	require.False(t, b.store.calls[1].Acks[0].Whole)
	require.Equal(t, store.VerifiedNone, b.store.calls[1].Pushes[0].Verified, "a minted id is new once")

	b.delivered(pid1, "w1", 7, "a")
	refusal := &store.TxRefused{Reason: store.TxReasonAckRejected, Text: "QTXN ack failed: invalid or expired lease"}
	b.store.errs = []error{refusal, refusal}
	resp, err = b.try(t, ackOp("a", pid1, wire.AckCompleted, "w1"))
	require.NoError(t, err)
	require.Equal(t, refusal.Text, resp.Error)
}

func TestABundleThatWasRolledBackCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		kept bool
	}{
		"a duplicate":     {&store.TxRefused{Reason: store.TxReasonDuplicate, Text: "QDUP"}, true},
		"a data error":    {&pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "x"}, true},
		"the answer lost": {context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.delivered(pid1, "w1", 7, "a")
			b.store.errs = []error{c.err}
			resp, _ := b.try(t, ackOp("a", pid1, wire.AckCompleted, "w1"))
			require.False(t, resp.Success)
			_, ok := b.registry.Match(pid1, "g", "w1", [][16]byte{segment.Hash("a")})
			require.Equal(t, c.kept, ok)
		})
	}
}
