package store_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestDeadLetterIsFiledAndSteppedOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 0, 4)
	letter := store.DeadLetter{
		PartitionID: pid, Group: group, Worker: "w", Offset: 2, MessageID: uuid.New(), TransactionID: "tx",
		Payload: []byte(`{"a": [1, "x"]}`), Error: "no \x00such\xff account",
	}
	out, err := b.store.DLQHead(t.Context(), letter)
	require.NoError(t, err)
	require.True(t, out.OK, out.Error)
	require.Equal(t, finished(2, 11), b.state(pid, group))

	var id, partition, message uuid.UUID
	var name, tx, payload, reason string
	var offset int64
	var retries int
	b.one([]any{&id, &partition, &name, &offset, &message, &tx, &payload, &reason, &retries},
		`SELECT id, partition_id, consumer_group, "offset", message_id, transaction_id, payload::text, error, retry_count
		FROM queen.log_dlq WHERE failed_at BETWEEN now() - interval '1 minute' AND now()`)
	require.Equal(t, []any{out.ID, pid, group, int64(2), letter.MessageID, "tx", `{"a": [1, "x"]}`, "no such\uFFFD account", 1},
		[]any{id, partition, name, offset, message, tx, payload, reason, retries})

	for _, worker := range []string{"w", ""} {
		letter.Worker = worker
		again, err := b.store.DLQHead(t.Context(), letter)
		require.NoError(t, err)
		require.False(t, again.OK)
		require.NotEmpty(t, again.Error)
	}
	require.Equal(t, finished(2, 11), b.state(pid, group), "a second call does nothing")
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_dlq`))
}

func TestDeadLetterNeverMovesACursorBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 3, 4)
	out, err := b.store.DLQHead(t.Context(), store.DeadLetter{PartitionID: pid, Group: group, Worker: "w", Offset: 1, Payload: []byte(`1`)})
	require.NoError(t, err)
	require.True(t, out.OK)
	require.Equal(t, finished(3, 11), b.state(pid, group))
}

func TestDeadLetterRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 0, 4)
	b.leased(pid, "late", "w", 0, 4)
	b.expireLease(pid, "late")
	cases := map[string]struct {
		group, worker, want string
	}{
		"a group without a cursor": {"none", "", "consumer not found"},
		"another worker":           {group, "x", "invalid or expired lease"},
		"an expired lease":         {"late", "w", "invalid or expired lease"},
	}
	for name, c := range cases {
		out, err := b.store.DLQHead(t.Context(), store.DeadLetter{PartitionID: pid, Group: c.group, Worker: c.worker, Offset: 1, Payload: []byte(`1`)})
		require.NoError(t, err, name)
		require.Equal(t, store.DLQOutcome{Error: c.want}, out, name)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_dlq`))
	require.Equal(t, held(0, 10, 1), b.state(pid, group))
}

// Whatever a payload is, its letter is filed, and its bytes come back: exactly
// when the snapshot is marked, as equal JSON otherwise.
func TestDeadLetterTakesEveryContent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	const marked, plain = true, false
	cases := map[string]struct {
		payload string
		marked  bool
	}{
		"an object":                      {`{"b": 1.50, "a": [true, false, null, "e9999"]}`, plain},
		"a number":                       {`-1.5E+10`, plain},
		"a small exponent":               {`1e-0000000000012`, plain},
		"an escaped pair":                {`"\ud83d\uDC1D \\u0000 \\\\"`, plain},
		"a replacement character":        {`"\ufffd"`, plain},
		"a NUL":                          {`{"a\u0000": 1}`, marked},
		"a lone high surrogate":          {`["\ud800"]`, marked},
		"a high surrogate before a rune": {`"\ud800\u0041"`, marked},
		"a lone low surrogate":           {`"\udc00"`, marked},
		"two high surrogates":            {`"\ud800\ud800"`, marked},
		"a surrogate at the end":         {`"\\\ud800`, marked},
		"a huge exponent":                {`1e999999`, marked},
		"a huge negative exponent":       {`1e-999999`, marked},
		"an exponent that would explode": {`[1E+131071]`, marked},
		"too many digits":                {`1` + strings.Repeat("0", 140000), marked},
		"too deep for the server":        {strings.Repeat("[", 200000) + strings.Repeat("]", 200000), marked},
		"invalid UTF-8":                  {"\"\xff\"", marked},
		"no JSON":                        {`{`, marked},
		"nothing":                        {``, marked},
		"the marked form itself":         {`{"$raw": "aGk="}`, marked},
		"the marked form in disguise":    {`{"\u0024raw": "aGk="}`, marked},
		"the marked form repeated":       {`{"$raw": 1, "$raw": 2}`, marked},
		"the marked form, not of text":   {`{"$raw": {"a": 1}}`, marked},
		"the mark among others":          {`{"$raw": "aGk=", "more": 1}`, plain},
		"the mark inside":                {`[{"$raw": "aGk="}]`, plain},
	}
	for name, c := range cases {
		b.exec(`DELETE FROM queen.log_consumers`)
		b.exec(`DELETE FROM queen.log_dlq`)
		b.leased(pid, group, "w", 0, 4)
		out, err := b.store.DLQHead(t.Context(), store.DeadLetter{PartitionID: pid, Group: group, Worker: "w", Offset: 1, Payload: []byte(c.payload)})
		require.NoError(t, err, name)
		require.True(t, out.OK, name)
		var stored string
		b.one([]any{&stored}, `SELECT payload::text FROM queen.log_dlq`)
		got := string(store.DecodeSnapshot([]byte(stored)))
		if c.marked {
			require.Equal(t, `{"$raw": "`+base64.StdEncoding.EncodeToString([]byte(c.payload))+`"}`, stored, name)
			require.Equal(t, c.payload, got, name)
		} else {
			require.JSONEq(t, c.payload, stored, name)
			require.Equal(t, stored, got, name)
		}
	}
}
