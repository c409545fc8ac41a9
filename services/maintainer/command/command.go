// Package command is the command line of the maintainer, so that more than one program
// can offer it.
package command

import (
	"errors"
	"io"

	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/maintainer/internal/app"
	"github.com/queenmq/queen/services/maintainer/internal/config"
)

const usage = `usage: maintainer [run-once [--dry-run] [--json] | version]

  (no argument)  work until SIGINT or SIGTERM
  run-once       make one retention cycle now and print what it did
    --dry-run    only print what it would delete
    --json       print one JSON object instead of a table
  version        print the version

Exit codes: 0 done, also when nothing was due; 1 failed; 2 wrong arguments;
3 another maintainer is in the middle of a cycle, nothing was done.

Settings are environment variables; see the README.
`

// exitBusy says that another maintainer was at it.
const exitBusy = worker.ExitOwn

// Run does what the arguments ask for, and answers the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	return worker.Program[*config.Config, *app.App]{
		Name: "maintainer", Usage: usage, Load: config.Load, New: app.New, Once: once, Code: exitCode,
	}.Run(args, stdout, stderr)
}

func exitCode(err error) int {
	if errors.Is(err, errBusy) {
		return exitBusy
	}
	return worker.ExitFailed
}
