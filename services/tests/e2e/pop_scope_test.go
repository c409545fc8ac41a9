package e2e_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestWildcardPopCreatesTheQueueAndTheOthersDoNot(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.RequireNone(t, harness.PopPath(q+".eu.x", ""))
	var namespace, task string
	var lease int
	b.DB.Row(t, `SELECT namespace, task, lease_time FROM queen.queues WHERE name = $1`, []any{q + ".eu.x"}, []any{&namespace, &task, &lease})
	require.Equal(t, []any{q, "eu", 60}, []any{namespace, task, lease})
	b.RequireNone(t, harness.PopPath(q+"-g", "consumerGroup=g"))
	require.True(t, b.DB.HasQueue(t, q+"-g"))

	b.RequireNone(t, harness.PopPartitionPath(q+"-single", "p", "consumerGroup=g"))
	require.False(t, b.DB.HasQueue(t, q+"-single"))
	b.RequireNone(t, "/api/v1/pop?namespace="+q+"-ns&task=t&consumerGroup=g")
	require.False(t, b.DB.HasQueue(t, q+"-ns"))
}

func TestPopOfAnUnknownPartitionIsEmpty(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	b.RequireNone(t, harness.PopPartitionPath(q, "other", ""))
	require.Equal(t, int64(1), harness.Value[int64](t, b.DB,
		`SELECT count(*) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, q))
	require.Len(t, b.PopPartition(t, q, "p", "partitions=9&batch=9").Messages, 1)
}

func TestDiscoveryServesEveryMatchingQueue(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, name := range []string{q + ".mail.a", q + ".mail.b", q + ".sms.c"} {
		b.PushQueued(t, harness.Item{Queue: name, Payload: name})
	}
	elsewhere := q + "x.mail.d"
	b.PushQueued(t, harness.Item{Queue: elsewhere, Payload: elsewhere})
	all := func(query string) []string {
		t.Helper()
		p := b.Discover(t, query+"&batch=100&partitions=10")
		if p.Status == http.StatusOK {
			require.Empty(t, p.Queue, "discovery names no queue")
		}
		return p.Payloads()
	}
	quote := func(names ...string) []string {
		for i := range names {
			names[i] = `"` + names[i] + `"`
		}
		return names
	}
	require.ElementsMatch(t, quote(q+".mail.a", q+".mail.b", q+".sms.c"), all("consumerGroup=g1&namespace="+q))
	require.ElementsMatch(t, quote(q+".mail.a", q+".mail.b"), all("consumerGroup=g2&task=mail&namespace="+q))
	require.Empty(t, all("consumerGroup=g3&task=other&namespace="+q))
	require.Empty(t, all("consumerGroup=g4&namespace="+q[:len(q)-1]), "labels match as a whole")
	require.ElementsMatch(t, quote(q+".mail.a", q+".mail.b", q+".sms.c"), all("namespace="+q))
}

func TestDiscoveryByTaskAlone(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: "one." + q + ".x", Payload: 1}, harness.Item{Queue: "two." + q, Payload: 2},
		harness.Item{Queue: q + ".three", Payload: 3})
	require.ElementsMatch(t, []string{"1", "2"}, b.Discover(t, "partitions=5&task="+q).Payloads())
}

func TestDiscoveryUsesLabelsOfConfigure(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q + ".a.b", Payload: 1})
	b.Configure(t, q+".a.b", `{}`) // a full replace empties the labels
	b.RequireNone(t, "/api/v1/pop?namespace="+q)
	b.Configure(t, q+".a.b", `{"namespace":"`+q+`-ns","task":"tt"}`)
	require.Equal(t, []string{"1"}, b.Discover(t, "task=tt&namespace="+q+"-ns").Payloads())
}

func TestDiscoveryIgnoresQueryLabelsElsewhere(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 1)
	require.Len(t, b.Pop(t, q, "namespace=other&task=other").Messages, 1)
}

func TestDiscoveryWithoutALabelIsRefused(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	for _, query := range []string{"", "?batch=1", "?namespace=&task=", "?consumerGroup=g&wait=true"} {
		a := b.Get(t, "/api/v1/pop"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.JSONEq(t, `{"success":false,"error":"namespace or task is required","messages":[]}`, string(a.Body))
	}
}

func TestEncodedPathsAddressOneSegmentEach(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q + "/a b", Partition: "x y/z", Payload: 1}, harness.Item{Queue: q, Partition: "a+b", Payload: 2},
		harness.Item{Queue: q, Partition: "%2F", Payload: 3}, harness.Item{Queue: q, Partition: "/", Payload: 4})
	get := func(path string) harness.Popped {
		p, err := b.TryPop(t.Context(), path)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, []string{"1"}, get("/api/v1/pop/queue/"+q+"%2Fa%20b/partition/x%20y%2Fz").Payloads())
	require.Equal(t, []string{"1"}, get("/api/v1/pop/queue/"+q+"%2fa%20b?consumerGroup=g").Payloads())
	require.Equal(t, []string{"2"}, get("/api/v1/pop/queue/"+q+"/partition/a+b").Payloads(), "a plus in a path is a plus")
	require.Equal(t, []string{"2"}, get("/api/v1/pop/queue/"+q+"/partition/a%2Bb?consumerGroup=g").Payloads())
	require.Equal(t, []string{"3"}, get("/api/v1/pop/queue/"+q+"/partition/%252F").Payloads(), "decoded once")
	require.Equal(t, []string{"4"}, get("/api/v1/pop/queue/"+q+"/partition/%2F").Payloads())
	g := url.QueryEscape("gruppe ä+/")
	p := get("/api/v1/pop/queue/" + q + "/partition/a+b?consumerGroup=" + g)
	require.Equal(t, "gruppe ä+/", p.ConsumerGroup)
}

func TestConflationIsRefusedByName(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, query := range []string{"conflation=true&consumerGroup=g", "conflation=true", "conflation=true&consumerGroup=g&autoAck=true"} {
		a := b.Get(t, harness.PopPath(q, query))
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Contains(t, a.ErrorText(t), "conflation")
	}
	b.PushEach(t, q, "", 1)
	require.Len(t, b.Pop(t, q, "conflation=false&consumerGroup=g").Messages, 1)
}

func TestGroupsReadIndependently(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 4)
	p := b.Pop(t, q, "consumerGroup=a&batch=2")
	b.AckOK(t, "a", p.Acks("completed")...)
	require.Equal(t, numbers(2, 4), b.Pop(t, q, "consumerGroup=a").Payloads())
	require.Equal(t, numbers(0, 4), b.Pop(t, q, "consumerGroup=b").Payloads())
	require.Equal(t, numbers(0, 4), b.Pop(t, q, "").Payloads())
	require.Equal(t, int64(1), b.DB.Committed(t, q, "Default", "a"))
}
