//go:build !linux

package process

import "syscall"

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func (p *Process) run(started chan<- error) { p.wait(started) }
