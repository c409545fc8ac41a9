package charttests

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// The versions of Kubernetes that everything is rendered for: the oldest that Chart.yaml
// accepts, and that of the types which the objects are read into.
const (
	oldestKube = "1.27.0"
	newestKube = "1.37.0"
)

// operators are the APIs that the chart uses and Kubernetes does not have by itself.
var operators = []string{
	"monitoring.coreos.com/v1", "monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PodMonitor",
	"monitoring.coreos.com/v1/PrometheusRule", "gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1/HTTPRoute",
}

// scenario is one set of values; rendered are its objects for one version of Kubernetes.
type scenario struct {
	name   string
	values helm.Values
}

type rendered struct {
	scenario

	kube    string
	text    string
	objects manifest.Objects
}

// eachRendering runs a test on everything that the matrix renders, in parallel.
func eachRendering(t *testing.T, test func(t *testing.T, r rendered)) {
	t.Helper()
	for _, s := range scenarios(t) {
		for _, kube := range []string{oldestKube, newestKube} {
			t.Run(s.name+" on "+kube, func(t *testing.T) {
				t.Parallel()
				test(t, render(t, s, kube))
			})
		}
	}
}

// scenarios are the defaults with the one value that they need, the files of charts/queen/ci,
// and those of charts/queen/examples.
func scenarios(t *testing.T) []scenario {
	t.Helper()
	all := []scenario{{"defaults", helm.Values{Set: []string{"database.existingSecret=x"}}}}
	for _, file := range valuesFiles(t) {
		name, err := filepath.Rel(helm.ChartDir, file)
		require.NoError(t, err)
		all = append(all, scenario{name, helm.Values{Files: []string{file}}})
	}
	require.Greater(t, len(all), 10, "the files of charts/queen/ci were not found")
	return all
}

// valuesFiles leaves out what is an object to apply and not a set of values.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, file := range yamlFiles(t, "ci", "examples") {
		if _, isObject := readMap(t, file)["kind"]; !isObject {
			files = append(files, file)
		}
	}
	return files
}

// yamlFiles returns the YAML files below folders of the chart.
func yamlFiles(t *testing.T, folders ...string) []string {
	t.Helper()
	var files []string
	for _, folder := range folders {
		root := filepath.Join(helm.ChartDir, folder)
		if _, err := os.Stat(root); os.IsNotExist(err) {
			continue
		}
		require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".yaml") {
				files = append(files, path)
			}
			return err
		}))
	}
	return files
}

// renderings are remembered, so that each is made once for all tests.
var renderings sync.Map

func render(t *testing.T, s scenario, kube string) rendered {
	t.Helper()
	once, _ := renderings.LoadOrStore(s.name+" "+kube, sync.OnceValues(func() (rendered, error) {
		text, err := helm.Rendering{Values: s.values, Kube: kube, APIs: operators}.Template()
		if err != nil {
			return rendered{}, err
		}
		objects, err := manifest.Parse(text)
		return rendered{scenario: s, kube: kube, text: text, objects: objects}, err
	}))
	r, err := once.(func() (rendered, error))()
	require.NoError(t, err)
	return r
}

// renderYAML renders values of a test, with the secret of a database.
func renderYAML(t *testing.T, values string) manifest.Objects {
	t.Helper()
	return renderAny(t, helm.Rendering{Values: helm.Values{YAML: values, Set: []string{"database.existingSecret=x"}}})
}

// renderSet renders pairs for --set, and nothing else.
func renderSet(t *testing.T, pairs ...string) manifest.Objects {
	t.Helper()
	return renderAny(t, helm.Rendering{Values: helm.Values{Set: pairs}})
}

func renderAny(t *testing.T, r helm.Rendering) manifest.Objects {
	t.Helper()
	r.APIs = operators
	text, err := r.Template()
	require.NoError(t, err)
	objects, err := manifest.Parse(text)
	require.NoError(t, err)
	return objects
}

// readMap reads the first document of a YAML file.
func readMap(t *testing.T, file string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	first, _, _ := strings.Cut(strings.TrimPrefix(string(content), "---\n"), "\n---\n")
	var values map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(first), &values), file)
	return values
}
