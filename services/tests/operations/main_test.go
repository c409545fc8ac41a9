// Package operations_test does what the runbooks of deploy/runbooks say, with real
// servers and services, and holds their text to what exists.
package operations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	runbooks = "../../../deploy/runbooks"
	readme   = "../../../README.md"
	alerts   = "../../../deploy/prometheus/alerts.yaml"
)

// page is the text of one runbook.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(runbooks, name+".md"))
	require.NoError(t, err)
	return string(text)
}

// pages are all runbooks.
func pages(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".md"))
	}
	return names
}

// blocks are the fenced blocks of a language in a page.
func blocks(t *testing.T, name, language string) []string {
	t.Helper()
	fence := regexp.MustCompile("(?ms)^ *```" + language + "\n(.*?)^ *```")
	var out []string
	for _, m := range fence.FindAllStringSubmatch(page(t, name), -1) {
		out = append(out, m[1])
	}
	return out
}
