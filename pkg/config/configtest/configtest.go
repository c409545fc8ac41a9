// Package configtest gives a test the environment that it wants.
package configtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
