package harness

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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
	for line := range strings.Lines(string(scrape(t, c))) {
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

func scrape(t testing.TB, c *Client) []byte {
	t.Helper()
	a := c.Get(t, "/metrics/prometheus")
	require.Equal(t, http.StatusOK, a.Status, a)
	return a.Body
}

// Families are the metrics of a process as a scraper reads them, by name.
func Families(t testing.TB, c *Client) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(scrape(t, c)))
	require.NoError(t, err)
	return families
}
