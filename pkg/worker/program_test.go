package worker_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/worker"
)

const usage = "usage: idler\n"

var (
	errBusy  = errors.New("busy")
	errBroke = errors.New("broke")
)

// program opens a text, which its work says.
func program(open error) worker.Program[string] {
	return worker.Program[string]{
		Name: "idler", Usage: usage,
		Open:  func(context.Context, io.Writer) (string, error) { return "here", open },
		Serve: func(context.Context, string) error { return nil },
		Once: func(flags *flag.FlagSet) func(context.Context, string, io.Writer) error {
			loud := flags.Bool("loud", false, "")
			return func(_ context.Context, text string, stdout io.Writer) error {
				fmt.Fprintln(stdout, text, *loud)
				return nil
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
		"run-once":                 {[]string{"run-once"}, worker.ExitOK, "here false\n", ""},
		"run-once with a flag":     {[]string{"run-once", "--loud"}, worker.ExitOK, "here true\n", ""},
		"help of run-once":         {[]string{"run-once", "-h"}, worker.ExitOK, usage, ""},
		"unknown flag of run-once": {[]string{"run-once", "--force"}, worker.ExitUsage, "", "idler: run-once: flag provided but not defined: -force\n\n" + usage},
		"unknown word of run-once": {[]string{"run-once", "--loud", "all"}, worker.ExitUsage, "", "idler: run-once: unknown arguments [\"all\"]\n\n" + usage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, program(nil).Run(tc.args, &stdout, &stderr))
			require.Equal(t, tc.stdout, stdout.String())
			require.Equal(t, tc.stderr, stderr.String())
		})
	}
}

func TestFailuresAreSaidAndHaveACode(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"run-once"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, worker.ExitFailed, program(errBroke).Run(args, &stdout, &stderr))
		require.Equal(t, "idler: broke\n", stderr.String())
		require.Empty(t, stdout.String())
	}
	p := program(nil)
	p.Serve = func(context.Context, string) error { return errBusy }
	p.Code = func(err error) int {
		if errors.Is(err, errBusy) {
			return worker.ExitOwn
		}
		return worker.ExitFailed
	}
	require.Equal(t, worker.ExitOwn, p.Run(nil, io.Discard, io.Discard))
}
