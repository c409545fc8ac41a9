//go:build !linux

package main

import "syscall"

// childAttributes cannot tie a child's life to ours here.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
