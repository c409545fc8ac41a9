package process

import (
	"runtime"
	"syscall"
)

// childAttributes puts the child into its own process group and ties its life
// to ours: when this program is killed, its services stop too.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// run starts the process and waits for it on one operating system thread: the
// kernel sends the parent-death signal when the starting thread ends.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.wait(started)
}
