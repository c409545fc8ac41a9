//go:build !linux

package main

import "syscall"

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func (p *process) run(started chan<- error) { p.wait(started) }
