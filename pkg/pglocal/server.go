package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
	pollInterval = 20 * time.Millisecond
)

// Ways to restart.
const (
	ModeFast      = "fast"      // sessions end, data is flushed
	ModeImmediate = "immediate" // no checkpoint: the next start recovers, as after a crash
)

// Options says what server to run.
type Options struct {
	// Dir holds the data. It is created, and kept between runs.
	Dir string
	// Port to listen on, on 127.0.0.1 only; 0 chooses a free one.
	Port int
	// Logf receives progress; nil drops it.
	Logf func(format string, args ...any)
	// Fast gives up surviving a crash of the machine (not of the server), for
	// speed: for tests only.
	Fast bool
	// Settings are further postgresql.conf settings.
	Settings map[string]string
	// Seed is a data folder of a cleanly stopped server, copied instead of
	// creating a new cluster.
	Seed string
}

// Server is a running private PostgreSQL. Its only user is "postgres", trusted
// from this machine without a password. Its methods are not safe to call at once.
type Server struct {
	opts   Options
	bin    Binaries
	data   string
	who    account
	port   int
	unlock func()

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // what it ended with
}

// Start brings the server up, installing and initialising what is missing. A
// server that an earlier, killed run left behind on the same data is stopped
// first; one whose starter still lives is ErrInUse.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	s := &Server{opts: opts}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.bringUp(ctx); err != nil {
		s.unlock()
		return nil, err
	}
	return s, nil
}

// prepare finds out where and as whom to run, and takes the folder's lock.
func (s *Server) prepare() error {
	dir, err := filepath.Abs(s.opts.Dir)
	if err != nil {
		return fmt.Errorf("find %s: %w", s.opts.Dir, err)
	}
	if s.who, err = serverAccount(); err != nil {
		return err
	}
	if s.unlock, err = lockFolder(dir); err != nil {
		return err
	}
	if s.data, err = dataDir(dir, s.who); err != nil {
		s.unlock()
	}
	return err
}

func (s *Server) bringUp(ctx context.Context) error {
	major, err := clusterMajor(s.data)
	if err != nil {
		return err
	}
	if s.bin, err = provide(ctx, s.opts.Logf, major); err != nil {
		return err
	}
	if err := stopLeftover(ctx, s.data, s.opts.Logf); err != nil {
		return err
	}
	if err := s.initialise(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Remove deletes the data of a stopped or abandoned server in dir.
func Remove(ctx context.Context, dir string) error {
	s := &Server{opts: Options{Dir: dir, Logf: func(string, ...any) {}}}
	if err := s.prepare(); err != nil {
		return err
	}
	defer s.unlock()
	if err := stopLeftover(ctx, s.data, s.opts.Logf); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(s.data), os.RemoveAll(s.data+".new"), os.RemoveAll(s.logPath()), os.RemoveAll(dir))
}

// URL is a connection string for one database of the server.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=disable", clusterUser, loopback, s.port, database)
}

// Host is the address the server listens on.
func (s *Server) Host() string { return loopback }

// Port is the TCP port it listens on.
func (s *Server) Port() int { return s.port }

// User is the superuser of the cluster; it has no password.
func (s *Server) User() string { return clusterUser }

// PID is the postmaster's process id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Version is the server's version, such as "15.18 (Debian 15.18-0+deb12u1)".
func (s *Server) Version() string { return s.bin.Version }

// Program is where a program that comes with the server would be.
func (s *Server) Program(name string) string { return filepath.Join(s.bin.Dir, name) }

// DataDir is the folder of the cluster's files.
func (s *Server) DataDir() string { return s.data }

// Stop shuts the server down fast: sessions end, data is flushed. When ctx ends
// first it is shut down immediately instead, and the error says so.
func (s *Server) Stop(ctx context.Context) error {
	defer s.unlock()
	return s.end(ctx, syscall.SIGINT)
}

// StopImmediate ends the server without a checkpoint, as a crash would.
func (s *Server) StopImmediate(ctx context.Context) error {
	defer s.unlock()
	return s.end(ctx, syscall.SIGQUIT)
}

// Kill ends the postmaster as kill -9 does. Its backends notice and end by themselves.
func (s *Server) Kill() error {
	defer s.unlock()
	return s.end(context.Background(), syscall.SIGKILL)
}

// Restart stops the server in the given mode and starts it again on the same
// data and port. After Kill or Stop it only starts.
func (s *Server) Restart(ctx context.Context, mode string) error {
	sig, known := map[string]syscall.Signal{ModeFast: syscall.SIGINT, ModeImmediate: syscall.SIGQUIT}[mode]
	if !known {
		return fmt.Errorf("unknown mode %q: %s and %s are known", mode, ModeFast, ModeImmediate)
	}
	if err := s.end(ctx, sig); err != nil {
		return err
	}
	s.unlock()
	s.opts.Port = s.port
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.launch(ctx); err != nil {
		s.unlock()
		return err
	}
	return nil
}

// end signals the postmaster and waits for its end.
func (s *Server) end(ctx context.Context, sig syscall.Signal) error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal postgres: %w", err)
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		<-s.done
		return fmt.Errorf("stop postgres: %w", context.Cause(ctx))
	}
}
