package fusion_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/fusion"
)

func TestAnIdleLaneIsWrittenAtOnceAndABusyOneAccumulates(t *testing.T) {
	t.Parallel()
	r := setup(t, true, fusion.Config{MaxInflight: 4}, admission.Config{})
	r.push(part("a", "1"))
	first := r.next() // nobody had to come along
	require.Equal(t, []string{"a*1"}, first.lanes())
	for i := range 5 {
		r.push(part("a", fmt.Sprint("a", i)))
		r.accumulated(i + 1)
	}
	r.push(part("b", "1"))
	other := r.next() // a lane in flight stops no other lane
	require.Equal(t, []string{"b*1"}, other.lanes())
	first.commit()
	second := r.next()
	require.Equal(t, []string{"a*5"}, second.lanes(), "one segment for five requests")
	second.commit()
	other.commit()
	r.pending.Wait()
	require.Equal(t, []string{"1", "a0", "a1", "a2", "a3", "a4"}, r.db.lanes["a"], "commit order is arrival order")
	require.Zero(t, fusion.Lanes(r.fuser), "idle lanes are forgotten")
}

func TestReadyLanesShareABundle(t *testing.T) {
	t.Parallel()
	r := setup(t, true, fusion.Config{MaxInflight: 1, BundleMax: 3}, admission.Config{})
	r.push(part("a", "1"))
	first := r.next()
	for i, lane := range []string{"b", "c", "d", "e"} {
		r.push(part(lane, "1"))
		r.accumulated(i + 1)
	}
	first.commit()
	second := r.next()
	require.Equal(t, []string{"b*1", "c*1", "d*1"}, second.lanes())
	second.commit()
	third := r.next()
	require.Equal(t, []string{"e*1"}, third.lanes())
	third.commit()
	r.pending.Wait()
}

func TestOneRequestsLanesShareABundle(t *testing.T) {
	t.Parallel()
	r := setup(t, false, fusion.Config{}, admission.Config{})
	parts := make([]fusion.Part, 100)
	for i := range parts {
		parts[i] = part(strconv.Itoa(i), "x")
	}
	r.push(parts...)
	r.pending.Wait()
	require.Len(t, r.db.seen, 1)
	require.Len(t, r.db.seen[0].segments, 100)
}

func TestBundlesGrowWhileTheyWaitForASlot(t *testing.T) {
	t.Parallel()
	r := setup(t, true, fusion.Config{MaxInflight: 8}, admission.Config{Slots: 1, Min: 1, Init: 1, Max: 1})
	release, err := r.gate.Acquire(t.Context(), admission.Pop)
	require.NoError(t, err)
	for i, lane := range []string{"a", "b", "c"} {
		r.push(part(lane, "1"))
		r.accumulated(i + 1)
	}
	release()
	all := r.next()
	require.Equal(t, []string{"a*1", "b*1", "c*1"}, all.lanes())
	all.commit()
	r.pending.Wait()
}

func TestWhatWaitsTooLongIsTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, true, fusion.Config{}, admission.Config{MaxWait: 3 * time.Second})
		first := r.push(part("a", "1"))
		held := r.next()
		parts := []fusion.Part{part("a", "2")}
		began := time.Now()
		r.fuser.Push(t.Context(), parts) // returns although the lane stays in flight
		require.Equal(t, 3*time.Second, time.Since(began))
		require.ErrorIs(t, parts[0].Messages[0].Err, fusion.ErrOverloaded)
		held.commit()
		r.pending.Wait()
		require.Equal(t, []fusion.Outcome{fusion.Queued}, outcomes(first), "what was begun is waited for")
		require.Equal(t, []string{"1"}, r.db.lanes["a"])
	})
}

func TestAWideRequestIsNotTakenBackWhileItProgresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, true, fusion.Config{MaxInflight: 1, BundleMax: 1}, admission.Config{MaxWait: 3 * time.Second})
		var parts []fusion.Part
		for i := range 10 {
			parts = append(parts, part(strconv.Itoa(i), "x"))
		}
		r.push(parts...)
		for range parts {
			c := r.next()
			time.Sleep(2 * time.Second)
			c.commit()
		}
		r.pending.Wait()
		for _, o := range outcomes(parts) {
			require.Equal(t, fusion.Queued, o)
		}
	})
}

func TestRepeatsAcrossRequestsShareTheFateOfTheFirst(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]int{"window": 3600, "none": 0} {
		r := setup(t, true, fusion.Config{}, admission.Config{})
		r.db.window = window
		r.push(part("a", "0"))
		held := r.next()
		one := r.push(part("a", "x", "y"))
		r.accumulated(2)
		two := r.push(part("a", "z", "x"))
		r.accumulated(4)
		held.commit()
		r.next().commit()
		r.pending.Wait()
		if window == 0 {
			require.Equal(t, []string{"0", "x", "y", "z", "x"}, r.db.lanes["a"], name)
			require.Equal(t, []fusion.Outcome{fusion.Queued, fusion.Queued}, outcomes(two), name)
			continue
		}
		require.Equal(t, []string{"0", "x", "y", "z"}, r.db.lanes["a"], name)
		require.Equal(t, []fusion.Outcome{fusion.Queued, fusion.Duplicate}, outcomes(two), name)
		require.Equal(t, one[0].Messages[0].Frame.MessageID, two[0].Messages[1].Original, name)
	}
}

func TestRule13ABusyLaneIsWaitedForAlone(t *testing.T) {
	t.Parallel()
	r := setup(t, false, fusion.Config{}, admission.Config{})
	r.db.verdict = func(s store.PushSegment, wait store.LockWait) (store.PushVerdict, bool) {
		return store.PushVerdict{Status: store.PushBusy}, s.Partition == "held" && wait == store.SkipLocked
	}
	r.db.refuse = func(segments []store.PushSegment, wait store.LockWait) error {
		if wait != store.SkipLocked && wait < store.LockWait(time.Second) && segments[0].Partition == "held" {
			return errLocked
		}
		return nil
	}
	held, other := r.push(part("held", "1"), part("a", "1")), r.push(part("b", "1"))
	r.pending.Wait()
	require.Equal(t, []fusion.Outcome{fusion.Queued, fusion.Queued, fusion.Queued}, append(outcomes(held), outcomes(other)...))
	require.True(t, slices.ContainsFunc(r.db.seen, func(c call) bool {
		return len(c.segments) == 1 && c.segments[0].Partition == "held" && c.wait > store.LockWait(5*time.Second)
	}), "alone, until the deadline")
	require.Zero(t, fusion.Lanes(r.fuser))
}

func TestRule13AHeldLaneDelaysNoOther(t *testing.T) {
	t.Parallel()
	r := setup(t, true, fusion.Config{MaxInflight: 1}, admission.Config{})
	r.db.verdict = func(s store.PushSegment, wait store.LockWait) (store.PushVerdict, bool) {
		return store.PushVerdict{Status: store.PushBusy}, s.Partition == "held" && wait == store.SkipLocked
	}
	r.push(part("held", "1"))
	r.next().commit()
	short := r.next()
	short.answer <- errLocked
	alone := r.next() // stays in the database
	require.Greater(t, alone.wait, store.LockWait(time.Second))
	for i := range 3 {
		r.push(part("a", strconv.Itoa(i)))
		r.next().commit() // though the shard has room for one bundle only
	}
	r.push(part("held", "2"))
	r.accumulated(1)
	alone.commit()
	again := r.next()
	require.Equal(t, store.LockWait(20*time.Millisecond), again.wait, "waits shortly from the start")
	again.commit()
	r.pending.Wait()
	require.Equal(t, []string{"1", "2"}, r.db.lanes["held"])
}

// Brokers that meet on their lanes write fewer and larger bundles.
func TestBundlesGatherAfterAMeeting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := setup(t, true, fusion.Config{}, admission.Config{})
		var busy bool
		r.db.verdict = func(_ store.PushSegment, wait store.LockWait) (store.PushVerdict, bool) {
			return store.PushVerdict{Status: store.PushBusy}, busy && wait == store.SkipLocked
		}
		one := func(lane string) {
			r.push(part(lane, "1"))
			r.next().commit()
			synctest.Wait()
		}
		began := time.Now()
		one("a")
		one("b")
		require.Zero(t, time.Since(began), "nobody was met")
		busy = true
		r.push(part("c", "1"))
		r.next().commit()
		r.next().commit() // with a short wait
		synctest.Wait()
		r.push(part("d", "1"))
		synctest.Wait()
		time.Sleep(4 * time.Millisecond)
		r.push(part("e", "1"))
		all := r.next()
		require.Equal(t, []string{"d*1", "e*1"}, all.lanes())
		require.Equal(t, 5*time.Millisecond, time.Since(began))
		all.commit()
		synctest.Wait()
		time.Sleep(time.Second)
		began = time.Now()
		one("f")
		require.Zero(t, time.Since(began), "after a rest the first one does not wait")
		var wide []fusion.Part
		for i := range 32 {
			wide = append(wide, part(strconv.Itoa(i), "1"))
		}
		r.push(wide...)
		r.next().commit()
		require.Zero(t, time.Since(began), "nor what is large already")
		r.pending.Wait()
	})
}

func TestAPoisonMessageIsIsolatedByHalves(t *testing.T) {
	t.Parallel()
	r := setup(t, true, fusion.Config{MaxInflight: 1}, admission.Config{})
	r.push(part("a", "0"))
	held := r.next()
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	ids[37] = "poison"
	mixed := r.push(part("a", ids...), part("b", "1"))
	r.accumulated(101)
	neighbour := r.push(part("a", "n"))
	r.accumulated(102)
	r.db.refuse = func(segments []store.PushSegment, _ store.LockWait) error {
		for _, s := range segments {
			if slices.Contains(r.db.ids(s), "poison") {
				return errRefused
			}
		}
		return nil
	}
	held.commit()
	done := make(chan struct{})
	go func() { r.pending.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case c := <-r.db.calls:
			c.commit()
		case <-done:
			over = true
		}
	}
	want := append([]string{"0"}, ids...)
	want = append(slices.DeleteFunc(want, func(id string) bool { return id == "poison" }), "n")
	require.Equal(t, want, r.db.lanes["a"], "all others, in order")
	require.Equal(t, fusion.Failed, mixed[0].Messages[37].Outcome)
	require.ErrorIs(t, mixed[0].Messages[37].Err, errRefused)
	require.Equal(t, fusion.Queued, mixed[1].Messages[0].Outcome)
	require.Equal(t, fusion.Queued, neighbour[0].Messages[0].Outcome)
	require.Less(t, len(r.db.seen), 24, "by halves")
}

func TestARefusalOfEverythingIsNotRepeatedForEach(t *testing.T) {
	t.Parallel()
	r := setup(t, false, fusion.Config{}, admission.Config{})
	r.db.refuse = func([]store.PushSegment, store.LockWait) error { return errRefused }
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	parts := r.push(part("a", ids...))
	r.pending.Wait()
	for _, o := range outcomes(parts) {
		require.Equal(t, fusion.Failed, o)
	}
	require.LessOrEqual(t, len(r.db.seen), 2*fusion.MaxSplits+1)
}

func TestRule05OnlyTheFirstSubmissionOfMintedIDsGoesWithoutAMark(t *testing.T) {
	t.Parallel()
	r := setup(t, false, fusion.Config{}, admission.Config{})
	var verified []int64
	r.db.refuse = func(segments []store.PushSegment, _ store.LockWait) error {
		verified = append(verified, segments[0].Verified)
		if len(verified) == 1 {
			return errLocked // a definite abort
		}
		return nil
	}
	p := part("a", uuid.NewString())
	p.Minted = true
	r.push(p)
	r.pending.Wait()
	require.Equal(t, []int64{store.VerifiedMinted, store.VerifiedNone}, verified)
}

// Many requests on few lanes, with everything that can happen to a bundle: all
// messages that were answered as queued are stored once, in order per client.
func TestNothingIsLostRepeatedOrReordered(t *testing.T) {
	t.Parallel()
	r := setup(t, false, fusion.Config{MaxInflight: 3, BundleMax: 4}, admission.Config{Slots: 4})
	r.db.verdict = func(_ store.PushSegment, wait store.LockWait) (store.PushVerdict, bool) {
		return store.PushVerdict{Status: store.PushBusy}, wait == store.SkipLocked && rand.IntN(4) == 0
	}
	r.db.refuse = func(segments []store.PushSegment, _ store.LockWait) error {
		switch {
		case rand.IntN(10) == 0:
			return errLocked
		case len(segments) > 1 && rand.IntN(10) == 0:
			return errRefused
		}
		return nil
	}
	const clients, rounds, lanes = 24, 40, 5
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for n := range rounds {
				var parts []fusion.Part
				for _, lane := range rand.Perm(lanes)[:1+rand.IntN(lanes)] {
					parts = append(parts, part(strconv.Itoa(lane), fmt.Sprintf("%d/%d", c, n)))
				}
				r.fuser.Push(context.Background(), parts)
				for _, o := range outcomes(parts) {
					if o != fusion.Queued {
						t.Errorf("outcome %d", o)
					}
				}
			}
		})
	}
	wg.Wait()
	for lane, ids := range r.db.lanes {
		last := make(map[string]int)
		for _, id := range ids {
			client, text, _ := strings.Cut(id, "/")
			n, err := strconv.Atoi(text)
			require.NoError(t, err)
			before, seen := last[client]
			require.True(t, !seen || n > before, "lane %s: %s after %d", lane, id, before)
			last[client] = n
		}
	}
	require.Eventually(t, func() bool { return fusion.Lanes(r.fuser) == 0 }, 10*time.Second, time.Millisecond)
}
