// Package transact runs atomic bundles of pushes and acknowledgements.
package transact
