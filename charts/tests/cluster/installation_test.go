package cluster_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rates of load, in messages a second.
const (
	steady = 200
	light  = 10
	heavy  = 600
)

func TestClusterRequirements(t *testing.T) {
	t.Parallel()
	requireCluster(t)
}

// TestChart is one installation from its beginning to its end. The steps build on each
// other, so the first that fails is the last.
func TestChart(t *testing.T) {
	t.Parallel()
	c := requireCluster(t)
	c.makeNamespace(t)
	queen := &release{cluster: c, name: "queen", database: []string{"database.existingSecret=" + secretOf(mainDatabase, owner)}}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"images", c.loadImages},
		{"PostgreSQL", c.startPostgres},
		{"install", func(t *testing.T) { testInstall(t, queen) }},
		{"rolling restart under load", func(t *testing.T) { testRollingRestart(t, queen) }},
		{"pods deleted and evicted under load", func(t *testing.T) { testDisruptions(t, queen) }},
		{"schema by a job, and services that own nothing", func(t *testing.T) { testSchemaJob(t, queen) }},
		{"a second installation in the namespace, with a job from the start", func(t *testing.T) { testSecondInstallation(t, queen) }},
		{"brokers scaled by their load", func(t *testing.T) { testAutoscaling(t, queen) }},
		{"rollback under load", func(t *testing.T) { testRollback(t, queen) }},
		{"uninstall", func(t *testing.T) { testUninstall(t, queen) }},
	} {
		if !t.Run(step.name, step.run) {
			t.FailNow()
		}
	}
	c.say(t, "all steps are done")
}

// makeNamespace makes a namespace that refuses pods which are not restricted, and deletes
// it in the end, after it has written down what is in it if the test has failed.
func (c *cluster) makeNamespace(t *testing.T) {
	t.Helper()
	c.namespace = "queen-e2e-" + strconv.FormatInt(time.Now().Unix()%1e6, 36)
	const standard = "pod-security.kubernetes.io/"
	c.apply(t, corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: c.namespace, Labels: map[string]string{
			standard + "enforce": "restricted", standard + "warn": "restricted",
		}},
	})
	c.say(t, "namespace %s enforces the restricted security standard", c.namespace)
	t.Cleanup(func() { c.leave(t) })
}

func testInstall(t *testing.T, r *release) {
	r.install(t)
	r.requireRestricted(t)
	r.requireOneMesh(t)
	r.test(t)
}

// requireRestricted looks at what runs, which is what admission has made of the manifests.
func (r *release) requireRestricted(t *testing.T) {
	t.Helper()
	pods := r.pods(t, "")
	for i := range pods {
		spec := &pods[i].Spec
		require.True(t, *spec.SecurityContext.RunAsNonRoot, pods[i].Name)
		require.Empty(t, spec.Volumes, "%s has a token or something else mounted", pods[i].Name)
		for j := range spec.Containers {
			require.True(t, *spec.Containers[j].SecurityContext.ReadOnlyRootFilesystem, pods[i].Name)
		}
	}
	r.say(t, "%d pods run without root, with a read-only root file system and without a token", len(pods))
}

// testRollingRestart has every pod replaced, as `kubectl rollout restart` does.
func testRollingRestart(t *testing.T, r *release) {
	key, before := r.gossipKey(t), r.allNames(t)
	l := r.startLoad(t, r, "restart", steady)
	r.upgrade(t, "defaults.podAnnotations.restarted=once")
	l.finish(t)
	r.requireReplaced(t, before)
	r.requireOneMesh(t)
	require.Equal(t, key, r.gossipKey(t), "an upgrade changed the key of the hints")
}

// gossipKey is the key that was made at installation.
func (r *release) gossipKey(t *testing.T) string {
	t.Helper()
	key := get[corev1.Secret](t, r.cluster, "secret", r.full("hints")).Data["gossip-key"]
	require.NotEmpty(t, key)
	return string(key)
}

// testRollback goes back to the first revision: brokers that apply the schema themselves.
func testRollback(t *testing.T, r *release) {
	before := r.allNames(t)
	key := r.gossipKey(t)
	l := r.startLoad(t, r, "rollback", steady)
	r.rollback(t, 1)
	l.finish(t)
	r.requireReplaced(t, map[string][]string{maintainer: before[maintainer], sweeper: before[sweeper]})
	require.Equal(t, owner, r.rolesOf(t, mainDatabase))
	require.Equal(t, key, r.gossipKey(t), "a rollback changed the key of the hints")
	r.requireOneMesh(t)
	r.test(t)
}

// testUninstall requires that nothing stays but the pod of the last `helm test`, whose
// report could still be wanted.
func testUninstall(t *testing.T, r *release) {
	r.at(t, "uninstall", r.name, "--wait", "--timeout", patience.String())
	r.eventually(t, time.Minute, "nothing is left of "+r.name+" but the pod of helm test", func() string {
		left := r.leftovers(t)
		if left == fmt.Sprintf("pod/%s\n", r.full("check")) {
			return ""
		}
		return left
	})
	r.kube(t, "delete", "pod", r.full("check"))
	require.Empty(t, r.leftovers(t))
}

// diagnosed says whether what was found is written down, which happens before anything is
// deleted.
func (c *cluster) leave(t *testing.T) {
	t.Helper()
	if t.Failed() {
		c.diagnose(t)
	}
	if os.Getenv("KEEP") == "1" {
		c.say(t, "KEEP=1: the namespace %s stays", c.namespace)
		return
	}
	c.deleteNamespace(t)
}
