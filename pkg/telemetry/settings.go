package telemetry

import (
	"fmt"
	"net/url"
)

// Settings are the standard variables of OpenTelemetry that decide whether and where
// traces and metrics go, and which traces. The library reads them by itself, and others
// besides; here they are checked and shown.
type Settings struct {
	Disabled bool `envconfig:"OTEL_SDK_DISABLED" default:"false"`
	// TracesExporter and MetricsExporter are otlp, console or none. Without them, an
	// endpoint alone switches otlp on.
	TracesExporter  string   `envconfig:"OTEL_TRACES_EXPORTER"`
	MetricsExporter string   `envconfig:"OTEL_METRICS_EXPORTER"`
	Endpoint        Endpoint `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// Sampler decides which traces are recorded. The parentbased ones do what the
	// caller says, where he says something.
	Sampler string `envconfig:"OTEL_TRACES_SAMPLER" default:"parentbased_always_on" allowed:"always_on,always_off,traceidratio,parentbased_always_on,parentbased_always_off,parentbased_traceidratio"`
	// Ratio is the part of the traces that a traceidratio records.
	Ratio float64 `envconfig:"OTEL_TRACES_SAMPLER_ARG" default:"1"`
}

// Validate checks the ratio.
func (s Settings) Validate() error {
	if s.Ratio >= 0 && s.Ratio <= 1 {
		return nil
	}
	return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG=%q: a number between 0 and 1 is allowed", fmt.Sprint(s.Ratio))
}

// Endpoint is an address that may hold a password.
type Endpoint string

// String is the address without the password.
func (e Endpoint) String() string {
	u, err := url.Parse(string(e))
	if err != nil {
		return "<unreadable>"
	}
	return u.Redacted()
}
