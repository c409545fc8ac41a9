package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

const (
	header = "PHASE\tQUEUE\tPARTITIONS\tSEGMENTS\tMESSAGES\tBYTES\tROWS\tHELD\tTIMED OUT\tTIME\n"
	blank  = "-" // a figure that a phase or a row does not have
	all    = "(all)"
	gap    = 2 // blanks between columns
)

// Table writes a row for each phase, one for each queue in it, and what follows
// from them in words. dry says that the cycle only looked.
func Table(w io.Writer, r retention.Report, dry bool) error {
	table := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	fmt.Fprint(table, header)
	for _, p := range r.Phases {
		fmt.Fprint(table, phaseRow(p))
		for _, q := range r.Queues {
			fmt.Fprint(table, queueRow(p.Name, q))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if _, err := fmt.Fprint(w, "\n"+summary(r, dry)+notes(r)); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}

// deletes tells whether a phase deletes segments, or rows of other kinds.
func deletes(phase string) bool {
	return phase == retention.PhaseRetention || phase == retention.PhaseEviction
}

func phaseRow(p retention.Phase) string {
	segments, messages, bytes, rows := blank, blank, blank, number(p.Rows)
	if deletes(p.Name) {
		segments, messages, bytes, rows = number(p.Segments), number(p.Messages), number(p.Bytes), blank
	}
	return row(p.Name, all, number(p.Lanes), segments, messages, bytes, rows, number(p.Held), number(p.TimedOut), p.Elapsed.Round(time.Millisecond).String())
}

// queueRow is the part of a queue in a phase, or nothing.
func queueRow(phase string, q retention.Queue) string {
	switch {
	case phase == retention.PhaseRetention && (q.Segments > 0 || q.Held > 0):
		return row(phase, q.Name, blank, number(q.Segments), number(q.Messages), number(q.Bytes), blank, number(q.Held), blank, blank)
	case phase == retention.PhaseEviction && q.Evicted > 0:
		return row(phase, q.Name, blank, blank, number(q.Evicted), blank, blank, blank, blank, blank)
	case phase == retention.PhaseTxns && q.SidecarRows > 0:
		return row(phase, q.Name, blank, blank, blank, blank, number(q.SidecarRows), blank, blank, blank)
	}
	return ""
}

func row(cells ...string) string { return strings.Join(cells, "\t") + "\n" }

func number(n int64) string { return strconv.FormatInt(n, 10) }

// summary is one sentence.
func summary(r retention.Report, dry bool) string {
	took := r.Elapsed.Round(time.Millisecond)
	if !r.Deleted() {
		return fmt.Sprintf("Nothing was due. The look took %s.\n", took)
	}
	verb := "Deleted"
	if dry {
		verb = "Dry run, nothing was deleted. A cycle would now delete"
	}
	kept, evicted := r.Phase(retention.PhaseRetention), r.Phase(retention.PhaseEviction)
	rows := r.Phase(retention.PhaseTxns).Rows + r.Phase(retention.PhaseMetrics).Rows
	return fmt.Sprintf("%s %d segments with %d messages (%d bytes), %d partitions and %d rows of bookkeeping. It took %s.\n",
		verb, kept.Segments+evicted.Segments, kept.Messages+evicted.Messages, kept.Bytes+evicted.Bytes,
		r.Phase(retention.PhaseCleanup).Rows, rows, took)
}

// notes tell what a person may have to do something about.
func notes(r retention.Report) string {
	var b strings.Builder
	for _, p := range r.Phases {
		if p.Held > 0 {
			fmt.Fprintf(&b, "%s: %d partitions are due and held by a consumer group that has not read them.\n", p.Name, p.Held)
		}
		if p.TimedOut > 0 {
			fmt.Fprintf(&b, "%s: %d partitions were locked by others and left to the next cycle.\n", p.Name, p.TimedOut)
		}
		if p.Failed > 0 {
			b.WriteString(failure(p))
		}
		if p.Unfinished {
			fmt.Fprintf(&b, "%s: its time was up; the rest is left to the next cycle.\n", p.Name)
		}
	}
	return b.String()
}

func failure(p retention.Phase) string {
	switch p.Name {
	case retention.PhaseRetention, retention.PhaseTxns, retention.PhaseEviction:
		return fmt.Sprintf("%s: %d attempts failed; what they left is tried again in a later cycle.\n", p.Name, p.Failed)
	case retention.PhaseMetrics:
		return p.Name + ": the purge failed, which is no failure of the cycle; the log says why.\n"
	}
	return p.Name + ": it failed and is tried again in a later cycle.\n"
}
