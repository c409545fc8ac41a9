package cluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cluster is where the chart is installed.
type cluster struct {
	settings
	namespace string
	began     time.Time
}

// say logs a line with the time since the test began.
func (c *cluster) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%6.1fs  %s", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// try runs a program and answers its output. The error holds what it complains about.
func (c *cluster) try(t *testing.T, input, program string, args ...string) (string, error) {
	t.Helper()
	var out, problems bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &problems
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, problems.String())
	}
	return out.String(), nil
}

// run runs a program that must succeed, and logs what and for how long.
func (c *cluster) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	began := time.Now()
	out, err := c.try(t, "", program, args...)
	require.NoError(t, err, out)
	c.say(t, "%s %s (%.1fs)", filepath.Base(program), strings.Join(args, " "), time.Since(began).Seconds())
	return out
}

// kube runs kubectl in the namespace; it must succeed.
func (c *cluster) kube(t *testing.T, args ...string) string {
	t.Helper()
	return c.feed(t, "", args...)
}

// feed is kube with input.
func (c *cluster) feed(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := c.try(t, input, c.kubectl, append([]string{"--namespace", c.namespace}, args...)...)
	require.NoError(t, err, out)
	return out
}

// apply makes an object.
func (c *cluster) apply(t *testing.T, object any) {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	c.feed(t, string(text), "apply", "--filename", "-")
}

// get reads an object, or a list of them, into what Kubernetes says they are.
func get[T any](t *testing.T, c *cluster, args ...string) T {
	t.Helper()
	var object T
	require.NoError(t, json.Unmarshal([]byte(c.kube(t, append([]string{"get", "--output", "json"}, args...)...)), &object))
	return object
}

// ask gets a path of a pod's port. The request goes through the API server, so the test
// need not be inside the cluster.
func (c *cluster) ask(t *testing.T, pod string, port int, path string) (string, error) {
	t.Helper()
	return c.try(t, "", c.kubectl, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy%s", c.namespace, pod, port, path))
}

// eventually asks until the answer is none, which says what is still to come.
func (c *cluster) eventually(t *testing.T, within time.Duration, what string, wanting func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := wanting(); last != ""; last = wanting() {
		if time.Now().After(deadline) {
			require.Fail(t, fmt.Sprintf("not within %v: %s", within, what), last)
		}
		select {
		case <-t.Context().Done():
			require.Fail(t, "the test was ended while it waited: "+what, last)
		case <-tick.C:
		}
	}
	c.say(t, "%s", what)
}
