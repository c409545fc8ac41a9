package store

import (
	"context"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Handover leases a lane anew in the update that ends its lease, to somebody whose
// next messages are in the caller's memory.
type Handover struct {
	Row          int    // of the acks, the number of the one whose lane it is
	Worker       string // becomes the lease id
	LeaseSeconds int    // <= 0: the queue's own lease time
	Until        int64  // end of the new batch, which follows that of the row
	// Segment holds the whole new batch.
	Segment    KnownSegment
	SkipWindow bool // the window buffer of the partition has been applied
}

// Next is what AckAndPop does in the transaction of its acks.
type Next struct {
	Handovers []Handover
	Pops      []MultiPop
}

// NextServed is what became of a Next.
type NextServed struct {
	// Handed are the newest offsets of the lanes of the handovers, Refused for one that
	// was not made.
	Handed []int64
	Pops   [][]PopServed
}

// Refused stands for a handover that was not made: the batch of its row is not as the
// caller thinks, somebody else has its cursor locked, or its next messages may not be
// delivered just so.
const Refused = -1

// AckAndPop is AckWhole, and then handovers, and a PopMulti for each of some pops, all
// in one transaction: what the acks release may be claimed by it. A row whose handover
// is refused is not committed either, and answered AckBusy. No cursor is handed over
// twice, and beside handovers no row is waited for.
func (s *Store) AckAndPop(ctx context.Context, rows []AckRow, wait bool, next Next) ([]AckOutcome, NextServed, error) {
	c, err := newAckAndPop(rows, wait, next)
	if err != nil {
		return nil, NextServed{}, err
	}
	if err := s.db.Do(ctx, "ack and pop", c.run); err != nil {
		return nil, NextServed{}, err
	}
	return c.answer()
}

// ackAndPop is one call of AckAndPop.
type ackAndPop struct {
	rows    []AckRow
	wait    bool
	next    Next
	plain   []int // the rows without a handover
	calls   [][]any
	text    RawJSON // of the plain rows
	answers []multiAnswer
	handed  []int32 // places of the handovers that were made, from 1
	lasts   []int64
}

func newAckAndPop(rows []AckRow, wait bool, next Next) (*ackAndPop, error) {
	c := &ackAndPop{rows: rows, wait: wait, next: next, calls: make([][]any, len(next.Pops)), answers: make([]multiAnswer, len(next.Pops))}
	for i := range next.Pops {
		var err error
		if c.calls[i], err = next.Pops[i].args(); err != nil {
			return nil, err
		}
	}
	return c, c.part()
}

// part finds the plain rows. A cursor of two handovers would be promised to both, and
// leased to one.
func (c *ackAndPop) part() error {
	over := make([]bool, len(c.rows))
	lanes := make(map[CursorKey]bool, len(c.next.Handovers))
	for i := range c.next.Handovers {
		at := c.next.Handovers[i].Row
		if at < 0 || at >= len(c.rows) {
			return fmt.Errorf("ack and pop: handover of row %d of %d", at, len(c.rows))
		}
		lane := CursorKey{PartitionID: c.rows[at].PartitionID, Group: c.rows[at].Group}
		if lanes[lane] {
			return fmt.Errorf("ack and pop: two handovers of lane %s of group %q", lane.PartitionID, lane.Group)
		}
		over[at], lanes[lane] = true, true
	}
	for i := range c.rows {
		if !over[i] {
			c.plain = append(c.plain, i)
		}
	}
	return nil
}

func (c *ackAndPop) run(ctx context.Context, conn *pgx.Conn) error {
	var batch pgx.Batch
	c.handed, c.lasts, c.text = nil, nil, nil
	if len(c.next.Handovers) > 0 {
		batch.Queue(handover, c.handovers()...).QueryRow(func(row pgx.Row) error { return row.Scan(&c.handed, &c.lasts) })
	}
	if len(c.plain) > 0 {
		call, args := c.acks()
		batch.Queue(call, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&c.text) })
	}
	for i := range c.calls {
		batch.Queue(popMulti, c.calls[i]...).QueryRow(func(row pgx.Row) error { return row.Scan(c.answers[i].dest()...) })
	}
	return conn.SendBatch(ctx, &batch).Close()
}

// acks is the call for the plain rows. Beside handovers, which have locked theirs
// already, nothing is waited for.
func (c *ackAndPop) acks() (call string, args []any) {
	if len(c.next.Handovers) == 0 {
		return ackWhole(c.rows, c.wait)
	}
	rows := make([]AckRow, len(c.plain))
	for i, at := range c.plain {
		rows[i] = c.rows[at]
	}
	return ackMulti(rows, true, false)
}

const handover = `SELECT handed, lasts FROM queen.log_handover_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text[]::timestamptz[], $11)`

// handovers are the arguments of handover.
func (c *ackAndPop) handovers() []any {
	n := len(c.next.Handovers)
	pids, groups, workers, nexts, times := make([]uuid.UUID, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	ends, untils, bases := make([]int64, n), make([]int64, n), make([]int64, n)
	counts, leases, skips := make([]int32, n), make([]int32, n), make([]bool, n)
	for i := range c.next.Handovers {
		h := &c.next.Handovers[i]
		r := &c.rows[h.Row]
		pids[i], groups[i], ends[i], workers[i], counts[i] = r.PartitionID, r.Group, r.End, r.Worker, int32(r.Count)
		nexts[i], untils[i], leases[i] = h.Worker, h.Until, int32(min(h.LeaseSeconds, math.MaxInt32))
		bases[i], times[i], skips[i] = h.Segment.Base, h.Segment.CreatedAt, h.SkipWindow
	}
	return []any{pids, groups, ends, workers, counts, nexts, untils, leases, bases, times, skips}
}

// answer puts together what became of the rows, the handovers and the pops.
func (c *ackAndPop) answer() ([]AckOutcome, NextServed, error) {
	out := make([]AckOutcome, len(c.rows))
	if len(c.plain) > 0 {
		plain, err := ackOutcomes(c.text, len(c.plain))
		if err != nil {
			return nil, NextServed{}, err
		}
		for i, at := range c.plain {
			out[at] = plain[i]
		}
	}
	served := NextServed{Handed: make([]int64, len(c.next.Handovers)), Pops: make([][]PopServed, len(c.next.Pops))}
	for i := range served.Handed {
		served.Handed[i] = Refused
		out[c.next.Handovers[i].Row] = AckOutcome{Error: AckBusy}
	}
	for i, at := range c.handed {
		if at < 1 || int(at) > len(served.Handed) || i >= len(c.lasts) {
			return nil, NextServed{}, fmt.Errorf("ack and pop: %w: handover %d of %d", errAnswer, at, len(served.Handed))
		}
		served.Handed[at-1] = c.lasts[i]
		row := c.next.Handovers[at-1].Row
		out[row] = AckOutcome{OK: true, Acked: int64(max(c.rows[row].Count, 0)), Released: true}
	}
	for i := range c.next.Pops {
		var err error
		if served.Pops[i], err = c.answers[i].served(c.next.Pops[i].Claims); err != nil {
			return nil, NextServed{}, err
		}
	}
	return out, served, nil
}
