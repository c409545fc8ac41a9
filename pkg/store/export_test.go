package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// PushMulti is PushBundle that waits for its lanes.
func (s *Store) PushMulti(ctx context.Context, segs []PushSegment) ([]PushVerdict, error) {
	return s.PushBundle(ctx, segs, WaitForLocks)
}

// PopListDocuments is PopList by log_pop_list_v1, which answers documents.
func (s *Store) PopListDocuments(ctx context.Context, queue string, partitions []string, skipWindow bool, p Pop) (PopListResult, error) {
	const call = `SELECT meta, blobs, states
		FROM queen.log_pop_list_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text[]::timestamptz[], $16)`
	k := knownColumns(p.Known)
	args := []any{
		queue, p.Group, partitions, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, skipWindow, p.Tenant,
		k.partitions, k.bases, k.times, p.MaxBytes,
	}
	var text, states []byte
	answer := popAnswer{name: "pop list"}
	if err := s.scanOne(ctx, "pop list", call, args, &text, &answer.blobs, &states); err != nil {
		return PopListResult{}, err
	}
	if err := json.Unmarshal(text, &answer.meta); err != nil {
		return PopListResult{}, fmt.Errorf("pop list: %w: %w", errAnswer, err)
	}
	var result PopListResult
	var err error
	if result.Claimed, err = answer.popped(); err != nil {
		return result, err
	}
	if result.States, result.Unseeded, err = parseStates(states); err != nil {
		return result, fmt.Errorf("pop list: %w", err)
	}
	return result, nil
}

// parseStates reads the verdicts of a list pop, and whether they say that the
// group has no record for the queue.
func parseStates(text []byte) (states []CandidateState, unseeded bool, err error) {
	var rows []struct {
		Partition string    `json:"p"`
		State     string    `json:"s"`
		Until     time.Time `json:"until"`
		LastOff   int64     `json:"lastOff"`
		Locked    bool      `json:"locked"`
		Unseeded  bool      `json:"unseeded"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, false, fmt.Errorf("%w: %w", errAnswer, err)
	}
	states = make([]CandidateState, len(rows))
	for i, r := range rows {
		states[i] = CandidateState{Partition: r.Partition, State: r.State, Until: r.Until, LastOffset: r.LastOff, Locked: r.Locked}
		unseeded = unseeded || r.Unseeded
	}
	return states, unseeded, nil
}

// RefreshStatsPaged is RefreshStats in pages of so many partitions and queues.
func (s *Store) RefreshStatsPaged(ctx context.Context, every time.Duration, lanes, queues int) (StatsTurn, StatsSummary, error) {
	return s.refreshStats(ctx, every, lanes, queues)
}

// BeginRetainedBytesPaged is BeginRetainedBytes in pages of so many segments.
func (s *Store) BeginRetainedBytesPaged(ctx context.Context, every time.Duration, page int) (*RetainedBytes, StatsTurn, error) {
	return s.beginRetainedBytes(ctx, every, page)
}

// Run makes a statement of a test on the session of a leader.
func (m *MaintenanceSession) Run(ctx context.Context, sql string) error {
	return m.do(ctx, "test", func(ctx context.Context) error {
		_, err := m.conn.Exec(ctx, sql)
		return err
	})
}

// Setting reads a parameter of the session.
func (m *MaintenanceSession) Setting(ctx context.Context, name string) (value string, err error) {
	err = m.row(ctx, "test", `SELECT current_setting($1)`, []any{name}, &value)
	return value, err
}

// GroupLagsPaged is GroupLags in pages of so many partitions.
func (s *Store) GroupLagsPaged(ctx context.Context, maxQueues, lanes int) ([]GroupLag, error) {
	return s.groupLags(ctx, maxQueues, lanes)
}
