package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const groupsPath = "/api/v1/consumer-groups"

func groupPath(group string, more ...string) string {
	path := groupsPath + "/" + url.PathEscape(group)
	for _, m := range more {
		path += "/" + url.PathEscape(m)
	}
	return path
}

func seekPath(group, queue string) string { return groupPath(group, "queues", queue, "seek") }

func seekLanePath(group, queue, partition string) string {
	return groupPath(group, "queues", queue, "partitions", partition, "seek")
}

// groupsOf are the elements of the listing that concern a queue.
func groupsOf(t *testing.T, b *harness.Broker, queue string) (found []object) {
	t.Helper()
	a := b.Get(t, groupsPath)
	require.Equal(t, http.StatusOK, a.Status, a)
	for _, g := range a.Objects(t) {
		if g["queueName"] == queue {
			found = append(found, g)
		}
	}
	return found
}

// ageSegments makes all segments of a lane older, with the watermark that says so.
func ageSegments(t *testing.T, b *harness.Broker, pid string, by time.Duration) {
	t.Helper()
	b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = created_at - make_interval(secs => $2) WHERE partition_id = $1`, pid, by.Seconds())
	b.DB.Exec(t, `UPDATE queen.log_partitions SET oldest_live_at = (SELECT min(created_at) FROM queen.log_segments WHERE partition_id = $1)
		WHERE id = $1`, pid)
}

// soonPop is what a client's loop sends next.
func soonPop(group string, batch int) string {
	return fmt.Sprintf("consumerGroup=%s&batch=%d&wait=true&timeout=5000&subscriptionMode=all&partitions=100", group, batch)
}

func TestGroupsAreListed(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "a", 3)
	b.PushEach(t, q, "b", 2)
	require.Empty(t, groupsOf(t, b, q), "nobody has read it")

	b.AckOK(t, "g", b.Pop(t, q, soonPop("g", 10)).Acks("completed")...)
	b.PopPartition(t, q, "a", "consumerGroup=idle&batch=1")
	b.AckOK(t, "", b.PopPartition(t, q, "b", "batch=1").Acks("completed")...)
	got := groupsOf(t, b, q)
	require.Equal(t, []any{harness.QueueMode, "g", "idle"}, []any{got[0]["name"], got[1]["name"], got[2]["name"]}, "in the order of names")

	require.Equal(t, object{
		"name": "g", "topics": []any{q}, "queueName": q, "members": 2.0, "partitionCursors": 2.0, "partitionsWithLag": 0.0,
		"totalLag": 0.0, "maxTimeLag": 0.0, "state": "Stable", "storage": "segments", "conflation": false,
		"subscriptionMode": "all", "subscriptionTimestamp": "1970-01-01T00:00:00.000Z",
	}, without(got[1], "subscriptionCreatedAt"))
	require.WithinDuration(t, time.Now(), requireInstant(t, got[1]["subscriptionCreatedAt"]), time.Minute)
	require.Equal(t, object{
		"name": "idle", "topics": []any{q}, "queueName": q, "members": 1.0, "partitionCursors": 1.0, "partitionsWithLag": 1.0,
		"totalLag": 3.0, "state": "Dead", "storage": "segments", "conflation": false,
		"subscriptionMode": nil, "subscriptionTimestamp": nil, "subscriptionCreatedAt": nil,
	}, without(got[2], "maxTimeLag"), "a pop of one partition registers nobody")
	require.Equal(t, object{"members": 1.0, "totalLag": 1.0, "state": "Stable"}, part(got[0], "members", "totalLag", "state"))
}

func without(o object, keys ...string) object {
	out := object{}
	for k, v := range o {
		if !slices.Contains(keys, k) {
			out[k] = v
		}
	}
	return out
}

func TestGroupLagIsThatOfTheOldestMessage(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(3) {
		b.PushEach(t, q, lane, 4)
	}
	b.AckOK(t, "g", b.PopPartition(t, q, "lane-00", "consumerGroup=g&batch=2").Acks("completed")...)
	b.PopPartition(t, q, "lane-01", "consumerGroup=g&batch=1")
	b.AckOK(t, "g", b.PopPartition(t, q, "lane-02", "consumerGroup=g&batch=4").Acks("completed")...)
	for i, age := range []time.Duration{2 * time.Hour, time.Hour, 9 * time.Hour} {
		ageSegments(t, b, b.DB.PartitionID(t, q, lanes(3)[i]), age)
	}
	// Of the first lane two are consumed, which are older still.
	b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = created_at - interval '5 hours' WHERE partition_id = $1 AND base_offset < 2`,
		b.DB.PartitionID(t, q, "lane-00"))
	b.DB.Exec(t, `UPDATE queen.log_partitions SET oldest_live_at = now() - interval '7 hours' WHERE id = $1`, b.DB.PartitionID(t, q, "lane-00"))

	g := groupsOf(t, b, q)[0]
	require.Equal(t, object{"partitionsWithLag": 2.0, "totalLag": 6.0, "state": "Lagging"}, part(g, "partitionsWithLag", "totalLag", "state"))
	require.InDelta(t, 7200, g["maxTimeLag"], 60)

	a := b.Get(t, groupPath("g")+"?queue="+q)
	require.Equal(t, http.StatusOK, a.Status, a)
	detail := a.Object(t)[q].(object)
	require.Equal(t, false, detail["conflation"])
	rows := detail["partitions"].([]any)
	require.Len(t, rows, 3)
	first, second, third := rows[0].(object), rows[1].(object), rows[2].(object)
	require.InDelta(t, 7200, first["timeLagSeconds"], 60)
	require.Equal(t, object{
		"partition": "lane-00", "workerId": nil, "lastConsumedAt": nil, "totalConsumed": 2.0, "offsetLag": 2.0, "leaseActive": false,
	}, without(first, "timeLagSeconds"))
	require.InDelta(t, 3600, second["timeLagSeconds"], 60)
	require.Equal(t, object{"totalConsumed": 0.0, "offsetLag": 4.0, "leaseActive": true}, part(second, "totalConsumed", "offsetLag", "leaseActive"))
	require.NotEmpty(t, second["workerId"])
	require.Equal(t, object{"offsetLag": 0.0, "timeLagSeconds": 0.0}, part(third, "offsetLag", "timeLagSeconds"))

	// What retention has removed is no lag.
	pid := b.DB.PartitionID(t, q, "lane-01")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset < 3`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = 3 WHERE id = $1`, pid)
	require.Equal(t, 3.0, groupsOf(t, b, q)[0]["totalLag"])
	require.Equal(t, 1.0, b.Get(t, groupPath("g")+"?queue="+q).Object(t)[q].(object)["partitions"].([]any)[1].(object)["offsetLag"])
}

func TestGroupDetailsArePaged(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(3) {
		b.PushEach(t, q, lane, 1)
	}
	other := q + "-other"
	b.PushEach(t, other, "x", 1)
	for _, queue := range []string{q, other} {
		b.Pop(t, queue, soonPop(q, 10)) // the group has the name of the queue
	}
	names := func(path string) (found []string) {
		a := b.Get(t, path)
		require.Equal(t, http.StatusOK, a.Status, a)
		body := a.Object(t)
		for _, queue := range []string{q, other} {
			detail, _ := body[queue].(object)
			rows, _ := detail["partitions"].([]any)
			for _, r := range rows {
				found = append(found, r.(object)["partition"].(string))
			}
		}
		return found
	}
	path := groupPath(q)
	require.Equal(t, append(lanes(3), "x"), names(path))
	require.Equal(t, lanes(3)[:2], names(path+"?limit=2"))
	require.Equal(t, lanes(3)[1:], names(path+"?queue="+q+"&after=lane-00"))
	require.Equal(t, []string{"x"}, names(path+"?queue="+other))
	require.JSONEq(t, `{}`, string(b.Get(t, groupPath(q+"-none")).Body), "an unknown group is empty")
	for query, text := range map[string]string{
		"limit=0":     "limit must be a whole number from 1 to 10000",
		"limit=10001": "limit must be a whole number from 1 to 10000",
		"after=x":     "after needs a queue: it is the partition to go on behind",
	} {
		a := b.Get(t, path+"?"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, text, a.ErrorText(t))
	}
}

func TestLaggingPartitions(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	for _, lane := range lanes(4) {
		b.PushEach(t, q, lane, 3)
		b.PopPartition(t, q, lane, "consumerGroup=g&batch=1")
	}
	ids := make([]string, 4)
	for i, age := range []time.Duration{90 * time.Minute, 3 * time.Hour, 10 * time.Minute, 5 * time.Hour} {
		ids[i] = b.DB.PartitionID(t, q, lanes(4)[i])
		ageSegments(t, b, ids[i], age)
	}
	// The last lane is evicted as a whole.
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, ids[3])
	b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = last_offset + 1, oldest_live_at = NULL WHERE id = $1`, ids[3])

	names := func(query string) (found []string) {
		a := b.Get(t, groupsPath+"/lagging"+query)
		require.Equal(t, http.StatusOK, a.Status, a)
		for _, row := range a.Objects(t) {
			found = append(found, row["partition_name"].(string))
		}
		return found
	}
	require.Equal(t, []string{"lane-01", "lane-00"}, names(""), "an hour by default, the worst first")
	require.Equal(t, []string{"lane-01", "lane-00", "lane-02"}, names("?minLagSeconds=60"))
	require.Equal(t, []string{"lane-01"}, names("?minLagSeconds=7200"))
	require.Equal(t, []string{"lane-01"}, names("?minLagSeconds=0&limit=1"))
	require.JSONEq(t, `[]`, string(b.Get(t, groupsPath+"/lagging?minLagSeconds=2147483647").Body))

	row := b.Get(t, groupsPath+"/lagging").Objects(t)[0]
	require.InDelta(t, 3*3600, row["time_lag_seconds"], 60)
	require.InDelta(t, 3, row["lag_hours"], 0.02)
	require.WithinDuration(t, time.Now().Add(-3*time.Hour), requireInstant(t, row["oldest_unconsumed_at"]), time.Minute)
	require.NotEmpty(t, row["worker_id"])
	require.Equal(t, object{
		"consumer_group": "g", "queue_name": q, "partition_name": "lane-01", "partition_id": ids[1], "offset_lag": 3.0, "last_consumed_at": nil,
	}, without(row, "time_lag_seconds", "lag_hours", "oldest_unconsumed_at", "worker_id"))

	for query, text := range map[string]string{
		"minLagSeconds=-1":         "minLagSeconds must be a whole number from 0 to 2147483647",
		"minLagSeconds=soon":       "minLagSeconds must be a whole number from 0 to 2147483647",
		"minLagSeconds=2147483648": "minLagSeconds must be a whole number from 0 to 2147483647",
		"limit=0":                  "limit must be a whole number from 1 to 1000",
		"limit=1001":               "limit must be a whole number from 1 to 1000",
	} {
		a := b.Get(t, groupsPath+"/lagging?"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, text, a.ErrorText(t))
	}
}

func TestSubscriptionIsMoved(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	g := "g-" + q
	b.PushEach(t, q, "touched", 2)
	b.AckOK(t, g, b.Pop(t, q, soonPop(g, 10)).Acks("completed")...)
	b.DB.Exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at) SELECT id, $2, now() FROM queen.queues
		WHERE name = $1 ON CONFLICT DO NOTHING`, q, g)
	a := b.Post(t, groupPath(g, "subscription"), `{"subscriptionTimestamp":"2030-01-02T03:04:05+01:00","later":1}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, object{"success": true, "consumerGroup": g, "newTimestamp": "2030-01-02T02:04:05.000Z", "rowsUpdated": 1.0}, a.Object(t))
	require.Equal(t, object{"subscriptionMode": "all", "subscriptionTimestamp": "2030-01-02T02:04:05.000Z"},
		part(groupsOf(t, b, q)[0], "subscriptionMode", "subscriptionTimestamp"))
	require.Equal(t, int64(1), b.DB.Committed(t, q, "touched", g), "no cursor moves")
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.consumer_watermarks WHERE consumer_group = $1`, g))
	b.PushEach(t, q, "untouched", 2)
	b.RequireNone(t, harness.PopPath(q, "consumerGroup="+g+"&partitions=10"))
	require.Equal(t, int64(1), b.DB.Committed(t, q, "untouched", g))

	a = b.Post(t, groupPath(g+"-none", "subscription"), `{"subscriptionTimestamp":"2030-01-02"}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, 0.0, a.Object(t)["rowsUpdated"], "nobody has registered")
	for body, text := range map[string]string{
		`{}`:                             "bad body: missing field `subscriptionTimestamp`: an RFC 3339 instant is needed",
		`{"subscriptionTimestamp":""}`:   "bad body: missing field `subscriptionTimestamp`: an RFC 3339 instant is needed",
		`{"subscriptionTimestamp":null}`: "bad body: missing field `subscriptionTimestamp`: an RFC 3339 instant is needed",
		`{"subscriptionTimestamp":7}`:    "bad body: subscriptionTimestamp: a string is allowed here, got a number",
		`{"subscriptionTimestamp":"so"}`: "subscriptionTimestamp must be an RFC 3339 instant",
		``:                               "bad body: empty; a JSON object is needed",
	} {
		a := b.Post(t, groupPath(g, "subscription"), body)
		require.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", body, a)
		require.Equal(t, text, a.ErrorText(t), body)
	}
}

func TestSeekAnswers(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p/1", 3)
	b.PushEach(t, q, "p/2", 3)
	for body, want := range map[string]object{
		`{"toEnd":true}`: {"seekToEnd": true, "targetTimestamp": nil},
		`{"toEnd":true,"timestamp":"1970-01-01T00:00:00Z"}`:   {"seekToEnd": true, "targetTimestamp": nil},
		`{"timestamp":"1970-01-01T00:00:00Z"}`:                {"seekToEnd": false, "targetTimestamp": "1970-01-01T00:00:00.000Z"},
		`{"timestamp":"2026-03-04T05:06:07.891234+02:00"}`:    {"seekToEnd": false, "targetTimestamp": "2026-03-04T03:06:07.891Z"},
		`{"timestamp":"2026-03-04T05:06:07","toEnd":false}`:   {"seekToEnd": false, "targetTimestamp": "2026-03-04T05:06:07.000Z"},
		`{"toEnd":null,"timestamp":"2026-03-04","later":[1]}`: {"seekToEnd": false, "targetTimestamp": "2026-03-04T00:00:00.000Z"},
	} {
		a := b.Post(t, seekPath("g", q), body)
		require.Equal(t, http.StatusOK, a.Status, "%s: %s", body, a)
		require.Equal(t, plus(object{"success": true, "consumerGroup": "g", "queueName": q, "partitionsUpdated": 2.0},
			"seekToEnd", want["seekToEnd"], "targetTimestamp", want["targetTimestamp"]), a.Object(t), body)
		for _, path := range []string{seekLanePath("g", q, "p/1"), groupPath("g", "queues", q, "partitions") + "/p/1/seek"} {
			a = b.Post(t, path, body)
			require.Equal(t, http.StatusOK, a.Status, "%s: %s", body, a)
			require.Equal(t, plus(object{"success": true, "consumerGroup": "g", "queueName": q, "partitionName": "p/1", "updated": true},
				"seekToEnd", want["seekToEnd"], "targetTimestamp", want["targetTimestamp"]), a.Object(t), body)
		}
	}
	// Whoever says nothing about one partition means its end.
	for i, body := range []string{``, `{}`, " \n"} {
		g := fmt.Sprintf("silent-%d", i)
		a := send(t, b, nil, http.MethodPost, seekLanePath(g, q, "p/1"), body)
		require.Equal(t, http.StatusOK, a.Status, a)
		require.Equal(t, true, a.Object(t)["seekToEnd"])
		require.Equal(t, int64(2), b.DB.Committed(t, q, "p/1", g))
		require.Nil(t, b.DB.Cursor(t, q, "p/2", g))
	}
	require.Equal(t, http.StatusNotFound, b.Post(t, groupPath("g", "queues", q, "partitions", "p"), `{}`).Status)
}

func TestSeekRefusals(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	const neither = "Must specify toEnd=true or a timestamp"
	paths := []string{seekPath("g", q), seekLanePath("g", q, "p")}
	for body, text := range map[string]string{
		`{"toEnd":false}`:     neither,
		`{"timestamp":""}`:    neither,
		`{"timestamp":null}`:  neither,
		`{"toEnd":"true"}`:    "bad body: toEnd: a boolean is allowed here, got a string",
		`{"timestamp":17}`:    "bad body: timestamp: a string is allowed here, got a number",
		`{"timestamp":"now"}`: "timestamp must be an RFC 3339 instant",
		`[]`:                  "bad body: an object is allowed here, got an array",
		`{"toEnd":true} x`:    "bad body: 1 bytes follow the JSON object",
	} {
		for _, path := range paths {
			a := b.Post(t, path, body)
			require.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", body, a)
			require.Equal(t, text, a.ErrorText(t), body)
		}
	}
	for _, body := range []string{``, `{}`, `{"later":1}`} {
		a := send(t, b, nil, http.MethodPost, paths[0], body)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, neither, a.ErrorText(t))
	}
	require.Nil(t, b.DB.Cursor(t, q, "p", "g"))

	none := q + "-none"
	a := b.Post(t, seekPath("g", none), `{"toEnd":true}`)
	require.Equal(t, http.StatusNotFound, a.Status, a)
	require.Equal(t, object{
		"success": false, "error": "Queue not found or has no partitions", "consumerGroup": "g", "queueName": none, "partitionsUpdated": 0.0,
	}, a.Object(t))
	b.Configure(t, none, `{}`)
	require.Equal(t, http.StatusNotFound, b.Post(t, seekPath("g", none), `{"toEnd":true}`).Status, "a queue without partitions")
	for _, path := range []string{seekLanePath("g", q, "none"), seekLanePath("g", none, "p")} {
		a = b.Post(t, path, `{"toEnd":true}`)
		require.Equal(t, http.StatusNotFound, a.Status, a)
		require.Equal(t, object{"success": false, "error": "Partition not found"}, a.Object(t))
	}
	for _, path := range []string{groupsPath + "//queues/" + q + "/seek", groupPath(strings.Repeat("g", 1025), "queues", q, "seek")} {
		require.Equal(t, http.StatusBadRequest, b.Post(t, path, `{"toEnd":true}`).Status)
	}
}

// The suites of the clients: everything is consumed, the group goes back an hour, and
// everything comes again within the three seconds that a consumer stays idle, although
// the mark of the last empty look lies in the future.
func TestSeekBackDeliversAgain(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(10) {
		b.PushQueued(t, harness.Item{Queue: q, Partition: lane, Payload: lane})
	}
	consume := func() {
		t.Helper()
		got := map[string]bool{}
		for len(got) < 10 {
			p, err := b.TryPop(t.Context(), harness.PopPath(q, "consumerGroup=g&batch=10&wait=true&timeout=3000"))
			require.NoError(t, err)
			require.NotEmpty(t, p.Messages, "%d have come", len(got))
			for _, m := range p.Payloads() {
				got[m] = true
			}
			b.AckOK(t, "g", p.Acks("completed")...)
		}
		b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
	}
	consume()
	b.DB.Exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at)
		SELECT id, 'g', now() + interval '10 minutes', now() + interval '10 minutes' FROM queen.queues WHERE name = $1
		ON CONFLICT (queue_id, consumer_group) DO UPDATE SET last_empty_scan_at = excluded.last_empty_scan_at, updated_at = excluded.updated_at`, q)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET last_write_at = now() - interval '1 hour' WHERE queue_id = (SELECT id FROM queen.queues WHERE name = $1)`, q)
	a := b.Post(t, seekPath("g", q), fmt.Sprintf(`{"timestamp":%q}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.NotContains(t, a.Object(t), "hotlistRepaired")
	require.NotContains(t, a.Object(t), "warning")
	consume()
}

// On one broker a seek is seen by the very next pop, whether it waits or not.
func TestSeekIsSeenByTheNextPop(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, deafWait...)
	const epoch = `{"timestamp":"1970-01-01T00:00:00Z"}`
	next := func(t *testing.T, queue, query string) harness.Popped {
		t.Helper()
		p, err := b.TryPop(t.Context(), harness.PopPath(queue, query))
		require.NoError(t, err)
		return p
	}
	t.Run("although a lease was live", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "p", 3)
		b.PushEach(t, q, "other", 1)
		const query = "consumerGroup=g&batch=10&subscriptionMode=all&partitions=10"
		for path, want := range map[string][]string{seekPath("g", q): {"0", "0", "1", "2"}, seekLanePath("g", q, "p"): numbers(0, 3)} {
			for len(next(t, q, query).Messages) > 0 {
				continue // all are leased
			}
			require.Equal(t, http.StatusOK, b.Post(t, path, epoch).Status)
			require.Nil(t, b.DB.Cursor(t, q, "p", "g").Worker)
			p := next(t, q, query)
			require.ElementsMatch(t, want, p.Payloads(), path)
			require.Equal(t, http.StatusOK, b.Post(t, seekPath("g", q), epoch).Status)
			for _, late := range b.Ack(t, "g", p.Acks("completed")...) {
				require.Equal(t, leaseText, late.ErrorText(), "the lease has ended")
			}
		}
	})
	t.Run("by pops that wait", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "p", 3)
		drain(t, b, harness.PopPath(q, "consumerGroup=g"))
		for _, path := range []string{seekPath("g", q), seekLanePath("g", q, "p")} {
			for _, wait := range []string{harness.PopPath(q, ""), harness.PopPartitionPath(q, "p", "")} {
				w := park(t.Context(), b, wait+"consumerGroup=g&batch=3&autoAck=true&wait=true&timeout=45000")
				w.requireParked(t, 150*time.Millisecond)
				require.Equal(t, http.StatusOK, b.Post(t, path, epoch).Status)
				require.Equal(t, numbers(0, 3), w.answer(t).Payloads())
				require.Less(t, w.took, 20*time.Second, "nothing woke it")
			}
		}
	})
	t.Run("to the end", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "p", 3)
		require.Equal(t, http.StatusOK, b.Post(t, seekPath("g", q), `{"toEnd":true}`).Status)
		b.RequireNone(t, harness.PopPath(q, "consumerGroup=g&subscriptionMode=all"))
		b.PushEach(t, q, "p", 1)
		require.Len(t, b.Pop(t, q, soonPop("g", 10)).Messages, 1)
	})
	t.Run("between segments", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "p", 4)
		b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = now() - make_interval(hours => 4 - base_offset::int) WHERE partition_id = $1`,
			b.DB.PartitionID(t, q, "p"))
		body := fmt.Sprintf(`{"timestamp":%q}`, time.Now().Add(-150*time.Minute).UTC().Format(time.RFC3339Nano))
		require.Equal(t, http.StatusOK, b.Post(t, seekPath("g", q), body).Status)
		require.Equal(t, numbers(2, 4), next(t, q, "consumerGroup=g&batch=10").Payloads())
	})
	t.Run("and so is a deletion", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushEach(t, q, "p", 3)
		for i, path := range []string{groupPath(q), groupPath(q, "queues", q), groupPath(q) + "?deleteMetadata=false", groupPath(q, "queues", q) + "?deleteMetadata=no"} {
			if i%2 == 0 {
				require.Equal(t, numbers(0, 3), b.Pop(t, q, "batch=10&consumerGroup="+q).Payloads(), "leased, not acknowledged")
			} else {
				drain(t, b, harness.PopPath(q, "consumerGroup="+q))
			}
			require.Equal(t, http.StatusOK, b.Delete(t, path).Status)
			p := next(t, q, "batch=10&consumerGroup="+q)
			require.Equal(t, numbers(0, 3), p.Payloads(), path)
			b.AckOK(t, q, p.Acks("retry")...)
		}
	})
}

func TestMeshSeekWakesAPopBehindAnotherBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 2, deafWait...)
	q := queueName(t)
	m.brokers[0].PushEach(t, q, "p", 2)
	for i, change := range []func(b *harness.Broker) harness.Answer{
		func(b *harness.Broker) harness.Answer {
			return b.Post(t, seekPath("g", q), `{"timestamp":"1970-01-01T00:00:00Z"}`)
		},
		func(b *harness.Broker) harness.Answer {
			return b.Post(t, seekLanePath("g", q, "p"), `{"timestamp":"1970-01-01T00:00:00Z"}`)
		},
		func(b *harness.Broker) harness.Answer { return b.Delete(t, groupPath("g", "queues", q)) },
		func(b *harness.Broker) harness.Answer { return b.Delete(t, groupPath("g")) },
	} {
		there, here := m.brokers[i%2], m.brokers[(i+1)%2]
		harness.Eventually(t, 20*time.Second, "the rest is taken", func() bool {
			p, err := there.TryPop(t.Context(), harness.PopPath(q, "consumerGroup=g&batch=10&autoAck=true"))
			return err == nil && len(p.Messages) == 0 && there.DB.Cursor(t, q, "p", "g") != nil && there.DB.Committed(t, q, "p", "g") == 1
		})
		w := park(t.Context(), there, harness.PopPath(q, "consumerGroup=g&batch=10&autoAck=true&wait=true&timeout=45000"))
		w.requireParked(t, 200*time.Millisecond)
		a := change(here)
		require.Equal(t, http.StatusOK, a.Status, a)
		require.Equal(t, numbers(0, 2), w.answer(t).Payloads())
		require.Less(t, w.took, 3*time.Second, "change %d: a consumer does not stay idle for longer", i)
	}
}

func TestGroupsAreDeleted(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	g := "g-" + q
	other := q + "-other"
	left := func() object {
		var cursors, records, marks int
		b.DB.Row(t, `SELECT (SELECT count(*) FROM queen.log_consumers WHERE consumer_group = $1),
			(SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = $1),
			(SELECT count(*) FROM queen.consumer_watermarks WHERE consumer_group = $1)`, []any{g}, []any{&cursors, &records, &marks})
		return object{"cursors": cursors, "records": records, "marks": marks}
	}
	remove := func(path string) object {
		a := b.Delete(t, path)
		require.Equal(t, http.StatusOK, a.Status, a)
		return a.Object(t)
	}
	// The suites delete before they use, and go on only after a 2xx.
	require.Equal(t, object{"success": true, "consumerGroup": g, "deletedPartitions": 0.0, "metadataDeleted": true}, remove(groupPath(g)+"?deleteMetadata=true"))
	require.Equal(t, object{"success": true, "consumerGroup": g, "queueName": q, "deletedPartitions": 0.0, "metadataDeleted": false},
		remove(groupPath(g, "queues", q)+"?deleteMetadata=false"))
	require.False(t, b.DB.HasQueue(t, q))

	fill := func() {
		for _, queue := range []string{q, other} {
			for _, lane := range lanes(5) {
				b.PushQueued(t, harness.Item{Queue: queue, Partition: lane, Payload: lane})
			}
			for range 5 {
				require.NotEmpty(t, b.Pop(t, queue, soonPop(g, 1)).Messages)
			}
			b.DB.Exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) SELECT id, $2 FROM queen.queues WHERE name = $1
				ON CONFLICT DO NOTHING`, queue, g)
		}
	}
	fill()
	require.Equal(t, object{"cursors": 10, "records": 2, "marks": 2}, left())
	require.Equal(t, object{"success": true, "consumerGroup": g, "queueName": q, "deletedPartitions": 5.0, "metadataDeleted": true}, remove(groupPath(g, "queues", q)))
	require.Equal(t, object{"cursors": 5, "records": 1, "marks": 1}, left())
	require.Equal(t, object{"success": true, "consumerGroup": g, "deletedPartitions": 5.0, "metadataDeleted": false}, remove(groupPath(g)+"?deleteMetadata=0"))
	require.Equal(t, object{"cursors": 0, "records": 1, "marks": 0}, left())
	require.Equal(t, object{"success": true, "consumerGroup": g, "deletedPartitions": 0.0, "metadataDeleted": true}, remove(groupPath(g)+"?deleteMetadata=yes"))
	require.Equal(t, object{"cursors": 0, "records": 0, "marks": 0}, left())
	require.Empty(t, groupsOf(t, b, q))

	a := b.Delete(t, groupPath(g)+"?deleteMetadata=maybe")
	require.Equal(t, http.StatusBadRequest, a.Status, a)
	require.Equal(t, "deleteMetadata must be true or false, 1 or 0, yes or no", a.ErrorText(t))
}
