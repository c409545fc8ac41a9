// Package compose_test holds deploy/compose.yaml and what it mounts to the services as
// they are: names of variables, ports, files.
package compose_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/dns"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	root = "../../.."
	file = root + "/deploy/compose.yaml"
)

// everything are the profiles of the file.
var everything = []string{"scale"}

// project loads the file as the engine does: unknown keys are errors.
func project(t *testing.T, profiles []string, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file},
		cli.WithProfiles(profiles), cli.WithEnv(env), cli.WithResolvedPaths(true), cli.WithInterpolation(true))
	require.NoError(t, err)
	p, err := options.LoadProject(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return p
}

func TestProfilesHaveTheirServices(t *testing.T) {
	t.Parallel()
	always := []string{"broker", "grafana", "maintainer", "postgres", "prometheus", "sweeper"}
	require.ElementsMatch(t, always, project(t, nil).ServiceNames())
	require.ElementsMatch(t, append([]string{"broker-2", "broker-3", "proxy"}, always...), project(t, everything).ServiceNames())
}

// ours tells the services of Queen from the others.
func ours(s types.ServiceConfig) bool { return strings.HasPrefix(s.Image, "queenmq/") }

func TestServicesAreRestricted(t *testing.T) {
	t.Parallel()
	n := 0
	for name, s := range project(t, everything).Services {
		require.False(t, s.Privileged, name)
		require.NotRegexp(t, `:latest$|^[^:]+$`, s.Image, "the image of %s has no version", name)
		for _, p := range s.Ports {
			require.Equal(t, "127.0.0.1", p.HostIP, "%s is open to others", name)
		}
		if !ours(s) {
			continue
		}
		n++
		require.True(t, s.ReadOnly, name)
		require.Equal(t, []string{"ALL"}, s.CapDrop, name)
		require.Contains(t, s.SecurityOpt, "no-new-privileges:true", name)
		require.Empty(t, s.Entrypoint, name)
		require.Equal(t, "service_healthy", s.DependsOn["postgres"].Condition, name)
		require.Equal(t, "deploy/Dockerfile", relative(t, s.Build.Dockerfile), name)
		require.Contains(t, stages(t), s.Build.Target, name)
		require.Equal(t, "queenmq/queen-"+s.Build.Target, strings.Split(s.Image, ":")[0], name)
	}
	require.Equal(t, 5, n)
}

// relative is a path below the root.
func relative(t *testing.T, path string) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		return path
	}
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	rel, err := filepath.Rel(top, path)
	require.NoError(t, err)
	return rel
}

// stages are the targets of the Dockerfile.
func stages(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^FROM .* AS (\S+)$`).FindAllStringSubmatch(text(t, root+"/deploy/Dockerfile"), -1) {
		names = append(names, m[1])
	}
	return names
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// TestVariablesAreThoseOfTheServices as the README describes them.
func TestVariablesAreThoseOfTheServices(t *testing.T) {
	t.Parallel()
	readme := text(t, root+"/README.md")
	for name, s := range project(t, everything).Services {
		if !ours(s) {
			continue
		}
		for variable, value := range s.Environment {
			require.Contains(t, readme, "`"+variable+"`", "%s of %s", variable, name)
			require.NotNil(t, value, "%s of %s has no value", variable, name)
		}
	}
}

// TestInstancesDiffer in their name, and share what all must have alike.
func TestInstancesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	secrets := map[string]bool{}
	for name, s := range project(t, everything).Services {
		if !ours(s) {
			continue
		}
		id := *s.Environment["QUEEN_SERVER_ID"]
		require.Empty(t, seen[id], "%s and %s", name, seen[id])
		seen[id] = name
		if secret := s.Environment["QUEEN_SYNC_SECRET"]; secret != nil {
			secrets[*secret] = true
			require.Contains(t, s.Networks["queen"].Aliases, *s.Environment["QUEEN_MESH_PEERS"], name)
		}
	}
	require.Len(t, secrets, 1)
}

// TestConnectionsFit counts what the services may open against what PostgreSQL allows.
func TestConnectionsFit(t *testing.T) {
	t.Parallel()
	p := project(t, everything)
	most, total := 0, 0
	for _, arg := range p.Services["postgres"].Command {
		if v, ok := strings.CutPrefix(arg, "-cmax_connections="); ok {
			most = number(t, v)
		}
	}
	for _, s := range p.Services {
		for _, variable := range []string{"DB_POOL_SIZE", "QUEEN_KV_POOL_SIZE"} {
			if v := s.Environment[variable]; v != nil {
				total += number(t, *v)
			}
		}
	}
	require.Positive(t, total)
	require.LessOrEqual(t, total, most*9/10, "connections of the services")
}

func number(t *testing.T, v string) int {
	t.Helper()
	n := 0
	require.NoError(t, yaml.Unmarshal([]byte(v), &n))
	return n
}

// TestBrokersMayStopInPeace: the engine kills after a time that has room for the stop.
func TestBrokersMayStopInPeace(t *testing.T) {
	t.Parallel()
	for name, s := range project(t, everything).Services {
		if !strings.HasPrefix(name, "broker") {
			continue
		}
		stop := number(t, *s.Environment["QUEEN_SHUTDOWN_DELAY_MS"]) + number(t, *s.Environment["QUEEN_SHUTDOWN_TIMEOUT_MS"])
		require.NotNil(t, s.StopGracePeriod, name)
		require.Greater(t, int(time.Duration(*s.StopGracePeriod).Milliseconds()), stop, name)
	}
}

func TestWhatIsMountedExists(t *testing.T) {
	t.Parallel()
	for name, s := range project(t, everything).Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				_, err := os.Stat(v.Source)
				require.NoError(t, err, name)
				require.True(t, v.ReadOnly, "%s may write %s", name, v.Source)
			}
		}
	}
}

// TestVariablesOfTheFileHaveDefaults, and stand in the example, so that a trial needs
// no settings and an operator finds them all.
func TestVariablesOfTheFileHaveDefaults(t *testing.T) {
	t.Parallel()
	example := text(t, root+"/deploy/env.example")
	used := regexp.MustCompile(`\$\{(\w+)(:-)?`).FindAllStringSubmatch(text(t, file), -1)
	require.NotEmpty(t, used)
	for _, m := range used {
		require.Equal(t, ":-", m[2], "%s has no default", m[1])
		require.Regexp(t, `(?m)^`+m[1]+`=`, example)
	}
	p := project(t, nil, "QUEEN_DB_PASSWORD=other")
	require.Equal(t, "other", *p.Services["postgres"].Environment["POSTGRES_PASSWORD"])
	require.Equal(t, "other", *p.Services["broker"].Environment["PG_PASSWORD"])
}

// TestPrometheusScrapesEveryService by names that resolve and ports that answer.
func TestPrometheusScrapesEveryService(t *testing.T) {
	t.Parallel()
	c, err := config.LoadFile(root+"/deploy/prometheus/prometheus.yaml", false, nil)
	require.NoError(t, err)
	ports := map[string]int{"queen-brokers": 6640, "maintainer": 6641, "sweeper": 6642}
	names := hosts(project(t, everything))
	for _, s := range c.ScrapeConfigs {
		for _, d := range s.ServiceDiscoveryConfigs {
			found, ok := d.(*dns.SDConfig)
			require.True(t, ok)
			for _, name := range found.Names {
				require.Contains(t, names, name)
				require.Equal(t, ports[name], found.Port, name)
				delete(ports, name)
			}
		}
	}
	require.Empty(t, ports, "not scraped")
	require.NotEmpty(t, c.RuleFiles)
	for _, path := range c.RuleFiles {
		require.FileExists(t, path)
	}
}

// hosts are the names that containers find.
func hosts(p *types.Project) []string {
	names := p.ServiceNames()
	for _, s := range p.Services {
		for _, n := range s.Networks {
			if n != nil {
				names = append(names, n.Aliases...)
			}
		}
	}
	return names
}

func TestGrafanaFindsSourceAndDashboards(t *testing.T) {
	t.Parallel()
	var source struct {
		Datasources []struct{ Type, URL string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text(t, root+"/deploy/grafana/provisioning/datasources/prometheus.yaml")), &source))
	require.Len(t, source.Datasources, 1)
	require.Equal(t, "prometheus", source.Datasources[0].Type)
	require.Equal(t, "http://prometheus:9090", source.Datasources[0].URL)
	var boards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	require.NoError(t, yaml.Unmarshal([]byte(text(t, root+"/deploy/grafana/provisioning/dashboards/queen.yaml")), &boards))
	g := project(t, nil).Services["grafana"]
	require.True(t, slices.ContainsFunc(g.Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Target == boards.Providers[0].Options.Path && relative(t, v.Source) == "deploy/grafana"
	}))
	home := *g.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	require.FileExists(t, root+"/deploy/grafana/"+filepath.Base(home))
}

// TestTheProxyServesEveryBroker at the ports they have, waits longer than pops do, and
// repeats nothing that was sent.
func TestTheProxyServesEveryBroker(t *testing.T) {
	t.Parallel()
	cfg := text(t, root+"/deploy/proxy/haproxy.cfg")
	for name := range project(t, everything).Services {
		if strings.HasPrefix(name, "broker") {
			require.Contains(t, cfg, " "+name+":6632")
		}
	}
	require.Contains(t, cfg, "check port 6640")
	require.Regexp(t, `(?m)^\s+timeout server 130s$`, cfg)
	require.Regexp(t, `(?m)^\s+retry-on conn-failure$`, cfg)
	if haproxy, err := exec.LookPath("haproxy"); err == nil {
		out, err := exec.CommandContext(t.Context(), haproxy, "-c", "-f", root+"/deploy/proxy/haproxy.cfg").CombinedOutput()
		require.NoError(t, err, string(out))
	}
}
