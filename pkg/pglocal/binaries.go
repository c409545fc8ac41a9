package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// MinMajor is the oldest PostgreSQL that Queen runs on.
const MinMajor = 15

// ErrNoBinaries says that no usable PostgreSQL was found or could be provided.
var ErrNoBinaries = errors.New("no usable PostgreSQL found")

// Binaries is one installed PostgreSQL.
type Binaries struct {
	Dir     string // holds postgres and initdb
	Major   int
	Version string // such as "15.18 (Debian 15.18-0+deb12u1)"
}

// Provide finds the newest PostgreSQL on the machine, else installs one with
// the system's package manager where that needs no password, else downloads one.
func Provide(ctx context.Context, logf func(format string, args ...any)) (Binaries, error) {
	return provide(ctx, logf, 0)
}

// provide looks for one major version; 0 means any that is new enough.
func provide(ctx context.Context, logf func(string, ...any), major int) (Binaries, error) {
	b, err := newest(installed(ctx, candidates(ctx)), major)
	if err == nil {
		return b, nil
	}
	if major != 0 {
		// An installation would bring some other version; the data needs this one.
		return b, err
	}
	installErr := installPackage(ctx, logf)
	if installErr == nil {
		if b, err = newest(installed(ctx, candidates(ctx)), 0); err == nil {
			return b, nil
		}
		installErr = err
	}
	b, downloadErr := download(ctx, logf)
	if downloadErr == nil {
		return b, nil
	}
	return b, fmt.Errorf("%w: install one (Debian: apt-get install postgresql), or name a running server with PG_HOST: %w",
		err, errors.Join(installErr, downloadErr))
}

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

// candidates are the folders to look into. What PATH offers comes first, so
// that it wins among equal versions.
func candidates(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, p := range places() {
		found, err := filepath.Glob(p)
		if err == nil {
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// installed asks each folder for its version; folders without a server are left out.
func installed(ctx context.Context, dirs []string) []Binaries {
	var found []Binaries
	for _, dir := range dirs {
		if b, err := inspect(ctx, dir); err == nil {
			found = append(found, b)
		}
	}
	return found
}

// newest picks the highest major version, or the wanted one.
func newest(found []Binaries, want int) (Binaries, error) {
	var best Binaries
	var seen []string
	for _, b := range found {
		seen = append(seen, fmt.Sprintf("%d in %s", b.Major, b.Dir))
		if want != 0 && b.Major != want {
			continue
		}
		if b.Major > best.Major {
			best = b
		}
	}
	have := "none is installed"
	if len(seen) > 0 {
		have = "found " + strings.Join(seen, ", ")
	}
	switch {
	case best.Major >= MinMajor:
		return best, nil
	case want != 0:
		return Binaries{}, fmt.Errorf("%w: version %d is needed, %s", ErrNoBinaries, want, have)
	}
	return Binaries{}, fmt.Errorf("%w: version %d or newer is needed, %s", ErrNoBinaries, MinMajor, have)
}

// inspect asks the server binary for its version; initdb must be beside it.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return Binaries{}, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, err
	}
	return parseVersion(dir, string(out))
}

func parseVersion(dir, text string) (Binaries, error) {
	m := regexp.MustCompile(`PostgreSQL\) ((\d+)\S*.*)`).FindStringSubmatch(text)
	if m == nil {
		return Binaries{}, fmt.Errorf("unreadable version %q", text)
	}
	major, err := strconv.Atoi(m[2])
	if err != nil {
		return Binaries{}, fmt.Errorf("unreadable version %q: %w", text, err)
	}
	return Binaries{Dir: dir, Major: major, Version: strings.TrimSpace(m[1])}, nil
}
