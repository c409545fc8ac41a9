package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
// completed. Where all are, and no two hashes are equal, it goes by
// log_ack_completed_v1, which is quick about a whole batch.
func (s *Store) AckByHash(ctx context.Context, pid uuid.UUID, group, worker string, hashes [][16]byte, statuses []AckStatus) (AckOutcome, error) {
	var v ackVerdict
	var err error
	if allCompleted(statuses, len(hashes)) && distinct(hashes) {
		v, err = s.ack(ctx, "ack", `SELECT queen.log_ack_completed_v1($1, $2, $3, $4)`, pid, group, worker, joined(hashes))
	} else {
		v, err = s.ack(ctx, "ack", `SELECT queen.log_ack_by_hash_v1($1, $2, $3, $4, $5)`, pid, group, worker, split(hashes), texts(statuses))
	}
	if err != nil {
		return AckOutcome{}, err
	}
	return v.outcome(hashes, statuses), nil
}

// allCompleted says so of n messages. No statuses stand for that, too many or too
// few are for the database to refuse.
func allCompleted(statuses []AckStatus, n int) bool {
	if statuses != nil && len(statuses) != n {
		return false
	}
	for _, st := range statuses {
		if st != AckCompleted && st != "" {
			return false
		}
	}
	return true
}

// distinct reports whether no two hashes are equal.
func distinct(hashes [][16]byte) bool {
	seen := make(map[[16]byte]struct{}, len(hashes))
	for i := range hashes {
		seen[hashes[i]] = struct{}{}
	}
	return len(seen) == len(hashes)
}

// joined is hashes one after the other.
func joined(hashes [][16]byte) []byte {
	b := make([]byte, 0, len(hashes)*16)
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b
}

func split(hashes [][16]byte) [][]byte {
	list := make([][]byte, len(hashes))
	for i := range hashes {
		list[i] = hashes[i][:]
	}
	return list
}

// texts of no statuses is nil.
func texts(statuses []AckStatus) []string {
	if statuses == nil {
		return nil
	}
	list := make([]string, len(statuses))
	for i, st := range statuses {
		list[i] = string(st)
	}
	return list
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
	call, args := ackMulti(rows, false, true)
	text, err := s.rawJSON(ctx, "ack batch", call, args...)
	if err != nil {
		return nil, err
	}
	return ackOutcomes(text, len(rows))
}

// AckWhole is AckMulti for batches of which nothing may be committed yet; a row
// that finds otherwise is refused. Without wait a row that is locked is refused
// with AckBusy. One row always waits (log_ack_at_v1): there is nothing it would
// hold up.
func (s *Store) AckWhole(ctx context.Context, rows []AckRow, wait bool) ([]AckOutcome, error) {
	call, args := ackWhole(rows, wait)
	text, err := s.rawJSON(ctx, "ack batch", call, args...)
	if err != nil {
		return nil, err
	}
	return ackOutcomes(text, len(rows))
}

// ackWhole is the call of AckWhole.
func ackWhole(rows []AckRow, wait bool) (call string, args []any) {
	if len(rows) != 1 {
		return ackMulti(rows, true, wait)
	}
	r := &rows[0]
	return `SELECT queen.log_ack_at_v1($1, $2, $3, $4, TRUE, $5, TRUE)`, []any{r.PartitionID, r.Group, r.Worker, r.End, r.Count}
}

func ackMulti(rows []AckRow, whole, wait bool) (call string, args []any) {
	pids, groups := make([]string, len(rows)), make([]string, len(rows))
	ends, workers, counts := make([]int64, len(rows)), make([]string, len(rows)), make([]int32, len(rows))
	for i, r := range rows {
		pids[i], groups[i], ends[i], workers[i], counts[i] = r.PartitionID.String(), r.Group, r.End, r.Worker, int32(r.Count)
	}
	return `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5, $6, $7)`, []any{pids, groups, ends, workers, counts, whole, wait}
}

// ackOutcomes reads the answer to n rows. That to one row stands by itself.
func ackOutcomes(text RawJSON, n int) ([]AckOutcome, error) {
	var answer struct {
		Results []ackVerdict `json:"results"`
		ackVerdict
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("ack batch: %w: %w", errAnswer, err)
	}
	if n == 1 && answer.Results == nil {
		answer.Results = []ackVerdict{answer.ackVerdict}
	}
	if len(answer.Results) != n {
		return nil, fmt.Errorf("ack batch: %w: %d verdicts for %d rows", errAnswer, len(answer.Results), n)
	}
	out := make([]AckOutcome, n)
	for i, v := range answer.Results {
		out[i] = released(v)
	}
	return out, nil
}

// Cursor reads where the cursor of a group is (log_cursor_v1).
func (s *Store) Cursor(ctx context.Context, pid uuid.UUID, group string) (committed int64, found bool, err error) {
	var at *int64
	if err := s.scanOne(ctx, "read cursor", `SELECT queen.log_cursor_v1($1, $2)`, []any{pid, group}, &at); err != nil || at == nil {
		return 0, false, err
	}
	return *at, true, nil
}

// RenewLease extends every live lease of a worker by at least seconds from now
// (log_renew_lease_v1). expiresAt is the earliest resulting expiry as the wire
// shows it, "" when nothing was renewed. It reads all cursors; see RenewLanes.
func (s *Store) RenewLease(ctx context.Context, worker string, seconds int) (renewed int, expiresAt string, err error) {
	return s.renew(ctx, `SELECT queen.log_renew_lease_v1($1, $2)`, worker, min(seconds, math.MaxInt32))
}

// RenewLanes is RenewLease for a worker whose leases can be at some cursors only
// (log_renew_lanes_v1).
func (s *Store) RenewLanes(ctx context.Context, worker string, seconds int, at []CursorKey) (renewed int, expiresAt string, err error) {
	pids, groups := make([]uuid.UUID, len(at)), make([]string, len(at))
	for i, k := range at {
		pids[i], groups[i] = k.PartitionID, k.Group
	}
	return s.renew(ctx, `SELECT queen.log_renew_lanes_v1($1, $2, $3, $4)`, worker, min(seconds, math.MaxInt32), pids, groups)
}

func (s *Store) renew(ctx context.Context, call string, args ...any) (renewed int, expiresAt string, err error) {
	text, err := s.rawJSON(ctx, "renew lease", call, args...)
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

// FindLeases returns the cursors on which workers hold live leases
// (log_find_leases_v1). It reads all cursors once, for all workers together.
func (s *Store) FindLeases(ctx context.Context, workers []string) (map[string][]CursorKey, error) {
	held := make(map[string][]CursorKey)
	err := s.db.Do(ctx, "find leases", func(ctx context.Context, conn *pgx.Conn) error {
		clear(held)
		rows, err := conn.Query(ctx, `SELECT worker_id, partition_id, consumer_group FROM queen.log_find_leases_v1($1)`, workers)
		if err != nil {
			return err
		}
		var worker string
		var k CursorKey
		_, err = pgx.ForEachRow(rows, []any{&worker, &k.PartitionID, &k.Group}, func() error {
			held[worker] = append(held[worker], k)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}
