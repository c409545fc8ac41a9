package push_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/push"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

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
	t.Run("what is left of it after a purge is probed too", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.fail = func(call int, segments []store.PushSegment) (bool, error) {
			if call == 2 {
				delete(b.store.lanes[laneName{"q", "a"}].hashes, string(segments[0].Hashes[:segment.HashSize]))
			}
			return loseFirst(call, segments)
		}
		rs := b.push(t, item("q", "a", "", "1"), item("q", "a", "", "2"))
		require.Equal(t, []string{"queued", "queued"}, statuses(rs))
		require.Len(t, b.store.calls, 3)
		require.Equal(t, 1, b.store.calls[2][0].Count)
		require.Equal(t, store.VerifiedNone, b.store.calls[2][0].Verified)
	})
	t.Run("without a window it is not sent again", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.windows["off"] = 0
		b.store.fail = func(_ int, segments []store.PushSegment) (bool, error) {
			if segments[0].Queue == "off" {
				return true, errLost
			}
			return true, nil
		}
		rs := b.push(t, item("off", "a", "", "1"), item("q", "a", "", "2"), item("off", "a", "", "3"))
		require.Equal(t, []string{"failed", "queued", "failed"}, statuses(rs))
		require.NotEmpty(t, rs[0].Error)
		require.Len(t, b.stored(t, "off", "a"), 2, "stored once each, by the call whose answer was lost")
	})
	t.Run("a window is read again when that answer is lost too", func(t *testing.T) {
		t.Parallel()
		b := setup(t, push.Config{})
		b.store.fail, b.store.settingsErrs = loseFirst, []error{errLost}
		rs := b.push(t, item("q", "a", "x", "1"))
		require.Equal(t, []string{"queued"}, statuses(rs))
		require.Len(t, b.stored(t, "q", "a"), 1)
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
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, push.Config{})
				b.store.fail = func(int, []store.PushSegment) (bool, error) { return false, err }
				start := time.Now()
				rs := b.push(t, item("q", "a", "", "1"), item("q", "a", "x", "1"), item("q", "a", "x", "1"))
				require.Equal(t, []string{"failed", "failed", "failed"}, statuses(rs))
				require.InDelta(t, push.DeadlineDefault, time.Since(start), float64(retry.LastPause))
				require.Greater(t, len(b.store.calls), 20)
				require.NotContains(t, rs[0].Error, "SQLSTATE")
				require.Empty(t, b.woken)
			})
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
	require.Len(t, b.store.calls, 5, "all; a; bad and b; bad; b")
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
			b := setupWith(t, push.Config{}, noop.Meter{}, scripted{newFake(), verdicts}, time.Minute)
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

func (s scripted) PushBundle(context.Context, []store.PushSegment, store.LockWait) ([]store.PushVerdict, error) {
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
				items := make([]wire.PushItem, 0, 7)
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
