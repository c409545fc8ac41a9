package boards_test

import (
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// mayBeEmpty are panels that show nothing while nothing is wrong, or where the role may
// not look.
func mayBeEmpty() map[string]bool {
	return map[string]bool{
		"Failures by route": true, "Dead letters by queue": true, "Stored bytes by queue": true, "Write-ahead log kept": true,
		"Failures": true, "Who holds the horizon": true, "Lateness": true,
	}
}

// TestEveryQueryHasAnAnswer evaluates dashboards and alerts over an installation that
// has done a little of everything.
func TestEveryQueryHasAnAnswer(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.everything(t)
	i.awaitCalm(t)
	i.everything(t)
	harness.Eventually(t, soon, "the collectors have flushed and the statistics are made", func() bool {
		return len(i.ask(`queen_queue_pending_messages`)) > 0 && len(i.ask(`queen_consumer_group_lag_messages`)) > 0 &&
			len(i.ask(`rate(queen_process_push_messages_total[1m]) > 0`)) > 0
	})
	names := i.metricNames()
	for _, d := range readDashboards(t) {
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			require.Regexp(t, `label_values\(([a-z_]+), instance\)`, string(v.Query))
		}
		for _, p := range d.Panels {
			answers := 0
			for _, target := range p.Targets {
				expr := query(target.Expr)
				requireKnown(t, names, expr, d.Title+": "+p.Title)
				answers += len(i.ask(expr))
			}
			if p.Type != "row" && !mayBeEmpty()[p.Title] {
				require.Positive(t, answers, "%s: %s", d.Title, p.Title)
			}
		}
	}
	for name, expr := range i.alerts {
		requireKnown(t, names, expr, name)
	}
	for name, rule := range readAlerts(t) {
		for _, found := range quotedSQL.FindAllStringSubmatch(runbook(rule), -1) {
			_, err := i.DB.Pool.Exec(t.Context(), found[1])
			require.NoError(t, err, "%s: %s", name, found[1])
		}
	}
}

// unknownUntilItHappens are metrics that are not there while the thing has not happened.
func unknownUntilItHappens() map[string]bool {
	return map[string]bool{"queen_postgres_wal_size_bytes": true, "queen_dlq_depth_by_queue": true, "queen_queue_retained_bytes": true}
}

// requireKnown makes sure that an expression names no metric that nobody exports.
func requireKnown(t *testing.T, names map[string]bool, expr, where string) {
	t.Helper()
	e, err := newParser().ParseExpr(expr)
	require.NoError(t, err, where)
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, m := range v.LabelMatchers {
			if m.Name == model.MetricNameLabel && !unknownUntilItHappens()[m.Value] {
				require.True(t, names[m.Value], "%s: nobody exports %s", where, m.Value)
			}
		}
		return nil
	})
}

// everything is a little of all that an installation does.
func (i *installation) everything(t *testing.T) {
	t.Helper()
	i.push(t, "mixed", 20)
	i.push(t, "left", 5)
	i.consume(t, "mixed", "completed")
	i.Pop(t, "left", "consumerGroup=readers")
	i.Post(t, "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"mixed","payload":1}]}]}`)
	i.Post(t, "/api/v1/kv", `{"operations":[{"op":"incr","ns":"n","key":"k","delta":1,"ttlSeconds":1}]}`)
	i.Post(t, "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"left","timerKey":"t","txn":"t","delayMs":0,"payload":"e30="}]}`)
	harness.Eventually(t, 30*time.Second, "the timer fires", func() bool { return i.sweeper.Metric(t, `queen_timers_fired_total{result="fired"}`) > 0 })
}
