package pglocal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScratchIsWhereTMPDIRSays(t *testing.T) {
	root := t.TempDir()
	t.Setenv("TMPDIR", root)
	require.Equal(t, root, ScratchRoot())
	dir, err := MakeScratch("scratch-")
	require.NoError(t, err)
	require.Equal(t, root, filepath.Dir(dir))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "the server's user enters it")
}

// TestStaleScratchIsRemoved spares what is young, and what does not bear the pattern.
func TestStaleScratchIsRemoved(t *testing.T) {
	root := t.TempDir()
	t.Setenv("TMPDIR", root)
	long := time.Now().Add(-time.Hour)
	folder := func(name string, made time.Time) string {
		dir := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, ScratchData), 0o755))
		require.NoError(t, os.Chtimes(dir, made, made))
		return dir
	}
	old, other, young := folder("scratch-1", long), folder("another-1", long), folder("scratch-2", time.Now())
	RemoveStale(t.Context(), "scratch-")
	require.NoDirExists(t, old)
	require.DirExists(t, other)
	require.DirExists(t, young)
}

// TestAUsedScratchIsKept whatever its age: the lock of its server tells.
func TestAUsedScratchIsKept(t *testing.T) {
	root := t.TempDir()
	t.Setenv("TMPDIR", root)
	dir := filepath.Join(root, "scratch-1")
	unlock, err := lockFolder(filepath.Join(dir, ScratchData))
	require.NoError(t, err)
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(dir, long, long))
	RemoveStale(t.Context(), "scratch-")
	require.DirExists(t, dir)
	unlock()
	require.NoError(t, os.Chtimes(dir, long, long))
	RemoveStale(t.Context(), "scratch-")
	require.NoDirExists(t, dir)
}
