package store_test

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Every rule of the contract, with both sides of each limit. An empty text is an
// operation that is admitted.
func TestTimerOperationsAreValidated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const names, rest = `"queue":"q","timerKey":"k"`, `"delayMs":1,"txn":"t","payload":"eA=="`
	op := func(more string) string { return `{"op":"schedule",` + names + `,` + rest + `,` + more + `}` }
	text := func(n int) string { return `"` + strings.Repeat("é", n/2) + strings.Repeat("x", n%2) + `"` }
	cases := []struct{ name, op, text string }{
		{"no object", `5`, "is not an object"},
		{"null", `null`, "is not an object"},
		{"no op", `{` + names + `}`, "op must be"},
		{"another op", `{"op":"fire",` + names + `}`, "op must be"},
		{"an op that is no text", `{"op":{},` + names + `}`, "op must be"},
		{"schedule", op(`"x":1`), ""},
		{"reschedule", strings.Replace(op(`"x":1`), `"schedule"`, `"reschedule"`, 1), ""},
		{"cancel", `{"op":"cancel",` + names + `}`, ""},
		{"no queue", `{"op":"cancel","timerKey":"k"}`, "queue and timerKey must be"},
		{"an empty queue", `{"op":"cancel","queue":"","timerKey":"k"}`, "queue and timerKey must be"},
		{"a queue that is no text", `{"op":"cancel","queue":5,"timerKey":"k"}`, "queue and timerKey must be"},
		{"no key", `{"op":"cancel","queue":"q"}`, "queue and timerKey must be"},
		{"an empty key", `{"op":"cancel","queue":"q","timerKey":""}`, "queue and timerKey must be"},
		{"a queue of 255 characters", `{"op":"cancel","queue":"` + strings.Repeat("é", 255) + `","timerKey":"k"}`, ""},
		{"a queue of 256 characters", `{"op":"cancel","queue":"` + strings.Repeat("q", 256) + `","timerKey":"k"}`, "more than 255 characters"},
		{"a key of 1024 bytes", `{"op":"cancel","queue":"q","timerKey":` + text(1024) + `}`, ""},
		{"a key of 1025 bytes", `{"op":"cancel","queue":"q","timerKey":` + text(1025) + `}`, "timerKey has more than 1024 bytes"},
		{"an empty partition", op(`"partition":""`), "partition must be"},
		{"a partition that is no text", op(`"partition":1`), "partition must be"},
		{"a partition of null", op(`"partition":null`), ""},
		{"a partition of 1024 bytes", op(`"partition":` + text(1024)), ""},
		{"a partition of 1025 bytes", op(`"partition":` + text(1025)), "partition has more than 1024 bytes"},
		{"no delay", `{"op":"schedule",` + names + `,"txn":"t","payload":""}`, "delayMs must be a number"},
		{"a delay that is no number", `{"op":"schedule",` + names + `,"delayMs":"1","txn":"t","payload":""}`, "delayMs must be a number"},
		{"a negative fractional delay", `{"op":"schedule",` + names + `,"delayMs":-1.5,"txn":"t","payload":""}`, ""},
		{"a delay that is too small for a double", `{"op":"schedule",` + names + `,"delayMs":1e-16383,"txn":"t","payload":""}`, ""},
		{"the longest delay", `{"op":"schedule",` + names + `,"delayMs":1e13,"txn":"t","payload":""}`, ""},
		{"a longer one", `{"op":"schedule",` + names + `,"delayMs":10000000000001,"txn":"t","payload":""}`, "delayMs must lie within"},
		{"the most negative one", `{"op":"schedule",` + names + `,"delayMs":-1e13,"txn":"t","payload":""}`, ""},
		{"a more negative one", `{"op":"schedule",` + names + `,"delayMs":-1e300,"txn":"t","payload":""}`, "delayMs must lie within"},
		{"no txn", `{"op":"schedule",` + names + `,"delayMs":1,"payload":""}`, "txn must be"},
		{"an empty txn", `{"op":"schedule",` + names + `,"delayMs":1,"txn":"","payload":""}`, "txn must be"},
		{"a txn of 1024 bytes", `{"op":"schedule",` + names + `,"delayMs":1,"payload":"","txn":` + text(1024) + `}`, ""},
		{"a txn of 1025 bytes", `{"op":"schedule",` + names + `,"delayMs":1,"payload":"","txn":` + text(1025) + `}`, "txn has more than 1024 bytes"},
		{"no payload", `{"op":"schedule",` + names + `,"delayMs":1,"txn":"t"}`, "payload must be"},
		{"a payload that is no text", `{"op":"schedule",` + names + `,"delayMs":1,"txn":"t","payload":{}}`, "payload must be"},
		{"a payload that is no base64", `{"op":"schedule",` + names + `,"delayMs":1,"txn":"t","payload":"*"}`, "base64"},
		{"a flag that is no boolean", op(`"encrypted":"yes"`), "must be true or false"},
		{"the other flag", op(`"payloadZstd":1`), "must be true or false"},
		{"flags of null", op(`"payloadZstd":null,"encrypted":null`), ""},
		{"a message id", op(`"_messageId":"0194C7A0-0000-7000-8000-00000000000a"`), ""},
		{"a message id of null", op(`"_messageId":null`), ""},
		{"a message id that is none", op(`"_messageId":"0194c7a0-0000-7000-8000-00000000000g"`), "_messageId must be a UUID"},
		{"a message id of another form", op(`"_messageId":"0194c7a000007000800000000000000a----"`), "_messageId must be a UUID"},
		{"a message id that is no text", op(`"_messageId":7`), "_messageId must be a UUID"},
	}
	for _, name := range []string{
		"producerSub", "producer_sub", "messageId", "message_id", "tenant", "tenantId", "_tenant", "tenant_id", "deliverAt", "deliver_at",
		"delaySeconds", "delay_seconds", "attempts", "claimToken", "claim_token", "claimedUntil",
	} {
		cases = append(cases, struct{ name, op, text string }{name, op(`"` + name + `":null`), "is not an input"})
	}
	for _, c := range cases {
		b.exec(`DELETE FROM queen.log_timers`)
		_, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "", list([]string{cancel("other"), c.op}))
		if c.text == "" {
			require.NoError(t, err, c.name)
			continue
		}
		var refused *store.TimersRefused
		require.ErrorAs(t, err, &refused, c.name)
		require.Contains(t, refused.Text, c.text, c.name)
		require.Equal(t, "22023", sqlState(t, err), c.name)
		require.Equal(t, store.Permanent, store.Classify(err), c.name)
		if c.text != "base64" {
			require.True(t, strings.HasPrefix(refused.Text, "QTIMER operation 1"), c.name)
			require.Contains(t, refused.Hint, "delayMs", c.name)
		}
		require.Equal(t, "[]", b.timerDump(), c.name)
	}
	for ops, text := range map[string]string{
		`{}`: "must be an array", `"x"`: "must be an array",
		string(list([]string{schedule("k", 1), cancel("k")})):                  "QTIMER operation 1: an earlier one names the same",
		string(list([]string{schedule("k", 1), schedule("l", 1), `{"op":5}`})): "QTIMER operation 2",
		`[{"op":"cancel","queue":"q","timerKey":"\u0000"}]`:                    "cannot be read as JSON",
		`[`: "cannot be read as JSON",
	} {
		_, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "", []byte(ops))
		var refused *store.TimersRefused
		require.ErrorAs(t, err, &refused, ops)
		require.Contains(t, refused.Text, text)
		require.Equal(t, "[]", b.timerDump(), ops)
	}
	require.Equal(t, []any{"absent", "absent"}, statusesOf(b.timers(
		`{"op":"cancel","queue":"ab","timerKey":"c"}`, `{"op":"cancel","queue":"a","timerKey":"bc"}`)), "names that join to the same")
	require.ErrorContains(t, b.try(`SELECT queen.log_timers_apply_v1('[]', NULL)`), "QTIMER a tenant is needed")
	require.Empty(t, b.timers())
}

func TestTimersScheduleAndCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := uuid.New()
	got := b.timers(schedule("k", 60_000, `,"partition":"p","payloadZstd":true,"encrypted":true,"_messageId":"`+id.String()+`"`), schedule("a", -5000))
	require.Equal(t, element{"ok": true, "status": "scheduled", "queue": "q", "timerKey": "k", "txn": "txn-k", "messageId": id.String()}, got[0].without("deliverAt"))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, got[0]["deliverAt"])
	require.NoError(t, uuid.Validate(got[1]["messageId"].(string)))
	var right bool
	b.one([]any{&right}, `SELECT deliver_at = created_at + INTERVAL '1 minute' AND queen.iso_us_v1(deliver_at) = $1 AND visible_at = deliver_at
		AND shard = hashtextextended('k', 0) & 63 AND producer_sub IS NULL FROM queen.log_timers WHERE timer_key = 'k'`, got[0]["deliverAt"])
	require.True(t, right)
	peeked := b.peek("k")
	require.Equal(t, map[string]any{
		"found": true, "queue": "q", "timerKey": "k", "partition": "p", "deliverAt": got[0]["deliverAt"], "txn": "txn-k", "messageId": id.String(),
		"payload": base64.StdEncoding.EncodeToString([]byte(`{"key":"k"}`)), "payloadZstd": true, "encrypted": true, "producerSub": nil,
		"attempts": 0., "lastError": nil, "claimed": false, "createdAt": peeked["createdAt"], "updatedAt": peeked["createdAt"],
	}, peeked)

	b.exec(`UPDATE queen.log_timers SET created_at = '2020-01-01T00:00:00Z', attempts = 3, last_error = 'x', claim_token = gen_random_uuid(), claimed_until = now() - INTERVAL '1 s'`)
	out, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "somebody", list([]string{
		`{"op":"reschedule","queue":"q","timerKey":"k","delayMs":0,"txn":"second","payload":""}`, cancel("none"), cancel("a"),
	}))
	require.NoError(t, err)
	again := b.elements(out.Results, 3)
	require.Equal(t, []any{"rescheduled", "absent", "cancelled"}, statusesOf(again))
	require.Equal(t, element{"ok": false, "status": "absent", "queue": "q", "timerKey": "none", "txn": "asked"}, again[1])
	require.Equal(t, element{"ok": true, "status": "cancelled", "queue": "q", "timerKey": "a", "txn": "txn-a"}, again[2], "the stored one")
	require.NotEqual(t, id.String(), again[0]["messageId"])
	next, err := time.Parse(time.RFC3339Nano, again[0]["deliverAt"].(string))
	require.NoError(t, err)
	require.Equal(t, next, out.Next)
	peeked = b.peek("k")
	require.Equal(t, []any{"Default", "second", "", false, false, "somebody", 0., nil, "2020-01-01T00:00:00.000000Z"}, []any{
		peeked["partition"], peeked["txn"], peeked["payload"], peeked["payloadZstd"], peeked["encrypted"], peeked["producerSub"],
		peeked["attempts"], peeked["lastError"], peeked["createdAt"],
	}, "all but its birth is new")
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_timers WHERE claim_token IS NULL AND claimed_until IS NULL`))
	require.Equal(t, map[string]any{"found": false, "queue": "q", "timerKey": "a"}, b.peek("a"))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.queues`), "the queue is born at the fire")

	out, err = b.store.TimersApply(t.Context(), store.DefaultTenant(), "", list([]string{schedule("x", 9000), schedule("y", 1000), schedule("z", 5000), cancel("k")}))
	require.NoError(t, err)
	require.Equal(t, b.elements(out.Results, 4)[1]["deliverAt"], out.Next.UTC().Format("2006-01-02T15:04:05.000000Z"), "the earliest")
	out, err = b.store.TimersApply(t.Context(), store.DefaultTenant(), "", list([]string{cancel("x")}))
	require.NoError(t, err)
	require.Zero(t, out.Next)
}

// Who may still cancel or reschedule a timer.
func TestTimerStates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		name, token, until string
		held               bool
	}{
		{"pending", `NULL`, `NULL`, false},
		{"given back", `NULL`, `now() - INTERVAL '1 s'`, false},
		{"in a backoff", `NULL`, `now() + INTERVAL '1 h'`, false},
		{"claimed", `gen_random_uuid()`, `now() + INTERVAL '1 h'`, true},
		{"claimed by a lease that is over", `gen_random_uuid()`, `now() - INTERVAL '1 us'`, false},
		{"claimed for no time", `gen_random_uuid()`, `NULL`, false},
	} {
		for _, op := range []string{schedule("k", 1000), strings.Replace(schedule("k", 1000), "schedule", "reschedule", 1), cancel("k")} {
			b.exec(`DELETE FROM queen.log_timers`)
			b.timers(schedule("k", -1000))
			b.exec(`UPDATE queen.log_timers SET claim_token = ` + c.token + `, claimed_until = ` + c.until)
			require.Equal(t, c.held, b.peek("k")["claimed"], c.name)
			before := b.timerDump()
			got := b.timers(op)[0]
			if !c.held {
				require.Equal(t, true, got["ok"], "%s: %s", c.name, op)
				continue
			}
			require.Equal(t, element{"ok": false, "status": "too_late", "queue": "q", "timerKey": "k"}, got, "%s: %s", c.name, op)
			require.Equal(t, before, b.timerDump())
		}
	}
	// A lease ends at its instant, by the clock of the call.
	b.timers(schedule("k", 0))
	b.exec(`UPDATE queen.log_timers SET claim_token = gen_random_uuid(), claimed_until = '2031-01-01T00:00:00Z'`)
	for instant, status := range map[string]string{"2030-12-31T23:59:59.999999Z": "too_late", "2031-01-01T00:00:00Z": "rescheduled"} {
		answer, err := b.query(`SELECT queen.log_timers_apply_v1($1, $2, NULL, $3::text::timestamptz)`, string(list([]string{schedule("k", 0)})), store.DefaultTenant(), instant)
		require.NoError(t, err)
		require.Contains(t, answer, status)
		b.exec(`UPDATE queen.log_timers SET claim_token = gen_random_uuid(), claimed_until = '2031-01-01T00:00:00Z'`)
	}
}

func TestTimersOfOtherTenantsAreNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.timers(schedule("k", -1000))
	out, err := b.store.TimersApply(t.Context(), someTenant, "", list([]string{cancel("k")}))
	require.NoError(t, err)
	require.Equal(t, "absent", b.elements(out.Results, 1)[0]["status"])
	doc, err := b.store.TimerPeek(t.Context(), someTenant, "q", "k")
	require.NoError(t, err)
	require.Equal(t, false, object(t, doc)["found"])
	doc, err = b.store.TimersList(t.Context(), someTenant, "q", "", 0)
	require.NoError(t, err)
	require.JSONEq(t, `{"rows":[],"truncated":false,"nextAfter":null}`, string(doc))
	n, err := b.store.TimersCount(t.Context(), someTenant, "q", "k")
	require.NoError(t, err)
	require.Zero(t, n)
	out, err = b.store.TimersApply(t.Context(), someTenant, "", list([]string{schedule("k", -1000)}))
	require.NoError(t, err)
	require.Equal(t, "scheduled", b.elements(out.Results, 1)[0]["status"])
	require.Len(t, b.claim(10), 2)
}

func TestTimersListAndCount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, k := range []string{"b", "a/1", "a/2", "B", "é", "a%"} {
		b.timers(schedule(k, 60_000))
	}
	page := func(after string, limit int) map[string]any {
		doc, err := b.store.TimersList(t.Context(), store.DefaultTenant(), "q", after, limit)
		require.NoError(t, err)
		return object(t, doc)
	}
	names := func(page map[string]any) (out []string) {
		for _, r := range page["rows"].([]any) {
			out = append(out, r.(map[string]any)["timerKey"].(string))
		}
		return out
	}
	all := page("", 0)
	require.Equal(t, []string{"B", "a%", "a/1", "a/2", "b", "é"}, names(all), "by bytes")
	require.Equal(t, []any{false, nil}, []any{all["truncated"], all["nextAfter"]})
	row := all["rows"].([]any)[0].(map[string]any)
	require.NotContains(t, row, "payload")
	require.NotContains(t, row, "found")
	require.Len(t, row, 14)
	first := page("", 2)
	require.Equal(t, []any{true, "a%"}, []any{first["truncated"], first["nextAfter"]})
	require.Equal(t, []string{"a/1", "a/2", "b", "é"}, names(page("a%", 4)), "behind the cursor, and no more than there are")
	require.Equal(t, false, page("a%", 4)["truncated"])
	require.Equal(t, []string{"B"}, names(page("", -1)))

	for prefix, want := range map[string]int64{"a": 3, "a/": 2, "a%": 1, "a_": 0, "": 6, "é": 1, "c": 0} {
		n, err := b.store.TimersCount(t.Context(), store.DefaultTenant(), "q", prefix)
		require.NoError(t, err)
		require.Equal(t, want, n, "%q", prefix)
	}
	for _, call := range []string{
		`SELECT queen.log_timers_count_v1(NULL, 'q', 'a')::text`, `SELECT queen.log_timers_list_v1(NULL, 'q')::text`,
		`SELECT queen.log_timers_list_v1('00000000-0000-0000-0000-000000000001', '')::text`,
		`SELECT queen.log_timers_list_v1('00000000-0000-0000-0000-000000000001', NULL)::text`,
	} {
		require.Equal(t, "22023", sqlState(t, b.try(call)), call)
	}
	_, err := b.store.TimersList(t.Context(), store.DefaultTenant(), "", "", 0)
	require.ErrorAs(t, err, new(*store.TimersRefused))

	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT 'many', 'k' || g, now(), 't', gen_random_uuid(), '' FROM generate_series(1, 1001) AS g`)
	for limit, want := range map[int]int{0: 100, 5000: 1000} {
		doc, err := b.store.TimersList(t.Context(), store.DefaultTenant(), "many", "", limit)
		require.NoError(t, err)
		require.Len(t, object(t, doc)["rows"], want)
	}
}

// A list does not read the payloads that it does not show.
func TestTimersListReadsNoPayloads(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT 'q', 'k' || g, now(), 't', gen_random_uuid(), (SELECT string_agg(uuid_send(gen_random_uuid()), ''::bytea) FROM generate_series(1, 1000 + g - g))
		FROM generate_series(1, 300) AS g`)
	b.inTx(func(ctx context.Context, tx pgx.Tx) error {
		before, err := readsOf(ctx, tx, "log_timers")
		require.NoError(t, err)
		for _, call := range []string{
			`SELECT queen.log_timers_list_v1('00000000-0000-0000-0000-000000000001', 'q', 'k2', 20)`,
			`SELECT queen.log_timers_due_v1(ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g), NULL, 50)`,
			`SELECT queen.kv_usage_step_v1(ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g))`,
		} {
			_, err := tx.Exec(ctx, call)
			require.NoError(t, err)
		}
		after, err := readsOf(ctx, tx, "log_timers")
		require.NoError(t, err)
		require.Equal(t, before.chunks, after.chunks, "chunks of payloads")
		return nil
	})
}

// The instant of a delivery is that of the database, whatever the session believes.
func TestTimersAreDueByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.timers(schedule("k", 3_600_000))
	at, err := time.Parse(time.RFC3339Nano, got[0]["deliverAt"].(string))
	require.NoError(t, err)
	var now time.Time
	b.one([]any{&now}, `SELECT clock_timestamp()`)
	require.WithinDuration(t, now.Add(time.Hour), at, 30*time.Second)
	require.Empty(t, b.claim(10))
	b.exec(`UPDATE queen.log_timers SET deliver_at = now()`)
	require.Len(t, b.claim(10), 1)
}
