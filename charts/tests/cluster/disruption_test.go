package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testDisruptions takes pods away as operators, nodes and failures do.
func testDisruptions(t *testing.T, r *release) {
	l := r.startLoad(t, r, "disruptions", steady)
	r.deleteLeader(t)
	r.deleteLeader(t, "--grace-period=0", "--force")
	r.evictBrokers(t)
	l.finish(t)
}

// deleteLeader deletes the maintainer that leads, and requires that another one makes the
// cycles then: one that was there already, or the one that takes its place.
func (r *release) deleteLeader(t *testing.T, how ...string) {
	t.Helper()
	var leader string
	r.eventually(t, time.Minute, r.name+": a maintainer leads", func() string {
		leader = r.leader(t, "")
		if leader == "" {
			return "none says so"
		}
		return ""
	})
	before := map[string]float64{}
	for _, pod := range r.names(t, maintainer) {
		before[pod] = r.cycles(t, pod)
	}
	r.kube(t, append([]string{"delete", "pod", leader, "--wait=false"}, how...)...)
	r.say(t, "%s, which led, is deleted %s", leader, strings.Join(how, " "))
	began := time.Now()
	r.eventually(t, time.Minute, "another maintainer leads and makes cycles", func() string {
		next := r.leader(t, leader)
		if next == "" || r.cycles(t, next) <= before[next] {
			return fmt.Sprintf("leader: %q, of %v", next, before)
		}
		return ""
	})
	r.say(t, "that took %.1f s", time.Since(began).Seconds())
	r.requireHealthy(t)
}

// leader is a maintainer whose last cycle was its own, other than one that is to be left
// out; none is "".
func (r *release) leader(t *testing.T, except string) string {
	t.Helper()
	for _, pod := range r.names(t, maintainer) {
		if pod != except && r.metric(t, pod, "queen_retention_leader") == 1 {
			return pod
		}
	}
	return ""
}

// cycles is how many a maintainer has made, and not left to another.
func (r *release) cycles(t *testing.T, pod string) float64 {
	t.Helper()
	return r.metric(t, pod, `queen_retention_cycles_total{outcome="idle"}`) + r.metric(t, pod, `queen_retention_cycles_total{outcome="swept"}`)
}

// metric is the value of a series of a maintainer; 0 where it does not answer.
func (r *release) metric(t *testing.T, pod, series string) float64 {
	t.Helper()
	text, err := r.ask(t, pod, maintainerOps, "/metrics")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err, line)
			return n
		}
	}
	return 0
}

// evictBrokers asks for all brokers to go at once, as draining their nodes does: only one
// may, until another has taken its place.
func (r *release) evictBrokers(t *testing.T) {
	t.Helper()
	pods := r.names(t, broker)
	require.Greater(t, len(pods), 1)
	require.NoError(t, r.evict(t, pods[0]))
	for _, pod := range pods[1:] {
		require.ErrorContains(t, r.evict(t, pod), "violate the pod's disruption budget")
	}
	r.say(t, "%s is evicted, and the others may not be", pods[0])
	r.requireHealthy(t)
	require.Subset(t, r.names(t, broker), pods[1:])
	r.eventually(t, time.Minute, "now another broker may go", func() string {
		if err := r.evict(t, pods[1]); err != nil {
			return err.Error()
		}
		return ""
	})
	r.requireHealthy(t)
	require.False(t, slices.Contains(r.names(t, broker), pods[1]))
}

// evict asks for a pod to go. The error says why it may not.
func (r *release) evict(t *testing.T, pod string) error {
	t.Helper()
	text, err := json.Marshal(policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: r.namespace},
	})
	require.NoError(t, err)
	_, err = r.try(t, string(text), r.kubectl, "create", "--filename", "-", "--raw",
		fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/eviction", r.namespace, pod))
	return err
}
