// Command maintainer keeps Queen's database in shape: it deletes what retention
// lets go and keeps the statistics true.
//
//	maintainer             work until SIGINT or SIGTERM
//	maintainer run-once    make one retention cycle and print what it did
//	maintainer version     print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"errors"
	"io"
	"os"

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

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
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
