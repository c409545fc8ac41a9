package store

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
)

// PopClaim is one pop of PopMulti: it wants messages of one partition.
type PopClaim struct {
	Partition    string
	Budget       int    // messages
	LeaseSeconds int    // <= 0: the queue's own lease time
	Worker       string // becomes the lease id
	MaxBytes     int64  // decoded bytes at most, at least one message
	SkipWindow   bool   // the window buffer of the partition has been applied
	Known        []KnownSegment
}

// PopServed is what became of a PopClaim. Without segments nothing was claimed:
// the partition is empty, leased, locked, not there, or asks for more than PopMulti
// does, which PopList tells.
type PopServed struct {
	Popped
	LastOffset int64 // of the partition when it was leased
}

// MultiPop are claims of one group on partitions of one queue, none of which is
// named twice.
type MultiPop struct {
	Tenant       uuid.UUID
	Queue, Group string
	AutoAck      bool
	Claims       []PopClaim
}

// Bound has the claims share a number of decoded bytes, beside their own bounds.
func (m *MultiPop) Bound(bytes int64) {
	for i := range m.Claims {
		m.Claims[i].MaxBytes = min(m.Claims[i].MaxBytes, bytes/int64(len(m.Claims)))
	}
}

const popMulti = `SELECT lane_at, lane_pid, lane_try, lane_last, seg_at, seg_base, seg_start, seg_take, seg_count, seg_time, blobs
	FROM queen.log_pop_multi_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::text[]::timestamptz[])`

// args are the arguments of popMulti. A lane that is named twice would be delivered
// to two consumers under one lease.
func (m *MultiPop) args() ([]any, error) {
	c := claimColumns(m.Claims)
	for i, p := range c.partitions {
		if slices.Contains(c.partitions[:i], p) {
			return nil, fmt.Errorf("pop multi: partition %q is named twice", p)
		}
	}
	return []any{
		m.Tenant, m.Queue, m.Group, c.partitions, c.budgets, c.leases, c.workers, c.bytes, c.skips, m.AutoAck,
		c.known.partitions, c.known.bases, c.known.times,
	}, nil
}

// PopMulti claims from several partitions, one for each claim, in one transaction
// (log_pop_multi_v1). The answers are aligned with the claims.
func (s *Store) PopMulti(ctx context.Context, m MultiPop) ([]PopServed, error) {
	args, err := m.args()
	if err != nil {
		return nil, err
	}
	var a multiAnswer
	if err := s.scanOne(ctx, "pop multi", popMulti, args, a.dest()...); err != nil {
		return nil, err
	}
	return a.served(m.Claims)
}

// columns are claims as the procedure takes them.
type columns struct {
	partitions, workers []string
	budgets, leases     []int32
	bytes               []int64
	skips               []bool
	known               known
}

func claimColumns(claims []PopClaim) columns {
	n := len(claims)
	c := columns{
		partitions: make([]string, n), workers: make([]string, n), budgets: make([]int32, n), leases: make([]int32, n),
		bytes: make([]int64, n), skips: make([]bool, n),
	}
	var known []KnownSegment
	for i := range claims {
		p := &claims[i]
		c.partitions[i], c.workers[i], c.bytes[i], c.skips[i] = p.Partition, p.Worker, p.MaxBytes, p.SkipWindow
		c.budgets[i], c.leases[i] = int32(min(p.Budget, math.MaxInt32)), int32(min(p.LeaseSeconds, math.MaxInt32))
		known = append(known, p.Known...)
	}
	c.known = knownColumns(known)
	return c
}

// multiAnswer is the row of log_pop_multi_v1: columns of the lanes that were served
// and of the slices, each of which names its claim, counted from 1.
type multiAnswer struct {
	laneAt, tries, segAt, starts, takes, counts []int32
	pids                                        []uuid.UUID
	lasts, bases                                []int64
	times                                       []string
	blobs                                       [][]byte
}

func (a *multiAnswer) dest() []any {
	return []any{&a.laneAt, &a.pids, &a.tries, &a.lasts, &a.segAt, &a.bases, &a.starts, &a.takes, &a.counts, &a.times, &a.blobs}
}

// served puts the slices to their claims.
func (a *multiAnswer) served(claims []PopClaim) ([]PopServed, error) {
	served, err := a.assign(claims)
	if err != nil {
		return nil, fmt.Errorf("pop multi: %w", err)
	}
	return served, nil
}

func (a *multiAnswer) assign(claims []PopClaim) ([]PopServed, error) {
	served := make([]PopServed, len(claims))
	for i, at := range a.laneAt {
		if at < 1 || int(at) > len(claims) {
			return nil, fmt.Errorf("%w: claim %d of %d", errAnswer, at, len(claims))
		}
		s := &served[at-1]
		s.Partition, s.PartitionID, s.DeliveryAttempt, s.LastOffset = claims[at-1].Partition, a.pids[i], max(int(a.tries[i]), 1), a.lasts[i]
	}
	for i, at := range a.segAt {
		if at < 1 || int(at) > len(claims) || served[at-1].PartitionID == uuid.Nil {
			return nil, fmt.Errorf("%w: a slice of claim %d of %d", errAnswer, at, len(claims))
		}
		s := &served[at-1]
		if n := len(s.Segments); n > 0 && s.Segments[n-1].Base >= a.bases[i] {
			return nil, fmt.Errorf("%w: slices out of order", errAnswer) // no plan does this; were there one, order would be lost
		}
		s.Segments = append(s.Segments, PoppedSegment{
			Base: a.bases[i], Start: int(a.starts[i]), Take: int(a.takes[i]), Count: int(a.counts[i]), CreatedAt: a.times[i], Blob: a.blobs[i],
		})
	}
	return served, nil
}
