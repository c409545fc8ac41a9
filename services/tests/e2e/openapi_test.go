package e2e_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the description says is compared with every answer of the suite, by the client.
func TestBrokersServeTheDescriptionOfTheirRoutes(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	a := b.Get(t, "/openapi.yaml")
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, "application/yaml", a.Header.Get("Content-Type"))
	for _, line := range []string{"openapi: 3.1.0\n", "\n  /api/v1/push:\n", "\n  /openapi.yaml:\n"} {
		require.Contains(t, string(a.Body), line)
	}
	head, err := b.Call(t.Context(), http.MethodHead, "/openapi.yaml", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, head.Status)
	require.Empty(t, head.Body)
}
