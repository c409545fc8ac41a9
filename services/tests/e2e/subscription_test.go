package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestFirstPopDecidesWhereAGroupStarts pushes 0..2 before the group's first
// pop and 3 after it, over each route, and compares what the group sees.
func TestFirstPopDecidesWhereAGroupStarts(t *testing.T) {
	t.Parallel()
	all, tail := numbers(0, 4), numbers(3, 4)
	cases := map[string]struct {
		query string
		want  []string
	}{
		"no intent follows the broker's default, all": {"consumerGroup=g", all},
		"all":                                   {"consumerGroup=g&subscriptionMode=all", all},
		"from_beginning":                        {"consumerGroup=g&subscriptionMode=from_beginning", all},
		"any other word":                        {"consumerGroup=g&subscriptionMode=whatever", all},
		"new":                                   {"consumerGroup=g&subscriptionMode=new", tail},
		"new-only":                              {"consumerGroup=g&subscriptionMode=new-only", tail},
		"now":                                   {"consumerGroup=g&subscriptionFrom=now", tail},
		"new and now":                           {"consumerGroup=g&subscriptionMode=new&subscriptionFrom=now", tail},
		"now beats all":                         {"consumerGroup=g&subscriptionMode=all&subscriptionFrom=now", tail},
		"an old instant":                        {"consumerGroup=g&subscriptionFrom=2001-02-03T04:05:06Z", all},
		"an old instant with an offset":         {"consumerGroup=g&subscriptionFrom=" + url.QueryEscape("2001-02-03T04:05:06+05:30"), all},
		"an old instant with a fraction":        {"consumerGroup=g&subscriptionFrom=2001-02-03T04:05:06.123456Z", all},
		"an old instant beats new":              {"consumerGroup=g&subscriptionMode=new&subscriptionFrom=2001-02-03T04:05:06Z", all},
		"a later instant":                       {"consumerGroup=g&subscriptionFrom=2999-01-01T00:00:00Z", tail},
		"an empty instant is absent":            {"consumerGroup=g&subscriptionFrom=", all},
		"an empty mode is absent":               {"consumerGroup=g&subscriptionMode=", all},
		"queue mode starts at the oldest":       {"", all},
		"queue mode ignores new":                {"subscriptionMode=new", all},
		"queue mode ignores now":                {"subscriptionFrom=now", all},
		"queue mode ignores an instant":         {"subscriptionFrom=2999-01-01T00:00:00Z", all},
		"queue mode by its own name ignores it": {"consumerGroup=__QUEUE_MODE__&subscriptionMode=new", all},
	}
	routes := map[string]func(q, query string) string{
		"wildcard":  harness.PopPath,
		"partition": func(q, query string) string { return harness.PopPartitionPath(q, "Default", query) },
		"discovery": func(q, query string) string { return "/api/v1/pop?namespace=" + q + "&" + query },
	}
	for route, path := range routes {
		for name, c := range cases {
			t.Run(route+"/"+name, func(t *testing.T) {
				t.Parallel()
				b, q := shared(t)
				b.PushEach(t, q, "", 3)
				got := drain(t, b, path(q, c.query+"&batch=2"))
				b.PushQueued(t, harness.Item{Queue: q, Payload: 3})
				// Later pops carry no intent at all.
				group := ""
				if strings.HasPrefix(c.query, "consumerGroup=g") {
					group = "consumerGroup=g&"
				}
				got = append(got, drain(t, b, path(q, group+"batch=2"))...)
				require.Equal(t, c.want, got)
			})
		}
	}
}

// drain pops until nothing is left.
func drain(t *testing.T, b *harness.Broker, path string) []string {
	t.Helper()
	var got []string
	for empty := 0; empty < 8; { // one broker may not have heard yet what another stored
		p, err := b.TryPop(t.Context(), path+"&autoAck=true")
		require.NoError(t, err)
		if len(p.Messages) > 0 {
			got, empty = append(got, p.Payloads()...), 0
			continue
		}
		empty++
		pause(t.Context())
	}
	return got
}

func TestSubscriptionFromAnInstantInsideTheLog(t *testing.T) {
	t.Parallel()
	for route, path := range map[string]func(q, query string) string{
		"wildcard":  harness.PopPath,
		"partition": func(q, query string) string { return harness.PopPartitionPath(q, "Default", query) },
	} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "", 6)
			// Segment n is from 10:00:00 plus n minutes.
			pid := b.DB.PartitionID(t, q, "Default")
			b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = '2020-06-01T10:00:00Z'::timestamptz + make_interval(mins => base_offset::int)
				WHERE partition_id = $1`, pid)
			for i, c := range []struct {
				from string
				want []string
			}{
				{"2020-06-01T10:02:00Z", numbers(2, 6)},
				{"2020-06-01T10:02:00.000001Z", numbers(3, 6)},
				{"2020-06-01T12:02:00+02:00", numbers(2, 6)},
				{"2020-06-01T05:31:59-04:30", numbers(2, 6)},
				{"2020-06-01T10:01:59.5Z", numbers(2, 6)},
				{"2020-06-01T10:05:00Z", numbers(5, 6)},
				{"2020-06-01T10:05:01Z", nil},
				{"2020-06-01T09:00:00Z", numbers(0, 6)},
			} {
				query := fmt.Sprintf("consumerGroup=g%d&subscriptionFrom=%s", i, url.QueryEscape(c.from))
				require.Equal(t, c.want, drain(t, b, path(q, query)), c.from)
			}
		})
	}
}

func TestInstantInsideASegmentStartsAtTheNextOne(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "", 3)
	p := b.Pop(t, q, "consumerGroup=probe")
	at := createdAt(t, p.Messages[0])
	b.PushQueued(t, harness.Item{Queue: q, Payload: 3})
	require.Equal(t, numbers(0, 4), drain(t, b, harness.PopPath(q, "consumerGroup=a&subscriptionFrom="+at.Format(time.RFC3339Nano))))
	require.Equal(t, numbers(3, 4), drain(t, b, harness.PopPath(q, "consumerGroup=b&subscriptionFrom="+at.Add(time.Microsecond).Format(time.RFC3339Nano))))
}

func TestUnreadableInstantNeverFailsThePop(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"yesterday", "2020-13-45T99:99:99Z", "'; DROP TABLE x", "12345678901234567890"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "", 1)
			query := "consumerGroup=g&subscriptionFrom=" + url.QueryEscape(from)
			drain(t, b, harness.PopPath(q, query))
			drain(t, b, harness.PopPartitionPath(q, "Default", query))
			b.PushQueued(t, harness.Item{Queue: q, Payload: "after"})
			require.Contains(t, drain(t, b, harness.PopPath(q, query)), `"after"`)
		})
	}
}

func TestGroupNewSeesEverythingAfterItRegistered(t *testing.T) {
	t.Parallel()
	for name, intent := range map[string]string{"new": "subscriptionMode=new", "now": "subscriptionFrom=now"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			for _, lane := range lanes(3) {
				b.PushEach(t, q, lane, 2)
			}
			b.RequireNone(t, harness.PopPath(q, "consumerGroup=g&partitions=0&"+intent))
			for _, lane := range lanes(5) { // two of them are born only now
				b.PushQueued(t, harness.Item{Queue: q, Partition: lane, Payload: lane})
			}
			got := drain(t, b, harness.PopPath(q, "consumerGroup=g&partitions=0"))
			require.ElementsMatch(t, []string{`"lane-00"`, `"lane-01"`, `"lane-02"`, `"lane-03"`, `"lane-04"`}, got)
		})
	}
}

func TestGroupNewRegistersOnAQueueThatDoesNotExistYet(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g&subscriptionMode=new"))
	b.PushEach(t, q, "p", 3)
	require.Equal(t, numbers(0, 3), drain(t, b, harness.PopPath(q, "consumerGroup=g")))
}

func TestStoredRecordBeatsLaterParameters(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ first, later, want string }{
		"new stays new":             {"subscriptionMode=new", "subscriptionMode=all", "late"},
		"new stays new for instant": {"subscriptionMode=new", "subscriptionFrom=2001-01-01T00:00:00Z", "late"},
		"all stays all":             {"subscriptionMode=all", "subscriptionMode=new", "late"},
		"all stays all for now":     {"subscriptionMode=all", "subscriptionFrom=now", "late"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "old", 2)
			drain(t, b, harness.PopPath(q, "consumerGroup=g&"+c.first))
			b.PushQueued(t, harness.Item{Queue: q, Partition: "born-later", Payload: c.want})
			require.Equal(t, []string{`"late"`}, drain(t, b, harness.PopPath(q, "consumerGroup=g&"+c.later)))
			b.PushQueued(t, harness.Item{Queue: q, Partition: "and-another", Payload: c.want})
			require.Equal(t, []string{`"late"`}, drain(t, b, harness.PopPartitionPath(q, "and-another", "consumerGroup=g&"+c.later)),
				"the single-partition route consults the record too")
		})
	}
}

func TestTimestampRecordGovernsLaterPartitions(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "old", 1)
	drain(t, b, harness.PopPath(q, "consumerGroup=g&subscriptionFrom=2020-06-01T10:00:00Z"))
	b.PushEach(t, q, "later", 3)
	b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = '2020-06-01T09:58:30Z'::timestamptz + make_interval(mins => base_offset::int)
		WHERE partition_id = $1`, b.DB.PartitionID(t, q, "later"))
	require.Equal(t, numbers(2, 3), drain(t, b, harness.PopPath(q, "consumerGroup=g&subscriptionMode=all")))
}

func TestDurableRecordOfEachMode(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	record := func(group string) (mode string, at time.Time) {
		t.Helper()
		b.DB.Row(t, `SELECT m.subscription_mode, m.subscription_timestamp FROM queen.consumer_groups_metadata m
			JOIN queen.queues q ON q.id = m.queue_id WHERE q.name = $1 AND m.consumer_group = $2 AND m.partition_name = ''`,
			[]any{q, group}, []any{&mode, &at})
		return mode, at.UTC()
	}
	b.Pop(t, q, "consumerGroup=all&subscriptionMode=all")
	mode, at := record("all")
	require.Equal(t, "all", mode)
	require.Equal(t, time.Unix(0, 0).UTC(), at)
	b.Pop(t, q, "consumerGroup=new&subscriptionMode=new")
	mode, at = record("new")
	require.Equal(t, "new", mode)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	b.Pop(t, q, "consumerGroup=ts&subscriptionFrom="+url.QueryEscape("2020-06-01T12:00:00+02:00"))
	mode, at = record("ts")
	require.Equal(t, "timestamp", mode)
	require.Equal(t, time.Date(2020, 6, 1, 10, 0, 0, 0, time.UTC), at)
}

func TestSinglePartitionFirstContactWritesNoRecord(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p1", 2)
	b.PushEach(t, q, "p2", 2)
	b.RequireNone(t, harness.PopPartitionPath(q, "p1", "consumerGroup=g&subscriptionMode=new"))
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.consumer_groups_metadata m
		JOIN queen.queues q ON q.id = m.queue_id WHERE q.name = $1 AND m.consumer_group = 'g'`, q))
	require.Equal(t, int64(1), b.DB.Committed(t, q, "p1", "g"), "only the named partition is seeded")
	require.Nil(t, b.DB.Cursor(t, q, "p2", "g"))

	got := drain(t, b, harness.PopPath(q, "consumerGroup=g&subscriptionMode=all&partitions=0"))
	require.Equal(t, numbers(0, 2), got, "a later wildcard pop may still choose: all of p2; the cursor of p1 is never seeded again")
}

func TestFirstWildcardPopSeedsEveryPartition(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(30) {
		b.PushEach(t, q, lane, 1)
	}
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g&subscriptionMode=new"))
	for _, lane := range lanes(30) {
		require.Equal(t, int64(0), b.DB.Committed(t, q, lane, "g"))
	}
}

func TestManyFirstContactsAtOnceAgree(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(20) {
		b.PushEach(t, q, lane, 1)
	}
	var wg sync.WaitGroup
	counts := make([]int, 12)
	for i := range counts {
		wg.Go(func() {
			p, err := b.TryPop(t.Context(), harness.PopPath(q, "consumerGroup=g&subscriptionMode=new&partitions=0"))
			if err != nil {
				t.Error(err)
			}
			counts[i] = len(p.Messages)
		})
	}
	wg.Wait()
	require.Equal(t, make([]int, 12), counts)
	for _, lane := range lanes(20) {
		b.PushQueued(t, harness.Item{Queue: q, Partition: lane, Payload: lane})
	}
	require.Len(t, drain(t, b, harness.PopPath(q, "consumerGroup=g&partitions=0")), 20)
}

func TestManyFirstContactsOfOnePartitionDeliverOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 5)
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			p, err := b.TryPop(t.Context(), harness.PopPartitionPath(q, "p", "consumerGroup=g&batch=5"))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, p.Payloads()...)
		})
	}
	wg.Wait()
	got = append(got, b.PopPartition(t, q, "p", "consumerGroup=g").Payloads()...) // all may have lost the election
	require.Equal(t, numbers(0, 5), got)
}

func TestSeedFollowsRetention(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 5)
	pid := b.DB.PartitionID(t, q, "p")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset < 3`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = 3 WHERE id = $1`, pid)
	for _, query := range []string{"consumerGroup=a&subscriptionMode=all", "consumerGroup=b&subscriptionFrom=2001-01-01T00:00:00Z", ""} {
		require.Equal(t, numbers(3, 5), drain(t, b, harness.PopPath(q, query)))
	}
}

func TestDefaultSubscriptionModeOfTheBroker(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, "DEFAULT_SUBSCRIPTION_MODE=new")
	q := queueName(t)
	b.PushEach(t, q, "", 2)
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
	require.Equal(t, numbers(0, 2), drain(t, b, harness.PopPath(q, "consumerGroup=asks&subscriptionMode=all")))
	require.Equal(t, numbers(0, 2), drain(t, b, harness.PopPath(q, "consumerGroup=dates&subscriptionFrom=2001-01-01T00:00:00Z")))
	require.Equal(t, numbers(0, 2), drain(t, b, harness.PopPath(q, "")), "queue mode has no default to follow")
	b.PushQueued(t, harness.Item{Queue: q, Payload: 2})
	require.Equal(t, numbers(2, 3), drain(t, b, harness.PopPath(q, "consumerGroup=g")))
}

func TestSubscriptionOfManyLanesToManyWorkers(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const lanesN, workers = 400, 10
	push := func(payload string) {
		items := make([]harness.Item, lanesN)
		for i := range items {
			items[i] = harness.Item{Queue: q, Partition: fmt.Sprintf("p%03d", i), Payload: payload}
		}
		b.PushQueued(t, items...)
	}
	push("old")
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g&subscriptionMode=new&batch=1"))
	push("new")
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for { // a worker ends when it has been idle for a while
				p, err := b.TryPop(t.Context(), harness.PopPath(q, "consumerGroup=g&subscriptionMode=new&batch=1&wait=true&timeout=3000"))
				if err != nil || len(p.Messages) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				seen[p.Partition+string(p.Messages[0].Data)]++
				mu.Unlock()
				if _, err := b.TryAck(t.Context(), "g", p.Acks("completed")...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, lanesN)
	for key, n := range seen {
		require.Equal(t, 1, n, key)
		require.Contains(t, key, `"new"`)
	}
}
