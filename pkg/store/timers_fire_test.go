package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestTimersDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	empty := b.due(10)
	require.Equal(t, store.TimersDue{Now: empty.Now}, empty)
	none, err := b.store.TimersDue(t.Context(), nil, 10)
	require.NoError(t, err)
	require.Equal(t, store.TimersDue{Now: none.Now}, none, "without shards nothing is seen")

	at := func(offset string, cap int) (out map[string]any) {
		text, err := b.query(`SELECT queen.log_timers_due_v1(ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g), '2030-01-01T00:00:00Z'::timestamptz + $1::text::interval, $2)`, offset, cap)
		require.NoError(t, err)
		return object(t, []byte(text))
	}
	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT 'q', 'k' || g, '2030-01-01T00:00:00Z'::timestamptz + g * INTERVAL '1 second', 't', gen_random_uuid(), '' FROM generate_series(0, 4) AS g`)
	require.Equal(t, map[string]any{"now": "2029-12-31T23:59:59.999500Z", "nextInMs": 1., "due": 0., "dueCapped": false, "lateMs": 0.}, at("-500 us", 2000), "never too early")
	require.Equal(t, map[string]any{"now": "2030-01-01T00:00:00.000000Z", "nextInMs": 0., "due": 1., "dueCapped": false, "lateMs": 0.}, at("0", 2000))
	require.Equal(t, map[string]any{"now": "2030-01-01T00:00:02.500000Z", "nextInMs": -2500., "due": 3., "dueCapped": false, "lateMs": 2500.}, at("2.5 s", 4))
	require.Equal(t, map[string]any{"now": "2030-01-01T00:01:00.000000Z", "nextInMs": -60000., "due": 4., "dueCapped": true, "lateMs": 60000.}, at("1 minute", 4))
	require.Equal(t, 5., at("1 minute", 5)["due"])
	b.exec(`UPDATE queen.log_timers SET claimed_until = '2030-01-01T01:00:00Z' WHERE timer_key = 'k0'`)
	require.Equal(t, []any{-59000., 4.}, []any{at("1 minute", 5)["nextInMs"], at("1 minute", 5)["due"]}, "a held one is not due")

	b.exec(`DELETE FROM queen.log_timers`)
	b.timers(schedule("late", -90_000), schedule("soon", 90_000))
	due := b.due(10)
	require.Equal(t, 1, due.Due)
	require.InDelta(t, -90, due.Next.Seconds(), 30)
	require.InDelta(t, 90, due.Late.Seconds(), 30)
	var shard int16
	b.one([]any{&shard}, `SELECT shard FROM queen.log_timers WHERE timer_key = 'late'`)
	others, err := b.store.TimersDue(t.Context(), store.Shards(int(shard) + 1)[:63], 10)
	require.NoError(t, err)
	require.Zero(t, others.Due, "of another shard")
}

// A sweeper holds in memory what it claims.
func TestTimersClaimIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	for name, perTenant := range map[string]int{"earliest": 0, "shares of tenants": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			insert := func(key string, mebibytes int) {
				b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
					VALUES ('q', $1, now() - INTERVAL '1 minute', 't', gen_random_uuid(), convert_to(repeat('x', $2::int * 1048576), 'UTF8'))`, key, mebibytes)
			}
			claim := func() []int {
				claimed, err := b.store.TimersClaim(t.Context(), store.TimerClaim{
					Shards: store.Shards(0), Lease: time.Minute, Rows: 200, PerTenant: perTenant,
				})
				require.NoError(t, err)
				var sizes []int
				for _, c := range claimed {
					sizes = append(sizes, len(c.Payload)>>20)
				}
				return sizes
			}
			for _, key := range []string{"a", "b", "c", "d"} {
				insert(key, 16)
			}
			require.Equal(t, []int{16, 16}, claim(), "32 MiB are allowed")
			require.Equal(t, []int{16, 16}, claim(), "the rest can be claimed at once")
			require.Empty(t, claim())
			insert("large", 33)
			require.Equal(t, []int{33}, claim(), "one goes alone")
			for i := range 8 {
				insert(fmt.Sprint("small", i), 0)
			}
			require.Len(t, claim(), 8)
		})
	}
}

func TestTimersClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := uuid.New()
	_, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "me", list([]string{
		schedule("k2", -2000, `,"partition":"p","encrypted":true,"_messageId":"`+id.String()+`"`), schedule("k3", -1000), schedule("k1", -3000), schedule("later", 60_000),
	}))
	require.NoError(t, err)
	b.exec(`UPDATE queen.log_timers SET attempts = 2 WHERE timer_key = 'k2'`)
	claimed := b.claim(10)
	require.Equal(t, []string{"k1", "k2", "k3"}, timerKeys(claimed), "in the order in which they were due")
	got := claimed[1]
	require.InDelta(t, 2, got.Late.Seconds(), 30)
	require.NotEqual(t, uuid.Nil, got.Token)
	got.Late, got.Token = 0, uuid.Nil
	require.Equal(t, store.ClaimedTimer{
		TimerKey: store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: "k2"}, Partition: "p", Txn: "txn-k2", MessageID: id,
		Payload: []byte(`{"key":"k2"}`), Encrypted: true, ProducerSub: "me", Attempts: 2,
	}, got)
	require.NotEqual(t, claimed[0].Token, claimed[2].Token, "every row has a token of its own")
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.log_timers WHERE claimed_until > now() + INTERVAL '30 s' AND claimed_until < now() + INTERVAL '61 s'
		AND visible_at = claimed_until AND updated_at > created_at`))
	require.Empty(t, b.claim(10), "what is held is not due")
	b.lapse()
	again := b.claim(2)
	require.Len(t, again, 2, "a lease that is over")
	require.NotEqual(t, claimed[0].Token, again[0].Token)

	none, err := b.store.TimersClaim(t.Context(), store.TimerClaim{Lease: time.Second, Rows: 10})
	require.NoError(t, err)
	require.Empty(t, none, "no shards")
	require.EqualValues(t, 13, b.count(`SELECT array_length(string_to_array(pg_get_function_result(oid), ','), 1) FROM pg_proc WHERE proname = 'log_timers_claim_v1'`))
}

// Rows that are due at the same instant come in the order of their names.
func TestTimersClaimOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.log_timers (tenant_id, queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT t, q, k, now() - INTERVAL '1 minute', 't', gen_random_uuid(), ''
		FROM unnest(ARRAY[$1, $2]::uuid[]) AS t, unnest(ARRAY['b', 'a']) AS q, unnest(ARRAY['é', 'z', 'Z']) AS k`, someTenant, store.DefaultTenant())
	var got []string
	for _, c := range b.claim(100) {
		got = append(got, fmt.Sprintf("%s %s %s", c.Tenant.String()[34:], c.Queue, c.Key))
	}
	require.Equal(t, []string{
		"01 a Z", "01 a z", "01 a é", "01 b Z", "01 b z", "01 b é", "aa a Z", "aa a z", "aa a é", "aa b Z", "aa b z", "aa b é",
	}, got)
}

// How the rows of a claim are shared between shards and tenants.
func TestTimersClaimShares(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// 40 rows of one tenant in one shard, and behind them 5 of each of two others.
	fill := func(shard int) {
		b.exec(`INSERT INTO queen.log_timers (tenant_id, queue, timer_key, deliver_at, txn, message_id, payload)
			SELECT CASE WHEN r <= 40 THEN $2 WHEN r <= 45 THEN $3 ELSE $4 END::uuid, 'q', key, now() - (1000 - r) * INTERVAL '1 second', 't', gen_random_uuid(), ''
			FROM (SELECT 'k' || g AS key, row_number() OVER (ORDER BY g) AS r FROM generate_series(1, 20000) AS g WHERE hashtextextended('k' || g, 0) & 63 = $1 LIMIT 50) AS x`,
			shard, someTenant, uuid.UUID{15: 2}, uuid.UUID{15: 3})
	}
	fill(3)
	fill(7)
	count := func(shards []int16, rows, perTenant int) (perShardTenant map[string]int, total int) {
		b.exec(`UPDATE queen.log_timers SET claimed_until = NULL, claim_token = NULL`)
		claimed, err := b.store.TimersClaim(t.Context(), store.TimerClaim{Shards: shards, Lease: time.Minute, Rows: rows, PerTenant: perTenant})
		require.NoError(t, err)
		perShardTenant = map[string]int{}
		for _, c := range claimed {
			var shard int
			b.one([]any{&shard}, `SELECT shard FROM queen.log_timers WHERE timer_key = $1`, c.Key)
			perShardTenant[fmt.Sprintf("%d/%s", shard, c.Tenant.String()[34:])]++
		}
		return perShardTenant, len(claimed)
	}
	shares, _ := count(store.Shards(0), 200, 0)
	require.Equal(t, map[string]int{"3/aa": 8, "7/aa": 8}, shares, "eight of a shard, the earliest")
	shares, _ = count(store.Shards(0), 640, 0)
	require.Equal(t, map[string]int{"3/aa": 10, "7/aa": 10}, shares, "or its share")
	shares, _ = count(store.Shards(0), 641, 0)
	require.Equal(t, map[string]int{"3/aa": 11, "7/aa": 11}, shares, "rounded up")
	shares, _ = count([]int16{3}, 48, 0)
	require.Equal(t, map[string]int{"3/aa": 40, "3/02": 5, "3/03": 3}, shares)
	shares, _ = count([]int16{3}, 12, 4)
	require.Equal(t, map[string]int{"3/aa": 4, "3/02": 4, "3/03": 4}, shares, "a tenant does not crowd out the others")
	shares, _ = count([]int16{3}, 10, 4)
	require.Equal(t, map[string]int{"3/aa": 4, "3/02": 4, "3/03": 2}, shares, "the earliest of what each may have")
	shares, _ = count([]int16{3}, 8, -5)
	require.Len(t, shares, 1, "no share of its own")
	_, total := count([]int16{3, 7}, 9, 1)
	require.Equal(t, 6, total, "one of each in each shard")
	shares, total = count([]int16{7, 3}, 8, 8)
	require.Equal(t, map[string]int{"3/aa": 4, "7/aa": 4}, shares, "the earliest of all shards, in whichever order they are given")
	require.Equal(t, 8, total)
	shares, _ = count([]int16{4, 5}, 100, 0)
	require.Empty(t, shares)
}

// A backlog of several claims is taken in order, and no row is passed over on the way.
func TestTimersClaimsFollowEachOther(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{5, 200, 1000, 5000} {
		t.Run(fmt.Sprintf("claims of %d", rows), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			const timers = 3000
			b.backlog(timers)
			var all []string
			for len(all) < min(timers, 20*rows) {
				claimed := b.claim(rows)
				require.GreaterOrEqual(t, len(claimed), min(timers-len(all), (rows+store.ClaimPart-1)/store.ClaimPart))
				all = append(all, timerKeys(claimed)...)
			}
			require.Equal(t, b.instants(0, len(all)), all)
		})
	}
}

// A claim ends where a shard has more than its share, unless that is before a quarter
// of its rows: then the other shards go on without that one.
func TestTimersClaimEndsInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// One in so many is of the shard 3, the first one too.
	crowd := func(every int) {
		b.exec(`DELETE FROM queen.log_timers`)
		b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
			SELECT 'q', key, now() - INTERVAL '1 hour' + CASE WHEN crowded THEN (r - 1) * $1 ELSE (r - 1) / ($1 - 1) * $1 + (r - 1) % ($1 - 1) + 1 END * INTERVAL '1 s',
				't', gen_random_uuid(), ''
			FROM (SELECT key, shard = 3 AS crowded, row_number() OVER (PARTITION BY shard = 3 ORDER BY n, key) AS r
				FROM (SELECT key, shard, row_number() OVER (PARTITION BY shard ORDER BY key) AS n
					FROM (SELECT 'k' || g AS key, hashtextextended('k' || g, 0) & 63 AS shard FROM generate_series(1, 5000) AS g) AS g) AS k
				WHERE shard = 3 AND n <= 20 OR shard <> 3 AND n <= 6) AS x`, every)
	}
	for name, c := range map[string]struct{ every, rows, want int }{
		"before the ninth of the shard": {11, 200, 88},
		"which is a quarter":            {6, 192, 48},
		"and here it is less":           {6, 193, 193},
		"it is not among them":          {11, 88, 88},
	} {
		crowd(c.every)
		got := timerKeys(b.claim(c.rows))
		require.Len(t, got, c.want, name)
		if c.want <= 88 {
			require.Equal(t, b.instants(0, c.want), got, name)
		}
	}
	crowd(11)
	some, err := b.store.TimersClaim(t.Context(), store.TimerClaim{Shards: store.Shards(0)[:63], Lease: time.Minute, Rows: 200})
	require.NoError(t, err)
	require.Len(t, some, 200, "of some shards only, it takes the shares as they are")
}

func TestTimersFire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1, 2))
	b.timers(schedule("a", -3000, `,"partition":"p"`), schedule("b", -2000, `,"partition":"new"`), schedule("c", -1000, `,"partition":"p"`),
		`{"op":"schedule","queue":"born.here","timerKey":"d","delayMs":-500,"txn":"t","payload":""}`, schedule("later", 60_000))
	segs := bundled(b.claim(10))
	require.Len(t, segs, 3)
	verdicts := b.fire(segs...)
	for i, v := range verdicts {
		require.True(t, v.Fired)
		var lane, queue string
		b.one([]any{&lane, &queue}, `SELECT p.name, q.name FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = $1`, v.PartitionID)
		require.Equal(t, []string{segs[i].Partition, segs[i].Queue}, []string{lane, queue})
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_segments s JOIN queen.log_txns x USING (partition_id, base_offset)
			WHERE s.partition_id = $1 AND s.base_offset = $2 AND s.created_at = $3 AND s.blob = $4 AND x.hashes = $5 AND s.end_offset = s.base_offset + $6 - 1`,
			v.PartitionID, v.BaseOffset, v.CreatedAt, segs[i].Blob, segs[i].Hashes, len(segs[i].Keys)))
	}
	require.Equal(t, int64(2), verdicts[0].BaseOffset, "behind what was pushed")
	require.Equal(t, []byte("a;c;"), segs[0].Blob)
	var namespace, task string
	b.one([]any{&namespace, &task}, `SELECT namespace, task FROM queen.queues WHERE name = 'born.here'`)
	require.Equal(t, []string{"born", "here"}, []string{namespace, task})
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_timers`), "the delivered ones leave no trace")
	require.Equal(t, int64(3), b.queued(segment("q", "p", 9)).BaseOffset-1, "and pushes go on behind them")
	require.Empty(t, b.fire())
	require.Equal(t, []any{"absent"}, statusesOf(b.timers(cancel("a"))))
}

// A dedup window does not swallow a timer: its id may be stored already.
func TestTimersAreNotDeduplicated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		b.timers(schedule("a", -1000))
		require.True(t, b.fire(bundled(b.claim(1))...)[0].Fired)
	}
	require.Equal(t, []string{"a", "a"}, b.delivered())
}

// What is not held any more is not fired, and nothing of its segment is.
func TestTimersFireStale(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"the lease is over":         `UPDATE queen.log_timers SET claimed_until = now() WHERE timer_key = 'b'`,
		"another lease":             `UPDATE queen.log_timers SET claim_token = gen_random_uuid() WHERE timer_key = 'b'`,
		"no lease":                  `UPDATE queen.log_timers SET claim_token = NULL WHERE timer_key = 'b'`,
		"cancelled":                 `DELETE FROM queen.log_timers WHERE timer_key = 'b'`,
		"rescheduled after a lapse": `UPDATE queen.log_timers SET claim_token = NULL, claimed_until = NULL, deliver_at = now() + INTERVAL '1 h' WHERE timer_key = 'b'`,
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.timers(schedule("a", -3000, `,"partition":"x"`), schedule("b", -2000, `,"partition":"x"`), schedule("c", -1000, `,"partition":"y"`))
			segs := bundled(b.claim(10))
			b.exec(change)
			verdicts := b.fire(segs...)
			require.Equal(t, []bool{false, true}, []bool{verdicts[0].Fired, verdicts[1].Fired})
			require.Equal(t, []string{"c"}, b.delivered())
			require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions WHERE name = 'x'`), "a stale segment provisions nothing")
			require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_timers WHERE timer_key = 'a' AND claim_token IS NULL AND claimed_until <= now()`), "the rest is due at once")
			require.Contains(t, timerKeys(b.claim(10)), "a")
			require.Equal(t, store.FireVerdict{}, verdicts[0])
		})
	}
}

func TestTimersFireArguments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("a", -1000), schedule("b", -1000, `,"partition":"p"`))
	claimed := b.claim(10)
	before := b.timerDump()
	good := bundled(claimed)
	change := func(fn func(segs []store.FireSegment) []store.FireSegment) []store.FireSegment {
		return fn(append([]store.FireSegment{}, good...))
	}
	cases := map[string][]store.FireSegment{
		"bad segment": change(func(s []store.FireSegment) []store.FireSegment { s[0].Hashes = s[0].Hashes[1:]; return s }),
		"a count below 1": change(func(s []store.FireSegment) []store.FireSegment {
			s[0].Keys, s[0].Tokens, s[0].Hashes = nil, nil, nil
			return s
		}),
		"misaligned arrays": change(func(s []store.FireSegment) []store.FireSegment { s[0].Tokens = nil; return s }),
		"two segments of one partition": change(func(s []store.FireSegment) []store.FireSegment {
			s[1].Partition = s[0].Partition
			return s
		}),
		"a timer is named twice": {{
			Tenant: good[0].Tenant, Queue: "q", Partition: "x", Keys: []string{"a", "a"}, Tokens: []uuid.UUID{claimed[0].Token, claimed[0].Token},
			Hashes: append(hash(1), hash(2)...),
		}},
	}
	for text, segs := range cases {
		_, err := b.store.TimersFire(t.Context(), segs)
		require.ErrorContains(t, err, "QFIRE ", text)
		require.ErrorContains(t, err, text)
		require.Equal(t, "22023", sqlState(t, err), text)
		require.Equal(t, before, b.timerDump(), text)
	}
	raw := func(counts, segOf string) error {
		return b.try(fmt.Sprintf(`SELECT queen.log_timers_fire_v1(ARRAY['%s'::uuid], ARRAY['q'], ARRAY['p'], %s, ARRAY['0123456789abcdef'::bytea], ARRAY[''::bytea],
			ARRAY['a'], %s, ARRAY[gen_random_uuid()])::text`, store.DefaultTenant(), counts, segOf))
	}
	require.ErrorContains(t, raw(`ARRAY[1]`, `ARRAY[0]`), "QFIRE a timer of no segment")
	require.ErrorContains(t, raw(`ARRAY[1]`, `ARRAY[2]`), "QFIRE a timer of no segment")
	require.ErrorContains(t, raw(`ARRAY[1]`, `ARRAY[NULL]::int[]`), "QFIRE a timer of no segment")
	require.ErrorContains(t, raw(`ARRAY[NULL]::int[]`, `ARRAY[1]`), "QFIRE bad segment")
	require.ErrorContains(t, raw(`ARRAY[0]`, `ARRAY[1]`), "QFIRE bad segment")
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_fire_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['p'], ARRAY[1],
		ARRAY['0123456789abcdef'::bytea], ARRAY[''::bytea], '{}', '{}', '{}')::text`), "QFIRE no timers")
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_fire_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['p'], ARRAY[2],
		ARRAY['0123456789abcdef0123456789abcdef'::bytea], ARRAY[''::bytea], ARRAY['a'], ARRAY[1], ARRAY[gen_random_uuid()])::text`), "QFIRE a segment with another number of timers")
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_fire_v1('{}', '{}', '{}', '{}', '{}', '{}', ARRAY['a'], ARRAY[1], ARRAY[gen_random_uuid()])::text`), "QFIRE a timer of no segment")
	for _, v := range b.fire(good...) {
		require.True(t, v.Fired)
	}
}

// A fire that fails at its end leaves no trace.
func TestTimersFireIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("a", -1000), schedule("b", -1000, `,"partition":"p"`))
	segs := bundled(b.claim(10))
	before := b.timerDump()
	b.exec(`CREATE FUNCTION queen.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE DELETE ON queen.log_timers FOR EACH ROW EXECUTE FUNCTION queen.refuse()`)
	_, err := b.store.TimersFire(t.Context(), segs)
	require.Equal(t, store.Transient, store.Classify(err))
	require.False(t, store.Ambiguous(err))
	require.Equal(t, before, b.timerDump())
	require.Zero(t, b.count(`SELECT count(*) FROM queen.queues`))
	require.Empty(t, b.delivered())
}

func TestTimersFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("a", -3000), schedule("b", -2000), schedule("c", -1000))
	claimed := b.claim(10)
	state := func(key string) (attempts int, text *string, backoff float64, held bool) {
		b.one([]any{&attempts, &text, &backoff, &held}, `SELECT attempts, last_error, EXTRACT(EPOCH FROM claimed_until - updated_at)::float8, claim_token IS NOT NULL
			FROM queen.log_timers WHERE timer_key = $1`, key)
		return attempts, text, backoff, held
	}
	stolen := claimed[2]
	stolen.Token = uuid.New()
	out := b.fail(store.TimerFailure{Backoff: 90 * time.Second, Error: "bo\x00om", MaxAttempts: 2}, claimed[0], claimed[1], stolen)
	require.Equal(t, store.TimersFailed{Failed: 2, Exhausted: []store.ExhaustedTimer{}}, out)
	attempts, text, backoff, held := state("a")
	require.Equal(t, []any{1, "boom", 90., false}, []any{attempts, *text, backoff, held})
	attempts, text, _, held = state("c")
	require.Equal(t, []any{0, (*string)(nil), true}, []any{attempts, text, held}, "held by somebody else")
	require.Empty(t, b.claim(10), "in its backoff")
	require.Equal(t, store.TimersFailed{Exhausted: []store.ExhaustedTimer{}}, b.fail(store.TimerFailure{MaxAttempts: 2}, claimed[0]), "a second time")

	b.exec(`UPDATE queen.log_timers SET claimed_until = NULL`)
	claimed = b.claim(10)
	out = b.fail(store.TimerFailure{Error: "again", Transient: true, MaxAttempts: 2}, claimed...)
	require.Equal(t, store.TimersFailed{Failed: 3, Exhausted: []store.ExhaustedTimer{}}, out, "not counted")
	attempts, _, backoff, _ = state("a")
	require.Equal(t, []any{1, 0.}, []any{attempts, backoff})
	claimed = b.claim(10)
	require.Len(t, claimed, 3, "no backoff")
	out = b.fail(store.TimerFailure{Error: "last", Backoff: -5, MaxAttempts: 2}, claimed...)
	require.Equal(t, store.TimersFailed{Failed: 3, Exhausted: []store.ExhaustedTimer{
		{TimerKey: claimed[0].TimerKey, Attempts: 2}, {TimerKey: claimed[1].TimerKey, Attempts: 2},
	}}, out)
	require.Equal(t, store.TimersFailed{Exhausted: []store.ExhaustedTimer{}}, b.fail(store.TimerFailure{}))
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_fail_v1('{}', '{}', ARRAY['k'], '{}')::text`), "QTIMERFAIL ")
}

func TestTimersDeadLetter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("a", -3000, `,"partition":"p"`), schedule("b", -2000), schedule("c", -1000), schedule("d", -1000))
	b.exec(`UPDATE queen.log_timers SET attempts = 2 WHERE timer_key <> 'c'`)
	b.exec(`UPDATE queen.log_timers SET claim_token = gen_random_uuid(), claimed_until = now() + INTERVAL '1 h' WHERE timer_key = 'd'`)
	letter := func(key, payload string) store.TimerLetter {
		return store.TimerLetter{TimerKey: store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: key}, Payload: []byte(payload), Error: "poi\x00son"}
	}
	peeked := b.peek("a")
	archived, skipped, err := b.store.TimersDeadLetter(t.Context(), []store.TimerLetter{letter("d", `1`), letter("a", `{"x":1}`), letter("c", `1`), letter("none", `1`)}, 2)
	require.NoError(t, err)
	require.Equal(t, []int{1, 3}, []int{archived, skipped}, "held, too few attempts, not there")
	var lane, group, text, txn, payload, id string
	var off, retries int64
	b.one([]any{&lane, &group, &off, &id, &txn, &payload, &text, &retries}, `SELECT p.name, d.consumer_group, d."offset", d.message_id::text, d.transaction_id, d.payload::text, d.error, d.retry_count
		FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id`)
	require.Equal(t, []any{"p", store.TimerGroup, int64(-1), peeked["messageId"], "txn-a", `{"x": 1}`, "poison", int64(2)}, []any{lane, group, off, id, txn, payload, text, retries})
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.log_timers`))

	require.Equal(t, []any{"rescheduled"}, statusesOf(b.timers(schedule("b", 0))))
	archived, skipped, err = b.store.TimersDeadLetter(t.Context(), []store.TimerLetter{letter("b", `1`), letter("b", `1`)}, 2)
	require.NoError(t, err)
	require.Equal(t, []int{0, 2}, []int{archived, skipped}, "a reschedule gives new attempts")
	archived, skipped, err = b.store.TimersDeadLetter(t.Context(), nil, 2)
	require.NoError(t, err)
	require.Equal(t, []int{0, 0}, []int{archived, skipped})
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_dlq_v1('{}', '{}', ARRAY['k'], '{}', '{}')::text`), "QTIMERDLQ ")
	require.Equal(t, "22023", sqlState(t, b.try(`SELECT queen.log_timers_dlq_v1('{}', '{}', ARRAY['k'], '{}', '{}')::text`)))
}

// Dead-lettering never fails on content, and the bytes come back.
func TestTimersOfAnyContentAreDeadLettered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	payloads := []string{
		`{"plain":true}`, ``, `no json`, "\x00\xff", `"\u0000"`, `"\ud800"`, `{"$raw":"eA=="}`, `1e99999`, `1e200000`,
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000), `"` + strings.Repeat("x", 100_000) + `"`,
	}
	for _, together := range []bool{true, false} {
		b.exec(`DELETE FROM queen.log_dlq`)
		var letters []store.TimerLetter
		for i, p := range payloads {
			key := fmt.Sprintf("k%02d", i)
			b.timers(schedule(key, 0))
			letters = append(letters, store.TimerLetter{TimerKey: store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: key}, Payload: []byte(p), Error: "e"})
		}
		if together {
			archived, skipped, err := b.store.TimersDeadLetter(t.Context(), letters, 0)
			require.NoError(t, err)
			require.Equal(t, []int{len(payloads), 0}, []int{archived, skipped})
		} else {
			for i := range letters {
				archived, _, err := b.store.TimersDeadLetter(t.Context(), letters[i:i+1], 0)
				require.NoError(t, err)
				require.Equal(t, 1, archived)
			}
		}
		for i, p := range payloads {
			text, err := b.query(`SELECT payload::text FROM queen.log_dlq WHERE transaction_id = $1`, fmt.Sprintf("txn-k%02d", i))
			require.NoError(t, err)
			got := string(store.DecodeSnapshot([]byte(text)))
			if got != p {
				require.JSONEq(t, p, got, "%.30s", p)
			}
		}
	}
}

// The partition that a letter hangs on does not vanish under it.
func TestTimersDeadLetterHoldsThePartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("a", 0))
	b.queued(segment("q", "Default", 1))
	archive := `SELECT queen.log_timers_dlq_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['a'], ARRAY['1'::jsonb], ARRAY['e'], 0)`
	got := make(chan error, 1)
	b.whileRunning(archive, func() {
		go func() {
			_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
			got <- err
		}()
	})
	require.NoError(t, <-got)
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_dlq`), "the deletion saw the letter, and took it along")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_timers`))
}

// The reports of a failed call keep what the server said.
func TestTimersErrorsOfTheServerStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`ALTER TABLE queen.log_timers RENAME TO timers_gone`)
	_, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "", list([]string{schedule("a", 0)}))
	require.Equal(t, store.RetryLater, store.Classify(err))
	require.NotErrorAs(t, err, new(*store.TimersRefused))
	_, err = b.store.TimersClaim(t.Context(), store.TimerClaim{Shards: store.Shards(0), Lease: time.Second, Rows: 1})
	require.Equal(t, store.RetryLater, store.Classify(err))
}
