package command

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/worker/workertest"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	workertest.Arguments(t, Run, map[string]workertest.Call{
		"help":                  {Args: []string{"--help"}, Code: 0, Stdout: usage},
		"unknown command":       {Args: []string{"migrate"}, Code: 2, Stderr: "maintainer: unknown arguments [\"migrate\"]\n\n" + usage},
		"unknown flag":          {Args: []string{"run-once", "--force"}, Code: 2, Stderr: "maintainer: run-once: flag provided but not defined: -force\n\n" + usage},
		"unknown word":          {Args: []string{"run-once", "--json", "all"}, Code: 2, Stderr: "maintainer: run-once: unknown arguments [\"all\"]\n\n" + usage},
		"no value for a switch": {Args: []string{"run-once", "--json=maybe"}, Code: 2, Stderr: "maintainer: run-once: invalid boolean value \"maybe\" for -json: parse error\n\n" + usage},
	})
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
	require.Equal(t, 1, Run(args, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "maintainer: configuration: 2 problems\n  RETENTION_BATCH_SIZE=\"many\": a whole number is allowed\n  DB_POOL_SIZE=")
}
