package e2e_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	histogram = dto.MetricType_HISTOGRAM
)

// family is what dashboards and alerts rely on: a name, a type, and the names of labels.
type family struct {
	name   string
	kind   dto.MetricType
	labels string // sorted, one blank between two
}

// ofAll are the families of every process.
func ofAll() []family {
	return []family{
		{"queen_process_resident_memory_bytes", gauge, ""},
		{"queen_uptime_seconds", gauge, ""},
		{"queen_event_loop_lag_avg_milliseconds", gauge, ""},
		{"queen_db_pool_size", gauge, ""},
		{"queen_db_pool_idle", gauge, ""},
		{"queen_db_pool_active", gauge, ""},
		{"queen_db_pool_max", gauge, ""},
		{"queen_db_pool_waiting", gauge, ""},
		{"queen_db_pool_waits_total", counter, ""},
		{"queen_db_pool_wait_seconds_total", counter, ""},
		{"queen_collector_flushes_total", counter, "outcome"},
	}
}

func ofBrokers() []family {
	return append(ofAll(), []family{
		{"queen_process_push_requests_total", counter, ""},
		{"queen_process_push_messages_total", counter, ""},
		{"queen_process_pop_requests_total", counter, ""},
		{"queen_process_pop_messages_total", counter, ""},
		{"queen_process_ack_requests_total", counter, ""},
		{"queen_process_ack_messages_total", counter, ""},
		{"queen_parked_long_polls", gauge, "queue"},
		{"queen_cluster_push_requests_total", counter, "scope"},
		{"queen_cluster_push_messages_total", counter, "scope"},
		{"queen_cluster_pop_requests_total", counter, "scope"},
		{"queen_cluster_pop_messages_total", counter, "scope"},
		{"queen_cluster_ack_requests_total", counter, "scope"},
		{"queen_cluster_ack_messages_total", counter, "scope"},
		{"queen_cluster_transactions_total", counter, "scope"},
		{"queen_cluster_db_errors_total", counter, "scope"},
		{"queen_cluster_dlq_total", counter, "scope"},
		{"queen_cluster_ack_total", counter, "result scope"},
		{"queen_queue_push_requests_per_minute", gauge, "queue"},
		{"queen_queue_push_messages_per_minute", gauge, "queue"},
		{"queen_queue_pop_messages_per_minute", gauge, "queue"},
		{"queen_queue_pop_empty_per_minute", gauge, "queue"},
		{"queen_queue_transactions_per_minute", gauge, "queue"},
		{"queen_queue_conflated_per_minute", gauge, "queue"},
		{"queen_queue_parked_consumers", gauge, "queue"},
		{"queen_queue_metrics_age_seconds", gauge, "queue"},
		{"queen_queue_ack_per_minute", gauge, "queue result"},
		{"queen_queue_pop_lag_milliseconds", gauge, "queue stat"},
		{"queen_dlq_depth", gauge, "scope"},
		{"queen_dlq_depth_by_queue", gauge, "queue"},
		{"queen_batches_fired_total", counter, "op"},
		{"queen_batch_items_fired_total", counter, "op"},
		{"queen_fusion_items_per_batch", gauge, "op"},
		{"queen_batch_rtt_milliseconds", gauge, "op quantile"},
		{"queen_commit_duration_seconds", histogram, "op"},
		{"queen_pop_fill_wait_total", counter, ""},
		{"queen_pop_fill_wait_microseconds_total", counter, ""},
		{"queen_pop_targeted_total", counter, ""},
		{"queen_pop_wildcard_total", counter, ""},
		{"queen_admission_budget", gauge, ""},
		{"queen_admission_trains_per_s", gauge, ""},
		{"queen_admission_txn_per_train", gauge, ""},
		{"queen_admission_cycle_ms", gauge, ""},
		{"queen_admission_inflight", gauge, "lane"},
		{"queen_admission_waiting", gauge, "lane"},
		{"queen_file_buffer_pending", gauge, ""},
		{"queen_file_buffer_failed", gauge, ""},
		{"queen_file_buffer_db_healthy", gauge, ""},
		{"queen_maintenance_mode_enabled", gauge, ""},
		{"queen_kv_ops_total", counter, "op outcome path"},
		{"queen_kv_bytes_total", counter, "direction"},
		{"queen_kv_read_rejected_total", counter, "reason"},
		{"queen_kv_singleflight_coalesced_total", counter, ""},
		{"queen_kv_op_duration_milliseconds", gauge, "quantile"},
		{"queen_kv_pool", gauge, "state"},
		{"queen_timers_schedule_rejected_total", counter, "reason"},
		{"queen_ephemeral_bytes", gauge, ""},
		{"queen_ephemeral_queues", gauge, ""},
		{"queen_ephemeral_messages_total", counter, "verb"},
		{"queen_ephemeral_dropped_total", counter, "cause"},
		{"queen_ephemeral_forwarded_total", counter, ""},
		{"queen_ephemeral_wipes_total", counter, ""},
	}...)
}

func ofSweepers() []family {
	return append(ofAll(), []family{
		{"queen_kv_expired_not_pruned", gauge, ""},
		{"queen_kv_expired_not_pruned_capped", gauge, ""},
		{"queen_kv_expiry_lag_seconds", gauge, ""},
		{"queen_sweeper_cycle_milliseconds", gauge, "phase"},
		{"queen_sweeper_sleep_milliseconds", gauge, ""},
		{"queen_sweeper_rows_total", counter, "phase"},
		{"queen_sweeper_phase_skipped_total", counter, "phase"},
		{"queen_sweeper_skip_locked_total", counter, "phase"},
		{"queen_timers_fired_total", counter, "result"},
		{"queen_timers_fire_failures_total", counter, "class"},
		{"queen_timers_dlq_total", counter, ""},
		{"queen_timers_poisoned_total", counter, ""},
		{"queen_timers_fire_lag_tenants_dropped_total", counter, ""},
		{"queen_timers_due", gauge, ""},
		{"queen_timers_due_capped", gauge, ""},
		{"queen_timers_oldest_late_seconds", gauge, ""},
		{"queen_timers_fire_lag_seconds", gauge, "quantile tenant"},
		{"queen_timers_lateness_seconds", histogram, ""},
	}...)
}

func ofMaintainers() []family {
	return append(ofAll(), []family{
		{"queen_retention_leader", gauge, ""},
		{"queen_retention_since_success_seconds", gauge, ""},
		{"queen_stats_age_seconds", gauge, "lane"},
		{"queen_postgres_up", gauge, ""},
		{"queen_postgres_oldest_snapshot_seconds", gauge, ""},
		{"queen_postgres_longest_transaction_seconds", gauge, ""},
		{"queen_postgres_long_transactions", gauge, ""},
		{"queen_postgres_longest_idle_transaction_seconds", gauge, ""},
		{"queen_postgres_idle_transactions", gauge, ""},
		{"queen_postgres_lock_waiters", gauge, ""},
		{"queen_postgres_connections", gauge, ""},
		{"queen_postgres_max_connections", gauge, ""},
		{"queen_postgres_reserved_connections", gauge, ""},
		{"queen_postgres_horizon_age", gauge, "holder"},
		{"queen_postgres_freeze_age", gauge, ""},
		{"queen_postgres_table_live_rows", gauge, "table"},
		{"queen_postgres_table_dead_rows", gauge, "table"},
		{"queen_postgres_database_size_bytes", gauge, ""},
		{"queen_postgres_wal_size_bytes", gauge, ""},
		{"queen_postgres_wal_written_bytes_total", counter, ""},
		{"queen_queue_partitions", gauge, "queue"},
		{"queen_queue_pending_messages", gauge, "queue"},
		{"queen_queue_processing_messages", gauge, "queue"},
		{"queen_queue_retained_bytes", gauge, "queue"},
		{"queen_queue_oldest_pending_seconds", gauge, "queue"},
		{"queen_consumer_group_lag_messages", gauge, "group queue"},
	}...)
}

// forced is what the linter would have otherwise, about names and labels that dashboards
// made for the original system rely on.
func forced() map[string]string {
	const (
		millis       = `use base unit "seconds" instead of "milliseconds"`
		micros       = `use base unit "seconds" instead of "microseconds"`
		abbreviation = `metric names should not contain abbreviated units`
		quantile     = `non-summary metrics should not have "quantile" label`
	)
	return map[string]string{
		"queen_admission_cycle_ms":               abbreviation,
		"queen_admission_trains_per_s":           abbreviation,
		"queen_batch_rtt_milliseconds":           quantile + "; " + millis,
		"queen_event_loop_lag_avg_milliseconds":  millis,
		"queen_kv_op_duration_milliseconds":      quantile + "; " + millis,
		"queen_pop_fill_wait_microseconds_total": micros,
		"queen_queue_pop_lag_milliseconds":       millis,
		"queen_sweeper_cycle_milliseconds":       millis,
		"queen_sweeper_sleep_milliseconds":       millis,
		"queen_timers_fire_lag_seconds":          quantile,
	}
}

// seriesOf are the series of a family by the values of their labels, in order of their names.
func seriesOf(f *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		out[strings.Join(labels, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return out
}

func requireFamilies(t *testing.T, got map[string]*dto.MetricFamily, want []family) {
	t.Helper()
	for _, w := range want {
		f := got[w.name]
		if !assert.NotNil(t, f, w.name) {
			continue
		}
		assert.Equal(t, w.kind, f.GetType(), w.name)
		assert.NotEmpty(t, f.GetHelp(), w.name)
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			assert.Equal(t, w.labels, strings.Join(labels, " "), w.name)
		}
	}
}

// lint returns what the rules of promtool say against families, each thing once.
func lint(t *testing.T, families map[string]*dto.MetricFamily) (problems map[string]string) {
	t.Helper()
	found, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()
	require.NoError(t, err)
	texts := map[string][]string{}
	for _, p := range found {
		if !slices.Contains(texts[p.Metric], p.Text) {
			texts[p.Metric] = append(texts[p.Metric], p.Text)
		}
	}
	problems = map[string]string{}
	for name, all := range texts {
		problems[name] = strings.Join(slices.Sorted(slices.Values(all)), "; ")
	}
	return problems
}

// TestMetricsOfAnInstallationAtWork has one process of each kind, does a known amount of
// work, and reads all that they show.
func TestMetricsOfAnInstallationAtWork(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "METRICS_FLUSH_MS=1000")
	s := harness.StartSweeper(t, b.DB)
	q := queueName(t)
	b.PushTogether(t, q, "p", 4)
	acks := b.Pop(t, q, "consumerGroup=g&batch=3").Acks("completed")
	require.Len(t, acks, 3)
	acks[2].Status = "dlq"
	b.AckOK(t, "g", acks...)
	b.Commit(t, harness.Transaction{Operations: []any{harness.PushOp(harness.Item{Queue: q, Partition: "r", Payload: 1})}})
	require.Equal(t, http.StatusOK, b.Post(t, "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]}`).Status)
	scheduleInDatabase(t, b.DB, q+"-timers", "now")
	idle := q + "-idle"
	b.Configure(t, idle, `{}`)
	waiting, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = b.TryPop(waiting, "/api/v1/pop/queue/"+idle+"?wait=true&timeout=60000")
	}()
	defer func() { cancel(); <-gone }()

	m := harness.StartMaintainer(t, b.DB, b.DB.Monitor(t)...) // it looks at once, and then every ten seconds

	var broker, sweeper, maintainer map[string]*dto.MetricFamily
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		broker = harness.Families(t, b.Client)
		for name, want := range map[string]map[string]float64{
			"queen_cluster_push_messages_total": {"cluster": 5}, "queen_cluster_ack_total": {"success cluster": 3, "failed cluster": 0},
			"queen_cluster_ack_messages_total": {"cluster": 3}, "queen_cluster_transactions_total": {"cluster": 1}, "queen_cluster_dlq_total": {"cluster": 1},
			"queen_process_push_messages_total": {"": 5}, "queen_process_pop_messages_total": {"": 3}, "queen_process_ack_messages_total": {"": 3},
			"queen_dlq_depth": {"cluster": 1}, "queen_dlq_depth_by_queue": {q: 1, idle: 0, q + "-timers": 0},
			"queen_parked_long_polls": {idle: 1},
		} {
			assert.Equal(c, want, seriesOf(broker[name]), name)
		}
		rates := seriesOf(broker["queen_queue_metrics_age_seconds"])
		assert.Contains(c, rates, q)
		assert.Contains(c, rates, idle, "somebody waits for it")
	}, sweeping, 50*time.Millisecond)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		sweeper = harness.Families(t, s.Client)
		assert.InDelta(c, 1, seriesOf(sweeper["queen_sweeper_rows_total"])["fire"], 0)
		assert.InDelta(c, 1, seriesOf(sweeper["queen_timers_lateness_seconds"])[""], 0)
	}, sweeping, 50*time.Millisecond)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		maintainer = harness.Families(t, m.Client)
		assert.Equal(c, map[string]float64{"": 1}, seriesOf(maintainer["queen_postgres_up"]))
		assert.Equal(c, map[string]float64{"g " + q: 2}, seriesOf(maintainer["queen_consumer_group_lag_messages"]), "one that is left, and one of a new partition")
		assert.Subset(c, slices.Collect(maps.Keys(seriesOf(maintainer["queen_queue_partitions"]))), []string{q, idle})
	}, sweeping, 50*time.Millisecond)

	requireFamilies(t, broker, ofBrokers())
	requireFamilies(t, sweeper, ofSweepers())
	requireFamilies(t, maintainer, ofMaintainers())
	require.Subset(t, slices.Collect(maps.Keys(seriesOf(broker["queen_kv_read_rejected_total"]))), []string{"rate_limited", "quota", "pool", "disabled"})
	require.ElementsMatch(t, []string{"fired", "stale", "duplicate"}, slices.Collect(maps.Keys(seriesOf(sweeper["queen_timers_fired_total"]))))
	for _, name := range []string{"queen_queue_depth_total", "queen_queue_depth_pending"} {
		require.NotContains(t, broker, name)
	}

	all := maps.Clone(broker)
	maps.Copy(all, sweeper)
	maps.Copy(all, maintainer)
	require.Equal(t, forced(), lint(t, all))
}

// TestMetricsAreBoundedAndOutliveTheDatabase has one queue more than may have series of
// their own, and then a table that cannot be read.
func TestMetricsAreBoundedAndOutliveTheDatabase(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_METRICS_MAX_QUEUES=1", "METRICS_FLUSH_MS=1000")
	q := queueName(t)
	b.PushTogether(t, q, "p", 1)
	for _, more := range []string{"-b", "-c"} {
		b.PushTogether(t, q+more, "p", 2)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		families := harness.Families(t, b.Client)
		assert.Equal(c, map[string]float64{q: 1, "other": 4}, seriesOf(families["queen_queue_push_messages_per_minute"]))
		assert.Equal(c, map[string]float64{q: 0, "other": 0}, seriesOf(families["queen_dlq_depth_by_queue"]))
	}, sweeping, 50*time.Millisecond)
	a := b.Get(t, "/metrics/prometheus")
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", a.Header.Get("Content-Type"))
	require.Equal(t, "no-cache", a.Header.Get("Cache-Control"))

	release := lockTable(t, b, "queue_lag_metrics")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		families := harness.Families(t, b.Client)
		assert.Equal(c, map[string]float64{"": 0}, seriesOf(families["queen_file_buffer_db_healthy"]))
		for _, name := range []string{"queen_cluster_push_messages_total", "queen_queue_push_messages_per_minute", "queen_dlq_depth", "queen_dlq_depth_by_queue"} {
			assert.NotContains(c, families, name)
		}
		assert.Equal(c, map[string]float64{"": 5}, seriesOf(families["queen_process_push_messages_total"]))
		assert.Contains(c, families, "queen_admission_budget")
	}, sweeping, 50*time.Millisecond)
	release()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		families := harness.Families(t, b.Client)
		assert.Equal(c, map[string]float64{"": 1}, seriesOf(families["queen_file_buffer_db_healthy"]))
		assert.Contains(c, families, "queen_cluster_push_messages_total")
	}, sweeping, 50*time.Millisecond)
}
