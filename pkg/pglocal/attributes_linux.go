package pglocal

import "syscall"

// childAttributes ties the server's life to ours: SIGINT is a fast shutdown.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}
