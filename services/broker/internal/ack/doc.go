// Package ack carries out acknowledgements and lease renewals.
package ack
