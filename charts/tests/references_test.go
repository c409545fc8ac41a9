package charttests

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// Secrets that the values of the matrix name, and that somebody else makes.
var foreignSecrets = []string{
	"x", "queen-db", "queen-db-app", "queen-db-runtime", "queen-db-owner", "queen-db-superuser", "queen-db-ca", "queen-hints-key",
	"queen-jwt", "queen-encryption", "queen-otlp",
}

func names[T any, P interface {
	*T
	GetName() string
}](objects []P) []string {
	var all []string
	for _, object := range objects {
		all = append(all, object.GetName())
	}
	return all
}

func TestSecretsAndConfigMapsThatPodsNameExist(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		secrets := names(manifest.All[*corev1.Secret](r.objects))
		if !pod.Service {
			secrets = nil // hooks run before them
		}
		for name, variable := range pod.Env() {
			if variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef == nil {
				continue
			}
			reference := variable.ValueFrom.SecretKeyRef
			require.NotEmpty(t, reference.Key, name)
			require.Contains(t, slices.Concat(secrets, foreignSecrets), reference.Name, "%s: %s", pod.Owner, name)
			for _, secret := range manifest.All[*corev1.Secret](r.objects) {
				if secret.Name == reference.Name {
					require.True(t, len(secret.Data[reference.Key]) > 0 || secret.StringData[reference.Key] != "", "%s has no key %s", secret.Name, reference.Key)
				}
			}
		}
	})
}

func TestMountsHaveVolumes(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		volumes := slices.Clone(pod.Volumes)
		for i := range pod.Spec.Volumes {
			volumes = append(volumes, pod.Spec.Volumes[i].Name)
		}
		var mounted []string
		for i := range pod.Spec.Containers {
			for _, mount := range pod.Spec.Containers[i].VolumeMounts {
				require.Contains(t, volumes, mount.Name, pod.Owner)
				mounted = append(mounted, mount.Name)
			}
		}
		require.Subset(t, mounted, pod.Volumes, "%s claims a volume that it does not mount", pod.Owner)
	})
}

func TestServiceAccountsExist(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		accounts := names(manifest.All[*corev1.ServiceAccount](r.objects))
		if len(accounts) == 0 {
			accounts = []string{"default"} // serviceAccount.create=false
		}
		require.Contains(t, accounts, pod.Spec.ServiceAccountName, pod.Owner)
		if pod.Component() == "schema" {
			services, _ := r.objects.Pod("broker")
			require.NotEqual(t, services.Spec.ServiceAccountName, pod.Spec.ServiceAccountName, "the account of the services does not exist yet when the job runs")
		}
	})
}

func TestServicesSelectPodsAndTheirPorts(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		services := manifest.All[*corev1.Service](r.objects)
		require.NotEmpty(t, services)
		for _, service := range services {
			var selected int
			for _, pod := range r.objects.Pods() {
				if !matches(service.Spec.Selector, pod.Meta.Labels) {
					continue
				}
				selected++
				require.True(t, pod.Service, "%s would send clients to %s", service.Name, pod.Owner)
				for _, port := range service.Spec.Ports {
					_, found := pod.Port(port.TargetPort.String(), port.Protocol)
					require.True(t, found, "%s has no port %s for %s", pod.Owner, port.TargetPort.String(), service.Name)
				}
			}
			require.Positive(t, selected, "%s selects nothing", service.Name)
		}
	})
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// Pods find each other by a Service that also names those that are not ready: a cluster
// that starts would otherwise never meet.
func TestHintsHaveAServiceThatNamesEverybody(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, r rendered, pod manifest.Pod) {
		peers := pod.Env()["QUEEN_MESH_PEERS"].Value
		exchanges := peers != ""
		require.Equal(t, exchanges, pod.Env()["QUEEN_SYNC_SECRET"].ValueFrom != nil, pod.Owner)
		if !exchanges {
			return
		}
		services := manifest.All[*corev1.Service](r.objects)
		i := slices.IndexFunc(services, func(s *corev1.Service) bool { return s.Name == peers })
		require.GreaterOrEqual(t, i, 0, "%s looks for %s", pod.Owner, peers)
		spec := services[i].Spec
		require.Equal(t, corev1.ClusterIPNone, spec.ClusterIP)
		require.True(t, spec.PublishNotReadyAddresses)
		require.True(t, matches(spec.Selector, pod.Meta.Labels), "%s is not among the pods of %s", pod.Owner, peers)
		var protocols []corev1.Protocol
		for _, port := range spec.Ports {
			protocols = append(protocols, port.Protocol)
			number, _ := pod.Port(port.TargetPort.String(), port.Protocol)
			require.Equal(t, port.Port, number, "a headless Service cannot map ports")
		}
		require.ElementsMatch(t, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}, protocols)
	})
}

func TestTheClientServiceReachesBrokersAlone(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		services := manifest.All[*corev1.Service](r.objects)
		i := slices.IndexFunc(services, func(s *corev1.Service) bool { return strings.HasSuffix(s.Name, "-broker") })
		require.GreaterOrEqual(t, i, 0)
		require.Len(t, services[i].Spec.Ports, 1, "the operations port is not for clients")
		for _, pod := range r.objects.Pods() {
			require.Equal(t, pod.Component() == "broker", matches(services[i].Spec.Selector, pod.Meta.Labels), pod.Owner)
			if pod.Component() == "broker" {
				number, _ := pod.Port(services[i].Spec.Ports[0].TargetPort.String(), corev1.ProtocolTCP)
				require.EqualValues(t, 6632, number)
				require.Equal(t, "6632", pod.Env()["PORT"].Value)
			}
			if pod.Component() == "check" {
				require.Equal(t, []string{"check", "http://" + services[i].Name + ":6632"}, pod.Spec.Containers[0].Args)
			}
		}
	})
}

func TestAutoscalersHaveTheirTargets(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		scaled := map[string]bool{}
		for _, hpa := range manifest.All[*autoscalingv2.HorizontalPodAutoscaler](r.objects) {
			target := hpa.Spec.ScaleTargetRef
			scaled[target.Kind+"/"+target.Name] = true
			require.Equal(t, appsv1.SchemeGroupVersion.String(), target.APIVersion)
			require.NotEmpty(t, hpa.Spec.Metrics)
			require.LessOrEqual(t, *hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas)
			require.GreaterOrEqual(t, *hpa.Spec.Behavior.ScaleDown.StabilizationWindowSeconds, int32(300), "scaling down ends long polls")
			require.NotContains(t, hpa.Name, "maintainer", "one leads, so more of them do no more")
		}
		for _, pod := range r.objects.Pods() {
			if pod.Service {
				require.Equal(t, scaled[pod.Owner], pod.Replicas == nil, "%s: an upgrade would undo what the autoscaler did, or nobody sets the number", pod.Owner)
			}
			delete(scaled, pod.Owner)
		}
		require.Empty(t, scaled, "autoscalers of what does not exist")
	})
}

// A budget over one pod blocks the draining of its node for good.
func TestBudgetsNeverBlock(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		least := map[string]int32{}
		for _, hpa := range manifest.All[*autoscalingv2.HorizontalPodAutoscaler](r.objects) {
			least[hpa.Spec.ScaleTargetRef.Kind+"/"+hpa.Spec.ScaleTargetRef.Name] = *hpa.Spec.MinReplicas
		}
		budgets := manifest.All[*policyv1.PodDisruptionBudget](r.objects)
		for _, pod := range r.objects.Pods() {
			if !pod.Service {
				continue
			}
			replicas := least[pod.Owner]
			if pod.Replicas != nil {
				replicas = *pod.Replicas
			}
			var protecting int
			for _, budget := range budgets {
				if !pod.Matches(budget.Spec.Selector) {
					continue
				}
				protecting++
				require.Nil(t, budget.Spec.MinAvailable, budget.Name)
				require.NotEqual(t, "0", budget.Spec.MaxUnavailable.String(), budget.Name)
				require.Equal(t, policyv1.AlwaysAllow, *budget.Spec.UnhealthyPodEvictionPolicy, budget.Name)
			}
			require.Equal(t, replicas > 1, protecting == 1, "%s has %d pods and %d budgets", pod.Owner, replicas, protecting)
		}
	})
}

func TestDeploymentsKeepEveryPodDuringAnUpdate(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		for _, deployment := range manifest.All[*appsv1.Deployment](r.objects) {
			rolling := deployment.Spec.Strategy.RollingUpdate
			require.Equal(t, "0", rolling.MaxUnavailable.String(), deployment.Name)
			require.Equal(t, "1", rolling.MaxSurge.String(), deployment.Name)
		}
	})
}

func TestWaysInLeadToTheClientService(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		services := manifest.All[*corev1.Service](r.objects)
		has := func(name string, number int32) bool {
			return slices.ContainsFunc(services, func(s *corev1.Service) bool {
				return s.Name == name && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
					return p.Port == number || number == 0 && p.Name == "http"
				})
			})
		}
		for _, ingress := range manifest.All[*networkingv1.Ingress](r.objects) {
			for _, rule := range ingress.Spec.Rules {
				for _, path := range rule.HTTP.Paths {
					require.True(t, has(path.Backend.Service.Name, path.Backend.Service.Port.Number), ingress.Name)
				}
			}
		}
		for _, route := range manifest.All[*gatewayv1.HTTPRoute](r.objects) {
			require.NotEmpty(t, route.Spec.ParentRefs)
			for _, rule := range route.Spec.Rules {
				for i := range rule.BackendRefs {
					require.True(t, has(string(rule.BackendRefs[i].Name), *rule.BackendRefs[i].Port), route.Name)
				}
			}
		}
	})
}

func TestMonitorsSelectWhatTheyScrape(t *testing.T) {
	t.Parallel()
	eachRendering(t, func(t *testing.T, r rendered) {
		for _, monitor := range manifest.All[*monitoringv1.ServiceMonitor](r.objects) {
			var selected int
			for _, service := range manifest.All[*corev1.Service](r.objects) {
				if matches(monitor.Spec.Selector.MatchLabels, service.Labels) {
					selected++
					require.Equal(t, monitor.Spec.Endpoints[0].Port, service.Spec.Ports[0].Name)
				}
			}
			require.Equal(t, 1, selected, "each broker is scraped once")
		}
		for _, monitor := range manifest.All[*monitoringv1.PodMonitor](r.objects) {
			var scraped []string
			for _, pod := range r.objects.Pods() {
				if pod.Matches(&monitor.Spec.Selector) {
					scraped = append(scraped, pod.Component())
					_, found := pod.Port(*monitor.Spec.PodMetricsEndpoints[0].Port, corev1.ProtocolTCP)
					require.True(t, found, pod.Owner)
				}
			}
			require.ElementsMatch(t, []string{"maintainer", "sweeper"}, scraped)
		}
	})
}

// What is secret is read from a Secret by the pod: it is in no argument, in no ConfigMap
// and in no variable, where everybody who may see pods would read it.
func TestSecretsStayInSecrets(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`(PASSWORD|SECRET|_KEY$|PG_URL|HEADERS)`)
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for name, variable := range pod.Env() {
			if secret.MatchString(name) {
				require.NotNil(t, variable.ValueFrom, "%s: %s is readable", pod.Owner, name)
			}
		}
		require.NotRegexp(t, `(?i)password|secret|postgres://`, strings.Join(pod.Spec.Containers[0].Args, " "), pod.Owner)
	})
}

// A password that is given as a value, for trials, is in the chart's own Secret and nowhere else.
func TestAPasswordAmongTheValuesIsNowhereElse(t *testing.T) {
	t.Parallel()
	for name, set := range map[string][]string{
		"url":   {"database.url=postgres://u:correct-horse@db:5432/queen"},
		"parts": {"database.host=db", "database.name=queen", "database.user=u", "database.password=correct-horse"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var holders []string
			for _, object := range renderSet(t, set...) {
				encoded := base64.StdEncoding.EncodeToString([]byte("correct-horse"))
				if strings.Contains(object.Text, "correct-horse") || strings.Contains(object.Text, encoded) {
					holders = append(holders, object.Kind)
				}
			}
			require.Equal(t, []string{"Secret"}, holders)
		})
	}
}
