package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
)

// checkPort tells early, and by name, that a port cannot be had.
func checkPort(ctx context.Context, port int, variable string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d is taken (%w); choose another one: make run %s=%d", port, err, variable, port+1000)
	}
	return l.Close()
}
