// Command queen is all services of Queen in one binary, for trials: an
// installation runs each service by itself.
//
//	queen                           run a broker, a maintainer and a sweeper
//	queen broker [ARGUMENTS]        be a broker, as its own binary is
//	queen maintainer [ARGUMENTS]    be a maintainer
//	queen sweeper [ARGUMENTS]       be a sweeper
//	queen version                   print the version
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

	_ "golang.org/x/crypto/x509roots/fallback" // an image without a system has no authorities to trust

	"github.com/queenmq/queen/pkg/buildinfo"
	broker "github.com/queenmq/queen/services/broker/command"
	maintainer "github.com/queenmq/queen/services/maintainer/command"
	sweeper "github.com/queenmq/queen/services/sweeper/command"
)

const usage = `usage: queen [broker | maintainer | sweeper] [arguments of that service]
       queen version

Without arguments it runs one of each until SIGINT or SIGTERM, or until one ends.
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
	if len(args) == 0 {
		if err := runAll(stdout, stderr); err != nil {
			fmt.Fprintln(stderr, "queen: "+err.Error())
			return exitFailed
		}
		return exitOK
	}
	switch args[0] {
	case nameBroker:
		return broker.Run(args[1:], stdout, stderr)
	case nameMaintainer:
		return maintainer.Run(args[1:], stdout, stderr)
	case nameSweeper:
		return sweeper.Run(args[1:], stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, buildinfo.Version())
		return exitOK
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "queen: unknown arguments %q\n\n%s", args, usage)
	return exitUsage
}

// runAll runs this binary once for each service. The first signal asks them to stop;
// the second one ends all at once.
func runAll(stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary, to start it for each service: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return together(ctx, self, os.Environ(), stdout, stderr)
}
