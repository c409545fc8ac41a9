// Command soak loads an installation of Queen over HTTP, checks that it loses nothing,
// keeps the order of every lane and delivers nothing twice beyond the rules of leases, and
// prints a verdict as JSON:
//
//	soak -urls http://queen:6632 -for 60s
//
// It needs nothing but the network. Its exit code is 0 only if the verdict is good, 1 if
// not, and 2 for arguments that it does not understand. SIGTERM or an interrupt ends the
// load early; what was pushed is still judged.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/queenmq/queen/services/tests/soak"
)

// Exit codes.
const (
	exitOK    = 0
	exitBad   = 1
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "soak: "+err.Error())
		return exitUsage
	}
	cfg.Progress = func(v soak.Verdict) { fmt.Fprintln(stderr, line(&v)) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends it at once
	v, err := soak.Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(stderr, "soak: "+err.Error())
		return exitUsage
	}
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(v); err != nil {
		fmt.Fprintln(stderr, "soak: "+err.Error())
		return exitBad
	}
	if !v.OK {
		return exitBad
	}
	return exitOK
}

func parse(args []string, stderr io.Writer) (soak.Config, error) {
	cfg := soak.Default()
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	urls := flags.String("urls", "http://localhost:6632", "base addresses, comma separated; after an error the next one is tried")
	flags.StringVar(&cfg.Queue, "queue", "soak-"+strconv.FormatInt(time.Now().UnixNano(), 36), "name of the queue, which must be new")
	flags.DurationVar(&cfg.For, "for", cfg.For, "how long to push")
	flags.IntVar(&cfg.Lanes, "lanes", cfg.Lanes, "partitions")
	flags.Float64Var(&cfg.Rate, "rate", cfg.Rate, "messages per second, 0: as many as are answered")
	flags.IntVar(&cfg.Pushers, "pushers", cfg.Pushers, "clients that push")
	flags.IntVar(&cfg.Groups, "groups", cfg.Groups, "consumer groups, each of which reads everything")
	flags.IntVar(&cfg.Consumers, "consumers", cfg.Consumers, "consumers of each group")
	flags.IntVar(&cfg.Batch, "batch", cfg.Batch, "messages of a pop at most")
	flags.IntVar(&cfg.Claim, "claim", cfg.Claim, "partitions of a pop at most")
	flags.DurationVar(&cfg.Lease, "lease", cfg.Lease, "how long a delivery is leased")
	flags.DurationVar(&cfg.Poll, "poll", cfg.Poll, "how long a pop waits")
	flags.BoolVar(&cfg.Timers, "timers", cfg.Timers, "schedule a message for each partition; this needs a sweeper")
	flags.IntVar(&cfg.Counters, "counters", cfg.Counters, "clients that increment a key, 0: none")
	flags.BoolVar(&cfg.Keep, "keep", cfg.Keep, "leave queues and key behind also when all is well")
	flags.DurationVar(&cfg.Patience, "patience", cfg.Patience, "how long a request is repeated, and how long nothing may move at the end")
	flags.DurationVar(&cfg.Renew, "renew", cfg.Renew, "how often idle connections are given up for new ones, 0: never")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if flags.NArg() > 0 {
		return cfg, fmt.Errorf("unknown arguments %q", flags.Args())
	}
	cfg.URLs = strings.Split(*urls, ",")
	return cfg, cfg.Validate()
}

// line is how far it is.
func line(v *soak.Verdict) string {
	errs := int64(0)
	for _, kinds := range v.Errors {
		for _, n := range kinds {
			errs += n
		}
	}
	return fmt.Sprintf("%6.1fs  pushed %d, delivered %d, %d to go; lost answers and refusals %d, unexpected %d, out of order %d, duplicates %d",
		v.Seconds, v.Pushed, v.Delivered, v.Rest, errs, len(v.Unexpected), v.OutOfOrder, v.Duplicates)
}
