package helm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Server pretends to be the API of a cluster, well enough for Helm to install into it
// without doing so (--dry-run=server): it has kinds, and objects that can be looked up.
type Server struct {
	kubeconfig string
}

// NewServer starts a server that has objects, which are JSON by the path of their URL.
func NewServer(t *testing.T, version string, objects map[string]string) *Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if object, ok := objects[request.URL.Path]; ok {
			_, _ = fmt.Fprint(w, object)
			return
		}
		if answer := discovery(version, request.URL.Path); answer != nil {
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: test,
  clusters: [{name: test, cluster: {server: %q}}], users: [{name: test}],
  contexts: [{name: test, context: {cluster: test, user: test}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Server{kubeconfig: kubeconfig}
}

// Install runs `helm install --dry-run=server`: what it prints has NOTES and objects.
func (s *Server) Install(r Rendering) (string, error) {
	args := []string{"install", or(r.Release, "queen"), or(r.Chart, ChartDir), "--namespace", or(r.Namespace, "default"),
		"--dry-run=server", "--disable-openapi-validation"}
	return run(s.kubeconfig, r.YAML, append(args, r.args()...)...)
}

// kinds by group and version, with the names of their resources.
var kinds = map[string]map[string]string{
	"v1": {"Pod": "pods", "Service": "services", "Secret": "secrets", "ConfigMap": "configmaps",
		"ServiceAccount": "serviceaccounts", "Namespace": "namespaces"},
	"apps/v1":              {"Deployment": "deployments", "StatefulSet": "statefulsets"},
	"batch/v1":             {"Job": "jobs"},
	"autoscaling/v2":       {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
	"policy/v1":            {"PodDisruptionBudget": "poddisruptionbudgets"},
	"networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
	"monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors",
		"PrometheusRule": "prometheusrules"},
	"gateway.networking.k8s.io/v1": {"HTTPRoute": "httproutes"},
}

// discovery answers the questions of clients about versions and kinds.
func discovery(version, path string) any {
	switch path {
	case "/version":
		major, minor, _ := strings.Cut(version, ".")
		return map[string]any{"major": major, "minor": minor, "gitVersion": "v" + version + ".0"}
	case "/api":
		return map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
	case "/apis":
		return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()}
	}
	name := strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
	known, ok := kinds[name]
	if !ok {
		return nil
	}
	var resources []any
	for kind, plural := range known {
		resources = append(resources, map[string]any{"name": plural, "singularName": strings.ToLower(kind),
			"namespaced": kind != "Namespace", "kind": kind, "verbs": []string{"get", "list", "create"}})
	}
	return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}
}

func groups() []any {
	var all []any
	for name := range kinds {
		if group, version, found := strings.Cut(name, "/"); found {
			one := map[string]any{"groupVersion": name, "version": version}
			all = append(all, map[string]any{"name": group, "versions": []any{one}, "preferredVersion": one})
		}
	}
	return all
}
