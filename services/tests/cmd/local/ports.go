package main

import (
	"fmt"
	"net"
	"strconv"
)

// checkPort tells early, and by name, that a port cannot be had.
func checkPort(port int, variable string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d is taken (%w); choose another one: make run %s=%d", port, err, variable, port+1000)
	}
	return l.Close()
}
