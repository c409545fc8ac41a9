package operations_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestRunbooksNameWhatExists: alerts, metrics and settings.
func TestRunbooksNameWhatExists(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(alerts)
	require.NoError(t, err)
	settings, err := os.ReadFile(readme)
	require.NoError(t, err)
	known := string(rules) + string(settings)
	named := 0
	for _, name := range pages(t) {
		text := page(t, name)
		for _, m := range regexp.MustCompile("`(Queen[A-Z][A-Za-z]+)`").FindAllStringSubmatch(text, -1) {
			require.Contains(t, string(rules), "alert: "+m[1]+"\n", name)
			named++
		}
		for _, m := range regexp.MustCompile("`(queen_[a-z_]+)`").FindAllStringSubmatch(text, -1) {
			if m[1] == "queen_streams" {
				continue
			}
			require.Contains(t, known, m[1], name)
			named++
		}
		for _, m := range regexp.MustCompile("`((?:QUEEN|PG|DB)_[A-Z_]+)`").FindAllStringSubmatch(text, -1) {
			require.Contains(t, string(settings), "`"+m[1]+"`", name)
			named++
		}
		for _, m := range regexp.MustCompile(`\]\(([a-z-]+)\.md\)`).FindAllStringSubmatch(text, -1) {
			require.Contains(t, pages(t), m[1], name)
		}
	}
	require.Greater(t, named, 15)
}

// TestTheSQLOfRunbooksRuns on a server of its own, which it changes.
func TestTheSQLOfRunbooksRuns(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Server: true, Owner: true, Brokers: 1})
	run := 0
	for _, name := range pages(t) {
		for _, block := range blocks(t, name, "sql") {
			for statement := range strings.SplitSeq(block, ";\n") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				_, err := stage.DB.Pool.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err, "%s: %s", name, statement)
				run++
			}
		}
	}
	require.Greater(t, run, 12)
}
