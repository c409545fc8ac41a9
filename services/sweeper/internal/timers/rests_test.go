package timers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// callTime is how long a call takes in these tests.
const callTime = 2 * ms

// besideOthers is a sweeper over a backlog in so many lanes.
func besideOthers(t *testing.T, cfg Config, timers, lanes int, run func(b *bubble)) {
	t.Helper()
	inBubble(t, cfg, func(b *bubble) {
		b.db.others = true
		b.db.cost[callClaim], b.db.cost[callFire] = callTime, callTime
		b.db.add(timers, 0)
		for i, timer := range b.db.timers {
			timer.Partition = fmt.Sprint("lane-", i%lanes)
		}
		run(b)
	})
}

func TestABacklogGivesWayToOthers(t *testing.T) {
	t.Parallel()
	drained := map[bool]time.Duration{}
	for _, others := range []bool{false, true} {
		besideOthers(t, Defaults(), 2000, 100, func(b *bubble) {
			b.db.others = others
			report, _ := b.s.cycle(b.Context())
			require.Equal(b, 2000, report.Fired)
			require.Zero(b, report.Stale)
			fires := b.calls(callFire)
			require.Equal(b, FireClaims*callTime, fires[0], "the first volley never waits")
			require.Equal(b, FireLanes, b.db.sizes(callFire)[0])
			require.NotEmpty(b, b.calls(callOthers))
			last, size := len(fires)-1, b.db.sizes(callFire)[len(fires)-1]
			if others {
				require.Equal(b, RestLanes, size)
				require.Equal(b, callTime*(1+RestFactor), fires[last]-fires[last-1], "each call is followed by a rest")
			} else {
				require.Equal(b, FireLanes, size)
				require.Equal(b, callTime, fires[last]-fires[last-1])
				require.NotContains(b, b.db.sizes(callClaim), Defaults().ClaimBatch/RestClaims)
			}
			drained[others] = report.Elapsed
		})
	}
	require.Greater(t, drained[true], 3*drained[false])
}

func TestCallsDoNotOverlapBesideOthers(t *testing.T) {
	t.Parallel()
	besideOthers(t, Defaults(), 2000, 100, func(b *bubble) {
		_, _ = b.s.cycle(b.Context())
		var calls []fakeCall
		for _, c := range b.db.calls {
			if at := c.at.Sub(b.began); (c.name == callClaim || c.name == callFire) && at > 100*ms {
				calls = append(calls, c)
			}
		}
		require.NotEmpty(b, calls)
		for i := 1; i < len(calls); i++ {
			require.GreaterOrEqual(b, calls[i].at.Sub(calls[i-1].at), callTime)
		}
		require.Contains(b, b.db.sizes(callClaim), Defaults().ClaimBatch/RestClaims)
	})
}

// A few timers are delivered as fast as ever.
func TestAFewTimersDoNotLookForOthers(t *testing.T) {
	t.Parallel()
	besideOthers(t, Defaults(), FireLanes, FireLanes, func(b *bubble) {
		report, _ := b.s.cycle(b.Context())
		require.Equal(b, FireLanes, report.Fired)
		require.Len(b, b.calls(callFire), 1)
		require.Empty(b, b.calls(callOthers))
		require.Equal(b, 2*callTime, report.Elapsed, "a claim, and a fire")
	})
}

func TestARestIsNeverLong(t *testing.T) {
	t.Parallel()
	for cost, want := range map[time.Duration]time.Duration{
		RestMost/RestFactor - ms: RestMost - RestFactor*ms, RestMost / RestFactor: RestMost, RestMost/RestFactor + ms: RestMost,
	} {
		besideOthers(t, Defaults(), 100, 100, func(b *bubble) {
			b.db.cost[callFire] = cost
			_, _ = b.s.cycle(b.Context())
			fires := b.calls(callFire)
			last := len(fires) - 1
			require.Equal(b, want, fires[last]-fires[last-1]-cost)
		})
	}
}

// A lease must not lapse because its sweeper rested.
func TestRestsEndWithHalfOfTheLease(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.Lease = time.Second
	besideOthers(t, cfg, 2000, 100, func(b *bubble) {
		report, _ := b.s.cycle(b.Context())
		require.Zero(b, report.Stale)
		require.Equal(b, report.Claimed, report.Fired, "what was claimed is fired")
		var resting, after int
		fires := b.calls(callFire)
		for i := 1; i < len(fires); i++ {
			switch pause := fires[i] - fires[i-1] - callTime; {
			case fires[i-1] >= cfg.Lease/2:
				require.Zero(b, pause)
				after++
			case pause > 0:
				resting++
			}
		}
		require.NotZero(b, resting)
		require.NotZero(b, after)
	})
}

func TestAStopEndsARest(t *testing.T) {
	t.Parallel()
	besideOthers(t, Defaults(), 2000, 100, func(b *bubble) {
		b.db.cost[callFire] = 50 * ms
		b.start()
		b.pass(500 * ms)
		for rested := time.Duration(0); rested <= 55*ms || rested > 75*ms; b.pass(ms) { // until a rest has begun
			fires := b.calls(callFire)
			rested = b.at() - fires[len(fires)-1]
		}
		began, fires := time.Now(), len(b.calls(callFire))
		b.stop()
		require.Less(b, time.Since(began), 20*ms)
		require.Len(b, b.calls(callFire), fires)
	})
}

// Others that never end would make timers later and later.
func TestDrainsGiveWayForALimitedTime(t *testing.T) {
	t.Parallel()
	inBubble(t, Defaults(), func(b *bubble) {
		h := &b.s.haste
		h.felt(RestLate - 1)
		b.pass(2 * RestTime)
		h.felt(RestLate - 1)
		require.False(b, h.due(), "timers that are hardly late")
		h.felt(RestLate)
		b.pass(RestTime - 1)
		h.felt(time.Hour)
		require.False(b, h.due(), "late for less than its time")
		b.pass(1)
		require.True(b, h.due())
		h.felt(RestLate)
		require.True(b, h.due(), "until timers are hardly late again")
		h.felt(RestLate - 1)
		require.False(b, h.due())
	})
	besideOthers(t, Defaults(), 2000, 100, func(b *bubble) {
		for _, timer := range b.db.timers {
			timer.deliver = timer.deliver.Add(-RestLate)
		}
		b.s.haste.late = time.Now().Add(-RestTime)
		_, _ = b.s.cycle(b.Context())
		fires := b.calls(callFire)
		last := len(fires) - 1
		require.Equal(b, callTime, fires[last]-fires[last-1])
		require.Equal(b, FireLanes, b.db.sizes(callFire)[last])
		require.Empty(b, b.calls(callOthers))
	})
}
