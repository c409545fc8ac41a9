package pglocal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	memoryRoot = "/dev/shm"
	// memoryWanted is what must be free in memory: several servers of tests run at
	// once, and each keeps some hundreds of megabytes.
	memoryWanted = 4 << 30
)

// ScratchRoot is where servers of tests keep their data: in memory where the
// machine has plenty of it, else in the temporary folder, and there also when TMPDIR
// names one. A database is hundreds of small files, and a test clones one: 17 ms in
// memory and 80 ms on a disk, measured.
func ScratchRoot() string {
	if os.Getenv("TMPDIR") == "" && available(memoryRoot) >= memoryWanted {
		return memoryRoot
	}
	return os.TempDir()
}

// MakeScratch makes a new folder in ScratchRoot that the server's user can enter.
func MakeScratch(pattern string) (string, error) {
	root := ScratchRoot()
	dir, err := os.MkdirTemp(root, pattern)
	if err != nil && root != os.TempDir() {
		dir, err = os.MkdirTemp("", pattern)
	}
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// ScratchData is the folder of the first server in one that MakeScratch made.
const ScratchData = "postgres"

// staleAge protects younger folders, which may be about to be locked by their maker.
const staleAge = 10 * time.Minute

// RemoveStale removes what programs that were killed left of MakeScratch with this
// pattern; their servers ended with them.
func RemoveStale(ctx context.Context, pattern string) {
	for _, root := range slices.Compact([]string{os.TempDir(), ScratchRoot()}) {
		dirs, _ := filepath.Glob(filepath.Join(root, pattern+"*"))
		for _, dir := range dirs {
			if stale(dir) && removeServers(ctx, dir) {
				_ = os.RemoveAll(dir)
			}
		}
	}
}

func stale(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && time.Since(info.ModTime()) > staleAge
}

// removeServers is refused while the lock of one is held: its program still runs.
func removeServers(ctx context.Context, dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.IsDir() && Remove(ctx, filepath.Join(dir, e.Name())) != nil {
			return false
		}
	}
	return true
}
