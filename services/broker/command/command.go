// Package command is the command line of the broker, so that more than one program
// can offer it.
package command

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
	"github.com/queenmq/queen/services/broker/internal/app"
	"github.com/queenmq/queen/services/broker/internal/check"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/gcpace"
)

const usage = `usage: broker [migrate | check | version]

  (no argument)  serve until SIGINT or SIGTERM
  migrate        apply the schema to the database and exit
  check [URL]    try out a running installation over HTTP; check --help tells more
  version        print the version

Settings are environment variables; see the README.
`

// gcPercent lets the heap triple between collections, and gcFloor lets it grow to so
// many bytes in any case, unless GOGC says otherwise. Most of what a broker allocates
// lives as long as a request: measured, a fifth of its processor time under pushes and
// pops of 100 messages.
const (
	gcPercent = 200
	gcFloor   = 64 << 20
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Run does what the arguments ask for, and answers the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case command == "check":
		return check.Command(args[1:], os.Getenv, stdout, stderr)
	case len(args) > 1:
	case command == "version":
		fmt.Fprintln(stdout, buildinfo.Version())
		return exitOK
	case command == "help" || command == "-h" || command == "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	case command == "" || command == "migrate":
		if err := work(command == "migrate"); err != nil {
			fmt.Fprintln(stderr, "broker: "+err.Error())
			return exitFailed
		}
		return exitOK
	}
	fmt.Fprintf(stderr, "broker: unknown arguments %q\n\n%s", args, usage)
	return exitUsage
}

// work serves, or only migrates. The first signal asks it to stop; the second
// one ends the process at once.
func work(migrate bool) error {
	cfg, err := config.Load()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect

	if os.Getenv("GOGC") == "" {
		defer gcpace.Keep(gcFloor, gcPercent)()
	}
	log := logging.New(os.Stderr, cfg.Logging)
	telemetry.LogErrors(log)
	cfg.Show(ctx, log)
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	if migrate {
		return a.Migrate(ctx)
	}
	return a.Run(ctx)
}
