package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Where things are, seen from this folder.
const (
	root     = "../../.."
	chartDir = root + "/charts/queen"
	toolsDir = root + "/.bin"
	output   = toolsDir + "/chart-e2e"
)

const (
	// officialPostgres is what clusters pull that have no image of their own.
	officialPostgres = "postgres:17"
	// localPostgres is the name of the image that is made of this machine's packages.
	localPostgres = "postgres-local:e2e"
)

// settings say which cluster is used, and how images get there.
type settings struct {
	helm, kubectl string
	// loader is the command that is called with the tar of each image; nil where the
	// cluster pulls them.
	loader []string
	// tool is the command of a cluster that pulls nothing: its `image` makes images of
	// folders, its `load` is the loader, its `metrics` starts metrics-server.
	tool string
	// registry and tag of the images.
	registry, tag string
	postgres      string
	requireHPA    bool
}

// read takes the settings from the environment. The error names everything that is
// missing and can be told without asking the cluster.
func read(env func(string) string, look func(string) (string, error)) (settings, error) {
	s := settings{
		tool: env("CLUSTER_TOOL"), loader: strings.Fields(env("IMAGE_LOADER")),
		registry: env("IMAGE_REGISTRY"), tag: env("IMAGE_TAG"), postgres: env("PG_IMAGE"),
	}
	var problems []error
	for _, program := range []struct {
		name string
		path *string
	}{{"helm", &s.helm}, {"kubectl", &s.kubectl}} {
		var err error
		variable := strings.ToUpper(program.name)
		if *program.path, err = find(program.name, env(variable), look); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w; install it, or set %s", program.name, err, variable))
		}
	}
	if env("KUBECONFIG") == "" {
		problems = append(problems, errors.New("a cluster: KUBECONFIG is not set. It has to be, so that no cluster is used by accident"))
	}
	switch env("REQUIRE_HPA") {
	case "", "0":
	case "1":
		s.requireHPA = true
	default:
		problems = append(problems, fmt.Errorf("REQUIRE_HPA is %q: 0 and 1 are allowed", env("REQUIRE_HPA")))
	}
	if s.tool != "" && len(s.loader) == 0 {
		s.loader = []string{s.tool, "load"}
	}
	if len(s.loader) > 0 {
		if _, err := look(s.loader[0]); err != nil {
			problems = append(problems, fmt.Errorf("the image loader: %w; IMAGE_LOADER is a command that takes the tar of an image, such as 'kind load image-archive'", err))
		}
	}
	return s, errors.Join(problems...)
}

// find looks for a program where it was said to be, in the path, and where `make` puts tools.
func find(name, given string, look func(string) (string, error)) (string, error) {
	if given != "" {
		return look(given)
	}
	path, err := look(name)
	if err == nil {
		return path, nil
	}
	made, absErr := filepath.Abs(filepath.Join(toolsDir, name))
	if absErr != nil {
		return "", absErr
	}
	if path, madeErr := look(made); madeErr == nil {
		return path, nil
	}
	return "", err
}

// requireCluster skips a test where nobody asked for a cluster, and fails it where
// something is missing.
func requireCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("QUEEN_TEST_CLUSTER") != "1" {
		t.Skip("it needs a cluster: `make chart-e2e`")
	}
	s, err := read(os.Getenv, exec.LookPath)
	require.NoError(t, err, "this is missing")
	c := &cluster{settings: s, began: time.Now()}
	if out, err := c.try(t, "", s.kubectl, "get", "--raw", "/readyz", "--request-timeout=10s"); err != nil {
		require.Fail(t, "this is missing: a cluster that answers", "KUBECONFIG is %q, and kubectl says:\n%v%s", os.Getenv("KUBECONFIG"), err, out)
	}
	out, err := c.try(t, "", s.kubectl, "auth", "can-i", "create", "namespaces")
	require.NoError(t, err, "this is missing: the right to create a namespace: %s", out)
	if s.requireHPA && s.tool == "" {
		require.NoError(t, c.servesMetrics(t), "this is missing: metrics of pods (metrics-server), which REQUIRE_HPA=1 asks for")
	}
	return c
}

// servesMetrics tells whether the cluster has what autoscalers read.
func (c *cluster) servesMetrics(t *testing.T) error {
	t.Helper()
	_, err := c.try(t, "", c.kubectl, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/pods?limit=1")
	return err
}

func TestSettingsNameEverythingThatIsMissing(t *testing.T) {
	t.Parallel()
	nowhere := func(name string) (string, error) { return "", fmt.Errorf("no %s", filepath.Base(name)) }
	env := map[string]string{"IMAGE_LOADER": "kind load image-archive", "REQUIRE_HPA": "yes"}
	_, err := read(func(name string) string { return env[name] }, nowhere)
	for _, missing := range []string{
		"helm: no helm; install it, or set HELM", "kubectl: no kubectl; install it, or set KUBECTL", "KUBECONFIG is not set",
		"image loader: no kind", `REQUIRE_HPA is "yes": 0 and 1 are allowed`,
	} {
		require.ErrorContains(t, err, missing)
	}
}

func TestSettingsTakeTheToolOfACluster(t *testing.T) {
	t.Parallel()
	everywhere := func(name string) (string, error) { return name, nil }
	env := map[string]string{"KUBECONFIG": "config", "CLUSTER_TOOL": "tool", "HELM": "other/helm"}
	got, err := read(func(name string) string { return env[name] }, everywhere)
	require.NoError(t, err)
	require.Equal(t, settings{helm: "other/helm", kubectl: "kubectl", tool: "tool", loader: []string{"tool", "load"}}, got)

	env["IMAGE_LOADER"] = "k3d image import"
	got, err = read(func(name string) string { return env[name] }, everywhere)
	require.NoError(t, err)
	require.Equal(t, []string{"k3d", "image", "import"}, got.loader)
}
