// Package configtest gives a test the environment that it wants.
package configtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
)

// Environment hides the variables of whoever runs the tests that begin with one of
// prefixes or with one that every service reads, and sets those of pairs. The
// environment is the process's, so such tests cannot run in parallel.
func Environment(t *testing.T, prefixes []string, pairs ...string) {
	t.Helper()
	prefixes = append([]string{"QUEEN_", "PG", "DB_", "METRICS_", "LOG_", "RUST_LOG", "HOSTNAME"}, prefixes...)
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		for _, prefix := range prefixes {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "") // restores it afterwards
				require.NoError(t, os.Unsetenv(name))
			}
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
}

// Documented requires that the file describes every variable of spec, between backquotes:
// by its name, by the end of it (`_MAX`) in the line that names one with the same
// beginning, or by that (`OTEL_*`).
func Documented(t *testing.T, file string, spec any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	quoted := regexp.MustCompile("`[A-Z_][A-Z0-9_*]+`")
	for _, variable := range config.Values(spec) {
		found := false
		for line := range strings.Lines(string(text)) {
			names := quoted.FindAllString(line, -1)
			for i := range names {
				found = found || describes(strings.Trim(names[0], "`"), strings.Trim(names[i], "`"), variable.Key)
			}
		}
		require.True(t, found, "%s does not describe %s", file, variable.Key)
	}
}

// describes tells whether a name stands for a variable; first is the first of its line.
func describes(first, name, variable string) bool {
	if family, ok := strings.CutSuffix(name, "*"); ok {
		return strings.HasPrefix(variable, family)
	}
	if strings.HasPrefix(name, "_") {
		start, ok := strings.CutSuffix(variable, name)
		return ok && strings.HasPrefix(first, start+"_")
	}
	return name == variable
}
