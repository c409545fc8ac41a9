package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report gathers the rows and knows how to show them.
type report struct {
	Started time.Time  `json:"started"`
	CPUs    int        `json:"cpus"`
	Server  string     `json:"server"`
	Scale   scale      `json:"scale"`
	Rows    []*outcome `json:"rows"`
}

func newReport(b *bench) *report {
	return &report{Started: time.Now(), CPUs: runtime.NumCPU(), Server: b.lab.server, Scale: b.scale}
}

func (r *report) add(o *outcome) { r.Rows = append(r.Rows, o) }

const (
	verdictOK   = "OK"
	verdictMiss = "MISS"
)

func verdict(ok bool) string {
	if ok {
		return verdictOK
	}
	return verdictMiss
}

// print writes the table for a person.
func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s; %d processors shared by PostgreSQL, brokers and driver\n", r.Server, r.CPUs)
	fmt.Fprintf(out, "blocks of %s, comparisons of %d rounds; median and spread of the blocks; %s in all\n\n",
		r.Scale.Block, r.Scale.Rounds, r.took().Round(time.Second))
	printTable(out, r.Rows)
	met, missed := 0, []string{}
	for _, o := range r.Rows {
		if o.ok() {
			met++
		} else {
			missed = append(missed, o.Name)
		}
	}
	fmt.Fprintf(out, "\n%d of %d rows meet their targets", met, len(r.Rows))
	if len(missed) > 0 {
		fmt.Fprintf(out, "; missed: %s", strings.Join(missed, ", "))
	}
	fmt.Fprintln(out)
	for _, o := range r.Rows {
		if o.Error != "" {
			fmt.Fprintf(out, "\n%s: %s\n", o.Name, o.Error)
		}
	}
}

// took is how long the rows have run.
func (r *report) took() time.Duration {
	total := 0.0
	for _, o := range r.Rows {
		total += o.Seconds
	}
	return time.Duration(total * float64(time.Second))
}

// printLast shows the newest row while the others still run.
func (r *report) printLast(out io.Writer) { printTable(out, r.Rows[len(r.Rows)-1:]) }

func printTable(out io.Writer, outcomes []*outcome) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tfigure\tmeasured\tmin..max\ttarget\t")
	for _, o := range outcomes {
		name := o.Name
		for _, l := range o.lines() {
			fmt.Fprintf(w, "%s\t%s\n", name, l)
			name = ""
		}
	}
	_ = w.Flush()
}

// lines are the cells of the row's figures, and of what failed.
func (o *outcome) lines() []string {
	var lines []string
	for _, f := range o.Figures {
		lines = append(lines, f.line())
	}
	if o.Failures > 0 {
		lines = append(lines, fmt.Sprintf("failed requests or messages\t%d\t\tnone\t%s", o.Failures, verdictMiss))
	}
	if o.Error != "" {
		text, _, _ := strings.Cut(o.Error, "\n")
		lines = append(lines, fmt.Sprintf("error: %.40s\t\t\t\t%s", text, verdictMiss))
	}
	return lines
}

func (f figure) line() string {
	spread, target, ok := "", "", ""
	if len(f.Values) > 1 {
		spread = short(slices.Min(f.Values)) + ".." + short(slices.Max(f.Values))
	}
	if f.Want.Sense != "" {
		target, ok = f.Want.Sense+" "+short(f.Want.Limit), verdict(f.ok())
	}
	measured := "-"
	if len(f.Values) > 0 {
		measured = short(median(f.Values))
	}
	if f.Unit != "" {
		measured += " " + f.Unit
	}
	return strings.Join([]string{f.Name, measured, spread, target, ok}, "\t")
}

// short shows as many digits as a reader can use.
func short(v float64) string {
	digits := 0
	switch a := math.Abs(v); {
	case a == math.Trunc(a) && a >= 10:
	case a < 1:
		digits = 3
	case a < 10:
		digits = 2
	case a < 100:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// MarshalJSON adds what can be read off the values.
func (f figure) MarshalJSON() ([]byte, error) {
	doc := map[string]any{"name": f.Name, "values": f.Values, "median": median(f.Values)}
	if f.Unit != "" {
		doc["unit"] = f.Unit
	}
	if f.Want.Sense != "" {
		doc["target"], doc["ok"] = f.Want, f.ok()
	}
	return json.Marshal(doc)
}

// MarshalJSON adds the verdict.
func (o *outcome) MarshalJSON() ([]byte, error) {
	type plain outcome
	return json.Marshal(struct {
		*plain
		OK bool `json:"ok"`
	}{(*plain)(o), o.ok()})
}

// writeJSON stores the same numbers for later comparison.
func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
