package store_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// schedule is an operation for the queue q; rest begins with a comma.
func schedule(key string, delayMs int, rest ...string) string {
	return fmt.Sprintf(`{"op":"schedule","queue":"q","timerKey":%q,"delayMs":%d,"txn":"txn-%s","payload":%q%s}`,
		key, delayMs, key, base64.StdEncoding.EncodeToString([]byte(`{"key":"`+key+`"}`)), strings.Join(rest, ""))
}

func cancel(key string) string {
	return fmt.Sprintf(`{"op":"cancel","queue":"q","timerKey":%q,"txn":"asked"}`, key)
}

// timers runs operations of the default tenant, which must be answered.
func (b *bench) timers(ops ...string) []element {
	b.t.Helper()
	out, err := b.store.TimersApply(b.t.Context(), store.DefaultTenant(), "", list(ops))
	require.NoError(b.t, err)
	return b.elements(out.Results, len(ops))
}

// statusesOf elements.
func statusesOf(elements []element) []any {
	var out []any
	for _, e := range elements {
		out = append(out, e["status"])
	}
	return out
}

// claim takes all that is due, up to rows.
func (b *bench) claim(rows int) []store.ClaimedTimer {
	b.t.Helper()
	claimed, err := b.store.TimersClaim(b.t.Context(), store.TimerClaim{Shards: store.Shards(0), Lease: time.Minute, Rows: rows})
	require.NoError(b.t, err)
	return claimed
}

// backlog lays n timers that are due, a few microseconds apart, in an order that is neither
// that of their keys nor that of the table.
func (b *bench) backlog(n int) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT 'q', 'k' || g, now() - INTERVAL '1 minute' + hashint8(g) * INTERVAL '1 us' / 1000, 't', gen_random_uuid(), ''
		FROM generate_series(1, $1::int) AS g`, n)
}

// instants are the keys of the timers from one place to another in the order in which
// they are to be delivered.
func (b *bench) instants(from, to int) []string {
	b.t.Helper()
	var text string
	b.one([]any{&text}, `SELECT string_agg(t.timer_key, ' ' ORDER BY t.deliver_at, t.timer_key) FROM queen.log_timers AS t`)
	return strings.Fields(text)[from:to]
}

// packed groups claimed timers by lane, as a sweeper does. The blob names the keys.
func bundled(claimed []store.ClaimedTimer) []store.FireSegment {
	var segs []store.FireSegment
	at := map[[3]string]int{}
	for _, c := range claimed {
		lane := [3]string{c.Tenant.String(), c.Queue, c.Partition}
		i, ok := at[lane]
		if !ok {
			i = len(segs)
			at[lane] = i
			segs = append(segs, store.FireSegment{Tenant: c.Tenant, Queue: c.Queue, Partition: c.Partition})
		}
		s := &segs[i]
		s.Keys, s.Tokens = append(s.Keys, c.Key), append(s.Tokens, c.Token)
		s.Hashes = append(s.Hashes, hash(uint64(len(c.Txn)))...)
		s.Blob = fmt.Appendf(s.Blob, "%s;", c.Key)
	}
	return segs
}

func (b *bench) fire(segs ...store.FireSegment) []store.FireVerdict {
	b.t.Helper()
	verdicts, err := b.store.TimersFire(b.t.Context(), segs)
	require.NoError(b.t, err)
	require.Len(b.t, verdicts, len(segs))
	return verdicts
}

// fail gives timers back.
func (b *bench) fail(f store.TimerFailure, claimed ...store.ClaimedTimer) store.TimersFailed {
	b.t.Helper()
	out, err := b.store.TimersFail(b.t.Context(), heldOf(claimed), f)
	require.NoError(b.t, err)
	return out
}

func heldOf(claimed []store.ClaimedTimer) []store.HeldTimer {
	var out []store.HeldTimer
	for _, c := range claimed {
		out = append(out, store.HeldTimer{TimerKey: c.TimerKey, Token: c.Token})
	}
	return out
}

// delivered are the keys of the frames in the log, lane by lane.
func (b *bench) delivered() []string {
	b.t.Helper()
	var text string
	b.one([]any{&text}, `SELECT COALESCE(string_agg(convert_from(s.blob, 'UTF8'), '' ORDER BY s.partition_id, s.base_offset), '') FROM queen.log_segments s`)
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, ";"), ";")
}

// timerDump is the content of the table.
func (b *bench) timerDump() (text string) {
	b.t.Helper()
	b.one([]any{&text}, `SELECT COALESCE(jsonb_agg(to_jsonb(t) ORDER BY tenant_id, queue, timer_key), '[]')::text FROM queen.log_timers t`)
	return text
}

// timerKeys of claimed timers.
func timerKeys(claimed []store.ClaimedTimer) []string {
	var out []string
	for _, c := range claimed {
		out = append(out, c.Key)
	}
	return out
}

// due asks the probe.
func (b *bench) due(limit int) store.TimersDue {
	b.t.Helper()
	due, err := b.store.TimersDue(b.t.Context(), store.Shards(0), limit)
	require.NoError(b.t, err)
	return due
}

func (b *bench) peek(key string) map[string]any {
	b.t.Helper()
	doc, err := b.store.TimerPeek(b.t.Context(), store.DefaultTenant(), "q", key)
	require.NoError(b.t, err)
	return object(b.t, doc)
}

// applyTimers is timers for goroutines.
func (b *bench) applyTimers(ctx context.Context, ops ...string) ([]element, error) {
	out, err := b.store.TimersApply(ctx, store.DefaultTenant(), "", list(ops))
	if err != nil {
		return nil, err
	}
	var all []element
	return all, json.Unmarshal(out.Results, &all)
}

// lapse ends all leases.
func (b *bench) lapse() {
	b.t.Helper()
	b.exec(`UPDATE queen.log_timers SET claimed_until = now() - INTERVAL '1 ms' WHERE claim_token IS NOT NULL`)
}

var someTenant = uuid.MustParse("00000000-0000-0000-0000-0000000000aa")
