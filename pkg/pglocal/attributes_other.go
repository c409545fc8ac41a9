//go:build !linux

package pglocal

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// watchdog stops the server ($2) when we ($1) are gone, and ends with either.
const watchdog = `while kill -0 "$2" 2>/dev/null; do kill -0 "$1" 2>/dev/null || exec kill -INT "$2"; sleep 1; done`

// guard starts the watchdog, since there is no parent-death signal here.
func guard(pid int) error {
	cmd := exec.Command("sh", "-c", watchdog, "sh", strconv.Itoa(os.Getpid()), strconv.Itoa(pid)) //nolint:noctx // outlives every context
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the server's watchdog: %w", err)
	}
	return cmd.Process.Release()
}

// available tells nothing here: no folder is known to be in memory.
func available(string) uint64 { return 0 }
