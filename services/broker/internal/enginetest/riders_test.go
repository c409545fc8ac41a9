package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

// The operations of riders. more begins with a comma, or is empty.
func put(key, value, more string) string {
	return fmt.Sprintf(`{"op":"put","ns":"n","key":%q,"value":%s,"forever":true%s}`, key, value, more)
}

func incr(key string) string {
	return fmt.Sprintf(`{"op":"incr","ns":"n","key":%q,"delta":1,"forever":true}`, key)
}

func schedule(key string, delay time.Duration) string {
	return fmt.Sprintf(`{"op":"schedule","queue":"later","timerKey":%q,"delayMs":%d,"txn":"txn-%s","payload":"eyJuIjoxfQ=="}`, key, delay.Milliseconds(), key)
}

func cancel(key string) string {
	return fmt.Sprintf(`{"op":"cancel","queue":"later","timerKey":%q}`, key)
}

func list(ops ...string) json.RawMessage { return json.RawMessage("[" + strings.Join(ops, ",") + "]") }

// answer is a transaction's as its client reads it.
type answer struct {
	TransactionID string
	Success       bool
	Ok            *bool
	Reason, Error string
	FailedIndex   *int
	KVReason      string
	Version       int64
	Value         json.RawMessage
	Results       []result
}

type result struct {
	Index                                   int
	Type                                    string
	OpIndex                                 *int
	Op, Key, Reason, Status, MessageID, Txn string
	Applied, Found, OK                      *bool
	Value                                   json.RawMessage
	Version                                 int64
	DeliverAt                               *time.Time
}

func read(t testing.TB, resp wire.TxResponse) (a answer) {
	t.Helper()
	require.NoError(t, json.Unmarshal(wire.AppendTxResponse(nil, resp), &a))
	return a
}

func (e *engine) transact(req wire.TxRequest) answer {
	e.t.Helper()
	resp, err := e.tx.Run(e.t.Context(), tenant, "me", req)
	require.NoError(e.t, err)
	return read(e.t, resp)
}

// state is all that a bundle may touch.
func (e *engine) state() (text string) {
	e.t.Helper()
	e.scan([]any{&text}, `SELECT jsonb_pretty(jsonb_build_object(
		'queues', (SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM queen.queues AS t),
		'partitions', (SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM queen.log_partitions AS t),
		'segments', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, base_offset) FROM queen.log_segments AS t),
		'txns', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, base_offset) FROM queen.log_txns AS t),
		'consumers', (SELECT jsonb_agg(to_jsonb(t) ORDER BY partition_id, consumer_group) FROM queen.log_consumers AS t),
		'letters', (SELECT jsonb_agg(to_jsonb(t)) FROM queen.log_dlq AS t),
		'kv', (SELECT jsonb_agg(to_jsonb(t) ORDER BY tenant_id, namespace, key) FROM queen.kv AS t),
		'timers', (SELECT jsonb_agg(to_jsonb(t) ORDER BY tenant_id, queue, timer_key) FROM queen.log_timers AS t)))`)
	return text
}

// scene is a batch under way, with keys and timers in all states that a bundle meets.
func (e *engine) scene() []message {
	e.t.Helper()
	e.queued(items("src", "a", "m", 3)...)
	e.queued(item("dst", "a", "stored"))
	_, err := e.store.KVApply(e.t.Context(), tenant, list(put("taken", `{"by":"x"}`, ""), put("count", "5", ""), put("old", "1", "")))
	require.NoError(e.t, err)
	_, err = e.store.TimersApply(e.t.Context(), tenant, "", list(schedule("old", time.Minute), schedule("moved", time.Minute)))
	require.NoError(e.t, err)
	return e.popped("src")
}

// full is a bundle that does a little of everything, to new rows and to old ones.
func full(ms []message) wire.TxRequest {
	return wire.TxRequest{
		Ops: []wire.TxOp{
			pushOp("dst", "a", "n1"), ackOp(ms[0], wire.AckCompleted, ms[0].LeaseID), pushOp("dst", "b", ""), pushOp("fresh", "a", "n2"),
		},
		KV:     list(put("new", "1", ""), incr("count"), `{"op":"delete","ns":"n","key":"old"}`, `{"op":"getMany","ns":"n","keys":["count","none"]}`),
		Timers: list(schedule("new", time.Hour), cancel("old"), schedule("moved", 0)),
	}
}

func TestABundleWithRiders(t *testing.T) {
	t.Parallel()
	e := setup(t)
	ms := e.scene()
	a := e.transact(full(ms))
	require.True(t, a.Success, a.Error)
	types := make([]string, 0, len(a.Results))
	for i, r := range a.Results {
		require.Equal(t, i, r.Index)
		if r.OpIndex != nil {
			r.Type += fmt.Sprint(" ", *r.OpIndex)
		}
		types = append(types, r.Type)
	}
	require.Equal(t, []string{"push", "ack", "push", "push", "kv 0", "kv 1", "kv 2", "kv 3", "timer 0", "timer 1", "timer 2"}, types)
	require.True(t, *a.Results[4].Applied)
	require.Equal(t, "6", string(a.Results[5].Value))
	require.Equal(t, "delete", a.Results[6].Op)
	require.Equal(t, []string{"scheduled", "cancelled", "rescheduled"}, []string{a.Results[8].Status, a.Results[9].Status, a.Results[10].Status})

	var key, id, sub string
	e.scan([]any{&key, &id, &sub}, `SELECT timer_key, message_id, producer_sub FROM queen.log_timers WHERE deliver_at > now() + interval '50 minutes'`)
	require.Equal(t, []string{"new", a.Results[8].MessageID, "me"}, []string{key, id, sub})
	require.Equal(t, []string{"n2"}, ids(e.popped("fresh")))
	require.Len(t, e.popped("dst", partitions(5)), 3)
}

// A bundle of riders alone is answered like any other.
func TestBundlesOfRidersAlone(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.scene()
	a := e.transact(wire.TxRequest{KV: list(`{"op":"putIfAbsent","ns":"n","key":"taken","value":1,"ttlSeconds":9}`, incr("count"))})
	require.True(t, a.Success, a.Error)
	require.False(t, *a.Results[0].Applied, "what is not required does not fail the bundle")
	require.Equal(t, "exists", a.Results[0].Reason)
	require.Equal(t, "putIfAbsent", a.Results[0].Op)
	require.Equal(t, "6", string(a.Results[1].Value))
	require.Equal(t, 1, *a.Results[1].OpIndex)

	a = e.transact(wire.TxRequest{Timers: list(cancel("none"), schedule("new", -time.Hour))})
	require.True(t, a.Success, a.Error)
	require.False(t, *a.Results[0].OK)
	require.Equal(t, "absent", a.Results[0].Status)
	require.Equal(t, "timer", a.Results[1].Type)
	require.NotNil(t, a.Results[1].DeliverAt)

	lost := e.transact(wire.TxRequest{KV: list(`{"op":"putIfAbsent","ns":"n","key":"taken","value":1,"ttlSeconds":9,"required":true}`)})
	require.Equal(t, wire.ReasonKVPrecondition, lost.Reason)
	require.Equal(t, 0, *lost.FailedIndex)
}

// The gate of the client suites: the first one passes, the second one finds the key.
func TestARequiredKeyLetsOneBundlePass(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for i, want := range []bool{true, false} {
		a := e.transact(wire.TxRequest{
			Ops: []wire.TxOp{pushOp("dst", "a", "")},
			KV:  list(fmt.Sprintf(`{"op":"putIfAbsent","ns":"n","key":"once","value":%d,"forever":true,"required":true}`, i)),
		})
		require.Equal(t, want, a.Success)
		if want {
			continue
		}
		require.False(t, *a.Ok)
		require.Equal(t, wire.ReasonKVPrecondition, a.Reason)
		require.Equal(t, "exists", a.KVReason)
		require.Equal(t, 1, *a.FailedIndex, "the push is 0, the rider is 1")
		require.Equal(t, "0", string(a.Value))
		require.Positive(t, a.Version)
		require.NotNil(t, a.Results)
		require.Empty(t, a.Results)
	}
	require.Len(t, e.popped("dst"), 1)
}

func TestAFailedBundleWithRidersLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil  func(e *engine, req *wire.TxRequest)
		reason string // of an answer
		status int    // of an error of the wire
	}{
		"a required key that is taken": {func(_ *engine, req *wire.TxRequest) {
			req.KV = list(put("new", "1", ""), put("taken", "1", `,"expect":0,"required":true`))
		}, wire.ReasonKVPrecondition, 0},
		"a malformed operation on a key": {func(_ *engine, req *wire.TxRequest) {
			req.KV = list(put("new", "1", ""), `{"op":"put","ns":"n","key":"k","value":1}`)
		}, wire.ReasonBadRequest, 0},
		"two writes of one key": {func(_ *engine, req *wire.TxRequest) { req.KV = list(incr("count"), incr("count")) }, wire.ReasonBadRequest, 0},
		"a value that is long when it is stored": {func(_ *engine, req *wire.TxRequest) {
			req.KV = list(put("new", "1", ""), put("big", "1e65536", ""))
		}, wire.ReasonTooLarge, 0},
		"a value that jsonb refuses": {func(_ *engine, req *wire.TxRequest) { req.KV = list(put("new", `"\u0000"`, "")) }, wire.ReasonBadRequest, 0},
		"a value that is long": {func(_ *engine, req *wire.TxRequest) {
			req.KV = list(put("new", `"`+strings.Repeat("x", 65535)+`"`, ""))
		}, wire.ReasonTooLarge, 0},
		"65 operations on keys": {func(_ *engine, req *wire.TxRequest) {
			req.KV = list(strings.Repeat(incr("count")+",", 64) + incr("count"))
		}, "", http.StatusBadRequest},
		"a malformed timer": {func(_ *engine, req *wire.TxRequest) {
			req.Timers = list(schedule("new", 0), `{"op":"cancel","queue":"later"}`)
		}, wire.ReasonBadRequest, 0},
		"two operations on one timer": {func(_ *engine, req *wire.TxRequest) { req.Timers = list(schedule("new", 0), cancel("new")) }, wire.ReasonBadRequest, 0},
		"a timer beyond the horizon":  {func(_ *engine, req *wire.TxRequest) { req.Timers = list(schedule("new", 91*24*time.Hour)) }, wire.ReasonTimerHorizon, 0},
		"a payload that is no base64": {func(_ *engine, req *wire.TxRequest) {
			req.Timers = list(strings.Replace(schedule("new", 0), "==", "*", 1))
		}, "", http.StatusBadRequest},
		"a timer with a delay in seconds": {func(_ *engine, req *wire.TxRequest) {
			req.Timers = list(strings.Replace(schedule("new", 0), `"op"`, `"delaySeconds":1,"op"`, 1))
		}, wire.ReasonBadRequest, 0},
		"a stored transaction id":   {func(_ *engine, req *wire.TxRequest) { req.Ops = append(req.Ops, pushOp("dst", "a", "stored")) }, wire.ReasonDuplicate, 0},
		"an unknown transaction id": {func(_ *engine, req *wire.TxRequest) { req.Ops[1].Ack.TransactionID = "ghost" }, wire.ReasonAckRejected, 0},
		"a lease of somebody else":  {func(_ *engine, req *wire.TxRequest) { req.Ops[1].Ack.LeaseID = "somebody" }, wire.ReasonAckRejected, 0},
		"a partition that is not there": {func(_ *engine, req *wire.TxRequest) {
			req.Ops[1].Ack.PartitionID = "0199aa10-1111-7abc-8def-000000000001"
		}, wire.ReasonAckRejected, 0},
		"a partition that is no id": {func(_ *engine, req *wire.TxRequest) { req.Ops[1].Ack.PartitionID = "nope" }, wire.ReasonAckRejected, 0},
		"keys that are switched off": {func(e *engine, _ *wire.TxRequest) {
			off := false
			e.quota.SetSwitches(e.t.Context(), store.KVSwitchChange{KV: &off})
		}, "", http.StatusForbidden},
		"timers that are switched off": {func(e *engine, _ *wire.TxRequest) {
			off := false
			e.quota.SetSwitches(e.t.Context(), store.KVSwitchChange{TimersSchedule: &off})
		}, "", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			ms := e.scene()
			req := full(ms)
			c.spoil(e, &req)
			before := e.state()
			resp, err := e.tx.Run(t.Context(), tenant, "", req)
			require.Equal(t, before, e.state())
			require.False(t, resp.Success)
			require.Equal(t, c.reason, resp.Reason, resp.Error)
			require.Equal(t, c.status, statusOf(t, err))

			on := true
			e.quota.SetSwitches(t.Context(), store.KVSwitchChange{KV: &on, TimersSchedule: &on})
			a := e.transact(full(ms))
			require.True(t, a.Success, "without the fault it commits: %s", a.Error)
		})
	}
}

// statusOf is the status of an error of the wire, 0 for no error.
func statusOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var malformed *wire.Error
	if errors.As(err, &malformed) {
		return malformed.Status
	}
	var refusal *wire.Refusal
	require.ErrorAs(t, err, &refusal)
	return refusal.Status
}

// A bundle that is interrupted while it waits for any of its locks leaves no trace.
func TestAnInterruptedBundleWithRidersLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]string{
		"a key":       `SELECT FROM queen.kv WHERE key = 'count' FOR UPDATE`,
		"a timer":     `SELECT FROM queen.log_timers WHERE timer_key = 'moved' FOR UPDATE`,
		"a partition": `SELECT FROM queen.log_partitions FOR UPDATE`,
		"a cursor":    `SELECT FROM queen.log_consumers FOR UPDATE`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.NewConfig(t)
			cfg.StatementTimeout = 400
			impatient, err := pgdb.Open(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(impatient.Close)
			e := broker(t, impatient, false)
			e.tx, err = transact.New(transact.Config{Deadline: time.Nanosecond}, e.tx.Deps)
			require.NoError(t, err)
			ms := e.scene()
			before := e.state()

			holder, err := impatient.Session(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, holder.Close(context.Background())) }()
			lock, err := holder.Begin(t.Context())
			require.NoError(t, err)
			_, err = lock.Exec(t.Context(), held)
			require.NoError(t, err)

			_, err = e.tx.Run(t.Context(), tenant, "", full(ms))
			require.ErrorIs(t, err, transact.ErrFailed, "at the deadline of its statement")

			ended := make(chan error, 1)
			go func() {
				_, err := e.tx.Run(context.Background(), tenant, "", full(ms))
				ended <- err
			}()
			kill(t, lock)
			require.ErrorIs(t, <-ended, transact.ErrUnknown, "when its session ends")

			gone, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = e.tx.Run(gone, tenant, "", full(ms))
			require.ErrorIs(t, err, context.Canceled, "when its client has left before it began")

			require.NoError(t, lock.Rollback(t.Context()))
			require.Equal(t, before, e.state())
			a := e.transact(full(ms))
			require.True(t, a.Success, a.Error)
		})
	}
}

// kill ends the session that waits for the locks of tx.
func kill(t *testing.T, tx pgx.Tx) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND pg_backend_pid() = ANY (pg_blocking_pids(pid))`).Scan(&n))
		return n > 0
	}, 10*time.Second, time.Millisecond)
}

// Of bundles that require the same key one commits, and the others know its value.
func TestOneOfManyBundlesGetsTheKey(t *testing.T) {
	t.Parallel()
	const many = 12
	e := setup(t)
	responses := make([]wire.TxResponse, many)
	var all errgroup.Group
	for i := range responses {
		all.Go(func() (err error) {
			responses[i], err = e.tx.Run(context.Background(), tenant, "", wire.TxRequest{
				Ops:    []wire.TxOp{pushOp("dst", fmt.Sprint(i%3), fmt.Sprint("by", i))},
				KV:     list(incr("count"), fmt.Sprintf(`{"op":"putIfAbsent","ns":"n","key":"one","value":%d,"forever":true,"required":true}`, i)),
				Timers: list(schedule("one", time.Hour)),
			})
			return err
		})
	}
	require.NoError(t, all.Wait())
	answers := make([]answer, many)
	for i := range answers {
		answers[i] = read(t, responses[i])
	}
	winner := slices.IndexFunc(answers, func(a answer) bool { return a.Success })
	require.GreaterOrEqual(t, winner, 0)
	for i, a := range answers {
		if i == winner {
			continue
		}
		require.Equal(t, wire.ReasonKVPrecondition, a.Reason, a.Error)
		require.Equal(t, 2, *a.FailedIndex)
		require.Equal(t, fmt.Sprint(winner), string(a.Value))
		require.Equal(t, answers[winner].Results[2].Version, a.Version)
	}
	require.Equal(t, []string{fmt.Sprint("by", winner)}, ids(e.popped("dst", partitions(3))))
	count := e.transact(wire.TxRequest{KV: list(incr("count"))})
	require.Equal(t, "2", string(count.Results[0].Value))
}

// An ack that is refused by its position is tried by its hashes; the riders, which were
// rolled back with the first attempt, take effect once.
func TestRidersTakeEffectOnceWhenAnAckIsTriedInBothForms(t *testing.T) {
	t.Parallel()
	e := setup(t)
	ms := e.scene()
	broker(t, e.db, false).settle(wire.AckCompleted, ms[0]) // behind the back of this one
	w := &watched{Store: e.tx.Store}
	e.tx.Store = w
	req := wire.TxRequest{KV: list(incr("count")), Timers: list(schedule("new", time.Hour))}
	for _, m := range ms {
		req.Ops = append(req.Ops, ackOp(m, wire.AckCompleted, m.LeaseID))
	}
	a := e.transact(req)
	require.True(t, a.Success, a.Error)
	require.EqualValues(t, 2, w.calls.Load())
	require.EqualValues(t, 1, w.commits.Load())
	require.Equal(t, "6", string(a.Results[3].Value))
	require.Equal(t, "scheduled", a.Results[4].Status)
	require.Empty(t, e.popped("src"))
}
