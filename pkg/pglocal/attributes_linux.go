package pglocal

import "syscall"

// childAttributes ties the server's life to ours: SIGINT is a fast shutdown.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

// guard has nothing to do: the kernel sends the parent-death signal.
func guard(int) error { return nil }
