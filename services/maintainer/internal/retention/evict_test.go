package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEvictionsGetATurnAtTheirInstant(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		b.lanes(q, 1, 1, 3*time.Second)                        // due at 7 s
		b.lanes(q, 1, 1, 10*time.Second-8*time.Second)         // due at 8 s
		b.lanes(q, 1, 1, 10*time.Second-8300*time.Millisecond) // 8.3 s
		b.lanes(q, 1, 1, -4*time.Second)                       // 14 s
		b.run(16 * time.Second)
		var turns []time.Duration
		for _, at := range since(b.began, b.db.named("EvictStep")) {
			turns = append(turns, at-evictionSlack)
		}
		require.Equal(t, []time.Duration{7 * time.Second, 8 * time.Second, 9 * time.Second, 14 * time.Second}, turns, "at most one a second")
		require.Zero(t, q.left())
		require.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second},
			since(b.began, b.db.named("PurgeMetrics")), "the cadence stays")
	})
}

func TestTurnOfTheEvictionIsThatPhaseAlone(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.lanes(b.queue(fakeQueue{maxWait: 2 * time.Second}), 1, 1, 0)
		b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1, time.Hour-time.Second)
		b.run(4 * time.Second)
		var names []string
		for _, c := range b.db.named() {
			if c.at.After(b.began) {
				names = append(names, c.name)
			}
		}
		require.Equal(t, []string{"TryLock", "Plan", "EvictPage", "EvictStep", "NextEviction", "Unlock"}, names)
	})
}

func TestTurnsAreToldWithTheNextCycle(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		for i := range 4 {
			b.lanes(q, 1, 1, 9*time.Second-time.Duration(i)*time.Second)
		}
		b.run(6 * time.Second)
		lines := b.logged("msg=swept")
		require.Len(t, lines, 2)
		require.Contains(t, lines[1], "level=INFO msg=swept queues=1 segments_deleted=0 txns_purged=0 max_wait_evicted=4 ")
		require.Contains(t, lines[1], "due=4 ")
	})
}

func TestReplicaWithoutTheLockMakesNoTurns(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.lanes(b.queue(fakeQueue{maxWait: 10 * time.Second}), 1, 1, 8*time.Second)
		go func() {
			time.Sleep(time.Second)
			b.db.mu.Lock()
			b.db.holder = &fakeSession{db: b.db}
			b.db.mu.Unlock()
			time.Sleep(10 * time.Second)
			b.db.mu.Lock()
			b.db.holder = nil
			b.db.mu.Unlock()
		}()
		b.run(13 * time.Second)
		require.Equal(t, []time.Duration{0, 2*time.Second + evictionSlack, 5 * time.Second, 10 * time.Second}, since(b.began, b.db.named("TryLock")))
	})
}

func TestTurnThatFailsIsMadeAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		b.lanes(q, 1, 1, 8*time.Second)
		b.db.hook = func(call string) error {
			if call == "EvictPage" && time.Since(b.began) < 3*time.Second {
				return errLost
			}
			return nil
		}
		b.run(4 * time.Second)
		require.Len(t, b.logged("level=ERROR"), 1)
		require.Equal(t, []time.Duration{2*time.Second + evictionSlack, 3*time.Second + evictionSlack}, since(b.began, b.db.named("EvictPage")))
		require.Zero(t, q.left())
	})
}

func TestFailedCycleKeepsTheEvictionsTurn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		b.lanes(q, 1, 1, 2*time.Second) // due at 8 s
		b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1, 2*time.Hour)
		b.db.hook = func(call string) error {
			if call == "RetentionPage" { // ends the session in every cycle
				calls := b.db.named("TryLock")
				calls[len(calls)-1].session.Close(t.Context())
				return errLost
			}
			return nil
		}
		b.run(9 * time.Second)
		require.Len(t, b.logged("level=ERROR"), 1)
		require.Empty(t, q.lanes[0].segments)
	})
}

// TestEvictionBesideABacklog has a queue with a max wait of ten seconds beside one
// with a backlog of many minutes, of both kinds, and one with a million lanes held.
func TestEvictionBesideABacklog(t *testing.T) {
	bubble(t, Config{Cleanup: true, BatchSize: 10}, func(t *testing.T, b *bench) {
		for name, cost := range map[string]time.Duration{
			"RetentionStep": 150 * time.Millisecond, "TxnsStep": 150 * time.Millisecond, "CleanupStep": 150 * time.Millisecond,
			"WalkStep": 100 * time.Millisecond, "Plan": 50 * time.Millisecond, "RetentionPage": 20 * time.Millisecond,
		} {
			b.db.cost[name] = cost
		}
		b.db.dead, b.db.wrong = 1<<30, 1<<30
		for _, l := range b.lanes(b.queue(fakeQueue{all: time.Hour}), 20, 5000, 2*time.Hour) {
			l.txns = l.segments
		}
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		pushed := map[*fakeLane]time.Time{}
		latest := time.Duration(0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 900 {
				time.Sleep(100 * time.Millisecond)
				if i%7 == 0 && i < 700 {
					pushed[b.lanes(q, 1, 1, 0)[0]] = time.Now()
				}
				b.db.mu.Lock()
				for l, at := range pushed {
					if len(l.segments) == 0 {
						latest = max(latest, time.Since(at))
						delete(pushed, l)
					}
				}
				b.db.mu.Unlock()
			}
		}()
		b.run(100 * time.Second)
		<-done
		require.Empty(t, pushed)
		require.GreaterOrEqual(t, latest, 10*time.Second)
		require.Less(t, latest, 14*time.Second)
		t.Logf("evicted after %s at the latest", latest)
		require.Greater(t, len(b.db.named("RetentionStep")), 100, "the backlog goes on all the while")
		require.Greater(t, len(b.db.named("TxnsStep")), 100)
	})
}

func TestEvictionThatFailsIsTriedAgainWithinFiveSeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{maxWait: 10 * time.Second})
		l := b.lanes(q, 1, 1, 11*time.Second)[0]
		l.broken = errBroken
		b.run(59 * time.Second)
		steps := since(b.began, b.db.named("EvictStep"))
		require.LessOrEqual(t, len(steps), 15)
		for i := range steps[1:] {
			require.LessOrEqual(t, steps[i+1]-steps[i], EvictHeldMax+EvictPause)
		}
		require.Len(t, b.logged("level=ERROR"), 2)
		require.LessOrEqual(t, len(b.db.named("TryLock")), 60+12, "at most one turn a second")
	})
}
