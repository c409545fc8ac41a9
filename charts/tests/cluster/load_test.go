package cluster_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// drainTime is what the load has, once it is told to end, to read what it has pushed.
const drainTime = 2 * time.Minute

// load is a soak that runs in the cluster.
type load struct {
	*cluster
	pod string
}

// verdict is the part of the soak's that is looked at here.
type verdict struct {
	OK                                                   bool
	Seconds                                              float64
	Pushed, Delivered, Acknowledged                      int64
	Lost, OutOfOrder, Duplicates, Redelivered, Reclaimed int64
	Timers                                               struct{ Scheduled, Delivered int64 }
	Errors                                               map[string]map[string]int64
	Deferred, Unexpected                                 map[string]int64
	Problems, Incidents                                  []string
}

// startLoad starts clients of a release that go on until finish, and waits until the first
// messages are stored.
func (c *cluster) startLoad(t *testing.T, r *release, name string, rate int) *load {
	t.Helper()
	l := &load{cluster: c, pod: "soak-" + name}
	c.apply(t, l.manifest(r.url(), rate))
	c.eventually(t, 2*time.Minute, fmt.Sprintf("%s pushes up to %d messages a second", l.pod, rate), func() string {
		if strings.Contains(l.logs(t), " pushed ") {
			return ""
		}
		return c.kube(t, "get", "pod", l.pod) + l.logs(t)
	})
	return l
}

func (l *load) manifest(url string, rate int) corev1.Pod {
	no, yes, nobody, grace := false, true, int64(65532), int64(drainTime.Seconds())
	return corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: l.pod},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			TerminationGracePeriodSeconds: &grace,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &nobody,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "soak", Image: l.image("queenmq/queen-soak"), ImagePullPolicy: corev1.PullIfNotPresent,
				// Idle connections are given up before a broker that ends does so: see the
				// shutdown delay of brokers.
				Args: []string{
					"-urls", url, "-queue", l.pod, "-for", "1h", "-rate", strconv.Itoa(rate),
					"-lanes", "100", "-pushers", "16", "-consumers", "4", "-lease", "20s", "-renew", "1s",
				},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// logs are what it has printed; nothing while it has not started.
func (l *load) logs(t *testing.T) string {
	t.Helper()
	out, _ := l.try(t, "", l.kubectl, "--namespace", l.namespace, "logs", l.pod)
	return out
}

// finish tells the clients to end, and requires that nothing was lost, out of order,
// delivered twice, or answered as no client expects.
func (l *load) finish(t *testing.T) verdict {
	t.Helper()
	// A deadline ends the process as a deletion does, and leaves what it said and its
	// exit code behind.
	l.kube(t, "patch", "pod", l.pod, "--patch", `{"spec":{"activeDeadlineSeconds":1}}`)
	exit := int32(-1)
	l.eventually(t, drainTime+time.Minute, l.pod+" has read all that it pushed", func() string {
		pod := get[corev1.Pod](t, l.cluster, "pod", l.pod)
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Terminated != nil {
				exit = s.State.Terminated.ExitCode
				return ""
			}
		}
		return string(pod.Status.Phase)
	})
	text := l.logs(t)
	v := readVerdict(t, text)
	l.say(t, "%s: %d messages pushed in %.0f s, %d delivered, %d lost, %d out of order, %d duplicates; %d of %d timers; redelivered %d, errors %v, deferred %v",
		l.pod, v.Pushed, v.Seconds, v.Delivered, v.Lost, v.OutOfOrder, v.Duplicates, v.Timers.Delivered, v.Timers.Scheduled, v.Redelivered, v.Errors, v.Deferred)
	require.True(t, v.OK, text)
	require.Zero(t, exit, text)
	require.Equal(t, []int64{0, 0, 0}, []int64{v.Lost, v.OutOfOrder, v.Duplicates}, text)
	require.Positive(t, v.Pushed)
	require.Equal(t, v.Pushed, v.Acknowledged, text)
	require.Empty(t, v.Unexpected, text)
	require.Equal(t, v.Timers.Scheduled, v.Timers.Delivered, text)
	l.kube(t, "delete", "pod", l.pod)
	return v
}

// readVerdict finds the verdict behind the lines of progress.
func readVerdict(t *testing.T, text string) verdict {
	t.Helper()
	var v verdict
	at := strings.Index("\n"+text, "\n{\n")
	require.GreaterOrEqual(t, at, 0, "no verdict in:\n%s", text)
	require.NoError(t, json.Unmarshal([]byte(text[at:]), &v))
	return v
}

func TestVerdictIsFoundBehindProgress(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 3, readVerdict(t, "  5.0s pushed 1\n{\n  \"pushed\": 3\n}\n").Pushed)
	require.EqualValues(t, 3, readVerdict(t, "{\n  \"pushed\": 3\n}\n").Pushed)
}
