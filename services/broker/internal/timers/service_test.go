package timers_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// hint is what an announcer was told.
type hint struct {
	at time.Time
	in time.Duration
}

type hintsSeen []hint

func (h *hintsSeen) TimerDue(at time.Time, in time.Duration) { *h = append(*h, hint{at, in}) }

// bundle is a service over a database.
type bundle struct {
	*timers.Service
	t      *testing.T
	db     *pgdb.DB
	store  *store.Store
	keeper *quota.Keeper
	hints  hintsSeen
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: pgtest.New(t)}
	b.store = store.New(b.db)
	var err error
	b.keeper, err = quota.New(quota.Config{}, quota.Deps{Store: b.store, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	b.Service = b.over(b.store)
	return b
}

// limit sets a quota, and lets the keeper read it.
func (b *bundle) limit(columns, values string) {
	b.t.Helper()
	b.exec(fmt.Sprintf(`INSERT INTO queen.kv_quota (tenant_id, %s) VALUES ('%s', %s)`, columns, tenant, values))
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.keeper.Run(ctx) }()
	require.Eventually(b.t, func() bool { return b.keeper.Summary().Tenants == 1 }, 10*time.Second, time.Millisecond)
	cancel()
	require.NoError(b.t, <-done)
}

func (b *bundle) over(s timers.Store) *timers.Service {
	b.t.Helper()
	service, err := timers.New(timers.Deps{
		Store: s, Edge: timers.NewEdge(timers.Config{}, b.keeper, mint.NewSource()), Quota: b.keeper, Announcer: &b.hints, Meter: noop.Meter{},
	})
	require.NoError(b.t, err)
	return service
}

// apply carries out operations and decodes their results.
func (b *bundle) apply(ops ...string) []map[string]any {
	b.t.Helper()
	out, err := b.Apply(b.t.Context(), tenant, "somebody", json.RawMessage("["+strings.Join(ops, ",")+"]"))
	require.NoError(b.t, err)
	var results []map[string]any
	require.NoError(b.t, json.Unmarshal(out, &results))
	return results
}

func (b *bundle) exec(sql string) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}))
}

// peek decodes one timer.
func (b *bundle) peek(queue, key string) map[string]any {
	b.t.Helper()
	doc, err := b.Peek(b.t.Context(), tenant, queue, key)
	require.NoError(b.t, err)
	var timer map[string]any
	require.NoError(b.t, json.Unmarshal(doc, &timer))
	return timer
}

func TestATimerIsScheduledMovedAndTakenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.apply(schedule(map[string]any{"delayMs": 60000, "encrypted": true, "partition": "lane"}))[0]
	require.Equal(t, []any{true, "scheduled", "q", "k", "t"}, []any{first["ok"], first["status"], first["queue"], first["timerKey"], first["txn"]})
	timer := b.peek("q", "k")
	require.Equal(t, []any{true, first["messageId"], "somebody", "e30=", true, false, "lane"}, []any{
		timer["found"], timer["messageId"], timer["producerSub"], timer["payload"], timer["encrypted"], timer["payloadZstd"], timer["partition"],
	})

	moved := b.apply(schedule(map[string]any{"op": "reschedule", "txn": "u", "delayMs": -5000, "payloadZstd": true}))[0]
	require.Equal(t, "rescheduled", moved["status"])
	require.NotEqual(t, first["messageId"], moved["messageId"])
	timer = b.peek("q", "k")
	require.Equal(t, []any{"u", moved["messageId"], true, false, "Default"},
		[]any{timer["txn"], timer["messageId"], timer["payloadZstd"], timer["encrypted"], timer["partition"]})

	for _, want := range []string{
		`{"ok":true,"txn":"u","queue":"q","status":"cancelled","timerKey":"k"}`,
		`{"ok":false,"txn":"mine","queue":"q","status":"absent","timerKey":"k"}`,
	} {
		result, err := b.Cancel(t.Context(), tenant, "q", "k", "mine")
		require.NoError(t, err)
		require.JSONEq(t, want, string(result))
	}
	result, err := b.Cancel(t.Context(), tenant, "q", `"\`, "")
	require.NoError(t, err)
	require.JSONEq(t, `{"ok":false,"txn":null,"queue":"q","status":"absent","timerKey":"\"\\"}`, string(result))
	require.Equal(t, false, b.peek("q", "k")["found"])
}

func TestTimersAreListedAndCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, key := range []string{"b", "a/1", "a/2"} {
		b.apply(schedule(map[string]any{"timerKey": key}))
	}
	var page struct {
		Rows []struct {
			Key string `json:"timerKey"`
		} `json:"rows"`
		Truncated bool    `json:"truncated"`
		Next      *string `json:"nextAfter"`
	}
	doc, err := b.List(t.Context(), tenant, "q", "", 2)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(doc, &page))
	require.Equal(t, []any{"a/1", "a/2", true, "a/2"}, []any{page.Rows[0].Key, page.Rows[1].Key, page.Truncated, *page.Next})
	doc, err = b.List(t.Context(), tenant, "q", "a/2", 2)
	require.NoError(t, err)
	page.Rows, page.Next = nil, nil
	require.NoError(t, json.Unmarshal(doc, &page))
	require.Len(t, page.Rows, 1)
	require.False(t, page.Truncated)
	require.Nil(t, page.Next)
	n, err := b.Count(t.Context(), tenant, "q", "a/")
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
}

// refusal is the error of a call.
func (b *bundle) refusal(s *timers.Service, ops string) error {
	b.t.Helper()
	out, err := s.Apply(b.t.Context(), tenant, "", json.RawMessage(ops))
	require.Nil(b.t, out)
	return err
}

const cancelOp = `{"op":"cancel","queue":"q","timerKey":"c"}`

func TestOnlySchedulesMeetTheSwitch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(schedule(map[string]any{"timerKey": "c"}))
	off := false
	require.True(t, b.keeper.SetSwitches(t.Context(), store.KVSwitchChange{TimersSchedule: &off}))
	for ops, hinted := range map[string]bool{
		"[" + schedule(nil) + "]":                  false,
		"[" + cancelOp + "," + schedule(nil) + "]": true,
	} {
		var refused *wire.Refusal
		require.ErrorAs(t, b.refusal(b.Service, ops), &refused)
		require.Equal(t, []any{http.StatusServiceUnavailable, quota.CodeTimersDisabled}, []any{refused.Status, refused.Code})
		require.Positive(t, refused.RetryAfter)
		require.Equal(t, hinted, refused.Hint != "")
	}
	require.Equal(t, true, b.peek("q", "c")["found"])
	_, err := b.List(t.Context(), tenant, "q", "", 1)
	require.NoError(t, err)
	require.Equal(t, "cancelled", b.apply(cancelOp)[0]["status"])
	_, err = b.Cancel(t.Context(), tenant, "q", "c", "")
	require.NoError(t, err)
}

func TestTheEdgeComesBeforeTheGate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	off := false
	b.keeper.SetSwitches(t.Context(), store.KVSwitchChange{TimersSchedule: &off})
	requireRefused(t, b.refusal(b.Service, "["+schedule(map[string]any{"payload": "?"})+"]"),
		http.StatusBadRequest, timers.CodeBadRequest, timers.ReasonPayloadNotBase64, "")
}

func TestTheQuotaCountsWhatWasScheduled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.limit("max_timers, max_timer_horizon_s", "3, 60")
	requireRefused(t, b.refusal(b.Service, "["+schedule(map[string]any{"delayMs": 60001})+"]"),
		http.StatusForbidden, timers.CodeHorizonExceeded, timers.ReasonHorizon, "60000 milliseconds")

	// Each of these is refused by the procedure, and given back.
	for range 4 {
		var refused *wire.Refusal
		require.ErrorAs(t, b.refusal(b.Service, "["+schedule(nil)+","+schedule(nil)+"]"), &refused)
		require.Equal(t, "QTIMER operation 1: an earlier one names the same queue and timerKey", refused.Reason)
	}
	b.apply(schedule(map[string]any{"timerKey": "1"}), schedule(map[string]any{"timerKey": "2"}), schedule(map[string]any{"delayMs": 60000}))
	requireRefused(t, b.refusal(b.Service, "["+schedule(nil)+"]"),
		http.StatusForbidden, quota.CodeTimersQuota, quota.CodeTimersQuota, "")
	b.apply(cancelOp)
}

func TestWhatTheProcedureRefusesIsTheReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for ops, reason := range map[string]string{
		`[{"op":"postpone"}]`: "QTIMER operation 0: op must be schedule, reschedule or cancel",
		`[` + cancelOp + `,{"op":"cancel","queue":"","timerKey":"k"}]`:             "QTIMER operation 1: queue and timerKey must be texts that are not empty",
		`[` + schedule(map[string]any{"timerKey": nil}) + `]`:                      "QTIMER operation 0: queue and timerKey must be texts that are not empty",
		`[` + schedule(map[string]any{"txn": nil}) + `]`:                           "QTIMER operation 0: txn must be a text that is not empty",
		`[` + schedule(map[string]any{"partition": ""}) + `]`:                      "QTIMER operation 0: partition must be a text that is not empty",
		`[` + schedule(map[string]any{"deliverAt": "2026-12-01"}) + `]`:            "QTIMER operation 0: the field \"deliverAt\" is not an input",
		`[` + schedule(map[string]any{"encrypted": 1}) + `]`:                       "QTIMER operation 0: payloadZstd and encrypted must be true or false",
		`[` + schedule(map[string]any{"timerKey": "a\x00"}) + `]`:                  "QTIMER the operations cannot be read as JSON: unsupported Unicode escape sequence",
		`[{"op":"cancel","queue":"q","timerKey":"\ud800"}]`:                        "QTIMER the operations cannot be read as JSON: invalid input syntax for type json",
		`[` + schedule(map[string]any{"other": json.RawMessage("1e999999")}) + `]`: "QTIMER the operations cannot be read as JSON: value overflows numeric format",
	} {
		err := b.refusal(b.Service, ops)
		requireRefused(t, err, http.StatusBadRequest, timers.CodeBadRequest, reason, "")
	}
	var refused *wire.Refusal
	require.ErrorAs(t, b.refusal(b.Service, `[{}]`), &refused)
	require.Contains(t, refused.Detail, "A schedule is ", "the hint teaches")
}

func TestNoOperationsNeedNoDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	out, err := b.over(nil).Apply(t.Context(), tenant, "", json.RawMessage(`[]`))
	require.NoError(t, err)
	require.Equal(t, `[]`, string(out))
}

func TestTheNearestTimerIsAnnounced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	results := b.apply(cancelOp, schedule(map[string]any{"timerKey": "late", "delayMs": 1800000}), schedule(map[string]any{"delayMs": 600000}))
	require.Len(t, b.hints, 1)
	at, err := time.Parse(time.RFC3339Nano, results[2]["deliverAt"].(string))
	require.NoError(t, err)
	require.True(t, at.Equal(b.hints[0].at), "%s %s", at, b.hints[0].at)
	require.Greater(t, b.hints[0].in, 9*time.Minute)
	require.LessOrEqual(t, b.hints[0].in, 10*time.Minute)

	b.apply(schedule(map[string]any{"timerKey": "now", "delayMs": -5}))
	require.Len(t, b.hints, 2)
	require.Zero(t, b.hints[1].in)

	b.apply(cancelOp)
	b.exec(`UPDATE queen.log_timers SET claim_token = gen_random_uuid(), claimed_until = now() + INTERVAL '1 minute'`)
	require.Equal(t, "too_late", b.apply(schedule(nil))[0]["status"])
	require.Len(t, b.hints, 2, "nothing was scheduled")
}

// broken is a store whose calls fail, or answer what they should not.
type broken struct {
	timers.Store
	applied store.TimersApplied
	err     error
}

func (b *broken) TimersApply(context.Context, uuid.UUID, string, json.RawMessage) (store.TimersApplied, error) {
	return b.applied, b.err
}

func (b *broken) TimerPeek(context.Context, uuid.UUID, string, string) (store.RawJSON, error) {
	return nil, b.err
}

func TestFailuresHaveTheirCodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	state := func(code string) error {
		return fmt.Errorf("call: %w", &pgconn.PgError{Code: code, Message: "said " + code})
	}
	for _, c := range []struct {
		err          error
		status       int
		code, reason string
	}{
		{fmt.Errorf("%w: %w", pgdb.ErrExhausted, context.DeadlineExceeded), 503, "timers_unavailable", "timers_pool_exhausted"},
		{fmt.Errorf("%w: %w", pgdb.ErrPool, context.DeadlineExceeded), 503, "timers_unavailable", "connection"},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), 503, "timers_unavailable", "timers_timeout"},
		{state("57014"), 503, "timers_unavailable", "timers_timeout"},
		{errors.New("broken pipe"), 503, "timers_unavailable", "connection"},
		{state("40001"), 503, "timers_unavailable", "said 40001"},
		{state("40P01"), 503, "timers_unavailable", "said 40P01"},
		{state("08006"), 503, "timers_unavailable", "said 08006"},
		{state("53300"), 503, "timers_unavailable", "said 53300"},
		{state("57P01"), 503, "timers_unavailable", "said 57P01"},
		{state("58030"), 503, "timers_unavailable", "said 58030"},
		{state("42883"), 500, "timers_misconfigured", ""},
		{state("XX000"), 500, "timers_error", ""},
		{&store.TimersRefused{Text: "invalid base64 end sequence"}, 400, "timers_bad_request", "timers_payload_not_base64"},
	} {
		s := b.over(&broken{err: c.err})
		want := []any{c.status, c.code, c.reason}
		_, peeked := s.Peek(t.Context(), tenant, "q", "k")
		_, cancelled := s.Cancel(t.Context(), tenant, "q", "k", "")
		for _, err := range []error{b.refusal(s, `[`+schedule(nil)+`]`), peeked, cancelled} {
			var refused *wire.Refusal
			require.ErrorAs(t, err, &refused)
			require.Equal(t, want, []any{refused.Status, refused.Code, refused.Reason})
			require.Equal(t, c.status == 503, refused.RetryAfter == time.Second)
			require.ErrorIs(t, err, c.err, "it is for the log")
		}
	}
	require.Empty(t, b.hints)
}

// refusals counts the calls with schedules that got no connection.
type refusals struct {
	*quota.Keeper
	pool int
}

func (r *refusals) TimersPoolRefused() { r.pool++ }

func TestSchedulesWithoutAConnectionAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seen := &refusals{Keeper: b.keeper}
	s := b.over(&broken{err: pgdb.ErrExhausted})
	s.Quota = seen
	require.Error(t, b.refusal(s, `[`+schedule(nil)+`]`))
	require.Equal(t, 1, seen.pool)
	_, err := s.Cancel(t.Context(), tenant, "q", "k", "")
	require.Error(t, err)
	require.Equal(t, 1, seen.pool, "a cancel is no schedule")
	s = b.over(&broken{err: &pgconn.PgError{Code: "40001"}})
	s.Quota = seen
	require.Error(t, b.refusal(s, `[`+schedule(nil)+`]`))
	require.Equal(t, 1, seen.pool, "that one had a connection")
}

func TestAChargeIsKeptOnlyWhenNobodyKnows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		kept bool
	}{
		"no connection":   {fmt.Errorf("%w: none", pgdb.ErrPool), false},
		"rolled back":     {&pgconn.PgError{Code: "40001"}, false},
		"cancelled":       {fmt.Errorf("%w: %w", context.DeadlineExceeded, &pgconn.PgError{Code: "57014"}), false},
		"the line is cut": {errors.New("unexpected EOF"), true},
		"no answer":       {context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.limit("max_timers", "1")
			require.Error(t, b.refusal(b.over(&broken{err: c.err}), `[`+schedule(nil)+`]`))
			_, err := b.Apply(t.Context(), tenant, "", json.RawMessage(`[`+schedule(nil)+`]`))
			require.Equal(t, c.kept, err != nil)
		})
	}
}

func TestAnswersThatAreShortAreNoSuccess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.over(&broken{applied: store.TimersApplied{Results: store.RawJSON(`[]`), Next: time.Now()}})
	requireRefused(t, b.refusal(s, `[`+schedule(nil)+`]`), http.StatusInternalServerError, timers.CodeError, "timers_result_missing", "0 results for 1")
	_, err := s.Cancel(t.Context(), tenant, "q", "k", "")
	requireRefused(t, err, http.StatusInternalServerError, timers.CodeError, "timers_result_missing", "")
	require.Len(t, b.hints, 2, "what was committed is announced")
}

func TestAReaderWhoLeavesIsNotRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Peek(ctx, tenant, "q", "k")
	require.ErrorIs(t, err, context.Canceled)
	out, err := b.Apply(ctx, tenant, "", json.RawMessage(`[`+schedule(nil)+`]`))
	require.NoError(t, err, "a schedule is carried out")
	require.Contains(t, string(out), "scheduled")
}

// The edge and the decoder of PostgreSQL agree: what the one lets through, the other
// understands as Go does. Only text behind the padding is told apart.
func TestTheDatabaseDecodesWhatTheEdgeLetsThrough(t *testing.T) {
	t.Parallel()
	b := setup(t)
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for _, payload := range []string{
		"", "QQ==", "QUI=", "QUJD", "QR==", "QUJ=", alphabet, "Q Q\t=\r\n=", "\n", " QUJD ", "QU\r\nJD",
		"Q", "QQ", "QQ=", "QQQ", "=", "==", "Q===", "QUJDQ", "QUJD=", "QUJD====", "QQ=Q", "Q=QQ",
		"QUJD-_==", "QUJD\f", "QUJD\v", "QUJD\u00a0", "QUJDé", "QU.D", "QU\u2028JD", `Q"UJ`, "QUJ\x7f",
	} {
		ops := []byte(`[` + schedule(map[string]any{"payload": payload}) + `]`)
		_, edge := b.Edge.Prepare(tenant, ops, false)
		_, database := b.store.TimersApply(t.Context(), tenant, "", ops)
		if payload == "QQ=Q" {
			require.NoError(t, database, "were it not, the edge would need no opinion")
			require.Error(t, edge)
			continue
		}
		require.Equal(t, database == nil, edge == nil, "%q: %v, %v", payload, database, edge)
		if edge != nil {
			continue
		}
		want, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(payload), ""))
		require.NoError(t, err, "%q", payload)
		got, err := base64.StdEncoding.DecodeString(b.peek("q", "k")["payload"].(string))
		require.NoError(t, err)
		require.Equal(t, want, got, "%q", payload)
	}
}

func TestMetricsAreThereBeforeTheFirstTimer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tel, err := telemetry.New(t.Context(), telemetry.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	deps := b.Deps
	deps.Meter = tel.Meters.Meter("")
	s, err := timers.New(deps)
	require.NoError(t, err)
	scrape := func() string {
		res := httptest.NewRecorder()
		tel.Handler(logtest.New(t)).ServeHTTP(res, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		return res.Body.String()
	}
	for _, line := range []string{
		`queen_timers_operations_total{op="schedule",status="scheduled"} 0`, `queen_timers_operations_total{op="cancel",status="absent"} 0`,
		`queen_timers_refused_total{reason="timers_horizon"} 0`, `queen_timers_refused_total{reason="procedure"} 0`, `queen_timers_payload_bytes_total 0`,
	} {
		require.Contains(t, scrape(), line+"\n")
	}
	b.Service = s
	b.apply(schedule(nil), schedule(map[string]any{"op": "reschedule", "timerKey": "2", "payload": "QUJDRA=="}), cancelOp)
	_ = b.refusal(s, `[{}]`)
	_ = b.refusal(s, `{}`)
	_ = b.refusal(b.with(s, &broken{err: &pgconn.PgError{Code: "40001", Message: "whatever"}}), `[{}]`)
	_, err = s.List(t.Context(), tenant, "q", "", 1)
	require.NoError(t, err)
	for _, line := range []string{
		`queen_timers_operations_total{op="schedule",status="scheduled"} 1`, `queen_timers_operations_total{op="reschedule",status="scheduled"} 1`,
		`queen_timers_operations_total{op="cancel",status="absent"} 1`, `queen_timers_payload_bytes_total 6`,
		`queen_timers_refused_total{reason="procedure"} 1`, `queen_timers_refused_total{reason="timers_bad_body"} 1`,
		`queen_timers_refused_total{reason="timers_unavailable"} 1`, `queen_timers_call_duration_seconds_count{call="list"} 1`,
	} {
		require.Contains(t, scrape(), line+"\n")
	}
}

// with is a service with the metrics of another one over another store.
func (b *bundle) with(s *timers.Service, other timers.Store) *timers.Service {
	changed := *s
	changed.Store = other
	return &changed
}
