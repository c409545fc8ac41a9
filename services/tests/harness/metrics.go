package harness

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Metric reads one series from the one broker. A series with labels is named with
// them, as it stands in the text.
func (b *Broker) Metric(t testing.TB, name string) float64 {
	t.Helper()
	return metric(t, b.Client, name)
}

func metric(t testing.TB, c *Client, name string) float64 {
	t.Helper()
	a := c.Get(t, "/metrics/prometheus")
	require.Equal(t, http.StatusOK, a.Status, a)
	for line := range strings.Lines(string(a.Body)) {
		value, found := strings.CutPrefix(line, name+" ")
		if !found {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		require.NoError(t, err, line)
		return v
	}
	require.Fail(t, "no such metric", name)
	return 0
}
