package timers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestBackoffDoublesWithFullJitter(t *testing.T) {
	t.Parallel()
	const almost = 1 - 1e-12
	for failures, most := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 5: 32 * time.Second, 6: time.Minute, 1000: time.Minute,
	} {
		require.Equal(t, time.Second, backoff(time.Second, time.Minute, failures, 0), "%d failures, least", failures)
		require.InDelta(t, most, backoff(time.Second, time.Minute, failures, almost), 1e3, "%d failures, most", failures)
	}
	require.Equal(t, 1500*ms, backoff(time.Second, time.Minute, 1, 0.5))
	require.Equal(t, time.Second, backoff(time.Second, time.Second, 9, almost), "a band without a width")
}

// failing makes a call fail as long as it is asked to.
func (b *bubble) failing(call string, err error) {
	b.db.set(func(f *fakeDB) {
		f.fault = func(name string, _ int) error {
			if name == call {
				return err
			}
			return nil
		}
	})
}

func (b *bubble) attempts() (out []int) {
	b.db.set(func(f *fakeDB) {
		for _, t := range f.timers {
			out = append(out, t.Attempts)
		}
	})
	return out
}

func (b *bubble) failures() (out []store.TimerFailure) {
	b.db.set(func(f *fakeDB) { out = slices.Clone(f.failures) })
	return out
}

func TestATransientFailureSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.TransientBackoff = 700 * ms
	inBubble(t, cfg, func(b *bubble) {
		b.failing(callFire, errDeadlock)
		b.db.add(3, 0)
		report, r := b.s.cycle(b.Context())
		require.Equal(b, []int{3, 3, 0}, []int{report.Claimed, report.Failed, report.Fired})
		require.Equal(b, []int{0, 0, 0}, b.attempts())
		require.Equal(b, 700*ms, b.failures()[0].Backoff)
		require.True(b, r.work)
		require.Equal(b, 1, r.pressure)

		b.db.set(func(f *fakeDB) { f.fault = nil })
		b.pass(699 * ms)
		report, _ = b.s.cycle(b.Context())
		require.Zero(b, report.Claimed)
		b.pass(ms)
		report, _ = b.s.cycle(b.Context())
		require.Equal(b, 3, report.Fired)
	})
}

func TestAPermanentFailureEndsAmongTheDeadLetters(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 2, 5} {
		cfg := Defaults()
		cfg.MaxAttempts = attempts
		inBubble(t, cfg, func(b *bubble) {
			b.db.poison = "t0000"
			b.db.add(1, 0)
			b.start()
			for n := 1; n < attempts; n++ {
				for len(b.failures()) < n {
					b.pass(10 * ms)
				}
				require.Equal(b, []int{n}, b.attempts())
				require.Empty(b, b.calls(callDeadLetter))
			}
			b.pass(5 * time.Minute)
			require.Len(b, b.failures(), attempts)
			for n, f := range b.failures() {
				require.False(b, f.Transient)
				require.Equal(b, errRefused.Error(), f.Error)
				require.GreaterOrEqual(b, f.Backoff, time.Second)
				require.LessOrEqual(b, f.Backoff, min(time.Second<<(n+1), time.Minute))
			}
			require.Equal(b, []store.TimerLetter{{
				TimerKey: store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: "t0000"}, Payload: []byte(`{}`), Error: errRefused.Error(),
			}}, b.db.letters)
			require.Zero(b, b.db.left())
			require.Empty(b, b.announced)
		})
	}
}

func TestADeadLetterThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errDeadlock, errRefused} {
		cfg := Defaults()
		cfg.MaxAttempts = 1
		inBubble(t, cfg, func(b *bubble) {
			b.db.poison = "t0000"
			b.failing(callDeadLetter, err)
			b.db.add(1, 0)
			b.start()
			b.pass(5 * time.Minute)
			require.Greater(b, len(b.calls(callDeadLetter)), 3)
			require.Equal(b, 1, b.db.left(), "it is not lost")
			b.db.set(func(f *fakeDB) { f.fault = nil })
			b.pass(2 * time.Minute)
			require.Zero(b, b.db.left())
		})
	}
}

func TestOnlyThePoisonedTimerPays(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.poison = "t0004"
		b.db.add(20, 0)
		for i, f := range b.db.timers {
			f.Partition = fmt.Sprint("p", i%4)
		}
		report, r := b.s.cycle(b.Context())
		require.Equal(b, []int{20, 19, 1}, []int{report.Claimed, report.Fired, report.Failed})
		require.Equal(b, []int{1}, b.attempts())
		require.Len(b, b.calls(callFire), 1+4+5, "all, each segment, each timer of the one that fails")
		require.Equal(b, 4+4, len(b.announced)+1)
		require.Zero(b, r.pressure, "the database is well")
	})
}

func TestWithoutIsolationAllOfTheFirePay(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.IsolateOnPermanent = false
	inBubble(t, cfg, func(b *bubble) {
		b.db.poison = "t0004"
		b.db.add(5, 0)
		report, _ := b.s.cycle(b.Context())
		require.Equal(b, 5, report.Failed)
		require.Equal(b, []int{1, 1, 1, 1, 1}, b.attempts())
		require.Len(b, b.calls(callFire), 1)
	})
}

func TestTroubleEndsAnIsolation(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.poison = "t0009"
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, n int) error {
				if call == callFire && n >= 4 {
					return errDeadlock
				}
				return nil
			}
		})
		b.db.add(10, 0)
		report, _ := b.s.cycle(b.Context())
		require.Equal(b, 2, report.Fired)
		require.Len(b, b.calls(callFire), 4, "the others are not tried")
		require.Equal(b, slices.Repeat([]int{0}, 8), b.attempts())
		for _, f := range b.db.timers {
			require.False(b, f.held)
			require.Equal(b, b.db.now().Add(time.Second), f.until)
		}
	})
}

// A schema that lacks what the fire needs is no fault of the timers.
func TestAMisconfigurationCountsAndDeadLettersNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.failing(callFire, errMissing)
		b.db.add(2, 0)
		b.start()
		b.pass(20 * time.Minute)
		require.Greater(b, b.attempts()[0], 8)
		require.Empty(b, b.calls(callDeadLetter))
		require.False(b, b.failures()[0].Transient)
		b.db.set(func(f *fakeDB) { f.fault = nil })
		b.pass(2 * time.Minute)
		require.Zero(b, b.db.left(), "they fire once the schema is repaired")
	})
}

func TestALostAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]bool{"the fire had committed": true, "the fire had not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Defaults(), func(b *bubble) {
				lose := func(name string) error {
					if name == callFire {
						return errGone
					}
					return nil
				}
				if committed {
					b.db.after = lose
				} else {
					b.failing(callFire, errGone)
				}
				b.db.add(3, 0)
				report, r := b.s.cycle(b.Context())
				require.Len(b, b.calls(callFire), 1)
				require.Equal(b, []string{"q/p 3"}, b.announced, "consumers look, whatever became of it")
				require.Equal(b, 1, r.pressure)
				if committed {
					require.Equal(b, []int{3, 0}, []int{report.Fired, report.Failed})
					return
				}
				require.Equal(b, []int{0, 3}, []int{report.Fired, report.Failed})
				require.Equal(b, []int{0, 0, 0}, b.attempts())
				b.db.set(func(f *fakeDB) { f.fault = nil })
				b.pass(time.Second)
				_, _ = b.s.cycle(b.Context())
				require.Zero(b, b.db.left())
			})
		})
	}
}

func TestTimersThatCannotBeGivenBackWaitForTheirLease(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, n int) error {
				if call == callFire && n == 1 || call == callFail {
					return errGone
				}
				return nil
			}
		})
		b.db.add(3, 0)
		b.start()
		b.pass(29 * time.Second)
		require.Equal(b, 3, b.db.left())
		b.pass(1100 * ms)
		require.Zero(b, b.db.left())
	})
}

func TestAStaleSegmentIsGivenBackAndLeftToOthersForAWhile(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.db.add(3, 0)
		b.db.set(func(f *fakeDB) {
			f.fault = func(call string, _ int) error {
				if call == callFire {
					f.set(func(f *fakeDB) { f.timers = f.timers[1:] }) // somebody else's, by now
				}
				return nil
			}
		})
		report, r := b.s.cycle(b.Context())
		require.Equal(b, []int{3, 0}, []int{report.Stale, report.Fired})
		require.True(b, r.missed, "the pause is that of an empty claim")
		require.Empty(b, b.announced)
		for _, f := range b.db.timers {
			require.False(b, f.held)
			require.False(b, f.visible().After(b.db.now()))
			require.Zero(b, f.Attempts)
		}
	})
}

func TestLargeTimersAreClaimedFewAtATime(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.MaxFireBytes = 1 << 20
	inBubble(t, cfg, func(b *bubble) {
		b.db.add(500, 0)
		for _, f := range b.db.timers {
			f.Payload = []byte(`"` + string(make([]byte, 64<<10)) + `"`)
		}
		report, _ := b.s.cycle(b.Context())
		require.Equal(b, 500, report.Fired)
		sizes := b.db.sizes(callClaim)
		require.Equal(b, []int{200, 15, 15}, sizes[:3], "as many as one fire may hold")
	})
}

// What was claimed with one that takes long to pack is not held until it is packed.
func TestTimersThatABatchHasNoTimeForAreGivenBackAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		b.s.loader.time = 0 // for one timer each
		b.db.add(5, 0)
		for _, f := range b.db.timers {
			f.PayloadZstd, f.Payload = true, squeezed(b.T, "7")
		}
		report, _ := b.s.cycle(b.Context())
		require.Equal(b, []int{5, 0, 0}, []int{report.Fired, report.Stale, report.Failed})
		require.Equal(b, []string{"t0000", "t0001", "t0002", "t0003", "t0004"}, b.db.fired)
		require.Len(b, b.db.failures, 4)
		for _, f := range b.db.failures {
			require.True(b, f.Transient)
			require.Zero(b, f.Backoff)
		}
	})
}

func TestEveryKnobOfAClaimIsPassedOn(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.ClaimBatch, cfg.DueCap, cfg.ExpireBatch = 17, 33, 44
	inBubble(t, cfg, func(b *bubble) {
		b.db.add(100, 0)
		_, err := b.s.Once(b.Context())
		require.NoError(b, err)
		require.Equal(b, 17, b.db.sizes(callClaim)[0])
		require.Equal(b, 33, b.db.sizes(callDue)[0])
		require.Equal(b, 44, b.db.sizes(callExpire)[0])
	})
}
