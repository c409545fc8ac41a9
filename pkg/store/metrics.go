package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Replica names one process of an installation.
type Replica struct {
	Service string // broker, maintainer or sweeper
	Host    string // the name of the instance
	Worker  int
	Port    int // of its listener, 0 for none
	PID     int
}

// Counted are the figures that are kept per queue and per process.
type Counted struct {
	PushRequests int64 `json:"push_requests"`
	PushMessages int64 `json:"push_messages"` // stored
	PopRequests  int64 `json:"pop_requests"`
	PopMessages  int64 `json:"pop_messages"`
	PopEmpty     int64 `json:"pop_empty"` // requests answered with nothing
	LagMicros    int64 `json:"lag_us"`    // ages of the popped messages, added up
	MaxLagMicros int64 `json:"max_lag_us"`
	AckRequests  int64 `json:"ack_requests"`
	AckSuccess   int64 `json:"ack_success"` // carried out, and deliveries under autoAck
	AckFailed    int64 `json:"ack_failed"`  // refused
	Transactions int64 `json:"transactions"`
}

// Add adds what somebody else has counted of the same.
func (c *Counted) Add(n *Counted) {
	c.PushRequests += n.PushRequests
	c.PushMessages += n.PushMessages
	c.PopRequests += n.PopRequests
	c.PopMessages += n.PopMessages
	c.PopEmpty += n.PopEmpty
	c.LagMicros += n.LagMicros
	c.MaxLagMicros = max(c.MaxLagMicros, n.MaxLagMicros)
	c.AckRequests += n.AckRequests
	c.AckSuccess += n.AckSuccess
	c.AckFailed += n.AckFailed
	c.Transactions += n.Transactions
}

// WorkerMetrics is what a process has counted, and its state at the flush.
type WorkerMetrics struct {
	Counted
	DeadLetters    int64    `json:"dlq_count"`
	DatabaseErrors int64    `json:"db_errors"`
	AvgLoopLag     *float64 `json:"avg_event_loop_lag_ms"` // nil without a sample
	MaxLoopLag     *float64 `json:"max_event_loop_lag_ms"`
	InUse          int      `json:"db_connections"`
	Idle           int      `json:"free_slots"`
	Parked         int64    `json:"parked"` // pops that wait
}

// QueueMetrics is what a process has counted of one queue, which is named either by
// tenant and name or by the id of one of its partitions.
type QueueMetrics struct {
	Tenant    *uuid.UUID `json:"tenant,omitempty"`
	Queue     *string    `json:"queue,omitempty"`
	Partition *uuid.UUID `json:"partition,omitempty"`
	Counted
	Parked int64 `json:"parked"` // pops that wait now
}

// SystemMetrics is the state of a process, as the readers expect it.
type SystemMetrics struct {
	CPU struct {
		User   int64 `json:"user_us"` // per cent of one processor, times 100
		System int64 `json:"system_us"`
	} `json:"cpu"`
	Memory struct {
		RSS int64 `json:"rss_bytes"`
	} `json:"memory"`
	Database struct {
		Size   int `json:"pool_size"`
		Idle   int `json:"pool_idle"`
		Active int `json:"pool_active"`
	} `json:"database"`
	Uptime int64 `json:"uptime_seconds"`
}

// MetricsFlush is what one replica has counted since its last flush.
type MetricsFlush struct {
	// ID is new for every flush, and the same when one is repeated.
	ID       uuid.UUID
	Replica  Replica
	Interval time.Duration // since the last flush
	Worker   WorkerMetrics
	System   SystemMetrics
	Queues   []QueueMetrics
}

// FlushMetrics writes one flush, all of it or nothing (metrics_flush_v1). A
// repeated one that was written before changes nothing. It returns the number of
// queues written; those that are gone are skipped.
func (s *Store) FlushMetrics(ctx context.Context, f *MetricsFlush) (queues int, err error) {
	args := []any{f.ID, f.Replica.Service, f.Replica.Host, f.Replica.Worker, f.Replica.Port, f.Replica.PID, f.Interval.Milliseconds()}
	for _, part := range []any{&f.Worker, &f.System, f.Queues} {
		text, err := json.Marshal(part)
		if err != nil {
			return 0, fmt.Errorf("flush metrics: %w", err)
		}
		args = append(args, string(text))
	}
	err = s.scanOne(ctx, "flush metrics",
		`SELECT queen.metrics_flush_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, COALESCE(NULLIF($10::JSONB, 'null'), '[]'))`, args, &queues)
	return queues, err
}

// FoldPartitionEvents moves at most rows counted creations and deletions of
// partitions to their queues, and returns how many it took
// (metrics_fold_partitions_v1).
func (s *Store) FoldPartitionEvents(ctx context.Context, rows int) (taken int, err error) {
	err = s.scanOne(ctx, "fold partition events", `SELECT queen.metrics_fold_partitions_v1($1)`, []any{rows}, &taken)
	return taken, err
}

// PurgeMetrics deletes what was recorded before cutoff, at most rows of each table,
// and returns how many went: by metrics_purge_v1 and system_metrics_purge_v1, each of
// which commits alone and is tried whatever became of the other.
func (m *MaintenanceSession) PurgeMetrics(ctx context.Context, cutoff time.Time, rows int) (deleted int64, err error) {
	for _, purge := range []struct{ name, call string }{
		{"purge metrics", `SELECT queen.metrics_purge_v1($1, $2)`},
		{"purge system metrics", `SELECT queen.system_metrics_purge_v1($1, $2)`},
	} {
		var n int64
		err = errors.Join(err, m.row(ctx, purge.name, purge.call, []any{cutoff, rows}, &n))
		deleted += n
	}
	return deleted, err
}
