package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

var (
	toEnd = store.SeekTo{End: true}
	epoch = store.SeekTo{At: time.Unix(0, 0)}
)

// seek makes all steps of a seek and returns its answer.
func (b *bench) seek(queue, group string, to store.SeekTo) map[string]any {
	b.t.Helper()
	step, err := b.store.SeekStep(b.t.Context(), store.DefaultTenant(), queue, group, to, store.GroupStep{})
	require.NoError(b.t, err)
	require.False(b.t, step.More)
	return object(b.t, step.Answer)
}

func (b *bench) seekPartition(queue, partition, group string, to store.SeekTo) map[string]any {
	b.t.Helper()
	doc, err := b.store.SeekPartition(b.t.Context(), store.DefaultTenant(), queue, partition, group, to)
	require.NoError(b.t, err)
	return object(b.t, doc)
}

// deleteGroup makes all steps of a deletion from all queues.
func (b *bench) deleteGroup(group string, metadata bool) map[string]any {
	b.t.Helper()
	step, err := b.store.DeleteGroupLabels(b.t.Context(), store.DefaultTenant(), group, metadata)
	require.NoError(b.t, err)
	queues, err := b.store.GroupQueues(b.t.Context(), store.DefaultTenant(), group)
	require.NoError(b.t, err)
	for _, q := range queues {
		step, err = b.store.DeleteGroupStep(b.t.Context(), store.DefaultTenant(), q, group, metadata, step)
		require.NoError(b.t, err)
		require.False(b.t, step.More)
	}
	return object(b.t, step.Answer)
}

// aged makes the segments of a lane as old as its offsets are far from the end, in minutes.
func (b *bench) aged(pid uuid.UUID) {
	b.t.Helper()
	b.exec(`UPDATE queen.log_segments AS s SET created_at = now() - make_interval(mins => (p.last_offset - s.base_offset)::int)
		FROM queen.log_partitions AS p WHERE p.id = s.partition_id AND p.id = $1`, pid)
	b.exec(`UPDATE queen.log_partitions AS p SET
		oldest_live_at = (SELECT min(s.created_at) FROM queen.log_segments AS s WHERE s.partition_id = p.id) WHERE p.id = $1`, pid)
}

func minutesAgo(n float64) store.SeekTo {
	return store.SeekTo{At: time.Now().Add(-time.Duration(n * float64(time.Minute)))}
}

func TestSeekGoesToTheSegmentOfATime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane() // segments at 0, 2, 3 and 6, of 7, 5, 4 and 1 minutes
	b.aged(pid)
	for name, c := range map[string]struct {
		to   store.SeekTo
		want int64
	}{
		"the end":                 {toEnd, 7},
		"the beginning":           {epoch, -1},
		"just before a segment":   {minutesAgo(5.1), 1},
		"inside of a segment":     {minutesAgo(4.5), 2},
		"the newest segment":      {minutesAgo(3), 5},
		"after all of them":       {minutesAgo(0), 7},
		"a time that is to come":  {minutesAgo(-60), 7},
		"the end before the time": {store.SeekTo{End: true, At: time.Unix(0, 0)}, 7},
	} {
		b.exec(`DELETE FROM queen.log_consumers`)
		answer := b.seek("q", "g", c.to)
		require.Equal(t, c.want, b.state(pid, "g").Committed, name)
		require.Equal(t, 1.0, answer["partitionsUpdated"], name)
		b.seekPartition("q", "p", "h", c.to)
		require.Equal(t, b.state(pid, "g"), b.state(pid, "h"), name)
	}
	b.exec(`DELETE FROM queen.log_segments WHERE base_offset < 3`)
	b.exec(`UPDATE queen.log_partitions SET log_start = 3`)
	b.seek("q", "g", epoch)
	require.Equal(t, int64(2), b.state(pid, "g").Committed, "the oldest segment that is retained")
	b.exec(`DELETE FROM queen.log_segments`)
	b.seek("q", "g", epoch)
	require.Equal(t, int64(7), b.state(pid, "g").Committed, "nothing is retained")
}

func TestSeekAnswersItsShape(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.lane()
	at := store.SeekTo{At: time.Date(2026, 3, 4, 5, 6, 7, 891_234_000, time.UTC)}
	require.Equal(t, map[string]any{
		"success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": false,
		"targetTimestamp": "2026-03-04T05:06:07.891Z", "partitionsUpdated": 1.0,
	}, b.seek("q", "g", at))
	require.Equal(t, map[string]any{
		"success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": true, "targetTimestamp": nil, "partitionsUpdated": 1.0,
	}, b.seek("q", "g", toEnd))
	require.Equal(t, map[string]any{
		"success": true, "consumerGroup": "g", "queueName": "q", "partitionName": "p", "seekToEnd": true, "targetTimestamp": nil, "updated": true,
	}, b.seekPartition("q", "p", "g", toEnd))

	b.exec(`INSERT INTO queen.queues (name) VALUES ('bare')`)
	b.exec(`INSERT INTO queen.queues (name, tenant_id) VALUES ('foreign', gen_random_uuid())`)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name) SELECT id, 'p' FROM queen.queues WHERE name = 'foreign'`)
	for _, queue := range []string{"none", "bare", "foreign"} {
		require.Equal(t, map[string]any{
			"success": false, "error": "Queue not found or has no partitions", "consumerGroup": "g", "queueName": queue, "partitionsUpdated": 0.0,
		}, b.seek(queue, "g", toEnd))
		require.Equal(t, map[string]any{"success": false, "error": "Partition not found"}, b.seekPartition(queue, "p", "g", toEnd))
	}
	require.Equal(t, map[string]any{"success": false, "error": "Partition not found"}, b.seekPartition("q", "none", "g", toEnd))
	for _, call := range []string{`queen.log_seek_consumer_group_v1('g', 'q')`, `queen.log_seek_partition_v1('g', 'q', 'p')`} {
		require.Equal(t, map[string]any{"success": false, "error": "Must specify either toEnd=true or a timestamp"}, b.answerOf(`SELECT `+call))
	}
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_consumers`), "nothing else was touched")
}

// A seek ends the lease, and what is delivered next is delivered for the first time.
func TestSeekClearsTheCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	for _, seek := range []func(){
		func() { b.seek("q", "g", epoch) },
		func() { b.seekPartition("q", "p", "g", epoch) },
		func() { b.answerOf(`SELECT queen.log_seek_consumer_group_v1('g', 'q', FALSE, 'epoch')`) },
		func() { b.exec(`SELECT queen.log_seek_one_v1($1, 7, 0, 'g', FALSE, 'epoch')`, pid) },
	} {
		b.exec(`DELETE FROM queen.log_consumers`)
		b.leased(pid, "g", "w", 1, 4)
		b.leased(pid, "other", "w", 1, 4)
		seek()
		require.Equal(t, ackState{Committed: -1, Consumed: 10}, b.state(pid, "g"))
		require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_consumers WHERE lease_expires_at IS NULL AND lease_acquired_at IS NULL`))
		require.NotNil(t, b.state(pid, "other").Worker, "another group keeps its lease")
	}
}

// Somebody who consumes beyond the end that a seek has seen must not be taken back.
func TestSeekToTheEndNeverGoesBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, "g", 7)
	b.exec(`SELECT queen.log_seek_one_v1($1, 5, 0, 'g', TRUE, NULL)`, pid)
	require.Equal(t, int64(7), b.state(pid, "g").Committed)
}

func TestSeeksAndDeletionsGoInSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 7
	for i := range n {
		b.queued(fresh("q", fmt.Sprint(i), 1))
		b.queued(fresh("beside", fmt.Sprint(i), 1))
	}
	steps := func(call string) (sizes []int64, answer map[string]any) {
		var after *uuid.UUID
		zero := uuid.UUID{}
		after = &zero
		var done int64
		for after != nil {
			var doc []byte
			before := done
			b.one([]any{&after, &done, &doc}, `SELECT r_after, r_done, r_answer FROM `+call, *after, 3, done)
			sizes = append(sizes, done-before)
			answer = object(b.t, doc)
		}
		return sizes, answer
	}
	sizes, answer := steps(`queen.log_seek_step_v1('g', 'q', TRUE, NULL, '` + store.DefaultTenant().String() + `', $1, $2, $3)`)
	require.Equal(t, []int64{3, 3, 1}, sizes)
	require.Equal(t, 7.0, answer["partitionsUpdated"])
	require.Equal(t, int64(n), b.count(`SELECT count(*) FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = 'q' AND c.committed = 0`))

	b.seek("beside", "g", toEnd)
	sizes, answer = steps(`queen.log_delete_group_step_v1('g', 'q', TRUE, '` + store.DefaultTenant().String() + `', $1, $2, $3)`)
	require.Equal(t, []int64{3, 3, 1}, sizes)
	require.Equal(t, 7.0, answer["deletedPartitions"])
	require.Equal(t, int64(n), b.count(`SELECT count(*) FROM queen.log_consumers`), "the other queue keeps its cursors")
}

// A page that is full to the last lane is followed by an empty one.
func TestALastStepMayBeEmpty(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	var after *uuid.UUID
	var done int64
	var doc []byte
	call := `SELECT r_after, r_done, r_answer FROM queen.log_seek_step_v1('g', 'q', TRUE, NULL, $1, $2, 1, $3)`
	b.one([]any{&after, &done, &doc}, call, store.DefaultTenant(), uuid.UUID{}, 0)
	require.Equal(t, pid, *after)
	b.one([]any{&after, &done, &doc}, call, store.DefaultTenant(), pid, done)
	require.Nil(t, after)
	require.Equal(t, 1.0, object(t, doc)["partitionsUpdated"])
}

func TestSeekMakesWaitForItsLanesOnlyWhoMust(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, "g", 3)
	// A transaction that has the lane and its cursor is waited for, and then overruled.
	done := make(chan error, 1)
	b.whileRunning(fmt.Sprintf(`UPDATE queen.log_consumers SET committed = 5 WHERE partition_id = '%s'`, pid), func() {
		go func() {
			_, err := b.store.SeekStep(context.Background(), store.DefaultTenant(), "q", "g", epoch, store.GroupStep{})
			done <- err
		}()
	})
	require.NoError(t, <-done)
	require.Equal(t, int64(-1), b.state(pid, "g").Committed)
	// A pusher, which holds the lane, is not.
	b.inside(fmt.Sprintf(`UPDATE queen.log_partitions SET last_offset = 9 WHERE id = '%s'`, pid), func() {
		b.seek("q", "g", toEnd)
		b.seek("q", "new", toEnd)
	})
	require.Equal(t, int64(7), b.state(pid, "new").Committed)
}

func TestSeekDropsTheWatermark(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 4, hour, nil})
	b.exec(`UPDATE queen.log_partitions SET last_write_at = now() - interval '1 hour'`)
	for name, seek := range map[string]func(){
		"all lanes": func() { b.seek("q", "g", epoch) },
		"one lane":  func() { b.seekPartition("q", "p", "g", epoch) },
		"a deletion": func() {
			require.Equal(t, 1.0, b.deleteGroup("g", false)["deletedPartitions"])
		},
	} {
		b.start(pid, "g", 3)
		b.exec(`INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at)
			SELECT q.id, g, now() + interval '10 minutes' FROM queen.queues AS q, unnest(ARRAY['g', 'other']) AS g ON CONFLICT DO NOTHING`)
		seek()
		require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.consumer_watermarks`), "%s: that of the group is gone, no other", name)
		require.Equal(t, []span{{"p", 0, 3}}, b.wildcard("q", popArgs("g", 9)), name)
		b.expire(pid)
	}
}

// A scan that has found nothing writes the watermark after the look. A cursor that goes
// back meanwhile must not vanish behind it.
func TestAnEmptyScanDoesNotHideWhatASeekBringsBack(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 4, hour, nil})
	b.exec(`UPDATE queen.log_partitions SET last_write_at = now() - interval '1 hour'`)
	var queue uuid.UUID
	b.one([]any{&queue}, `SELECT queue_id FROM queen.log_partitions WHERE id = $1`, pid)
	// The scan began by a watermark that is ahead of everything.
	scan := fmt.Sprintf(`SELECT queen.log_pop_empty_scan_v1('{%s}', 'g', now() + interval '10 minutes', now(), TRUE)`, queue)
	visible := func(when string) {
		t.Helper()
		require.Equal(t, []span{{"p", 0, 3}}, b.wildcard("q", popArgs("g", 9)), when)
		b.exec(`UPDATE queen.log_consumers SET committed = 3, worker_id = NULL, batch_end = NULL, lease_expires_at = NULL`)
	}
	for _, row := range []string{``, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) VALUES ('` + queue.String() + `', 'g')`} {
		prepare := func() {
			b.start(pid, "g", 3)
			b.exec(`DELETE FROM queen.consumer_watermarks`)
			if row != "" {
				b.exec(row)
			}
		}
		prepare()
		b.inside(`SELECT queen.log_seek_consumer_group_v1('g', 'q', FALSE, 'epoch')`, func() { b.exec(scan) })
		visible("the scan comes while the seek is open")

		prepare()
		b.seek("q", "g", epoch)
		b.exec(scan)
		visible("the scan comes after the seek")

		prepare()
		done := make(chan error, 1)
		b.whileRunning(scan, func() {
			go func() {
				_, err := b.store.SeekStep(context.Background(), store.DefaultTenant(), "q", "g", epoch, store.GroupStep{})
				done <- err
			}()
		})
		require.NoError(t, <-done)
		visible("the seek comes while the scan is open")
	}
}

func TestDeletedGroupsStartAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		metadata bool
		mode     string // of the pop after the deletion
		want     []span
	}{
		"without its registration":        {true, "all", []span{{"p", 0, 3}}},
		"with another registration":       {true, "new", nil},
		"with the registration it had":    {false, "new", []span{{"p", 0, 3}}},
		"with the registration, as it is": {false, "all", []span{{"p", 0, 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupPop(t)
			b.lay("q", "p", laid{0, 4, hour, nil})
			b.lay("other", "p", laid{0, 4, hour, nil})
			p := popArgs("g", 9)
			p.SubMode = "all"
			for _, q := range []string{"q", "other"} {
				require.Len(t, b.wildcard(q, p), 1)
			}
			require.Empty(t, b.wildcard("q", p), "leased")
			b.discover("ns", "", p)
			require.Equal(t, map[string]any{
				"success": true, "consumerGroup": "g", "deletedPartitions": 2.0, "metadataDeleted": c.metadata,
			}, b.deleteGroup("g", c.metadata))
			require.Equal(t, c.metadata, b.count(`SELECT count(*) FROM queen.consumer_groups_metadata`) == 0)
			p.SubMode = c.mode
			require.Equal(t, c.want, b.wildcard("q", p))
			require.Equal(t, c.want, b.wildcard("other", p))
		})
	}
}

func TestDeletionOfNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, "h", 3)
	want := map[string]any{"success": true, "consumerGroup": "g", "deletedPartitions": 0.0, "metadataDeleted": true}
	require.Equal(t, want, b.deleteGroup("g", true))
	require.Equal(t, want, b.answerOf(`SELECT queen.log_delete_consumer_group_v1('g')`))
	want["queueName"] = "none"
	require.Equal(t, want, b.answerOf(`SELECT queen.delete_consumer_group_for_queue_v1('g', 'none')`))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_consumers`))
}

// The procedures that take everything at once do what the steps do.
func TestDeletionInOneTransaction(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	foreign := uuid.New()
	for _, q := range []string{"q", "other", "foreign"} {
		b.lay(q, "p1", laid{0, 1, hour, nil})
		b.lay(q, "p2", laid{0, 1, hour, nil})
		for _, g := range []string{"g", "h"} {
			require.Len(t, b.wildcard(q, popArgs(g, 9)), 2)
			require.Empty(t, b.wildcard(q, popArgs(g, 9))) // makes the watermark
		}
	}
	b.exec(`UPDATE queen.queues SET tenant_id = $1 WHERE name = 'foreign'`, foreign)
	b.exec(`UPDATE queen.consumer_groups_metadata SET tenant_id = $1 WHERE queue_id = (SELECT id FROM queen.queues WHERE name = 'foreign')`, foreign)
	left := func(group string) (rows [3]int64) {
		b.one([]any{&rows[0], &rows[1], &rows[2]}, `SELECT (SELECT count(*) FROM queen.log_consumers WHERE consumer_group = $1),
			(SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = $1),
			(SELECT count(*) FROM queen.consumer_watermarks WHERE consumer_group = $1)`, group)
		return rows
	}
	require.Equal(t, [3]int64{6, 3, 3}, left("g"))
	require.Equal(t, map[string]any{"success": true, "consumerGroup": "g", "queueName": "q", "deletedPartitions": 2.0, "metadataDeleted": false},
		b.answerOf(`SELECT queen.delete_consumer_group_for_queue_v1('g', 'q', FALSE)`))
	require.Equal(t, [3]int64{4, 3, 2}, left("g"))
	require.Equal(t, map[string]any{"success": true, "consumerGroup": "g", "deletedPartitions": 2.0, "metadataDeleted": true},
		b.answerOf(`SELECT queen.log_delete_consumer_group_v1('g')`))
	require.Equal(t, [3]int64{2, 1, 1}, left("g"), "another tenant keeps its own")
	require.Equal(t, [3]int64{6, 3, 3}, left("h"))
}

func TestSubscriptionsMoveNoCursor(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 4, hour, nil})
	require.Len(t, b.wildcard("q", popArgs("g", 9)), 1)
	require.Empty(t, b.wildcard("q", popArgs("g", 9)))
	b.discover("ns", "", popArgs("g", 9))
	before := b.cursor(pid, "g")
	at := time.Now().Add(-30 * time.Minute)
	doc, err := b.store.Subscribe(t.Context(), store.DefaultTenant(), "g", at)
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"success": true, "consumerGroup": "g", "newTimestamp": at.UTC().Truncate(time.Millisecond).Format("2006-01-02T15:04:05.000Z"), "rowsUpdated": 2.0,
	}, object(t, doc))
	require.Equal(t, before, b.cursor(pid, "g"))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.consumer_watermarks`))

	// It decides in lanes that the group has not touched, also those of a queue that its
	// registration for a namespace covers, whose lanes are seeded all at once.
	b.lay("q", "later", laid{0, 2, hour, nil}, laid{2, 2, time.Minute, nil})
	require.Equal(t, []span{{"later", 2, 3}}, b.wildcard("q", popArgs("g", 9)))
	b.lay("covered", "p", laid{0, 2, hour, nil}, laid{2, 2, time.Minute, nil})
	b.exec(`UPDATE queen.queues SET namespace = 'ns' WHERE name = 'covered'`)
	require.Equal(t, []span{{"p", 2, 3}}, b.wildcard("covered", popArgs("g", 9)))

	doc, err = b.store.Subscribe(t.Context(), uuid.New(), "g", at)
	require.NoError(t, err)
	require.Equal(t, 0.0, object(t, doc)["rowsUpdated"], "another tenant")
}

// Seeks, deletions, pops, acks and deletions of the queue at once end without a
// deadlock, and nothing is left behind that the others would trip over.
func TestGroupsChangeBesideEverythingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const lanes = 24
	push := func() error {
		for i := range lanes {
			if _, err := b.store.PushMulti(t.Context(), []store.PushSegment{fresh("q", fmt.Sprint(i), 2)}); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, push())
	ctx := t.Context()
	tenant := store.DefaultTenant()
	work := []func(i int) error{
		func(int) error {
			_, err := b.store.SeekStep(ctx, tenant, "q", "g", epoch, store.GroupStep{})
			return err
		},
		func(int) error {
			_, err := b.store.SeekStep(ctx, tenant, "q", "g", toEnd, store.GroupStep{})
			return err
		},
		func(int) error {
			_, err := b.store.DeleteGroupStep(ctx, tenant, "q", "g", true, store.GroupStep{})
			return err
		},
		func(i int) error {
			_, err := b.store.SeekPartition(ctx, tenant, "q", fmt.Sprint(i%lanes), "g", epoch)
			return err
		},
		func(int) error {
			return b.db.Do(ctx, "delete", func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, `SELECT queen.log_delete_consumer_group_v1('g')`)
				return err
			})
		},
		func(i int) error {
			if i%20 == 19 {
				_, err := b.store.DeleteQueue(ctx, tenant, "q")
				return err
			}
			return nil
		},
		func(int) error { return push() },
	}
	for w := range 3 {
		work = append(work, func(i int) error {
			p := popArgs("g", 8)
			p.Worker = fmt.Sprintf("w%d-%d", w, i)
			popped, err := b.store.PopWildcard(ctx, "q", p)
			for _, l := range popped {
				if err != nil {
					break
				}
				last := l.Segments[len(l.Segments)-1]
				_, err = b.store.AckMulti(ctx, []store.AckRow{{PartitionID: l.PartitionID, Group: "g", Worker: p.Worker, End: last.Base + int64(last.Take) - 1, Count: 1}})
			}
			return err
		})
	}
	var wg sync.WaitGroup
	for n, job := range work {
		wg.Go(func() {
			for i := range 40 {
				if err := job(i); err != nil && store.Classify(err) != store.Transient {
					t.Errorf("job %d: %v", n, err)
				} else if err != nil {
					require.NotContains(t, err.Error(), "40P01", "job %d", n)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers AS c WHERE committed > (SELECT last_offset FROM queen.log_partitions WHERE id = c.partition_id)`))
}
