// Package helm runs the Helm binary on charts/queen as a user would: to render it, to lint
// it, to package it, and to install it, where a server that only pretends to be a cluster
// is enough.
package helm
