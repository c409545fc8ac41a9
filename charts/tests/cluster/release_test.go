package cluster_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// patience is what an installation, an upgrade or a rollback may take.
const patience = 5 * time.Minute

// Services, as the label app.kubernetes.io/component calls them, and their ports.
const (
	broker, brokerPort, brokerOps = "broker", 6632, 6640
	maintainer, maintainerOps     = "maintainer", 6641
	sweeper, sweeperOps           = "sweeper", 6642
)

// release is an installation of the chart.
type release struct {
	*cluster
	name string
	// database are the values of how the database is reached and its schema applied.
	database []string
}

// at asks helm for something, with the settings of this release.
func (r *release) at(t *testing.T, args ...string) string {
	t.Helper()
	out := r.run(t, r.helm, append(args, "--namespace", r.namespace)...)
	require.NotContains(t, out, "would violate PodSecurity")
	return out
}

// values are the arguments of an installation or upgrade.
func (r *release) values(set []string) []string {
	args := []string{"--values", "testdata/values.yaml", "--wait", "--timeout", patience.String(), "--set", "image.tag=" + r.tag}
	if r.registry != "" {
		args = append(args, "--set", "image.registry="+r.registry)
	}
	for _, pair := range slices.Concat(r.database, set) {
		args = append(args, "--set", pair)
	}
	return args
}

func (r *release) install(t *testing.T, set ...string) {
	t.Helper()
	r.at(t, append([]string{"install", r.name, chartDir}, r.values(set)...)...)
	r.requireHealthy(t)
}

// upgrade changes the release, and waits until the pods of before are gone.
func (r *release) upgrade(t *testing.T, set ...string) {
	t.Helper()
	r.at(t, append([]string{"upgrade", r.name, chartDir}, r.values(set)...)...)
	r.requireHealthy(t)
}

// rollback goes back to a former revision.
func (r *release) rollback(t *testing.T, revision int) {
	t.Helper()
	r.at(t, "rollback", r.name, strconv.Itoa(revision), "--wait", "--timeout", patience.String())
	r.requireHealthy(t)
}

// test runs `helm test` and logs the report.
func (r *release) test(t *testing.T) {
	t.Helper()
	out := r.at(t, "test", r.name, "--logs", "--timeout", "2m")
	require.Contains(t, out, "Phase:          Succeeded")
	_, report, _ := strings.Cut(out, "POD LOGS:")
	require.NotEmpty(t, report, "no report in:\n%s", out)
	t.Logf("report of broker check:%s", strings.TrimRight("\n"+report, "\n"))
}

// full is the name of an object of the release.
func (r *release) full(suffix string) string {
	if strings.Contains(r.name, "queen") {
		return r.name + "-" + suffix
	}
	return r.name + "-queen-" + suffix
}

func (r *release) url() string { return fmt.Sprintf("http://%s:%d", r.full(broker), brokerPort) }

// selector finds what belongs to the release, or to a service of it.
func (r *release) selector(service string) string {
	s := "app.kubernetes.io/instance=" + r.name
	if service != "" {
		s += ",app.kubernetes.io/component=" + service
	}
	return s
}

// pods of a service, those that end included.
func (r *release) pods(t *testing.T, service string) []corev1.Pod {
	t.Helper()
	return get[corev1.PodList](t, r.cluster, "pods", "--selector", r.selector(service)).Items
}

// requireHealthy requires that, soon, there is no pod but ready ones of the last revision.
func (r *release) requireHealthy(t *testing.T) {
	t.Helper()
	for _, service := range []string{broker, maintainer, sweeper} {
		r.kube(t, "rollout", "status", "deployment/"+r.full(service), "--timeout="+patience.String())
		r.eventually(t, 2*time.Minute, r.name+": all pods of the "+service+" are ready, and those of before are gone", func() string {
			pods := r.pods(t, service)
			require.NotEmpty(t, pods)
			for i := range pods {
				if pods[i].DeletionTimestamp != nil || !ready(&pods[i]) {
					return r.kube(t, "get", "pods", "--selector", r.selector(service))
				}
				requireNoRestart(t, &pods[i])
			}
			return ""
		})
	}
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func requireNoRestart(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, s := range pod.Status.ContainerStatuses {
		require.Zero(t, s.RestartCount, "%s was started again: %v", pod.Name, s.LastTerminationState)
	}
}

// names of pods, by which those of before and after are told apart.
func (r *release) names(t *testing.T, service string) []string {
	t.Helper()
	var names []string
	for _, pod := range r.pods(t, service) {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return names
}

// requireReplaced requires that none of the pods of before is there any more.
func (r *release) requireReplaced(t *testing.T, before map[string][]string) {
	t.Helper()
	for service, names := range before {
		now := r.names(t, service)
		require.Len(t, now, len(names))
		for _, name := range now {
			require.NotContains(t, names, name, "a pod of the %s was not replaced", service)
		}
	}
}

func (r *release) allNames(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, service := range []string{broker, maintainer, sweeper} {
		all[service] = r.names(t, service)
	}
	return all
}
