package charttests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

const deployDir = "../../deploy"

// A package has what an installation needs, dashboards and alerts of deploy byte for byte
// among it, and nothing else.
func TestThePackageIsComplete(t *testing.T) {
	t.Parallel()
	archive := packaged(t)
	files := untar(t, archive)
	deployed := map[string]string{"queen/files/alerts.yaml": "prometheus/alerts.yaml"}
	boards, err := filepath.Glob(filepath.Join(deployDir, "grafana", "queen-*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, boards)
	for _, board := range boards {
		deployed["queen/files/dashboards/"+filepath.Base(board)] = "grafana/" + filepath.Base(board)
	}
	for name, content := range files {
		if source, ok := deployed[name]; ok {
			want, err := os.ReadFile(filepath.Join(deployDir, source))
			require.NoError(t, err)
			require.Equal(t, string(want), content, "%s is not deploy/%s", name, source)
			delete(deployed, name)
			continue
		}
		require.Regexp(t, `^queen/(Chart\.yaml|values\.yaml|values\.schema\.json|README\.md|CHANGELOG\.md|\.helmignore|templates/.*\.(yaml|tpl|txt))$`, name)
	}
	require.Empty(t, deployed, "missing in the package")
	for _, name := range []string{"queen/README.md", "queen/CHANGELOG.md", "queen/values.schema.json", "queen/templates/NOTES.txt"} {
		require.Contains(t, files, name)
	}
}

func TestThePackageRendersTheSame(t *testing.T) {
	t.Parallel()
	archive := packaged(t)
	for _, s := range scenarios(t) {
		if !strings.HasSuffix(s.name, "full-values.yaml") && s.name != "defaults" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			text, err := helm.Rendering{Values: s.values, Chart: archive, Kube: newestKube, APIs: operators}.Template()
			require.NoError(t, err)
			require.Equal(t, withoutKey(render(t, s, newestKube).text), withoutKey(text))
		})
	}
}

// Grafana and Prometheus get what deploy has: rendering changes none of it.
func TestDashboardsAndAlertsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	objects := renderYAML(t, "monitoring:\n  prometheusRule:\n    enabled: true\n  dashboards:\n    enabled: true\n")
	var boards int
	for _, config := range manifest.All[*corev1.ConfigMap](objects) {
		require.Equal(t, "1", config.Labels["grafana_dashboard"])
		for name, content := range config.Data {
			boards++
			want, err := os.ReadFile(filepath.Join(deployDir, "grafana", name))
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace(string(want)), strings.TrimSpace(content))
			require.Less(t, len(content), 1<<20, "a ConfigMap holds no more")
		}
	}
	all, err := filepath.Glob(filepath.Join(deployDir, "grafana", "queen-*.json"))
	require.NoError(t, err)
	require.Len(t, all, boards)

	rules := manifest.All[*monitoringv1.PrometheusRule](objects)
	require.Len(t, rules, 1)
	content, err := os.ReadFile(filepath.Join(deployDir, "prometheus", "alerts.yaml"))
	require.NoError(t, err)
	var want monitoringv1.PrometheusRuleSpec
	require.NoError(t, yaml.UnmarshalStrict(bytes.TrimSpace(content), &want))
	require.NotEmpty(t, want.Groups)
	require.Equal(t, want, rules[0].Spec)
}

func packaged(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	_, err := helm.Run("", "package", helm.ChartDir, "--destination", folder)
	require.NoError(t, err)
	archives, err := filepath.Glob(filepath.Join(folder, "queen-*.tgz"))
	require.NoError(t, err)
	require.Len(t, archives, 1)
	return archives[0]
}

func untar(t *testing.T, archive string) map[string]string {
	t.Helper()
	file, err := os.Open(archive)
	require.NoError(t, err)
	defer file.Close()
	plain, err := gzip.NewReader(file)
	require.NoError(t, err)
	files := map[string]string{}
	for reader := tar.NewReader(plain); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}
