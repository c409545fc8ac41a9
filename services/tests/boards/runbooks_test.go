package boards_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	descriptionFile = "../../../services/broker/internal/httpapi/openapi.yaml"
	readmeFile      = "../../../README.md"
	repository      = "../../../"
	pageFiles       = repository + "deploy/runbooks/*.md"
)

// How runbooks write what they name.
//
//nolint:gochecknoglobals // patterns, never changed
var (
	quotedSQL   = regexp.MustCompile("`([^`]+)`")
	namedRoute  = regexp.MustCompile(`\b(GET|POST|PUT|DELETE)\s(/[^\s?:,;)]*[^\s?:,;).])`)
	namedFlag   = regexp.MustCompile(`\b[A-Z]+(?:_[A-Z0-9]+)+\b`)
	namedAlert  = regexp.MustCompile(`\bQueen[A-Z][A-Za-z]+\b`)
	namedBoard  = regexp.MustCompile(`(?i)dashboard "([^"]+)"((?:,? (?:and )?"[^"]+")*)`)
	quotedTitle = regexp.MustCompile(`"([^"]+)"`)
	namedPage   = regexp.MustCompile(`deploy/runbooks/[^\s()]*`)
	heading     = regexp.MustCompile(`(?m)^#+ (.+)$`)
	placeholder = regexp.MustCompile(`<[^>]+>|\{[^}]+\}`)
)

// runbook is the text of a runbook in one line.
func runbook(rule rulefmt.Rule) string {
	return strings.Join(strings.Fields(rule.Annotations["runbook"]), " ")
}

// TestRunbooksNameWhatExists reads runbooks for routes, settings, alerts, dashboards and
// panels. Their SQL runs in TestEveryQueryHasAnAnswer.
func TestRunbooksNameWhatExists(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(readmeFile)
	require.NoError(t, err)
	routes, panels, alerts := describedRoutes(t), panelsByBoard(t), readAlerts(t)
	named := 0
	for name, rule := range alerts {
		text := runbook(rule)
		for _, m := range namedRoute.FindAllStringSubmatch(text, -1) {
			require.Contains(t, routes, m[1]+" "+placeholder.ReplaceAllString(m[2], "*"), name)
			named++
		}
		for _, flag := range namedFlag.FindAllString(text, -1) {
			require.Contains(t, string(readme), "`"+flag+"`", name)
			named++
		}
		for _, other := range namedAlert.FindAllString(text, -1) {
			require.Contains(t, alerts, other, name)
			named++
		}
		for _, m := range namedBoard.FindAllStringSubmatch(text, -1) {
			require.Contains(t, panels, m[1], name)
			for _, title := range quotedTitle.FindAllStringSubmatch(m[2], -1) {
				require.Contains(t, panels[m[1]], title[1], "%s: %s", name, m[1])
				named++
			}
		}
	}
	require.Greater(t, named, 40, "the patterns find what there is")
}

// anchors are the links to the headings of a page, as platforms make them of its text.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(strings.ToLower(m[1]), " ", "-"))
	}
	return all
}

// TestAlertsNameTheirPages: every page and heading is there, and a page and its alerts
// name each other.
func TestAlertsNameTheirPages(t *testing.T) {
	t.Parallel()
	alerts := readAlerts(t)
	named := 0
	for name, rule := range alerts {
		for _, text := range rule.Annotations {
			for _, link := range namedPage.FindAllString(text, -1) {
				path, anchor, _ := strings.Cut(link, "#")
				page, err := os.ReadFile(repository + path)
				require.NoError(t, err, name)
				if anchor != "" {
					require.Contains(t, anchors(string(page)), anchor, "%s: %s", name, path)
				}
				named++
			}
		}
		if link, ok := rule.Annotations["runbook_page"]; ok {
			path, _, _ := strings.Cut(link, "#")
			page, err := os.ReadFile(repository + path)
			require.NoError(t, err, name)
			require.Contains(t, string(page), "`"+name+"`", path)
		}
	}
	require.Greater(t, named, 10, "the pattern finds what there is")

	files, err := filepath.Glob(pageFiles)
	require.NoError(t, err)
	for _, file := range files {
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range namedAlert.FindAllString(string(page), -1) {
			require.Contains(t, alerts[name].Annotations["runbook_page"], filepath.Base(file), name)
		}
	}
}

// describedRoutes are the methods and paths of the broker, with * for what varies, and
// those of the operations listeners.
func describedRoutes(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(descriptionFile)
	require.NoError(t, err)
	var description struct {
		Paths map[string]map[string]yaml.Node `yaml:"paths"`
	}
	require.NoError(t, yaml.Unmarshal(text, &description))
	routes := map[string]bool{"GET /ready": true, "GET /live": true}
	for path, methods := range description.Paths {
		for method := range methods {
			routes[strings.ToUpper(method)+" "+placeholder.ReplaceAllString(path, "*")] = true
		}
	}
	return routes
}

func panelsByBoard(t *testing.T) map[string]map[string]bool {
	t.Helper()
	boards := map[string]map[string]bool{}
	for _, d := range readDashboards(t) {
		boards[d.Title] = map[string]bool{}
		for _, p := range d.Panels {
			boards[d.Title][p.Title] = true
		}
	}
	return boards
}
