package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"github.com/google/uuid"
)

// AckRow is one full-batch advance of AckMulti.
type AckRow struct {
	PartitionID uuid.UUID
	Group       string
	Worker      string
	End         int64 // inclusive end of the leased batch
	Count       int
}

// ackVerdict is the JSON of the ack procedures.
type ackVerdict struct {
	OK         bool     `json:"ok"`
	Error      string   `json:"error"`
	Acked      int64    `json:"acked"`
	Off        int64    `json:"off"`
	Released   bool     `json:"released"`
	Dropped    bool     `json:"dropped"`
	DLQ        bool     `json:"dlq"`
	Worker     string   `json:"worker"`
	Noop       []string `json:"noopHashes"`
	Stale      []string `json:"staleHashes"`
	Unresolved []string `json:"unresolvedHashes"`
}

// outcome turns the lists of hashes back into positions. One hash may have been
// submitted with several statuses, and be listed for some of them only.
func (v ackVerdict) outcome(hashes [][16]byte, statuses []AckStatus) AckOutcome {
	completed := func(i int) bool { return statuses == nil || statuses[i] == AckCompleted || statuses[i] == "" }
	return AckOutcome{
		OK: v.OK, Error: v.Error, Acked: v.Acked, Offset: v.Off, Released: v.Released, Dropped: v.Dropped,
		DLQ: v.DLQ, Worker: v.Worker,
		Noop:       positions(v.Noop, hashes, completed),
		Stale:      positions(v.Stale, hashes, func(i int) bool { return !completed(i) }),
		Unresolved: positions(v.Unresolved, hashes, func(int) bool { return true }),
	}
}

// positions finds each listed hash among the submitted ones that can be meant.
// Both are in input order and a list may name one hash several times, so one pass
// suffices.
func positions(list []string, hashes [][16]byte, meant func(i int) bool) []int {
	if len(list) == 0 {
		return nil
	}
	found := make([]int, 0, len(list))
	for i := range hashes {
		if len(found) == len(list) {
			break
		}
		if meant(i) && hex.EncodeToString(hashes[i][:]) == list[len(found)] {
			found = append(found, i)
		}
	}
	return found
}

func (s *Store) ack(ctx context.Context, name, call string, args ...any) (ackVerdict, error) {
	var v ackVerdict
	text, err := s.rawJSON(ctx, name, call, args...)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("%s: %w: %w", name, errAnswer, err)
	}
	return v, nil
}

// AckByHash resolves transaction ids by their hashes and moves the cursor of one
// (partition, group) by the full contract (log_ack_by_hash_v1). worker "" skips
// the lease check. statuses has the length of hashes; nil stands for all
// completed.
func (s *Store) AckByHash(ctx context.Context, pid uuid.UUID, group, worker string, hashes [][16]byte, statuses []AckStatus) (AckOutcome, error) {
	blobs := make([][]byte, len(hashes))
	for i := range hashes {
		blobs[i] = hashes[i][:]
	}
	var texts []string
	if statuses != nil {
		texts = make([]string, len(statuses))
	}
	for i, st := range statuses {
		texts[i] = string(st)
	}
	v, err := s.ack(ctx, "ack", `SELECT queen.log_ack_by_hash_v1($1, $2, $3, $4, $5)`, pid, group, worker, blobs, texts)
	if err != nil {
		return AckOutcome{}, err
	}
	return v.outcome(hashes, statuses), nil
}

// AckAt commits a leased batch up to an offset, or with ok false only gives the
// lease back (log_ack_at_v1). Either way the lease ends.
func (s *Store) AckAt(ctx context.Context, pid uuid.UUID, group, worker string, upto int64, ok bool, count int) (AckOutcome, error) {
	v, err := s.ack(ctx, "ack position", `SELECT queen.log_ack_at_v1($1, $2, $3, $4, $5, $6)`, pid, group, worker, upto, ok, count)
	return released(v), err
}

// Ack is AckAt for a partition addressed by names (log_ack_v1).
func (s *Store) Ack(ctx context.Context, tenant uuid.UUID, queue, partition, group, worker string, upto int64, ok bool, count int) (AckOutcome, error) {
	v, err := s.ack(ctx, "ack by name", `SELECT queen.log_ack_v1($1, $2, $3, $4, $5, $6, $7, $8)`,
		queue, partition, group, worker, upto, ok, count, tenant)
	return released(v), err
}

// released is the outcome of a positional ack, which ends the lease when it is
// accepted.
func released(v ackVerdict) AckOutcome {
	out := v.outcome(nil, nil)
	out.Released = v.OK
	return out
}

// AckMulti commits many leased batches in one transaction (log_ack_multi_v1).
// Outcomes are aligned with rows.
func (s *Store) AckMulti(ctx context.Context, rows []AckRow) ([]AckOutcome, error) {
	pids, groups := make([]string, len(rows)), make([]string, len(rows))
	ends, workers, counts := make([]int64, len(rows)), make([]string, len(rows)), make([]int32, len(rows))
	for i, r := range rows {
		pids[i], groups[i], ends[i], workers[i], counts[i] = r.PartitionID.String(), r.Group, r.End, r.Worker, int32(r.Count)
	}
	text, err := s.rawJSON(ctx, "ack batch", `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5)`, pids, groups, ends, workers, counts)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Results []ackVerdict `json:"results"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("ack batch: %w: %w", errAnswer, err)
	}
	if len(answer.Results) != len(rows) {
		return nil, fmt.Errorf("ack batch: %w: %d verdicts for %d rows", errAnswer, len(answer.Results), len(rows))
	}
	out := make([]AckOutcome, len(rows))
	for i, v := range answer.Results {
		out[i] = released(v)
	}
	return out, nil
}

// RenewLease extends every live lease of a worker by at least seconds from now
// (log_renew_lease_v1). expiresAt is the earliest resulting expiry as the wire
// shows it, "" when nothing was renewed.
func (s *Store) RenewLease(ctx context.Context, worker string, seconds int) (renewed int, expiresAt string, err error) {
	text, err := s.rawJSON(ctx, "renew lease", `SELECT queen.log_renew_lease_v1($1, $2)`, worker, min(seconds, math.MaxInt32))
	if err != nil {
		return 0, "", err
	}
	var answer struct {
		Renewed   int    `json:"renewed"`
		ExpiresAt string `json:"expiresAt"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, "", fmt.Errorf("renew lease: %w: %w", errAnswer, err)
	}
	return answer.Renewed, answer.ExpiresAt, nil
}
