package worker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/queenmq/queen/pkg/buildinfo"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/telemetry"
)

// Exit codes. A service may add its own from ExitOwn on.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitOwn    = 3
)

// The commands.
const (
	commandOnce    = "run-once"
	commandVersion = "version"
)

// Settings are the configuration of a worker.
type Settings interface {
	// Logger is how it logs.
	Logger() logging.Config
	// Show logs the resolved values, Warn what looks like a mistake.
	Show(ctx context.Context, log *slog.Logger)
	Warn(ctx context.Context, log *slog.Logger)
}

// Service is what works until ctx ends.
type Service interface {
	Run(ctx context.Context) error
}

// Program is the command line of a worker: without an argument it works until it is
// told to stop.
type Program[C Settings, S Service] struct {
	Name  string
	Usage string
	// Load reads the settings, New assembles a service.
	Load func() (C, error)
	New  func(ctx context.Context, cfg C, log *slog.Logger) (S, error)
	// Once declares the flags of run-once and returns what it does once they are read.
	Once func(flags *flag.FlagSet) func(ctx context.Context, s S, stdout io.Writer) error
	// Code is the exit code of an error, ExitFailed where there is no function.
	Code func(err error) int
}

// Run does what the arguments say and returns the exit code.
func (p Program[C, S]) Run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return p.exit(p.with(stderr, p.serve), stderr)
	}
	command, rest := args[0], args[1:]
	switch {
	case command == commandOnce:
		return p.once(rest, stdout, stderr)
	case len(rest) > 0:
	case command == commandVersion:
		fmt.Fprintln(stdout, buildinfo.Version())
		return ExitOK
	case command == "help" || command == "-h" || command == "--help":
		fmt.Fprint(stdout, p.Usage)
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: unknown arguments %q\n\n%s", p.Name, args, p.Usage)
	return ExitUsage
}

// once does one piece of work. Its report goes to stdout, its log to stderr.
func (p Program[C, S]) once(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(commandOnce, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	work := p.Once(flags)
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unknown arguments %q", flags.Args())
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, p.Usage)
		return ExitOK
	case err != nil:
		fmt.Fprintf(stderr, "%s: %s: %s\n\n%s", p.Name, commandOnce, err, p.Usage)
		return ExitUsage
	}
	return p.exit(p.with(stderr, func(ctx context.Context, _ C, _ *slog.Logger, s S) error {
		return work(ctx, s, stdout)
	}), stderr)
}

// exit reports an error, if there is one.
func (p Program[C, S]) exit(err error, stderr io.Writer) int {
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(stderr, p.Name+": "+err.Error())
	if p.Code == nil {
		return ExitFailed
	}
	return p.Code(err)
}

func (p Program[C, S]) serve(ctx context.Context, cfg C, log *slog.Logger, s S) error {
	cfg.Show(ctx, log)
	return s.Run(ctx)
}

// with hands a service to work. The first signal asks it to stop; the second one ends
// the process at once.
func (p Program[C, S]) with(stderr io.Writer, work func(context.Context, C, *slog.Logger, S) error) error {
	cfg, err := p.Load()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect

	log := logging.New(stderr, cfg.Logger())
	telemetry.LogErrors(log)
	cfg.Warn(ctx, log)
	s, err := p.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return work(ctx, cfg, log, s)
}
