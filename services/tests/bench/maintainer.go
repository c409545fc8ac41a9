package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// peakLook is how often the memory of a short process is read before it ends.
const peakLook = 20 * time.Millisecond

// maintained runs fn beside a maintainer with its usual settings and the given
// ones, and notes the most memory that it had.
func (b *bench) maintained(ctx context.Context, s *stack, env []string, fn func() error) error {
	m, err := s.newMaintainer(ctx, env)
	if err != nil {
		return err
	}
	s.maintainer = m
	if err := m.start(ctx, s.lab); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	peak, err := peakMemory(m.proc.PID())
	if err != nil {
		return err
	}
	b.peaks = append(b.peaks, peak)
	if err := m.proc.Stop(); err != nil {
		return fmt.Errorf("stop the maintainer: %w", err)
	}
	return errors.Join(m.log.Close(), m.showComplaints())
}

// showComplaints shows what a maintainer was not content with: its figures may be
// those of something tried twice.
func (v *service) showComplaints() error {
	lines, err := logLines[json.RawMessage](v, func(h logHead) bool { return h.Level == "WARN" || h.Level == "ERROR" })
	for _, line := range lines {
		progress("  the %s says: %s", v.name, line)
	}
	return err
}

func (s *stack) newMaintainer(ctx context.Context, env []string) (*service, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	own := []string{
		"QUEEN_OPS_ADDR=127.0.0.1:" + strconv.Itoa(port), "LOG_LEVEL=debug", "QUEEN_LOG_JSON=true",
		"RETENTION_BATCH_SIZE=" + strconv.Itoa(s.lab.scale.Step),
		"RETENTION_INTERVAL=" + strconv.FormatInt(s.lab.scale.Sweep.Milliseconds(), 10),
	}
	return s.newService("maintainer", 0, port, append(own, env...))
}

// cycleReport is what matters of the answer of run-once.
type cycleReport struct {
	ElapsedMs float64 `json:"elapsedMs"`
}

// runCycle performs one cycle in a process of its own.
func (b *bench) runCycle(ctx context.Context, s *stack) (cycleReport, error) {
	var got cycleReport
	if s.maintainer == nil {
		var err error
		if s.maintainer, err = s.newMaintainer(ctx, nil); err != nil {
			return got, err
		}
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, s.lab.binary(s.maintainer.name), "run-once", "--json")
	cmd.Env, cmd.Stdout, cmd.Stderr = s.maintainer.env, &out, s.maintainer.log
	if err := cmd.Start(); err != nil {
		return got, err
	}
	peak := peakUntil(cmd.Process.Pid, func() error { return cmd.Wait() })
	if peak.err != nil {
		return got, fmt.Errorf("maintainer run-once: %w", peak.err)
	}
	b.peaks = append(b.peaks, peak.bytes)
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return got, fmt.Errorf("read the answer of run-once: %w: %.200s", err, out.Bytes())
	}
	return got, nil
}

type peak struct {
	bytes float64
	err   error
}

// peakUntil reads the memory of a process until it has ended. The most it ever
// had never falls, so that only the end is missing.
func peakUntil(pid int, wait func() error) peak {
	done := make(chan error, 1)
	go func() { done <- wait() }()
	var p peak
	for {
		if bytes, err := peakMemory(pid); err == nil {
			p.bytes = bytes
		}
		select {
		case p.err = <-done:
			return p
		case <-time.After(peakLook):
		}
	}
}

// logHead is what chooses a log line.
type logHead struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
}

// says chooses the lines with a message.
func says(msg string) func(logHead) bool { return func(h logHead) bool { return h.Msg == msg } }

// logLines reads the lines that a service has logged, as far as they are wanted.
func logLines[T any](v *service, wanted func(logHead) bool) ([]T, error) {
	f, err := os.Open(v.log.Name())
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return decodeLines[T](f, wanted)
}

func decodeLines[T any](from io.Reader, wanted func(logHead) bool) ([]T, error) {
	var found []T
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return found, nil // a line without an end is being written
		}
		if err != nil {
			return nil, err
		}
		var head logHead
		// What is not JSON, like a panic, is shown with the error of the row.
		if json.Unmarshal(line, &head) != nil || !wanted(head) {
			continue
		}
		var one T
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("read a log line: %w: %.200s", err, line)
		}
		found = append(found, one)
	}
}

const memoryLimit = 40 // MB

// runMemory shows what the rows before it have needed.
func runMemory(_ context.Context, b *bench, out *outcome) error {
	if len(b.peaks) == 0 {
		return errors.New("it is measured in the rows before: name one of these too")
	}
	most := 0.0
	for _, p := range b.peaks {
		most = max(most, p)
	}
	out.add("maintainer resident, most", "MB", []float64{most / 1e6}, under(memoryLimit))
	return nil
}
