package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// row is one line of the table: a workload and what it has to reach.
type row struct {
	name  string
	what  string
	extra bool // runs only when it is named
	run   func(ctx context.Context, b *bench, out *outcome) error
}

// bench is one run of the command.
type bench struct {
	opts  options
	scale scale
	lab   *lab
	// afterLanes is the resident memory that the row w4 left its broker with.
	afterLanes []float64
	// peaks is the most resident memory of every maintainer, in bytes.
	peaks []float64
}

func newBench(ctx context.Context, o options) (*bench, error) {
	l, err := startLab(ctx, o)
	if err != nil {
		return nil, err
	}
	return &bench{opts: o, scale: o.scale, lab: l}, nil
}

// runRow never fails: what went wrong belongs to the row, and the next one may
// still run.
func (b *bench) runRow(ctx context.Context, r row) *outcome {
	out := &outcome{Name: r.name, What: r.what}
	began := time.Now()
	if err := r.run(ctx, b, out); err != nil {
		out.Error = err.Error()
	}
	out.Seconds = time.Since(began).Seconds()
	return out
}

// rate is an offered load of about n messages per second. One in a hundred is
// added: a figure that has to reach n cannot be measured by offering exactly n.
func (b *bench) rate(n float64) float64 { return n * 1.01 / float64(b.scale.Slower) }

// atRate is the target of a figure for which n messages per second are offered.
func (b *bench) atRate(n float64) want { return atLeast(n / float64(b.scale.Slower)) }

// choose picks rows by name, in the order of the table.
func choose(all []row, names []string) ([]row, error) {
	var chosen []row
	for _, r := range all {
		if slices.Contains(names, r.name) || len(names) == 0 && !r.extra {
			chosen = append(chosen, r)
		}
	}
	var problems []error
	for _, n := range names {
		if !slices.ContainsFunc(all, func(r row) bool { return r.name == n }) {
			problems = append(problems, fmt.Errorf("-only %s: there is no such row", n))
		}
	}
	return chosen, errors.Join(problems...)
}

func printRows(out io.Writer, all []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range all {
		note := ""
		if r.extra {
			note = " (only when named)"
		}
		fmt.Fprintf(w, "%s\t%s%s\n", r.name, r.what, note)
	}
	_ = w.Flush()
}

// outcome is what a row has measured.
type outcome struct {
	Name     string   `json:"name"`
	What     string   `json:"what"`
	Seconds  float64  `json:"seconds"`
	Figures  []figure `json:"figures"`
	Failures int64    `json:"failures"`
	Error    string   `json:"error,omitempty"` // the first of the failures, or what ended the row
}

// ok says that nothing failed and that every target was met.
func (o *outcome) ok() bool {
	return o.Error == "" && o.Failures == 0 && len(o.Figures) > 0 &&
		!slices.ContainsFunc(o.Figures, func(f figure) bool { return !f.ok() })
}

// add appends a figure with one value per block.
func (o *outcome) add(name, unit string, values []float64, w want) {
	o.Figures = append(o.Figures, figure{Name: name, Unit: unit, Values: values, Want: w})
}

// tell is add for a figure without a target.
func (o *outcome) tell(name, unit string, values []float64) { o.add(name, unit, values, want{}) }

// took notes the failures of blocks.
func (o *outcome) took(blocks ...[]block) {
	for _, b := range slices.Concat(blocks...) {
		o.Failures += b.failures
		if b.err != nil && o.Error == "" {
			o.Error = b.err.Error()
		}
	}
}

// figure is one number of a row: a value per block, of which the median counts.
type figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit,omitempty"`
	Values []float64 `json:"values"`
	Want   want      `json:"target"`
}

// ok says that there is no target, or that it was met.
func (f figure) ok() bool {
	return f.Want.Sense == "" || len(f.Values) > 0 && f.Want.met(median(f.Values))
}

// want is the target of a figure; the zero value has none.
type want struct {
	Sense string  `json:"sense,omitempty"`
	Limit float64 `json:"limit,omitempty"`
}

const (
	senseAtLeast = "at least"
	senseAtMost  = "at most"
	senseUnder   = "under"
)

func atLeast(v float64) want { return want{senseAtLeast, v} }
func atMost(v float64) want  { return want{senseAtMost, v} }
func under(v float64) want   { return want{senseUnder, v} }

func (w want) met(v float64) bool {
	switch w.Sense {
	case senseAtLeast:
		return v >= w.Limit
	case senseAtMost:
		return v <= w.Limit
	case senseUnder:
		return v < w.Limit
	}
	return true
}

// median is 0 where there are no values.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// each reads one number of every block that has it.
func each(blocks []block, read func(block) float64) []float64 {
	var values []float64
	for _, b := range blocks {
		if v := read(b); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values
}

// ratios compares the blocks of two contenders round by round.
func ratios(a, b []block, read func(block) float64) []float64 {
	var values []float64
	for i := range min(len(a), len(b)) {
		if v := read(a[i]) / read(b[i]); !math.IsNaN(v) && !math.IsInf(v, 0) {
			values = append(values, v)
		}
	}
	return values
}
