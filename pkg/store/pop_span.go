package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// PopList claims from the caller's candidates and judges each one it came to
// (log_pop_span_v1).
func (s *Store) PopList(ctx context.Context, queue string, partitions []string, skipWindow bool, p Pop) (PopListResult, error) {
	const call = `SELECT r_kind, r_ord, r_pid, r_last_offset, r_attempt, r_base, r_start_idx, r_take, r_msg_count, r_created_at, r_until, r_blob
		FROM queen.log_pop_span_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`
	known, err := knownTimes(p.Known)
	if err != nil {
		return PopListResult{}, err
	}
	partitions = withoutRepeats(partitions)
	args := []any{
		pgx.QueryResultFormats{pgx.BinaryFormatCode},
		queue, p.Group, partitions, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, skipWindow, p.Tenant,
		p.MaxBytes, known,
	}
	var answer spanAnswer
	err = s.db.Do(ctx, "pop list", func(ctx context.Context, conn *pgx.Conn) error {
		answer = spanAnswer{partitions: partitions}
		rows, err := conn.Query(ctx, call, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := answer.add(spanRow(rows.RawValues())); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return answer.result, err
}

// withoutRepeats returns the names without those that repeat an earlier one. There seldom
// are any, and then the names are returned as they are.
func withoutRepeats(names []string) []string {
	if len(names) < 2 {
		return names
	}
	seen := make(map[string]struct{}, len(names))
	for _, name := range names {
		seen[name] = struct{}{}
	}
	if len(seen) == len(names) {
		return names
	}
	out := make([]string, 0, len(seen))
	for _, name := range names {
		if _, ok := seen[name]; ok {
			out = append(out, name)
			delete(seen, name)
		}
	}
	return out
}

// knownTimes are the creation times of segments: which of those the caller holds
// bears one is for the caller to see.
func knownTimes(segments []KnownSegment) (times []time.Time, err error) {
	for i := range segments {
		at, err := time.Parse(segmentTime, segments[i].CreatedAt)
		if err != nil {
			return nil, fmt.Errorf("known segment: %w", err)
		}
		times = append(times, at)
	}
	return times, nil
}

// segmentTime is how a PoppedSegment shows when it was stored.
const segmentTime = "2006-01-02T15:04:05.000000Z"

// The columns of log_pop_span_v1.
const (
	spanKind = iota
	spanPlace
	spanPartition
	spanLastOffset
	spanAttempt
	spanBase
	spanStart
	spanTake
	spanCount
	spanCreatedAt
	spanUntil
	spanBlob
	spanColumns
)

// spanRow is a row in the binary format. It is valid until the next one is read.
type spanRow [][]byte

// number reads an integer of either width, or a NULL as 0.
func (r spanRow) number(column int) int64 {
	switch v := r[column]; len(v) {
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v)))
	case 8:
		return int64(binary.BigEndian.Uint64(v))
	default:
		return 0
	}
}

// postgresEpoch is where the server counts its microseconds from, in those of Unix.
const postgresEpoch = 946_684_800_000_000

func (r spanRow) instant(column int) time.Time {
	if r[column] == nil {
		return time.Time{}
	}
	return time.UnixMicro(r.number(column) + postgresEpoch).UTC()
}

// spanAnswer gathers the rows of a claim.
type spanAnswer struct {
	partitions []string // the candidates
	result     PopListResult
	place      int // of the lane that the last slice is of, from 1
}

func (a *spanAnswer) add(r spanRow) error {
	if len(r) != spanColumns {
		return fmt.Errorf("%w: %d columns", errAnswer, len(r))
	}
	kind, place := string(r[spanKind]), int(r.number(spanPlace))
	if kind == "unseeded" {
		a.result.Unseeded = true
		return nil
	}
	if place < 1 || place > len(a.partitions) {
		return fmt.Errorf("%w: candidate %d of %d", errAnswer, place, len(a.partitions))
	}
	name := a.partitions[place-1]
	switch kind {
	case "slice":
		return a.slice(name, place, r)
	case "took":
		a.setLast(name, r.number(spanLastOffset))
	case "locked":
		a.judge(CandidateState{Partition: name, State: StateLeased, Until: r.instant(spanUntil), Locked: true})
	case StateEmpty, StateLeased:
		a.judge(CandidateState{Partition: name, State: kind, Until: r.instant(spanUntil)})
	default:
		return fmt.Errorf("%w: kind %q", errAnswer, kind)
	}
	return nil
}

func (a *spanAnswer) judge(s CandidateState) { a.result.States = append(a.result.States, s) }

// slice adds a part of a segment, the first one of a lane with its verdict.
func (a *spanAnswer) slice(name string, place int, r spanRow) error {
	if place != a.place {
		id, err := uuid.FromBytes(r[spanPartition])
		if err != nil {
			return fmt.Errorf("%w: partition id: %w", errAnswer, err)
		}
		a.place = place
		a.result.Claimed = append(a.result.Claimed, Popped{
			Partition: name, PartitionID: id, DeliveryAttempt: max(int(r.number(spanAttempt)), 1),
		})
		a.judge(CandidateState{Partition: name, State: StateTook, LastOffset: r.number(spanLastOffset)})
	}
	lane := &a.result.Claimed[len(a.result.Claimed)-1]
	lane.Segments = append(lane.Segments, PoppedSegment{
		Base: r.number(spanBase), Start: int(r.number(spanStart)), Take: int(r.number(spanTake)), Count: int(r.number(spanCount)),
		CreatedAt: r.instant(spanCreatedAt).Format(segmentTime), Blob: bytes.Clone(r[spanBlob]),
	})
	return nil
}

// setLast completes the verdict on a lane that was served.
func (a *spanAnswer) setLast(name string, offset int64) {
	for i := range a.result.States {
		if s := &a.result.States[i]; s.Partition == name && s.State == StateTook {
			s.LastOffset = offset
		}
	}
}
