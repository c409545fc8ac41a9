package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// whileRunning runs fn while the transaction of a statement is open, and lets it commit
// once somebody waits for it.
func (b *bench) whileRunning(statement string, fn func()) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
			fn()
			return waitUntilBlocked(ctx, tx, 1)
		})
	}))
}

// inside runs fn while the transaction of a statement is open.
func (b *bench) inside(statement string, fn func()) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement)
			fn()
			return err
		})
	}))
}

const claimAll = `SELECT count(*) FROM queen.log_timers_claim_v1(ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g), NULL, 60000, 1000)`

// A claim passes over what another one has in hand, and what a request has.
func TestTimersClaimWaitsForNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 30 {
		b.timers(schedule(fmt.Sprintf("k%02d", i), -1000))
	}
	b.inside(`SELECT queen.log_timers_apply_v1('[{"op":"cancel","queue":"q","timerKey":"k07"},`+schedule("k08", 0)+`]', '00000000-0000-0000-0000-000000000001')`, func() {
		first := b.claim(10)
		require.Len(t, first, 10)
		b.exec(`UPDATE queen.log_timers SET claim_token = NULL, claimed_until = NULL` + ` WHERE timer_key NOT IN ('k07', 'k08')`)
		all := timerKeys(b.claim(1000))
		require.Len(t, all, 28)
		require.NotContains(t, all, "k07")
		require.NotContains(t, all, "k08")
	})
	b.lapse()
	b.inside(claimAll, func() { require.Empty(t, b.claim(1000), "all of it is in other hands") })
}

// Of several claims at a time each takes what the others have not, the earliest first.
func TestTimersClaimsAtATime(t *testing.T) {
	t.Parallel()
	for _, perTenant := range []int{0, 7} {
		b := setup(t)
		b.backlog(3000)
		claim := fmt.Sprintf(`CREATE TABLE queen.claim_%%d AS SELECT r_timer_key AS key FROM queen.log_timers_claim_v1(
			ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g), NULL, 60000, 200, NULLIF(%d, 0))`, perTenant)
		b.inside(fmt.Sprintf(claim, 0), func() {
			b.inside(fmt.Sprintf(claim, 1), func() {
				b.inside(fmt.Sprintf(claim, 2), func() {
					b.inside(fmt.Sprintf(claim, 3), func() {})
				})
			})
		})
		sizes := make([]int64, 4)
		for i := range sizes {
			sizes[i] = b.count(fmt.Sprintf(`SELECT count(*) FROM queen.claim_%d`, i))
			require.Positive(t, sizes[i], "claim %d", i)
		}
		require.EqualValues(t, 200, sizes[1])
		require.Equal(t, b.count(`SELECT count(DISTINCT key) FROM (TABLE queen.claim_0 UNION ALL TABLE queen.claim_1 UNION ALL TABLE queen.claim_2 UNION ALL TABLE queen.claim_3) AS c`),
			sizes[0]+sizes[1]+sizes[2]+sizes[3], "no timer twice")
	}
}

// A cancel that meets a claim under way comes too late; a claim that meets a cancel
// under way leaves the timer to it.
func TestTimersCancelMeetsClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, op := range []string{cancel("k"), schedule("k", 5000)} {
		b.exec(`DELETE FROM queen.log_timers`)
		b.timers(schedule("k", -1000))
		result := make(chan element, 1)
		var group errgroup.Group
		b.whileRunning(claimAll, func() {
			group.Go(func() error {
				all, err := b.applyTimers(t.Context(), op)
				if err == nil {
					result <- all[0]
				}
				return err
			})
		})
		require.NoError(t, group.Wait())
		require.Equal(t, "too_late", (<-result)["status"], op)
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_timers WHERE claim_token IS NOT NULL`))
	}
}

// A request that comes too late does not even hold the row: the fire would pass it by.
func TestTimersTooLateHoldsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, op := range []string{cancel("k"), schedule("k", 5000)} {
		b.timers(schedule("k", -1000))
		segs := bundled(b.claim(1))
		b.inside(fmt.Sprintf(`SELECT queen.log_timers_apply_v1('[%s]', '%s')`, op, store.DefaultTenant()), func() {
			require.True(t, b.fire(segs...)[0].Fired, op)
		})
	}
}

// A fire waits for no timer: one that a request holds makes its segment stale. A
// request that meets a fire under way finds the timer delivered.
func TestTimersRescheduleMeetsFire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("k", -1000), schedule("l", -1000, `,"partition":"p"`))
	segs := bundled(b.claim(10))
	b.inside(`SELECT FROM queen.log_timers WHERE timer_key = 'k' FOR UPDATE`, func() {
		verdicts := b.fire(segs...)
		require.Equal(t, []bool{false, true}, []bool{verdicts[0].Fired, verdicts[1].Fired})
	})
	require.Equal(t, []string{"l"}, b.delivered())

	b.lapse()
	for _, c := range []struct{ op, status string }{{schedule("k", 60_000), "scheduled"}, {cancel("k"), "absent"}} {
		b.exec(`DELETE FROM queen.log_timers`)
		b.timers(schedule("k", -1000))
		claimed := b.claim(1)
		fire := fmt.Sprintf(`SELECT queen.log_timers_fire_v1(ARRAY['%s'::uuid], ARRAY['q'], ARRAY['Default'], ARRAY[1], ARRAY['0123456789abcdef'::bytea],
			ARRAY['k;'::bytea], ARRAY['k'], ARRAY[1], ARRAY['%s'::uuid])`, store.DefaultTenant(), claimed[0].Token)
		result := make(chan element, 1)
		var group errgroup.Group
		if c.status == "absent" {
			// A cancel judges by what it sees, and sees a claim.
			b.inside(fire, func() { require.Equal(t, []any{"too_late"}, statusesOf(b.timers(c.op))) })
			require.Equal(t, []any{"absent"}, statusesOf(b.timers(c.op)))
			continue
		}
		b.whileRunning(fire, func() {
			group.Go(func() error {
				all, err := b.applyTimers(t.Context(), c.op)
				if err == nil {
					result <- all[0]
				}
				return err
			})
		})
		require.NoError(t, group.Wait())
		require.Equal(t, c.status, (<-result)["status"])
	}
}

// Failures and dead-lettering wait for a row, and then judge what they get.
func TestTimersFailWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("k", -1000))
	claimed := b.claim(1)
	done := make(chan store.TimersFailed, 1)
	var group errgroup.Group
	b.whileRunning(`UPDATE queen.log_timers SET claim_token = gen_random_uuid()`, func() {
		group.Go(func() error {
			out, err := b.store.TimersFail(t.Context(), heldOf(claimed), store.TimerFailure{MaxAttempts: 1})
			done <- out
			return err
		})
	})
	require.NoError(t, group.Wait())
	require.Zero(t, (<-done).Failed)
	require.Zero(t, b.count(`SELECT attempts FROM queen.log_timers`))
}

// Sweepers that share a backlog, lose leases and steal them from each other, beside
// requests that move and cancel timers and pushes into the same lanes: what was not
// cancelled is delivered, once.
func TestTimersAreDeliveredOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	const timers, lanes = 600, 7
	name := func(i int) string { return fmt.Sprintf("k%03d", i) }
	for i := 0; i < timers; i += 50 {
		var ops []string
		for k := i; k < i+50; k++ {
			ops = append(ops, schedule(name(k), -1000, fmt.Sprintf(`,"partition":"p%d"`, k%lanes)))
		}
		b.timers(ops...)
	}
	var expected, delivered atomic.Int64
	var settled atomic.Bool // no request changes what is expected any more
	expected.Store(timers)
	going := func() bool { return ctx.Err() == nil && (!settled.Load() || delivered.Load() != expected.Load()) }
	var group errgroup.Group
	for s := range 4 {
		group.Go(func() error {
			for going() {
				n, err := b.sweepOnce(ctx, 16*s)
				if err != nil {
					return err
				}
				delivered.Add(n)
			}
			return ctx.Err()
		})
	}
	group.Go(func() error {
		defer settled.Store(true)
		for _, i := range rand.Perm(timers) {
			op := schedule(name(i), -500, fmt.Sprintf(`,"partition":"p%d"`, rand.IntN(lanes)))
			if rand.IntN(3) == 0 {
				op = cancel(name(i))
			}
			all, err := b.applyTimers(ctx, op)
			if err != nil {
				return err
			}
			switch all[0]["status"] {
			case "cancelled":
				expected.Add(-1)
			case "scheduled": // it had been delivered: a second timer
				expected.Add(1)
			}
		}
		return nil
	})
	group.Go(func() error {
		for going() {
			if _, err := b.store.PushMulti(ctx, []store.PushSegment{fresh("q", fmt.Sprintf("p%d", rand.IntN(lanes)), 2), fresh("q", "p0", 1)}); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_timers`))
	require.Equal(t, expected.Load(), b.count(`SELECT sum(end_offset - base_offset + 1) FROM queen.log_segments WHERE substring(blob, 1, 1) = 'k'`))
	require.Equal(t, expected.Load(), b.count(`SELECT sum(length(convert_from(blob, 'UTF8')) / 5) FROM queen.log_segments WHERE substring(blob, 1, 1) = 'k'`), "frames and what they say")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions p
		WHERE last_offset <> (SELECT COALESCE(max(end_offset), -1) FROM queen.log_segments s WHERE s.partition_id = p.id)`))
}

// sweepOnce claims some timers, often for too short a time, and fires them or gives
// them back. It answers how many were delivered.
func (b *bench) sweepOnce(ctx context.Context, first int) (fired int64, err error) {
	lease := []time.Duration{time.Millisecond, time.Minute}[rand.IntN(2)]
	claimed, err := b.store.TimersClaim(ctx, store.TimerClaim{Shards: store.Shards(first), Lease: lease, Rows: 1 + rand.IntN(60), PerTenant: rand.IntN(12)})
	if err != nil {
		return 0, err
	}
	if rand.IntN(6) == 0 {
		_, err := b.store.TimersFail(ctx, heldOf(claimed), store.TimerFailure{MaxAttempts: 1000})
		return 0, err
	}
	segs := bundled(claimed)
	verdicts, err := b.store.TimersFire(ctx, segs)
	var stale []store.ClaimedTimer
	for i, v := range verdicts {
		if v.Fired {
			fired += int64(len(segs[i].Keys))
			continue
		}
		for k, key := range segs[i].Keys {
			stale = append(stale, store.ClaimedTimer{TimerKey: store.TimerKey{Tenant: segs[i].Tenant, Queue: segs[i].Queue, Key: key}, Token: segs[i].Tokens[k]})
		}
	}
	if err == nil && len(stale) > 0 {
		_, err = b.store.TimersFail(ctx, heldOf(stale), store.TimerFailure{Transient: true, MaxAttempts: 1000})
	}
	return fired, err
}

// Requests in opposite orders never deadlock, with each other or with sweepers.
func TestTimersInOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var group errgroup.Group
	for range 5 {
		group.Go(func() error {
			for range 40 {
				var ops []string
				for _, i := range rand.Perm(12) {
					op := schedule(fmt.Sprintf("k%d", i), -rand.IntN(2000), fmt.Sprintf(`,"partition":"p%d"`, i%3))
					if rand.IntN(2) == 0 {
						op = cancel(fmt.Sprintf("k%d", i))
					}
					ops = append(ops, op)
				}
				if _, err := b.applyTimers(t.Context(), ops...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 3 {
		group.Go(func() error {
			for range 60 {
				claimed, err := b.store.TimersClaim(t.Context(), store.TimerClaim{Shards: store.Shards(rand.IntN(64)), Lease: time.Second, Rows: 20})
				if err != nil {
					return err
				}
				slices.Reverse(claimed)
				if rand.IntN(2) == 0 {
					_, err = b.store.TimersFail(t.Context(), heldOf(claimed), store.TimerFailure{MaxAttempts: 9})
				} else {
					_, err = b.store.TimersFire(t.Context(), bundled(claimed))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait(), "40P01 here is a broken lock order")
}
