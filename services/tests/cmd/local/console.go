package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// console is the one writer to the terminal: progress of the stack itself, and
// whole log lines of its processes, each with the name of its source.
type console struct {
	mu  sync.Mutex
	out io.Writer
}

func newConsole(out io.Writer) *console { return &console{out: out} }

// step tells what the stack does now.
func (c *console) step(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "queen: "+format+"\n", args...)
}

func (c *console) print(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprint(c.out, text)
}

// processLog takes a process's output: everything goes to a file, and to the
// terminal once it is followed.
type processLog struct {
	name    string
	console *console
	file    *os.File

	mu       sync.Mutex
	partial  []byte
	followed bool
}

func (c *console) newProcessLog(name, path string) (*processLog, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create log file: %w", err)
	}
	return &processLog{name: name, console: c, file: f}, nil
}

// Write implements io.Writer for exec.Cmd, which never calls it concurrently
// for one writer shared by stdout and stderr.
func (l *processLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(p); err != nil {
		return 0, err
	}
	l.partial = append(l.partial, p...)
	for {
		i := bytes.IndexByte(l.partial, '\n')
		if i < 0 {
			return len(p), nil
		}
		if l.followed {
			l.console.print(l.name + " | " + string(l.partial[:i+1]))
		}
		l.partial = l.partial[i+1:]
	}
}

func (l *processLog) follow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followed = true
}

// tail returns the last lines of the log file, for an error message.
func (l *processLog) tail(maxBytes int64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	buf := make([]byte, min(size, maxBytes))
	n, err := l.file.ReadAt(buf, size-int64(len(buf)))
	if err != nil && n == 0 {
		return ""
	}
	return string(buf[:n])
}

func (l *processLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.file.Close()
}
