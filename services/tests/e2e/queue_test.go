package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// optionDefaults are the options that configure answers when none was given.
func optionDefaults() map[string]any {
	return map[string]any{
		"leaseTime": 300.0, "retryLimit": 3.0, "retryDelay": 1000.0, "deadLetterQueue": true, "dlqAfterMaxRetries": true,
		"delayedProcessing": 0.0, "windowBuffer": 0.0, "minPopWaitTime": 0.0, "retentionEnabled": false, "retentionSeconds": 0.0,
		"completedRetentionSeconds": 0.0, "maxWaitTimeSeconds": 0.0, "encryptionEnabled": false, "dedupWindowSeconds": 3600.0,
		"priority": 0.0, "ttl": 3600.0, "maxSize": 0.0,
	}
}

// allOptions are the same options, none at its default.
const allOptions = `{"leaseTime":45,"retryLimit":7,"retryDelay":2000,"deadLetterQueue":false,"dlqAfterMaxRetries":false,
	"delayedProcessing":3,"windowBuffer":4,"minPopWaitTime":500,"retentionEnabled":true,"retentionSeconds":86400,
	"completedRetentionSeconds":3600,"maxWaitTimeSeconds":7200,"encryptionEnabled":true,"dedupWindowSeconds":120,
	"priority":9,"ttl":60,"maxSize":1000}`

func with(base map[string]any, keyValues ...any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i < len(keyValues); i += 2 {
		out[keyValues[i].(string)] = keyValues[i+1]
	}
	return out
}

func TestConfigureAnswersTheDocumentedShape(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	a := b.Post(t, "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"namespace":"depot","task":"scan","options":{"leaseTime":45,"retryLimit":2}}`, q))
	require.Equal(t, http.StatusOK, a.Status, a)
	body := a.Object(t)
	id := body["queueId"].(string)
	require.Equal(t, map[string]any{
		"configured": true, "queueId": id, "partitionId": nil, "queue": q, "namespace": "depot", "task": "scan", "storage": "segments",
		"options": with(optionDefaults(), "leaseTime", 45.0, "retryLimit", 2.0),
	}, body)
	require.Equal(t, id, harness.Value[string](t, b.DB, `SELECT id::text FROM queen.queues WHERE name = $1`, q))
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.log_partitions WHERE queue_id = $1`, id), "it never makes a partition")
	require.Equal(t, id, b.Configure(t, q, `{}`)["queueId"], "the row keeps its identity")
}

func TestConfigureEchoesEveryOption(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var want map[string]any
	require.NoError(t, json.Unmarshal([]byte(allOptions), &want))
	require.Equal(t, want, b.Configure(t, q, allOptions)["options"])
	require.Equal(t, optionDefaults(), b.Configure(t, q, `{}`)["options"], "a plain call resets everything")
}

func TestConfigureForms(t *testing.T) {
	t.Parallel()
	base := optionDefaults()
	cases := map[string]struct {
		body            string // %q is the queue
		options         map[string]any
		namespace, task string
	}{
		"options at the top level":                {`{"queue":%q,"leaseTime":45,"retryLimit":1}`, with(base, "leaseTime", 45.0, "retryLimit", 1.0), "", ""},
		"labels at the top level":                 {`{"queue":%q,"namespace":"n","task":"t","options":{}}`, base, "n", "t"},
		"labels among the options":                {`{"queue":%q,"options":{"namespace":"n","task":"t"}}`, base, "n", "t"},
		"null labels are absent":                  {`{"queue":%q,"namespace":null,"task":null,"options":{"leaseTime":10}}`, with(base, "leaseTime", 10.0), "", ""},
		"null options mean their default":         {`{"queue":%q,"options":{"leaseTime":null,"deadLetterQueue":null,"namespace":null}}`, base, "", ""},
		"no options at all":                       {`{"queue":%q}`, base, "", ""},
		"unknown keys do not matter":              {`{"queue":%q,"later":1,"options":{"retentionSinkHold":"x","future":{}}}`, base, "", ""},
		"minPopWaitTime is clamped from above":    {`{"queue":%q,"options":{"minPopWaitTime":100000}}`, with(base, "minPopWaitTime", 60000.0), "", ""},
		"minPopWaitTime is clamped from below":    {`{"queue":%q,"options":{"minPopWaitTime":-1}}`, base, "", ""},
		"dedupWindowSeconds is floored":           {`{"queue":%q,"options":{"dedupWindowSeconds":-9}}`, with(base, "dedupWindowSeconds", 0.0), "", ""},
		"zero and false are values":               {`{"queue":%q,"options":{"retryLimit":0,"deadLetterQueue":false}}`, with(base, "retryLimit", 0.0, "deadLetterQueue", false), "", ""},
		"replace by name":                         {`{"queue":%q,"mode":"replace","options":{"leaseTime":20}}`, with(base, "leaseTime", 20.0), "", ""},
		"null mode is replace":                    {`{"queue":%q,"mode":null,"options":{"leaseTime":20}}`, with(base, "leaseTime", 20.0), "", ""},
		"a replace key in the options is nothing": {`{"queue":%q,"options":{"replace":false}}`, base, "", ""},
		"merge on a new queue starts at defaults": {`{"queue":%q,"mode":"merge","options":{"retryLimit":5}}`, with(base, "retryLimit", 5.0), "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			a := b.Post(t, "/api/v1/configure", fmt.Sprintf(c.body, q))
			require.Equal(t, http.StatusOK, a.Status, a)
			body := a.Object(t)
			require.Equal(t, c.options, body["options"])
			require.Equal(t, []any{c.namespace, c.task}, []any{body["namespace"], body["task"]})
		})
	}
}

func TestConfigureMergeKeepsWhatItOmits(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, strings.TrimSuffix(allOptions, "}")+`,"namespace":"n","task":"t"}`)
	a := b.Post(t, "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"mode":"merge","options":{"leaseTime":11,"retryLimit":null}}`, q))
	require.Equal(t, http.StatusOK, a.Status, a)
	var want map[string]any
	require.NoError(t, json.Unmarshal([]byte(allOptions), &want))
	body := a.Object(t)
	require.Equal(t, with(want, "leaseTime", 11.0, "retryLimit", 3.0), body["options"], "null is the default of that key")
	require.Equal(t, []any{"n", "t"}, []any{body["namespace"], body["task"]})
}

func TestRefusedConfigureWritesNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{`"Merge"`, `""`, `true`, `1`, `"replace "`, `{}`} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.Configure(t, q, `{"leaseTime":45}`)
			a := b.Post(t, "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"mode":%s,"options":{"leaseTime":1}}`, q, mode))
			require.Equal(t, http.StatusBadRequest, a.Status, a)
			require.True(t, strings.HasPrefix(a.ErrorText(t), `mode must be "merge" or "replace", got `), a)
			require.Equal(t, 45, harness.Value[int](t, b.DB, `SELECT lease_time FROM queen.queues WHERE name = $1`, q))
		})
	}
}

func TestConfigureOfAPushedQueueReplacesItsRow(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q + ".x", Payload: 1})
	body := b.Configure(t, q+".x", `{}`)
	require.Equal(t, []any{"", ""}, []any{body["namespace"], body["task"]})
	require.Equal(t, optionDefaults(), body["options"], "300 s now")
	require.Len(t, b.Pop(t, q+".x", "").Messages, 1)
}

func TestEmptyQueueNameIsLegal(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	require.Empty(t, b.Configure(t, "", `{"leaseTime":10}`)["queue"])
	require.Equal(t, 10, harness.Value[int](t, b.DB, `SELECT lease_time FROM queen.queues WHERE name = ''`))
}

func TestConcurrentConfigureOfANewQueue(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	answers := make(chan harness.Answer, 8)
	for i := range 8 {
		go func() {
			a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/configure", fmt.Appendf(nil, `{"queue":%q,"options":{"leaseTime":%d}}`, q, i+1))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	ids := map[any]bool{}
	for range 8 {
		a := <-answers
		require.Equal(t, http.StatusOK, a.Status, a)
		ids[a.Object(t)["queueId"]] = true
	}
	require.Len(t, ids, 1, "everybody configured the same row")
}

func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	require.Equal(t, map[string]any{"deleted": false, "queue": q, "existed": false, "message": "Queue not found, nothing was deleted"}, b.DeleteQueue(t, q))

	b.Configure(t, q, `{"retryLimit":9}`)
	b.PushTogether(t, q, "p", 3)
	p := b.Pop(t, q, "batch=2&consumerGroup=g")
	b.AckOK(t, "g", p.Messages[0].Ack("dlq"))
	pid := p.PartitionID
	require.Equal(t, map[string]any{"deleted": true, "queue": q, "existed": true}, b.DeleteQueue(t, q))
	for _, table := range []string{"log_txns", "log_dlq", "log_segments", "log_consumers"} {
		require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.`+table+` WHERE partition_id = $1`, pid), table)
	}
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.consumer_groups_metadata m WHERE consumer_group = 'g'
		AND NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = m.queue_id) AND queue_id IS NOT NULL`))
	require.Equal(t, false, b.DeleteQueue(t, q)["deleted"])
}

func TestDeletedQueueComesBackEmpty(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for round := range 5 {
		b.Configure(t, q, `{"retryLimit":9,"dedupWindowSeconds":100}`)
		for _, lane := range lanes(3) {
			b.PushQueued(t, harness.Item{Queue: q, Partition: lane, TransactionID: "same", Payload: round})
		}
		b.RequireNone(t, harness.PopPath(q, "partitions=3&consumerGroup=g&subscriptionMode=new"))
		p := b.Pop(t, q, "partitions=3")
		require.Len(t, p.Messages, 3)
		for _, m := range p.Messages {
			require.Equal(t, fmt.Sprint(round), string(m.Data))
			require.Equal(t, 1, m.DeliveryAttempt)
		}
		if round%2 == 0 {
			b.AckOK(t, "", p.Acks("completed")...)
		}
		require.Equal(t, true, b.DeleteQueue(t, q)["deleted"])
		if round == 3 {
			b.RequireNone(t, harness.PopPath(q, ""))
		}
		old := b.Ack(t, "", harness.Ack{TransactionID: p.Messages[0].TransactionID, PartitionID: p.PartitionID})
		require.Equal(t, "consumer not found", old[0].ErrorText())
	}
}

func TestDeleteWakesNobodyAndParkedPollsGoOn(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 1)
	require.Len(t, b.Pop(t, q, "autoAck=true&consumerGroup=g").Messages, 1)
	w := park(t.Context(), b, harness.PopPath(q, "wait=true&timeout=30000&consumerGroup=g"))
	w.requireParked(t, 300*time.Millisecond)
	b.DeleteQueue(t, q)
	b.PushQueued(t, harness.Item{Queue: q, Payload: "again"})
	require.Equal(t, []string{`"again"`}, w.answer(t).Payloads())
}

// TestCleanupBehindTheBrokersBack removes rows as client suites do, while the
// broker may remember them.
func TestCleanupBehindTheBrokersBack(t *testing.T) {
	t.Parallel()
	clean := func(t *testing.T, b *harness.Broker, q string) {
		t.Helper()
		for _, table := range []string{"log_txns", "log_dlq"} {
			b.DB.Exec(t, `DELETE FROM queen.`+table+` WHERE partition_id IN (SELECT p.id FROM queen.log_partitions p
				JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1)`, q)
		}
		b.DB.Exec(t, `DELETE FROM queen.queues WHERE name = $1`, q)
	}
	next := map[string]func(t *testing.T, b *harness.Broker, q string){
		"configure": func(t *testing.T, b *harness.Broker, q string) {
			require.Equal(t, optionDefaults(), b.Configure(t, q, `{}`)["options"])
		},
		"push": func(t *testing.T, b *harness.Broker, q string) {
			b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "t0", Payload: 1})
		},
		"pop": func(t *testing.T, b *harness.Broker, q string) {
			b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
			b.RequireNone(t, harness.PopPartitionPath(q, "p", "consumerGroup=g"))
			b.RequireNone(t, harness.PopPath(q, ""))
		},
		"transaction": func(t *testing.T, b *harness.Broker, q string) {
			b.Commit(t, tx(push(harness.Item{Queue: q, Partition: "p", TransactionID: "t0", Payload: 1})))
		},
		"delete": func(t *testing.T, b *harness.Broker, q string) {
			require.Equal(t, false, b.DeleteQueue(t, q)["deleted"])
		},
	}
	for name, step := range next {
		t.Run(name+" comes first", func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.Configure(t, q, `{"retryLimit":9}`)
			for i := range 3 {
				b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: fmt.Sprintf("t%d", i), Payload: i})
			}
			require.Len(t, b.Pop(t, q, "consumerGroup=g").Messages, 3)
			b.AckOK(t, "", b.Pop(t, q, "").Acks("completed")...)
			clean(t, b, q)
			step(t, b, q)
			clean(t, b, q)
			b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "t0", Payload: "x"}, harness.Item{Queue: q, Partition: "p", TransactionID: "t1", Payload: "y"})
			for _, group := range []string{"", "consumerGroup=g", "consumerGroup=other"} {
				require.Equal(t, []string{`"x"`, `"y"`}, b.Pop(t, q, group).Payloads(), group)
			}
		})
	}
}

func TestListedQueues(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q+"-a", `{"namespace":"ns-a","task":"tt"}`)
	b.PushTogether(t, q+".mail.b", "p1", 3)
	b.PushTogether(t, q+".mail.b", "p2", 2)

	for _, query := range []string{"", "?stats=cached", "?namespace=zzz&task=zzz&limit=0&offset=99"} {
		a := b.Get(t, "/api/v1/resources/queues"+query)
		require.Equal(t, http.StatusOK, a.Status, a)
		requireKeys(t, a.Object(t), "queues", "kvRows", "kvBytes", "timerBytes")
		found := map[string]map[string]any{}
		for _, entry := range a.Object(t)["queues"].([]any) {
			queue := entry.(map[string]any)
			found[queue["name"].(string)] = queue
		}
		conf, pushed := found[q+"-a"], found[q+".mail.b"]
		require.NotNil(t, conf, "every query lists the whole tenant")
		require.NotNil(t, pushed)
		require.Equal(t, []any{"ns-a", "tt"}, []any{conf["namespace"], conf["task"]})
		require.Equal(t, []any{q, "mail"}, []any{pushed["namespace"], pushed["task"]})
		for _, queue := range []map[string]any{conf, pushed} {
			requireKeys(t, queue, "id", "name", "namespace", "task", "createdAt", "partitions", "retainedBytes", "segments", "messages")
			_, err := time.Parse("2006-01-02T15:04:05.000Z", queue["createdAt"].(string))
			require.NoError(t, err)
			requireKeys(t, queue["segments"].(map[string]any), "segments", "messages")
			requireKeys(t, queue["messages"].(map[string]any), "total", "pending", "processing")
		}
		if query == "" {
			require.InDelta(t, 2, pushed["partitions"], 0)
			require.InDelta(t, 0, conf["partitions"], 0)
			require.Equal(t, map[string]any{"segments": 2.0, "messages": 5.0}, pushed["segments"])
			require.InDelta(t, 5, pushed["messages"].(map[string]any)["total"], 0)
		}
	}
}

func TestQueueDetail(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"priority":4,"namespace":"n"}`)
	b.PushTogether(t, q, "p1", 5)
	b.PushEach(t, q, "p2", 2)
	p := b.PopPartition(t, q, "p1", "batch=3")
	b.AckOK(t, "", p.Messages[0].Ack("completed"))

	a := b.Get(t, "/api/v1/resources/queues/"+q)
	require.Equal(t, http.StatusOK, a.Status, a)
	d := a.Object(t)
	for _, key := range []string{"id", "name", "namespace", "task", "createdAt", "priority", "partitions", "totals", "retainedBytes", "segments"} {
		require.Contains(t, d, key)
	}
	require.Equal(t, []any{q, "n", 4.0}, []any{d["name"], d["namespace"], d["priority"]})
	require.Equal(t, map[string]any{"segments": 3.0, "messages": 7.0}, d["segments"])
	byName := map[string]map[string]any{}
	for _, part := range d["partitions"].([]any) {
		byName[part.(map[string]any)["name"].(string)] = part.(map[string]any)
	}
	require.Len(t, byName, 2)
	p1 := byName["p1"]
	require.Equal(t, p.PartitionID, p1["id"])
	stats := p1["stats"].(map[string]any)
	requireKeys(t, stats, "total", "pending", "processing", "completed", "failed", "deadLetter")
	require.Nil(t, stats["failed"], "never counted")
	require.InDelta(t, 5, stats["total"], 0)
	require.InDelta(t, 4, stats["pending"], 0)
	require.InDelta(t, 0, stats["deadLetter"], 0)
	requireKeys(t, d["totals"].(map[string]any), "total", "pending", "processing", "completed", "failed", "deadLetter")
	require.InDelta(t, 7, d["totals"].(map[string]any)["total"], 0)

	a = b.Get(t, "/api/v1/resources/queues/"+url.PathEscape(q+"/unknown"))
	require.Equal(t, http.StatusNotFound, a.Status)
	require.JSONEq(t, `{"error":"Queue not found"}`, string(a.Body))
	require.False(t, b.DB.HasQueue(t, q+"/unknown"))
}

func TestAdminPathsAreDecodedOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	name := q + " a/b%2Fc+d"
	b.Configure(t, name, `{}`)
	a := b.Get(t, "/api/v1/resources/queues/"+url.PathEscape(name))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, name, a.Object(t)["name"])
	require.Equal(t, true, b.DeleteQueue(t, name)["deleted"])
}

func TestEncryptionWithoutAKeyStoresPlainText(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"encryptionEnabled":true}`)
	b.PushQueued(t, harness.Item{Queue: q, Payload: map[string]string{"card": "4111"}})
	require.Equal(t, []string{`{"card":"4111"}`}, b.Pop(t, q, "").Payloads())
}

func TestRetryLimitAboveThirtyTwoBits(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	a := b.Post(t, "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":{"retryLimit":99999999999999}}`, q))
	require.Equal(t, http.StatusBadRequest, a.Status, a)
	require.NotEmpty(t, a.ErrorText(t))
	require.False(t, b.DB.HasQueue(t, q), "nothing written")
}
