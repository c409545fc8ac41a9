package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	kindBroker = "broker"
	kindA      = "A plain INSERT"
	kindB      = "B log INSERTs"
)

// report gathers the blocks and knows how to show them.
type report struct {
	opts   options
	blocks map[string][]block
}

// figures are the numbers of one kind over all its blocks.
type figures struct {
	MessagesPerSecond float64   `json:"messagesPerSecond"` // median of the blocks
	Spread            []float64 `json:"blocks"`            // each block's messages per second
	Failures          int64     `json:"failures"`
	PushMs            quantiles `json:"pushMs"`
	EndToEndMs        quantiles `json:"endToEndMs"` // zero without groups
	DeliveredPerSec   float64   `json:"deliveredPerSecond"`
	BrokerCPUMicros   float64   `json:"brokerCpuMicrosPerMessage"`
	PostgresCPUMicros float64   `json:"postgresCpuMicrosPerMessage"`
	WALBytes          float64   `json:"walBytesPerMessage"`
	Commits           float64   `json:"commitsPerMessage"`
}

type quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

func newReport(o options) *report { return &report{opts: o, blocks: map[string][]block{}} }

func (r *report) kinds() []string {
	if r.opts.SkipFloors {
		return []string{kindBroker}
	}
	return []string{kindBroker, kindA, kindB}
}

func (r *report) add(kind string, b block) { r.blocks[kind] = append(r.blocks[kind], b) }

func (r *report) figures(kind string) figures {
	var f figures
	var messages, delivered float64
	var elapsed time.Duration
	var used usage
	push, end := newHistogram(), newHistogram()
	for _, b := range r.blocks[kind] {
		f.Spread = append(f.Spread, float64(b.push.messages)/b.push.elapsed.Seconds())
		f.Failures += b.push.failures
		messages += float64(b.push.messages)
		delivered += float64(b.delivered)
		elapsed += b.push.elapsed + r.opts.Warmup
		used = used.plus(b.usage)
		push.Merge(b.push.latency)
		if b.endToEnd != nil {
			f.Failures += b.endToEnd.failures.Load()
			end.Merge(b.endToEnd.latency)
		}
	}
	f.MessagesPerSecond = median(f.Spread)
	f.DeliveredPerSec = delivered / elapsed.Seconds()
	f.PushMs, f.EndToEndMs = quantilesOf(push), quantilesOf(end)
	f.BrokerCPUMicros = used.brokerCPU * 1e6 / messages
	f.PostgresCPUMicros = used.postgresCPU * 1e6 / messages
	f.WALBytes = used.walBytes / messages
	f.Commits = used.commits / messages
	return f
}

func quantilesOf(h *hdrhistogram.Histogram) quantiles {
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return quantiles{ms(50), ms(99), ms(99.9)}
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// ratios compares the broker with the floors of the same run.
func (r *report) ratios() (overA, overB float64) {
	b := r.figures(kindBroker).MessagesPerSecond
	return b / r.figures(kindA).MessagesPerSecond, b / r.figures(kindB).MessagesPerSecond
}

// print writes the table for a person.
func (r *report) print(out io.Writer) {
	o := r.opts
	loop := "closed loop"
	if o.Rate > 0 {
		loop = fmt.Sprintf("open loop at %d msg/s", o.Rate)
	}
	fmt.Fprintf(out, "\n%d messages of %d B per request, %d lanes, %d pushers, %d groups, %s; %d blocks of %s\n\n",
		o.Batch, o.Bytes, o.Lanes, o.Pushers, o.Groups, loop, o.Rounds, o.Duration)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tmsg/s\tmin..max\tp50 ms\tp99\tp99.9\tbroker µs/msg\tpostgres µs/msg\tWAL B/msg\tcommits/msg\tfailed\t")
	for _, kind := range r.kinds() {
		f := r.figures(kind)
		fmt.Fprintf(w, "%s\t%.0f\t%.0f..%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.4f\t%d\t\n", kind,
			f.MessagesPerSecond, slices.Min(f.Spread), slices.Max(f.Spread), f.PushMs.P50, f.PushMs.P99, f.PushMs.P999,
			f.BrokerCPUMicros, f.PostgresCPUMicros, f.WALBytes, f.Commits, f.Failures)
	}
	_ = w.Flush()
	if o.Groups > 0 {
		f := r.figures(kindBroker)
		fmt.Fprintf(out, "\nend to end: %.0f msg/s delivered to %d groups, p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms\n",
			f.DeliveredPerSec, o.Groups, f.EndToEndMs.P50, f.EndToEndMs.P99, f.EndToEndMs.P999)
	}
	if !o.SkipFloors {
		a, b := r.ratios()
		fmt.Fprintf(out, "\nbroker/A %.2f   broker/B %.2f\n", a, b)
	}
}

// writeJSON stores the same numbers for later comparison.
func (r *report) writeJSON(path string) error {
	doc := map[string]any{"options": r.opts}
	for _, kind := range r.kinds() {
		doc[kind] = r.figures(kind)
	}
	if !r.opts.SkipFloors {
		a, b := r.ratios()
		doc["ratios"] = map[string]float64{"brokerOverA": a, "brokerOverB": b}
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
