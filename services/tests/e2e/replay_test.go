package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// buried pushes one message and has it dead-lettered for some groups.
func buried(t *testing.T, payload any, groups ...string) (b *harness.Broker, q, partitionID, txn string) {
	t.Helper()
	b, q = shared(t)
	txn = b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: payload})[0]
	for _, g := range groups {
		p := b.Pop(t, q, "consumerGroup="+g)
		require.True(t, b.AckOK(t, g, p.Acks("dlq")...)[0].DLQ)
	}
	return b, q, b.DB.PartitionID(t, q, "p"), txn
}

func TestRetryMovesTheNewestLetter(t *testing.T) {
	t.Parallel()
	b, q, pid, txn := buried(t, map[string]any{"n": 1}, "a", "b")
	newest := b.DLQ(t, q, "")[0]
	require.Equal(t, "b", newest.ConsumerGroup)
	a := b.Post(t, messagePath(pid, txn)+"/retry", `{}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	out := a.Object(t)
	as := out["replayedAs"].(map[string]any)
	requireUUIDv7(t, as["message_id"].(string))
	require.Equal(t, map[string]any{
		"success": true, "result": "moved", "queue": q, "partition": "p", "consumerGroup": "b", "dlqId": newest.ID,
		"originalTransactionId": txn, "dlqRowRemoved": true,
		"replayedAs": map[string]any{
			"index": 0.0, "message_id": as["message_id"], "transaction_id": "dlq:" + newest.ID, "queueName": q, "status": "queued", "offset": 1.0,
		},
	}, out)
	rows := b.DLQ(t, q, "")
	require.Len(t, rows, 1, "that letter only")
	require.Equal(t, "a", rows[0].ConsumerGroup)

	for _, group := range []string{"a", "b"} {
		p := b.Pop(t, q, "batch=10&consumerGroup="+group)
		require.Equal(t, []string{"dlq:" + newest.ID}, p.IDs())
		require.JSONEq(t, `{"n":1}`, p.Payloads()[0])
		require.Equal(t, as["message_id"], p.Messages[0].ID)
	}
}

func TestReplayWakesAWaitingPop(t *testing.T) {
	t.Parallel()
	b, q, _, _ := buried(t, "x", "g")
	letter := b.DLQ(t, q, "")[0]
	done := make(chan harness.Popped, 1)
	go func() { // it waits, or comes just in time
		p, err := b.TryPop(t.Context(), harness.PopPath(q, "consumerGroup=g&wait=true&timeout=20000"))
		if err != nil {
			t.Error(err)
		}
		done <- p
	}()
	a := b.Post(t, "/api/v1/dlq/"+letter.ID+"/replay", "")
	require.Equal(t, http.StatusOK, a.Status, a)
	p := <-done
	require.Equal(t, []string{"dlq:" + letter.ID}, p.IDs())
}

func TestReplayRestoresTheBytes(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{
		"null": `null`, "text": `"x"`, "NUL": `{"a":"x\u0000y"}`, "lone surrogate": `"\ud800 tail"`, "huge exponent": `1e999999`, "marker": `{"$raw":"aGk="}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s}]}`, q, payload))
			require.Equal(t, http.StatusCreated, a.Status, a)
			b.AckOK(t, "", b.Pop(t, q, "").Acks("dlq")...)
			a = b.Post(t, "/api/v1/dlq/"+b.DLQ(t, q, "")[0].ID+"/replay", "{}")
			require.Equal(t, http.StatusOK, a.Status, a)
			require.Equal(t, []string{payload}, b.Pop(t, q, "").Payloads())
		})
	}
}

func TestReplayToAnotherLane(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, queue, partition string }{
		"none":            {``, "", "p"},
		"an empty object": {`{}`, "", "p"},
		"nulls":           {`{"queue":null,"partition":null}`, "", "p"},
		"a queue":         {`{"queue":" OTHER "}`, "OTHER", "p"},
		"a partition":     {`{"partition":"r","more":1}`, "", "r"},
		"both":            {`{"queue":"OTHER","partition":"r"}`, "OTHER", "r"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, _, _ := buried(t, 1, "g")
			queue := q
			if c.queue != "" {
				queue = "other-" + q
			}
			letter := b.DLQ(t, q, "")[0]
			a := b.Post(t, "/api/v1/dlq/"+letter.ID+"/replay", strings.ReplaceAll(c.body, "OTHER", "other-"+q))
			require.Equal(t, http.StatusOK, a.Status, a)
			require.Equal(t, queue, a.Object(t)["queue"])
			require.Equal(t, c.partition, a.Object(t)["partition"])
			require.Equal(t, []string{"dlq:" + letter.ID}, b.PopPartition(t, queue, c.partition, "consumerGroup=g").IDs())
			require.Empty(t, b.DLQ(t, q, ""))
		})
	}
	b, q, _, _ := buried(t, 1, "g")
	path := "/api/v1/dlq/" + b.DLQ(t, q, "")[0].ID + "/replay"
	for body, want := range map[string]string{
		`{"queue":" "}`:          "queue must not be blank; leave it out to keep that of the dead letter",
		`{"partition":""}`:       "partition must not be blank; leave it out to keep that of the dead letter",
		`{"queue":1}`:            "bad body: queue: a string is allowed here, got a number",
		`[]`:                     "bad body: an object is allowed here, got an array",
		`{"partition":"\u0001"}`: "bad body: partition: holds a control character; letters, digits, blanks and punctuation are allowed",
	} {
		a := b.Post(t, path, body)
		require.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", body, a)
		require.Equal(t, want, a.ErrorText(t), body)
	}
	require.Len(t, b.DLQ(t, q, ""), 1)
}

func TestReplayOfADuplicateChangesNothing(t *testing.T) {
	t.Parallel()
	for name, far := range map[string]bool{"near": false, "beyond the first page of the search": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, pid, txn := buried(t, 1, "g")
			letter := b.DLQ(t, q, "")[0]
			b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "dlq:" + letter.ID, Payload: "twin"})
			if far {
				b.PushEach(t, q, "p", 70)
			}
			tip := harness.Value[int64](t, b.DB, `SELECT last_offset FROM queen.log_partitions WHERE id = $1::uuid`, pid)
			for _, path := range []string{messagePath(pid, txn) + "/retry", "/api/v1/dlq/" + letter.ID + "/replay"} {
				a := b.Post(t, path, `{}`)
				require.Equal(t, http.StatusOK, a.Status, a)
				out := a.Object(t)
				require.Equal(t, map[string]any{
					"index": 0.0, "message_id": zeroUUID, "transaction_id": "dlq:" + letter.ID, "queueName": q, "status": "duplicate", "offset": 1.0,
				}, out["replayedAs"])
				require.Equal(t, true, out["success"])
				require.Equal(t, "duplicate", out["result"])
				require.Equal(t, false, out["dlqRowRemoved"])
			}
			require.Len(t, b.DLQ(t, q, ""), 1)
			require.Equal(t, tip, harness.Value[int64](t, b.DB, `SELECT last_offset FROM queen.log_partitions WHERE id = $1::uuid`, pid))

			// Where the window is off, or over, it is no duplicate.
			b.DB.Exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0 WHERE name = $1`, q)
			a := b.Post(t, "/api/v1/dlq/"+letter.ID+"/replay", `{}`)
			require.Equal(t, "moved", a.Object(t)["result"], a)
		})
	}
}

func TestNothingToReplay(t *testing.T) {
	t.Parallel()
	b, q, pid, txn := buried(t, 1, "g")
	live := b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: 2})[0]
	for _, at := range [][2]string{{pid, live}, {pid, "never"}, {zeroUUID, txn}, {"nonsense", txn}} {
		for _, answer := range []harness.Answer{b.Post(t, messagePath(at[0], at[1])+"/retry", `{}`), b.Delete(t, messagePath(at[0], at[1]))} {
			require.Equal(t, http.StatusNotFound, answer.Status, answer)
			out := answer.Object(t)
			require.NotEmpty(t, out["message"])
			delete(out, "message")
			require.Equal(t, map[string]any{"success": false, "partitionId": at[0], "transactionId": at[1], "error": "Message not found"}, out)
		}
	}
	for _, id := range []string{zeroUUID, "nonsense"} {
		a := b.Post(t, "/api/v1/dlq/"+id+"/replay", `{}`)
		require.Equal(t, http.StatusNotFound, a.Status, a)
		out := a.Object(t)
		require.NotEmpty(t, out["message"])
		delete(out, "message")
		require.Equal(t, map[string]any{"success": false, "result": "gone", "dlqId": id, "error": "Message not found"}, out)
	}
	letter := b.DLQ(t, q, "")[0]
	b.DB.Exec(t, `UPDATE queen.queues SET tenant_id = gen_random_uuid() WHERE name = $1`, q)
	require.Equal(t, http.StatusNotFound, b.Post(t, "/api/v1/dlq/"+letter.ID+"/replay", `{}`).Status, "of another tenant")
	require.Equal(t, http.StatusNotFound, b.Post(t, messagePath(pid, txn)+"/retry", `{}`).Status)
	require.Equal(t, http.StatusNotFound, b.Delete(t, messagePath(pid, txn)).Status)
}

func TestLettersOfTimersAreNotReplayed(t *testing.T) {
	t.Parallel()
	b, q, pid, txn := buried(t, 1, "g")
	b.DB.Exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload, failed_at)
		VALUES ($1::uuid, '__timer__', -1, 'timer', '1', now()), ($1::uuid, '__timer__', -1, $2, '1', now() + interval '1 minute')`, pid, txn)
	id := harness.Value[string](t, b.DB, `SELECT id::text FROM queen.log_dlq WHERE transaction_id = 'timer' AND partition_id = $1::uuid`, pid)
	for _, path := range []string{messagePath(pid, "timer") + "/retry", "/api/v1/dlq/" + id + "/replay"} {
		a := b.Post(t, path, `{}`)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, "a dead letter of a timer is not replayed: schedule the timer again, and delete the letter", a.ErrorText(t))
	}
	a := b.Post(t, messagePath(pid, txn)+"/retry", `{}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, "g", a.Object(t)["consumerGroup"], "one that can be replayed is meant, though it is older")
	require.Len(t, b.DLQ(t, q, ""), 2)
}

func TestConcurrentReplaysMoveALetterOnce(t *testing.T) {
	t.Parallel()
	b, q, _, _ := buried(t, 1, "g")
	letter := b.DLQ(t, q, "")[0]
	var wg sync.WaitGroup
	results := make(chan int, 8)
	for i := range 8 {
		wg.Go(func() {
			a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/dlq/"+letter.ID+"/replay", []byte(fmt.Sprintf(`{"partition":"to-%d"}`, i%3)))
			if err != nil {
				t.Error(err)
			}
			results <- a.Status
		})
	}
	wg.Wait()
	close(results)
	moved := 0
	for status := range results {
		if status == http.StatusOK {
			moved++
		} else {
			require.Equal(t, http.StatusNotFound, status)
		}
	}
	require.Equal(t, 1, moved)
	require.Equal(t, int64(1), harness.Value[int64](t, b.DB, `SELECT sum(p.last_offset + 1)::bigint FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1 AND p.name LIKE 'to-%'`, q))
	require.Empty(t, b.DLQ(t, q, ""))
}

func TestFailedReplaysSayWhatBecameOfTheLetter(t *testing.T) {
	t.Parallel()
	b, q, pid, txn := buried(t, 1, "g")
	letter := b.DLQ(t, q, "")[0]
	b.DB.Exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF OLD.transaction_id = TG_ARGV[0] THEN RAISE EXCEPTION 'refused by the test'; END IF; RETURN OLD; END $$`)
	defer func() { b.DB.Exec(t, `DROP FUNCTION public.refuse() CASCADE`) }()
	b.DB.Exec(t, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE DELETE ON queen.log_dlq FOR EACH ROW EXECUTE FUNCTION public.refuse('%s')`, txn))
	for _, path := range []string{messagePath(pid, txn) + "/retry", "/api/v1/dlq/" + letter.ID + "/replay"} {
		a := b.Post(t, path, `{}`)
		require.Equal(t, http.StatusInternalServerError, a.Status, a)
		out := a.Object(t)
		require.Equal(t, false, out["success"])
		require.Equal(t, false, out["dlqRowRemoved"])
		require.Contains(t, out["error"], "dlq replay failed: ")
		require.Contains(t, out["error"], "refused by the test")
	}
	require.Equal(t, int64(0), harness.Value[int64](t, b.DB, `SELECT last_offset FROM queen.log_partitions WHERE id = $1::uuid`, pid), "nothing was pushed")
	require.Len(t, b.DLQ(t, q, ""), 1)
}

func TestDeleteOfALetterDeletesThoseOfAllGroups(t *testing.T) {
	t.Parallel()
	b, q, pid, txn := buried(t, 1, "a", "b")
	other := b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: 2})[0]
	b.AckOK(t, "a", b.Pop(t, q, "consumerGroup=a").Acks("dlq")...)
	a := b.Delete(t, messagePath(pid, txn))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.JSONEq(t, fmt.Sprintf(`{"success":true,"partitionId":%q,"transactionId":%q,"message":"Message deleted successfully"}`, pid, txn), string(a.Body))
	rows := b.DLQ(t, q, "")
	require.Len(t, rows, 1)
	require.Equal(t, other, rows[0].TransactionID)
}

func TestPurgeOfLetters(t *testing.T) {
	t.Parallel()
	b, q, pid, _ := buried(t, 1)
	fill := func() {
		b.DB.Exec(t, `DELETE FROM queen.log_dlq WHERE partition_id = $1::uuid`, pid)
		b.DB.Exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload, failed_at)
			SELECT $1::uuid, CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END, i, 't' || i, '1', now() - make_interval(hours => i)
			FROM generate_series(1, 10) AS i`, pid)
	}
	stamp := url.QueryEscape(time.Now().Add(-5*time.Hour - 30*time.Minute).UTC().Format(time.RFC3339))
	for more, want := range map[string]int{
		"": 10, "&consumerGroup=odd": 5, "&consumerGroup=none": 0, "&partition=p": 10, "&partition=r": 0, "&from=" + stamp: 5, "&to=" + stamp + "&consumerGroup=even": 3,
	} {
		fill()
		a := b.Delete(t, "/api/v1/dlq?queue="+q+more)
		require.Equal(t, http.StatusOK, a.Status, a)
		out := a.Object(t)
		requireKeys(t, out, "success", "deleted", "queue", "consumerGroup")
		require.Equal(t, true, out["success"])
		require.InDelta(t, want, out["deleted"], 0, more)
		require.Equal(t, q, out["queue"])
		require.Len(t, b.DLQ(t, q, ""), 10-want)
	}
	require.Nil(t, b.Delete(t, "/api/v1/dlq?queue="+q).Object(t)["consumerGroup"])
	require.Equal(t, "odd", b.Delete(t, "/api/v1/dlq?queue="+q+"&consumerGroup=odd").Object(t)["consumerGroup"])
	a := b.Delete(t, "/api/v1/dlq?queue=unknown-"+q)
	require.Equal(t, http.StatusOK, a.Status, a)
	for _, query := range []string{"", "?queue=", "?consumerGroup=odd"} {
		a := b.Delete(t, "/api/v1/dlq"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, "queue is required", a.ErrorText(t))
	}
}

// More letters than one transaction deletes.
func TestPurgeGoesInSteps(t *testing.T) {
	t.Parallel()
	b, q, pid, _ := buried(t, 1)
	b.DB.Exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", payload) SELECT $1::uuid, 'g', i, '1' FROM generate_series(1, 5001) AS i`, pid)
	a := b.Delete(t, "/api/v1/dlq?queue="+q)
	require.InDelta(t, 5001, a.Object(t)["deleted"], 0, a)
}

func TestLettersAreListedInPagesThatStandStill(t *testing.T) {
	t.Parallel()
	b, q, pid, _ := buried(t, 1)
	insert := func(n int) {
		b.DB.Exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload, failed_at)
			SELECT $1::uuid, 'g', i, 't' || i, '1', now() FROM generate_series(1, $2::int) AS i`, pid, n)
	}
	insert(5) // of one instant
	insert(4)
	want := b.DLQ(t, q, "")
	require.Len(t, want, 9)
	var got []harness.DeadLetter
	for after := ""; ; {
		a := b.Get(t, "/api/v1/dlq?limit=2&queue="+q+"&after="+after)
		require.Equal(t, http.StatusOK, a.Status, a)
		var page struct {
			Messages []harness.DeadLetter
			Total    int
			Next     string
		}
		a.Into(t, &page)
		require.Len(t, page.Messages, page.Total)
		got = append(got, page.Messages...)
		if after = page.Next; after == "" {
			break
		}
		insert(1)
	}
	require.Equal(t, want, got)
	for query, text := range map[string]string{
		"after=1.x": `after must be the "next" of an earlier page`, "after=x&offset=1": "after and offset exclude each other",
	} {
		a := b.Get(t, "/api/v1/dlq?"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, text, a.ErrorText(t))
	}
}

// A page ends early where payloads are large, and says where the next one begins.
func TestLettersOfAPageAreBounded(t *testing.T) {
	t.Parallel()
	b, q, pid, _ := buried(t, 1)
	const insert = `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload)
		SELECT $1::uuid, 'g', 1, 't', to_jsonb((SELECT string_agg(md5(i::text || j::text), '') FROM generate_series(1, 100000) AS i)) FROM generate_series(1, $2::int) AS j`
	b.DB.Exec(t, insert, pid, 4)
	a := b.Get(t, "/api/v1/dlq?queue="+q)
	require.InDelta(t, 2, a.Object(t)["total"], 0, "two of 3.2 MB fit into 8 MiB")
	a = b.Get(t, "/api/v1/dlq?queue="+q+"&after="+a.Object(t)["next"].(string))
	require.InDelta(t, 2, a.Object(t)["total"], 0)
	require.NotContains(t, a.Object(t), "next")
}

func TestReplaysAreHeldBackWithPushes(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	ids := b.PushEach(t, "q", "p", 1)
	b.AckOK(t, "", b.Pop(t, "q", "").Acks("dlq")...)
	letter := b.DLQ(t, "q", "")[0]
	held := func(on bool) {
		a := b.Post(t, "/api/v1/system/maintenance", fmt.Sprintf(`{"enabled":%t}`, on))
		require.Equal(t, http.StatusOK, a.Status, a)
	}
	held(true)
	for _, path := range []string{messagePath(letter.PartitionID, ids[0]) + "/retry", "/api/v1/dlq/" + letter.ID + "/replay"} {
		a := b.Post(t, path, `{}`)
		require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
		require.Equal(t, "maintenance", a.Object(t)["result"])
		require.Equal(t, false, a.Object(t)["dlqRowRemoved"])
	}
	require.Len(t, b.DLQ(t, "q", ""), 1)
	held(false)
	require.Equal(t, http.StatusOK, b.Post(t, "/api/v1/dlq/"+letter.ID+"/replay", `{}`).Status)
}
