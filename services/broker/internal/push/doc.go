// Package push stores the messages of one request: it gives them ids, packs them
// into one segment per lane and sees every segment to its verdict.
package push
