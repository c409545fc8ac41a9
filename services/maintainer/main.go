// Command maintainer keeps Queen's database in shape: it deletes what retention
// lets go and keeps the statistics true.
//
//	maintainer            work until SIGINT or SIGTERM
//	maintainer version    print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"context"
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

const usage = `usage: maintainer [version]

  (no argument)  work until SIGINT or SIGTERM
  version        print the version

Settings are environment variables; see the README.
`

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case len(args) > 1:
	case command == "version":
		fmt.Fprintln(stdout, buildinfo.Version())
		return exitOK
	case command == "help" || command == "-h" || command == "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	case command == "":
		if err := serve(); err != nil {
			fmt.Fprintln(stderr, "maintainer: "+err.Error())
			return exitFailed
		}
		return exitOK
	}
	fmt.Fprintf(stderr, "maintainer: unknown arguments %q\n\n%s", args, usage)
	return exitUsage
}

// serve works. The first signal asks it to stop; the second one ends the process
// at once.
func serve() error {
	cfg, err := config.Load()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect

	log := logging.New(os.Stderr, cfg.Logging)
	telemetry.LogErrors(log)
	cfg.Show(ctx, log)
	cfg.Warn(ctx, log)
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
