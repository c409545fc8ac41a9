package main

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// options are the command line. The defaults are workload W2, push only:
// 100 messages of 256 B per request, 64 lanes, 8 pushers.
type options struct {
	Lanes      int           `json:"lanes"`
	Pushers    int           `json:"pushers"`
	Batch      int           `json:"batch"`
	Bytes      int           `json:"bytes"`
	Groups     int           `json:"groups"`
	Consumers  int           `json:"consumers"`
	PopBatch   int           `json:"popBatch"`
	PopLanes   int           `json:"popLanes"`
	Rate       int           `json:"rate"`
	ClientIDs  bool          `json:"clientIds"`
	Duration   time.Duration `json:"durationNs"`
	Warmup     time.Duration `json:"warmupNs"`
	Rounds     int           `json:"rounds"`
	SkipFloors bool          `json:"-"`
	jsonPath   string
}

var errHelp = errors.New("help asked for")

const maxDuration = 5 * time.Minute

func parseOptions(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.Lanes, "lanes", 64, "partitions the load is spread over")
	fs.IntVar(&o.Pushers, "pushers", 8, "concurrent push requests")
	fs.IntVar(&o.Batch, "batch", 100, "messages per push request, all for one lane")
	fs.IntVar(&o.Bytes, "bytes", 256, "payload bytes per message, high entropy")
	fs.IntVar(&o.Groups, "groups", 0, "consumer groups reading everything (0: push only)")
	fs.IntVar(&o.Consumers, "consumers", 4, "consumers per group")
	fs.IntVar(&o.PopBatch, "pop-batch", 1000, "messages per pop")
	fs.IntVar(&o.PopLanes, "pop-partitions", 16, "partitions per pop")
	fs.IntVar(&o.Rate, "rate", 0, "offered load in messages per second (0: closed loop)")
	fs.BoolVar(&o.ClientIDs, "client-ids", false, "send a transactionId with every message")
	fs.DurationVar(&o.Duration, "duration", 10*time.Second, "length of one measured block")
	fs.DurationVar(&o.Warmup, "warmup", 2*time.Second, "unmeasured load before each block")
	fs.IntVar(&o.Rounds, "rounds", 3, "rounds of broker, A, B; the table shows medians")
	fs.BoolVar(&o.SkipFloors, "no-floors", false, "measure the broker alone")
	fs.StringVar(&o.jsonPath, "json", "", "also write the results to this file")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return o, errHelp
	case err != nil:
		return o, err
	}
	return o, o.validate()
}

// validate names every setting that is out of range.
func (o options) validate() error {
	var problems []error
	within := func(name string, v, low, high int) {
		if v < low || v > high {
			problems = append(problems, fmt.Errorf("-%s %d: %d to %d is allowed", name, v, low, high))
		}
	}
	within("lanes", o.Lanes, 1, 1_000_000)
	within("pushers", o.Pushers, 1, 1024)
	within("batch", o.Batch, 1, 10_000)
	within("bytes", o.Bytes, minPayload, 1<<20)
	within("groups", o.Groups, 0, 64)
	within("consumers", o.Consumers, 1, 256)
	within("pop-batch", o.PopBatch, 1, 10_000)
	within("pop-partitions", o.PopLanes, 1, 1000)
	within("rate", o.Rate, 0, 10_000_000)
	within("rounds", o.Rounds, 1, 20)
	if o.Duration <= 0 || o.Duration > maxDuration {
		problems = append(problems, fmt.Errorf("-duration %s: more than 0 and at most %s is allowed", o.Duration, maxDuration))
	}
	if o.Warmup < 0 || o.Warmup > maxDuration {
		problems = append(problems, fmt.Errorf("-warmup %s: 0 to %s is allowed", o.Warmup, maxDuration))
	}
	return errors.Join(problems...)
}
