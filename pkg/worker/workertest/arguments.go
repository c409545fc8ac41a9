package workertest

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Call is what a command line leads to.
type Call struct {
	Args           []string
	Code           int
	Stdout, Stderr string
}

// Arguments makes the calls.
func Arguments(t *testing.T, run func(args []string, stdout, stderr io.Writer) int, calls map[string]Call) {
	t.Helper()
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, c.Code, run(c.Args, &stdout, &stderr))
			require.Equal(t, c.Stdout, stdout.String())
			require.Equal(t, c.Stderr, stderr.String())
		})
	}
}
