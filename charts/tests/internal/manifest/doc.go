// Package manifest reads what Helm renders into the types of Kubernetes and of the
// operators whose resources the chart uses. Whatever those types do not know is an error.
package manifest
