package charttests

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
	"github.com/queenmq/queen/charts/tests/internal/network"
)

// Places that pods may try to reach, or that may try to reach pods, by name.
func places(objects manifest.Objects) map[string]network.Place {
	all := map[string]network.Place{
		"dns":           {Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"}},
		"database":      {Namespace: "default", Labels: map[string]string{"cnpg.io/cluster": "queen-db"}},
		"other db":      {Namespace: "default", Labels: map[string]string{"cnpg.io/cluster": "another"}},
		"collector":     {Namespace: "observability", Labels: map[string]string{"app": "collector"}},
		"prometheus":    {Namespace: "monitoring", Labels: map[string]string{"app.kubernetes.io/name": "prometheus"}},
		"client":        {Namespace: "shop", Extra: map[string]string{"queen-client": "true"}},
		"stranger":      {Namespace: "attic", Labels: map[string]string{"app.kubernetes.io/instance": "queen"}},
		"internet":      {Address: "203.0.113.5"},
		"other release": {Namespace: "default", Labels: map[string]string{"app.kubernetes.io/name": "queen", "app.kubernetes.io/instance": "other", "queen-hints": "true"}},
	}
	for _, pod := range objects.Pods() {
		all[pod.Component()] = network.Place{Namespace: "default", Labels: pod.Meta.Labels}
	}
	return all
}

// Every port that means something, and one that does not.
var ports = map[string]network.Port{
	"dns udp":        {Number: 53, Protocol: corev1.ProtocolUDP},
	"dns tcp":        {Number: 53, Protocol: corev1.ProtocolTCP},
	"postgresql":     {Number: 5432, Protocol: corev1.ProtocolTCP},
	"otlp":           {Number: 4318, Protocol: corev1.ProtocolTCP},
	"http":           {Number: 6632, Protocol: corev1.ProtocolTCP},
	"hints tcp":      {Number: 6633, Protocol: corev1.ProtocolTCP},
	"hints udp":      {Number: 6633, Protocol: corev1.ProtocolUDP},
	"ops broker":     {Number: 6640, Protocol: corev1.ProtocolTCP},
	"ops maintainer": {Number: 6641, Protocol: corev1.ProtocolTCP},
	"ops sweeper":    {Number: 6642, Protocol: corev1.ProtocolTCP},
	"https":          {Number: 443, Protocol: corev1.ProtocolTCP},
}

// All connections that go out, and none but these.
func TestPodsReachNothingThatIsNotNamed(t *testing.T) {
	t.Parallel()
	dns := []string{"dns: dns tcp", "dns: dns udp"}
	hints := []string{"broker: hints tcp", "broker: hints udp", "sweeper: hints tcp", "sweeper: hints udp"}
	services := append(slices.Clone(dns), "database: postgresql", "collector: otlp")
	want := map[string][]string{
		"broker":     append(slices.Clone(services), hints...),
		"maintainer": services,
		"sweeper":    append(slices.Clone(services), hints...),
		"schema":     append(slices.Clone(dns), "database: postgresql"),
		"check":      append(slices.Clone(dns), "broker: http"),
	}
	objects, policies := policed(t)
	all := places(objects)
	for component, reached := range want {
		require.ElementsMatch(t, reached, connections(all, func(place network.Place, port network.Port) bool {
			return network.Egress(policies, all[component], place, port)
		}), component)
	}
}

// All connections that come in, and none but these.
func TestPodsAreReachedByNobodyThatIsNotNamed(t *testing.T) {
	t.Parallel()
	hints := []string{"broker: hints tcp", "broker: hints udp", "sweeper: hints tcp", "sweeper: hints udp"}
	want := map[string][]string{
		"broker":     append([]string{"client: http", "check: http", "prometheus: ops broker"}, hints...),
		"maintainer": {"prometheus: ops maintainer"},
		"sweeper":    append([]string{"prometheus: ops sweeper"}, hints...),
		"schema":     nil,
		"check":      nil,
	}
	objects, policies := policed(t)
	all := places(objects)
	for component, reaching := range want {
		require.ElementsMatch(t, reaching, connections(all, func(place network.Place, port network.Port) bool {
			return network.Ingress(policies, place, all[component], port)
		}), component)
	}
}

// A connection needs both ends: what one service may reach of another must let it in.
func TestBothEndsOfAConnectionAgree(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		policies := manifest.All[*networkingv1.NetworkPolicy](r.objects)
		all := places(r.objects)
		for _, from := range r.objects.Pods() {
			for _, to := range r.objects.Pods() {
				for name, port := range ports {
					a, b := all[from.Component()], all[to.Component()]
					if network.Egress(policies, a, b, port) && len(policies) > 0 {
						if name == "postgresql" || name == "otlp" || name == "https" || name[:3] == "dns" {
							continue // rules that name no peers; nothing listens there
						}
						require.True(t, network.Ingress(policies, a, b, port), "%s may reach %s of %s, which refuses it", from.Owner, name, to.Owner)
					}
				}
			}
		}
	})
}

func TestWithoutPeersARuleIsForEverybody(t *testing.T) {
	t.Parallel()
	objects := renderYAML(t, "networkPolicy:\n  enabled: true\n  clients: []\n  scrapers: []\n")
	policies := manifest.All[*networkingv1.NetworkPolicy](objects)
	all := places(objects)
	require.True(t, network.Ingress(policies, all["internet"], all["broker"], ports["http"]))
	require.True(t, network.Ingress(policies, all["stranger"], all["sweeper"], ports["ops sweeper"]))
	require.False(t, network.Ingress(policies, all["stranger"], all["sweeper"], ports["hints tcp"]), "hints are for the release alone")
	require.True(t, network.Egress(policies, all["broker"], all["internet"], ports["postgresql"]), "a managed database may be anywhere")
	require.False(t, network.Egress(policies, all["broker"], all["internet"], ports["https"]))
}

func TestClientsOfTheNamespaceAreLetInByDefault(t *testing.T) {
	t.Parallel()
	objects := renderYAML(t, "networkPolicy:\n  enabled: true\n")
	policies := manifest.All[*networkingv1.NetworkPolicy](objects)
	all := places(objects)
	require.True(t, network.Ingress(policies, all["other db"], all["broker"], ports["http"]))
	require.False(t, network.Ingress(policies, all["client"], all["broker"], ports["http"]), "another namespace")
	require.False(t, network.Ingress(policies, all["other db"], all["broker"], ports["ops broker"]))
}

func TestPortsOfPoliciesFollowTheirValues(t *testing.T) {
	t.Parallel()
	objects := renderAny(t, helm.Rendering{Values: helm.Values{Set: []string{
		"database.existingSecret=x", "database.host=db", "database.port=5433", "networkPolicy.enabled=true", "hints.port=7000",
		"networkPolicy.dns.ports={5353}", "networkPolicy.dns.to=null", "telemetry.endpoint=https://collector.example.com",
	}}})
	policies := manifest.All[*networkingv1.NetworkPolicy](objects)
	all := places(objects)
	for number, open := range map[int32]bool{5433: true, 5432: false, 7000: false, 6633: false, 5353: true, 53: false, 443: true, 4318: false} {
		port := network.Port{Number: number, Protocol: corev1.ProtocolTCP}
		require.Equal(t, open, network.Egress(policies, all["broker"], all["internet"], port), number)
	}
	require.True(t, network.Egress(policies, all["broker"], all["sweeper"], network.Port{Number: 7000, Protocol: corev1.ProtocolUDP}))
}

// policed renders all kinds of pods with policies that name a peer for everything.
func policed(t *testing.T) (manifest.Objects, []*networkingv1.NetworkPolicy) {
	t.Helper()
	file := helm.ChartDir + "/ci/network-policies-values.yaml"
	objects := render(t, scenario{"ci/network-policies-values.yaml", helm.Values{Files: []string{file}}}, newestKube).objects
	return objects, manifest.All[*networkingv1.NetworkPolicy](objects)
}

func connections(all map[string]network.Place, allowed func(network.Place, network.Port) bool) []string {
	var found []string
	for place := range all {
		for name, port := range ports {
			if allowed(all[place], port) {
				found = append(found, place+": "+name)
			}
		}
	}
	return found
}
