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
}

// clusterUser is the superuser of the cluster, whatever the account is called.
const clusterUser = "postgres"

// serverAccount is the calling user, or for root the first unprivileged
// account that exists.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{switched: true, uid: uid, gid: gid}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and neither user postgres nor nobody exists")
}

// attributes makes a child run as the account, in a process group of its own
// so that an interrupt at the terminal reaches only us.
func (a account) attributes() *syscall.SysProcAttr {
	attr := childAttributes()
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// own hands a tree to the account. Files that already belong to it are left
// alone, so that a large cluster is not written to at each start.
func (a account) own(dir string) error {
	if !a.switched {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == a.uid && int(st.Gid) == a.gid {
			return nil
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}

// reaches tells whether the account may walk down to dir: it or its nearest
// parent that exists, and each one above, needs the execute bit for others (or
// to belong to the account). /root, for one, does not have it.
func (a account) reaches(dir string) bool {
	if !a.switched {
		return true
	}
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it will be made by us
		case err != nil || !a.enters(info):
			return false
		}
		if d == filepath.Dir(d) {
			return true
		}
	}
}

func (a account) enters(info fs.FileInfo) bool {
	if info.Mode().Perm()&0o001 != 0 {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == a.uid && info.Mode().Perm()&0o100 != 0
}

// cacheDir is a folder that survives and that the account can read.
func (a account) cacheDir(name string) (string, error) {
	var dirs []string
	if dir, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, dir)
	}
	for _, dir := range append(dirs, "/var/cache", os.TempDir()) {
		path := filepath.Join(dir, name)
		if a.reaches(path) && os.MkdirAll(path, 0o755) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no folder for %s that the server's user can read", name)
}
