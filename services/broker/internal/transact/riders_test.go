package transact_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

const (
	putOp    = `{"op":"put","ns":"n","key":"k","value":1,"forever":true}`
	cancelOp = `{"op":"cancel","queue":"q","timerKey":"t"}`
)

func scheduleOp(delay time.Duration) string {
	return fmt.Sprintf(`{"op":"schedule","queue":"q","timerKey":"t","delayMs":%d,"txn":"x","payload":"MQ=="}`, delay.Milliseconds())
}

// room is how many rows and timers the tenant of riding may have.
const room = 4

// controls is what an operator has set.
type controls struct {
	switches store.KVSwitches
	quota    store.KVQuota
}

func (c *controls) Flags(context.Context, ...store.Flag) (map[store.Flag]bool, error) {
	return map[store.Flag]bool{store.FlagKV: c.switches.KV, store.FlagTimersSchedule: c.switches.TimersSchedule}, nil
}

func (c *controls) SetFlags(context.Context, map[store.Flag]bool) error { return nil }

func (c *controls) KVQuotas(context.Context, int) ([]store.KVQuota, error) {
	return []store.KVQuota{c.quota}, nil
}

// riding is a service whose tenant has room for a few keys and timers.
type riding struct {
	*bundle
	keeper *quota.Keeper
}

func ride(t *testing.T, changes ...func(*controls)) *riding {
	t.Helper()
	most := int64(room)
	c := &controls{
		switches: store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true},
		quota:    store.KVQuota{Tenant: tenant, Granted: true, Enabled: true, MaxRows: &most, MaxTimers: &most},
	}
	for _, change := range changes {
		change(c)
	}
	r := &riding{bundle: setup(t)}
	var err error
	r.keeper, err = quota.New(quota.Config{}, quota.Deps{Store: c, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	once, cancel := context.WithCancel(t.Context())
	cancel() // so that everything is read once
	require.NoError(t, r.keeper.Run(once))
	r.svc.Quota, r.svc.Timers = r.keeper, timers.NewEdge(timers.Config{}, r.keeper, mint.NewSource())
	return r
}

func (r *riding) send(t *testing.T, req wire.TxRequest) (wire.TxResponse, error) {
	t.Helper()
	return r.svc.Run(t.Context(), tenant, "sub", req)
}

// charged tells whether anything is charged for keys and for timers.
func (r *riding) charged(t *testing.T) (keys, timers bool) {
	t.Helper()
	c, err := r.keeper.KV(tenant, quota.KVDemand{Writes: 1, Rows: room})
	c.Refund()
	d, errTimers := r.keeper.Timers(tenant, quota.TimersDemand{Schedules: room})
	d.Refund()
	return err != nil, errTimers != nil
}

func riders(kv, timers string) wire.TxRequest {
	req := wire.TxRequest{}
	if kv != "" {
		req.KV = json.RawMessage("[" + kv + "]")
	}
	if timers != "" {
		req.Timers = json.RawMessage("[" + timers + "]")
	}
	return req
}

func rendered(t *testing.T, resp wire.TxResponse) (answer map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(wire.AppendTxResponse(nil, resp), &answer))
	delete(answer, "transactionId")
	return answer
}

func TestRidersAreSubmittedWithTheirBundle(t *testing.T) {
	t.Parallel()
	r := ride(t)
	next := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	r.store.kv = `[{"index":0,"op":"put","applied":true,"key":"k","value":1,"version":7}]`
	r.store.timers = store.TimersApplied{Results: json.RawMessage(`[{"ok":true,"status":"scheduled"},{"ok":false,"status":"absent"}]`), Next: next}
	r.store.errs = []error{&pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}}
	req := riders(putOp, scheduleOp(time.Hour)+`, {"op":"cancel","queue":"q","timerKey":"u"}`)
	req.Ops = []wire.TxOp{pushOp("q", "a", "x", "1"), ackOp("a", pid1, wire.AckCompleted, "l")}
	resp, err := r.send(t, req)
	require.NoError(t, err)
	answer := rendered(t, resp)
	require.Equal(t, true, answer["success"])
	results, _ := answer["results"].([]any)
	require.Len(t, results, 5)
	for i, want := range []string{"push 0 <nil>", "ack 1 <nil>", "kv 2 0", "timer 3 0", "timer 4 1"} {
		at, _ := results[i].(map[string]any)
		require.Equal(t, want, fmt.Sprint(at["type"], " ", at["index"], " ", at["opIndex"]))
	}

	require.Len(t, r.store.calls, 2, "an abort is tried again")
	first, second := r.store.calls[0], r.store.calls[1]
	require.JSONEq(t, string(req.KV), string(first.KV))
	require.Equal(t, "sub", first.ProducerSub)
	require.Contains(t, string(first.Timers), `"_messageId"`)
	require.Equal(t, first.Timers, second.Timers, "the promised ids are the same on every attempt")
	require.Equal(t, first.KV, second.KV)
	require.Len(t, r.due, 1)
	require.Equal(t, next, r.due[0].at)
	require.LessOrEqual(t, r.due[0].in, time.Hour)
	require.Greater(t, r.due[0].in, time.Hour-time.Minute)
}

// A bundle of riders alone looks like any other.
func TestRidersAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		req          wire.TxRequest
		kv, timers   string
		kind, status string
	}{
		"keys":   {riders(putOp, ""), `[{"index":0,"applied":true,"status":"x"}]`, "", wire.RiderKV, "x"},
		"timers": {riders("", cancelOp), "", `[{"ok":true,"status":"cancelled"}]`, wire.RiderTimer, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ride(t)
			r.store.kv, r.store.timers.Results = c.kv, json.RawMessage(c.timers)
			resp, err := r.send(t, c.req)
			require.NoError(t, err)
			require.NoError(t, uuid.Validate(resp.TransactionID))
			results, _ := rendered(t, resp)["results"].([]any)
			require.Len(t, results, 1)
			result, _ := results[0].(map[string]any)
			require.EqualValues(t, 0, result["index"])
			require.Equal(t, c.kind, result["type"])
			require.Equal(t, c.status, result["status"])
			require.Empty(t, r.due, "nothing was scheduled")
			require.Len(t, r.store.calls, 1)
		})
	}
}

func TestALostPreconditionIsAVerdict(t *testing.T) {
	t.Parallel()
	r := ride(t)
	r.delivered(pid1, "l", 7, "a")
	r.store.errs = []error{&store.KVPrecondition{Known: true, Index: 2, Reason: "exists", Version: 9, Value: json.RawMessage(`"theirs"`)}}
	req := riders(putOp, scheduleOp(0))
	req.Ops = []wire.TxOp{pushOp("q", "a", "x", "1"), pushOp("q", "a", "x", "1"), ackOp("a", pid1, wire.AckCompleted, "l")}
	resp, err := r.send(t, req)
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"success": false, "ok": false, "reason": "kv_precondition", "failedIndex": 5., "kvReason": "exists", "version": 9., "value": "theirs",
		"error": "required kv operation 2 was not applied: exists; transaction rolled back", "results": []any{},
	}, rendered(t, resp))
	_, known := r.registry.Match(pid1, "g", "l", [][16]byte{segment.Hash("a")})
	require.True(t, known, "the batch is still to be settled")
	require.Len(t, r.store.calls, 1)
	require.Empty(t, r.woken)
	require.Empty(t, r.due)

	r.store.errs = []error{&store.KVPrecondition{}}
	resp, err = r.send(t, riders(putOp, ""))
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"success": false, "ok": false, "reason": "kv_precondition", "error": "a required kv operation was not applied; transaction rolled back", "results": []any{},
	}, rendered(t, resp), "what the database has cut is not guessed")
}

// A position that is refused is looked for by its hashes, with all the riders.
func TestRidersGoWithTheOtherFormOfAnAck(t *testing.T) {
	t.Parallel()
	r := ride(t)
	r.delivered(pid1, "w1", 7, "a")
	r.store.kv, r.store.timers.Results = `[{}]`, json.RawMessage(`[{}]`)
	r.store.errs = []error{&store.TxRefused{Reason: store.TxReasonAckRejected, Text: "QTXN ack failed: batch partly committed"}}
	req := riders(putOp, scheduleOp(0))
	req.Ops = []wire.TxOp{ackOp("a", pid1, wire.AckCompleted, "w1")}
	resp, err := r.send(t, req)
	require.NoError(t, err)
	require.True(t, resp.Success)
	require.Len(t, r.store.calls, 2)
	require.True(t, r.store.calls[0].Acks[0].Whole)
	require.False(t, r.store.calls[1].Acks[0].Whole)
	require.Equal(t, r.store.calls[0].KV, r.store.calls[1].KV)
	require.Equal(t, r.store.calls[0].Timers, r.store.calls[1].Timers)
	keys, timers := r.charged(t)
	require.True(t, keys && timers, "charged once, and kept")
	_, err = r.keeper.KV(tenant, quota.KVDemand{Rows: room - 1})
	require.NoError(t, err)
}

// What a tenant is charged for stays charged when it was written, or may have been.
func TestChargesFollowTheOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		op   wire.TxOp
		kept bool
	}{
		"committed":                 {nil, pushOp("q", "a", "x", "1"), true},
		"the answer lost":           {context.DeadlineExceeded, pushOp("q", "a", "x", "1"), true},
		"a session that ended":      {&pgconn.PgError{Severity: "FATAL", Code: "57P01", Message: "terminating connection"}, pushOp("q", "a", "x", "1"), true},
		"refused":                   {&store.TxRefused{Reason: store.TxReasonDuplicate, Text: "QDUP"}, pushOp("q", "a", "x", "1"), false},
		"a lost precondition":       {&store.KVPrecondition{}, pushOp("q", "a", "x", "1"), false},
		"a data error":              {&pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "x"}, pushOp("q", "a", "x", "1"), false},
		"not submitted":             {nil, wire.TxOp{Kind: wire.TxAck, Ack: wire.AckItem{PartitionID: "nope"}}, false},
		"committed, without pushes": {nil, ackOp("a", pid1, wire.AckCompleted, ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ride(t)
			r.store.kv, r.store.timers.Results = `[{}]`, json.RawMessage(`[{}]`)
			if c.err != nil {
				r.store.errs = []error{c.err}
			}
			req := riders(putOp, scheduleOp(0))
			req.Ops = []wire.TxOp{c.op}
			_, _ = r.send(t, req)
			keys, timers := r.charged(t)
			require.Equal(t, []bool{c.kept, c.kept}, []bool{keys, timers})
		})
	}
}

func TestNothingIsChargedForABundleThatDoesNotStart(t *testing.T) {
	t.Parallel()
	r := ride(t)
	for range 2 {
		_, err := r.gate.Acquire(t.Context(), admission.Push)
		require.NoError(t, err)
	}
	_, err := r.send(t, riders(putOp, scheduleOp(0)))
	require.ErrorIs(t, err, transact.ErrOverloaded)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.svc.Run(gone, tenant, "", riders(putOp, scheduleOp(0)))
	require.ErrorIs(t, err, context.Canceled)
	keys, timers := r.charged(t)
	require.False(t, keys || timers)
	require.Empty(t, r.store.calls)
}

// What can be seen without the database is answered without it.
func TestRidersAreCheckedAtTheEdge(t *testing.T) {
	t.Parallel()
	repeat := func(op string, n int) string { return strings.TrimSuffix(strings.Repeat(op+",", n), ",") }
	for name, c := range map[string]struct {
		req    wire.TxRequest
		reason string
		text   string
	}{
		"65 operations on keys": {riders(repeat(putOp, 65), ""), wire.ReasonBadRequest, "kv_too_many_ops: "},
		"257 keys": {
			riders(`{"op":"getMany","ns":"n","keys":[`+repeat(`"k"`, 257)+`]}`, ""), wire.ReasonBadRequest, "kv_too_many_keys: ",
		},
		"257 operations on timers": {riders("", repeat(cancelOp, 257)), wire.ReasonBadRequest, "timers_too_many_ops: "},
		"a field of the server":    {riders("", `{"op":"cancel","_messageId":"x"}`), wire.ReasonBadRequest, "timers_server_owned_field: timers[0]: "},
		"a payload that is no base64": {
			riders("", strings.Replace(scheduleOp(0), "MQ==", "*", 1)), wire.ReasonBadRequest, "timers_payload_not_base64: timers[0]: ",
		},
		"a timer after the horizon": {riders("", cancelOp+","+scheduleOp(91*24*time.Hour)), wire.ReasonTimerHorizon, "timers_horizon: timers[1]: "},
		"a value that is too large": {
			riders(strings.Replace(putOp, `:1,`, `:"`+strings.Repeat("x", 65535)+`",`, 1), ""), wire.ReasonTooLarge, "kv_value_too_large: operation 0: ",
		},
		"a payload that is too large": {
			riders("", strings.Replace(scheduleOp(0), "MQ==", strings.Repeat("A", (1<<20+3)/3*4), 1)), wire.ReasonTooLarge, "timers_payload_too_large: timers[0]: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			off := func(c *controls) { c.switches = store.KVSwitches{} }
			for _, r := range []*riding{ride(t), ride(t, off)} {
				resp, err := r.send(t, c.req)
				require.Empty(t, r.store.calls)
				if c.reason == wire.ReasonBadRequest {
					var malformed *wire.Error
					require.ErrorAs(t, err, &malformed)
					require.Equal(t, http.StatusBadRequest, malformed.Status)
					require.True(t, strings.HasPrefix(malformed.Text, c.text), malformed.Text)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, uuid.Validate(resp.TransactionID))
				require.Equal(t, c.reason, resp.Reason)
				require.False(t, resp.Success)
				require.True(t, strings.HasPrefix(resp.Error, c.text), resp.Error)
				require.True(t, strings.HasSuffix(resp.Error, "; transaction rolled back"), resp.Error)
			}
		})
	}
	r := ride(t)
	r.store.kv, r.store.timers.Results = `[`+repeat(`{}`, 64)+`]`, json.RawMessage(`[`+repeat(`{}`, 256)+`]`)
	resp, err := r.send(t, riders(repeat(`{"op":"get","ns":"n","key":"k"}`, 64), repeat(cancelOp, 256)))
	require.NoError(t, err)
	require.True(t, resp.Success, "the most that is allowed")
}

func TestSwitchesAndQuotasHoldRidersBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*controls)
		req    wire.TxRequest
		status int
		code   string
	}{
		"keys are switched off":             {func(c *controls) { c.switches.KV = false }, riders(putOp, scheduleOp(0)), http.StatusForbidden, "kv_disabled"},
		"schedules are switched off":        {func(c *controls) { c.switches.TimersSchedule = false }, riders(putOp, scheduleOp(0)), http.StatusForbidden, "timers_disabled"},
		"cancels go on":                     {func(c *controls) { c.switches.TimersSchedule = false }, riders("", cancelOp), 0, ""},
		"keys do not care for schedules":    {func(c *controls) { c.switches.TimersSchedule = false }, riders(putOp, cancelOp), 0, ""},
		"timers do not care for keys":       {func(c *controls) { c.switches.KV = false }, riders("", scheduleOp(0)), 0, ""},
		"the tenant is disabled":            {func(c *controls) { c.quota.Enabled = false }, riders(putOp, ""), http.StatusForbidden, "feature_gated"},
		"no room for rows":                  {func(c *controls) { c.quota.KVRows = room }, riders(putOp, ""), http.StatusForbidden, "kv_quota_exceeded"},
		"no room for rows is none for gets": {func(c *controls) { c.quota.KVRows = room }, riders(`{"op":"get","ns":"n","key":"k"}`, cancelOp), 0, ""},
		"no room for timers":                {func(c *controls) { c.quota.TimerRows = room }, riders(putOp, scheduleOp(0)), http.StatusForbidden, "timers_quota_exceeded"},
		"no rate": {func(c *controls) {
			none := int64(0)
			c.quota.MaxWritesPerSec = &none
		}, riders(putOp, ""), http.StatusTooManyRequests, "rate_limited"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ride(t, c.change)
			if c.req.KV != nil {
				r.store.kv = `[{}]`
			}
			r.store.timers.Results = json.RawMessage(`[{}]`)
			resp, err := r.send(t, c.req)
			if c.code == "" {
				require.NoError(t, err)
				require.True(t, resp.Success)
				return
			}
			var refusal *wire.Refusal
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, c.status, refusal.Status)
			require.Equal(t, c.code, refusal.Code)
			require.Equal(t, c.status == http.StatusTooManyRequests, refusal.RetryAfter > 0, "what is final is not to be repeated")
			require.NotEmpty(t, refusal.Detail)
			require.Empty(t, r.store.calls)
			if c.code == "timers_disabled" || c.code == "timers_quota_exceeded" {
				keys, _ := r.charged(t)
				require.False(t, keys, "the keys that went before are given back")
			}
		})
	}
}

func TestResultsThatDoNotFitAreAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, results := range []string{`[]`, `[{},{}]`, `{}`, `[1]`, ``} {
		r := ride(t)
		r.store.kv = results
		_, err := r.send(t, riders(putOp, ""))
		require.ErrorIs(t, err, transact.ErrUnknown, results)
		keys, _ := r.charged(t)
		require.True(t, keys, "it has been written")
	}
}

func TestBundlesWithRidersAreCounted(t *testing.T) {
	t.Parallel()
	r := ride(t)
	reader := sdk.NewManualReader()
	deps := r.svc.Deps
	deps.Meter = sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test")
	var err error
	r.svc, err = transact.New(transact.Config{}, deps)
	require.NoError(t, err)
	r.store.kv, r.store.timers.Results = `[{},{}]`, json.RawMessage(`[{}]`)
	_, err = r.send(t, riders(putOp+","+putOp, cancelOp))
	require.NoError(t, err)
	r.store.errs = []error{&store.KVPrecondition{}}
	_, err = r.send(t, riders(putOp, ""))
	require.NoError(t, err)
	_, err = r.send(t, riders("", scheduleOp(91*24*time.Hour)))
	require.NoError(t, err)
	_, err = r.send(t, riders("", strings.Repeat(cancelOp+",", 256)+cancelOp))
	require.Error(t, err)
	_, err = r.keeper.KV(tenant, quota.KVDemand{Rows: room - 2})
	require.NoError(t, err)
	_, err = r.send(t, riders(putOp, ""))
	require.Error(t, err)

	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	counts := make(map[string]int64)
	for _, m := range all.ScopeMetrics[0].Metrics {
		sum, _ := m.Data.(metricdata.Sum[int64])
		for _, p := range sum.DataPoints {
			for _, label := range p.Attributes.ToSlice() {
				counts[m.Name+" "+label.Value.AsString()] = p.Value
			}
		}
	}
	require.Equal(t, map[string]int64{
		"queen.transaction.bundles committed": 1, "queen.transaction.bundles kv_precondition": 1, "queen.transaction.bundles timer_horizon_exceeded": 1,
		"queen.transaction.bundles bad_request": 1, "queen.transaction.bundles held_back": 1,
		"queen.transaction.riders kv": 2, "queen.transaction.riders timer": 1,
	}, counts)
}
