package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

func TestPushAnswersOneElementPerItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":null,"transactionId":"t1"}]}`, http.StatusCreated,
		`[{"index":0,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"t1","queueName":"q","status":"queued"}]`)
	b.want("POST", "/api/v1/push", `{"items":[]}`, http.StatusCreated, `[]`)
}

func TestPopAnswersTheBodyOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pop = func(_ context.Context, req pop.Request) ([]byte, error) {
		require.Equal(t, pop.Discover, req.Route)
		require.Equal(t, "n", req.Query.Namespace)
		require.Equal(t, 5, req.Query.Batch)
		require.Equal(t, 30*time.Second, req.Query.Timeout)
		return []byte(`{"success":true}`), nil
	}
	b.want("GET", "/api/v1/pop?namespace=n&batch=5&futureParameter=1", "", http.StatusOK, `{"success":true}`)
	b.want("GET", "/api/v1/pop", "", http.StatusBadRequest, `{"success":false,"error":"namespace or task is required","messages":[]}`)
}

func TestRequestsThatCannotBeServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct{ method, path, body string }{
		{"POST", "/api/v1/push", ``}, {"POST", "/api/v1/push", `{`}, {"POST", "/api/v1/push", `[]`}, {"POST", "/api/v1/push", `{}`},
		{"POST", "/api/v1/push", `{"items":[{"queue":"q","data":1}]}`},
		{"GET", "/api/v1/pop/queue/q?batch=abc", ``}, {"GET", "/api/v1/pop/queue/q?wait=1", ``},
		{"GET", "/api/v1/pop/queue/q?conflation=true&consumerGroup=g", ``},
		{"POST", "/api/v1/ack", ``}, {"POST", "/api/v1/ack/batch", `{"acknowledgments":1}`},
		{"POST", "/api/v1/configure", `{}`}, {"POST", "/api/v1/configure", `{"queue":1}`},
		{"GET", "/api/v1/dlq?limit=x", ``}, {"GET", "/api/v1/dlq?limit=-1", ``}, {"GET", "/api/v1/dlq?offset=1.5", ``},
		{"GET", "/api/v1/dlq?offset=99999999999", ``}, {"GET", "/api/v1/dlq?from=yesterday", ``},
		{"GET", "/api/v1/dlq?queue=%00", ``}, {"GET", "/api/v1/dlq?consumerGroup=%FF", ``}, {"GET", "/api/v1/dlq?x=%", ``},
	} {
		res, body := b.call(tc.method, tc.path, tc.body)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, "%s %s %s", tc.method, tc.path, tc.body)
		require.Regexp(t, `^\{"error":".+"\}$`, body)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	}
	require.NotContains(t, b.log.String(), "level=ERROR", "a client's mistake is no failure of ours")
}

func TestTransactionRefusalsHaveItsOwnEnvelope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{``, `{`, `{}`, `{"operations":1}`, `{"operations":[{"type":"explode"}]}`} {
		res, got := b.call("POST", "/api/v1/transaction", body)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, body)
		require.Regexp(t, regexp.MustCompile(`^\{"transactionId":"[0-9a-f-]{36}","success":false,"reason":"bad_request","error":"[^"].*","results":\[\]\}$`), got)
	}
	const push = `{"operations":[{"type":"push","queue":"q","payload":1}]}`
	fine := b.run
	b.run = func(wire.TxRequest) (wire.TxResponse, error) {
		return wire.TxResponse{}, &wire.Error{Status: http.StatusBadRequest, Text: "no riders here"}
	}
	res, got := b.call("POST", "/api/v1/transaction", push)
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.Regexp(t, `"success":false,"reason":"bad_request","error":"no riders here","results":\[\]\}$`, got)

	b.run = fine
	res, got = b.call("POST", "/api/v1/transaction", push)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, `{"transactionId":"tx","success":true,"results":[]}`, got)
}

func TestAckAnswersAnArray(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res, got := b.call("POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"0199aa10-1111-7abc-8def-000000000001"}`)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Regexp(t, `^\[\{"index":0,"transactionId":"t","success":true,`, got)
}

func TestExtendNeverRefusesItsBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seen := make(chan string, 1)
	b.extend = func(lease string, seconds int) (wire.ExtendResult, error) {
		seen <- fmt.Sprintf("%s %d", lease, seconds)
		return wire.ExtendResult{LeaseID: lease, Renewed: 1, ExpiresAt: "2026-03-01T08:00:00.000123Z"}, nil
	}
	for body, want := range map[string]string{
		``: "l/1 60", `not json`: "l/1 60", `{}`: "l/1 60", `[]`: "l/1 60", `{"seconds":"x"}`: "l/1 60", `{"seconds":5}`: "l/1 5",
	} {
		b.want("POST", "/api/v1/lease/l%2F1/extend", body, http.StatusOK, `{"leaseId":"l/1","success":true,"renewed":1,`+
			`"newExpiresAt":"2026-03-01T08:00:00.000123Z","expiresAt":"2026-03-01T08:00:00.000123Z","lease_expires_at":"2026-03-01T08:00:00.000123Z"}`)
		require.Equal(t, want, <-seen, body)
	}
}

func TestWhatCannotBeALeaseIsAnUnknownLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.extend = func(string, int) (wire.ExtendResult, error) {
		t.Error("the database was asked")
		return wire.ExtendResult{}, nil
	}
	for _, lease := range []string{"%00", "%FF", strings.Repeat("x", 2000)} {
		res, got := b.call("POST", "/api/v1/lease/"+lease+"/extend", "{}")
		require.Equal(t, http.StatusOK, res.StatusCode, lease)
		require.Contains(t, got, `"success":false,"renewed":0,"newExpiresAt":null`)
	}
}

func TestFailuresHaveOneStatusEach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var fault error
	b.push = func(context.Context, []wire.PushItem) ([]wire.PushResult, error) { return nil, fault }
	b.pop = func(context.Context, pop.Request) ([]byte, error) { return nil, fault }
	b.extend = func(string, int) (wire.ExtendResult, error) { return wire.ExtendResult{}, fault }
	b.run = func(wire.TxRequest) (wire.TxResponse, error) { return wire.TxResponse{}, fault }
	const (
		item = `{"items":[{"queue":"q","payload":1}]}`
		ops  = `{"operations":[{"type":"push","queue":"q","payload":1}]}`
	)
	pool := fmt.Errorf("pop wildcard: %w", pgdb.ErrPool)
	for _, tc := range []struct {
		fault              error
		method, path, body string
		status             int
		answer             string
	}{
		{pool, "GET", "/api/v1/pop/queue/q", "", 500, `{"error":"pool"}`},
		{fmt.Errorf("x: %w", pop.ErrPool), "GET", "/api/v1/pop/queue/q", "", 500, `{"error":"pool"}`},
		{fmt.Errorf("x: %w", pop.ErrFailed), "GET", "/api/v1/pop/queue/q", "", 500, `{"error":"pop failed"}`},
		{admission.ErrOverloaded, "GET", "/api/v1/pop/queue/q", "", 429, `{"error":"overloaded, try again later"}`},
		{admission.ErrOverloaded, "POST", "/api/v1/push", item, 429, `{"error":"overloaded, try again later"}`},
		{admission.ErrOverloaded, "POST", "/api/v1/ack", "{}", 429, `{"error":"overloaded, try again later"}`},
		{admission.ErrOverloaded, "POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`, 429, `{"error":"overloaded, try again later"}`},
		{pool, "POST", "/api/v1/lease/l/extend", "{}", 500, `{"error":"pool"}`},
		{errors.New("no luck"), "POST", "/api/v1/lease/l/extend", "{}", 500, `{"error":"renew failed: no luck"}`},
		{pool, "POST", "/api/v1/transaction", ops, 500, `{"error":"pool"}`},
		{fmt.Errorf("%w: detail", transact.ErrFailed), "POST", "/api/v1/transaction", ops, 500, `{"error":"transaction failed"}`},
		{fmt.Errorf("%w: detail", transact.ErrUnknown), "POST", "/api/v1/transaction", ops, 500, `{"error":"outcome of the transaction is unknown"}`},
		{errors.New("secret detail"), "POST", "/api/v1/transaction", ops, 500, `{"error":"internal error"}`},
		{context.DeadlineExceeded, "GET", "/api/v1/pop/queue/q", "", 500, `{"error":"internal error"}`},
	} {
		fault, b.ackErr = tc.fault, tc.fault
		b.want(tc.method, tc.path, tc.body, tc.status, tc.answer)
	}
	res, _ := b.call("POST", "/api/v1/push", "")
	require.Equal(t, 400, res.StatusCode)
	fault = admission.ErrOverloaded
	res, _ = b.call("POST", "/api/v1/push", item)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Contains(t, b.log.String(), `level=ERROR msg="request failed" method=POST route=/api/v1/transaction status=500 error="secret detail"`)
}

func TestATransactionThatCannotBeServedHasItsOwnEnvelope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run = func(wire.TxRequest) (wire.TxResponse, error) {
		return wire.TxResponse{}, &wire.Error{Status: http.StatusBadRequest, Text: "not here"}
	}
	res, body := b.call("POST", "/api/v1/transaction", `{"operations":[],"kv":[{"op":"get"}]}`)
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.Contains(t, body, `"success":false,"reason":"bad_request","error":"not here","results":[]`)
	require.Empty(t, res.Header.Get("Retry-After"))
}

// The code stands where clients of transactions look for it, and where clients of keys
// and timers do.
func TestRidersThatAreHeldBackHaveTheEnvelopeOfATransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	refusal := &wire.Refusal{Status: http.StatusForbidden, Code: "kv_disabled", Detail: "off"}
	b.run = func(wire.TxRequest) (wire.TxResponse, error) { return wire.TxResponse{}, refusal }
	res, body := b.call("POST", "/api/v1/transaction", `{"kv":[{"op":"get"}]}`)
	require.Equal(t, http.StatusForbidden, res.StatusCode)
	require.Empty(t, res.Header.Get("Retry-After"))
	require.Regexp(t, `^\{"transactionId":"[0-9a-f-]{36}","success":false,"reason":"kv_disabled","error":"kv_disabled","detail":"off","results":\[\]\}$`, body)

	refusal = &wire.Refusal{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: 1100 * time.Millisecond}
	res, body = b.call("POST", "/api/v1/transaction", `{"kv":[{"op":"get"}]}`)
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Equal(t, "2", res.Header.Get("Retry-After"))
	require.Contains(t, body, `"success":false,"reason":"rate_limited","error":"rate_limited","results":[]`)
}

func TestClientThatLeavesCancelsItsPop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	parked, ended := make(chan struct{}), make(chan error, 1)
	b.pop = func(ctx context.Context, _ pop.Request) ([]byte, error) {
		close(parked)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.addr+"/api/v1/pop/queue/q?wait=true", nil)
	require.NoError(t, err)
	go func() {
		<-parked
		cancel()
	}()
	_, err = b.client.Do(req)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, b.stop())
	require.NotContains(t, b.log.String(), "level=ERROR")
}
