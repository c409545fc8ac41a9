package harness

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is where services send their spans (OTLP over HTTP).
type Collector struct {
	url string

	mu    sync.Mutex
	spans []Span
	fault error
}

// Span is one span that a service has sent. Ids are hexadecimal, as in traceparent.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string
	Links             []string // ids of spans
	Attributes        map[string]string
	Failed            bool
}

// StartCollector listens until the test ends.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(c.take))
	c.url = server.URL
	t.Cleanup(server.Close)
	return c
}

// Env makes a service send its spans here soon.
func (c *Collector) Env() []string {
	return []string{
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=20",
	}
}

// Await waits until there is a span as described, and returns the first.
func (c *Collector) Await(t testing.TB, what string, like func(Span) bool) Span {
	t.Helper()
	var found Span
	require.Eventually(t, func() bool {
		for _, s := range c.Spans(t) {
			if like(s) {
				found = s
				return true
			}
		}
		return false
	}, spanTimeout, 10*time.Millisecond, what)
	return found
}

const spanTimeout = 20 * time.Second

// Spans are all that have come so far.
func (c *Collector) Spans(t testing.TB) []Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.NoError(t, c.fault)
	return slices.Clone(c.spans)
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.fault = err
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, resource := range request.GetResourceSpans() {
		service := attributes(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(service, s))
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func spanOf(service string, s *tracepb.Span) Span {
	span := Span{
		Service: service, Name: s.GetName(), Attributes: attributes(s.GetAttributes()),
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
	}
	for _, l := range s.GetLinks() {
		span.Links = append(span.Links, hex.EncodeToString(l.GetSpanId()))
	}
	return span
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	out := make(map[string]string, len(list))
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		default:
			out[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return out
}
