package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// groupLagPage is how many partitions one statement looks at. Measured figures stand in
// sql/procedures/023_prometheus.sql.
const groupLagPage = 50_000

// PrometheusMetrics is what a scrape of a broker asks of the database.
type PrometheusMetrics struct {
	// Cluster are the lifetime totals of the installation; the state of a process,
	// which is part of the type, is not in them.
	Cluster     WorkerMetrics
	Rates       []QueueRate
	DeadLetters []QueueDeadLetters
}

// QueueRate is what happened to a queue in the most recent minute that is known of
// it. Its lag is the age of messages at their delivery.
type QueueRate struct {
	Queue        string
	AgeSeconds   float64 // since that minute began
	PushRequests int64
	PushMessages int64
	PopMessages  int64
	PopEmpty     int64
	AckSuccess   int64
	AckFailed    int64
	Transactions int64
	Parked       float64
	AvgLagMillis float64
	MaxLagMillis float64
}

// QueueDeadLetters is how many dead letters a queue has.
type QueueDeadLetters struct {
	Queue string
	Count int64
}

// metricsColumns are aligned arrays, as the database gives them.
type metricsColumns struct {
	cluster                                                                             []byte
	queues, dlqQueues                                                                   []string
	pushRequests, pushMessages, popMessages, popEmpty, ackSuccess, ackFailed, txns, dlq []int64
	ages, parked, avgLags, maxLags                                                      []float64
}

// PrometheusMetrics reads the totals of the installation, and the rates and dead letters
// of queues (get_prometheus_metrics_v1): of the first maxQueues by name, and of all
// others together as the queue other.
func (s *Store) PrometheusMetrics(ctx context.Context, maxQueues int) (PrometheusMetrics, error) {
	var c metricsColumns
	err := s.scanOne(ctx, "read metrics", `SELECT r_cluster, r_queue, r_age_seconds, r_push_requests, r_push_messages, r_pop_messages,
			r_pop_empty, r_ack_success, r_ack_failed, r_transactions, r_parked, r_avg_lag_ms, r_max_lag_ms, r_dlq_queue, r_dead_letters
		FROM queen.get_prometheus_metrics_v1($1)`, []any{maxQueues},
		&c.cluster, &c.queues, &c.ages, &c.pushRequests, &c.pushMessages, &c.popMessages,
		&c.popEmpty, &c.ackSuccess, &c.ackFailed, &c.txns, &c.parked, &c.avgLags, &c.maxLags, &c.dlqQueues, &c.dlq)
	if err != nil {
		return PrometheusMetrics{}, err
	}
	return c.metrics()
}

func (c *metricsColumns) metrics() (PrometheusMetrics, error) {
	m := PrometheusMetrics{Rates: make([]QueueRate, len(c.queues)), DeadLetters: make([]QueueDeadLetters, len(c.dlqQueues))}
	if c.cluster != nil {
		if err := json.Unmarshal(c.cluster, &m.Cluster); err != nil {
			return m, fmt.Errorf("read metrics: %w: %w", errAnswer, err)
		}
	}
	for i := range c.queues {
		m.Rates[i] = QueueRate{
			Queue: c.queues[i], AgeSeconds: c.ages[i], PushRequests: c.pushRequests[i], PushMessages: c.pushMessages[i],
			PopMessages: c.popMessages[i], PopEmpty: c.popEmpty[i], AckSuccess: c.ackSuccess[i], AckFailed: c.ackFailed[i],
			Transactions: c.txns[i], Parked: c.parked[i], AvgLagMillis: c.avgLags[i], MaxLagMillis: c.maxLags[i],
		}
	}
	for i := range c.dlqQueues {
		m.DeadLetters[i] = QueueDeadLetters{Queue: c.dlqQueues[i], Count: c.dlq[i]}
	}
	return m, nil
}

// QueueBacklog are the reconciled figures of a queue.
type QueueBacklog struct {
	Queue                string
	Partitions           int64
	Pending, Processing  int64 // messages
	RetainedBytes        int64
	OldestPendingSeconds float64
}

// QueueBacklogs are the reconciled figures of queues (queue_backlogs_v1), bounded as
// those of PrometheusMetrics.
func (s *Store) QueueBacklogs(ctx context.Context, maxQueues int) (all []QueueBacklog, err error) {
	err = s.db.Do(ctx, "read backlogs", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT r_queue, r_partitions, r_pending, r_processing, r_retained_bytes, r_oldest_pending_sec
			FROM queen.queue_backlogs_v1($1)`, maxQueues)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[QueueBacklog])
		return err
	})
	return all, err
}

// GroupLag is how many messages of a queue are before a consumer group.
type GroupLag struct {
	Queue, Group string
	Messages     int64
}

// GroupLags adds up the lag of every consumer group of every queue, the queues bounded as
// those of PrometheusMetrics (group_lag_page_v1). It is a series of statements, each of
// which sees the partitions as they are then.
func (s *Store) GroupLags(ctx context.Context, maxQueues int) ([]GroupLag, error) {
	return s.groupLags(ctx, maxQueues, groupLagPage)
}

func (s *Store) groupLags(ctx context.Context, maxQueues, lanes int) ([]GroupLag, error) {
	type key struct{ queue, group string }
	sums := map[key]int64{}
	for next := new(uuid.UUID); next != nil; {
		page, after, err := s.groupLagPage(ctx, *next, lanes, maxQueues)
		if err != nil {
			return nil, err
		}
		for _, g := range page {
			sums[key{g.Queue, g.Group}] += g.Messages
		}
		next = after
	}
	all := make([]GroupLag, 0, len(sums))
	for k, n := range sums {
		all = append(all, GroupLag{k.queue, k.group, n})
	}
	return all, nil
}

// groupLagPage is one page of partitions, and where the next one begins, nil behind the
// last.
func (s *Store) groupLagPage(ctx context.Context, first uuid.UUID, lanes, maxQueues int) (page []GroupLag, next *uuid.UUID, err error) {
	err = s.db.Do(ctx, "read the lag of groups", func(ctx context.Context, conn *pgx.Conn) error {
		page, next = nil, nil
		rows, err := conn.Query(ctx, `SELECT r_queue, r_group, r_lag, r_next FROM queen.group_lag_page_v1($1, $2, $3)`, first, lanes, maxQueues)
		if err != nil {
			return err
		}
		var queue, group *string
		var lag int64
		_, err = pgx.ForEachRow(rows, []any{&queue, &group, &lag, &next}, func() error {
			if queue != nil && group != nil { // else a page without groups
				page = append(page, GroupLag{*queue, *group, lag})
			}
			return nil
		})
		return err
	})
	return page, next, err
}

// DatabaseHealth is the state of PostgreSQL, as far as it decides over ours. Times are in
// seconds.
type DatabaseHealth struct {
	OldestSnapshot      float64 `json:"oldestSnapshot"` // for so long nothing newer is vacuumed
	LongestTransaction  float64 `json:"longestTransaction"`
	LongTransactions    int64   `json:"longTransactions"` // of more than a minute
	LongestIdle         float64 `json:"longestIdle"`      // in a transaction
	IdleInTransaction   int64   `json:"idleInTransaction"`
	WaitingForLocks     int64   `json:"waitingForLocks"`
	Connections         int64   `json:"connections"` // of the whole server
	MaxConnections      int64   `json:"maxConnections"`
	ReservedConnections int64   `json:"reservedConnections"` // for superusers
	// Horizons is how many transactions ago whatever holds back the vacuum began, by
	// what it is: session, slot or prepared.
	Horizons      map[string]int64 `json:"horizons"`
	Tables        []TableRows      `json:"tables"`
	DatabaseBytes int64            `json:"databaseBytes"`
	FreezeAge     int64            `json:"freezeAge"`  // transactions since the oldest that is not frozen
	WALWritten    int64            `json:"walWritten"` // bytes since the cluster was made
	WALBytes      *int64           `json:"walBytes"`   // kept on disk; nil: the role may not look
}

// TableRows is an estimate of the rows of a table, and of those that wait for a vacuum.
type TableRows struct {
	Table string `json:"table"`
	Live  int64  `json:"live"`
	Dead  int64  `json:"dead"`
}

// DatabaseHealth reads the state of PostgreSQL (database_health_v1).
func (s *Store) DatabaseHealth(ctx context.Context) (h DatabaseHealth, err error) {
	err = s.document(ctx, "read the health of the database", &h, `SELECT queen.database_health_v1()`)
	return h, err
}
