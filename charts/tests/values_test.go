package charttests

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/values"
)

const refusedBySchema = "values don't meet the specifications of the schema"

func readValues(t *testing.T) (leaves []values.Value, maps [][]string) {
	t.Helper()
	leaves, maps, err := values.Read(filepath.Join(helm.ChartDir, "values.yaml"))
	require.NoError(t, err)
	require.Greater(t, len(leaves), 150, "values.yaml was not read whole")
	return leaves, maps
}

func TestEveryValueIsDescribed(t *testing.T) {
	t.Parallel()
	schema, err := values.ReadSchema(filepath.Join(helm.ChartDir, "values.schema.json"))
	require.NoError(t, err)
	leaves, _ := readValues(t)
	for _, leaf := range leaves {
		require.True(t, leaf.Described, "%s has no comment for helm-docs in values.yaml, and is part of nothing that has one", leaf.Name())
		if !leaf.Documents {
			continue
		}
		part, found := schema.At(leaf.Path)
		require.True(t, found, "values.schema.json does not name %s", leaf.Name())
		require.NotEmpty(t, part.Find("description"), "values.schema.json does not describe %s", leaf.Name())
	}
}

// What the schema names and values.yaml does not is a value that nobody finds.
func TestTheSchemaNamesNothingElse(t *testing.T) {
	t.Parallel()
	schema, err := values.ReadSchema(filepath.Join(helm.ChartDir, "values.schema.json"))
	require.NoError(t, err)
	_, maps := readValues(t)
	known := readMap(t, filepath.Join(helm.ChartDir, "values.yaml"))
	defaults, _ := known["defaults"].(map[string]any)
	for _, path := range maps {
		part, found := schema.At(path)
		properties, _ := part.Find("properties").(map[string]any)
		if !found || len(properties) == 0 {
			continue
		}
		for name := range properties {
			_, common := defaults[name]
			switch {
			case len(path) == 1 && strings.Contains("global broker maintainer sweeper", path[0]) && common:
			case strings.HasSuffix(strings.Join(path, "."), "resources"), strings.Contains(strings.Join(path, "."), "probes."),
				strings.HasSuffix(strings.Join(path, "."), "broker.shutdown"), strings.Contains(strings.Join(path, "."), "secretKeys"):
				// parts of what is described as a whole, or the same as in defaults
			default:
				require.Contains(t, at(known, path), name, "values.yaml does not have %s.%s", strings.Join(path, "."), name)
			}
		}
	}
}

func at(all map[string]any, path []string) map[string]any {
	for _, key := range path {
		all, _ = all[key].(map[string]any)
	}
	return all
}

// changes are other values for those that take no other text, number or truth value.
var changes = map[string]any{
	"global.imagePullSecrets": []any{map[string]any{"name": "changed"}}, "image.pullSecrets": []any{map[string]any{"name": "changed"}},
	"image.pullPolicy": "Never", "database.maxConnections": 20, "database.port": 7777, "schema.mode": "none",
	"database.url": "postgres://u:p@h/d", "logging.level": "trace", "logging.json": false,
	"defaults.tolerations": []any{map[string]any{"key": "changed"}}, "defaults.terminationGracePeriodSeconds": 77,
	"defaults.topologySpreadConstraints": []any{}, "defaults.podSecurityContext.seccompProfile.type": "Localhost",
	"defaults.securityContext.capabilities.drop": []any{"NET_RAW"}, "defaults.goMemoryPercent": 50, "defaults.strategy.type": "Recreate",
	"defaults.config": map[string]any{"QUEEN_CHANGED": 1}, "defaults.extraEnv": []any{map[string]any{"name": "CHANGED", "value": "1"}},
	"defaults.extraEnvFrom":      []any{map[string]any{"secretRef": map[string]any{"name": "changed"}}},
	"defaults.extraVolumes":      []any{map[string]any{"name": "changed"}},
	"defaults.extraVolumeMounts": []any{map[string]any{"name": "changed", "mountPath": "/changed"}},
	"defaults.extraContainers":   []any{map[string]any{"name": "changed"}}, "defaults.initContainers": []any{map[string]any{"name": "changed"}},
	"defaults.hostAliases": []any{map[string]any{"ip": "10.9.9.9"}}, "broker.memory.baseMiB": 1000000, "broker.longPoll.maxSeconds": 1,
	"defaults.databaseWaitSeconds": 61, "broker.pdb.maxUnavailable": 2, "maintainer.pdb.maxUnavailable": 2, "sweeper.pdb.maxUnavailable": 2,
	"auth.algorithm": "HS512", "auth.skipPaths": []any{"/changed"}, "auth.jwks.url": "https://changed.example.com",
	"spool.volume.accessModes": []any{"ReadWriteOncePod"}, "spool.volume.size": "77Gi", "spool.mountPath": "/changed",
	"spool.volume.whenDeleted": "Delete", "spool.volume.whenScaled": "Delete", "service.type": "NodePort", "service.nodePort": 30077,
	"service.loadBalancerSourceRanges": []any{"10.9.0.0/16"}, "service.externalTrafficPolicy": "Cluster", "ingress.controller": "alb",
	"ingress.hosts": []any{map[string]any{"host": "changed.example.com", "paths": []any{map[string]any{"path": "/", "pathType": "Exact"}}}},
	"ingress.tls":   []any{map[string]any{"secretName": "changed"}}, "gateway.parentRefs": []any{map[string]any{"name": "changed"}},
	"gateway.hostnames": []any{"changed.example.com"}, "gateway.filters": []any{map[string]any{"type": "URLRewrite"}},
	"gateway.matches":       []any{map[string]any{"path": map[string]any{"type": "Exact", "value": "/changed"}}},
	"networkPolicy.clients": []any{}, "networkPolicy.scrapers": []any{}, "networkPolicy.dns.to": []any{}, "networkPolicy.dns.ports": []any{77},
	"networkPolicy.database.to": []any{map[string]any{"podSelector": map[string]any{}}}, "networkPolicy.otlp.to": []any{map[string]any{"podSelector": map[string]any{}}},
	"networkPolicy.extraEgress": []any{map[string]any{"to": []any{}}}, "networkPolicy.database.port": 7777, "networkPolicy.otlp.port": 7777,
	"telemetry.protocol": "grpc", "telemetry.sampler": "always_on", "telemetry.samplerRatio": 0.7, "telemetry.endpoint": "http://changed:4318",
	"extraObjects":                   []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "changed"}}},
	"schema.job.database.secretKeys": map[string]any{"uri": "changed"}, "tenancy.trustedProxy": false,
	"monitoring.serviceMonitor.interval": "77s", "monitoring.serviceMonitor.scrapeTimeout": "7s",
	"monitoring.podMonitor.interval": "77s", "monitoring.podMonitor.scrapeTimeout": "7s",
}

// contexts are values beside which a changed one may show. Most of it is on in the first.
var contexts = []string{
	"ci/full-values.yaml", "ci/secret-parts-values.yaml", "ci/minimal-values.yaml", "ci/parts-values.yaml", "ci/single-values.yaml", "ci/edge-values.yaml", "ci/monitoring-values.yaml",
}

// A value that changes nothing is a lie. A change shows in the objects, or in what is refused.
func TestEveryValueChangesSomething(t *testing.T) {
	t.Parallel()
	leaves, _ := readValues(t)
	for _, leaf := range leaves {
		t.Run(leaf.Name(), func(t *testing.T) {
			t.Parallel()
			overlay, err := yaml.Marshal(values.Nested(leaf.Path, changed(leaf)))
			require.NoError(t, err)
			for _, context := range contexts {
				if shows(t, context, string(overlay)) {
					return
				}
			}
			require.Fail(t, "changes nothing", "%s, beside any of %v", strings.TrimSpace(string(overlay)), contexts)
		})
	}
}

// shows tells whether values change what is rendered beside those of a file.
func shows(t *testing.T, context, overlay string) bool {
	t.Helper()
	plain := helm.Values{Files: []string{filepath.Join(helm.ChartDir, context)}}
	before := render(t, scenario{context, plain}, newestKube).text
	plain.YAML = overlay
	after, err := helm.Rendering{Values: plain, Kube: newestKube, APIs: operators}.Template()
	if err != nil {
		require.NotContains(t, err.Error(), refusedBySchema, "the test needs another value for it")
		return true
	}
	return withoutKey(before) != withoutKey(after)
}

// withoutKey leaves out what differs between any two renderings.
func withoutKey(text string) string {
	return generatedKey.ReplaceAllString(text, "")
}

// changed is another value for a leaf.
func changed(leaf values.Value) any {
	if other, ok := changes[leaf.Name()]; ok {
		return other
	}
	switch value := leaf.Default.(type) {
	case bool:
		return !value
	case int:
		return value + 1
	case float64:
		return value / 2
	case string:
		switch {
		case strings.HasSuffix(value, "Mi"), strings.HasSuffix(value, "Gi"), strings.HasSuffix(value, "m"):
			return "7" + value
		case leaf.Path[len(leaf.Path)-1] == "digest":
			return "sha256:" + strings.Repeat("7", 64)
		}
		return "changed"
	case map[string]any:
		return map[string]any{"changed": "yes"}
	case []any:
		return append(append([]any{}, value...), map[string]any{"changed": "yes"})
	case nil:
		return 7
	default:
		panic(fmt.Sprintf("no other value for %s of type %T", leaf.Name(), value))
	}
}
