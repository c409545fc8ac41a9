package store_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// registered makes the record of a group for a queue, without which no shared claim
// serves it.
func (b *popBench) registered(queue, group string) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.consumer_groups_metadata
			(tenant_id, consumer_group, queue_id, partition_name, namespace, task, subscription_mode, subscription_timestamp)
		SELECT tenant_id, $2, id, '', '', '', 'all', '1970-01-01' FROM queen.queues WHERE name = $1`, queue, group)
}

func claims(budget int, partitions ...string) store.MultiPop {
	m := store.MultiPop{Tenant: store.DefaultTenant(), Queue: "q", Group: "g"}
	for _, p := range partitions {
		m.Claims = append(m.Claims, store.PopClaim{Partition: p, Budget: budget, Worker: "w-" + p, MaxBytes: 1 << 24})
	}
	return m
}

func (b *popBench) multi(m store.MultiPop) []store.PopServed {
	b.t.Helper()
	served, err := b.store.PopMulti(b.t.Context(), m)
	require.NoError(b.t, err)
	require.Len(b.t, served, len(m.Claims))
	return served
}

// spansOf are what the claims got, nil for nothing.
func spansOf(served []store.PopServed) [][]span {
	out := make([][]span, len(served))
	for i := range served {
		out[i] = spans([]store.Popped{served[i].Popped})
	}
	return out
}

// lanes lays n messages into each lane, in segments of up to three, behind cursors.
func (b *popBench) lanes(n int64, partitions ...string) map[string]uuid.UUID {
	b.t.Helper()
	pids := make(map[string]uuid.UUID)
	for _, p := range partitions {
		for base := int64(0); base < n; base += 3 {
			pids[p] = b.lay("q", p, laid{base, min(3, n-base), hour, nil})
		}
		b.start(pids[p], "g", -1)
	}
	b.registered("q", "g")
	return pids
}

func TestClaimsShareATransaction(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(7, "a", "b", "c")
	m := claims(4, "b", "a", "c")
	m.Claims[1].Budget, m.Claims[1].LeaseSeconds = 100, 7
	m.Claims[2].Budget = 0 // one message, as everywhere
	served := b.multi(m)
	require.Equal(t, [][]span{{{"b", 0, 3}}, {{"a", 0, 6}}, {{"c", 0, 0}}}, spansOf(served))
	for i, p := range []string{"b", "a", "c"} {
		require.Equal(t, pids[p], served[i].PartitionID)
		require.Equal(t, 1, served[i].DeliveryAttempt)
		require.Equal(t, int64(6), served[i].LastOffset)
	}
	require.Equal(t, popCursor{Committed: -1, BatchEnd: 3, Worker: "w-b", Attempts: 1, LeaseSeconds: 60}, b.cursor(pids["b"], "g"))
	require.Equal(t, popCursor{Committed: -1, BatchEnd: 6, Worker: "w-a", Attempts: 1, LeaseSeconds: 7}, b.cursor(pids["a"], "g"))
	require.Equal(t, [][]span{nil, nil, nil}, spansOf(b.multi(m)), "all are leased")

	b.expire(pids["b"])
	served = b.multi(claims(2, "a", "b"))
	require.Equal(t, [][]span{nil, {{"b", 0, 1}}}, spansOf(served))
	require.Equal(t, 2, served[1].DeliveryAttempt)

	var started int64
	b.one([]any{&started}, `SELECT count(DISTINCT xmin::text) FROM queen.log_consumers WHERE consumer_group = 'g'`)
	require.Equal(t, int64(2), started, "one transaction for each call that claimed")
}

func TestASharedClaimLeavesAloneWhatItDoesNotServe(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"no cursor yet":     `DELETE FROM queen.log_consumers`,
		"nothing pending":   `UPDATE queen.log_consumers SET committed = 6`,
		"leased":            `UPDATE queen.log_consumers SET worker_id = 'x', lease_expires_at = now() + interval '1 minute'`,
		"a delay":           `UPDATE queen.queues SET delayed_processing = 1`,
		"a window buffer":   `UPDATE queen.queues SET window_buffer = 1`,
		"not registered":    `DELETE FROM queen.consumer_groups_metadata`,
		"retention took it": `DELETE FROM queen.log_segments`,
		"no such queue":     `UPDATE queen.queues SET name = 'other'`,
		"no such lane":      `UPDATE queen.log_partitions SET name = 'other'`,
		"another tenant":    `UPDATE queen.queues SET tenant_id = gen_random_uuid()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupPop(t)
			b.lanes(7, "a")
			b.exec(before)
			const row = `SELECT COALESCE(string_agg(c::text, ''), '') FROM queen.log_consumers AS c`
			var was, is string
			b.one([]any{&was}, row)
			require.Equal(t, [][]span{nil}, spansOf(b.multi(claims(4, "a"))))
			b.one([]any{&is}, row)
			require.Equal(t, was, is, "nothing was touched")
		})
	}
	t.Run("a window that the ring has applied", func(t *testing.T) {
		t.Parallel()
		b := setupPop(t)
		b.lanes(7, "a")
		b.option("q", "window_buffer", 1)
		m := claims(4, "a")
		m.Claims[0].SkipWindow = true
		require.Equal(t, [][]span{{{"a", 0, 3}}}, spansOf(b.multi(m)))
	})
	t.Run("a locked cursor", func(t *testing.T) {
		t.Parallel()
		b := setupPop(t)
		pids := b.lanes(7, "a", "b")
		release := b.hold(`SELECT FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, pids["a"])
		require.Equal(t, [][]span{nil, {{"b", 0, 3}}}, spansOf(b.multi(claims(4, "a", "b"))))
		release()
		require.Equal(t, [][]span{{{"a", 0, 3}}}, spansOf(b.multi(claims(4, "a"))))
	})
}

func TestASharedClaimKeepsItsBounds(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob, decoded := packed(t, 3, 1000)
	per := decoded / 3
	pids := make(map[string]uuid.UUID)
	for _, lane := range []string{"a", "b"} {
		pids[lane] = b.lay("q", lane, laid{0, 3, hour, blob}, laid{3, 3, hour, blob}, laid{6, 3, hour, blob})
	}
	b.registered("q", "g")
	for _, tt := range []struct {
		bytes  int64
		budget int
		want   int64
	}{
		{1, 9, 1}, {per, 9, 1}, {2*per - 1, 9, 1}, {2 * per, 9, 2}, {decoded - 1, 9, 2}, {decoded, 9, 3}, {decoded + per - 1, 9, 3},
		{decoded + per, 9, 4}, {3 * decoded, 9, 9}, {3 * decoded, math.MaxInt, 9}, {3 * decoded, 4, 4}, {decoded, 4, 3}, {4 * per, 3, 3},
	} {
		for _, pid := range pids {
			b.start(pid, "g", -1)
		}
		b.exec(`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL`)
		m := claims(tt.budget, "a", "b")
		m.Claims[0].MaxBytes = tt.bytes
		want := [][]span{{{"a", 0, tt.want - 1}}, {{"b", 0, int64(min(tt.budget, 9)) - 1}}}
		require.Equal(t, want, spansOf(b.multi(m)), "%d bytes, %d messages", tt.bytes, tt.budget)
		require.Equal(t, tt.want-1, b.cursor(pids["a"], "g").BatchEnd)
	}
}

func TestASharedClaimLeavesOutWhatIsKnown(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(6, "a", "b")
	m := claims(6, "a", "b")
	m.AutoAck = true
	m.Claims[0].Budget = 4
	first := b.multi(m)[0]
	require.Equal(t, popCursor{Committed: 3, Consumed: 4}, b.cursor(pids["a"], "g"), "nothing is leased")
	require.Equal(t, popCursor{Committed: 5, Consumed: 6}, b.cursor(pids["b"], "g"))
	m = claims(6, "a")
	known := store.KnownSegment{PartitionID: pids["a"], Base: 3, CreatedAt: first.Segments[1].CreatedAt}
	m.Claims[0].Known = []store.KnownSegment{known}
	got := b.multi(m)[0].Segments
	require.Len(t, got, 1)
	require.Nil(t, got[0].Blob)
	require.Equal(t, []int{1, 2, 3}, []int{got[0].Start, got[0].Take, got[0].Count})
}

func TestALaneMayBeNamedOnce(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.lanes(6, "a")
	_, err := b.store.PopMulti(t.Context(), claims(1, "a", "a"))
	require.ErrorContains(t, err, `"a" is named twice`)
}

// A claim of one lane gives what the set's does, whatever has happened to the lane.
func TestASharedClaimGivesWhatTheSetGives(t *testing.T) {
	t.Parallel()
	for _, budget := range []int{1, 2, 5, 100} {
		t.Run(strconv.Itoa(budget), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			one, set := b.twin("one", ""), b.twin("set", "")
			for i := range 4 {
				p := store.Pop{
					Tenant: store.DefaultTenant(), Group: "g", Worker: "w", SubMode: "all", MaxPartitions: 2, Budget: budget, AutoAck: i%2 == 1,
				}
				listed, err := b.store.PopList(t.Context(), "set", []string{"p"}, false, p)
				require.NoError(t, err)
				served, err := b.store.PopMulti(t.Context(), store.MultiPop{
					Tenant: p.Tenant, Queue: "one", Group: "g", AutoAck: p.AutoAck,
					Claims: []store.PopClaim{{Partition: "p", Budget: budget, Worker: "w", MaxBytes: 1 << 24}},
				})
				require.NoError(t, err)
				var got store.PopListResult
				if len(served[0].Segments) > 0 {
					got.Claimed = []store.Popped{served[0].Popped}
					require.Equal(t, listed.States[0].LastOffset, served[0].LastOffset)
				}
				require.ElementsMatch(t, neutral(listed).Claimed, neutral(got).Claimed, "pop %d", i)
				require.Equal(t, b.cursor(set), b.cursor(one), "pop %d", i)
				b.exec(`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 second' WHERE worker_id IS NOT NULL`)
			}
		})
	}
}

func TestAcksAndPopsShareATransaction(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(7, "a", "b", "c")
	b.multi(claims(2, "a", "b", "c"))
	ack := func(lane, worker string) store.AckRow {
		return store.AckRow{PartitionID: pids[lane], Group: "g", Worker: worker, End: 1, Count: 2}
	}
	next := claims(3, "a", "b", "c")
	for i := range next.Claims {
		next.Claims[i].Worker = "next"
	}
	out, served, err := b.store.AckAndPop(t.Context(), []store.AckRow{ack("a", "w-a"), ack("b", "somebody")}, false,
		store.Next{Pops: []store.MultiPop{next, claims(1, "none")}})
	require.NoError(t, err)
	require.True(t, out[0].OK)
	require.False(t, out[1].OK)
	require.Empty(t, served.Handed)
	require.Equal(t, [][]span{{{"a", 2, 4}}, nil, nil}, spansOf(served.Pops[0]), "only what was acknowledged is free")
	require.Equal(t, [][]span{nil}, spansOf(served.Pops[1]))
	require.Equal(t, popCursor{Committed: 1, BatchEnd: 4, AttemptOffset: 2, Consumed: 2, Worker: "next", Attempts: 1, LeaseSeconds: 60}, b.cursor(pids["a"], "g"))

	// One row, which is another statement.
	out, served, err = b.store.AckAndPop(t.Context(), []store.AckRow{ack("b", "w-b")}, true, store.Next{Pops: []store.MultiPop{claims(1, "b")}})
	require.NoError(t, err)
	require.True(t, out[0].OK)
	require.Equal(t, [][]span{{{"b", 2, 2}}}, spansOf(served.Pops[0]))

	// Both or nothing: the pop is refused after the ack was carried out.
	poison := claims(1, "c")
	poison.Claims[0].Worker = "no\x00text"
	_, _, err = b.store.AckAndPop(t.Context(), []store.AckRow{ack("c", "w-c")}, true, store.Next{Pops: []store.MultiPop{poison}})
	require.Error(t, err)
	require.Equal(t, int64(-1), b.cursor(pids["c"], "g").Committed)
}
