package collector

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"syscall"
	"time"

	"github.com/queenmq/queen/pkg/store"
)

// latencies is how long goroutines that could run waited for a processor: what the
// lag of an event loop is elsewhere.
const latencies = "/sched/latencies:seconds"

// process is the state of this process at the last sample.
type process struct {
	began, at    time.Time
	user, system time.Duration
	waits        []uint64
}

func newProcess() *process {
	p := &process{began: time.Now()}
	p.sample(&store.MetricsFlush{})
	return p
}

// sample fills in the state of the process, and what it used since the last sample.
func (p *process) sample(f *store.MetricsFlush) {
	now := time.Now()
	f.Interval = now.Sub(p.at)
	user, system := processorTime()
	f.System.CPU.User, f.System.CPU.System = share(user-p.user, f.Interval), share(system-p.system, f.Interval)
	f.System.Memory.RSS = ResidentBytes()
	f.System.Uptime = int64(now.Sub(p.began).Seconds())
	f.Worker.AvgLoopLag, f.Worker.MaxLoopLag = p.schedule()
	p.at, p.user, p.system = now, user, system
}

// processorTime is what the process has used since it began.
func processorTime() (user, system time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0 // it knows RUSAGE_SELF everywhere
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}

// share is a part of an interval, in hundredths of a per cent.
func share(part, of time.Duration) int64 {
	if of <= 0 {
		return 0
	}
	return int64(math.Round(float64(part) / float64(of) * 10_000))
}

// schedule is the mean and the longest wait for a processor since the last sample,
// in milliseconds; nil when there was none. The runtime keeps a histogram: the
// longest is the upper end of its bucket.
func (p *process) schedule() (mean, longest *float64) {
	sample := []metrics.Sample{{Name: latencies}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return nil, nil
	}
	h := sample[0].Value.Float64Histogram()
	mean, longest = since(h, p.waits)
	p.waits = append(p.waits[:0], h.Counts...)
	return mean, longest
}

func since(h *metrics.Float64Histogram, before []uint64) (mean, longest *float64) {
	var n, sum, top float64
	for i, count := range h.Counts {
		if i < len(before) {
			count -= before[i]
		}
		if count == 0 {
			continue
		}
		low, high := max(h.Buckets[i], 0), h.Buckets[i+1]
		if math.IsInf(high, 1) {
			high = low
		}
		n += float64(count)
		sum += float64(count) * (low + high) / 2
		top = high
	}
	if n == 0 {
		return nil, nil
	}
	sum, top = sum/n*1000, top*1000
	return &sum, &top
}

// ResidentBytes is the memory the process occupies. Where the kernel does not tell,
// it is what the Go runtime has obtained.
func ResidentBytes() int64 {
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
