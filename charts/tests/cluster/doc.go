// Package cluster holds the test that installs charts/queen into a cluster, any cluster,
// and proves it there under load: `make chart-e2e`. It drives helm and kubectl as a user
// does. Its steps follow each other on one installation, in a namespace of their own that
// enforces the restricted security standard.
//
// What it needs is told by TestClusterRequirements, and CONTRIBUTING.md describes its
// variables.
package cluster
