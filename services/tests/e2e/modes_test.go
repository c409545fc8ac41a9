package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	maintenancePath    = "/api/v1/system/maintenance"
	popMaintenancePath = maintenancePath + "/pop"
	sharedStatePath    = "/api/v1/system/shared-state"
	buffersPath        = "/api/v1/status/buffers"

	noFiles = `"failedFiles":{"count":0,"totalBytes":0,"totalMB":0,"failoverCount":0,"qos0Count":0}`
)

// switchMode turns a mode on or off and requires the answer.
func switchMode(t *testing.T, b *harness.Broker, path string, on bool, want string) {
	t.Helper()
	a := b.Post(t, path, fmt.Sprintf(`{"enabled":%t}`, on))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.JSONEq(t, want, string(a.Body))
}

func pushesHeld(t *testing.T, b *harness.Broker) {
	t.Helper()
	switchMode(t, b, maintenancePath, true,
		`{"maintenanceMode":true,"bufferedMessages":0,"bufferHealthy":true,"message":"Maintenance mode ENABLED. All PUSHes routing to file buffer."}`)
}

func pushesFree(t *testing.T, b *harness.Broker) {
	t.Helper()
	switchMode(t, b, maintenancePath, false, `{"maintenanceMode":false,"bufferedMessages":0,"bufferHealthy":true,`+
		`"message":"Maintenance mode DISABLED. Background processor will drain buffer to DB."}`)
}

func popsHeld(t *testing.T, b *harness.Broker) {
	t.Helper()
	switchMode(t, b, popMaintenancePath, true,
		`{"popMaintenanceMode":true,"message":"Pop maintenance mode ENABLED. All POP operations will return empty arrays."}`)
}

func popsFree(t *testing.T, b *harness.Broker) {
	t.Helper()
	switchMode(t, b, popMaintenancePath, false, `{"popMaintenanceMode":false,"message":"Pop maintenance mode DISABLED. Normal operation."}`)
}

// requireModes requires what the answers that show the modes say of them.
func requireModes(t *testing.T, b *harness.Broker, push, pop bool) {
	t.Helper()
	require.JSONEq(t, fmt.Sprintf(`{"maintenanceMode":%t,"popMaintenanceMode":%t,"bufferedMessages":0,"bufferHealthy":true,`+
		`"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":true,%s}}`, push, pop, noFiles), string(b.Get(t, maintenancePath).Body))
	require.JSONEq(t, fmt.Sprintf(`{"enabled":false,"reason":"single_node_segments_broker","maintenance_mode":%t,"pop_maintenance_mode":%t}`, push, pop),
		string(b.Get(t, sharedStatePath).Body))
	for _, path := range []string{statsPath, "/internal/api/inter-instance/stats"} {
		stats := b.Get(t, path).Object(t)
		require.Equal(t, []any{push, pop}, []any{stats["maintenance_mode"], stats["pop_maintenance_mode"]})
	}
	text := map[bool]string{
		true:  "Pop maintenance mode is ON. All POP operations return empty arrays.",
		false: "Pop maintenance mode is OFF. Normal operation.",
	}[pop]
	require.JSONEq(t, fmt.Sprintf(`{"popMaintenanceMode":%t,"message":%q}`, pop, text), string(b.Get(t, popMaintenancePath).Body))
}

func TestPushMaintenance(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	b.PushTogether(t, q, "p", 2)
	requireModes(t, b, false, false)
	require.Zero(t, b.Metric(t, "queen_maintenance_mode_enabled"))

	pushesHeld(t, b)
	requireModes(t, b, true, false)
	require.Equal(t, 1.0, b.Metric(t, "queen_maintenance_mode_enabled"))
	require.JSONEq(t, `{"enabled":true}`, harness.Value[string](t, b.DB, `SELECT value::TEXT FROM queen.system_state WHERE key = 'maintenance_mode'`))
	a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%[1]q,"partition":"p","transactionId":"mine","payload":1},{"queue":"%[1]s-new","payload":2}]}`, q))
	require.Equal(t, http.StatusInternalServerError, a.Status, "there is no spool that would take them")
	var items []struct {
		Index         int
		MessageID     string `json:"message_id"`
		TransactionID string `json:"transaction_id"`
		QueueName     string
		Status, Error string
	}
	a.Into(t, &items)
	require.Len(t, items, 2)
	for i, item := range items {
		require.Equal(t, i, item.Index)
		require.Equal(t, "failed", item.Status)
		require.NotEmpty(t, item.Error)
	}
	require.Equal(t, []string{q, q + "-new"}, []string{items[0].QueueName, items[1].QueueName})
	require.Equal(t, "mine", items[0].TransactionID)
	requireUUIDv7(t, items[1].TransactionID)
	require.False(t, b.DB.HasQueue(t, q+"-new"), "no push reaches the database")

	// All else goes on.
	p := b.Pop(t, q, "batch=1")
	require.Equal(t, numbers(0, 1), p.Payloads())
	b.AckOK(t, "", p.Acks("completed")...)
	b.Configure(t, q, `{}`)
	require.Equal(t, http.StatusOK, b.Get(t, "/api/v1/resources/queues/"+q).Status)

	b.Terminate(t)
	b.Restart(t)
	requireModes(t, b, true, false)
	pushesFree(t, b)
	requireModes(t, b, false, false)
	b.PushQueued(t, harness.Item{Queue: q, Partition: "p", TransactionID: "mine", Payload: 9})
	require.Equal(t, []string{"1", "9"}, b.Pop(t, q, "batch=10").Payloads(), "what failed was not stored")
}

func TestPopMaintenance(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, deafWait...)
	q := queueName(t)
	b.Configure(t, q, `{"namespace":"`+q+`"}`)
	b.PushEach(t, q, "p", 1)
	held := b.Pop(t, q, "")
	paths := []string{harness.PopPath(q, ""), harness.PopPartitionPath(q, "p", ""), "/api/v1/pop?namespace=" + q}
	const wait = "wait=true&timeout=45000"
	var waiting []*parked
	for _, path := range []string{harness.PopPath(q, wait), harness.PopPartitionPath(q, "p", wait), "/api/v1/pop?namespace=" + q + "&" + wait} {
		waiting = append(waiting, park(t.Context(), b, path))
	}
	waiting[0].requireParked(t, 300*time.Millisecond)

	popsHeld(t, b)
	requireModes(t, b, false, true)
	for _, w := range waiting {
		require.Equal(t, http.StatusNoContent, w.answer(t).Status)
		require.Less(t, w.took, 20*time.Second, "it was not told")
	}
	require.Equal(t, 1.0, b.Metric(t, "queen_pop_maintenance_mode_enabled"))
	b.AckOK(t, "", held.Acks("retry")...)
	b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: 1})
	began := time.Now()
	for _, path := range append(paths, harness.PopPath(q, wait), harness.PopPath(q, "batch=what"), "/api/v1/pop", "/api/v1/pop/queue/%00") {
		a := b.Get(t, path)
		require.Equal(t, http.StatusNoContent, a.Status, "%s %s", path, a)
		require.Empty(t, a.Body)
		require.Empty(t, a.Header.Get("Content-Length"))
	}
	require.Less(t, time.Since(began), 20*time.Second)

	popsFree(t, b)
	requireModes(t, b, false, false)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "batch=10").Payloads())
	require.Equal(t, http.StatusBadRequest, b.Get(t, "/api/v1/pop").Status)
}

func TestModesNeedABoolean(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	for _, path := range []string{maintenancePath, popMaintenancePath} {
		for _, body := range []string{`{}`, `{"enabled":null}`, `{"enabled":"true"}`, `{"enabled":1}`, `{"enabled":{}}`} {
			a := b.Post(t, path, body)
			require.Equal(t, http.StatusBadRequest, a.Status, a)
			require.JSONEq(t, `{"error":"enabled (boolean) is required"}`, string(a.Body))
		}
		for _, body := range []string{``, `{`, `[]`, `{"enabled":true`} {
			a := b.Post(t, path, body)
			require.Equal(t, http.StatusBadRequest, a.Status, a)
			require.True(t, strings.HasPrefix(a.ErrorText(t), "bad body: "), a)
		}
	}
}

// What a broker remembers of a queue is read again also when it hears of no change.
func TestSettingsThatChangedUnheardOfAreReadAgain(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_CACHE_REFRESH_INTERVAL_MS=1000")
	other := b.Sibling(t)
	q := queueName(t)
	held := func() bool {
		b.PushEach(t, q, "", 1)
		began := time.Now()
		require.Len(t, b.Pop(t, q, "batch=2&wait=true&timeout=20000&autoAck=true").Messages, 1)
		return time.Since(began) > 1500*time.Millisecond
	}
	held() // remembers that nothing is to gather
	other.Configure(t, q, `{"minPopWaitTime":1600}`)
	harness.Eventually(t, 15*time.Second, "its pops are held", held)
}

// A mode is a matter of all brokers, whether they hear of it or not.
func TestModesReachEveryBroker(t *testing.T) {
	t.Parallel()
	m := startMeshed(t, 2)
	deaf := m.brokers[0].Sibling(t) // in no pool
	w := park(t.Context(), deaf, harness.PopPath(queueName(t), "wait=true&timeout=45000"))
	w.requireParked(t, 300*time.Millisecond)
	popsHeld(t, m.brokers[0])
	pushesHeld(t, m.brokers[0])
	seen := map[*harness.Broker]time.Duration{}
	for _, b := range []*harness.Broker{m.brokers[1], deaf} {
		began := time.Now()
		harness.Eventually(t, 20*time.Second, "the modes arrive", func() bool {
			state := b.Get(t, sharedStatePath).Object(t)
			return state["maintenance_mode"] == true && state["pop_maintenance_mode"] == true
		})
		seen[b] = time.Since(began)
		require.Equal(t, http.StatusNoContent, b.Get(t, harness.PopPath("q", "")).Status)
		require.Equal(t, http.StatusInternalServerError, b.Post(t, "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`).Status)
	}
	t.Logf("a broker that hears of a mode follows after %s, one that does not after %s", seen[m.brokers[1]], seen[deaf])
	require.Equal(t, http.StatusNoContent, w.answer(t).Status, "pops that wait are told behind every broker")
	popsFree(t, deaf)
	pushesFree(t, deaf)
	harness.Eventually(t, 20*time.Second, "the modes end", func() bool {
		state := m.brokers[0].Get(t, sharedStatePath).Object(t)
		return state["maintenance_mode"] == false && state["pop_maintenance_mode"] == false
	})
}

func TestModesWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=2000"}})
	b := s.Broker
	require.JSONEq(t, `{"pending":0,"failed":0,"dbHealthy":true,"worker":0}`, string(b.Get(t, buffersPath).Body))
	s.Proxy.Cut()
	require.JSONEq(t, `{"pending":0,"failed":0,"dbHealthy":false,"worker":0}`, string(b.Get(t, buffersPath).Body))
	a := b.Get(t, "/health")
	require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
	require.Equal(t, http.StatusOK, b.Get(t, "/status").Status)

	switchMode(t, b, maintenancePath, true,
		`{"maintenanceMode":true,"bufferedMessages":0,"bufferHealthy":false,"message":"Maintenance mode ENABLED. All PUSHes routing to file buffer."}`)
	popsHeld(t, b)
	require.JSONEq(t, `{"maintenanceMode":true,"popMaintenanceMode":true,"bufferedMessages":0,"bufferHealthy":false,`+
		`"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":false,`+noFiles+`}}`, string(b.Get(t, maintenancePath).Body))
	require.Equal(t, http.StatusNoContent, b.Get(t, harness.PopPath("q", "")).Status)

	s.Proxy.Heal()
	harness.Eventually(t, 30*time.Second, "healthy again", func() bool { return b.Get(t, "/health").Status == http.StatusOK })
	requireModes(t, b, true, true) // nobody has decided otherwise on record
	pushesFree(t, b)
	popsFree(t, b)
}

func TestHealthAndStatus(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	health := b.Get(t, "/health")
	require.Equal(t, http.StatusOK, health.Status, health)
	body := health.Object(t)
	require.NotEmpty(t, body["version"])
	delete(body, "version")
	require.Equal(t, map[string]any{"status": "healthy", "database": "connected", "engine": "segments-rust"}, body)
	require.JSONEq(t, `{"status":"ok","engine":"segments-rust"}`, string(b.Get(t, "/status").Body))
	require.JSONEq(t, `{"pending":0,"failed":0,"dbHealthy":true,"worker":0}`, string(b.Get(t, buffersPath).Body))
}

func TestCountersAsJSON(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	q := queueName(t)
	before := b.Get(t, "/metrics").Object(t)
	requireKeys(t, before, "uptime", "requests", "messages", "database", "memory", "cpu")
	b.PushTogether(t, q, "p", 3)
	after := b.Get(t, "/metrics").Object(t)
	at := func(doc map[string]any, part, leaf string) float64 { return doc[part].(map[string]any)[leaf].(float64) }
	require.GreaterOrEqual(t, after["uptime"].(float64), 0.0)
	require.Equal(t, 3.0, at(after, "messages", "total")-at(before, "messages", "total"))
	require.GreaterOrEqual(t, at(after, "requests", "total")-at(before, "requests", "total"), 2.0)
	require.Positive(t, at(after, "memory", "rss"))
	require.Positive(t, at(after, "database", "poolSize"))
	require.LessOrEqual(t, at(after, "database", "idleConnections"), at(after, "database", "poolSize"))
	for part, leaves := range map[string][]string{
		"requests": {"rate"}, "messages": {"rate"}, "database": {"waitingRequests"}, "cpu": {"user", "system"},
		"memory": {"heapTotal", "heapUsed", "external", "arrayBuffers"},
	} {
		for _, leaf := range leaves {
			require.Zero(t, at(after, part, leaf), "%s.%s", part, leaf)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	me := b.Get(t, "/auth/me").Object(t)
	requireKeys(t, me, "user_id", "email", "clusters", "acting_cluster", "act_cluster_header", "is_operator", "operator_enabled", "operator_live", "standalone")
	require.Len(t, me["clusters"], 1)
	cluster := me["clusters"].([]any)[0].(map[string]any)
	requireKeys(t, cluster, "id", "slug", "tenant_slug", "cell_slug", "status", "role")
	require.Equal(t, []any{"local", "active", "admin"}, []any{cluster["slug"], cluster["status"], cluster["role"]})
	require.Equal(t, map[string]any{"id": cluster["id"], "slug": "local"}, me["acting_cluster"])
	for _, flag := range []string{"is_operator", "operator_enabled", "operator_live", "standalone"} {
		require.Equal(t, true, me[flag], flag)
	}
	require.Equal(t, me, b.Get(t, "/auth/me").Object(t), "it stays the same")

	login := b.Get(t, "/auth/login?next=%2F")
	require.Equal(t, http.StatusOK, login.Status)
	require.Contains(t, login.Header.Get("Content-Type"), "text/html")
	require.Contains(t, string(login.Body), "proxy")
	require.Equal(t, http.StatusOK, b.Post(t, "/auth/logout", "").Status)
	for _, path := range []string{"/auth/", "/auth/callback", "/auth/me/x"} {
		a := b.Get(t, path)
		require.Equal(t, http.StatusNotFound, a.Status, path)
		require.JSONEq(t, noRoute, string(a.Body))
	}
}

// TestSilentAnnouncementsBlockNobody: an announced length is no reason to keep room.
func TestSilentAnnouncementsBlockNobody(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	for range 6 {
		dial(t, b).send(t, "POST /api/v1/push HTTP/1.1\nHost: queen\nContent-Length: 67108864\n\n"+strings.Repeat("x", 1000))
	}
	q := queueName(t)
	began := time.Now()
	b.PushQueued(t, harness.Item{Queue: q, Payload: strings.Repeat("a", 8<<20)})
	b.PushTogether(t, q, "p", 3)
	require.Less(t, time.Since(began), 9*time.Second, "less than a request waits for room")
}
