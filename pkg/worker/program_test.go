package worker_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/worker"
)

const usage = "usage: idler\n"

var (
	errBusy  = errors.New("busy")
	errBroke = errors.New("broke")
)

// settings are none at all.
type settings struct{}

func (settings) Logger() logging.Config                     { return logging.Config{} }
func (settings) Show(ctx context.Context, log *slog.Logger) { log.InfoContext(ctx, "shown") }
func (settings) Warn(ctx context.Context, log *slog.Logger) { log.WarnContext(ctx, "warned") }

// service ends at once.
type service struct{ err error }

func (s service) Run(context.Context) error { return s.err }

type program = worker.Program[settings, service]

// programOf is a program whose settings cannot be loaded, or that runs to an end.
func programOf(load, end error) program {
	return program{
		Name: "idler", Usage: usage,
		Load: func() (settings, error) { return settings{}, load },
		New:  func(context.Context, settings, *slog.Logger) (service, error) { return service{end}, nil },
		Once: func(flags *flag.FlagSet) func(context.Context, service, io.Writer) error {
			loud := flags.Bool("loud", false, "")
			return func(_ context.Context, s service, stdout io.Writer) error {
				fmt.Fprintln(stdout, "loud:", *loud)
				return s.err
			}
		},
	}
}

func TestArgumentsDecideWhatIsDone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"none":                     {nil, worker.ExitOK, "", ""},
		"version":                  {[]string{"version"}, worker.ExitOK, "devel\n", ""},
		"help":                     {[]string{"--help"}, worker.ExitOK, usage, ""},
		"unknown command":          {[]string{"migrate"}, worker.ExitUsage, "", "idler: unknown arguments [\"migrate\"]\n\n" + usage},
		"empty":                    {[]string{""}, worker.ExitUsage, "", "idler: unknown arguments [\"\"]\n\n" + usage},
		"too many of them":         {[]string{"version", "now"}, worker.ExitUsage, "", "idler: unknown arguments [\"version\" \"now\"]\n\n" + usage},
		"run-once":                 {[]string{"run-once"}, worker.ExitOK, "loud: false\n", ""},
		"run-once with a flag":     {[]string{"run-once", "--loud"}, worker.ExitOK, "loud: true\n", ""},
		"help of run-once":         {[]string{"run-once", "-h"}, worker.ExitOK, usage, ""},
		"unknown flag of run-once": {[]string{"run-once", "--force"}, worker.ExitUsage, "", "idler: run-once: flag provided but not defined: -force\n\n" + usage},
		"unknown word of run-once": {[]string{"run-once", "--loud", "all"}, worker.ExitUsage, "", "idler: run-once: unknown arguments [\"all\"]\n\n" + usage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, programOf(nil, nil).Run(tc.args, &stdout, &stderr))
			require.Equal(t, tc.stdout, stdout.String())
			require.Equal(t, tc.stderr, unlogged(stderr.String()))
		})
	}
}

// unlogged is a text without the lines of the log.
func unlogged(text string) string {
	var rest strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "time=") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

func TestOnlyServingShowsTheSettings(t *testing.T) {
	t.Parallel()
	for args, shown := range map[string]bool{"": true, "run-once": false} {
		var stderr bytes.Buffer
		require.Equal(t, worker.ExitOK, programOf(nil, nil).Run(strings.Fields(args), io.Discard, &stderr))
		require.Contains(t, stderr.String(), "warned")
		require.Equal(t, shown, strings.Contains(stderr.String(), "shown"), args)
	}
}

func TestFailuresAreSaidAndHaveACode(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"run-once"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, worker.ExitFailed, programOf(errBroke, nil).Run(args, &stdout, &stderr))
		require.Equal(t, "idler: broke\n", stderr.String())
		require.Empty(t, stdout.String())

		p := programOf(nil, errBusy)
		require.Equal(t, worker.ExitFailed, p.Run(args, io.Discard, io.Discard))
		p.Code = func(err error) int {
			require.ErrorIs(t, err, errBusy)
			return worker.ExitOwn
		}
		require.Equal(t, worker.ExitOwn, p.Run(args, io.Discard, io.Discard))
	}
}
