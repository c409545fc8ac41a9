package httpapi

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// residentBytes is the memory the process occupies. Where the kernel does not
// tell, it is what the Go runtime has obtained.
func residentBytes() int64 {
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := bytes.Fields(statm); len(fields) > 1 {
			if pages, err := strconv.ParseInt(string(fields[1]), 10, 64); err == nil {
				return pages * int64(os.Getpagesize())
			}
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
