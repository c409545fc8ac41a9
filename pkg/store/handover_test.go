package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// handover leases the offsets behind the batch of a row up to until, out of the
// stored segment that begins at base, to worker "next".
func (b *popBench) handover(row int, r store.AckRow, base, until int64) store.Handover {
	b.t.Helper()
	var at string
	b.one([]any{&at}, `SELECT queen.iso_us_v1(created_at) FROM queen.log_segments WHERE partition_id = $1 AND base_offset = $2`, r.PartitionID, base)
	return store.Handover{
		Row: row, Worker: "next", Until: until,
		Segment: store.KnownSegment{PartitionID: r.PartitionID, Base: base, CreatedAt: at},
	}
}

func (b *popBench) ackAndPop(rows []store.AckRow, next store.Next) ([]store.AckOutcome, store.NextServed) {
	b.t.Helper()
	out, served, err := b.store.AckAndPop(b.t.Context(), rows, true, next)
	require.NoError(b.t, err)
	require.Len(b.t, out, len(rows))
	require.Len(b.t, served.Handed, len(next.Handovers))
	require.Len(b.t, served.Pops, len(next.Pops))
	return out, served
}

// rows are all of log_consumers as text, and so is what tells who has locked them.
func (b *popBench) rows() (text string) {
	b.t.Helper()
	b.one([]any{&text}, `SELECT COALESCE(string_agg(concat(c, ' ', xmin, ' ', xmax), E'\n' ORDER BY partition_id, consumer_group), '') FROM queen.log_consumers AS c`)
	return text
}

func moved(count int64) store.AckOutcome {
	return store.AckOutcome{OK: true, Acked: count, Released: true}
}

var busy = store.AckOutcome{Error: store.AckBusy}

func TestAHandoverMovesTheCursor(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lanes(7, "a")["a"]
	b.registered("q", "h")
	for _, tt := range []struct {
		name                string
		queue, lease        int
		base, until, leased int64
	}{
		{"by default", 0, 0, 0, 1, 60},
		{"by the queue", 7, 0, 0, 2, 7},
		{"by the claim", 7, 9, 0, 1, 9},
		{"a negative one", 7, -1, 0, 1, 7},
	} {
		b.option("q", "lease_time", tt.queue)
		b.exec(`DELETE FROM queen.log_consumers`)
		b.leased(pid, "g", "w", -1, 0)
		row := wholeRow(pid, "g", "w", 0, 1)
		h := b.handover(0, row, tt.base, tt.until)
		h.LeaseSeconds = tt.lease
		out, served := b.ackAndPop([]store.AckRow{row}, store.Next{Handovers: []store.Handover{h}})
		require.Equal(t, []store.AckOutcome{moved(1)}, out, tt.name)
		require.Equal(t, []int64{6}, served.Handed, tt.name)
		require.Equal(t, popCursor{
			Committed: 0, BatchEnd: tt.until, AttemptOffset: 1, Consumed: 11, Worker: "next", Attempts: 1, LeaseSeconds: int(tt.leased),
		}, b.cursor(pid, "g"), tt.name)
		require.InDelta(t, tt.leased, b.seconds(pid, "g"), 5, tt.name)
	}

	// And on: into the next segment, and to the end of the lane. No count is none.
	for _, step := range []struct {
		end, base, until int64
		count            int
	}{{1, 0, 2, 1}, {2, 3, 5, -3}, {5, 6, 6, 3}} {
		row := wholeRow(pid, "g", "next", step.end, step.count)
		out, served := b.ackAndPop([]store.AckRow{row}, store.Next{Handovers: []store.Handover{b.handover(0, row, step.base, step.until)}})
		require.Equal(t, []store.AckOutcome{moved(int64(max(step.count, 0)))}, out)
		require.Equal(t, []int64{6}, served.Handed)
		require.Equal(t, step.until, b.cursor(pid, "g").BatchEnd)
	}
	require.Equal(t, popCursor{Committed: 5, BatchEnd: 6, AttemptOffset: 6, Consumed: 15, Worker: "next", Attempts: 1, LeaseSeconds: 7}, b.cursor(pid, "g"))

	// What it leases is a lease like any other: it runs out, and is delivered again.
	b.expire(pid)
	served := b.multi(claims(5, "a"))
	require.Equal(t, [][]span{{{"a", 6, 6}}}, spansOf(served))
	require.Equal(t, 2, served[0].DeliveryAttempt)
}

func TestHandoversOfSeveralLanesAndGroups(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(7, "a", "b", "c")
	b.registered("q", "h")
	b.exec(`DELETE FROM queen.log_consumers`)
	b.lay("q", "b", laid{7, 2, hour, nil})
	var rows []store.AckRow
	var next store.Next
	for i, at := range []struct{ lane, group string }{{"c", "h"}, {"b", "g"}, {"a", "h"}, {"a", "g"}} {
		b.leased(pids[at.lane], at.group, "w"+at.lane, -1, 0)
		rows = append(rows, wholeRow(pids[at.lane], at.group, "w"+at.lane, 0, 1))
		h := b.handover(i, rows[i], 0, 1+int64(i%2))
		h.Worker = fmt.Sprint("next-", i)
		next.Handovers = append([]store.Handover{h}, next.Handovers...)
	}
	next.Handovers[1].Segment.CreatedAt = "2020-01-01T00:00:00.000000Z" // of row 2
	out, served := b.ackAndPop(rows, next)
	require.Equal(t, []store.AckOutcome{moved(1), moved(1), busy, moved(1)}, out)
	require.Equal(t, []int64{6, store.Refused, 8, 6}, served.Handed)
	for i, r := range rows {
		want := popCursor{BatchEnd: 1 + int64(i%2), AttemptOffset: 1, Consumed: 11, Worker: fmt.Sprint("next-", i), Attempts: 1, LeaseSeconds: 60}
		if i == 2 {
			want = popCursor{Committed: -1, Consumed: 10, Worker: "wa", Attempts: 2, Retries: 1, LeaseSeconds: 60}
		}
		require.Equal(t, want, b.cursor(r.PartitionID, r.Group), i)
	}
}

// What is refused is left as it is, byte for byte, and not even locked.
func TestAHandoverLeavesAloneWhatItRefuses(t *testing.T) {
	t.Parallel()
	asIs := func(*store.AckRow, *store.Handover) {}
	for name, c := range map[string]struct {
		before string
		ask    func(r *store.AckRow, h *store.Handover)
	}{
		"another worker":           {"", func(r *store.AckRow, _ *store.Handover) { r.Worker = "x" }},
		"no worker":                {"", func(r *store.AckRow, _ *store.Handover) { r.Worker = "" }},
		"a free lane":              {`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL`, asIs},
		"the lease has run out":    {`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 second'`, asIs},
		"a lease without an end":   {`UPDATE queen.log_consumers SET lease_expires_at = NULL`, asIs},
		"the batch ends before":    {"", func(r *store.AckRow, _ *store.Handover) { r.End = 2 }},
		"the batch ends behind":    {"", func(r *store.AckRow, _ *store.Handover) { r.End = 0 }},
		"partly committed":         {`UPDATE queen.log_consumers SET committed = 0`, asIs},
		"no attempt":               {`UPDATE queen.log_consumers SET attempt_offset = NULL`, asIs},
		"retention took it":        {`DELETE FROM queen.log_segments WHERE base_offset = 0`, asIs},
		"of another time":          {`UPDATE queen.log_segments SET created_at = created_at + interval '1 microsecond'`, asIs},
		"beyond its end":           {"", func(_ *store.AckRow, h *store.Handover) { h.Until = 3 }},
		"no segment":               {"", func(_ *store.AckRow, h *store.Handover) { h.Segment.Base = 1 }},
		"an empty batch":           {"", func(_ *store.AckRow, h *store.Handover) { h.Until = 1 }},
		"a batch that lies before": {"", func(_ *store.AckRow, h *store.Handover) { h.Until = 0 }},
		"a delay":                  {`UPDATE queen.queues SET delayed_processing = 1`, asIs},
		"a window buffer":          {`UPDATE queen.queues SET window_buffer = 1`, asIs},
		"a delay, window applied": {`UPDATE queen.queues SET delayed_processing = 1`, func(_ *store.AckRow, h *store.Handover) {
			h.SkipWindow = true
		}},
		"the segment behind it": {`UPDATE queen.log_segments SET created_at = (SELECT min(created_at) FROM queen.log_segments WHERE base_offset = 0)`,
			func(_ *store.AckRow, h *store.Handover) { h.Segment.Base, h.Until = 3, 4 }},
		"not registered":     {`DELETE FROM queen.consumer_groups_metadata`, asIs},
		"one lane of it is":  {`UPDATE queen.consumer_groups_metadata SET partition_name = 'a'`, asIs},
		"for a namespace":    {`UPDATE queen.consumer_groups_metadata SET namespace = 'n'`, asIs},
		"for a task":         {`UPDATE queen.consumer_groups_metadata SET task = 't'`, asIs},
		"registered by some": {`UPDATE queen.consumer_groups_metadata SET tenant_id = gen_random_uuid()`, asIs},
		"no cursor":          {`DELETE FROM queen.log_consumers`, asIs},
		"another group":      {"", func(r *store.AckRow, _ *store.Handover) { r.Group = "h" }},
		"the lane is gone":   {`DELETE FROM queen.log_partitions`, asIs},
		"another lane":       {"", func(r *store.AckRow, _ *store.Handover) { r.PartitionID = uuid.New() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupPop(t)
			pid := b.lanes(7, "a")["a"]
			b.exec(`DELETE FROM queen.log_consumers`)
			b.leased(pid, "g", "w", -1, 1)
			row := wholeRow(pid, "g", "w", 1, 2)
			h := b.handover(0, row, 0, 2)
			if c.before != "" {
				b.exec(c.before)
			}
			c.ask(&row, &h)
			was := b.rows()
			out, served := b.ackAndPop([]store.AckRow{row}, store.Next{Handovers: []store.Handover{h}})
			require.Equal(t, []store.AckOutcome{busy}, out)
			require.Equal(t, []int64{store.Refused}, served.Handed)
			require.Equal(t, was, b.rows())
		})
	}
	t.Run("a window that the ring has applied", func(t *testing.T) {
		t.Parallel()
		b := setupPop(t)
		pid := b.lanes(7, "a")["a"]
		b.multi(claims(2, "a"))
		b.option("q", "window_buffer", 1)
		row := wholeRow(pid, "g", "w-a", 1, 2)
		h := b.handover(0, row, 0, 2)
		h.SkipWindow = true
		out, _ := b.ackAndPop([]store.AckRow{row}, store.Next{Handovers: []store.Handover{h}})
		require.Equal(t, []store.AckOutcome{moved(2)}, out)
	})
	t.Run("a locked cursor", func(t *testing.T) {
		t.Parallel()
		b := setupPop(t)
		pids := b.lanes(7, "a", "b", "c")
		b.multi(claims(2, "a", "b", "c"))
		rows := []store.AckRow{wholeRow(pids["a"], "g", "w-a", 1, 2), wholeRow(pids["b"], "g", "w-b", 1, 2), wholeRow(pids["c"], "g", "w-c", 1, 2)}
		next := store.Next{Handovers: []store.Handover{b.handover(0, rows[0], 0, 2), b.handover(1, rows[1], 0, 2)}}
		release := b.hold(`SELECT FROM queen.log_consumers WHERE partition_id <> $1 FOR UPDATE`, pids["b"])
		out, served := b.ackAndPop(rows, next)
		require.Equal(t, []store.AckOutcome{busy, moved(2), busy}, out, "nor is a plain row waited for beside handovers")
		require.Equal(t, []int64{store.Refused, 6}, served.Handed)
		release()
		next.Handovers = next.Handovers[:1]
		out, served = b.ackAndPop([]store.AckRow{rows[0], rows[2]}, next)
		require.Equal(t, []store.AckOutcome{moved(2), moved(2)}, out)
		require.Equal(t, []int64{6}, served.Handed)
	})
}

func TestHandoversBesidePlainRowsAndPops(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(7, "a", "b", "c", "d", "e")
	b.multi(claims(2, "a", "b", "c", "d"))
	row := func(lane string) store.AckRow { return wholeRow(pids[lane], "g", "w-"+lane, 1, 2) }
	rows := []store.AckRow{row("d"), row("c"), row("b"), row("a")}
	rows[0].Worker = "somebody"
	next := store.Next{
		Handovers: []store.Handover{b.handover(3, rows[3], 0, 2), b.handover(1, rows[1], 0, 2)},
		Pops:      []store.MultiPop{claims(3, "none", "b"), claims(4, "a", "e", "c", "d")},
	}
	next.Handovers[1].Segment.Base++
	out, served := b.ackAndPop(rows, next)
	require.Equal(t, []store.AckOutcome{{Error: "invalid or expired lease"}, busy, moved(2), moved(2)}, out)
	require.Equal(t, []int64{6, store.Refused}, served.Handed)
	require.Equal(t, [][]span{nil, {{"b", 2, 4}}}, spansOf(served.Pops[0]), "what a plain row released")
	require.Equal(t, [][]span{nil, {{"e", 0, 3}}, nil, nil}, spansOf(served.Pops[1]), "but not what was handed over")
	for lane, committed := range map[string]int64{"a": 1, "b": 1, "c": -1, "d": -1, "e": -1} {
		require.Equal(t, committed, b.cursor(pids[lane], "g").Committed, lane)
	}
	var written int64
	b.one([]any{&written}, `SELECT count(DISTINCT c.xmin::text) FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id
		WHERE p.name IN ('a', 'b', 'e')`)
	require.EqualValues(t, 1, written, "one transaction")

	// A second row for a lane that is handed over finds the lease gone.
	twice := wholeRow(pids["a"], "g", "next", 2, 1)
	after := b.handover(1, twice, 3, 4)
	after.Worker = "after"
	out, served = b.ackAndPop([]store.AckRow{twice, twice}, store.Next{Handovers: []store.Handover{after}})
	require.Equal(t, []store.AckOutcome{{Error: "invalid or expired lease"}, moved(1)}, out)
	require.Equal(t, []int64{6}, served.Handed)

	// Both or nothing: the pop is refused after the lane was handed over.
	was := b.rows()
	poison := claims(1, "e")
	poison.Claims[0].Worker = "no\x00text"
	c := row("c")
	_, _, err := b.store.AckAndPop(t.Context(), []store.AckRow{c}, true,
		store.Next{Handovers: []store.Handover{b.handover(0, c, 0, 2)}, Pops: []store.MultiPop{poison}})
	require.Error(t, err)
	var is string
	b.one([]any{&is}, `SELECT string_agg(c::text, '') FROM queen.log_consumers AS c WHERE partition_id = $1`, pids["c"])
	require.Contains(t, was, is)
	require.Equal(t, int64(-1), b.cursor(pids["c"], "g").Committed)
}

func TestHandoversThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pids := b.lanes(7, "a", "b")
	b.multi(claims(2, "a", "b"))
	rows := []store.AckRow{wholeRow(pids["a"], "g", "w-a", 1, 2), wholeRow(pids["b"], "g", "w-b", 1, 2), wholeRow(pids["a"], "g", "w-a", 1, 2)}
	hand := func(at ...int) (next store.Next) {
		for _, row := range at {
			h := b.handover(0, rows[0], 0, 2)
			h.Row = row
			next.Handovers = append(next.Handovers, h)
		}
		return next
	}
	was := b.rows()
	for text, next := range map[string]store.Next{
		"handover of row 3 of 3":                      hand(0, 3),
		"handover of row -1 of 3":                     hand(-1),
		"two handovers of lane " + pids["b"].String(): hand(0, 1, 1),
		"two handovers of lane " + pids["a"].String(): hand(2, 1, 0),
		`partition "a" is named twice`:                {Handovers: hand(1).Handovers, Pops: []store.MultiPop{claims(1, "a", "a")}},
	} {
		_, _, err := b.store.AckAndPop(t.Context(), rows, true, next)
		require.ErrorContains(t, err, text)
	}
	require.Equal(t, was, b.rows(), "nothing was asked")
}

// A cursor that changes after the statement began is judged as it is then.
func TestOneOfSeveralHandoversWins(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	const messages = 31
	pids := b.lanes(messages, "a", "b", "c")
	b.multi(claims(1, "a", "b", "c"))
	rows := make([]store.AckRow, 0, len(pids))
	for lane, pid := range pids {
		rows = append(rows, wholeRow(pid, "g", "w-"+lane, 0, 1))
	}
	for end := int64(1); end < messages; end++ {
		var hand []store.Handover
		for i := range rows {
			rows[i].End = end - 1
			hand = append(hand, b.handover(i, rows[i], end/3*3, end))
		}
		won := make([]atomic.Int32, len(rows))
		var group errgroup.Group
		for n := range 3 {
			mine := slices.Clone(hand)
			for i := range mine {
				mine[i].Worker = fmt.Sprint("n", n)
			}
			group.Go(func() error {
				for left := true; left; { // all may find the row locked
					out, served, err := b.store.AckAndPop(t.Context(), rows, true, store.Next{Handovers: mine})
					if err != nil {
						return err
					}
					left = false
					for i := range out {
						if out[i].OK != (served.Handed[i] == messages-1) {
							return fmt.Errorf("%+v, but handed %d", out[i], served.Handed[i])
						}
						if out[i].OK {
							won[i].Add(1)
						}
						left = left || won[i].Load() == 0
					}
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
		for i := range rows {
			require.EqualValues(t, 1, won[i].Load())
			c := b.cursor(rows[i].PartitionID, "g")
			require.Equal(t, popCursor{Committed: end - 1, BatchEnd: end, AttemptOffset: end, Consumed: end, Worker: c.Worker, Attempts: 1, LeaseSeconds: 60}, c)
			rows[i].Worker = c.Worker
		}
	}
}

// laneRace are consumers of lanes of segments of three messages, which take one after
// the other in every way there is.
type laneRace struct {
	*store.Store
	names    []string
	sought   map[uuid.UUID]bool // others move their cursors
	told     sync.Map           // what has been acknowledged of the other lanes
	handed   atomic.Int64
	acked    atomic.Int64
	messages atomic.Int64
}

const raceTime = "2026-01-01T00:00:00.000000Z"

// consume claims what it gets, in an order of its own, and goes from message to message
// for a while.
func (r *laneRace) consume(ctx context.Context) error {
	lanes := slices.Clone(r.names)
	rand.Shuffle(len(lanes), func(i, j int) { lanes[i], lanes[j] = lanes[j], lanes[i] })
	m := claims(1, lanes...)
	for i := range m.Claims {
		m.Claims[i].Worker = uuid.NewString()
	}
	served, err := r.PopMulti(ctx, m)
	if err != nil {
		return err
	}
	rows := leasedBy(m, served)
	for range 6 {
		if rows, err = r.step(ctx, rows); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		return nil
	}
	out, err := r.AckWhole(ctx, rows, true)
	if err != nil {
		return err
	}
	for i := range out {
		if err := r.tell(rows[i], out[i]); err != nil {
			return err
		}
	}
	return nil
}

func leasedBy(m store.MultiPop, served []store.PopServed) (rows []store.AckRow) {
	for i := range served {
		if s := &served[i]; len(s.Segments) > 0 {
			rows = append(rows, wholeRow(s.PartitionID, "g", m.Claims[i].Worker, s.Segments[0].Base+int64(s.Segments[0].Start), 1))
		}
	}
	return rows
}

// step acknowledges rows and hands most of them over, to itself. It returns what it
// holds then.
func (r *laneRace) step(ctx context.Context, rows []store.AckRow) (held []store.AckRow, err error) {
	again := claims(1, r.names[rand.IntN(len(r.names))])
	again.Claims[0].Worker = uuid.NewString()
	next := store.Next{Pops: []store.MultiPop{again}}
	after := make(map[int]store.AckRow)
	over := make(map[uuid.UUID]bool) // a seek may have let it lease a lane twice
	for _, i := range rand.Perm(len(rows)) {
		row := rows[i]
		if over[row.PartitionID] || rand.IntN(4) == 0 {
			continue
		}
		over[row.PartitionID] = true
		row.Worker, row.End = uuid.NewString(), row.End+1
		after[i] = row
		next.Handovers = append(next.Handovers, store.Handover{
			Row: i, Worker: row.Worker, Until: row.End,
			Segment: store.KnownSegment{PartitionID: row.PartitionID, Base: row.End / 3 * 3, CreatedAt: raceTime},
		})
	}
	if len(rows) == 0 {
		return nil, nil
	}
	out, served, err := r.AckAndPop(ctx, rows, rand.IntN(2) == 0, next)
	if err != nil {
		return nil, err
	}
	for i := range out {
		row, over := after[i]
		switch {
		case out[i].Error == store.AckBusy:
			held = append(held, rows[i])
		case out[i].OK && over:
			r.handed.Add(1)
			held = append(held, row)
		case out[i].OK:
			r.acked.Add(1)
		}
		if err := r.tell(rows[i], out[i]); err != nil {
			return nil, err
		}
	}
	return append(held, leasedBy(again, served.Pops[0])...), nil
}

// tell notes an answer. Where nobody seeks, a lease cannot be lost, and no message is
// acknowledged twice.
func (r *laneRace) tell(row store.AckRow, out store.AckOutcome) error {
	if r.sought[row.PartitionID] || out.Error == store.AckBusy {
		return nil
	}
	if !out.OK {
		return fmt.Errorf("%+v: %s", row, out.Error)
	}
	r.messages.Add(1)
	if _, twice := r.told.LoadOrStore(fmt.Sprint(row.PartitionID, row.End), true); twice {
		return fmt.Errorf("%+v: acknowledged twice", row)
	}
	return nil
}

// Handovers meet everything else that moves a cursor, in any order of the lanes: no
// deadlock, which whoever is broken up would tell.
func TestHandoversRaceWhatElseMovesACursor(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	const lanes, messages = 6, 30_000
	r := &laneRace{Store: b.store, sought: make(map[uuid.UUID]bool)}
	for i := range lanes {
		name := fmt.Sprint("lane", i)
		pid := b.lay("q", name)
		b.exec(`INSERT INTO queen.log_segments SELECT $1, g * 3, g * 3 + 2, $3::text::timestamptz, '\x01' FROM generate_series(0, $2::bigint / 3 - 1) AS g`,
			pid, messages, raceTime)
		b.exec(`UPDATE queen.log_partitions SET last_offset = $2::bigint - 1, last_write_at = now() WHERE id = $1`, pid, messages)
		b.start(pid, "g", -1)
		r.names, r.sought[pid] = append(r.names, name), i < lanes/2
	}
	b.registered("q", "g")
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := r.consume(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := b.store.SeekPartition(t.Context(), store.DefaultTenant(), "q", r.names[i%(lanes/2)], "g", epoch); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	require.NotZero(t, r.handed.Load())
	require.NotZero(t, r.acked.Load())
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_consumers WHERE (worker_id IS NULL) <> (batch_end IS NULL) OR batch_end <> committed + 1`))
	for name, column := range map[string]string{"consumed": "total_consumed", "committed": "committed + 1"} {
		require.Equal(t, r.messages.Load(), b.count(`SELECT sum(`+column+`)::bigint FROM queen.log_consumers AS c JOIN queen.log_partitions AS p
			ON p.id = c.partition_id WHERE p.name = ANY ($1)`, r.names[lanes/2:]), name)
	}
}
