// Package boards holds what operators look at to its word: every query of the Grafana
// dashboards and every alert rule in deploy/ is evaluated by Prometheus' own engine over
// samples scraped from running services, and alerts have to tell planted faults.
package boards
