package push_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
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

func (b *bundle) Wake(_ uuid.UUID, queue, partition string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, laneName{queue, partition})
}

func setup(t testing.TB, cfg push.Config) *bundle {
	t.Helper()
	b := &bundle{store: newFake()}
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	b.reader, err = segment.NewReader(0)
	require.NoError(t, err)
	b.gate, err = admission.New(admission.Config{Slots: 4, MaxWait: time.Millisecond}, noop.Meter{})
	require.NoError(t, err)
	b.svc, err = push.New(cfg, push.Deps{
		Store: b.store, Packer: packer, Reader: b.reader, Admission: b.gate, Waker: b,
		IDs: mint.NewSource(), Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
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

func TestItemsAreStoredPerLaneInRequestOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	rs := b.push(t, item("q", "a", "1", `{"n":1}`), item("q", "b", "2", `null`), item("q", "a", "", ` [3]`), item("r", "a", "4", `"x"`))
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
	require.ElementsMatch(t, []laneName{{"q", "a"}, {"q", "b"}, {"r", "a"}}, b.woken)
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

func TestLostAnswers(t *testing.T) {
	t.Parallel()
	t.Run("committed before the answer was lost", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.push(t, item("q", "a", "old", "1"))
		b.store.calls = nil
		b.store.fail = loseFirst
		rs := b.push(t, item("q", "a", "", "1"), item("q", "a", "x", "2"), item("q", "b", "", "3"), item("q", "a", "x", "4"))
		require.Equal(t, []string{"queued", "queued", "queued", "duplicate"}, statuses(rs))
		require.Len(t, b.stored(t, "q", "a"), 3)
		require.Len(t, b.stored(t, "q", "b"), 1)
		require.Equal(t, rs[1].MessageID, b.stored(t, "q", "a")[2].MessageID)
		require.Contains(t, b.woken, laneName{"q", "b"})
	})
	t.Run("nothing had been committed", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.fail = failFirst(errLost)
		rs := b.push(t, item("q", "a", "", "1"))
		require.Equal(t, []string{"queued"}, statuses(rs))
		require.Len(t, b.stored(t, "q", "a"), 1)
	})
	t.Run("without a window it is not sent again", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.windows["off"] = 0
		b.store.fail = loseFirst
		rs := b.push(t, item("off", "a", "", "1"), item("q", "a", "", "2"), item("off", "a", "", "3"))
		require.Equal(t, []string{"failed", "queued", "failed"}, statuses(rs))
		require.NotEmpty(t, rs[0].Error)
		require.Len(t, b.stored(t, "off", "a"), 2, "stored once each, by the call whose answer was lost")
	})
	t.Run("an unknown window counts as none", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.fail, b.store.settingsErr = loseFirst, errRefused
		rs := b.push(t, item("q", "a", "", "1"))
		require.Equal(t, []string{"failed"}, statuses(rs))
		require.Len(t, b.store.calls, 1)
	})
}

func TestDefiniteAbortsAreRepeatedUntilTheDeadline(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"transient": errAborted, "retry later": errUndefined} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, push.Config{Deadline: 30 * time.Millisecond})
			b.store.fail = func(int, []store.PushSegment) (bool, error) { return false, err }
			rs := b.push(t, item("q", "a", "", "1"), item("q", "a", "x", "1"), item("q", "a", "x", "1"))
			require.Equal(t, []string{"failed", "failed", "failed"}, statuses(rs))
			require.Greater(t, len(b.store.calls), 1)
			require.NotContains(t, rs[0].Error, "SQLSTATE")
			require.Empty(t, b.woken)
		})
	}
}

func TestARefusedBundleFailsOnlyTheGroupAtFault(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	b.store.fail = func(_ int, segments []store.PushSegment) (bool, error) {
		if slices.ContainsFunc(segments, func(s store.PushSegment) bool { return s.Partition == "bad" }) {
			return false, errRefused
		}
		return true, nil
	}
	rs := b.push(t, item("q", "a", "", "1"), item("q", "bad", "", "2"), item("q", "b", "", "3"), item("q", "a", "", "4"))
	require.Equal(t, []string{"queued", "failed", "queued", "queued"}, statuses(rs))
	require.Equal(t, "QMULTI resolved 1 of 2", rs[1].Error)
	require.Len(t, b.store.calls, 4)
}

func TestBundlesStayWithinTheByteBound(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	incompressible := func(n int) string {
		var s strings.Builder
		s.WriteByte('"')
		for s.Len() < n {
			fmt.Fprintf(&s, "%016x", rng.Uint64())
		}
		s.WriteByte('"')
		return s.String()
	}
	const mib = 1 << 20
	// Hexadecimal digits compress to about half.
	rs := b.push(t, item("q", "a", "", incompressible(6*mib)), item("q", "b", "", incompressible(6*mib)),
		item("q", "c", "", incompressible(6*mib)), item("q", "huge", "", incompressible(20*mib)), item("q", "d", "", "1"))
	require.Equal(t, []string{"queued", "queued", "queued", "queued", "queued"}, statuses(rs))
	require.Greater(t, len(b.store.calls), 2)
	for _, call := range b.store.calls {
		size := 0
		for _, s := range call {
			size += len(s.Blob)
		}
		require.True(t, size <= push.MaxBundleBytes || len(call) == 1, "%d bytes in %d segments", size, len(call))
	}
}

func TestBundlesStayWithinTheLaneBound(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	items := make([]wire.PushItem, push.MaxBundleLanes+1)
	for i := range items {
		items[i] = item("q", fmt.Sprint(i), "", "1")
	}
	b.push(t, items...)
	require.Len(t, b.store.calls, 2)
}

func TestOverloadStoresNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
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

func TestMisshapenAnswersFailTheirItems(t *testing.T) {
	t.Parallel()
	for name, verdicts := range map[string][]store.PushVerdict{
		"none":                        nil,
		"duplicate without a list":    {{Status: store.PushDuplicate}},
		"duplicate out of range":      {{Status: store.PushDuplicate, Dups: []store.Dup{{Index: 7}, {Index: -1}}}},
		"a status nobody knows about": {{Status: "maybe"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, push.Config{})
			b.svc.Store = scripted{b.store, verdicts}
			rs := b.push(t, item("q", "a", "", "1"))
			require.Equal(t, []string{"failed"}, statuses(rs))
			require.NotEmpty(t, rs[0].Error)
		})
	}
}

type scripted struct {
	*fakeStore
	verdicts []store.PushVerdict
}

func (s scripted) PushMulti(context.Context, []store.PushSegment) ([]store.PushVerdict, error) {
	return s.verdicts, nil
}

// Many requests race with random failures; every message answered queued is
// stored exactly once, and nothing else is.
func TestEveryQueuedMessageIsStoredExactlyOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, push.Config{})
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(3, 4))
	b.store.fail = func(int, []store.PushSegment) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(6) {
		case 0:
			return false, errAborted
		case 1:
			return false, errLost
		case 2:
			return true, errLost
		}
		return true, nil
	}
	want := make(map[uuid.UUID]bool)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for n := range 40 {
				var items []wire.PushItem
				for k := range 1 + n%7 {
					id := ""
					if k%2 == 0 {
						id = fmt.Sprint(n % 11)
					}
					items = append(items, item("q", fmt.Sprint("p", (w+k)%3), id, "1"))
				}
				rs, err := b.svc.Push(context.Background(), tenant, "", items)
				if err != nil && !errors.Is(err, push.ErrOverloaded) {
					t.Error(err)
				}
				mu.Lock()
				for _, r := range rs {
					if r.Status == wire.StatusQueued {
						want[r.MessageID] = true
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got := make(map[uuid.UUID]bool)
	for name := range b.store.lanes {
		ids := make(map[string]bool)
		for _, f := range b.stored(t, name.queue, name.partition) {
			require.False(t, got[f.MessageID], "stored twice")
			require.False(t, ids[f.TransactionID], "transaction id stored twice")
			got[f.MessageID], ids[f.TransactionID] = true, true
		}
	}
	require.Equal(t, want, got)
}
