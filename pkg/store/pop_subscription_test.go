package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// TestSubscriptionDecidesWhereAGroupStarts has segments at offsets 2 to 9 that
// are 3, 2 and 1 hours old, and looks at the cursor after the first contact.
func TestSubscriptionDecidesWhereAGroupStarts(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	stamp := func(age time.Duration, layout string) string { return time.Now().UTC().Add(-age).Format(layout) }
	const seconds, zoneless = "2006-01-02T15:04:05Z", "2006-01-02T15:04:05"
	tests := []struct {
		name, group, mode, from string
		single, wild            int64
		stored                  string
	}{
		{"all", "g", "all", "", -1, 1, "all"},
		{"empty mode", "g", "", "", -1, 1, "all"},
		{"unknown mode", "g", "from_beginning", "", -1, 1, "all"},
		{"new", "g", "new", "", 9, 9, "new"},
		{"new-only", "g", "new-only", "", 9, 9, "new"},
		{"from now", "g", "all", "now", 9, 9, "new"},
		{"timestamp", "g", "all", stamp(150*time.Minute, seconds), 4, 4, "timestamp"},
		{"timestamp beats mode", "g", "new", stamp(150*time.Minute, seconds), 4, 4, "timestamp"},
		{"timestamp without zone is UTC", "g", "all", stamp(150*time.Minute, zoneless), 4, 4, "timestamp"},
		{"timestamp with offset", "g", "all",
			time.Now().Add(-150 * time.Minute).In(time.FixedZone("", -5400)).Format(time.RFC3339), 4, 4, "timestamp"},
		{"timestamp whose plus became a blank", "g", "all",
			time.Now().UTC().Add(-30*time.Minute).Format("2006-01-02T15:04:05") + " 02:00", 4, 4, "timestamp"},
		{"timestamp before everything", "g", "all", "2020-01-01", 1, 1, "timestamp"},
		{"timestamp in the future", "g", "all", stamp(-time.Hour, seconds), 9, 9, "timestamp"},
		{"unreadable with all", "g", "all", "soon", -1, 9, "new"},
		{"unreadable with new", "g", "new", "soon", 9, 9, "new"},
		{"impossible date", "g", "all", "2026-13-45T00:00:00Z", -1, 9, "new"},
		{"words of PostgreSQL are no timestamps", "g", "all", "yesterday", -1, 9, "new"},
		{"queue mode ignores mode", store.QueueModeGroup, "new", "", -1, 1, "all"},
		{"queue mode ignores from", store.QueueModeGroup, "all", "now", -1, 1, "all"},
	}
	for i, tt := range tests {
		queue := "q" + string(rune('a'+i))
		lay := func(partition string) uuid.UUID {
			pid := b.lay(queue, partition, laid{2, 3, 3 * hour, nil}, laid{5, 3, 2 * hour, nil}, laid{8, 2, hour, nil})
			b.exec(`UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1`, pid)
			return pid
		}
		p := popArgs(tt.group, 1)
		p.SubMode, p.SubFrom = tt.mode, tt.from

		one := lay("one")
		b.specific(queue, "one", p)
		require.Equal(t, tt.single, b.cursor(one, tt.group).Committed, "%s: single partition", tt.name)
		require.Zero(t, b.count(`SELECT count(*) FROM queen.consumer_groups_metadata AS m JOIN queen.queues AS q ON q.id = m.queue_id
			WHERE q.name = $1`, queue), tt.name)

		many := []uuid.UUID{lay("x"), lay("y")}
		b.wildcard(queue, p)
		for _, pid := range many {
			require.Equal(t, tt.wild, b.cursor(pid, tt.group).Committed, "%s: wildcard", tt.name)
		}
		require.Equal(t, tt.single, b.cursor(one, tt.group).Committed, "%s: an existing cursor is never seeded again", tt.name)
		var stored string
		var epoch bool
		b.one([]any{&stored, &epoch}, `SELECT m.subscription_mode, m.subscription_timestamp = 'epoch'
			FROM queen.consumer_groups_metadata AS m JOIN queen.queues AS q ON q.id = m.queue_id
			WHERE q.name = $1 AND m.partition_name = '' AND m.namespace = '' AND m.task = ''`, queue)
		require.Equal(t, tt.stored, stored, tt.name)
		require.Equal(t, tt.stored == "all", epoch, tt.name)
	}
}

func TestTimestampsOfClientsAreReadWithoutRaising(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	want := "2026-03-01 08:00:00+00"
	for _, tt := range []struct {
		text string
		want any
	}{
		{"2026-03-01T08:00:00Z", want}, {"2026-03-01t08:00:00z", want}, {"2026-03-01T08:00Z", want},
		{"2026-03-01 08:00:00", want}, {" 2026-03-01T08:00:00Z ", want}, {"2026-03-01T10:30:00+02:30", want},
		{"2026-03-01T10:30:00+0230", want}, {"2026-03-01T10:00:00+02", want}, {"2026-03-01T06:00:00-02:00", want},
		{"2026-03-01T10:00:00 02:00", want}, {"2026-03-01T08:00:00.000Z", want}, {"2026-03-01", "2026-03-01 00:00:00+00"},
		{"", nil}, {"now", nil}, {"infinity", nil}, {"2026-02-30T00:00:00Z", nil}, {"2026-03-01T25:00:00Z", nil},
		{"2026-03-01T08:00:00+99:00", nil}, {"1772352000", nil}, {"2026-03-01T08:00:00 Europe/Rome", nil}, {"01/03/2026", nil},
	} {
		var got *string
		b.inTx(func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL TimeZone = 'Asia/Tokyo'; SET LOCAL DateStyle = 'SQL, DMY'`); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `SELECT to_char(queen.try_timestamptz($1) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"+00"')`, tt.text).Scan(&got)
		})
		if tt.want == nil {
			require.Nil(t, got, tt.text)
			continue
		}
		require.NotNil(t, got, tt.text)
		require.Equal(t, tt.want, *got, tt.text)
	}
}

func TestStoredRecordBeatsWhatALaterPopCarries(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.lay("q", "old", laid{0, 2, hour, nil})
	p := popArgs("g", 10)
	p.SubMode = "new"
	require.Empty(t, b.wildcard("q", p))

	b.lay("q", "later", laid{0, 3, 0, nil})
	b.lay("q", "later still", laid{0, 1, 2 * hour, nil}, laid{1, 3, 0, nil})
	b.lay("q", "nothing since", laid{0, 1, 2 * hour, nil})
	p.SubMode, p.SubFrom = "all", ""
	require.Equal(t, []span{{"later", 0, 2}}, b.specific("q", "later", p), "all that was pushed after the registration")
	require.Equal(t, []span{{"later still", 1, 3}}, spans(b.list("q", []string{"later still"}, p).Claimed))
	require.Empty(t, b.specific("q", "nothing since", p))
	require.Empty(t, b.specific("q", "old", p))

	p = popArgs("everything", 10)
	b.wildcard("q", p)
	b.lay("q", "born later", laid{0, 1, 3 * hour, nil})
	p.SubMode = "new"
	require.Equal(t, []span{{"born later", 0, 0}}, b.specific("q", "born later", p), "an all group gets everything")
}

func TestWildcardPopOfAnUnknownQueueCreatesAndRegistersIt(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	require.Empty(t, b.wildcard("billing.invoices.eu", popArgs("g", 1)))
	require.Empty(t, b.wildcard("plain", popArgs("g", 1)))
	require.Empty(t, b.wildcard("", popArgs("g", 1)))
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.queues`))
	var namespace, task string
	var lease int
	b.one([]any{&namespace, &task, &lease}, `SELECT namespace, task, lease_time FROM queen.queues WHERE name = 'billing.invoices.eu'`)
	require.Equal(t, []any{"billing", "invoices", 60}, []any{namespace, task, lease})
	b.one([]any{&namespace, &task}, `SELECT namespace, task FROM queen.queues WHERE name = 'plain'`)
	require.Equal(t, []string{"plain", ""}, []string{namespace, task})

	p := popArgs("g", 5)
	p.SubMode = "new"
	b.queued(fresh("plain", "p", 2))
	require.Equal(t, []span{{"p", 0, 1}}, b.wildcard("plain", p), "subscribed before the first push")
}

// TestRegistrationInFlightIsNeitherWaitedForNorAnticipated holds the
// uncommitted registration of a new group: nobody may wait, make cursors of
// their own, or deliver what the record will exclude.
func TestRegistrationInFlightIsNeitherWaitedForNorAnticipated(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 2, hour, nil})
	release := b.hold(`SELECT queen.log_pop_wildcard_wire_v1('q', 'g', 10, 0, 'first', FALSE, 0, 'new', '')`)
	require.Empty(t, b.wildcard("q", popArgs("g", 10)))
	require.Empty(t, b.specific("q", "p", popArgs("g", 10)))
	r := b.list("q", []string{"p"}, popArgs("g", 10))
	require.Empty(t, r.Claimed)
	require.True(t, r.Unseeded)
	require.Equal(t, "leased", r.States[0].State)
	require.True(t, r.States[0].Locked)
	require.Zero(t, b.cursors(pid))
	release()

	require.Empty(t, b.wildcard("q", popArgs("g", 10)), "the record says new")
	require.Equal(t, int64(1), b.cursor(pid, "g").Committed)
	require.False(t, b.list("q", []string{"p"}, popArgs("g", 10)).Unseeded)
}

func TestConcurrentFirstPopsOfANewGroupDeliverNothingOldAndLoseNothingNew(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	for i := range 20 {
		b.lay("q", "old"+string(rune('a'+i)), laid{0, 5, hour, nil})
	}
	var mu sync.Mutex
	got := map[string]int{}
	add := func(popped []store.Popped) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range spans(popped) {
			for off := s.first; off <= s.last; off++ {
				got[s.partition]++
				if s.partition[:3] == "old" && off < 5 {
					got["too old"]++
				}
			}
		}
	}
	p := popArgs("g", 100)
	p.SubMode, p.AutoAck = "new", true
	first, ctx := errgroup.WithContext(t.Context())
	for range 8 {
		first.Go(func() error {
			popped, err := b.store.PopWildcard(ctx, "q", p)
			add(popped)
			return err
		})
	}
	require.NoError(t, first.Wait())
	require.Empty(t, got)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.consumer_groups_metadata`))

	var segs []store.PushSegment
	for i := range 20 {
		segs = append(segs, fresh("q", "old"+string(rune('a'+i)), 2), fresh("q", "new"+string(rune('a'+i)), 3))
	}
	b.push(segs...)
	for {
		popped, err := b.store.PopWildcard(t.Context(), "q", p)
		require.NoError(t, err)
		if len(popped) == 0 {
			break
		}
		add(popped)
	}
	require.Zero(t, got["too old"])
	require.Len(t, got, 40)
	for partition, n := range got {
		require.Equal(t, map[string]int{"old": 2, "new": 3}[partition[:3]], n, partition)
	}
}

func TestBulkSeedOfAHundredThousandLanes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 120000 lanes")
	}
	b := setupPop(t)
	b.lay("q", "p", laid{0, 1, hour, nil})
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, log_start)
		SELECT q.id, 'l' || g, 4, 5 FROM queen.queues AS q, generate_series(1, 119999) AS g`)
	p := popArgs("g", 5)
	p.SubMode = "new"
	require.Empty(t, b.wildcard("q", p), "more than one statement seeds: the rest follows in pages")
	require.Equal(t, int64(120000), b.count(`SELECT count(*) FROM queen.log_consumers AS c JOIN queen.log_partitions AS p
		ON p.id = c.partition_id WHERE c.consumer_group = 'g' AND c.committed = p.last_offset`))
	pending, err := b.store.HasPending(t.Context(), store.DefaultTenant(), "q", "g")
	require.NoError(t, err)
	require.False(t, pending)
}
