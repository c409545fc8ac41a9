package pop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
	"github.com/queenmq/queen/services/broker/internal/tails"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tenant = store.DefaultTenant()

type bundle struct {
	svc    *pop.Service
	store  *fakeStore
	hub    *wake.Hub
	gate   *admission.Gate
	lanes  *lanes.Memo
	packer *segment.Packer
	log    *bytes.Buffer
	tails  *tails.Cache
	list   *hotlist.List
	told   []batch
	forget bool // remember no batches
}

// batch is what the registry was told of.
type batch struct {
	partition     uuid.UUID
	group, worker string
	end           int64
	hashes        []byte
	lease         time.Duration
}

// Delivered records a leased batch.
func (b *bundle) Delivered(partition uuid.UUID, group, worker string, end int64, hashes []byte, lease time.Duration) {
	if b.forget {
		return
	}
	b.told = append(b.told, batch{partition, group, worker, end, bytes.Clone(hashes), lease})
}

// setup makes a service without a hot list.
func setup(t testing.TB, cfg pop.Config) *bundle {
	t.Helper()
	return assemble(t, cfg, plain)
}

// setupRing makes one with a hot list, whose loops run.
func setupRing(t testing.TB, cfg pop.Config) *bundle {
	t.Helper()
	return assemble(t, cfg, ringed)
}

// setupFused makes one whose pops share transactions, too.
func setupFused(t testing.TB, cfg pop.Config) *bundle {
	t.Helper()
	return assemble(t, cfg, fused)
}

const (
	plain = iota
	ringed
	fused
)

func assemble(t testing.TB, cfg pop.Config, kind int) *bundle {
	t.Helper()
	b := &bundle{store: &fakeStore{}, hub: wake.NewHub(), log: &bytes.Buffer{}}
	var err error
	b.packer, err = segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	b.gate, err = admission.New(admission.Config{Slots: 2}, noop.Meter{})
	require.NoError(t, err)
	b.lanes, err = lanes.NewMemo(16)
	require.NoError(t, err)
	if kind >= ringed {
		b.list, err = hotlist.New(hotlist.Config{}, hotlist.Deps{
			Store: b.store, Waker: b.hub, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		b.run(t, b.list.Run)
	}
	b.tails, err = tails.New(1 << 20)
	require.NoError(t, err)
	var fuser *popfusion.Fuser
	if kind == fused {
		fuser, err = popfusion.New(popfusion.Config{}, popfusion.Deps{Store: b.store, Admission: b.gate, Meter: noop.Meter{}})
		require.NoError(t, err)
	}
	b.svc, err = pop.New(cfg, pop.Deps{
		Store: b.store, Reader: reader, Admission: b.gate, Hub: b.hub, Lanes: b.lanes, HotList: b.list, Fusion: fuser, Tails: b.tails, Registry: b,
		IDs: mint.NewSource(), Counters: collector.NewCounters(64), Meter: noop.Meter{}, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	})
	require.NoError(t, err)
	b.run(t, b.svc.Run)
	return b
}

// run runs a loop until the test ends.
func (b *bundle) run(t testing.TB, loop func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error)
	go func() { ended <- loop(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

// claimOf is a claim of the messages [start, start+len(payloads)) of a segment.
func (b *bundle) claimOf(t testing.TB, partition string, start int, payloads ...string) store.Popped {
	t.Helper()
	frames := make([]segment.Frame, 0, start+len(payloads))
	for i := range start + len(payloads) {
		f := segment.Frame{MessageID: uuid.New(), TransactionID: fmt.Sprint("t", i), Payload: []byte(`"before"`)}
		if i >= start {
			f.Payload = []byte(payloads[i-start])
		}
		frames = append(frames, f)
	}
	blob, _, err := b.packer.Pack(frames)
	require.NoError(t, err)
	return store.Popped{
		Partition: partition, PartitionID: uuid.New(), DeliveryAttempt: 2,
		Segments: []store.PoppedSegment{{Base: 100, Start: start, Take: len(payloads), Count: start + len(payloads), CreatedAt: "2026-03-01T08:00:00.000123Z", Blob: blob}},
	}
}

func query(wait bool, timeout time.Duration) wire.PopQuery {
	return wire.PopQuery{Batch: 10, Partitions: 1, Wait: wait, Timeout: timeout, Group: "g", SubMode: wire.ModeAll}
}

func wildcard(q wire.PopQuery) pop.Request {
	return pop.Request{Tenant: tenant, Route: pop.Wildcard, Queue: "q", Query: q}
}

type reply struct {
	Success                                               bool
	Queue, Partition, PartitionID, LeaseID, ConsumerGroup string
	PartitionsClaimed                                     int
	Messages                                              []struct {
		ID, TransactionID, CreatedAt, PartitionID, Partition, LeaseID, ConsumerGroup string
		Data                                                                         json.RawMessage
		DeliveryAttempt                                                              int
	}
}

func decode(t testing.TB, body []byte) (r reply) {
	t.Helper()
	require.NoError(t, json.Unmarshal(body, &r))
	return r
}

func TestEmptyPopIsNil(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	body, err := b.svc.Pop(t.Context(), wildcard(query(false, time.Hour)))
	require.NoError(t, err)
	require.Nil(t, body)
	require.Equal(t, 1, b.store.count("wildcard"))
}

func TestHugeBatchesAreCutToWhatAReplyMayHold(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	q := query(false, 0)
	q.Batch = 1 << 30
	for _, group := range []string{"g", strings.Repeat("g", 1024)} {
		q.Group = group
		_, err := b.svc.Pop(t.Context(), wildcard(q))
		require.NoError(t, err)
		asked := b.store.calls[len(b.store.calls)-1].args.Budget
		require.LessOrEqual(t, int64(asked*(400+len(group)))+b.store.calls[len(b.store.calls)-1].args.MaxBytes, int64(16<<20))
		require.Greater(t, asked, 5_000)
	}
}

func TestReplySplicesPayloadsOfEveryClaimedPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	one, two := b.claimOf(t, "a", 2, `{"n": 1.0}`, `null`), b.claimOf(t, "b", 0, `[ ]`)
	b.store.add([]store.Popped{one, two})
	body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
	require.NoError(t, err)
	require.Contains(t, string(body), `"data":{"n": 1.0},`, "not serialised again")
	r := decode(t, body)
	require.True(t, r.Success)
	require.Equal(t, "q", r.Queue)
	require.Equal(t, "a", r.Partition)
	require.Equal(t, one.PartitionID.String(), r.PartitionID)
	require.Equal(t, 2, r.PartitionsClaimed)
	require.Equal(t, "g", r.ConsumerGroup)
	require.Len(t, r.Messages, 3)
	require.Equal(t, "t2", r.Messages[0].TransactionID)
	require.Equal(t, `null`, string(r.Messages[1].Data))
	require.Equal(t, two.PartitionID.String(), r.Messages[2].PartitionID)
	for _, m := range r.Messages {
		require.Equal(t, r.LeaseID, m.LeaseID)
		require.Equal(t, 2, m.DeliveryAttempt)
		require.Equal(t, "2026-03-01T08:00:00.000123Z", m.CreatedAt)
	}
	worker, err := uuid.Parse(r.LeaseID)
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), worker.Version())
	require.Equal(t, r.LeaseID, b.store.calls[0].args.Worker)

	lane, ok := b.lanes.Get(two.PartitionID)
	require.True(t, ok, "an ack can wake this lane")
	require.Equal(t, lanes.Lane{Tenant: tenant, Queue: "q", Partition: "b"}, lane)
}

func TestAutoAckHasNoLease(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
	q := query(false, 0)
	q.AutoAck = true
	body, err := b.svc.Pop(t.Context(), wildcard(q))
	require.NoError(t, err)
	r := decode(t, body)
	require.Empty(t, r.LeaseID)
	require.Empty(t, r.Messages[0].LeaseID)
	require.True(t, b.store.calls[0].args.AutoAck)
}

func TestRoutesPassTheirScope(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	q := query(false, 0)
	q.Namespace, q.Task, q.SubMode, q.SubFrom, q.LeaseSeconds, q.Partitions = "ns", "task", wire.ModeNew, "now", 7, 3
	for _, req := range []pop.Request{
		wildcard(q),
		{Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: q},
		{Tenant: tenant, Route: pop.Discover, Query: q},
	} {
		_, err := b.svc.Pop(t.Context(), req)
		require.NoError(t, err)
	}
	require.Equal(t, "wildcard", b.store.calls[0].name)
	require.Equal(t, []string{"specific", "q", "p"}, []string{b.store.calls[1].name, b.store.calls[1].queue, b.store.calls[1].partition})
	require.Equal(t, []string{"discover", "ns", "task"}, []string{b.store.calls[2].name, b.store.calls[2].queue, b.store.calls[2].partition})
	args := b.store.calls[0].args
	require.Positive(t, args.MaxBytes)
	args.Worker, args.MaxBytes = "", 0
	require.Equal(t, store.Pop{
		Tenant: tenant, Group: "g", Budget: 10, LeaseSeconds: 7, MaxPartitions: 3, SubMode: "new", SubFrom: "now",
	}, args)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		errs []error
		want error
	}{
		"pool":               {repeat(errPool, 2000), pop.ErrPool},
		"timeout":            {repeat(errTimeout, 1), pop.ErrFailed},
		"aborted for good":   {repeat(errAborted, 2000), pop.ErrFailed},
		"aborted in passing": {repeat(errAborted, 3), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, pop.Config{})
				b.store.errs = c.errs
				body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
				require.ErrorIs(t, err, c.want)
				require.Nil(t, body)
			})
		})
	}
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func TestACorruptSegmentIsNamedAndFails(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	bad := b.claimOf(t, "broken", 3, "1")
	bad.Segments[0].Blob = bad.Segments[0].Blob[:len(bad.Segments[0].Blob)/2]
	b.store.add([]store.Popped{b.claimOf(t, "fine", 0, "1"), bad})
	body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
	require.ErrorIs(t, err, pop.ErrFailed)
	require.ErrorIs(t, err, segment.ErrCorrupt)
	require.Nil(t, body)
	for _, attr := range []string{"queue=q", "partition=broken", "offset=103", "partition_id="} {
		require.Contains(t, b.log.String(), attr)
	}
}

func TestAClientThatLeftClaimsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.svc.Pop(ctx, wildcard(query(false, 0)))
	require.ErrorIs(t, err, context.Canceled)

	// Gone between two attempts of one claim.
	ctx, cancel = context.WithCancel(t.Context())
	b.store.errs = []error{errAborted, errAborted}
	b.store.onClaim = cancel
	_, err = b.svc.Pop(ctx, wildcard(query(false, 0)))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, b.store.count("wildcard"))
}

func TestALeasedBatchIsRemembered(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	one, two := b.claimOf(t, "a", 2, `1`, `2`), b.claimOf(t, "b", 0, `3`)
	b.store.add([]store.Popped{one, two})
	q := query(false, 0)
	q.LeaseSeconds = 7
	body, err := b.svc.Pop(t.Context(), wildcard(q))
	require.NoError(t, err)
	worker := decode(t, body).LeaseID
	hashes := func(ids ...string) (h []byte) {
		for _, id := range ids {
			h = segment.AppendHash(h, id)
		}
		return h
	}
	require.Equal(t, []batch{
		{one.PartitionID, "g", worker, 103, hashes("t2", "t3"), 7 * time.Second},
		{two.PartitionID, "g", worker, 100, hashes("t0"), 7 * time.Second},
	}, b.told)

	b.store.add([]store.Popped{b.claimOf(t, "a", 0, `1`)})
	q.AutoAck = true
	_, err = b.svc.Pop(t.Context(), wildcard(q))
	require.NoError(t, err)
	require.Len(t, b.told, 2, "an acknowledged one is not")
}
