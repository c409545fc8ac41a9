package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	table    string
	only     []string
	list     bool
	jsonPath string
	scale    scale
	custom   custom
	fast     bool // PostgreSQL without fsync: for the tests of the driver alone
}

// scale is how long and how large the rows run.
type scale struct {
	Block   time.Duration `json:"blockNs"`
	Warmup  time.Duration `json:"warmupNs"`
	Rounds  int           `json:"rounds"`  // of a comparison
	Blocks  int           `json:"blocks"`  // of a figure that is compared with nothing
	Lanes   int           `json:"lanes"`   // of the rows with very many
	Parked  int           `json:"parked"`  // waiting pops
	History int           `json:"history"` // remembered transaction ids
	Hops    int           `json:"hops"`    // deliveries from broker to broker
	Segment int           `json:"segment"` // messages of a large segment
	Slower  int           `json:"slower"`  // offered rates are divided by this
	Many    int           `json:"many"`    // lanes of which retention has nothing to do
	Stale   int           `json:"stale"`   // segments that retention has to delete
	Step    int           `json:"step"`    // segments deleted at a time
	Sweep   time.Duration `json:"sweepNs"` // from the start of a retention cycle to that of the next
	Cycles  int           `json:"cycles"`  // of the maintainer that are looked at
	Waiting int           `json:"waiting"` // messages that wait for their eviction
	MaxWait time.Duration `json:"maxWaitNs"`
	Rest    time.Duration `json:"restNs"` // without a timer
	Rested  int           `json:"rested"` // installations that rest
	Timers  int           `json:"timers"` // due at once
	Later   int           `json:"later"`  // timers that are not due
	Keys    int           `json:"keys"`
	Queues  int           `json:"queues"`   // that management shows
	Shown   int           `json:"shown"`    // lanes of them
	Asks    int           `json:"asks"`     // of each management route
	AskGap  time.Duration `json:"askGapNs"` // from one ask of a route to the next, at least
	Poll    time.Duration `json:"pollNs"`   // how long a pop waits; consumers end after their last one
	Look    time.Duration `json:"lookNs"`   // between two looks at what has to settle
	Quiet   time.Duration `json:"quietNs"`  // without progress, after which messages count as lost
}

var (
	fullScale = scale{
		Block: 10 * time.Second, Warmup: time.Second, Rounds: 5, Blocks: 3, Lanes: 100_000,
		Parked: 10_000, History: 1_500_000, Hops: 300, Segment: 10_000, Slower: 1,
		Many: 1_000_000, Stale: 1_000_000, Step: 1000, Sweep: 5 * time.Second, Cycles: 5, Waiting: 20, MaxWait: 10 * time.Second,
		Rest: 10 * time.Minute, Rested: 16, Timers: 100_000, Later: 5_000_000, Keys: 100_000,
		Queues: 200, Shown: 100_000, Asks: 11, AskGap: 4 * time.Second,
		Poll: time.Second, Look: time.Second, Quiet: 5 * time.Second,
	}
	quickScale = scale{
		Block: 3 * time.Second, Warmup: 500 * time.Millisecond, Rounds: 3, Blocks: 1, Lanes: 100_000,
		Parked: 10_000, History: 300_000, Hops: 100, Segment: 10_000, Slower: 1,
		Many: 100_000, Stale: 100_000, Step: 1000, Sweep: 5 * time.Second, Cycles: 3, Waiting: 10, MaxWait: 10 * time.Second,
		Rest: 30 * time.Second, Rested: 8, Timers: 100_000, Later: 500_000, Keys: 100_000,
		Queues: 200, Shown: 10_000, Asks: 5, AskGap: 4 * time.Second,
		Poll: time.Second, Look: time.Second, Quiet: 5 * time.Second,
	}
)

// custom is the load of the row of that name.
type custom struct {
	Lanes     int  `json:"lanes"`
	Pushers   int  `json:"pushers"`
	Batch     int  `json:"batch"`
	Bytes     int  `json:"bytes"`
	Groups    int  `json:"groups"`
	Consumers int  `json:"consumers"`
	PopBatch  int  `json:"popBatch"`
	PopLanes  int  `json:"popPartitions"`
	Rate      int  `json:"rate"`
	ClientIDs bool `json:"clientIds"`
}

var errHelp = errors.New("help asked for")

const (
	maxDuration = 5 * time.Minute
	maxRounds   = 20
)

func parseOptions(args []string) (options, error) {
	var (
		o                options
		only             string
		quick            bool
		duration, warmup time.Duration
		rounds           int
	)
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&o.table, "table", tableBroker, "what to measure: "+strings.Join(tables, ", "))
	fs.StringVar(&only, "only", "", "rows to run, separated by commas (default: all of the table)")
	fs.BoolVar(&o.list, "list", false, "list the rows and end")
	fs.BoolVar(&quick, "quick", false, "shorter blocks and fewer of them: for tuning, not for comparing releases")
	fs.StringVar(&o.jsonPath, "json", ".bin/bench.json", "also write the results to this file; empty: do not")
	fs.DurationVar(&duration, "duration", 0, "length of one measured block (default 10s, with -quick 3s)")
	fs.DurationVar(&warmup, "warmup", 0, "unmeasured load before each block (default 1s, with -quick 0.5s)")
	fs.IntVar(&rounds, "rounds", 0, "rounds of a comparison (default 5, with -quick 3)")
	o.custom.flags(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return o, errHelp
	case err != nil:
		return o, err
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	o.scale = fullScale
	if quick {
		o.scale = quickScale
	}
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "duration":
			o.scale.Block = duration
		case "warmup":
			o.scale.Warmup = warmup
		case "rounds":
			o.scale.Rounds = rounds
		}
	})
	return o, errors.Join(validTable(o.table), o.scale.validate(), o.custom.validate())
}

func (c *custom) flags(fs *flag.FlagSet) {
	fs.IntVar(&c.Lanes, "lanes", 64, "row custom: partitions the load is spread over")
	fs.IntVar(&c.Pushers, "pushers", 8, "row custom: concurrent push requests")
	fs.IntVar(&c.Batch, "batch", 100, "row custom: messages per push request, all for one lane")
	fs.IntVar(&c.Bytes, "bytes", 256, "row custom: payload bytes per message, high entropy")
	fs.IntVar(&c.Groups, "groups", 0, "row custom: consumer groups reading everything (0: push only)")
	fs.IntVar(&c.Consumers, "consumers", 4, "row custom: consumers per group")
	fs.IntVar(&c.PopBatch, "pop-batch", 1000, "row custom: messages per pop")
	fs.IntVar(&c.PopLanes, "pop-partitions", 16, "row custom: partitions per pop")
	fs.IntVar(&c.Rate, "rate", 0, "row custom: offered load in messages per second (0: closed loop)")
	fs.BoolVar(&c.ClientIDs, "client-ids", false, "row custom: send a transactionId with every message")
}

func validTable(name string) error {
	if !slices.Contains(tables, name) {
		return fmt.Errorf("-table %s: one of %s is allowed", name, strings.Join(tables, ", "))
	}
	return nil
}

func (s scale) validate() error {
	var problems []error
	if s.Block <= 0 || s.Block > maxDuration {
		problems = append(problems, fmt.Errorf("-duration %s: more than 0 and at most %s is allowed", s.Block, maxDuration))
	}
	if s.Warmup < 0 || s.Warmup > maxDuration {
		problems = append(problems, fmt.Errorf("-warmup %s: 0 to %s is allowed", s.Warmup, maxDuration))
	}
	if s.Rounds < 1 || s.Rounds > maxRounds {
		problems = append(problems, fmt.Errorf("-rounds %d: 1 to %d is allowed", s.Rounds, maxRounds))
	}
	return errors.Join(problems...)
}

// validate names every setting that is out of range.
func (c custom) validate() error {
	var problems []error
	within := func(name string, v, low, high int) {
		if v < low || v > high {
			problems = append(problems, fmt.Errorf("-%s %d: %d to %d is allowed", name, v, low, high))
		}
	}
	within("lanes", c.Lanes, 1, maxLanes)
	within("pushers", c.Pushers, 1, 1024)
	within("batch", c.Batch, 1, 10_000)
	within("bytes", c.Bytes, minPayload, 1<<20)
	within("groups", c.Groups, 0, 64)
	within("consumers", c.Consumers, 1, 256)
	within("pop-batch", c.PopBatch, 1, 10_000)
	within("pop-partitions", c.PopLanes, 1, 1000)
	within("rate", c.Rate, 0, 10_000_000)
	return errors.Join(problems...)
}
