package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const hour = time.Hour

func TestPopOfAnUnknownPartitionCreatesNothing(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	require.Empty(t, b.specific("nowhere", "p", popArgs("g", 10)))
	b.lay("q", "p", laid{0, 1, hour, nil})
	require.Empty(t, b.specific("q", "other", popArgs("g", 10)))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.queues`))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_partitions`))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers`))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.consumer_groups_metadata`), "a single-partition pop registers nothing")
}

func TestPopFillsABatchAcrossSegments(t *testing.T) {
	t.Parallel()
	all := setupPop(t)
	tests := []struct {
		name      string
		segs      []laid
		committed int64
		budget    int
		want      []span
	}{
		{"one segment, whole", []laid{{0, 5, hour, nil}}, -1, 5, []span{{"p", 0, 4}}},
		{"part of a segment", []laid{{0, 5, hour, nil}}, -1, 2, []span{{"p", 0, 1}}},
		{"from the middle of a segment", []laid{{0, 5, hour, nil}}, 1, 2, []span{{"p", 2, 3}}},
		{"to the end of a segment only", []laid{{0, 5, hour, nil}}, 3, 9, []span{{"p", 4, 4}}},
		{"many small segments", []laid{{0, 1, hour, nil}, {1, 1, hour, nil}, {2, 1, hour, nil}, {3, 1, hour, nil}}, -1, 3, []span{{"p", 0, 2}}},
		{"a tail, whole segments and a head", []laid{{0, 3, hour, nil}, {3, 2, hour, nil}, {5, 4, hour, nil}}, 1, 5, []span{{"p", 2, 6}}},
		{"budget 0 counts as 1", []laid{{0, 3, hour, nil}}, -1, 0, []span{{"p", 0, 0}}},
		{"budget below 0 counts as 1", []laid{{0, 3, hour, nil}}, -1, -7, []span{{"p", 0, 0}}},
		{"gap at the head", []laid{{4, 3, hour, nil}}, -1, 2, []span{{"p", 4, 5}}},
		{"gap in the middle does not shorten the batch", []laid{{0, 5, hour, nil}, {10, 5, hour, nil}}, -1, 10, []span{{"p", 0, 4}, {"p", 10, 14}}},
		{"cursor inside a gap", []laid{{0, 5, hour, nil}, {10, 5, hour, nil}}, 6, 3, []span{{"p", 10, 12}}},
		{"cursor at the end", []laid{{0, 5, hour, nil}}, 4, 3, nil},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := all.on(t)
			queue := "q" + string(rune('a'+i))
			pid := b.lay(queue, "p", tt.segs...)
			b.start(pid, "g", tt.committed)
			require.Equal(t, tt.want, b.specific(queue, "p", popArgs("g", tt.budget)))
			c := b.cursor(pid, "g")
			require.Equal(t, tt.committed, c.Committed, "a leased pop does not move the cursor")
			if tt.want == nil {
				require.Empty(t, c.Worker)
				return
			}
			require.Equal(t, tt.want[len(tt.want)-1].last, c.BatchEnd)
			require.Equal(t, tt.want[0].first, c.AttemptOffset)
			require.Equal(t, "w-g", c.Worker)
			require.Equal(t, 1, c.Attempts)
		})
	}
}

func TestPopNamesWhatItDelivers(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "lane", laid{0, 3, hour, []byte("blob one")}, laid{3, 2, hour, []byte("blob two")})
	b.exec(`UPDATE queen.log_segments SET created_at = '2026-03-01 10:00:00.000123+02' WHERE base_offset = 0`)
	b.start(pid, "g", 0)
	popped, err := b.store.PopSpecific(t.Context(), "q", "lane", popArgs("g", 3))
	require.NoError(t, err)
	require.Len(t, popped, 1)
	require.Equal(t, "lane", popped[0].Partition)
	require.Equal(t, pid, popped[0].PartitionID)
	require.Equal(t, 1, popped[0].DeliveryAttempt)
	require.Len(t, popped[0].Segments, 2)
	first := popped[0].Segments[0]
	require.Equal(t, []byte("blob one"), first.Blob)
	require.Equal(t, []int{1, 2}, []int{first.Start, first.Take})
	require.Equal(t, "2026-03-01T08:00:00.000123Z", first.CreatedAt)
	require.Equal(t, []byte("blob two"), popped[0].Segments[1].Blob)
}

func TestPopLeasesForTheAskedTimeElseTheQueueElseAMinute(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 1, hour, nil})
	pops := map[string]func(group string, seconds int){
		"specific": func(group string, seconds int) {
			p := popArgs(group, 1)
			p.LeaseSeconds = seconds
			b.specific("q", "p", p)
		},
		"wildcard": func(group string, seconds int) {
			p := popArgs(group, 1)
			p.LeaseSeconds = seconds
			b.wildcard("q", p)
		},
		"list": func(group string, seconds int) {
			p := popArgs(group, 1)
			p.LeaseSeconds = seconds
			b.list("q", []string{"p"}, p)
		},
		"discover": func(group string, seconds int) {
			p := popArgs(group, 1)
			p.LeaseSeconds = seconds
			b.discover("", "", p)
		},
	}
	for name, do := range pops {
		for i, tt := range []struct {
			queue     any
			ask, want int
		}{{30, 7, 7}, {30, 0, 30}, {30, -5, 30}, {0, 0, 60}, {nil, 0, 60}, {nil, 9, 9}} {
			group := name + string(rune('a'+i))
			b.option("q", "lease_time", tt.queue)
			do(group, tt.ask)
			require.Equal(t, tt.want, b.cursor(pid, group).LeaseSeconds, "%s: queue %v, asked %d", name, tt.queue, tt.ask)
		}
	}
}

func TestPopRespectsALiveLeaseAndTakesOverAnExpiredOne(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 10, hour, nil})
	p := popArgs("g", 3)
	require.Equal(t, []span{{"p", 0, 2}}, b.specific("q", "p", p))

	p.Worker, p.Budget = "second", 5
	require.Empty(t, b.specific("q", "p", p), "leased")
	require.Equal(t, []span{{"p", 0, 4}}, b.specific("q", "p", popArgs("other", 5)), "groups do not meet")

	b.expire(pid)
	require.Equal(t, []span{{"p", 0, 4}}, b.specific("q", "p", p), "redelivery is not bound to the old batch")
	c := b.cursor(pid, "g")
	require.Equal(t, popCursor{Committed: -1, BatchEnd: 4, Worker: "second", Attempts: 2, LeaseSeconds: 60}, c)

	b.expire(pid)
	popped, err := b.store.PopSpecific(t.Context(), "q", "p", p)
	require.NoError(t, err)
	require.Equal(t, 3, popped[0].DeliveryAttempt)

	b.exec(`UPDATE queen.log_consumers SET committed = 4, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL
		WHERE consumer_group = 'g'`)
	popped, err = b.store.PopSpecific(t.Context(), "q", "p", p)
	require.NoError(t, err)
	require.Equal(t, []span{{"p", 5, 9}}, spans(popped))
	require.Equal(t, 1, popped[0].DeliveryAttempt, "another start counts anew")
	c = b.cursor(pid, "g")
	require.Equal(t, []int64{5, 1}, []int64{c.AttemptOffset, int64(c.Attempts)})
}

func TestPopTreatsAnUnfinishedLeaseAsNone(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 1, hour, nil})
	b.start(pid, "no-expiry", -1)
	b.exec(`UPDATE queen.log_consumers SET worker_id = 'x', lease_expires_at = NULL`)
	require.NotEmpty(t, b.specific("q", "p", popArgs("no-expiry", 1)))
	b.start(pid, "no-worker", -1)
	b.exec(`UPDATE queen.log_consumers SET lease_expires_at = now() + interval '1 hour' WHERE consumer_group = 'no-worker'`)
	require.NotEmpty(t, b.specific("q", "p", popArgs("no-worker", 1)))
}

func TestAutoAckMovesTheCursorAndLeavesAttemptsAlone(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 10, hour, nil})
	b.start(pid, "g", -1)
	b.exec(`UPDATE queen.log_consumers SET worker_id = 'gone', lease_expires_at = now() - interval '1 s', lease_acquired_at = now(),
		batch_end = 8, attempt_offset = 0, attempt_count = 4, batch_retry_count = 2, total_consumed = 100`)
	p := popArgs("g", 3)
	p.AutoAck = true
	popped, err := b.store.PopSpecific(t.Context(), "q", "p", p)
	require.NoError(t, err)
	require.Equal(t, []span{{"p", 0, 2}}, spans(popped))
	require.Equal(t, 1, popped[0].DeliveryAttempt)
	require.Equal(t, popCursor{Committed: 2, Consumed: 103, Attempts: 4, Retries: 2}, b.cursor(pid, "g"))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers
		WHERE num_nonnulls(batch_end, worker_id, lease_expires_at, lease_acquired_at) > 0`))
	require.Equal(t, []span{{"p", 3, 5}}, b.specific("q", "p", p))
}

// TestPopNeverWaits holds, one after the other, every lock a pop could meet.
func TestPopNeverWaits(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 1, hour, nil})
	b.start(pid, "g", -1)
	queueLock := `SELECT 1 FROM queen.queues WHERE name = 'q' FOR UPDATE`
	laneLock := `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR UPDATE`

	release := b.hold(`SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, pid)
	require.Empty(t, b.specific("q", "p", popArgs("g", 1)), "cursor row held")
	require.Empty(t, b.wildcard("q", popArgs("g", 1)))
	release()

	release = b.hold(`SELECT pg_advisory_xact_lock(hashtextextended($1::text || '/fresh', 42))`, pid)
	require.Empty(t, b.specific("q", "p", popArgs("fresh", 1)), "first contact in flight")
	require.Equal(t, int64(1), b.cursors(pid))
	release()

	release = b.hold(laneLock, pid)
	require.Empty(t, b.specific("q", "p", popArgs("fresh", 1)), "lane being deleted")
	require.Empty(t, b.wildcard("q", popArgs("wild", 1)))
	release()

	release = b.hold(queueLock)
	require.Empty(t, b.wildcard("q", popArgs("late", 1)), "queue being deleted: not registered")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = 'late'`))
	release()

	release = b.hold(`SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, pid)
	require.NotEmpty(t, b.specific("q", "p", popArgs("fresh", 1)), "a pusher does not stand in the way")
	release()
	require.NotEmpty(t, b.wildcard("q", popArgs("wild", 1)), "seeded once the lane was free")
}

func TestEmptiedPartitionIsSealed(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	empty := func(queue string) uuid.UUID {
		pid := b.lay(queue, "p")
		b.exec(`UPDATE queen.log_partitions SET last_offset = 9, log_start = 10 WHERE id = $1`, pid)
		return pid
	}
	pops := map[string]func(queue string){
		"specific": func(queue string) { require.Empty(t, b.specific(queue, "p", popArgs("g", 5))) },
		"wildcard": func(queue string) { require.Empty(t, b.wildcard(queue, popArgs("g", 5))) },
		"list": func(queue string) {
			r := b.list(queue, []string{"p"}, popArgs("g", 5))
			require.Empty(t, r.Claimed)
			require.Equal(t, "empty", r.States[0].State)
		},
	}
	for name, do := range pops {
		pid := empty(name)
		b.start(pid, "g", 3)
		b.exec(`UPDATE queen.log_consumers SET worker_id = 'x', lease_expires_at = now() - interval '1 s', batch_end = 5,
			attempt_offset = 4, attempt_count = 3 WHERE partition_id = $1`, pid)
		before := b.cursor(pid, "g")
		do(name)
		before.Committed = 9
		require.Equal(t, before, b.cursor(pid, "g"), "%s: only the cursor moves", name)
	}

	pid := empty("hidden")
	b.option("hidden", "delayed_processing", 60)
	b.exec(`INSERT INTO queen.log_segments VALUES ($1, 10, 10, now(), '\x01')`, pid)
	b.exec(`UPDATE queen.log_partitions SET last_offset = 10 WHERE id = $1`, pid)
	b.start(pid, "g", 3)
	require.Empty(t, b.specific("hidden", "p", popArgs("g", 5)))
	require.Equal(t, int64(3), b.cursor(pid, "g").Committed, "segments exist, they are only hidden")

	pid = b.lay("below", "p", laid{0, 5, hour, nil})
	b.exec(`UPDATE queen.log_partitions SET last_offset = 9 WHERE id = $1`, pid)
	b.start(pid, "g", 4)
	require.Empty(t, b.specific("below", "p", popArgs("g", 5)))
	require.Equal(t, int64(4), b.cursor(pid, "g").Committed, "a lane with any segment is not sealed")

	pid = empty("ahead")
	b.start(pid, "g", 9)
	require.Empty(t, b.specific("ahead", "p", popArgs("g", 5)))
	require.Equal(t, int64(9), b.cursor(pid, "g").Committed)
}

func TestDelayHidesASuffix(t *testing.T) {
	t.Parallel()
	all := setupPop(t)
	const old, young = 2 * time.Minute, 10 * time.Second
	tests := []struct {
		name      string
		segs      []laid
		committed int64
		want      []span
	}{
		{"nothing hidden", []laid{{0, 2, old, nil}, {2, 2, old, nil}}, -1, []span{{"p", 0, 3}}},
		{"tail hidden", []laid{{0, 2, old, nil}, {2, 2, young, nil}}, -1, []span{{"p", 0, 1}}},
		{"head hidden", []laid{{0, 2, young, nil}}, -1, nil},
		{"hidden from the middle of the head", []laid{{0, 4, young, nil}}, 1, nil},
		{"clock stepped back behind a hidden head", []laid{{0, 2, young, nil}, {2, 2, old, nil}}, -1, nil},
		{"clock stepped back in the middle", []laid{{0, 2, old, nil}, {2, 2, young, nil}, {4, 2, old, nil}}, -1, []span{{"p", 0, 1}}},
		{"clock stepped back behind a head half read", []laid{{0, 4, young, nil}, {4, 2, old, nil}}, 1, nil},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := all.on(t)
			queue := "q" + string(rune('a'+i))
			pid := b.lay(queue, "p", tt.segs...)
			b.option(queue, "delayed_processing", 60)
			for _, group := range []string{"first contact", "with cursor"} {
				if group == "with cursor" || tt.committed >= 0 {
					b.start(pid, group, tt.committed)
				}
				require.Equal(t, tt.want, b.specific(queue, "p", popArgs(group, 10)), group)
			}
			b.start(pid, "listed", tt.committed)
			r := b.list(queue, []string{"p"}, popArgs("listed", 10))
			require.Equal(t, tt.want, spans(r.Claimed))
			require.Equal(t, map[bool]string{true: "leased", false: "took"}[tt.want == nil], r.States[0].State)
		})
	}
}

func TestWindowBufferHoldsALaneBeforeItsCursorIsTouched(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 1, hour, nil}, laid{1, 1, 2 * time.Second, nil})
	b.option("q", "window_buffer", 30)
	require.Empty(t, b.specific("q", "p", popArgs("g", 5)))
	require.Empty(t, b.wildcard("q", popArgs("wild", 5)))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'g'`))

	r := b.list("q", []string{"p"}, popArgs("wild", 5))
	require.Empty(t, r.Claimed)
	require.Equal(t, "leased", r.States[0].State)
	skipped, err := b.store.PopList(t.Context(), "q", []string{"p"}, true, popArgs("wild", 5))
	require.NoError(t, err)
	require.Equal(t, []span{{"p", 0, 1}}, spans(skipped.Claimed), "the ring times the hold")
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.log_pop_v1('q', 'p', 'raw', 5, 0, 'w', FALSE, 'all', '', TRUE)`))

	b.exec(`UPDATE queen.log_segments SET created_at = now() - interval '31 seconds' WHERE partition_id = $1 AND base_offset = 1`, pid)
	require.Equal(t, []span{{"p", 0, 1}}, b.specific("q", "p", popArgs("g", 5)))
}
