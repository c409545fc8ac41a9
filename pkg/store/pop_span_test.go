package store_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Both list pops must give the same slices, verdicts and cursors. One works row by
// row and the other on sets; what they are given here are pairs of equal queues.
func TestBothListPopsClaimTheSame(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	for n := range 100 {
		rng := rand.New(rand.NewPCG(7, uint64(n)))
		queues := [2]string{fmt.Sprintf("rows-%d", n), fmt.Sprintf("sets-%d", n)}
		names := b.mirrored(rng, queues)
		for i := range 4 {
			p := store.Pop{
				Tenant: store.DefaultTenant(), Group: "g", Worker: fmt.Sprint("w", i), SubMode: "all",
				Budget: rng.IntN(40), MaxPartitions: []int{0, 1 + rng.IntN(3), 2, len(names)}[rng.IntN(4)],
				AutoAck: rng.IntN(2) == 0, LeaseSeconds: []int{0, -1, 7}[rng.IntN(3)], MaxBytes: []int64{0, 1, int64(rng.IntN(4000))}[rng.IntN(3)],
			}
			rng.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
			skip := rng.IntN(2) == 0
			rows, err := b.store.PopList(t.Context(), queues[0], names, skip, p)
			require.NoError(t, err)
			sets, err := b.store.PopListDocuments(t.Context(), queues[1], names, skip, p)
			require.NoError(t, err)
			require.Equal(t, ordered(sets), ordered(rows), "queue %d, pop %d: %+v", n, i, p)
			require.Equal(t, b.readings(queues[1]), b.readings(queues[0]), "queue %d, pop %d: %+v", n, i, p)
			if rng.IntN(2) == 0 {
				b.exec(`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 second' WHERE worker_id = 'w0'`)
			}
		}
	}
}

// mirrored lays the same lanes in two queues: with whole segments and parts of
// them, gaps, leases, nothing pending, emptied by retention, new to the group and
// lanes that are missing.
func (b *popBench) mirrored(rng *rand.Rand, queues [2]string) []string {
	b.t.Helper()
	names := []string{"missing"}
	for i := range 1 + rng.IntN(6) {
		name := fmt.Sprintf("lane-%d", i)
		names = append(names, name)
		var segs []laid
		base := int64(rng.IntN(2) * 5)
		for range rng.IntN(5) {
			n := int64(1 + rng.IntN(9))
			segs = append(segs, laid{base, n, hour, header(rng, int(n))})
			base += n + int64(rng.IntN(3)/2*4)
		}
		committed, special := int64(rng.IntN(int(base)+1))-1, rng.IntN(12)
		for _, q := range queues {
			pid := b.lay(q, name, segs...)
			if special > 1 {
				b.start(pid, "g", committed)
			}
			switch special {
			case 2:
				b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1`, pid)
			case 3, 4:
				b.exec(`UPDATE queen.log_consumers SET worker_id = 'other', batch_end = committed + 1, attempt_offset = committed + 1,
					attempt_count = 1, lease_expires_at = now() + interval '1 hour' WHERE partition_id = $1`, pid)
			}
		}
	}
	option, value := []string{"delayed_processing", "window_buffer", "lease_time"}[rng.IntN(3)], []int{0, 0, 0, 5}[rng.IntN(4)]
	unknown := rng.IntN(8) == 0
	for _, q := range queues {
		b.option(q, option, value)
		if !unknown {
			b.registered(q, "g")
		}
	}
	return names
}

// header is a blob of a few bytes that says how long it is when decoded, in each of
// the ways that there are.
func header(rng *rand.Rand, n int) []byte {
	switch rng.IntN(5) {
	case 0:
		return []byte{1} // not one of ours
	case 1:
		return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, byte(n * 20), 1, 2, 3}
	case 2:
		return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x60, byte(n), 1, 2, 3}
	case 3:
		return []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, byte(n), 3, 0, 0, 1, 2}
	default:
		return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, byte(n * 20)}
	}
}

// ordered is an answer without what two queues cannot share, its verdicts sorted.
func ordered(r store.PopListResult) store.PopListResult {
	r = neutral(r)
	for i := range r.States {
		if !r.States[i].Until.IsZero() {
			r.States[i].Until = time.Unix(1, 0)
		}
	}
	slices.SortFunc(r.States, func(a, b store.CandidateState) int { return cmp.Compare(a.Partition, b.Partition) })
	if len(r.Claimed) == 0 {
		r.Claimed = nil
	}
	return r
}

// readings is what the cursors of a queue say that were read with. How far a claim
// looks for lanes that are new to the group is its own business.
func (b *popBench) readings(queue string) (text string) {
	b.t.Helper()
	b.one([]any{&text}, `SELECT COALESCE(string_agg(format('%s: %s %s %s %s %s %s %s', p.name, c.committed, c.batch_end, c.worker_id,
			c.attempt_offset, c.attempt_count, c.total_consumed, round(extract(epoch FROM c.lease_expires_at - c.lease_acquired_at))),
			E'\n' ORDER BY p.name), '')
		FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id JOIN queen.queues AS q ON q.id = p.queue_id
		WHERE q.name = $1 AND (c.worker_id IS NOT NULL OR c.attempt_count > 0 OR c.total_consumed > 0)`, queue)
	return text
}

func listArgs(budget, lanes int) store.Pop {
	p := popArgs("g", budget)
	p.MaxPartitions, p.SubMode, p.LeaseSeconds = lanes, "all", 60
	return p
}

func states(r store.PopListResult) map[string]string {
	out := map[string]string{}
	for _, s := range r.States {
		out[s.Partition] = s.State
		if s.Locked {
			out[s.Partition] = "locked"
		}
	}
	return out
}

func TestListPopLocksNoMoreThanItClaims(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		b.start(b.lay("q", name, laid{0, 5, hour, nil}, laid{5, 5, hour, nil}), "g", -1)
	}
	b.registered("q", "g")
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	tx, err := session.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT * FROM queen.log_pop_span_v1('q', 'g', ARRAY['a', 'b', 'c', 'd'], 15, 60, 'w', FALSE, 0, 'all', '', FALSE,
		'00000000-0000-0000-0000-000000000001', NULL, NULL)`)
	require.NoError(t, err)
	other := b.list("q", []string{"a", "b", "c", "d"}, listArgs(100, 4))
	require.Equal(t, []span{{"c", 0, 9}, {"d", 0, 9}}, spans(other.Claimed))
	require.Equal(t, map[string]string{"a": "locked", "b": "locked", "c": "took", "d": "took"}, states(other))
	for _, s := range other.States {
		require.Equal(t, s.Locked, !s.Until.IsZero(), "until when a lane may be locked")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, session.Close(t.Context()))
	require.Equal(t, []span{{"a", 0, 9}}, spans(b.list("q", []string{"a", "b"}, listArgs(100, 1)).Claimed))
}

// A lane that is new to the group, or that retention has emptied, is not what the
// quick claim is made for. It must come to its turn all the same.
func TestListPopComesToNewAndEmptiedLanes(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.start(b.lay("q", "old", laid{0, 5, hour, nil}), "g", -1)
	b.lay("q", "new", laid{0, 3, hour, nil})
	b.lay("q", "another", laid{0, 1, hour, nil})
	emptied := b.lay("q", "emptied", laid{0, 9, hour, nil})
	b.start(emptied, "g", 2)
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1`, emptied)
	b.registered("q", "g")
	names := []string{"new", "emptied", "old", "another"}
	first := b.list("q", names, listArgs(100, 2))
	require.Equal(t, []span{{"new", 0, 2}, {"old", 0, 4}}, spans(first.Claimed))
	require.Equal(t, map[string]string{"new": "took", "emptied": "empty", "old": "took"}, states(first))
	require.Equal(t, int64(8), b.cursor(emptied, "g").Committed)
	second := b.list("q", names, listArgs(100, 4))
	require.Equal(t, []span{{"another", 0, 0}}, spans(second.Claimed))
	require.Equal(t, map[string]string{"new": "leased", "emptied": "empty", "old": "leased", "another": "took"}, states(second))
	third := b.list("q", names, listArgs(100, 4))
	require.Empty(t, third.Claimed)
	require.Equal(t, map[string]string{"new": "leased", "emptied": "empty", "old": "leased", "another": "leased"}, states(third))
}

func TestListPopLeavesOutWhatTheCallerHolds(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.start(b.lay("q", "p", laid{0, 2, hour, []byte("one")}, laid{2, 2, 2 * hour, []byte("two")}), "g", -1)
	b.registered("q", "g")
	p := listArgs(100, 4)
	p.LeaseSeconds = 1
	all := b.list("q", []string{"p"}, p).Claimed[0]
	b.expire(all.PartitionID)
	p.Known = []store.KnownSegment{
		{PartitionID: all.PartitionID, Base: 2, CreatedAt: all.Segments[1].CreatedAt},
		{PartitionID: uuid.New(), CreatedAt: "2020-01-01T00:00:00.000000Z"},
	}
	again := b.list("q", []string{"p"}, p).Claimed[0]
	require.Equal(t, []byte("one"), again.Segments[0].Blob)
	require.Nil(t, again.Segments[1].Blob)
	require.Equal(t, 2, again.DeliveryAttempt)
	require.Equal(t, all.Segments[1].CreatedAt, again.Segments[1].CreatedAt)
	p.Known = []store.KnownSegment{{CreatedAt: "yesterday"}}
	_, err := b.store.PopList(t.Context(), "q", []string{"p"}, false, p)
	require.Error(t, err)
}
