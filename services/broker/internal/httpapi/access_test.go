package httpapi_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// accessOf is who may use which route, by the promise of the wire.
func accessOf() map[string]httpapi.Access {
	return map[string]httpapi.Access{
		"POST /api/v1/push":                                              httpapi.WriteOnly,
		"GET /api/v1/pop":                                                httpapi.ReadWrite,
		"GET /api/v1/pop/queue/:queue":                                   httpapi.ReadWrite,
		"GET /api/v1/pop/queue/:queue/partition/*":                       httpapi.ReadWrite,
		"POST /api/v1/ack":                                               httpapi.ReadWrite,
		"POST /api/v1/ack/batch":                                         httpapi.ReadWrite,
		"POST /api/v1/lease/:leaseId/extend":                             httpapi.ReadWrite,
		"POST /api/v1/transaction":                                       httpapi.ReadWrite,
		"POST /api/v1/timers":                                            httpapi.WriteOnly,
		"GET /api/v1/timers/:queue":                                      httpapi.ReadOnly,
		"GET /api/v1/timers/:queue/*":                                    httpapi.ReadOnly,
		"DELETE /api/v1/timers/:queue/*":                                 httpapi.ReadWrite,
		"POST /api/v1/kv":                                                httpapi.ReadWrite,
		"GET /api/v1/kv/:ns/*":                                           httpapi.ReadOnly,
		"PUT /api/v1/kv/:ns/*":                                           httpapi.ReadWrite,
		"DELETE /api/v1/kv/:ns/*":                                        httpapi.ReadWrite,
		"GET /api/v1/resources/kv/namespaces":                            httpapi.ReadOnly,
		"POST /api/v1/resources/kv/list":                                 httpapi.ReadOnly,
		"POST /api/v1/configure":                                         httpapi.ReadWrite,
		"GET /api/v1/resources/queues":                                   httpapi.ReadOnly,
		"GET /api/v1/resources/queues/:queue":                            httpapi.ReadOnly,
		"DELETE /api/v1/resources/queues/:queue":                         httpapi.Admin,
		"GET /api/v1/resources/queues/:queue/depth":                      httpapi.ReadOnly,
		"GET /api/v1/resources/overview":                                 httpapi.ReadOnly,
		"GET /api/v1/resources/namespaces":                               httpapi.ReadOnly,
		"GET /api/v1/resources/tasks":                                    httpapi.ReadOnly,
		"POST /api/v1/partitions/changed":                                httpapi.ReadOnly,
		"GET /api/v1/consumer-groups":                                    httpapi.ReadOnly,
		"GET /api/v1/consumer-groups/lagging":                            httpapi.ReadOnly,
		"GET /api/v1/consumer-groups/:group":                             httpapi.ReadOnly,
		"DELETE /api/v1/consumer-groups/:group":                          httpapi.Admin,
		"POST /api/v1/consumer-groups/:group/subscription":               httpapi.ReadWrite,
		"POST /api/v1/consumer-groups/:group/queues/:queue/seek":         httpapi.ReadWrite,
		"POST /api/v1/consumer-groups/:group/queues/:queue/partitions/*": httpapi.ReadWrite, // :partition/seek
		"DELETE /api/v1/consumer-groups/:group/queues/:queue":            httpapi.Admin,
		"GET /api/v1/messages":                                           httpapi.ReadOnly,
		"GET /api/v1/messages/:partitionId/:transactionId":               httpapi.ReadOnly,
		"DELETE /api/v1/messages/:partitionId/:transactionId":            httpapi.ReadWrite,
		"POST /api/v1/messages/:partitionId/:transactionId/retry":        httpapi.ReadWrite,
		"GET /api/v1/dlq":                                                httpapi.ReadOnly,
		"DELETE /api/v1/dlq":                                             httpapi.Admin,
		"POST /api/v1/dlq/:id/replay":                                    httpapi.ReadWrite,
		"POST /api/v1/traces":                                            httpapi.ReadWrite,
		"GET /api/v1/traces/:partitionId/:transactionId":                 httpapi.ReadOnly,
		"GET /api/v1/traces/by-name/:traceName":                          httpapi.ReadOnly,
		"GET /api/v1/traces/names":                                       httpapi.ReadOnly,
		"GET /api/v1/status":                                             httpapi.ReadOnly,
		"GET /api/v1/status/queues":                                      httpapi.ReadOnly,
		"GET /api/v1/status/queues/:queue":                               httpapi.ReadOnly,
		"GET /api/v1/status/analytics":                                   httpapi.ReadOnly,
		"GET /api/v1/status/buffers":                                     httpapi.ReadOnly,
		"POST /api/v1/stats/refresh":                                     httpapi.Admin,
		"GET /api/v1/analytics/queue-lag":                                httpapi.ReadOnly,
		"GET /api/v1/analytics/queue-ops":                                httpapi.ReadOnly,
		"GET /api/v1/analytics/queue-parked-replicas":                    httpapi.ReadOnly,
		"GET /api/v1/analytics/retention":                                httpapi.ReadOnly,
		"GET /api/v1/analytics/system-metrics":                           httpapi.ReadOnly,
		"GET /api/v1/analytics/worker-metrics":                           httpapi.ReadOnly,
		"GET /api/v1/analytics/postgres-stats":                           httpapi.ReadOnly,
		"GET /api/v1/analytics/workload":                                 httpapi.ReadOnly,
		"GET /api/v1/analytics/dlq-signatures":                           httpapi.ReadOnly,
		"GET /api/v1/analytics/partition-liveness":                       httpapi.ReadOnly,
		"GET /api/v1/system/maintenance":                                 httpapi.Admin,
		"POST /api/v1/system/maintenance":                                httpapi.Admin,
		"GET /api/v1/system/maintenance/pop":                             httpapi.Admin,
		"POST /api/v1/system/maintenance/pop":                            httpapi.Admin,
		"GET /api/v1/system/shared-state":                                httpapi.Admin,
		"GET /api/v1/system/kv-timers":                                   httpapi.Admin,
		"POST /api/v1/system/kv-timers":                                  httpapi.Admin,
		"POST /internal/api/notify":                                      httpapi.Admin,
		"GET /internal/api/shared-state/stats":                           httpapi.Admin,
		"GET /internal/api/inter-instance/stats":                         httpapi.Admin,
		"GET /auth/me":                                                   httpapi.Public,
		"GET /auth/login":                                                httpapi.Public,
		"POST /auth/logout":                                              httpapi.Public,
		"GET /health":                                                    httpapi.Public,
		"GET /status":                                                    httpapi.ReadOnly,
		"GET /metrics":                                                   httpapi.Public,
		"GET /metrics/prometheus":                                        httpapi.Public,
		"GET /openapi.yaml":                                              httpapi.Public,
	}
}

// param matches a name in a path, which the router and documents may call differently.
var param = regexp.MustCompile(`:\w+`)

func TestEveryRouteHasItsClassOfAccess(t *testing.T) {
	t.Parallel()
	promised := map[string]string{}
	for route, access := range accessOf() {
		promised[param.ReplaceAllString(route, ":")] = access.String()
	}
	api, err := httpapi.New(httpapi.Config{MaxBodyBytes: 1, MaxInflightBytes: 1}, httpapi.Deps{Meter: noop.Meter{}})
	require.NoError(t, err)
	require.NotEmpty(t, api.Routes())
	for _, r := range api.Routes() {
		require.Equal(t, promised[param.ReplaceAllString(r.Method+" "+r.Path, ":")], r.Access.String(), "%s %s", r.Method, r.Path)
	}
}
