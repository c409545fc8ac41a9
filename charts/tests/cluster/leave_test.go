package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leftovers are the objects that bear a label of the release, and its record.
func (r *release) leftovers(t *testing.T) string {
	t.Helper()
	kinds, err := r.try(t, "", r.kubectl, "api-resources", "--namespaced", "--verbs=list", "--output", "name")
	require.NoError(t, err)
	var listed []string
	for _, kind := range strings.Fields(kinds) {
		if !strings.HasSuffix(kind, "metrics.k8s.io") && !strings.HasPrefix(kind, "events") {
			listed = append(listed, kind)
		}
	}
	return r.kube(t, "get", strings.Join(listed, ","), "--selector", r.selector(""), "--output", "name", "--ignore-not-found") +
		r.kube(t, "get", "secrets", "--selector", "owner=helm,name="+r.name, "--output", "name", "--ignore-not-found")
}

// after runs a program when the test may be over already, and answers all it prints.
func (c *cluster) after(program string, args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\n%v\n", out, err)
	}
	return string(out)
}

// diagnose writes down what there is in the namespace: pods, events, and all logs.
func (c *cluster) diagnose(t *testing.T) {
	t.Helper()
	dir, err := filepath.Abs(output)
	require.NoError(t, err)
	kube := func(args ...string) string {
		return c.after(c.kubectl, append([]string{"--namespace", c.namespace}, args...)...)
	}
	files := map[string]string{
		"objects.txt":  kube("get", "all,hpa,pdb,secrets", "--output", "wide"),
		"pods.txt":     kube("describe", "pods"),
		"events.txt":   kube("get", "events", "--sort-by", ".lastTimestamp"),
		"releases.txt": c.after(c.helm, "list", "--all", "--namespace", c.namespace),
		"node.txt":     c.after(c.kubectl, "describe", "nodes"),
	}
	for _, pod := range strings.Fields(kube("get", "pods", "--output", "name")) {
		name := strings.TrimPrefix(pod, "pod/")
		files[name+".log"] = kube("logs", pod, "--all-containers", "--timestamps")
		files[name+".previous.log"] = kube("logs", pod, "--all-containers", "--timestamps", "--previous")
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Errorf("write down what there is: %v", err)
		}
	}
	c.say(t, "pods, events and logs are in %s", dir)
}

func (c *cluster) deleteNamespace(t *testing.T) {
	t.Helper()
	// Clients of a test that failed would take their time to end.
	c.after(c.kubectl, "--namespace", c.namespace, "delete", "pods", "--all", "--grace-period=1", "--wait=false")
	c.say(t, "%s", strings.TrimSpace(c.after(c.kubectl, "delete", "namespace", c.namespace, "--timeout=2m")))
}
