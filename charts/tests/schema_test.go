package charttests

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/values"
)

// open are maps of values.yaml whose keys are the user's own, or Kubernetes'.
var open = []string{
	"global", "defaults.podSecurityContext", "defaults.podSecurityContext.seccompProfile", "defaults.securityContext",
	"defaults.securityContext.capabilities", "broker.autoscaling.behavior", "sweeper.autoscaling.behavior",
	"monitoring.dashboards.labels",
}

// A misspelt key is refused wherever it stands, and named. Helm tells of all at once.
func TestUnknownKeysAreRefusedAtEveryLevel(t *testing.T) {
	t.Parallel()
	_, maps := readValues(t)
	all := map[string]any{}
	var closed []string
	for _, path := range maps {
		name := strings.Join(path, ".")
		if slices.ContainsFunc(open, func(o string) bool { return name == o || strings.HasPrefix(name, o+".") }) ||
			strings.HasSuffix(name, ".requests") || strings.HasSuffix(name, ".limits") {
			continue
		}
		closed = append(closed, "/"+strings.Join(path, "/"))
		merge(all, values.Nested(append(slices.Clone(path), "mispelt"), 1))
	}
	require.Greater(t, len(closed), 40)
	message := refused(t, all)
	for _, path := range closed {
		if path == "/" {
			path = ""
		}
		require.Contains(t, message, "at '"+path+"': additional properties 'mispelt' not allowed")
	}
}

// A value of the wrong type is refused wherever it stands, and named.
func TestWrongTypesAreRefusedForEveryValue(t *testing.T) {
	t.Parallel()
	leaves, _ := readValues(t)
	all := map[string]any{}
	var wrong []string
	for _, leaf := range leaves {
		name := leaf.Name()
		if slices.ContainsFunc(open[1:], func(o string) bool { return strings.HasPrefix(name, o+".") }) && !strings.HasPrefix(name, "monitoring") {
			continue // Kubernetes judges it
		}
		var value any = []any{[]any{true}} // no scalar, no map, and no list of objects
		if _, isList := leaf.Default.([]any); isList {
			value = "text"
		}
		wrong = append(wrong, "/"+strings.Join(leaf.Path, "/"))
		merge(all, values.Nested(leaf.Path, value))
	}
	message := refused(t, all)
	for _, path := range wrong {
		require.Regexp(t, `at '`+path+`(/0)?': `, message)
	}
}

// What is refused besides, each with the words that it is refused with.
func TestBadValuesAreRefused(t *testing.T) {
	t.Parallel()
	for pair, message := range map[string]string{
		"broker.replicas=0":                            "at '/broker/replicas': minimum: got 0, want 1",
		"broker.replicas=-1":                           "at '/broker/replicas': minimum: got -1, want 1",
		"broker.replicas=two":                          "at '/broker/replicas': got string, want integer",
		"broker.poolSize=1":                            "at '/broker/poolSize': minimum: got 1, want 2",
		"broker.keyValuePoolSize=-4":                   "at '/broker/keyValuePoolSize': minimum: got -4",
		"broker.memory.dedupCacheMiB=0":                "at '/broker/memory/dedupCacheMiB': minimum: got 0, want 1",
		"broker.memory.dedupCacheMiB=512Mi":            "at '/broker/memory/dedupCacheMiB': got string, want integer",
		"broker.shutdown.delaySeconds=-1":              "at '/broker/shutdown/delaySeconds': minimum: got -1, want 0",
		"broker.shutdown.delaySeconds=301":             "at '/broker/shutdown/delaySeconds': maximum: got 301, want 300",
		"broker.longPoll.maxParked=-1":                 "at '/broker/longPoll/maxParked': minimum: got -1",
		"broker.autoscaling.targetCPUPercent=0":        "at '/broker/autoscaling/targetCPUPercent': minimum: got 0, want 1",
		"broker.autoscaling.enabled=maybe":             "at '/broker/autoscaling/enabled': got string, want boolean",
		"broker.resources.limits.memory=lots":          "at '/broker/resources/limits/memory'",
		"broker.resources.requests.cpu=-1":             "at '/broker/resources/requests/cpu'",
		"broker.image.digest=abc":                      "at '/broker/image/digest': 'abc' does not match pattern",
		"broker.image.repository=":                     "at '/broker/image/repository': '' does not match pattern",
		"broker.image.tag=a/b":                         "at '/broker/image/tag': 'a/b' does not match pattern",
		"broker.config.lower=1":                        "at '/broker/config'",
		"broker.pdb.maxUnavailable=some":               "at '/broker/pdb/maxUnavailable'",
		"broker.strategy.type=BlueGreen":               "at '/broker/strategy/type'",
		"broker.probes.startup.path=/x":                "at '/broker/probes/startup': additional properties 'path' not allowed",
		"broker.probes.startup.periodSeconds=0":        "at '/broker/probes/startup/periodSeconds': minimum: got 0, want 1",
		"broker.command=sh":                            "at '/broker': additional properties 'command' not allowed",
		"maintainer.autoscaling.enabled=true":          "at '/maintainer': additional properties 'autoscaling' not allowed",
		"fullnameOverride=Queen":                       "at '/fullnameOverride': 'Queen' does not match pattern",
		"fullnameOverride=queen.v1":                    "at '/fullnameOverride': 'queen.v1' does not match pattern",
		"nameOverride=a_b":                             "at '/nameOverride': 'a_b' does not match pattern",
		"image.tag=a/b":                                "at '/image/tag': 'a/b' does not match pattern",
		"image.registry=https://registry.example.com":  "at '/image/registry': 'https://registry.example.com' does not match pattern",
		"global.imageRegistry=a b":                     "at '/global/imageRegistry': 'a b' does not match pattern",
		"image.pullPolicy=Sometimes":                   "at '/image/pullPolicy': value must be one of 'IfNotPresent', 'Always', 'Never'",
		"database.existingSecret=Not A Name":           "at '/database/existingSecret': 'Not A Name' does not match pattern",
		"database.maxConnections=9":                    "at '/database/maxConnections': minimum: got 9, want 10",
		"database.port=70000":                          "at '/database/port': maximum: got 70,000, want 65,535",
		"schema.mode=later":                            "at '/schema/mode': value must be one of 'boot', 'job', 'none'",
		"schema.job.backoffLimit=-1":                   "at '/schema/job/backoffLimit': minimum: got -1, want 0",
		"logging.level=loud":                           "at '/logging/level': value must be one of",
		"hints.port=0":                                 "at '/hints/port': minimum: got 0, want 1",
		"auth.algorithm=none":                          "at '/auth/algorithm': value must be one of",
		"auth.jwks.url=ftp://x":                        "at '/auth/jwks/url': 'ftp://x' does not match pattern",
		"spool.volume.whenDeleted=Maybe":               "at '/spool/volume/whenDeleted'",
		"spool.mountPath=relative":                     "at '/spool/mountPath'",
		"service.type=Headless":                        "at '/service/type'",
		"service.port=0":                               "at '/service/port': minimum: got 0, want 1",
		"service.nodePort=0":                           "at '/service/nodePort'",
		"ingress.controller=apache":                    "at '/ingress/controller'",
		"ingress.timeoutSeconds=0":                     "at '/ingress/timeoutSeconds': minimum: got 0, want 1",
		"ingress.hosts[0].paths[0].path=x":             "at '/ingress/hosts/0/paths/0/path'",
		"networkPolicy.dns.ports[0]=0":                 "at '/networkPolicy/dns/ports/0'",
		"telemetry.protocol=udp":                       "at '/telemetry/protocol'",
		"telemetry.sampler=sometimes":                  "at '/telemetry/sampler'",
		"telemetry.samplerRatio=2":                     "at '/telemetry/samplerRatio': maximum: got 2, want 1",
		"telemetry.endpoint=collector":                 "at '/telemetry/endpoint'",
		"monitoring.serviceMonitor.interval=sometimes": "at '/monitoring/serviceMonitor/interval'",
		"defaults.goMemoryPercent=101":                 "at '/defaults/goMemoryPercent': maximum: got 101, want 100",
		"defaults.terminationGracePeriodSeconds=0":     "at '/defaults/terminationGracePeriodSeconds': minimum: got 0, want 1",
		"broker.pdb.maxUnavailable=0":                  "at '/broker/pdb/maxUnavailable': minimum: got 0, want 1",
		"sweeper.pdb.maxUnavailable=0%":                "at '/sweeper/pdb/maxUnavailable'",
	} {
		t.Run(pair, func(t *testing.T) {
			t.Parallel()
			_, err := helm.Rendering{Values: helm.Values{Set: []string{"database.existingSecret=x", pair}}}.Template()
			require.ErrorContains(t, err, refusedBySchema)
			require.ErrorContains(t, err, message)
		})
	}
}

// refused renders values that the schema has to refuse, and returns what it says.
func refused(t *testing.T, bad map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(bad)
	require.NoError(t, err)
	_, err = helm.Rendering{Values: helm.Values{YAML: string(text)}}.Template()
	require.ErrorContains(t, err, refusedBySchema)
	return err.Error()
}

// merge puts maps into maps.
func merge(into, from map[string]any) {
	for key, value := range from {
		inner, isMap := value.(map[string]any)
		there, exists := into[key].(map[string]any)
		if isMap && exists {
			merge(there, inner)
		} else {
			into[key] = value
		}
	}
}
