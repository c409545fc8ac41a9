package push_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/fusion"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tenant = store.DefaultTenant()

type bundle struct {
	svc    *push.Service
	store  *fakeStore
	reader *segment.Reader
	gate   *admission.Gate

	mu    sync.Mutex
	woken []laneName
}

func (b *bundle) Pushed(_ uuid.UUID, queue, partition string, _ int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, laneName{queue, partition})
}

func setup(t testing.TB, cfg push.Config) *bundle {
	t.Helper()
	store := newFake()
	b := setupWith(t, cfg, noop.Meter{}, store, time.Minute)
	b.store = store
	return b
}

func setupWith(t testing.TB, cfg push.Config, meter metric.Meter, backend fusion.Store, wait time.Duration) *bundle {
	t.Helper()
	b := &bundle{}
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	b.reader, err = segment.NewReader(0)
	require.NoError(t, err)
	b.gate, err = admission.New(admission.Config{Slots: 2, MaxWait: wait}, noop.Meter{})
	require.NoError(t, err)
	fuser, err := fusion.New(fusion.Config{}, fusion.Deps{
		Store: backend, Packer: packer, Reader: b.reader, Admission: b.gate, Announcer: b,
		Meter: meter, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	b.svc, err = push.New(cfg, push.Deps{Fuser: fuser, Admission: b.gate, IDs: mint.NewSource(), Counters: collector.NewCounters(64), Meter: meter})
	require.NoError(t, err)
	return b
}

func (b *bundle) push(t testing.TB, items ...wire.PushItem) []wire.PushResult {
	t.Helper()
	rs, err := b.svc.Push(t.Context(), tenant, "", items)
	require.NoError(t, err)
	require.Len(t, rs, len(items))
	for i := range rs {
		require.Equal(t, i, rs[i].Index)
		require.Equal(t, items[i].Queue, rs[i].QueueName)
	}
	return rs
}

// stored returns the frames of a lane in offset order.
func (b *bundle) stored(t testing.TB, queue, partition string) (frames []segment.Frame) {
	t.Helper()
	l := b.store.lanes[laneName{queue, partition}]
	if l == nil {
		return nil
	}
	for _, s := range l.segments {
		for i := range int(s.End - s.Base + 1) {
			f, err := b.reader.Frame(s.Blob, i)
			require.NoError(t, err)
			frames = append(frames, f)
		}
	}
	return frames
}

func item(queue, partition, id, payload string) wire.PushItem {
	return wire.PushItem{Queue: queue, Partition: partition, TransactionID: id, Payload: []byte(payload)}
}

func statuses(rs []wire.PushResult) []string {
	out := make([]string, len(rs))
	for i := range rs {
		out[i] = rs[i].Status
	}
	return out
}

func TestNoItemsNeedNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	require.Empty(t, b.push(t))
	require.Empty(t, b.store.calls)
}

func TestHeldItemsFailOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	held := true
	b.svc.Held = func() bool { return held }
	items := []wire.PushItem{item("q", "a", "x", "1"), item("r", "b", "", "2"), item("q", "a", "x", "3")}
	rs, err := b.svc.Push(t.Context(), tenant, "", items)
	require.ErrorIs(t, err, push.ErrHeld)
	require.Equal(t, []string{"failed", "failed", "failed"}, statuses(rs))
	for i, id := range []string{"x", rs[1].MessageID.String(), "x"} {
		require.Equal(t, i, rs[i].Index)
		require.Equal(t, items[i].Queue, rs[i].QueueName)
		require.Equal(t, id, rs[i].TransactionID)
		require.Contains(t, rs[i].Error, "push maintenance is on")
	}
	require.Empty(t, b.store.calls)
	held = false
	require.Equal(t, []string{"queued", "queued", "duplicate"}, statuses(b.push(t, items...)))
}

func TestItemsAreStoredPerLaneInRequestOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	rs := b.push(t, item("q", "a", "1", `{"n":1}`), item("q", "b", "2", `null`), item("q", "a", "", ` [3]`), item("q", "c", "4", `"x"`))
	require.Equal(t, []string{"queued", "queued", "queued", "queued"}, statuses(rs))
	require.Len(t, b.store.calls, 1, "one call for the request")
	require.Len(t, b.store.calls[0], 3)

	a := b.stored(t, "q", "a")
	require.Len(t, a, 2)
	require.Equal(t, `{"n":1}`, string(a[0].Payload))
	require.Equal(t, ` [3]`, string(a[1].Payload))
	require.Equal(t, rs[0].MessageID, a[0].MessageID)
	require.Equal(t, rs[2].MessageID.String(), rs[2].TransactionID, "the message id is the default")
	require.Equal(t, rs[2].TransactionID, a[1].TransactionID)
	require.Equal(t, uuid.Version(7), rs[2].MessageID.Version())
	require.ElementsMatch(t, []laneName{{"q", "a"}, {"q", "b"}, {"q", "c"}}, b.woken)
}

func TestOnlyFirstSubmissionsOfMintedIDsSkipTheProbe(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	b.store.fail = failFirst(errAborted)
	b.push(t, item("q", "minted", "", "1"), item("q", "mixed", "", "1"), item("q", "mixed", "x", "1"))
	require.Len(t, b.store.calls, 2)
	require.Equal(t, store.VerifiedMinted, b.store.calls[0][0].Verified)
	require.Equal(t, store.VerifiedNone, b.store.calls[0][1].Verified)
	require.Equal(t, store.VerifiedNone, b.store.calls[1][0].Verified)
	require.Equal(t, store.VerifiedNone, b.store.calls[1][1].Verified)
}

func TestRepeatsInOneRequestFollowTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	b.store.windows["off"] = 0
	rs := b.push(t, item("q", "a", "x", "1"), item("q", "b", "x", "2"), item("q", "a", "x", "3"),
		item("off", "a", "x", "4"), item("off", "a", "x", "5"))
	require.Equal(t, []string{"queued", "queued", "duplicate", "queued", "duplicate"}, statuses(rs))
	require.Equal(t, rs[0].MessageID, rs[2].MessageID)
	require.Equal(t, "x", rs[2].TransactionID)
	require.Len(t, b.stored(t, "q", "a"), 1)

	again := b.push(t, item("q", "a", "x", "1"), item("q", "a", "x", "1"), item("q", "a", "y", "1"))
	require.Equal(t, []string{"duplicate", "duplicate", "queued"}, statuses(again))
	require.Equal(t, rs[0].MessageID, again[0].MessageID, "the stored id")
	require.Equal(t, rs[0].MessageID, again[1].MessageID, "followers too")
}

func TestDuplicatesAreStrippedAndTheRestStored(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	old := b.push(t, item("q", "a", "1", "1"), item("q", "a", "2", "1"))
	more := b.push(t, item("q", "a", "3", "1"))
	rs := b.push(t, item("q", "a", "n1", "1"), item("q", "a", "3", "1"), item("q", "a", "1", "1"),
		item("q", "b", "1", "1"), item("q", "a", "n2", "1"), item("q", "a", "2", "1"))
	require.Equal(t, []string{"queued", "duplicate", "duplicate", "queued", "queued", "duplicate"}, statuses(rs))
	require.Equal(t, more[0].MessageID, rs[1].MessageID)
	require.Equal(t, old[0].MessageID, rs[2].MessageID)
	require.Equal(t, old[1].MessageID, rs[5].MessageID)
	stored := b.stored(t, "q", "a")
	require.Len(t, stored, 5)
	require.Equal(t, "n1", stored[3].TransactionID)
	require.Equal(t, "n2", stored[4].TransactionID)
	require.Len(t, b.store.calls, 4, "the neighbour lane was not submitted again")
	require.Len(t, b.store.calls[3], 1)
}

func TestAnUnreadableOriginalIsTheZeroID(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	b.push(t, item("q", "a", "1", "1"))
	b.store.gone = true
	rs := b.push(t, item("q", "a", "1", "1"))
	require.Equal(t, []string{"duplicate"}, statuses(rs))
	require.Equal(t, uuid.Nil, rs[0].MessageID)
}

func TestBundlesStayWithinTheByteBound(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	rng := rand.NewChaCha8([32]byte{1})
	// Payloads are opaque here: bytes that do not compress.
	incompressible := func(mib int) string {
		raw := make([]byte, mib<<20)
		_, _ = rng.Read(raw) // never fails
		return string(raw)
	}
	rs := b.push(t, item("q", "a", "", incompressible(3)), item("q", "b", "", incompressible(3)),
		item("q", "c", "", incompressible(3)), item("q", "huge", "", incompressible(9)), item("q", "d", "", "1"))
	require.Equal(t, []string{"queued", "queued", "queued", "queued", "queued"}, statuses(rs))
	require.Len(t, b.store.calls, 4, "a and b; c; huge; d")
	for _, call := range b.store.calls {
		size := 0
		for _, s := range call {
			size += len(s.Blob)
		}
		require.True(t, size <= fusion.MaxBundleBytes || len(call) == 1, "%d bytes in %d segments", size, len(call))
	}
}

func TestBundlesStayWithinTheLaneBound(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	items := make([]wire.PushItem, fusion.BundleMaxDefault+1)
	for i := range items {
		items[i] = item("q", fmt.Sprint(i), "", "1")
	}
	b.push(t, items...)
	require.Len(t, b.store.calls, 2)
}

func TestOverloadStoresNothing(t *testing.T) {
	t.Parallel()
	backend := newFake()
	b := setupWith(t, push.Config{}, noop.Meter{}, backend, time.Millisecond)
	b.store = backend
	for range 2 {
		_, err := b.gate.Acquire(t.Context(), admission.Push)
		require.NoError(t, err)
	}
	_, err := b.svc.Push(t.Context(), tenant, "", []wire.PushItem{item("q", "a", "", "1")})
	require.ErrorIs(t, err, push.ErrOverloaded)
	require.Empty(t, b.store.calls)
}

func TestAClientThatLeavesDoesNotStopItsMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	b.store.fail = func(call int, _ []store.PushSegment) (bool, error) {
		cancel()
		if call == 1 {
			return false, errAborted
		}
		return true, nil
	}
	rs, err := b.svc.Push(ctx, tenant, "", []wire.PushItem{item("q", "a", "", "1")})
	require.NoError(t, err)
	require.Equal(t, []string{"queued"}, statuses(rs))

	_, err = b.svc.Push(ctx, tenant, "", []wire.PushItem{item("q", "a", "", "1")})
	require.ErrorIs(t, err, context.Canceled, "gone before admission")
	require.Len(t, b.stored(t, "q", "a"), 1)
}
