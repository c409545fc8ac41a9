package lifecycle_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/lifecycle"
)

func TestListenSaysWhichVariableToChange(t *testing.T) {
	t.Parallel()
	ln, err := lifecycle.Listen(t.Context(), "127.0.0.1:0", "PORT")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()

	_, err = lifecycle.Listen(t.Context(), ln.Addr().String(), "PORT")
	require.ErrorContains(t, err, "another process uses this port, change PORT")
	// TEST-NET-1 is nobody's address.
	_, err = lifecycle.Listen(t.Context(), "192.0.2.1:0", "QUEEN_BIND_ADDR")
	require.ErrorContains(t, err, "not an address of this machine, change QUEEN_BIND_ADDR")
	_, err = lifecycle.Listen(t.Context(), "127.0.0.1:99999", "PORT")
	require.ErrorContains(t, err, "PORT")
}
