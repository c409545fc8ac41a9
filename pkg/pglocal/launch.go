package pglocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	launchAttempts = 20
	launchPause    = 250 * time.Millisecond
	maxLogBytes    = 16 << 20
)

// errTransient marks a start that fails for a reason that passes by itself.
var errTransient = errors.New("will pass")

// launch starts the postmaster and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	var err error
	for range launchAttempts {
		if s.port, err = s.choosePort(ctx); err != nil {
			return err
		}
		if err = s.launchOnce(ctx); !errors.Is(err, errTransient) {
			return err
		}
		if werr := wait(ctx, launchPause); werr != nil {
			return errors.Join(err, werr)
		}
	}
	return err
}

func (s *Server) choosePort(ctx context.Context) (int, error) {
	if s.opts.Port == 0 {
		return freePort(ctx)
	}
	return s.opts.Port, checkPort(ctx, s.opts.Port)
}

func (s *Server) launchOnce(ctx context.Context) error {
	log, err := openLog(s.logPath())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	// The process must outlive ctx, which bounds only the start.
	s.cmd = s.command(context.WithoutCancel(ctx), "postgres", s.arguments()...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.done = make(chan struct{})
	started := make(chan error, 1)
	go s.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	if err := s.waitReady(ctx); err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return errors.Join(s.explain(err, from), s.end(stopping, syscall.SIGQUIT))
	}
	return guard(s.PID())
}

// run starts and waits on one thread: the parent-death signal is tied to it.
func (s *Server) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.done)
	err := s.cmd.Start()
	started <- err
	if err == nil {
		s.err = s.cmd.Wait()
	}
}

func (s *Server) logPath() string { return s.data + ".log" }

// openLog keeps the log of earlier runs while it is small.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("start a new server log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	return f, nil
}

func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        loopback,
		"unix_socket_directories": "",
		"port":                    strconv.Itoa(s.port),
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"max_wal_size":            "2GB",
		"log_checkpoints":         "off",
	}
	if s.opts.Fast {
		// Commits stay synchronous: without fsync that costs next to nothing, and
		// what was committed survives a killed server as it does in production.
		for k, v := range map[string]string{
			"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "autovacuum_naptime": "60s",
			"max_wal_size": "512MB", // the data may be in memory
		} {
			settings[k] = v
		}
	}
	for k, v := range s.opts.Settings {
		settings[k] = v
	}
	args := []string{"-D", s.data}
	for k, v := range settings {
		args = append(args, "-c", k+"="+v)
	}
	return args
}

func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.done:
			return fmt.Errorf("postgres ended at start: %w", s.err)
		default:
		}
		if werr := wait(ctx, pollInterval); werr != nil {
			return fmt.Errorf("start postgres: %w: %w", werr, err)
		}
	}
}

// explain adds what the server wrote to its log since from, and tells whether
// the reason passes: a port that somebody else took after we had chosen it, or
// backends of a killed postmaster that have not noticed yet.
func (s *Server) explain(err error, from int64) error {
	text, readErr := os.ReadFile(s.logPath())
	if readErr != nil || int64(len(text)) < from {
		return err
	}
	text = text[from:]
	err = fmt.Errorf("%w: %s", err, reason(text))
	taken := s.opts.Port == 0 && bytes.Contains(text, []byte("could not bind"))
	if taken || bytes.Contains(text, []byte("pre-existing shared memory block")) {
		return fmt.Errorf("%w (%w)", err, errTransient)
	}
	return err
}

// reason is the server's last fatal message, else its last one.
func reason(log []byte) string {
	if n := bytes.LastIndex(log, []byte("FATAL:")); n >= 0 {
		line, _, _ := bytes.Cut(log[n:], []byte("\n"))
		return string(line)
	}
	return lastLine(log)
}
