package charttests

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// eachPod runs a test on all pods of the matrix.
func eachPod(t *testing.T, test func(t *testing.T, r rendered, pod manifest.Pod)) {
	t.Helper()
	eachRendering(t, func(t *testing.T, r rendered) {
		pods := r.objects.Pods()
		require.NotEmpty(t, pods)
		for _, pod := range pods {
			test(t, r, pod)
		}
	})
}

// The judgement is that of Kubernetes itself, which enforces it on namespaces that ask for it.
func TestPodsPassTheRestrictedSecurityStandard(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for _, result := range evaluator.EvaluatePod(restricted, &pod.Meta, &pod.Spec) {
			require.True(t, result.Allowed, "%s: %s %s", pod.Owner, result.ForbiddenReason, result.ForbiddenDetail)
		}
	})
}

// What the standard leaves open.
func TestPodsAreClosedFurther(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		require.False(t, *pod.Spec.AutomountServiceAccountToken, pod.Owner)
		require.False(t, *pod.Spec.EnableServiceLinks, "%s gets variables of every Service of the namespace", pod.Owner)
		require.NotEmpty(t, pod.Spec.ServiceAccountName, pod.Owner)
		require.True(t, *pod.Spec.SecurityContext.RunAsNonRoot, pod.Owner)
		if !strings.Contains(r.name, "openshift") {
			require.EqualValues(t, 65532, *pod.Spec.SecurityContext.RunAsUser, pod.Owner)
			require.EqualValues(t, 65532, *pod.Spec.SecurityContext.RunAsGroup, pod.Owner)
		} else {
			require.Nil(t, pod.Spec.SecurityContext.RunAsUser, pod.Owner)
			require.Nil(t, pod.Spec.SecurityContext.RunAsGroup, pod.Owner)
			require.Nil(t, pod.Spec.SecurityContext.FSGroup, pod.Owner)
		}
		require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.Spec.SecurityContext.SeccompProfile.Type, pod.Owner)
		for i := range pod.Spec.Containers {
			security := pod.Spec.Containers[i].SecurityContext
			require.True(t, *security.ReadOnlyRootFilesystem, pod.Owner)
			require.False(t, *security.AllowPrivilegeEscalation, pod.Owner)
			require.Equal(t, []corev1.Capability{"ALL"}, security.Capabilities.Drop, pod.Owner)
			require.Empty(t, security.Capabilities.Add, pod.Owner)
			require.Empty(t, pod.Spec.Containers[i].Command, "%s: the image's entrypoint is the service", pod.Owner)
		}
	})
}

// A spool is written to by the group of the process, so the volume has to belong to it.
func TestVolumesBelongToTheProcess(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		if len(pod.Volumes) > 0 {
			require.NotNil(t, pod.Spec.SecurityContext.FSGroup, pod.Owner)
			require.Equal(t, *pod.Spec.SecurityContext.RunAsGroup, *pod.Spec.SecurityContext.FSGroup)
		}
	})
}

func TestImagesSayWhatRuns(t *testing.T) {
	t.Parallel()
	reference := regexp.MustCompile(`^([a-z0-9.-]+/)?queenmq/queen-(broker|maintainer|sweeper)(:[A-Za-z0-9_][\w.-]*|@sha256:[0-9a-f]{64})$`)
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for i := range pod.Spec.Containers {
			image := pod.Spec.Containers[i].Image
			require.Regexp(t, reference, image)
			require.NotContains(t, image, ":latest")
			want := pod.Component()
			if !pod.Service {
				want = "broker" // which can migrate and check
			}
			require.Contains(t, image, "queen-"+want, pod.Owner)
		}
	})
}

// Readiness looks at schema and database; a liveness probe that did would restart every
// pod while the database is away.
func TestServicesAreProbed(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		container := pod.Spec.Containers[0]
		probes := map[string]*corev1.Probe{
			"/ready": container.ReadinessProbe, "/live": container.LivenessProbe, "/ready ": container.StartupProbe,
		}
		for path, probe := range probes {
			if !pod.Service {
				require.Nil(t, probe, "%s ends by itself", pod.Owner)
				continue
			}
			require.NotNil(t, probe, "%s: no probe of %s", pod.Owner, path)
			require.NotNil(t, probe.HTTPGet, pod.Owner)
			require.Equal(t, strings.TrimSpace(path), probe.HTTPGet.Path, pod.Owner)
			require.Equal(t, "ops", probe.HTTPGet.Port.String(), "%s: probes belong on the operations port", pod.Owner)
			_, found := pod.Port("ops", corev1.ProtocolTCP)
			require.True(t, found, pod.Owner)
			require.Zero(t, probe.InitialDelaySeconds, "%s: the startup probe makes delays unnecessary", pod.Owner)
			require.NotZero(t, probe.PeriodSeconds, pod.Owner)
			require.NotZero(t, probe.FailureThreshold, pod.Owner)
		}
	})
}

func TestProbesReachTheOperationsListener(t *testing.T) {
	t.Parallel()
	for component, number := range map[string]int32{"broker": 6640, "maintainer": 6641, "sweeper": 6642} {
		pod, found := render(t, scenarios(t)[0], newestKube).objects.Pod(component)
		require.True(t, found, component)
		port, _ := pod.Port("ops", corev1.ProtocolTCP)
		require.Equal(t, number, port, component)
		require.Equal(t, fmt.Sprintf(":%d", number), pod.Env()["QUEEN_OPS_ADDR"].Value, component)
	}
}

func TestPodsSayWhatTheyNeed(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for i := range pod.Spec.Containers {
			resources := pod.Spec.Containers[i].Resources
			require.Positive(t, resources.Requests.Cpu().MilliValue(), pod.Owner)
			require.Positive(t, resources.Requests.Memory().Value(), pod.Owner)
			require.GreaterOrEqual(t, resources.Limits.Memory().Value(), resources.Requests.Memory().Value(), pod.Owner)
			require.NotContains(t, resources.Limits, corev1.ResourceCPU, "%s would be throttled", pod.Owner)
		}
	})
}

// Go is told to stay a tenth below the limit, whatever unit the limit has.
func TestGoKnowsItsMemory(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		if !pod.Service {
			return
		}
		limit := pod.Spec.Containers[0].Resources.Limits.Memory().Value()
		require.Equal(t, fmt.Sprint(limit*90/100), pod.Env()["GOMEMLIMIT"].Value, pod.Owner)
	})
}

func TestPodsHaveTheLabelsOfTheirSelectors(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for _, label := range []string{"name", "instance", "component", "version", "part-of"} {
			require.NotEmpty(t, pod.Meta.Labels["app.kubernetes.io/"+label], "%s: no label %s", pod.Owner, label)
		}
		if pod.Selector != nil {
			require.True(t, pod.Matches(pod.Selector), pod.Owner)
		}
		for _, spread := range pod.Spec.TopologySpreadConstraints {
			require.True(t, pod.Matches(spread.LabelSelector), "%s: spread over pods of others", pod.Owner)
		}
	})
}

// Kubernetes refuses to change a selector: no value but the names may move it, nor may a
// new version of the chart.
func TestSelectorsAreFrozen(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		if pod.Selector == nil {
			return
		}
		name := "queen"
		if strings.Contains(r.name, "full") {
			name = "lanes" // its nameOverride
		}
		require.Empty(t, pod.Selector.MatchExpressions, pod.Owner)
		require.Equal(t, map[string]string{
			"app.kubernetes.io/name":      name,
			"app.kubernetes.io/instance":  "queen",
			"app.kubernetes.io/component": pod.Component(),
		}, maps.Clone(pod.Selector.MatchLabels), pod.Owner)
	})
}

func TestPodsAreSpread(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		if !pod.Service || strings.HasPrefix(r.name, "examples/") {
			return // examples may insist
		}
		var keys []string
		for _, spread := range pod.Spec.TopologySpreadConstraints {
			keys = append(keys, spread.TopologyKey)
			require.Equal(t, corev1.ScheduleAnyway, spread.WhenUnsatisfiable, "%s might not be scheduled", pod.Owner)
		}
		require.Equal(t, []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, keys, pod.Owner)
	})
}

// A pod is only killed after the longest drain has had its time.
func TestGraceOutlivesTheDrain(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		if !pod.Service {
			return
		}
		env := pod.Env()
		drain := milliseconds(t, env["QUEEN_SHUTDOWN_TIMEOUT_MS"].Value)
		if pod.Component() == "broker" {
			drain += milliseconds(t, env["QUEEN_SHUTDOWN_DELAY_MS"].Value)
		}
		require.GreaterOrEqual(t, *pod.Spec.TerminationGracePeriodSeconds*1000, drain+10_000, pod.Owner)
		require.Nil(t, pod.Spec.Containers[0].Lifecycle, "%s: the image has no shell for hooks", pod.Owner)
	})
}

func milliseconds(t *testing.T, text string) int64 {
	t.Helper()
	var number int64
	_, err := fmt.Sscan(text, &number)
	require.NoError(t, err)
	return number
}
