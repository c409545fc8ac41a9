package boards_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

const (
	dashboardFiles = "../../../deploy/grafana/*.json"
	alertFile      = "../../../deploy/prometheus/alerts.yaml"
)

// dashboard is the part of a dashboard that has a meaning here.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct {
		H, W, X, Y int
	} `json:"gridPos"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

func readDashboards(t *testing.T) []dashboard {
	t.Helper()
	files, err := filepath.Glob(dashboardFiles)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all []dashboard
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var d dashboard
		require.NoError(t, json.Unmarshal(text, &d), file)
		require.Equal(t, d.UID+".json", filepath.Base(file))
		all = append(all, d)
	}
	return all
}

// query is what a panel asks when nothing is chosen.
func query(expr string) string { return strings.ReplaceAll(expr, "$instance", ".*") }

func newParser() parser.Parser { return parser.NewParser(parser.Options{}) }

func readAlerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile(alertFile)
	require.NoError(t, err)
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, newParser(), slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	rules := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			require.NotContains(t, rules, r.Alert)
			rules[r.Alert] = r
		}
	}
	return rules
}

func TestAlertsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for name, r := range readAlerts(t) {
		require.Regexp(t, `^Queen[A-Z][A-Za-z]+$`, name)
		require.Contains(t, []string{"info", "warning", "critical"}, r.Labels["severity"], name)
		require.NotEmpty(t, r.Annotations["summary"], name)
		require.Greater(t, len(r.Annotations["runbook"]), 80, "%s: what to look at, and what to do", name)
	}
}

func TestDashboardsAreWellFormed(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for _, d := range readDashboards(t) {
		require.False(t, uids[d.UID], d.UID)
		uids[d.UID] = true
		ids := map[int]bool{}
		for i, p := range d.Panels {
			require.False(t, ids[p.ID], "%s: panel %d is there twice", d.UID, p.ID)
			ids[p.ID] = true
			require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, "%s: %s", d.UID, p.Title)
			for _, q := range d.Panels[:i] {
				a, b := p.GridPos, q.GridPos
				apart := a.X+a.W <= b.X || b.X+b.W <= a.X || a.Y+a.H <= b.Y || b.Y+b.H <= a.Y
				require.True(t, apart, "%s: %q and %q overlap", d.UID, p.Title, q.Title)
			}
			if p.Type != "row" {
				require.NotEmpty(t, p.Targets, "%s: %s", d.UID, p.Title)
			}
		}
	}
	require.Len(t, uids, 4)
}
