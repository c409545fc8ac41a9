package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/push"
)

const (
	maintenancePath = "/api/v1/system/maintenance"
	noFiles         = `"failedFiles":{"count":0,"totalBytes":0,"totalMB":0,"failoverCount":0,"qos0Count":0}`
)

func TestMaintenanceOfPushes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("GET", maintenancePath, "", http.StatusOK, `{"maintenanceMode":false,"popMaintenanceMode":false,"bufferedMessages":0,"bufferHealthy":true,`+
		`"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":true,`+noFiles+`}}`)
	b.want("POST", maintenancePath, `{"enabled":true,"by":"me"}`, http.StatusOK, `{"maintenanceMode":true,"bufferedMessages":0,"bufferHealthy":true,`+
		`"message":"Maintenance mode ENABLED. All PUSHes routing to file buffer."}`)
	require.True(t, b.modes.push.Load())
	b.want("GET", "/api/v1/system/shared-state", "", http.StatusOK,
		`{"enabled":false,"reason":"single_node_segments_broker","maintenance_mode":true,"pop_maintenance_mode":false}`)
	b.want("POST", maintenancePath, `{"enabled":false}`, http.StatusOK, `{"maintenanceMode":false,"bufferedMessages":0,"bufferHealthy":true,`+
		`"message":"Maintenance mode DISABLED. Background processor will drain buffer to DB."}`)
	require.False(t, b.modes.push.Load())
	require.Equal(t, []string{"flags", "flags"}, b.changed)
}

func TestMaintenanceOfPops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const path = maintenancePath + "/pop"
	b.want("GET", path, "", http.StatusOK, `{"popMaintenanceMode":false,"message":"Pop maintenance mode is OFF. Normal operation."}`)
	b.want("POST", path, `{"enabled":true}`, http.StatusOK,
		`{"popMaintenanceMode":true,"message":"Pop maintenance mode ENABLED. All POP operations will return empty arrays."}`)
	b.want("GET", path, "", http.StatusOK, `{"popMaintenanceMode":true,"message":"Pop maintenance mode is ON. All POP operations return empty arrays."}`)
	b.want("POST", path, `{"enabled":false}`, http.StatusOK, `{"popMaintenanceMode":false,"message":"Pop maintenance mode DISABLED. Normal operation."}`)
	require.Equal(t, []string{"flags", "flags"}, b.changed)
}

func TestModeNeedsABoolean(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{maintenancePath, maintenancePath + "/pop"} {
		for _, body := range []string{`{}`, `{"enabled":null}`, `{"enabled":1}`, `{"enabled":"true"}`, `{"enabled":[true]}`, `{"Enabled":true}`} {
			b.want("POST", path, body, http.StatusBadRequest, `{"error":"enabled (boolean) is required"}`)
		}
		for _, body := range []string{``, `[]`, `true`, `{"enabled":true`, `{"enabled":true,"enabled":false}`, `{"enabled":true}}`} {
			res, answer := b.call("POST", path, body)
			require.Equal(t, http.StatusBadRequest, res.StatusCode, body)
			require.True(t, strings.HasPrefix(answer, `{"error":"bad body: `), answer)
		}
	}
	require.False(t, b.modes.push.Load())
	require.False(t, b.modes.pop.Load())
	require.Empty(t, b.changed)
}

func TestModesAreAnsweredWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.modes.err = errors.New("down")
	b.want("POST", maintenancePath, `{"enabled":true}`, http.StatusOK, `{"maintenanceMode":true,"bufferedMessages":0,"bufferHealthy":false,`+
		`"message":"Maintenance mode ENABLED. All PUSHes routing to file buffer."}`)
	b.want("GET", maintenancePath, "", http.StatusOK, `{"maintenanceMode":true,"popMaintenanceMode":false,"bufferedMessages":0,"bufferHealthy":false,`+
		`"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":false,`+noFiles+`}}`)
}

func TestBuffersShowTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("GET", "/api/v1/status/buffers", "", http.StatusOK, `{"pending":0,"failed":0,"dbHealthy":true,"worker":0}`)
	b.ping = func(context.Context) error { return errors.New("down") }
	b.want("GET", "/api/v1/status/buffers", "", http.StatusOK, `{"pending":0,"failed":0,"dbHealthy":false,"worker":0}`)
}

// What a pop asks for does not matter under maintenance.
func TestHeldPopsAreAnsweredBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pop = func(context.Context, pop.Request) ([]byte, error) { return []byte(`{}`), nil }
	paths := []string{
		"/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p", "/api/v1/pop?namespace=n", "/api/v1/pop", "/api/v1/pop/queue/q?batch=x",
		"/api/v1/pop/queue/%00", "/api/v1/pop/queue/q?wait=true&timeout=60000",
	}
	b.modes.pop.Store(true)
	for _, path := range paths {
		res, body := b.call("GET", path, "")
		require.Equal(t, http.StatusNoContent, res.StatusCode, path)
		require.Empty(t, body)
		require.Empty(t, res.Header.Get("Content-Length"))
	}
	b.modes.pop.Store(false)
	for i, path := range paths {
		res, _ := b.call("GET", path, "")
		require.Equal(t, []int{200, 200, 200, 400, 400, 400, 200}[i], res.StatusCode, path)
	}
}

func TestHeldPushesFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push = func(_ context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
		return []wire.PushResult{{TransactionID: "t", QueueName: items[0].Queue, Status: wire.StatusFailed, Error: "held"}}, push.ErrHeld
	}
	b.want("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, http.StatusInternalServerError,
		`[{"index":0,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"t","queueName":"q","status":"failed","error":"held"}]`)
	_, counters := b.call("GET", "/metrics", "")
	require.Contains(t, counters, `"messages":{"total":0,"rate":0}`)
	require.NotContains(t, b.log.String(), "level=ERROR", "nothing is broken")
}

func TestIdentityWithoutAuthentication(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("GET", "/auth/me", "", http.StatusOK, `{"user_id":"local","email":"local@localhost",`+
		`"clusters":[{"id":"00000000-0000-0000-0000-000000000001","slug":"local","tenant_slug":"local","cell_slug":"local","status":"active","role":"admin"}],`+
		`"acting_cluster":{"id":"00000000-0000-0000-0000-000000000001","slug":"local"},"act_cluster_header":"x-queen-act-cluster",`+
		`"is_operator":true,"operator_enabled":true,"operator_live":true,"standalone":true}`)
	b.want("POST", "/auth/logout", "", http.StatusOK, `{"success":true}`)
	res, body := b.call("GET", "/auth/login?next=%2Fqueues", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/html; charset=UTF-8", res.Header.Get("Content-Type"))
	require.Contains(t, body, "proxy")
	require.NotContains(t, body, "queues", "nothing of the request is repeated")
}
