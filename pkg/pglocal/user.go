package pglocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user the server runs as. PostgreSQL refuses to run as root.
type account struct {
	switched bool // differs from the calling user
	uid, gid int
	name     string // superuser of the cluster, chosen by initdb
}

const clusterUser = "postgres"

// serverAccount is the calling user, or for root the first unprivileged
// account that exists.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: clusterUser}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{switched: true, uid: uid, gid: gid, name: clusterUser}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and neither user postgres nor nobody exists")
}

// attributes makes a child run as the account, in a process group of its own,
// and tells it to stop when we die.
func (a account) attributes() *syscall.SysProcAttr {
	attr := childAttributes()
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// own makes dir and hands it to the account.
func (a account) own(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	if !a.switched {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}

// reachable tells whether the account may walk down to dir: each parent needs
// the execute bit for others (or belong to it). /root, for one, does not have it.
func (a account) reachable(dir string) bool {
	if !a.switched {
		return true
	}
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return false
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || (info.Mode().Perm()&0o001 == 0 && int(st.Uid) != a.uid) {
			return false
		}
		if d == filepath.Dir(d) {
			return true
		}
	}
}
