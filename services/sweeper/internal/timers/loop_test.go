package timers

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
)

func TestAnIdleSweeperProbesEachSecond(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.start()
		b.pass(10 * time.Minute)
		require.InDelta(b, 600, len(b.calls(callDue)), 2, "idle or not")
		require.Empty(b, b.calls(callClaim))
		require.InDelta(b, 600, len(b.calls(callSwitches)), 2, "switches are read each second")

		b.db.add(1, 0)
		b.pass(time.Second)
		require.Zero(b, b.db.left(), "a timer of which nobody told waits for a second at most")
	})
}

func TestATimerIsFiredWhenItIsDue(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.add(1, 2300*ms)
		b.start()
		b.pass(2299 * ms)
		require.Empty(b, b.calls(callClaim), "not before its instant")
		b.pass(ms)
		require.Zero(b, b.db.left())
		require.Equal(b, []string{"q/p 1"}, b.announced)
	})
}

func TestAHintEndsThePause(t *testing.T) {
	t.Parallel()
	for name, skew := range map[string]time.Duration{"same clock": 0, "an hour behind the database": time.Hour, "an hour ahead of it": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Defaults(), func(b *bubble) {
				b.db.skew = skew
				b.start()
				b.pass(100 * ms)
				probes := len(b.calls(callDue))
				b.db.add(1, 300*ms)
				b.s.Due(b.db.now().Add(300 * ms))
				b.pass(299 * ms)
				require.Len(b, b.calls(callDue), probes)
				b.pass(ms)
				require.Zero(b, b.db.left())
			})
		})
	}
}

func TestHintsOfLaterInstantsChangeNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.start()
		probes := len(b.calls(callDue))
		for i := range 1000 {
			b.s.Due(b.db.now().Add(7*24*time.Hour + time.Duration(i)))
		}
		b.pass(999 * ms)
		require.Len(b, b.calls(callDue), probes)
	})
}

func TestHintsCannotMakeASpin(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.start()
		for range 1000 {
			b.s.Due(time.Time{})
			b.s.Due(b.db.now().Add(-time.Hour))
			b.pass(ms)
		}
		require.LessOrEqual(b, len(b.calls(callDue)), 1000/5+2)
	})
}

func TestAHintDuringACycleIsNotLost(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callDue] = 100 * ms
		b.start()
		b.pass(100*ms + time.Second + 50*ms) // in the middle of the second probe
		require.Len(b, b.calls(callDue), 2)
		b.db.set(func(f *fakeDB) { f.cost[callDue] = 0 })
		b.s.Due(b.db.now())
		b.pass(55 * ms)
		require.Len(b, b.calls(callDue), 3)
	})
}

func TestAnEmptyClaimBacksOffWithJitter(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.stealing = true
		b.db.add(1, 0)
		b.start()
		b.pass(time.Minute)
		probes := b.calls(callDue)
		require.Less(b, len(probes), 20*60, "no spin")
		require.Len(b, b.calls(callClaim), len(probes))
		seen := map[time.Duration]bool{}
		for i := 1; i < len(probes); i++ {
			gap := probes[i] - probes[i-1]
			require.GreaterOrEqual(b, gap, 25*ms)
			require.LessOrEqual(b, gap, 200*ms)
			seen[gap] = true
		}
		require.Greater(b, len(seen), 100, "sweepers do not move in step")
	})
}

func TestAHintWithinAnEmptyClaimWaitsForItsBand(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.EmptyClaimMin, cfg.EmptyClaimMax = 100*ms, 100*ms
	inBubble(t, cfg, func(b *bubble) {
		b.db.stealing = true
		b.db.add(1, 0)
		b.start()
		for range 1000 {
			b.s.Due(b.db.now())
			b.pass(ms)
		}
		require.InDelta(b, 10, len(b.calls(callDue)), 1)
	})
}

func TestABacklogIsDrainedWithTheLeastPauses(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.add(6000, 0)
		b.start()
		b.pass(10 * ms)
		require.Zero(b, b.db.left())
		require.Equal(b, []time.Duration{0, 5 * ms, 10 * ms}, b.calls(callDue), "a cycle of 5000, the rest, and a look")
		sizes := b.db.sizes(callClaim)
		require.Equal(b, 200, sizes[0])
		require.Len(b, b.calls(callFire), 6, "five claims for each fire")
	})
}

func TestACycleTakesNoMoreThanItsRows(t *testing.T) {
	t.Parallel()
	for limit, claims := range map[int][]int{500: {200, 200, 100}, 501: {200, 200, 101}, 200: {200}, 199: {199}, 1: {1}} {
		cfg := Defaults()
		cfg.CycleMaxRows = limit
		inBubble(t, cfg, func(b *bubble) {
			b.db.add(1000, 0)
			report, _ := b.s.cycle(b.Context())
			require.Equal(b, limit, report.Fired)
			require.Equal(b, claims, b.db.sizes(callClaim))
		})
	}
}

func TestClaimingStopsAfterHalfOfTheLease(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.Lease, cfg.ClaimBatch, cfg.CycleMaxRows = 10*time.Second, 10, 100_000
	inBubble(t, cfg, func(b *bubble) {
		b.db.cost[callFire] = 2 * time.Second
		b.db.add(10_000, 0)
		began := time.Now()
		report, _ := b.s.cycle(b.Context())
		claims := b.calls(callClaim)
		require.Less(b, claims[len(claims)-1], 5*time.Second)
		require.GreaterOrEqual(b, time.Since(began), 5*time.Second)
		require.Equal(b, report.Claimed, report.Fired, "what was claimed is fired")
		require.Zero(b, report.Stale)
	})
}

func TestClaimsRunAheadOfTheFireByOneBatch(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callFire], b.db.cost[callClaim] = 50*ms, 10*ms
		b.db.add(3000, 0)
		_, _ = b.s.cycle(b.Context())
		require.Equal(b, []time.Duration{50 * ms, 100 * ms, 150 * ms}, b.calls(callFire))
		require.Less(b, b.at(), 3*50*ms+3*50*ms)
	})
}

func TestSlowClaimsAreNotGatheredForLong(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callClaim] = 60 * ms
		b.db.add(1000, 0)
		_, _ = b.s.cycle(b.Context())
		require.Equal(b, 120*ms, b.calls(callFire)[0], "two claims and no more")
	})
}

func TestTheFireIsSwitchedOffAndOn(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	inLoggedBubble(t, Defaults(), log, func(b *bubble) {
		b.start()
		b.pass(500 * ms)
		b.db.set(func(f *fakeDB) { f.fireOff = true })
		b.pass(time.Second)
		b.db.add(3, 0)
		b.pass(time.Minute)
		require.Equal(b, 3, b.db.left(), "nothing is claimed, and nothing lost")
		require.Empty(b, b.calls(callClaim))
		require.InDelta(b, 61, len(b.calls(callDue)), 3, "the probe goes on, at rest")
		require.InDelta(b, 61, len(b.calls(callExpire)), 3, "and so does the prune")
		require.Equal(b, 1, strings.Count(lines.String(), "switch was flipped"), "one line for a flip")
		require.Contains(b, lines.String(), "switch=timersFire enabled=false")

		b.db.set(func(f *fakeDB) { f.fireOff = false })
		b.pass(time.Second)
		require.Zero(b, b.db.left())
		require.Equal(b, []string{"t0000", "t0001", "t0002"}, b.db.fired, "the oldest first")
		require.Equal(b, 2, strings.Count(lines.String(), "switch was flipped"))
	})
}

func TestAKickHasTheSwitchesReadAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.start()
		b.pass(300 * ms)
		b.db.set(func(f *fakeDB) { f.fireOff = true })
		b.s.Kick()
		b.pass(10 * ms)
		require.False(b, b.s.switches.fire())
		reads := len(b.calls(callSwitches))
		for range 100 {
			b.s.Kick()
			b.pass(ms)
		}
		require.LessOrEqual(b, len(b.calls(callSwitches)), reads+12, "kicks cannot make a spin")
		b.db.add(1, 0)
		b.db.set(func(f *fakeDB) { f.fireOff = false })
		b.s.Kick()
		b.pass(20 * ms)
		require.Zero(b, b.db.left(), "what has waited does not wait for the next probe")
	})
}

func TestSwitchingOffEndsADrain(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callFire] = 900 * ms
		b.db.add(5000, 0)
		b.start()
		b.db.set(func(f *fakeDB) { f.fireOff = true })
		b.pass(5 * time.Second)
		require.Len(b, b.db.fired, 2000+1000, "what was claimed by then")
		require.Equal(b, 2000, b.db.left())
	})
}

func TestSwitchesThatCannotBeReadStayAsTheyWere(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, _ int) error {
				if call == callSwitches {
					return errMissing
				}
				return nil
			}
		})
		b.db.add(1, 0)
		b.start()
		b.pass(time.Second)
		require.Zero(b, b.db.left())
	})
}

func TestADatabaseThatIsAwayIsAskedLessAndLess(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.set(func(f *fakeDB) { f.fault = func(string, int) error { return errGone } })
		b.start()
		b.pass(10 * time.Second)
		probes := b.calls(callDue)
		require.Less(b, len(probes), 25)
		require.Equal(b, time.Second, probes[len(probes)-1]-probes[len(probes)-2])

		b.db.set(func(f *fakeDB) { f.fault = nil })
		b.db.add(1, 0)
		b.pass(time.Second)
		require.Zero(b, b.db.left())
	})
}

func TestPressureShedsTheUpkeepAndNeverTheFire(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, _ int) error {
				if call == callFire {
					return errDeadlock
				}
				return nil
			}
		})
		b.db.add(100, 0)
		for range 20 {
			_, r := b.s.cycle(b.Context())
			b.pass(b.s.cfg.sleep(r))
			b.pass(time.Second) // the backoff
		}
		require.Equal(b, pressureMax, b.s.pressure.level)
		require.GreaterOrEqual(b, len(b.calls(callFire)), 20, "it is tried in every cycle")
		sizes := b.db.sizes(callClaim)
		require.Equal(b, []int{200, 8}, []int{sizes[0], sizes[len(sizes)-1]})
		require.True(b, slices.IsSortedFunc(sizes, func(x, y int) int { return y - x }), "its claims shrink: %v", sizes)
	})
}

func TestTheUpkeepRunsBesideTheLoop(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callMeasure] = 4 * time.Second
		b.start()
		b.pass(time.Second + 500*ms)
		b.db.add(1, 0)
		b.s.Due(b.db.now())
		b.pass(10 * ms)
		require.Zero(b, b.db.left(), "a rollup of seconds holds up no fire")
		require.Empty(b, b.calls(callExpire), "one thing at a time, the rollup first")
		b.pass(3 * time.Second)
		require.NotEmpty(b, b.calls(callExpire))
	})
}

func TestAMissingProcedureSwitchesThePruneOff(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	inLoggedBubble(t, Defaults(), log, func(b *bubble) {
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, _ int) error {
				if call == callExpire {
					return errMissing
				}
				return nil
			}
		})
		b.start()
		b.pass(time.Minute)
		require.Len(b, b.calls(callExpire), 1)
		require.Equal(b, 1, strings.Count(lines.String(), "part of the upkeep is off"))
		b.db.add(1, 0)
		b.pass(time.Second)
		require.Zero(b, b.db.left())
	})
}

func TestTheFireIsNeverSwitchedOffByErrors(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, _ int) error {
				if call == callFire || call == callClaim {
					return errMissing
				}
				return nil
			}
		})
		b.db.add(1, 0)
		b.start()
		b.pass(time.Hour)
		require.Greater(b, len(b.calls(callClaim)), 3000, "each second, at the least")
		b.db.set(func(f *fakeDB) { f.fault = nil })
		b.pass(time.Second)
		require.Zero(b, b.db.left())
	})
}

func TestAStopFinishesTheFireAndGivesTheRestBack(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callFire] = 2 * time.Second
		b.db.add(3000, 0)
		b.start()
		b.pass(time.Second) // 1000 are being fired, 1000 more are claimed
		began := time.Now()
		b.stop()
		require.Equal(b, time.Second, time.Since(began), "no longer than the fire")
		require.Len(b, b.db.fired, 1000)
		for _, f := range b.db.timers {
			require.False(b, f.held)
			require.False(b, f.visible().After(b.db.now()), "others may take it at once")
			require.Zero(b, f.Attempts)
		}
	})
}

func TestAStopDoesNotWaitForeverForAFire(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.cost[callFire] = time.Hour
		b.db.add(2000, 0)
		b.start()
		b.pass(time.Second)
		began := time.Now()
		b.stop()
		require.Equal(b, StopGrace, time.Since(began))
		require.Len(b, b.db.timers, 2000)
		for _, f := range b.db.timers {
			require.False(b, f.held)
		}
	})
}

func TestOnceDrainsAndKeepsUp(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.add(12_000, 0)
		b.db.add(1, time.Hour)
		b.db.set(func(f *fakeDB) { f.expired = 2500 })
		report, err := b.s.Once(b.Context())
		require.NoError(b, err)
		require.Equal(b, []int{2000, 12_000, 12_000, 2500}, []int{report.Due, report.Claimed, report.Fired, report.Pruned})
		require.True(b, report.DueCapped)
		require.Equal(b, 1, b.db.left())
		require.Len(b, b.calls(callMeasure), 1)
	})
}

func TestOnceObeysTheSwitch(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.add(1, 0)
		b.db.set(func(f *fakeDB) { f.fireOff, f.expired = true, 1 })
		report, err := b.s.Once(b.Context())
		require.NoError(b, err)
		require.True(b, report.FireOff)
		require.Equal(b, []int{1, 0, 1}, []int{report.Due, report.Claimed, report.Pruned})
	})
}

func TestOnceReportsWhatFails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{callSwitches, callDue, callClaim, callFire, callMeasure, callExpire} {
		inBubble(t, Defaults(), func(b *bubble) {
			b.db.add(1, 0)
			b.db.set(func(f *fakeDB) {
				f.fault = func(name string, _ int) error {
					if name == call {
						return errGone
					}
					return nil
				}
			})
			_, err := b.s.Once(b.Context())
			require.ErrorIs(b, err, errGone, call)
		})
	}
}

func TestWhatWasFiredIsToldOnceAMinute(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	inLoggedBubble(t, Defaults(), log, func(b *bubble) {
		b.start()
		b.pass(90 * time.Second)
		require.NotContains(b, lines.String(), "level=INFO", "nothing was fired")
		for range 150 {
			b.db.add(1, 0)
			b.pass(time.Second)
		}
		require.Equal(b, 3, strings.Count(lines.String(), "timers were fired"))
		require.Contains(b, lines.String(), "fired=60 ")
		b.stop()
		b.cancel = nil
		require.Equal(b, 4, strings.Count(lines.String(), "timers were fired"), "the rest at the end")
	})
}

func TestSweepersBeginAtShardsOfTheirOwnAndMoveOn(t *testing.T) {
	t.Parallel()
	firsts := map[int]bool{}
	for range 50 {
		inBubble(t, Defaults(), func(b *bubble) {
			firsts[b.s.first] = true
			before := b.s.first
			_, _ = b.s.cycle(b.Context())
			require.Equal(b, (before+1)%store.SweepShards, b.s.first)
		})
	}
	require.Greater(t, len(firsts), 10)
}

func TestBellRingsForWhatIsSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBell()
		rung := func() bool {
			select {
			case <-b.ring:
				return true
			default:
				return false
			}
		}
		now := time.Now()
		database := now.Add(100 * time.Hour)
		b.probed(database)
		require.Equal(t, now.Add(time.Second), b.until(now.Add(time.Second), now))
		b.due(database.Add(2 * time.Second))
		require.False(t, rung(), "later than promised")
		b.due(database.Add(time.Second))
		require.False(t, rung(), "as promised")
		b.due(database.Add(999 * ms))
		require.True(t, rung())
		require.Equal(t, now.Add(999*ms), b.until(now.Add(time.Second), now))
		b.due(database.Add(-1000 * time.Hour))
		require.True(t, rung())
		require.Equal(t, now.Add(5*ms), b.until(now.Add(time.Second), now.Add(5*ms)), "not before the least")
		b.probing()
		require.Equal(t, now.Add(time.Second), b.until(now.Add(time.Second), now), "the probe saw what was hinted at")
	})
}

func TestLastingOutlivesItsParent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancel(t.Context())
		ctx, cancel := lasting(parent, time.Second)
		defer cancel()
		time.Sleep(time.Hour) // of the bubble's clock
		require.NoError(t, ctx.Err())
		end()
		time.Sleep(999 * ms)
		synctest.Wait()
		require.NoError(t, ctx.Err())
		time.Sleep(ms)
		synctest.Wait()
		require.Error(t, ctx.Err())
	})
}
