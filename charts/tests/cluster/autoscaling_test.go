package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// scalingTime is what an autoscaler may take to follow the load: it looks each 15 s at
// metrics that are as old, and leaves out new pods at first.
const scalingTime = 5 * time.Minute

// testAutoscaling has brokers come and go with the load, which goes on all the while.
func testAutoscaling(t *testing.T, r *release) {
	r.requireMetrics(t)
	l := r.startLoad(t, r, "heavy", heavy)
	r.upgrade(t, scaled()...)
	r.requireBrokers(t, 3)
	r.requireHealthy(t)
	r.requireOneMesh(t)
	l.finish(t)
	l = r.startLoad(t, r, "light", light)
	r.requireBrokers(t, 2)
	r.requireHealthy(t)
	r.requireOneMesh(t)
	l.finish(t)
}

// scaled are values with which brokers follow the load within seconds. The heavy load is
// more than two may have of this request; the light one, with the polls of its clients, is
// less than two have.
func scaled() []string {
	const behavior = "broker.autoscaling.behavior."
	return []string{
		"broker.autoscaling.enabled=true", "broker.autoscaling.minReplicas=2", "broker.autoscaling.maxReplicas=3",
		"broker.resources.requests.cpu=200m", "broker.autoscaling.targetCPUPercent=60",
		behavior + "scaleUp.stabilizationWindowSeconds=0", behavior + "scaleUp.policies[0].type=Percent",
		behavior + "scaleUp.policies[0].value=100", behavior + "scaleUp.policies[0].periodSeconds=15",
		behavior + "scaleDown.stabilizationWindowSeconds=15", behavior + "scaleDown.policies[0].type=Pods",
		behavior + "scaleDown.policies[0].value=1", behavior + "scaleDown.policies[0].periodSeconds=15",
	}
}

// requireMetrics has the cluster's tool serve metrics of pods, and skips where nobody does.
func (c *cluster) requireMetrics(t *testing.T) {
	t.Helper()
	if c.tool != "" {
		c.run(t, c.tool, "metrics")
	}
	switch err := c.servesMetrics(t); {
	case err == nil:
	case c.requireHPA:
		require.NoError(t, err, "REQUIRE_HPA=1 asks for metrics of pods")
	default:
		t.Skipf("the cluster serves no metrics of pods (metrics-server), which autoscalers read: %v", err)
	}
}

// requireBrokers requires that the autoscaler comes to want a number of brokers, and has it.
func (r *release) requireBrokers(t *testing.T, want int32) {
	t.Helper()
	began := time.Now()
	r.eventually(t, scalingTime, fmt.Sprintf("the autoscaler has %d brokers", want), func() string {
		hpa := get[autoscalingv2.HorizontalPodAutoscaler](t, r.cluster, "hpa", r.full(broker))
		if hpa.Status.DesiredReplicas == want && hpa.Status.CurrentReplicas == want {
			return ""
		}
		return r.kube(t, "get", "hpa", r.full(broker)) + r.kube(t, "describe", "hpa", r.full(broker))
	})
	r.say(t, "that took %.0f s", time.Since(began).Seconds())
}

// leastBrokers are those that the autoscaler keeps whatever the load is.
const leastBrokers = 2

// requireLeastBrokers waits for the autoscaler: a Deployment that leaves its size to one
// begins with a single pod.
func (r *release) requireLeastBrokers(t *testing.T) {
	t.Helper()
	r.eventually(t, 2*time.Minute, fmt.Sprintf("the autoscaler has made %d brokers", leastBrokers), func() string {
		if n := len(r.names(t, broker)); n < leastBrokers {
			return fmt.Sprintf("%d brokers", n)
		}
		return ""
	})
	r.requireHealthy(t)
}
