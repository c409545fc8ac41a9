package command

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/pkg/worker/workertest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestArguments(t *testing.T) {
	t.Parallel()
	workertest.Arguments(t, Run, map[string]workertest.Call{
		"help":                  {Args: []string{"help"}, Code: worker.ExitOK, Stdout: usage},
		"unknown command":       {Args: []string{"migrate"}, Code: worker.ExitUsage, Stderr: "sweeper: unknown arguments [\"migrate\"]\n\n" + usage},
		"unknown flag":          {Args: []string{"run-once", "--dry-run"}, Code: worker.ExitUsage, Stderr: "sweeper: run-once: flag provided but not defined: -dry-run\n\n" + usage},
		"no value for a switch": {Args: []string{"run-once", "--json=maybe"}, Code: worker.ExitUsage, Stderr: "sweeper: run-once: invalid boolean value \"maybe\" for -json: parse error\n\n" + usage},
	})
}

func TestBadConfigurationExitsWithEveryProblem(t *testing.T) {
	t.Setenv("QUEEN_SWEEPER_CLAIM_BATCH", "many")
	t.Setenv("DB_POOL_SIZE", "-1")
	for _, args := range [][]string{nil, {"run-once"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, worker.ExitFailed, Run(args, &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), "sweeper: configuration: 2 problems\n  QUEEN_SWEEPER_CLAIM_BATCH=\"many\": a whole number is allowed\n  DB_POOL_SIZE=")
	}
}

// use makes a database the one that the environment names.
func use(t *testing.T, cfg pgdb.Config) {
	t.Helper()
	t.Setenv("PG_HOST", cfg.Host)
	t.Setenv("PG_PORT", strconv.Itoa(cfg.Port))
	t.Setenv("PG_USER", cfg.User)
	t.Setenv("PG_PASSWORD", string(cfg.Password))
	t.Setenv("PG_DATABASE", cfg.Database)
}

func TestRunOncePrintsATableOrAnObject(t *testing.T) {
	use(t, pgtest.NewConfig(t))
	var stdout, stderr bytes.Buffer
	require.Equal(t, worker.ExitOK, Run([]string{"run-once"}, &stdout, &stderr), stderr.String())
	require.Contains(t, stdout.String(), "WORK    FIGURE            VALUE\n")
	require.Contains(t, stdout.String(), "\nNothing was fired or pruned.")
	stdout.Reset()
	require.Equal(t, worker.ExitOK, Run([]string{"run-once", "--json"}, &stdout, &stderr), stderr.String())
	var report map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &report), stdout.String())
	require.Contains(t, report, "timers")
}

func TestNothingIsPrintedOfASweepThatDidNotBegin(t *testing.T) {
	use(t, pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d"})
	t.Setenv("QUEEN_BOOT_DB_WAIT_MS", "1")
	var stdout, stderr bytes.Buffer
	require.Equal(t, worker.ExitFailed, Run([]string{"run-once"}, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "sweeper: PostgreSQL at 127.0.0.1:1 did not answer within 1ms")
}
