package store_test

import (
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// letter files a dead letter that failed at a given minute of a fixed hour.
func (b *bench) letter(pid uuid.UUID, group string, minute int) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count, failed_at)
		VALUES ($1, $2, $3::int, gen_random_uuid(), 'tx' || $3::int, jsonb_build_object('n', $3::int), 'boom', NULLIF($3::int, 1),
			'2026-05-01 10:00Z'::timestamptz + make_interval(mins => $3::int))`,
		pid, group, minute)
}

func TestDeadLettersAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"retryLimit": 9}`, false)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	b.letter(pid, "g", 1)
	b.letter(pid, "g", 2)

	doc, err := b.store.DLQMessages(t.Context(), store.DLQFilter{Tenant: store.DefaultTenant(), Queue: "q"})
	require.NoError(t, err)
	out := object(t, doc)
	require.Equal(t, map[string]any{"limit": 100.0, "offset": 0.0}, out["pagination"])
	require.EqualValues(t, 2, out["total"])
	messages := out["messages"].([]any)
	require.Len(t, messages, 2)
	first, second := messages[0].(map[string]any), messages[1].(map[string]any)
	require.NoError(t, uuid.Validate(first["id"].(string)))
	delete(first, "id")
	require.Equal(t, map[string]any{
		"transactionId": "tx2", "partitionId": pid.String(), "queue": "q", "partition": "p", "consumerGroup": "g",
		"errorMessage": "boom", "retryCount": 2.0, "data": map[string]any{"n": 2.0}, "producerSub": nil,
		"createdAt": "2026-05-01T10:02:00.000Z", "failedAt": "2026-05-01T10:02:00.000Z",
	}, first)
	require.EqualValues(t, 9, second["retryCount"], "the queue's limit where the row has none")
}

func TestDeadLetterFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.queued(segment("q", "p", 1)).PartitionID
	r := b.queued(segment("q", "r", 1)).PartitionID
	other := b.queued(segment("other", "p", 1)).PartitionID
	foreign := segment("q", "p", 1)
	foreign.Tenant = uuid.New()
	b.letter(p, "g", 1)
	b.letter(p, "h", 2)
	b.letter(r, "g", 3)
	b.letter(other, "g", 4)
	b.letter(b.queued(foreign).PartitionID, "g", 5)

	at := func(minute int) time.Time { return time.Date(2026, 5, 1, 10, minute, 0, 0, time.UTC) }
	cases := map[string]struct {
		filter store.DLQFilter
		want   []int
	}{
		"nothing":           {store.DLQFilter{}, []int{4, 3, 2, 1}},
		"the queue":         {store.DLQFilter{Queue: "q"}, []int{3, 2, 1}},
		"the group":         {store.DLQFilter{Queue: "q", ConsumerGroup: "g"}, []int{3, 1}},
		"the partition":     {store.DLQFilter{Queue: "q", Partition: "p"}, []int{2, 1}},
		"the start":         {store.DLQFilter{From: at(2)}, []int{4, 3, 2}},
		"the end":           {store.DLQFilter{To: at(2)}, []int{2, 1}},
		"both ends":         {store.DLQFilter{From: at(2), To: at(3)}, []int{3, 2}},
		"the page":          {store.DLQFilter{Limit: 2}, []int{4, 3}},
		"the second page":   {store.DLQFilter{Limit: 2, Offset: 2}, []int{2, 1}},
		"an unknown queue":  {store.DLQFilter{Queue: "nope"}, []int{}},
		"another tenant":    {store.DLQFilter{Tenant: foreign.Tenant}, []int{5}},
		"an unknown tenant": {store.DLQFilter{Tenant: uuid.New()}, []int{}},
	}
	for name, c := range cases {
		if c.filter.Tenant == uuid.Nil {
			c.filter.Tenant = store.DefaultTenant()
		}
		doc, err := b.store.DLQMessages(t.Context(), c.filter)
		require.NoError(t, err, name)
		var page struct {
			Messages []struct{ Data struct{ N int } }
			Total    int
		}
		require.NoError(t, json.Unmarshal(doc, &page))
		got := []int{}
		for _, m := range page.Messages {
			got = append(got, m.Data.N)
		}
		require.Equal(t, c.want, got, "by %s", name)
		require.Equal(t, len(c.want), page.Total, name)
	}
}

// Stored payloads are compressed: what counts is what they take on the page, or a few
// hundred of them would be more than PostgreSQL can answer.
func TestAPageOfDeadLettersEndsWhereItIsFull(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	const letters = 30
	for i := range letters {
		b.letter(pid, "g", i)
	}
	b.exec(`UPDATE queen.log_dlq SET payload = payload || jsonb_build_object('fill', repeat('ab', 500000))`)

	var got []int
	filter := store.DLQFilter{Tenant: store.DefaultTenant(), Queue: "q", Limit: 1000}
	doc, err := b.store.DLQMessages(t.Context(), filter)
	for require.NoError(t, err); ; doc, err = b.store.DLQMessages(t.Context(), filter) {
		require.NoError(t, err)
		require.Less(t, len(doc), 10<<20)
		var page struct {
			Messages []struct{ Data struct{ N int } }
			Total    int
			Next     string
		}
		require.NoError(t, json.Unmarshal(doc, &page))
		require.Len(t, page.Messages, page.Total)
		require.NotEmpty(t, page.Messages)
		for _, m := range page.Messages {
			got = append(got, m.Data.N)
		}
		if page.Next == "" || len(got) >= 24 {
			break
		}
		filter.After = page.Next
	}
	require.Len(t, got, 24, "eight of them fill a page")
	for i, n := range got {
		require.Equal(t, letters-1-i, n, "each once, newest first")
	}

	b.exec(`UPDATE queen.log_dlq SET payload = jsonb_build_object('n', 29, 'fill', repeat('ab', 6000000)) WHERE (payload ->> 'n')::int = 29`)
	doc, err = b.store.DLQMessages(t.Context(), store.DLQFilter{Tenant: store.DefaultTenant(), Queue: "q", Limit: 1000})
	require.NoError(t, err)
	require.EqualValues(t, 1, object(t, doc)["total"], "the first is shown whatever it takes")
}

// What jsonb refuses is shown in the form it is stored in, and so is a payload
// that looks like that form: both can be told from any other.
func TestDeadLetterPayloadsAreShownAsTheyAreStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	b.exec(`INSERT INTO queen.log_consumers (partition_id) VALUES ($1)`, pid)
	raw := func(s string) string { return `{"$raw":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}` }
	payloads := []struct{ pushed, shown string }{
		{`{"a":1}`, `{"a":1}`},
		{`null`, `null`},
		{`"\u0000"`, raw(`"\u0000"`)},
		{`"\ud800"`, raw(`"\ud800"`)},
		{`1e999999`, raw(`1e999999`)},
		{`{"$raw":"aGk="}`, raw(`{"$raw":"aGk="}`)},
		{`{"$raw":"aGk=","more":1}`, `{"$raw":"aGk=","more":1}`},
	}
	for i, p := range payloads {
		out, err := b.store.DLQHead(t.Context(), store.DeadLetter{
			PartitionID: pid, Group: store.QueueModeGroup, Offset: int64(i), MessageID: uuid.New(), TransactionID: "t", Payload: []byte(p.pushed),
		})
		require.NoError(t, err, p.pushed)
		require.True(t, out.OK, "%s: %s", p.pushed, out.Error)
	}
	doc, err := b.store.DLQMessages(t.Context(), store.DLQFilter{Tenant: store.DefaultTenant()})
	require.NoError(t, err)
	var page struct {
		Messages []struct{ Data json.RawMessage }
	}
	require.NoError(t, json.Unmarshal(doc, &page))
	require.Len(t, page.Messages, len(payloads))
	for i, p := range payloads {
		require.JSONEq(t, p.shown, string(page.Messages[len(payloads)-1-i].Data), p.pushed)
	}
}
