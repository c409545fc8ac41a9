package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/telemetry"
)

func TestSettingsAreTheStandardVariables(t *testing.T) {
	for variable, value := range map[string]string{
		"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "none", "OTEL_SDK_DISABLED": "true",
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@collector:4318", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25",
	} {
		t.Setenv(variable, value)
	}
	var s telemetry.Settings
	require.NoError(t, config.Load(&s))
	require.Equal(t, telemetry.Settings{
		Disabled: true, TracesExporter: "otlp", MetricsExporter: "none", Endpoint: "http://me:secret@collector:4318", Sampler: "traceidratio", Ratio: 0.25,
	}, s)
	require.Equal(t, "http://me:xxxxx@collector:4318", s.Endpoint.String())
	require.Equal(t, "<unreadable>", telemetry.Endpoint("http://me:sec%ret").String())
}

func TestSettingsThatMeanNothingAreRefused(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "sometimes")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "1.5")
	var s telemetry.Settings
	err := config.Load(&s)
	require.ErrorContains(t, err, "OTEL_TRACES_SAMPLER=")
	require.ErrorContains(t, err, "always_on or always_off or traceidratio")
	require.ErrorContains(t, err, "OTEL_TRACES_SAMPLER_ARG=")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "-0.1")
	require.ErrorContains(t, config.Load(&s), "a number between 0 and 1 is allowed")
	for _, ratio := range []string{"0", "1"} {
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
		require.NoError(t, config.Load(&s))
	}
}
