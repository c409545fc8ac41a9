package pglocal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const versionFile = "PG_VERSION"

// dataDir is dir/data, or a folder elsewhere when the server's account could
// not walk down to dir: durable for a durable dir, temporary for a temporary one.
func dataDir(dir string, who account) (string, error) {
	data := filepath.Join(dir, "data")
	if who.reaches(data) {
		return data, nil
	}
	sum := sha256.Sum256([]byte(dir))
	name := hex.EncodeToString(sum[:6])
	if under(os.TempDir(), dir) {
		return filepath.Join(os.TempDir(), "queen-local-"+name), nil
	}
	elsewhere := filepath.Join("/var/lib/queen-local", name)
	if !who.reaches(elsewhere) {
		return "", fmt.Errorf("the server's user cannot reach %s; choose a folder that it can", dir)
	}
	return elsewhere, nil
}

func under(parent, dir string) bool {
	rel, err := filepath.Rel(parent, dir)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// clusterMajor is the version that made the cluster, 0 when there is none.
func clusterMajor(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, versionFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the version of the data in %s: %w", data, err)
	}
	return major, nil
}

// initialise makes the cluster beside its place and renames it, so that a
// start killed half-way leaves no half cluster behind.
func (s *Server) initialise(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.data, versionFile)); err == nil {
		return s.who.own(s.data)
	}
	fresh := s.data + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.RemoveAll(s.data), os.MkdirAll(filepath.Dir(s.data), 0o755)); err != nil {
		return fmt.Errorf("make room for the data: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("create the data folder: %w", err)
	}
	fill := s.initdb
	if s.opts.Seed != "" {
		fill = s.copySeed
	}
	if err := fill(ctx, fresh); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.Rename(fresh, s.data); err != nil {
		return fmt.Errorf("put the data in place: %w", err)
	}
	return nil
}

func (s *Server) copySeed(_ context.Context, fresh string) error {
	if err := os.CopyFS(fresh, os.DirFS(s.opts.Seed)); err != nil {
		return fmt.Errorf("copy %s: %w", s.opts.Seed, err)
	}
	return s.who.own(fresh)
}

func (s *Server) initdb(ctx context.Context, fresh string) error {
	s.opts.Logf("creating a database cluster in %s", s.data)
	if err := s.who.own(fresh); err != nil {
		return fmt.Errorf("hand over the data folder: %w", err)
	}
	var out []byte
	var err error
	// C.UTF-8 sorts by code point and lower-cases; not every system has it.
	for _, locale := range []string{"C.UTF-8", "C"} {
		args := []string{"-D", fresh, "-U", clusterUser, "-A", "trust", "-E", "UTF8", "--locale=" + locale}
		if s.opts.Fast {
			args = append(args, "--no-sync")
		}
		out, err = s.command(ctx, "initdb", args...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("locale")) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLine(out))
	}
	return nil
}

// command prepares one of PostgreSQL's programs, as the server's account.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin.Dir, name), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = s.who.attributes()
	// Messages are read by us, and PG* variables are meant for clients.
	cmd.Env = append(withoutPrefix(os.Environ(), "PG"), "LC_MESSAGES=C")
	return cmd
}

func withoutPrefix(environ []string, prefix string) []string {
	kept := make([]string, 0, len(environ)+1)
	for _, e := range environ {
		if !strings.HasPrefix(e, prefix) {
			kept = append(kept, e)
		}
	}
	return kept
}
