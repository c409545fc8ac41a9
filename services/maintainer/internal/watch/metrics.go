package watch

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

const (
	queueKey  = attribute.Key("queue")
	groupKey  = attribute.Key("group")
	tableKey  = attribute.Key("table")
	holderKey = attribute.Key("holder")
)

// register makes the gauges.
func (w *Watch) register(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.postgres.up",
		metric.WithDescription("1 where the last look at the database succeeded."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			var up int64
			if w.up {
				up = 1
			}
			o.Observe(up)
			return nil
		}))
	_, err2 := meter.Int64ObservableGauge("queen.consumer_group.lag_messages",
		metric.WithDescription("Messages of a queue that a consumer group has before it. Groups that lag least may be added up as other."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.lags.fresh() {
				for _, g := range w.lags.seen {
					o.Observe(g.Messages, metric.WithAttributes(queueKey.String(g.Queue), groupKey.String(g.Group)))
				}
			}
			return nil
		}))
	_, err3 := meter.Int64ObservableGauge("queen.retention.switched_off_queues",
		metric.WithDescription("Queues that have windows of retention while their retention is switched off."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.off.fresh() {
				o.Observe(w.off.seen)
			}
			return nil
		}))
	return errors.Join(err1, err2, err3, w.registerHealth(meter), w.registerParts(meter), w.registerQueues(meter))
}

// registerHealth makes the gauges of the whole server.
func (w *Watch) registerHealth(meter metric.Meter) error {
	var errs []error
	for _, g := range []struct {
		name, unit, help string
		value            func(*store.DatabaseHealth) float64
	}{
		{"oldest_snapshot", "s", "Age of the oldest snapshot: for so long nothing newer is vacuumed.", func(h *store.DatabaseHealth) float64 { return h.OldestSnapshot }},
		{"longest_transaction", "s", "Age of the longest transaction.", func(h *store.DatabaseHealth) float64 { return h.LongestTransaction }},
		{"long_transactions", "", "Transactions that have lasted for more than a minute.", func(h *store.DatabaseHealth) float64 { return float64(h.LongTransactions) }},
		{"longest_idle_transaction", "s", "For how long the session has done nothing that did so longest in a transaction.", func(h *store.DatabaseHealth) float64 { return h.LongestIdle }},
		{"idle_transactions", "", "Sessions that do nothing in a transaction.", func(h *store.DatabaseHealth) float64 { return float64(h.IdleInTransaction) }},
		{"lock_waiters", "", "Sessions that wait for a lock.", func(h *store.DatabaseHealth) float64 { return float64(h.WaitingForLocks) }},
		{"connections", "", "Connections of the server, of all databases.", func(h *store.DatabaseHealth) float64 { return float64(h.Connections) }},
		{"max_connections", "", "Connections that the server allows.", func(h *store.DatabaseHealth) float64 { return float64(h.MaxConnections) }},
		{"reserved_connections", "", "Those of them that are for superusers.", func(h *store.DatabaseHealth) float64 { return float64(h.ReservedConnections) }},
		{"freeze_age", "", "Transactions since the oldest one that is not frozen; the server stops writing at two billion.", func(h *store.DatabaseHealth) float64 { return float64(h.FreezeAge) }},
		{"database_size", "By", "Size of the database.", func(h *store.DatabaseHealth) float64 { return float64(h.DatabaseBytes) }},
	} {
		_, err := meter.Float64ObservableGauge("queen.postgres."+g.name, metric.WithUnit(g.unit), metric.WithDescription(g.help),
			metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
				w.withHealth(func(h *store.DatabaseHealth) { o.Observe(g.value(h)) })
				return nil
			}))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// registerParts makes the instruments that have a label, or may have no value.
func (w *Watch) registerParts(meter metric.Meter) error {
	tables := func(name, help string, value func(store.TableRows) int64) error {
		_, err := meter.Int64ObservableGauge("queen.postgres."+name, metric.WithDescription(help),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				w.withHealth(func(h *store.DatabaseHealth) {
					for _, t := range h.Tables {
						o.Observe(value(t), metric.WithAttributes(tableKey.String(t.Table)))
					}
				})
				return nil
			}))
		return err
	}
	_, err1 := meter.Int64ObservableGauge("queen.postgres.horizon_age",
		metric.WithDescription("Transactions since the oldest that a session, a replication slot or a prepared transaction still sees, by holder."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.withHealth(func(h *store.DatabaseHealth) {
				for holder, age := range h.Horizons {
					o.Observe(age, metric.WithAttributes(holderKey.String(holder)))
				}
			})
			return nil
		}))
	_, err2 := meter.Int64ObservableGauge("queen.postgres.wal_size", metric.WithUnit("By"),
		metric.WithDescription("Write-ahead log kept on disk; none where the role is no member of pg_monitor."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.withHealth(func(h *store.DatabaseHealth) {
				if h.WALBytes != nil {
					o.Observe(*h.WALBytes)
				}
			})
			return nil
		}))
	_, err3 := meter.Int64ObservableCounter("queen.postgres.wal_written", metric.WithUnit("By"),
		metric.WithDescription("Write-ahead log written since the server was set up."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			w.withHealth(func(h *store.DatabaseHealth) { o.Observe(h.WALWritten) })
			return nil
		}))
	return errors.Join(err1, err2, err3,
		tables("table_live_rows", "Rows of a table that is written often, about.", func(t store.TableRows) int64 { return t.Live }),
		tables("table_dead_rows", "Row versions of such a table that wait for a vacuum, about.", func(t store.TableRows) int64 { return t.Dead }))
}

// withHealth hands out what was seen of the server, unless that is stale.
func (w *Watch) withHealth(use func(*store.DatabaseHealth)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.health.fresh() {
		use(&w.health.seen)
	}
}

// registerQueues makes the gauges of queues.
func (w *Watch) registerQueues(meter metric.Meter) error {
	var errs []error
	for _, g := range []struct {
		name, unit, help string
		value            func(*store.QueueBacklog) float64
	}{
		{"partitions", "", "Partitions of a queue.", func(b *store.QueueBacklog) float64 { return float64(b.Partitions) }},
		{"pending_messages", "", "Messages of a queue that its slowest consumer group has before it.", func(b *store.QueueBacklog) float64 { return float64(b.Pending) }},
		{"processing_messages", "", "Messages of a queue that are leased.", func(b *store.QueueBacklog) float64 { return float64(b.Processing) }},
		{"retained", "By", "Stored bytes of a queue.", func(b *store.QueueBacklog) float64 { return float64(b.RetainedBytes) }},
		{"oldest_pending", "s", "Age of the oldest message of a queue that a consumer group has before it; 0 without one.", func(b *store.QueueBacklog) float64 { return b.OldestPendingSeconds }},
	} {
		_, err := meter.Float64ObservableGauge("queen.queue."+g.name, metric.WithUnit(g.unit), metric.WithDescription(g.help),
			metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.backlogs.fresh() {
					for i := range w.backlogs.seen {
						b := &w.backlogs.seen[i]
						o.Observe(g.value(b), metric.WithAttributes(queueKey.String(b.Queue)))
					}
				}
				return nil
			}))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
