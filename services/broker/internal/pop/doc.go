// Package pop claims messages for one request, waiting for them when asked to,
// and renders the reply.
package pop
