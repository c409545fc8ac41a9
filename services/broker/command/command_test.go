package command

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"version":          {[]string{"version"}, 0, "devel\n", ""},
		"help":             {[]string{"--help"}, 0, usage, ""},
		"unknown command":  {[]string{"serve"}, 2, "", "broker: unknown arguments [\"serve\"]\n\n" + usage},
		"too many of them": {[]string{"migrate", "now"}, 2, "", "broker: unknown arguments [\"migrate\" \"now\"]\n\n" + usage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, Run(tc.args, &stdout, &stderr))
			require.Equal(t, tc.stdout, stdout.String())
			require.Equal(t, tc.stderr, stderr.String())
		})
	}
}

func TestBadConfigurationExitsWithEveryProblem(t *testing.T) {
	t.Setenv("PORT", "eighty")
	t.Setenv("DB_POOL_SIZE", "-1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, Run(nil, &stdout, &stderr))
	require.Contains(t, stderr.String(), "broker: configuration: 2 problems\n  PORT=\"eighty\": a whole number is allowed\n  DB_POOL_SIZE=")
}
