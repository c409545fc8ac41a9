package pglocal

import "syscall"

// childAttributes ties the server's life to ours: SIGINT is a fast shutdown.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

// guard has nothing to do: the kernel sends the parent-death signal.
func guard(int) error { return nil }

// available is the number of free bytes in the file system of a folder, 0 when it
// cannot be told.
func available(dir string) uint64 {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
