package httpapi_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

const (
	caller   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unwanted = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// tracedSurface is a surface whose spans are recorded as the caller wishes, and always
// where he says nothing.
func tracedSurface(t *testing.T) (*bundle, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	b := setupWith(t, func(d *httpapi.Deps) {
		d.Tracers = provider(t, sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(spans))
		d.Propagator = propagation.TraceContext{}
	})
	return b, spans
}

func (b *bundle) as(traceparent, method, path, body string) int {
	req := httptest.NewRequestWithContext(b.t.Context(), method, path, strings.NewReader(body))
	req.Header.Set("traceparent", traceparent)
	res := httptest.NewRecorder()
	b.api.ServeHTTP(res, req)
	return res.Code
}

func TestARequestIsASpanOfTheCallersTrace(t *testing.T) {
	t.Parallel()
	b, spans := tracedSurface(t)
	require.Equal(t, http.StatusCreated, b.as(caller, "POST", "/api/v1/push", `{"items":[{"queue":"q","partition":"p","payload":"secret"}]}`))
	require.Len(t, spans.Ended(), 1)
	s := spans.Ended()[0]
	require.Equal(t, "POST /api/v1/push", s.Name())
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.SpanContext().TraceID().String())
	require.Equal(t, "b7ad6b7169203331", s.Parent().SpanID().String())
	require.Subset(t, s.Attributes(), []attribute.KeyValue{
		attribute.String("http.route", "/api/v1/push"), attribute.Int("http.response.status_code", http.StatusCreated),
		attribute.String("messaging.destination.name", "q"), attribute.String("messaging.destination.partition.id", "p"),
		attribute.Int("messaging.batch.message_count", 1),
	})
	for _, a := range s.Attributes() {
		require.NotContains(t, a.Value.String(), "secret")
	}
}

func TestSpansNameWhatRequestsAreAbout(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, path, body string
		span               string
		want, not          string
	}{
		"a pop": {
			"GET", "/api/v1/pop/queue/q/partition/p?consumerGroup=g", "", "GET /api/v1/pop/queue/:queue/partition/*",
			"messaging.destination.name=q messaging.destination.partition.id=p messaging.consumer.group.name=g", "",
		},
		"a discovery": {"GET", "/api/v1/pop?namespace=n", "", "GET /api/v1/pop", "messaging.operation.type=receive", "messaging.destination.name"},
		"an ack": {
			"POST", "/api/v1/ack/batch", `{"consumerGroup":"g","acknowledgments":[{"transactionId":"a","partitionId":"00000000-0000-0000-0000-000000000001"}]}`,
			"POST /api/v1/ack/batch", "messaging.consumer.group.name=g messaging.batch.message_count=1", "",
		},
		"lanes of a queue": {
			"POST", "/api/v1/push", `{"items":[{"queue":"q","partition":"a","payload":1},{"queue":"q","partition":"b","payload":1}]}`,
			"POST /api/v1/push", "messaging.destination.name=q messaging.batch.message_count=2", "messaging.destination.partition.id",
		},
		"several queues": {
			"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"r","payload":1}]}`,
			"POST /api/v1/push", "messaging.batch.message_count=2", "messaging.destination.name",
		},
		"nonsense": {"BREW", "/coffee?pot=1", "", "other unmatched", "url.path=/coffee http.response.status_code=404", "pot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, spans := tracedSurface(t)
			b.as(caller, tc.method, tc.path, tc.body)
			require.Len(t, spans.Ended(), 1)
			require.Equal(t, tc.span, spans.Ended()[0].Name())
			var said strings.Builder
			for _, a := range spans.Ended()[0].Attributes() {
				said.WriteString(string(a.Key) + "=" + a.Value.String() + "\n")
			}
			for _, want := range strings.Fields(tc.want) {
				require.Contains(t, said.String(), want+"\n")
			}
			if tc.not != "" {
				require.NotContains(t, said.String(), tc.not)
			}
		})
	}
}

func TestOnlyFailuresOfTheBrokerAreErrors(t *testing.T) {
	t.Parallel()
	b, spans := tracedSurface(t)
	b.ackErr = errors.New("broken")
	b.as(caller, "POST", "/api/v1/push", `nonsense`)
	b.as(caller, "POST", "/api/v1/ack", `{"transactionId":"a","partitionId":"00000000-0000-0000-0000-000000000001"}`)
	require.Len(t, spans.Ended(), 2)
	require.Equal(t, codes.Unset, spans.Ended()[0].Status().Code)
	require.Equal(t, codes.Error, spans.Ended()[1].Status().Code)
}

func TestProbesAndUnwantedRequestsAreNotTraced(t *testing.T) {
	t.Parallel()
	b, spans := tracedSurface(t)
	for _, path := range []string{"/health", "/metrics", "/metrics/prometheus"} {
		require.Equal(t, http.StatusOK, b.as(caller, "GET", path, ""))
	}
	require.Equal(t, http.StatusCreated, b.as(unwanted, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`))
	require.Empty(t, spans.Ended())
}
