// Package command is the command line of the sweeper, so that more than one program
// can offer it.
package command

import (
	"io"

	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/sweeper/internal/app"
	"github.com/queenmq/queen/services/sweeper/internal/config"
)

const usage = `usage: sweeper [run-once [--json] | version]

  (no argument)  work until SIGINT or SIGTERM
  run-once       sweep once and print what was done: fire the timers that are
                 due, prune expired keys, measure what tenants use
    --json       print one JSON object instead of a table
  version        print the version

Exit codes: 0 done, also when nothing was due; 1 failed; 2 wrong arguments.

Settings are environment variables; see the README.
`

// Run does what the arguments ask for, and answers the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	return worker.Program[*config.Config, *app.App]{Name: "sweeper", Usage: usage, Load: config.Load, New: app.New, Once: once}.Run(args, stdout, stderr)
}
