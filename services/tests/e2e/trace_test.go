package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// wanted is the traceparent of a caller who wants the request recorded. n makes the
// traces of a test distinct.
func wanted(n int) (trace, header string) {
	trace = fmt.Sprintf("4bf92f3577b34da6a3ce%012x", n)
	return trace, "00-" + trace + "-00f067aa0ba902b7-01"
}

// named describes a span of a trace by the beginning of its name.
func named(trace, name string) func(harness.Span) bool {
	return func(s harness.Span) bool { return s.Trace == trace && strings.HasPrefix(s.Name, name) }
}

// called describes the call of a procedure below a span.
func called(parent harness.Span, procedure string) func(harness.Span) bool {
	return func(s harness.Span) bool {
		return s.Parent == parent.ID && strings.Contains(s.Attributes["db.query.text"], "queen."+procedure)
	}
}

// TestTraces runs a broker that records nothing by itself: only what a caller wants.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := harness.StartCollector(t)
	b := harness.StartOne(t, slices.Concat(c.Env(), []string{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0"})...)
	call := func(t *testing.T, n int, method, path string, body any) (trace string, answer harness.Answer) {
		t.Helper()
		trace, header := wanted(n)
		var text []byte
		if body != nil {
			text = []byte(mustJSON(t, body))
		}
		a, err := b.Call(t.Context(), method, path, text, "traceparent", header)
		require.NoError(t, err)
		return trace, a
	}
	push := func(t *testing.T, n int, q string) (trace string) {
		t.Helper()
		trace, a := call(t, n, http.MethodPost, "/api/v1/push", object{"items": []object{{"queue": q, "partition": "p", "payload": "confidential"}}})
		require.Equal(t, http.StatusCreated, a.Status, a)
		return trace
	}

	t.Run("one push is one trace with its flush linked", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushQueued(t, harness.Item{Queue: q, Payload: 1}) // nobody wants to see this one
		trace := push(t, 1, q)
		request := c.Await(t, "the request", named(trace, "POST /api/v1/push"))
		flush := c.Await(t, "the flush", named(trace, "push flush"))
		c.Await(t, "the call", called(flush, "log_push_multi_v1"))
		require.Equal(t, "queen-broker", request.Service)
		require.Equal(t, "00f067aa0ba902b7", request.Parent)
		require.Equal(t, request.ID, flush.Parent)
		require.Equal(t, []string{request.ID}, flush.Links)
		require.Equal(t, []string{flush.ID}, request.Links)
		require.Equal(t, q, request.Attributes["messaging.destination.name"])
		for _, s := range c.Spans(t) {
			require.True(t, strings.HasPrefix(s.Trace, "4bf92f3577b34da6a3ce"), "the sampler has left out what nobody wants: %+v", s)
			require.NotContains(t, fmt.Sprint(s), "confidential")
		}
	})
	t.Run("pushes that share a flush are linked with it", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		const pushes, first = 32, 100
		for round := 0; ; round++ {
			require.Less(t, round, 20, "no flush was shared")
			var senders sync.WaitGroup
			for n := range pushes {
				senders.Go(func() { push(t, first+round*pushes+n, q) })
			}
			senders.Wait()
			if checkShared(t, c, q, first+round*pushes, pushes) {
				return
			}
		}
	})
	t.Run("a pop and its ack", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		b.PushQueued(t, harness.Item{Queue: q, Payload: 1})
		trace, a := call(t, 2, http.MethodGet, harness.PopPath(q, "consumerGroup=g"), nil)
		require.Equal(t, http.StatusOK, a.Status, a)
		var popped harness.Popped
		a.Into(t, &popped)
		request := c.Await(t, "the pop", named(trace, "GET /api/v1/pop/queue/:queue"))
		require.Equal(t, "g", request.Attributes["messaging.consumer.group.name"])
		c.Await(t, "a call", func(s harness.Span) bool { return s.Trace == trace && s.Attributes["db.query.text"] != "" })

		m := popped.Messages[0]
		trace, a = call(t, 3, http.MethodPost, "/api/v1/ack", object{
			"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID, "consumerGroup": "g", "status": "completed",
		})
		require.Equal(t, http.StatusOK, a.Status, a)
		request = c.Await(t, "the ack", named(trace, "POST /api/v1/ack"))
		flush := c.Await(t, "its flush", named(trace, "ack flush"))
		require.Equal(t, []string{flush.ID}, request.Links)
		c.Await(t, "the call", func(s harness.Span) bool { return s.Parent == flush.ID })
	})
	t.Run("a parked pop is one trace until its answer", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		trace, header := wanted(4)
		done := make(chan harness.Answer, 1)
		go func() {
			a, err := b.Call(t.Context(), http.MethodGet, harness.PopPath(q, "wait=true&timeout=20000"), nil, "traceparent", header)
			if err != nil {
				t.Error(err)
			}
			done <- a
		}()
		c.Await(t, "its first look", func(s harness.Span) bool { return s.Trace == trace && s.Attributes["db.query.text"] != "" })
		looks := len(c.Spans(t))
		b.PushQueued(t, harness.Item{Queue: q, Payload: 1})
		require.Equal(t, http.StatusOK, (<-done).Status)
		request := c.Await(t, "the pop", named(trace, "GET /api/v1/pop/queue/:queue"))
		require.Equal(t, "200", request.Attributes["http.response.status_code"])
		require.Greater(t, len(c.Spans(t)), looks+1, "the look after the wake is there too")
	})
	t.Run("keys, timers and transactions", func(t *testing.T) {
		t.Parallel()
		q := queueName(t)
		for n, r := range []struct {
			method, path string
			body         any
			procedure    string
		}{
			{http.MethodPost, kvPath, object{"operations": []object{{"op": "put", "ns": "traces", "key": "k", "value": 1, "forever": true}}}, "kv_apply_v1"},
			{http.MethodPost, timersPath, object{"operations": []object{schedule(q, "k", later, 1)}}, "log_timers_apply_v1"},
			{http.MethodPost, "/api/v1/transaction", object{"operations": []object{{"type": "push", "items": []object{{"queue": q, "payload": 1}}}}}, "log_transaction_wire_v1"},
		} {
			trace, a := call(t, 10+n, r.method, r.path, r.body)
			require.Equal(t, http.StatusOK, a.Status, a)
			request := c.Await(t, r.path, named(trace, r.method+" "+r.path))
			c.Await(t, r.procedure, called(request, r.procedure))
		}
	})
}

// checkShared reports whether any flush carried several of some pushes, and requires
// that every flush is linked with all that it carried.
func checkShared(t *testing.T, c *harness.Collector, q string, first, pushes int) (shared bool) {
	t.Helper()
	for n := range pushes {
		trace, _ := wanted(first + n)
		request := c.Await(t, "a request", named(trace, "POST /api/v1/push"))
		require.Equal(t, q, request.Attributes["messaging.destination.name"])
		require.Len(t, request.Links, 1, "one part goes with one flush")
		flush := c.Await(t, "its flush", func(s harness.Span) bool { return s.ID == request.Links[0] })
		require.Equal(t, "push flush", flush.Name)
		require.Contains(t, flush.Links, request.ID)
		shared = shared || len(flush.Links) > 1
	}
	return shared
}

func TestTracesOfWorkers(t *testing.T) {
	t.Parallel()
	c := harness.StartCollector(t)
	b := harness.StartOne(t)
	q := queueName(t)
	b.Configure(t, q, keepsOneSecond)
	b.PushTogether(t, q, "p", 3)
	backdate(t, b.DB, q, time.Hour)
	timers(t, b, nil, schedule(q+"-fired", "k", 0, 1))
	harness.StartSweeper(t, b.DB, c.Env()...)
	harness.StartMaintainer(t, b.DB, c.Env()...)

	fire := c.Await(t, "a fire", func(s harness.Span) bool { return s.Name == "timers fire" })
	require.Equal(t, "queen-sweeper", fire.Service)
	c.Await(t, "its call", called(fire, "log_timers_fire_v1"))
	drain := c.Await(t, "its drain", func(s harness.Span) bool { return s.ID == fire.Parent })
	require.Equal(t, "timers drain", drain.Name)
	c.Await(t, "the claim", called(drain, "log_timers_claim_v1"))
	prune := c.Await(t, "a prune", func(s harness.Span) bool { return s.Name == "keys prune" })
	c.Await(t, "its call", called(prune, "kv_expire_step_v1"))

	step := c.Await(t, "a retention step", func(s harness.Span) bool {
		return s.Name == "retention lane step" && s.Attributes["messaging.destination.name"] == q
	})
	require.Equal(t, "queen-maintainer", step.Service)
	c.Await(t, "its call", called(step, "log_retention_step_v1"))
	phase := c.Await(t, "its phase", func(s harness.Span) bool { return s.ID == step.Parent })
	require.Equal(t, "retention retention", phase.Name)
	c.Await(t, "its cycle", func(s harness.Span) bool { return s.ID == phase.Parent && s.Name == "retention cycle" })
}
