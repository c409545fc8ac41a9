package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Status is how a step ended.
type Status string

// How a step ends.
const (
	Passed  Status = "ok"
	Failed  Status = "failed"
	Skipped Status = "skipped" // one that it builds on failed
)

// Step is the outcome of one step.
type Step struct {
	Name      string  `json:"name"`
	Status    Status  `json:"status"`
	ElapsedMs float64 `json:"elapsedMs"`
	Detail    string  `json:"detail,omitempty"` // what was seen, or why it failed
}

// Report is the outcome of a check.
type Report struct {
	URL       string  `json:"url"`
	Queue     string  `json:"queue"`
	Version   string  `json:"version"` // of the broker that answered; empty when unknown
	OK        bool    `json:"ok"`
	ElapsedMs float64 `json:"elapsedMs"`
	Steps     []Step  `json:"steps"`
}

// reporter tells people or programs of a check.
type reporter interface {
	begin(r *Report)
	step(s Step)
	end(r *Report)
}

// textReporter writes a line for each step as it ends.
type textReporter struct{ out io.Writer }

func (t *textReporter) begin(r *Report) {
	fmt.Fprintf(t.out, "checking %s with the queue %s\n", r.URL, r.Queue)
}

func (t *textReporter) step(s Step) {
	status, took := string(s.Status), fmt.Sprintf("%.1f ms", s.ElapsedMs)
	switch s.Status {
	case Failed:
		status = strings.ToUpper(status)
	case Skipped:
		took = "-"
	}
	fmt.Fprintln(t.out, strings.TrimRight(fmt.Sprintf("%-8s %-10s %12s  %s", status, s.Name, took, s.Detail), " "))
}

func (t *textReporter) end(r *Report) {
	var failed []string
	for _, s := range r.Steps {
		if s.Status == Failed {
			failed = append(failed, s.Name)
		}
	}
	took := (time.Duration(r.ElapsedMs * float64(time.Millisecond))).Round(time.Millisecond)
	if r.OK {
		fmt.Fprintf(t.out, "all %d steps passed in %s\n", len(r.Steps), took)
		return
	}
	fmt.Fprintf(t.out, "%d of %d steps failed in %s: %s\n", len(failed), len(r.Steps), took, strings.Join(failed, ", "))
}

// jsonReporter writes the whole report at the end.
type jsonReporter struct{ out io.Writer }

func (*jsonReporter) begin(*Report) {}

func (*jsonReporter) step(Step) {}

func (j *jsonReporter) end(r *Report) {
	encoder := json.NewEncoder(j.out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(r)
}
