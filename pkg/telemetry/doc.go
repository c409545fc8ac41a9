// Package telemetry sets up OpenTelemetry traces and metrics once per process
// and serves the metrics in the Prometheus format. Nothing is global: what it
// returns is handed to whoever records.
package telemetry
