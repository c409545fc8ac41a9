package retention

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
)

// busy gives every phase something to do.
func (b *bench) busy() (*fakeQueue, []*fakeLane) {
	q := b.queue(fakeQueue{completed: time.Hour, maxWait: 6 * time.Hour})
	lanes := b.lanes(q, 3, 5, 2*time.Hour)
	lanes[0].consumed = 4
	lanes[1].segments[0] = time.Now().Add(-7 * time.Hour)
	lanes[2].txns = slices.Clone(lanes[2].segments)
	b.db.dead, b.db.wrong, b.db.metrics = 7, 3, 11
	return q, lanes
}

func TestPhasesRunInTheirOrderUnderTheLock(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.busy()
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		var names []string
		for _, c := range b.db.named() {
			names = append(names, c.name)
			require.Same(t, b.db.calls[0].session, c.session, "all on the connection that holds the lock")
		}
		require.Equal(t, []string{
			"TryLock", "Plan", "NextEviction",
			"RetentionPage", "RetentionStep",
			"TxnsPage", "TxnsStep",
			"EvictPage", "EvictStep", "NextEviction",
			"ClockDue", "CleanupStep",
			"PurgeMetrics",
			"ClockDue", "Position", "WalkStep deep", "SetPosition", "Position", "WalkStep", "WalkStep", "SetPosition",
			"Unlock",
		}, names)
		require.Equal(t, Phase{Name: PhaseRetention, Queues: 1, Lanes: 1, Segments: 4, Messages: 40, Bytes: 400, Held: 2}, report.Phase(PhaseRetention))
		require.Equal(t, Phase{Name: PhaseTxns, Queues: 1, Lanes: 1, Rows: 5}, report.Phase(PhaseTxns))
		require.Equal(t, Phase{Name: PhaseEviction, Queues: 1, Lanes: 1, Segments: 1, Messages: 10, Bytes: 100}, report.Phase(PhaseEviction))
		require.EqualValues(t, 7, report.Phase(PhaseCleanup).Rows)
		require.EqualValues(t, 11, report.Phase(PhaseMetrics).Rows)
		require.EqualValues(t, 3, report.Phase(PhaseWalk).Rows)
		require.Equal(t, []Queue{{ID: numbered(1), Name: "q", Segments: 4, Messages: 40, Bytes: 400, Evicted: 10, SidecarRows: 5, Held: 2}}, report.Queues)
		require.True(t, report.Deleted())
	})
}

func TestCycleWithNothingDueLooksAtNoLane(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.lanes(b.queue(fakeQueue{}), 10, 10, 30*24*time.Hour) // no policy
		b.run(90 * time.Second)
		require.Empty(t, b.db.named("RetentionPage", "RetentionStep", "TxnsPage", "TxnsStep", "EvictPage", "EvictStep"))
	})
}

func TestCadenceIsFromStartToStart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		takes time.Duration
		want  []time.Duration
	}{
		"idle":             {0, []time.Duration{0, 5 * time.Second, 10 * time.Second}},
		"takes a while":    {1500 * time.Millisecond, []time.Duration{0, 5 * time.Second, 10 * time.Second}},
		"takes all of it":  {5 * time.Second, []time.Duration{0, 5 * time.Second, 10 * time.Second}},
		"overruns its end": {7 * time.Second, []time.Duration{0, 7 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, b *bench) {
				b.db.cost["Plan"] = tc.takes
				b.run(13 * time.Second)
				require.Equal(t, tc.want, since(b.began, b.db.named("TryLock"))[:len(tc.want)])
			})
		})
	}
}

func TestAnOverrunDoesNotAddUp(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "Plan" && time.Since(b.began) < time.Second {
				time.Sleep(12 * time.Second) // the first cycle only
			}
			return nil
		}
		b.run(28 * time.Second)
		require.Equal(t, []time.Duration{0, 12 * time.Second, 17 * time.Second, 22 * time.Second, 27 * time.Second}, since(b.began, b.db.named("TryLock")))
	})
}

func TestReplicaWithoutTheLockSkipsTheCycle(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.busy()
		other := &fakeSession{db: b.db}
		b.db.holder = other
		_, err := b.Once(t.Context())
		require.ErrorIs(t, err, ErrNotLeader)
		ctx, cancel := context.WithTimeout(t.Context(), 28*time.Second)
		defer cancel()
		require.NoError(t, b.Run(ctx))
		require.Len(t, b.db.named(), 7)
		require.Len(t, b.db.named("TryLock"), 7)
		require.NotContains(t, b.lines.String(), "ERROR")
		require.Same(t, other, b.db.holder)
	})
}

func TestAnotherReplicaTakesOver(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		other := &fakeSession{db: b.db}
		b.db.holder = other
		go func() {
			time.Sleep(21 * time.Second)
			other.Close(t.Context()) // killed
		}()
		b.run(28 * time.Second)
		require.Equal(t, []time.Duration{25 * time.Second}, since(b.began, b.db.named("Plan")))
	})
}

// TestNoTwoReplicasWorkAtATime runs several over one database.
func TestNoTwoReplicasWorkAtATime(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{2, 3} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			bubble(t, Config{Interval: 100 * time.Millisecond}, func(t *testing.T, b *bench) {
				b.lanes(b.queue(fakeQueue{all: time.Hour}), 100, 100, 2*time.Hour)
				b.db.cost["RetentionStep"], b.db.cost["Plan"] = 7*time.Millisecond, 3*time.Millisecond
				b.db.hook = func(string) error { return nil }
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				done := make(chan error)
				for range replicas {
					log, _ := logtest.NewRecorder()
					r := newReplica(t, b.cfg, b.db, log)
					go func() { done <- r.Run(ctx) }()
				}
				for range replicas {
					require.NoError(t, <-done)
				}
				var holder *fakeSession
				var seen []*fakeSession
				for _, c := range b.db.named() {
					switch c.name {
					case "TryLock":
						continue
					case "Plan":
						holder = c.session
						if !slices.Contains(seen, holder) {
							seen = append(seen, holder)
						}
					}
					require.Same(t, holder, c.session, "%s beside another cycle", c.name)
				}
				require.NotEmpty(t, seen)
				require.Zero(t, b.db.queues[0].left())
			})
		})
	}
}

// everyCall are the calls of a cycle in which all phases have something to do.
func everyCall(t *testing.T) []string {
	t.Helper()
	var names []string
	synctest.Test(t, func(t *testing.T) {
		log, _ := logtest.NewRecorder()
		db := newDatabase()
		b := &bench{Retention: newReplica(t, Config{Cleanup: true}, db, log), t: t, db: db}
		b.busy()
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		for _, c := range db.named() {
			if !slices.Contains(names, c.name) {
				names = append(names, c.name)
			}
		}
	})
	return names
}

func TestLockIsGivenBackAfterAnErrorAnywhere(t *testing.T) {
	t.Parallel()
	for _, name := range everyCall(t) {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
				_, lanes := b.busy()
				b.db.hook = func(call string) error {
					if call == name && time.Since(b.began) < time.Second {
						return errLost
					}
					return nil
				}
				b.run(4 * time.Second)
				require.False(t, b.db.locked())
				calls := b.db.named()
				if name != "TryLock" {
					require.Equal(t, "Unlock", calls[len(calls)-1].name, "tried on every exit path")
				}
				log := b.lines.String()
				switch name {
				case "PurgeMetrics":
					require.Contains(t, log, "metrics were not purged")
					require.NotContains(t, log, "level=ERROR", "no failure of the cycle")
				case "Unlock":
					require.Contains(t, log, "level=WARN")
					require.Contains(t, log, "retention lock was not released")
					require.NotContains(t, log, "level=ERROR", "no failure of the cycle")
				default:
					require.Contains(t, log, "level=ERROR")
				}
				b.run(4 * time.Second) // and the next cycle works
				require.Len(t, lanes[0].segments, 1)
				require.Len(t, lanes[1].segments, 4)
				require.Empty(t, lanes[2].txns)
			})
		})
	}
}

func TestLeaderThatLosesItsSessionStopsAtOnce(t *testing.T) {
	t.Parallel()
	for _, name := range everyCall(t) {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
				b.busy()
				b.db.hook = func(call string) error {
					if call == name && b.db.opened == 1 {
						b.db.mu.Lock()
						s := b.db.calls[0].session
						b.db.mu.Unlock()
						s.Close(t.Context()) // terminated by the server
						return errLost
					}
					return nil
				}
				b.run(4 * time.Second)
				calls := b.db.named()
				i := slices.IndexFunc(calls, func(c call) bool { return c.name == name })
				var after []string
				for _, c := range calls[i+1:] {
					if c.session == calls[i].session {
						after = append(after, c.name)
					}
				}
				switch name {
				case "TryLock", "Unlock":
					require.Empty(t, after)
				default:
					require.Equal(t, []string{"Unlock"}, after)
				}
				b.run(4 * time.Second)
				opened := b.db.named("TryLock")
				require.NotSame(t, calls[0].session, opened[len(opened)-1].session, "the next cycle has a connection of its own")
			})
		})
	}
}

func TestStopAtAnyPointGivesTheLockBack(t *testing.T) {
	t.Parallel()
	for _, name := range everyCall(t) {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
				b.busy()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b.db.hook = func(call string) error {
					if call == name {
						cancel()
					}
					return nil
				}
				require.NoError(t, b.Run(ctx))
				require.False(t, b.db.locked())
				require.Less(t, time.Since(b.began), time.Second)
				require.NotContains(t, b.lines.String(), "level=ERROR")
				require.NotContains(t, b.lines.String(), "level=WARN msg=\"retention lock")
			})
		})
	}
}

func TestStopWhileWaitingEndsAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.run(7 * time.Second)
		require.Equal(t, 7*time.Second, time.Since(b.began))
		for _, c := range b.db.calls {
			require.Equal(t, b.db.calls[0].session, c.session, "one connection serves many cycles")
		}
	})
}

func TestConnectionLostBetweenCyclesCostsNone(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		go func() {
			time.Sleep(7 * time.Second)
			b.db.named("Plan")[0].session.Close(t.Context())
		}()
		b.run(13 * time.Second)
		require.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second}, since(b.began, b.db.named("Plan")))
		require.Equal(t, 2, b.db.opened)
		require.NotContains(t, b.lines.String(), "level=ERROR")
	})
}

func TestDatabaseThatIsDownIsTriedAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.down = errLost
		go func() {
			time.Sleep(12 * time.Second)
			b.db.mu.Lock()
			defer b.db.mu.Unlock()
			b.db.down = nil
		}()
		b.run(18 * time.Second)
		require.Equal(t, []time.Duration{15 * time.Second}, since(b.began, b.db.named("Plan")))
	})
}

func TestCleanupAndWalkHaveTheirOwnClocks(t *testing.T) {
	bubble(t, Config{Cleanup: true, BatchSize: 10}, func(t *testing.T, b *bench) {
		b.db.width = 1 << 30
		b.db.cost["WalkStep deep"] = WalkTime
		b.run(3*time.Minute - time.Second)
		minutes := []time.Duration{0, time.Minute, 2 * time.Minute}
		require.Equal(t, minutes, since(b.began, b.db.named("CleanupStep")))
		require.Equal(t, minutes, since(b.began, b.db.named("WalkStep deep")))
		require.Equal(t, minutes, since(b.began.Add(WalkTime), b.db.named("WalkStep")), "one look, as nothing is wrong")
		require.Len(t, b.db.named("PurgeMetrics"), 36, "in every cycle")
		deep := b.db.named("WalkStep deep")
		require.Equal(t, []int{0, walkLanes, 2 * walkLanes}, []int{laneNumber(deep[0].lane), laneNumber(deep[1].lane), laneNumber(deep[2].lane)})
	})
}

func TestCleanupIsTheSameClockForAllReplicas(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		for range 10 {
			_, err := b.Once(t.Context())
			require.NoError(t, err)
		}
		require.Len(t, b.db.named("CleanupStep"), 1)
		require.Len(t, b.db.named("WalkStep deep"), 1)
	})
}

func TestCleanupSwitchedOff(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.dead = 10
		b.run(3*time.Minute - time.Second)
		require.Empty(t, b.db.named("CleanupStep"))
		require.NotContains(t, b.db.clocks, cleanupClock)
	})
}

func TestCleanupAndWalkGoOnInTheNextCycle(t *testing.T) {
	bubble(t, Config{Cleanup: true, BatchSize: 10}, func(t *testing.T, b *bench) {
		b.db.dead, b.db.wrong = 195, 9500
		b.db.cost["CleanupStep"], b.db.cost["WalkStep"] = 150*time.Millisecond, 300*time.Millisecond
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.True(t, report.Phase(PhaseCleanup).Unfinished)
		require.True(t, report.Phase(PhaseWalk).Unfinished)
		require.LessOrEqual(t, report.Phase(PhaseCleanup).Elapsed, PhaseTime+150*time.Millisecond)
		require.LessOrEqual(t, report.Phase(PhaseWalk).Elapsed, PhaseTime+300*time.Millisecond)
		delete(b.db.clocks, cleanupClock)
		delete(b.db.clocks, walkClock)
		b.run(30 * time.Second)
		require.Zero(t, b.db.dead)
		steps := b.db.named("CleanupStep")
		require.Equal(t, numbered(10), steps[1].lane, "each behind the last")
		require.Zero(t, b.db.wrong)
		require.Len(t, b.db.named("WalkStep deep"), 2, "once a minute, however long the other goes on")
		require.Contains(t, b.lines.String(), "watermarks of partitions were wrong and have been repaired")
	})
}

func TestDeepWalkGoesOnForItsTimeInEveryMinute(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.width = 100_000
		b.db.cost["WalkStep deep"] = 10 * time.Millisecond
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, WalkTime, report.Phase(PhaseWalk).Elapsed)
		require.False(t, report.Phase(PhaseWalk).Unfinished, "it has all the time it needs")
		b.run(20 * time.Minute)
		steps := b.db.named("WalkStep deep")
		require.GreaterOrEqual(t, len(steps), 100, "five thousand lanes a minute")
		for i, c := range steps[:100] {
			require.Equal(t, i*walkLanes, laneNumber(c.lane), "each behind the last")
		}
	})
}

func TestDeepWalkEndsAtTheEnd(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.width = 2*walkLanes + 1
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		require.Len(t, b.db.named("WalkStep deep"), 3)
		require.Equal(t, uuid.Nil, b.db.places[deepPlace], "and begins anew")
	})
}

func TestWalkThatCannotGoOnStartsAnew(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Position", "WalkStep deep"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, b *bench) {
				b.db.width, b.db.wrong = 5*walkLanes, 2
				bad := numbered(3 * walkLanes)
				b.db.places[deepPlace] = bad
				b.db.hook = func(call string) error {
					b.db.mu.Lock()
					defer b.db.mu.Unlock()
					if call == name && b.db.places[deepPlace] == bad {
						return errBroken
					}
					return nil
				}
				report, err := b.Once(t.Context())
				require.ErrorIs(t, err, errBroken)
				require.ErrorContains(t, err, "walk: walk by "+deepPlace)
				require.EqualValues(t, 1, report.Phase(PhaseWalk).Failed)
				require.Zero(t, b.db.wrong, "the other walk is made")
				clear(b.db.clocks)
				_, err = b.Once(t.Context())
				require.NoError(t, err)
				require.Equal(t, uuid.Nil, b.db.places[deepPlace])
			})
		})
	}
}

func TestPurgeGoesOnUntilAPortionIsNotFull(t *testing.T) {
	bubble(t, Config{BatchSize: 10}, func(t *testing.T, b *bench) {
		b.db.metrics = 10 * 1000
		b.db.cost["PurgeMetrics"] = 10 * time.Millisecond
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		p := report.Phase(PhaseMetrics)
		require.Equal(t, PhaseTime, p.Elapsed)
		require.EqualValues(t, 2000, p.Rows)
		require.True(t, p.Unfinished)
		b.run(12 * time.Second) // each cycle at once after the other
		require.Zero(t, b.db.metrics)
		b.db.metrics = 19
		before := len(b.db.named("PurgeMetrics"))
		report, err = b.Once(t.Context())
		require.NoError(t, err)
		require.Len(t, b.db.named("PurgeMetrics"), before+2)
		require.False(t, report.Phase(PhaseMetrics).Unfinished)
	})
}

func TestPhaseThatFailsLeavesTheOthersTheirs(t *testing.T) {
	t.Parallel()
	for name, phase := range map[string]string{
		"RetentionPage": PhaseRetention, "TxnsStep": PhaseTxns, "EvictPage": PhaseEviction,
		"CleanupStep": PhaseCleanup, "WalkStep": PhaseWalk, "NextEviction": "look for the next eviction",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
				b.busy()
				b.db.hook = func(call string) error { return map[bool]error{true: errBroken}[call == name] }
				report, err := b.Once(t.Context())
				require.ErrorIs(t, err, errBroken)
				require.ErrorContains(t, err, phase)
				require.Len(t, report.Phases, 6)
				for _, p := range report.Phases {
					if p.Name == phase {
						require.EqualValues(t, 1, p.Failed, p.Name)
					} else if name != "NextEviction" {
						require.NotZero(t, p.Segments+p.Rows, p.Name)
					}
				}
			})
		})
	}
}

func TestReleaseErrorsAreLoggedOnceInThirtySeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error { return map[bool]error{true: errBroken}[call == "Unlock"] }
		b.run(58 * time.Second)
		lines := b.logged("level=WARN")
		require.Len(t, lines, 2)
		require.Contains(t, lines[0], "retention lock was not released: the statement failed")
		require.Contains(t, lines[1], "time=2000-01-01T00:00:30.000Z")
		require.Contains(t, lines[1], "not_logged=5")
	})
}

func TestReleaseErrorNamesALostConnection(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "NextEviction" {
				b.db.calls[0].session.Close(t.Context())
				return errLost
			}
			return nil
		}
		_, err := b.Once(t.Context())
		require.ErrorIs(t, err, errLost)
		require.Len(t, b.logged("retention lock was not released: its connection was lost in the cycle"), 1)
	})
}

func TestCleanupThatTakesTooLongIsTriedWithLess(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "CleanupStep" || call == "WalkStep deep" || call == "WalkStep" {
				return errSlow
			}
			return nil
		}
		l := b.newLeader()
		report, err := l.cycle(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Phase(PhaseCleanup).TimedOut)
		require.EqualValues(t, 2, report.Phase(PhaseWalk).TimedOut)
		require.Equal(t, BatchSizeDefault/8, l.cleanup.rows)
	})
}
