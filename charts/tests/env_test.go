package charttests

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

// later are variables that services do not read yet; values.yaml says so where they are set.
var later = []string{
	"FILE_BUFFER_DIR", "QUEEN_TENANCY_HEADER", "QUEEN_KV_TRUSTED_PROXY", "QUEEN_ENCRYPTION_KEY",
	"JWT_ENABLED", "JWT_ALGORITHM", "JWT_SECRET", "JWT_PUBLIC_KEY", "JWT_JWKS_URL", "JWT_JWKS_REFRESH_INTERVAL",
	"JWT_JWKS_TIMEOUT_MS", "JWT_ISSUER", "JWT_AUDIENCE", "JWT_CLOCK_SKEW", "JWT_SKIP_PATHS", "JWT_ROLES_CLAIM",
	"JWT_ROLES_ARRAY_CLAIM", "JWT_ROLE_ADMIN", "JWT_ROLE_READ_WRITE", "JWT_ROLE_READ_ONLY", "JWT_ROLE_WRITE_ONLY",
}

// A variable that nobody reads is a setting that does nothing. The tables of README.md
// name what is read; that they are complete is a test of each service.
func TestServicesReadEveryVariableThatTheChartSets(t *testing.T) {
	t.Parallel()
	documented := map[string]variables{}
	for component, section := range map[string]string{
		"broker": "broker", "maintainer": "maintainer", "sweeper": "sweeper", "schema": "broker", "check": "broker",
	} {
		documented[component] = documentedVariables(t, section)
	}
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		env := pod.Spec.Containers[0].Env
		for i, variable := range env {
			if slices.Contains(later, variable.Name) {
				continue
			}
			if slices.ContainsFunc(env[i+1:], func(other corev1.EnvVar) bool {
				return strings.Contains(other.Value, "$("+variable.Name+")")
			}) {
				continue // Kubernetes itself puts it into another one
			}
			require.True(t, documented[pod.Component()].contain(variable.Name), "%s sets %s, which it does not read", pod.Owner, variable.Name)
		}
	})
}

func TestNoVariableIsSetTwice(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		require.Len(t, pod.Env(), len(pod.Spec.Containers[0].Env), pod.Owner)
		for name, variable := range pod.Env() {
			require.True(t, variable.ValueFrom == nil || variable.Value == "", "%s: %s has two values", pod.Owner, name)
		}
	})
}

// Numbers of values are floats to Helm, which prints large ones as 2.68435456e+08.
func TestNumbersAreWrittenAsNumbers(t *testing.T) {
	t.Parallel()
	eachPod(t, func(t *testing.T, _ rendered, pod manifest.Pod) {
		for name, variable := range pod.Env() {
			require.NotRegexp(t, `^[0-9.]+e[+-]?[0-9]+$|%!|<nil>`, variable.Value, name)
		}
	})
}

func TestVariablesThatMatterAreThere(t *testing.T) {
	t.Parallel()
	objects := render(t, scenarios(t)[0], newestKube).objects
	for component, names := range map[string][]string{
		"broker": {"PG_URL", "DB_POOL_SIZE", "QUEEN_KV_POOL_SIZE", "QUEEN_APPLY_SCHEMA", "QUEEN_SHUTDOWN_DELAY_MS", "QUEEN_SHUTDOWN_TIMEOUT_MS",
			"QUEEN_MESH_PEERS", "QUEEN_SYNC_SECRET", "QUEEN_MESH_ADVERTISE_HOST", "QUEEN_SERVER_ID", "GOMEMLIMIT", "QUEEN_LOG_JSON"},
		"maintainer": {"PG_URL", "DB_POOL_SIZE", "QUEEN_SHUTDOWN_TIMEOUT_MS", "GOMEMLIMIT", "QUEEN_SERVER_ID"},
		"sweeper":    {"PG_URL", "DB_POOL_SIZE", "QUEEN_MESH_PEERS", "QUEEN_SYNC_SECRET", "QUEEN_MESH_ADVERTISE_HOST", "GOMEMLIMIT"},
	} {
		pod, found := objects.Pod(component)
		require.True(t, found, component)
		require.Subset(t, slices.Collect(maps.Keys(pod.Env())), names, component)
	}
}

// variables are names of variables, and beginnings of names.
type variables struct{ names, families []string }

func (v variables) contain(name string) bool {
	return slices.Contains(v.names, name) ||
		slices.ContainsFunc(v.families, func(family string) bool { return strings.HasPrefix(name, family) })
}

// documentedVariables reads the section about a service's configuration in README.md. That
// of the sweeper refers to that of the maintainer.
func documentedVariables(t *testing.T, service string) variables {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## The "+service+"\n")
	require.True(t, found, service)
	section, _, _ = strings.Cut(section, "\n## ")
	_, section, found = strings.Cut(section, "\n### Configuration\n")
	require.True(t, found, service)
	section, _, _ = strings.Cut(section, "\n### ")
	var read variables
	if service == "sweeper" {
		read = documentedVariables(t, "maintainer")
	}
	quoted := regexp.MustCompile("`([A-Z][A-Z0-9_]+)(\\*?)`")
	for _, match := range quoted.FindAllStringSubmatch(section, -1) {
		if match[1] == "QUEEN_" {
			continue // the text speaks of all variables, known or not
		}
		if match[2] == "*" {
			read.families = append(read.families, match[1])
		} else {
			read.names = append(read.names, match[1])
		}
	}
	require.Greater(t, len(read.names), 10, service)
	return read
}
