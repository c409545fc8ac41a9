package pglocal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// ErrPortTaken says that something else listens on the given port.
var ErrPortTaken = errors.New("port is taken")

const loopback = "127.0.0.1"

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	_, text, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, errors.Join(err, l.Close())
	}
	port, err := strconv.Atoi(text)
	return port, errors.Join(err, l.Close())
}

// checkPort names who holds the port, where that can be seen.
func checkPort(ctx context.Context, port int) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on port %d: %w", port, err)
	}
	by := ""
	if holder := portHolder(port); holder != "" {
		by = " by " + holder
	}
	return fmt.Errorf("%w: %d%s", ErrPortTaken, port, by)
}

// portHolder finds the process that listens on a local port, as "name (process
// N)". It reads /proc and finds nothing where there is none, or where the
// process belongs to somebody else.
func portHolder(port int) string {
	inodes := listenInodes(port)
	if len(inodes) == 0 {
		return ""
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), pid)
	}
	return ""
}

// listenInodes are the sockets that listen on port, as links in /proc name them.
func listenInodes(port int) map[string]bool {
	// local address, remote address, state 0A (listening), five columns, inode
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 0A(?: +\S+){5} +(\d+)`, port))
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for _, m := range row.FindAllStringSubmatch(string(text), -1) {
			inodes["socket:["+m[1]+"]"] = true
		}
	}
	return inodes
}
