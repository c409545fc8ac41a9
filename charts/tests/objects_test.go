package charttests

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// Every object has kinds and fields that Kubernetes and the operators know: the matrix
// reads them strictly. This is the test that renders first.
func TestEveryObjectIsKnownToKubernetes(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		require.NotEmpty(t, r.objects)
		for _, object := range r.objects {
			require.Regexp(t, `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`, object.Meta.GetName())
			require.Equal(t, "default", or(object.Meta.GetNamespace(), "default"), "%s is in another namespace", object.Name())
		}
	})
}

func TestStrictReadingRefuses(t *testing.T) {
	t.Parallel()
	const service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"
	for name, c := range map[string]struct{ text, message string }{
		"unknown fields":  {service + "spec:\n  portz: []\n", `unknown field "spec.portz"`},
		"repeated fields": {service + "spec: {}\nspec: {}\n", `"spec" already set`},
		"unknown kinds":   {"apiVersion: v1\nkind: Servize\nmetadata:\n  name: a\n", `no kind "Servize"`},
		"unknown groups":  {"apiVersion: autoscaling/v2beta2\nkind: HorizontalPodAutoscaler\nmetadata:\n  name: a\n", "no kind"},
		"wrong types":     {service + "spec:\n  ports: none\n", "cannot unmarshal"},
		"no name":         {"apiVersion: v1\nkind: Service\n", "has no name"},
		"a second one":    {service + "---\n" + service, "a second Service/a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := manifest.Parse(c.text)
			require.ErrorContains(t, err, c.message)
		})
	}
}

// What Kubernetes 1.27 would drop or refuse, since it came later.
func TestTheOldestKubernetesIsNotAskedForWhatCameLater(t *testing.T) {
	t.Parallel()
	later := regexp.MustCompile(`(?m)^\s*-?\s*(trafficDistribution|podLifecycleSleepAction|sleep|supplementalGroupsPolicy|` +
		`stopSignal|maxUnavailable: .*StatefulSet|managedBy|successPolicy|podReplacementPolicy|volumeAttributesClassName|tolerance):`)
	for _, s := range scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			require.NotRegexp(t, later, render(t, s, oldestKube).text)
		})
	}
}

func TestOlderKubernetesIsRefused(t *testing.T) {
	t.Parallel()
	chart := readMap(t, helm.ChartDir+"/Chart.yaml")
	require.Equal(t, ">="+oldestKube+"-0", chart["kubeVersion"], "the matrix renders for another oldest version")
	values := helm.Values{Set: []string{"database.existingSecret=x"}}
	_, err := helm.Rendering{Values: values, Kube: "1.26.15"}.Template()
	require.ErrorContains(t, err, "chart requires kubeVersion: >="+oldestKube)
}

func TestLintFindsNothing(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			_, err := helm.Rendering{Values: s.values}.Lint()
			require.NoError(t, err)
		})
	}
}

// Every object says what it belongs to, and who made it.
func TestEveryObjectHasTheRecommendedLabels(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		for _, object := range r.objects {
			if strings.HasSuffix(object.Source, "/extra.yaml") {
				continue // the user's own
			}
			labels := object.Meta.GetLabels()
			for _, label := range []string{"name", "instance", "version", "part-of", "managed-by"} {
				require.NotEmpty(t, labels["app.kubernetes.io/"+label], "%s has no label %s", object.Name(), label)
			}
			require.Equal(t, "queen", labels["app.kubernetes.io/instance"])
			require.Equal(t, "Helm", labels["app.kubernetes.io/managed-by"])
			require.Contains(t, labels["helm.sh/chart"], "queen-")
		}
	})
}

// GitOps compares renderings: nothing but the generated key may differ between two.
func TestRenderingTwiceIsTheSame(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			again, err := helm.Rendering{Values: s.values, Kube: newestKube, APIs: operators}.Template()
			require.NoError(t, err)

			require.Equal(t, withoutKey(render(t, s, newestKube).text), withoutKey(again))
		})
	}
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// generatedKey is what differs between any two renderings.
var generatedKey = regexp.MustCompile(`gossip-key"?: .*`)
