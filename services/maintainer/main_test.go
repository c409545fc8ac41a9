package main

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
		"help":                  {[]string{"--help"}, 0, usage, ""},
		"unknown command":       {[]string{"migrate"}, 2, "", "maintainer: unknown arguments [\"migrate\"]\n\n" + usage},
		"unknown flag":          {[]string{"run-once", "--force"}, 2, "", "maintainer: run-once: flag provided but not defined: -force\n\n" + usage},
		"unknown word":          {[]string{"run-once", "--json", "all"}, 2, "", "maintainer: run-once: unknown arguments [\"all\"]\n\n" + usage},
		"no value for a switch": {[]string{"run-once", "--json=maybe"}, 2, "", "maintainer: run-once: invalid boolean value \"maybe\" for -json: parse error\n\n" + usage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, run(tc.args, &stdout, &stderr))
			require.Equal(t, tc.stdout, stdout.String())
			require.Equal(t, tc.stderr, stderr.String())
		})
	}
}

func TestBadConfigurationExitsWithEveryProblem(t *testing.T) {
	t.Setenv("RETENTION_BATCH_SIZE", "many")
	t.Setenv("DB_POOL_SIZE", "-1")
	for _, args := range [][]string{nil, {"run-once"}} {
		requireProblems(t, args)
	}
}

func requireProblems(t *testing.T, args []string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(args, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "maintainer: configuration: 2 problems\n  RETENTION_BATCH_SIZE=\"many\": a whole number is allowed\n  DB_POOL_SIZE=")
}
