// Command sweeper does in Queen's database what has its time: it fires the timers
// that are due, prunes the keys that have expired, and measures what tenants use.
//
//	sweeper             work until SIGINT or SIGTERM
//	sweeper run-once    sweep once and print what was done
//	sweeper version     print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"io"
	"os"

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

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	return worker.Program[*config.Config, *app.App]{Name: "sweeper", Usage: usage, Load: config.Load, New: app.New, Once: once}.Run(args, stdout, stderr)
}
