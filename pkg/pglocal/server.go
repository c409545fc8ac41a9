package pglocal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	startTimeout = 60 * time.Second
	pollInterval = 20 * time.Millisecond
	stopTimeout  = 30 * time.Second
)

// Options says what server to run.
type Options struct {
	// Dir holds the data. It is created, and kept between runs.
	Dir string
	// Port to listen on, on 127.0.0.1 only; 0 chooses a free one.
	Port int
	// Logf receives progress; nil drops it.
	Logf func(format string, args ...any)
	// Fast trades durability for speed: for tests only.
	Fast bool
	// Settings are further postgresql.conf settings.
	Settings map[string]string
}

// Server is a running private PostgreSQL. Its only user is "postgres", trusted
// from this machine without a password.
type Server struct {
	opts Options
	bin  string
	data string
	who  account
	port int

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start brings the server up, installing and initialising what is missing. A
// server that an earlier, killed run left behind on the same data is stopped first.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	bin, err := provideBinaries(ctx, opts.Logf)
	if err != nil {
		return nil, err
	}
	who, err := serverAccount()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, bin: bin, who: who}
	if s.data, err = dataDir(opts.Dir, who); err != nil {
		return nil, err
	}
	if err := stopLeftover(ctx, s.data); err != nil {
		return nil, err
	}
	if err := s.initialise(ctx); err != nil {
		return nil, err
	}
	return s, s.launch(ctx)
}

// Remove deletes the data of a stopped or abandoned server in dir.
func Remove(ctx context.Context, dir string) error {
	who, err := serverAccount()
	if err != nil {
		return err
	}
	data, err := dataDir(dir, who)
	if err != nil {
		return err
	}
	if err := stopLeftover(ctx, data); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(data), os.RemoveAll(dir))
}

// dataDir is dir/data, or a folder under the system's own place for data when
// the server's account could not walk down to dir.
func dataDir(dir string, who account) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return "", fmt.Errorf("create %s: %w", abs, err)
	}
	data := filepath.Join(abs, "data")
	if who.reachable(data) {
		return data, nil
	}
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(os.TempDir(), "queen-postgres-"+hex.EncodeToString(sum[:6])), nil
}

// initialise makes the cluster once. A half-made one is thrown away.
func (s *Server) initialise(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.data, "PG_VERSION")); err == nil {
		return s.who.own(s.data)
	}
	s.opts.Logf("creating a database cluster in %s", s.data)
	if err := os.RemoveAll(s.data); err != nil {
		return err
	}
	if err := s.who.own(s.data); err != nil {
		return err
	}
	args := []string{"-D", s.data, "-U", s.who.name, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"}
	if s.opts.Fast {
		args = append(args, "--no-sync")
	}
	out, err := s.command(ctx, "initdb", args...).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("invalid locale")) {
		args[len(args)-1] = "--locale=C"
		out, err = s.command(ctx, "initdb", args...).CombinedOutput()
	}
	if err != nil {
		_ = os.RemoveAll(s.data)
		return fmt.Errorf("initdb: %w: %s", err, lastLine(out))
	}
	return nil
}

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = s.who.attributes()
	return cmd
}

// launch starts the postmaster and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	s.port = s.opts.Port
	if s.port == 0 {
		p, err := freePort()
		if err != nil {
			return err
		}
		s.port = p
	} else if err := portFree(s.port); err != nil {
		return err
	}
	logPath := filepath.Join(filepath.Dir(s.data), filepath.Base(s.data)+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open server log: %w", err)
	}
	defer func() { _ = log.Close() }()
	// The process must outlive ctx, which bounds only the start.
	s.cmd = s.command(context.WithoutCancel(ctx), "postgres", s.arguments()...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.done = make(chan struct{})
	started := make(chan error, 1)
	go s.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	return s.waitReady(ctx, logPath)
}

// run starts and waits on one thread: the parent-death signal is tied to it.
func (s *Server) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	s.err = s.cmd.Wait()
	close(s.done)
}

func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"port":                    strconv.Itoa(s.port),
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"max_wal_size":            "2GB",
		"log_checkpoints":         "off",
	}
	if s.opts.Fast {
		for k, v := range map[string]string{
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
			"shared_buffers": "64MB", "autovacuum_naptime": "60s",
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

func (s *Server) waitReady(ctx context.Context, logPath string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.done:
			text, _ := os.ReadFile(logPath)
			return fmt.Errorf("postgres ended at start: %w: %s", s.err, lastLine(text))
		case <-ctx.Done():
			return fmt.Errorf("start postgres: %w: %w", context.Cause(ctx), err)
		case <-time.After(pollInterval):
		}
	}
}

// URL is a connection string for one database of the server.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", s.who.name, s.port, database)
}

// Host, Port and User address the server; it asks for no password.
func (s *Server) Host() string { return "127.0.0.1" }

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// User is the superuser of the cluster.
func (s *Server) User() string { return s.who.name }

// PID is the postmaster's process id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stop shuts the server down fast: sessions end, data is flushed.
func (s *Server) Stop(ctx context.Context) error { return s.end(ctx, syscall.SIGINT) }

// StopImmediate ends the server without a checkpoint, as a crash would.
func (s *Server) StopImmediate(ctx context.Context) error { return s.end(ctx, syscall.SIGQUIT) }

func (s *Server) end(ctx context.Context, sig syscall.Signal) error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal postgres: %w", err)
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		<-s.done
		return fmt.Errorf("stop postgres: %w", ctx.Err())
	}
}

// Restart starts a stopped server again on the same data and port.
func (s *Server) Restart(ctx context.Context) error {
	<-s.done
	s.opts.Port = s.port
	return s.launch(ctx)
}

// stopLeftover ends a postmaster that still runs on data although its starter
// is gone. PostgreSQL itself removes a stale pid file of a dead one.
func stopLeftover(ctx context.Context, data string) error {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil //nolint:nilerr // no pid file: nothing runs here
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(string(text), "\n", 2)[0]))
	if err != nil || !runsOn(pid, data) {
		return nil //nolint:nilerr // an unreadable or foreign pid is stale
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		return fmt.Errorf("stop the server left behind as process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for runsOn(pid, data) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server left behind as process %d does not stop: %w", pid, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// runsOn tells whether pid is a live postgres whose command line names data.
func runsOn(pid int, data string) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	return bytes.Contains(cmdline, []byte("postgres")) && bytes.Contains(cmdline, []byte(data))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func portFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d is taken: %w", port, err)
	}
	return l.Close()
}
