package telemetry

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// quantilesWindow is how long a value counts at most. It counts for half of that at
// least.
const quantilesWindow = 2 * time.Minute

// Quantiles are the median and the 99th percentile of what was observed lately: for
// dashboards that read them as gauges. Histograms are what to aggregate over processes.
// They take up to 50 KB, and are safe for concurrent use.
type Quantiles struct {
	summary prometheus.Summary
}

// NewQuantiles returns Quantiles of nothing.
func NewQuantiles() *Quantiles {
	return &Quantiles{prometheus.NewSummary(prometheus.SummaryOpts{
		Name: "quantiles", Objectives: map[float64]float64{0.5: 0.05, 0.99: 0.001}, MaxAge: quantilesWindow, AgeBuckets: 2, BufCap: 64,
	})}
}

// Observe adds a value.
func (q *Quantiles) Observe(value float64) { q.summary.Observe(value) }

// Each tells the quantiles, named as Prometheus names them: 0.5 and 0.99. They are 0
// while nothing was observed.
func (q *Quantiles) Each(tell func(quantile string, value float64)) {
	var m dto.Metric
	if q.summary.Write(&m) != nil {
		return // it knows how to write itself
	}
	for _, v := range m.GetSummary().GetQuantile() {
		value := v.GetValue()
		if math.IsNaN(value) {
			value = 0
		}
		tell(strconv.FormatFloat(v.GetQuantile(), 'g', -1, 64), value)
	}
}
