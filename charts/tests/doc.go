// Package charttests holds the tests of charts/queen. They render the chart with
// the Helm binary that `make chart-test` builds, for a matrix of values and versions of
// Kubernetes, and judge the objects: whether Kubernetes knows every field, whether pods
// are as restricted as they claim, whether what refers to each other exists, what is
// refused and with which advice.
//
// The unit tests of single templates are in charts/queen/tests.
package charttests
