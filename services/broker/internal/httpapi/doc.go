// Package httpapi is the broker's HTTP surface: it parses requests, hands them
// to the engines and writes their answers. It is the only place that knows
// routes and statuses.
package httpapi
