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
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/queenmq/queen/pkg/buildinfo"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/telemetry"
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

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitBusy   = 3
)

// The commands.
const (
	commandOnce    = "run-once"
	commandVersion = "version"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return exitCode(serve(stderr), stderr)
	}
	command, rest := args[0], args[1:]
	switch {
	case command == commandOnce:
		return runOnce(rest, stdout, stderr)
	case len(rest) > 0:
	case command == commandVersion:
		fmt.Fprintln(stdout, buildinfo.Version())
		return exitOK
	case command == "help" || command == "-h" || command == "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "maintainer: unknown arguments %q\n\n%s", args, usage)
	return exitUsage
}

// exitCode reports an error, if there is one.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "maintainer: "+err.Error())
	if errors.Is(err, errBusy) {
		return exitBusy
	}
	return exitFailed
}

// serve works until it is told to stop.
func serve(stderr io.Writer) error {
	return with(stderr, func(ctx context.Context, a *app.App) error {
		a.ShowConfig(ctx)
		return a.Run(ctx)
	})
}

// with reads the configuration and hands a maintainer to work. The first signal
// asks it to stop; the second one ends the process at once.
func with(stderr io.Writer, work func(context.Context, *app.App) error) error {
	cfg, err := config.Load()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect

	log := logging.New(stderr, cfg.Logging)
	telemetry.LogErrors(log)
	cfg.Warn(ctx, log)
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return work(ctx, a)
}
