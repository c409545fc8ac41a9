package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lockFolder takes the stack's lock file. The kernel drops the lock when its
// holder dies, so a file left behind by a killed run is no obstacle.
func lockFolder(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("the local stack is already running as process %s; stop that one first",
			strings.TrimSpace(string(holder)))
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("write lock file: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, fmt.Errorf("write lock file: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
