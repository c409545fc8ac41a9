package pglocal_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/pglocal"
)

// helperVariable turns the test binary into a process that starts a server on
// the folder it names, says so, and waits to be killed.
const helperVariable = "PGLOCAL_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperVariable); dir != "" {
		os.Exit(help(dir))
	}
	dir, err := makeSeed()
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a cluster to copy:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// seed is a cluster that most tests copy: making one takes most of a start.
//
//nolint:gochecknoglobals // made once for all tests, and testing gives no other place for it
var seed string

func makeSeed() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "queen-pglocal-"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	s, err := pglocal.Start(context.Background(), pglocal.Options{Dir: dir, Fast: true})
	if err != nil {
		return dir, err
	}
	seed = s.DataDir()
	return dir, s.Stop(context.Background())
}

// report is what the helper prints.
type report struct{ PID, Port int }

func help(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s, err := pglocal.Start(ctx, pglocal.Options{Dir: dir, Fast: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = json.NewEncoder(os.Stdout).Encode(report{PID: s.PID(), Port: s.Port()})
	<-ctx.Done()
	_ = s.Stop(context.Background())
	return 0
}

// startHelper runs another starter; as, when not nil, changes whom it runs as.
func startHelper(t *testing.T, dir string, as *syscall.Credential) (*exec.Cmd, report) {
	t.Helper()
	bin, err := os.Executable()
	require.NoError(t, err)
	if as != nil {
		bin = copyFile(t, bin, filepath.Join(dir, "helper"))
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), helperVariable+"="+dir, "HOME="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var r report
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &r))
	return cmd, r
}

func copyFile(t *testing.T, from, to string) string {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o755))
	return to
}

// folder is one that the server's user can enter; t.TempDir is not under root.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "queen-pglocal-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func start(t *testing.T, dir string) *pglocal.Server {
	t.Helper()
	s, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir, Logf: t.Logf, Fast: true, Seed: seed})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

func query(t *testing.T, s *pglocal.Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var text string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&text))
	return text
}

func execute(t *testing.T, s *pglocal.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// alive tells whether a process runs; one that nobody has reaped yet does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	return !bytes.Contains(stat, []byte(") Z "))
}

func TestDataIsKeptBetweenRuns(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	execute(t, s, "CREATE TABLE kept AS SELECT 'yes' AS v")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()), "may be repeated")

	again := start(t, dir)
	require.Equal(t, "yes", query(t, again, "SELECT v FROM kept"))
}

func TestTheServerIsReachableOnlyFromThisMachine(t *testing.T) {
	t.Parallel()
	s := start(t, folder(t))
	require.Equal(t, "127.0.0.1", query(t, s, "SHOW listen_addresses"))
	require.Equal(t, "127.0.0.1", s.Host())
	require.Equal(t, s.DataDir(), query(t, s, "SHOW data_directory"))
	require.Equal(t, "UTF8", query(t, s, "SHOW server_encoding"))
	require.Equal(t, s.User(), query(t, s, "SELECT current_user"))
}

func TestAKilledStarterLeavesNothingInTheWay(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	helper, left := startHelper(t, dir, nil)
	require.NoError(t, helper.Process.Kill())
	_ = helper.Wait()

	s := start(t, dir)
	require.NotEqual(t, left.PID, s.PID())
	require.False(t, alive(left.PID), "the server that was left behind has ended")
	require.Equal(t, "1", query(t, s, "SELECT '1'"))
}

func TestAServerEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	helper, left := startHelper(t, folder(t), nil)
	require.NoError(t, helper.Process.Kill())
	_ = helper.Wait()
	require.Eventually(t, func() bool { return !alive(left.PID) }, time.Minute, 5*time.Millisecond)
}

func TestTwoStartersOfOneFolderDoNotCollide(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	helper, running := startHelper(t, dir, nil)
	_, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir, Fast: true})
	require.ErrorIs(t, err, pglocal.ErrInUse)
	require.ErrorContains(t, err, strconv.Itoa(helper.Process.Pid))
	require.ErrorIs(t, pglocal.Remove(t.Context(), dir), pglocal.ErrInUse)
	require.True(t, alive(running.PID))
	require.NoError(t, helper.Process.Signal(os.Interrupt))
	require.NoError(t, helper.Wait())
	start(t, dir)
}

func TestACrashLeavesAStartableCluster(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	execute(t, s, "CREATE TABLE kept AS SELECT 'yes' AS v")
	require.NoError(t, s.Kill())
	again := start(t, dir)
	require.Equal(t, "yes", query(t, again, "SELECT v FROM kept"))
}

func TestAStalePidFileIsNoObstacle(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	require.NoError(t, s.Stop(t.Context()))
	// As after a crash, when the number went to another process: this one.
	text := fmt.Sprintf("%d\n%s\n0\n%d\n\n127.0.0.1\n0 0\nready\n", os.Getpid(), s.DataDir(), s.Port())
	path := filepath.Join(s.DataDir(), "postmaster.pid")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	again := start(t, dir)
	require.Equal(t, "1", query(t, again, "SELECT '1'"))
}

func TestAHalfMadeClusterIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	half := filepath.Join(dir, "data.new")
	require.NoError(t, os.Mkdir(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "PG_VERSION"), []byte("15\n"), 0o600))
	require.Equal(t, "1", query(t, start(t, dir), "SELECT '1'"))
}

func TestRestartKeepsThePort(t *testing.T) {
	t.Parallel()
	s := start(t, folder(t))
	port, pid := s.Port(), s.PID()
	for _, mode := range []string{pglocal.ModeFast, pglocal.ModeImmediate} {
		require.NoError(t, s.Restart(t.Context(), mode))
		require.Equal(t, port, s.Port())
		require.NotEqual(t, pid, s.PID())
		pid = s.PID()
		require.Equal(t, "1", query(t, s, "SELECT '1'"))
	}
	require.NoError(t, s.Kill())
	require.NoError(t, s.Restart(t.Context(), pglocal.ModeFast), "a killed server is only started")
	require.ErrorContains(t, s.Restart(t.Context(), "slow"), `unknown mode "slow"`)
}

func TestATakenPortIsNamedWithItsHolder(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	port := l.Addr().(*net.TCPAddr).Port
	dir := folder(t)
	_, err = pglocal.Start(t.Context(), pglocal.Options{Dir: dir, Port: port, Fast: true})
	require.ErrorIs(t, err, pglocal.ErrPortTaken)
	require.ErrorContains(t, err, strconv.Itoa(port))
	if _, statErr := os.Stat("/proc/net/tcp"); statErr == nil {
		require.ErrorContains(t, err, fmt.Sprintf("(process %d)", os.Getpid()))
	}
	start(t, dir) // the failed start holds nothing
}

func TestASettingThatTheServerRefusesIsReported(t *testing.T) {
	t.Parallel()
	_, err := pglocal.Start(t.Context(), pglocal.Options{
		Dir: folder(t), Fast: true, Settings: map[string]string{"shared_buffers": "nonsense"},
	})
	require.ErrorContains(t, err, "shared_buffers")
}

func TestSettingsAreApplied(t *testing.T) {
	t.Parallel()
	s, err := pglocal.Start(t.Context(), pglocal.Options{
		Dir: folder(t), Fast: true, Settings: map[string]string{"max_connections": "33"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	require.Equal(t, "33", query(t, s, "SHOW max_connections"))
	require.Equal(t, "off", query(t, s, "SHOW fsync"))
}

func TestWithoutFastTheServerIsDurable(t *testing.T) {
	t.Parallel()
	s, err := pglocal.Start(t.Context(), pglocal.Options{Dir: folder(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		require.Equal(t, "on", query(t, s, "SHOW "+name), name)
	}
}

func TestASeedIsCopied(t *testing.T) {
	t.Parallel()
	first := start(t, folder(t))
	execute(t, first, "CREATE TABLE kept AS SELECT 'yes' AS v")
	require.NoError(t, first.Stop(t.Context()))
	second, err := pglocal.Start(t.Context(), pglocal.Options{Dir: folder(t), Fast: true, Seed: first.DataDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Stop(context.Background())) })
	require.Equal(t, "yes", query(t, second, "SELECT v FROM kept"))
}

func TestRemoveStartsEmpty(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, dir)
	execute(t, s, "CREATE TABLE gone AS SELECT 1 AS v")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, pglocal.Remove(t.Context(), dir))
	require.NoDirExists(t, dir)

	again := start(t, dir)
	require.Equal(t, "0", query(t, again, "SELECT count(*)::text FROM pg_tables WHERE tablename = 'gone'"))
}

func TestACancelledStartLeavesNoServer(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	require.NoError(t, start(t, dir).Stop(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pglocal.Start(ctx, pglocal.Options{Dir: dir, Fast: true})
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(dir, "data", "postmaster.pid"))
}

func TestAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("all other tests are that test already")
	}
	dir := folder(t)
	const nobody = 65534
	require.NoError(t, os.Chown(dir, nobody, nobody))
	helper, r := startHelper(t, dir, &syscall.Credential{Uid: nobody, Gid: nobody})
	info, err := os.Stat(fmt.Sprintf("/proc/%d", r.PID))
	require.NoError(t, err)
	require.Equal(t, uint32(nobody), info.Sys().(*syscall.Stat_t).Uid)
	require.NoError(t, helper.Process.Signal(os.Interrupt))
	require.NoError(t, helper.Wait())
	require.False(t, alive(r.PID))
}

func TestUnderRootInAFolderThatOnlyRootCanEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := folder(t)
	require.NoError(t, os.Chmod(dir, 0o700))
	inner := filepath.Join(dir, "postgres")
	s := start(t, inner)
	require.NotContains(t, s.DataDir(), inner, "the data is elsewhere")
	info, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID()))
	require.NoError(t, err)
	require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid)
	data := s.DataDir()
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, pglocal.Remove(t.Context(), inner))
	require.NoDirExists(t, data)
	require.NoFileExists(t, data+".log")
}
