package boards_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// soon is by when an alert has to tell a fault.
const soon = 2 * time.Minute

// installation is what an operator runs, and the Prometheus that watches it.
type installation struct {
	*harness.Broker
	maintainer *harness.Maintainer
	sweeper    *harness.Sweeper
	*recorder
	alerts map[string]string // expressions by name
}

func install(t *testing.T, brokerEnv ...string) *installation {
	t.Helper()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Sweepers: 1, Env: brokerEnv})
	i := &installation{
		Broker: stage.Broker, sweeper: stage.Sweepers[0], alerts: map[string]string{},
		maintainer: harness.StartMaintainer(t, stage.DB, "STATS_INTERVAL_MS=1000"),
	}
	for name, rule := range readAlerts(t) {
		i.alerts[name] = rule.Expr
	}
	i.recorder = newRecorder(t,
		target{"queen-broker", "broker", i.URL + "/metrics/prometheus"},
		target{"queen-maintainer", "maintainer", i.maintainer.URL + "/metrics"},
		target{"queen-sweeper", "sweeper", i.sweeper.URL + "/metrics"})
	return i
}

// awaitCalm waits until every alert can be evaluated, and requires that none of them
// tells of anything.
func (i *installation) awaitCalm(t *testing.T) {
	t.Helper()
	harness.Eventually(t, soon, "everybody is scraped, and the first looks are over", func() bool {
		return len(i.ask(`queen_admission_budget`)) > 0 && len(i.ask(`queen_stats_age_seconds < 60`)) > 0 &&
			len(i.ask(`queen_postgres_up == 1`)) > 0 && len(i.ask(`rate(queen_sweeper_cycles_total[2m]) > 0`)) > 0
	})
	for name, expr := range i.alerts {
		require.Empty(t, i.ask(expr), name)
	}
}

// awaitAlert waits until an alert tells, and requires that no other one does but those
// that follow from the fault.
func (i *installation) awaitAlert(t *testing.T, name string, others ...string) {
	t.Helper()
	require.Contains(t, i.alerts, name)
	harness.Eventually(t, soon, name, func() bool { return len(i.ask(i.alerts[name])) > 0 })
	expected := map[string]bool{name: true}
	for _, o := range others {
		expected[o] = true
	}
	for other, expr := range i.alerts {
		if !expected[other] {
			require.Empty(t, i.ask(expr), other)
		}
	}
}
