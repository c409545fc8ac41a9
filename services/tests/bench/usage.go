package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// clockTick is USER_HZ, which Linux fixes at 100 for everything in /proc.
const clockTick = 100

// usage is what the servers and the driver have consumed since they started.
type usage struct {
	brokerCPU, sweeperCPU, postgresCPU, driverCPU float64 // seconds
	walBytes                                      float64
	commits                                       float64
}

func (u usage) minus(v usage) usage {
	return usage{
		u.brokerCPU - v.brokerCPU, u.sweeperCPU - v.sweeperCPU, u.postgresCPU - v.postgresCPU, u.driverCPU - v.driverCPU,
		u.walBytes - v.walBytes, u.commits - v.commits,
	}
}

// usage reads the processors' time of brokers, sweepers and PostgreSQL, apart from
// the driver's, and PostgreSQL's write-ahead log position and commits.
func (s *stack) usage(ctx context.Context) (usage, error) {
	var u usage
	const q = `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, pg_stat_get_db_xact_commit(oid)::float8
		FROM pg_database WHERE datname = current_database()`
	if err := s.db.QueryRow(ctx, q).Scan(&u.walBytes, &u.commits); err != nil {
		return u, fmt.Errorf("read the WAL position: %w", err)
	}
	var err error
	if u.brokerCPU, err = processorTime(s.brokers); err != nil {
		return u, err
	}
	if u.sweeperCPU, err = processorTime(s.sweepers); err != nil {
		return u, err
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return u, err
	}
	u.driverCPU = time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
	u.postgresCPU, err = treeCPU(s.lab.pg.PID())
	return u, err
}

// processorTime adds up that of services, as far as they run.
func processorTime(services []*service) (float64, error) {
	total := 0.0
	for _, v := range services {
		if !v.running() {
			continue
		}
		st, err := readStat(v.proc.PID())
		if err != nil {
			return 0, err
		}
		total += st.own
	}
	return total, nil
}

// treeCPU sums a process, its living children, and the children it has reaped.
func treeCPU(pid int) (float64, error) {
	parent, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	total := parent.own + parent.reaped
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, d := range dirs {
		child, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		// A process that ended in between is counted in reaped the next time.
		if st, err := readStat(child); err == nil && st.parent == pid {
			total += st.own
		}
	}
	return total, nil
}

type procStat struct {
	parent      int
	own, reaped float64 // seconds
}

// readStat parses /proc/PID/stat (proc(5)): fields 4, and 14 to 17.
func readStat(pid int) (procStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, fmt.Errorf("read processor time: %w", err)
	}
	return parseStat(text), nil
}

func parseStat(text []byte) procStat {
	// The command may hold blanks and parentheses; fields are counted after it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	field := func(n int) float64 {
		if n-3 >= len(fields) {
			return 0
		}
		v, err := strconv.ParseFloat(string(fields[n-3]), 64)
		if err != nil {
			return 0
		}
		return v
	}
	return procStat{
		parent: int(field(4)),
		own:    (field(14) + field(15)) / clockTick,
		reaped: (field(16) + field(17)) / clockTick,
	}
}

// resident is the memory of a process that is in RAM, in bytes.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("read resident memory: %q", text)
	}
	pages, err := strconv.ParseFloat(string(fields[1]), 64)
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}
	return pages * float64(os.Getpagesize()), nil
}

// peakMemory is the most memory of a process that was ever in RAM, in bytes.
func peakMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the most resident memory: %w", err)
	}
	return parsePeak(text)
}

// parsePeak finds VmHWM in /proc/PID/status, which is in KiB.
func parsePeak(text []byte) (float64, error) {
	_, rest, found := bytes.Cut(text, []byte("\nVmHWM:"))
	fields := bytes.Fields(rest)
	if !found || len(fields) < 2 {
		return 0, fmt.Errorf("read the most resident memory: %.200q", text)
	}
	kib, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		return 0, fmt.Errorf("read the most resident memory: %w", err)
	}
	return kib * 1024, nil
}
