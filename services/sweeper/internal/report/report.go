package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

// sweep is a report for programs. Counts are exact, times are milliseconds.
type sweep struct {
	Began     time.Time `json:"began"`
	ElapsedMS int64     `json:"elapsedMs"`
	FireOff   bool      `json:"fireOff"` // an operator has switched the fire off
	Timers    fired     `json:"timers"`
	Keys      pruned    `json:"keys"`
	Usage     usage     `json:"usage"`
}

type fired struct {
	Due          int   `json:"due"`       // when the sweep began
	DueCapped    bool  `json:"dueCapped"` // there were more than due
	LateMS       int64 `json:"lateMs"`    // the most overdue of them
	Claimed      int   `json:"claimed"`
	Fired        int   `json:"fired"`
	Segments     int   `json:"segments"`
	Stale        int   `json:"stale"`
	Failed       int   `json:"failed"`
	DeadLettered int   `json:"deadLettered"`
}

type pruned struct {
	Pruned         int   `json:"pruned"`
	Unpruned       int   `json:"unpruned"`
	UnprunedCapped bool  `json:"unprunedCapped"` // there are more than unpruned
	LagMS          int64 `json:"lagMs"`          // how long the oldest of them has been expired
}

type usage struct {
	Tenants int  `json:"tenants"`
	Sampled bool `json:"sampled"`
}

// JSON writes the report as one object on one line.
func JSON(w io.Writer, r timers.Report) error {
	out := sweep{
		Began: r.Began, ElapsedMS: r.Elapsed.Milliseconds(), FireOff: r.FireOff,
		Timers: fired{
			Due: r.Due, DueCapped: r.DueCapped, LateMS: r.Late.Milliseconds(), Claimed: r.Claimed, Fired: r.Fired,
			Segments: r.Segments, Stale: r.Stale, Failed: r.Failed, DeadLettered: r.DeadLettered,
		},
		Keys:  pruned{Pruned: r.Pruned, Unpruned: r.Unpruned, UnprunedCapped: r.UnprunedCapped, LagMS: r.ExpiryLag.Milliseconds()},
		Usage: usage{Tenants: r.Tenants, Sampled: r.Sampled},
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

const (
	header = "WORK\tFIGURE\tVALUE\n"
	gap    = 2 // blanks between columns
)

// Table writes a row for each figure, and what follows from them in words.
func Table(w io.Writer, r timers.Report) error {
	table := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	fmt.Fprint(table, header)
	for _, row := range rows(r) {
		fmt.Fprint(table, strings.Join(row[:], "\t")+"\n")
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if _, err := fmt.Fprint(w, "\n"+summary(r)+notes(r)); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	return nil
}

func rows(r timers.Report) [][3]string {
	tenants := strconv.Itoa(r.Tenants)
	if r.Sampled {
		tenants += " (estimated)"
	}
	return [][3]string{
		{"timers", "due", capped(r.Due, r.DueCapped)},
		{"timers", "late by up to", short(r.Late)},
		{"timers", "claimed", strconv.Itoa(r.Claimed)},
		{"timers", "fired", strconv.Itoa(r.Fired)},
		{"timers", "segments written", strconv.Itoa(r.Segments)},
		{"timers", "stale", strconv.Itoa(r.Stale)},
		{"timers", "failed", strconv.Itoa(r.Failed)},
		{"timers", "dead-lettered", strconv.Itoa(r.DeadLettered)},
		{"keys", "pruned", strconv.Itoa(r.Pruned)},
		{"keys", "expired and left", capped(r.Unpruned, r.UnprunedCapped)},
		{"keys", "left for up to", short(r.ExpiryLag)},
		{"usage", "tenants measured", tenants},
	}
}

// capped is a number up to where somebody counted.
func capped(n int, more bool) string {
	if more {
		return "over " + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

// summary is one sentence.
func summary(r timers.Report) string {
	if r.Fired == 0 && r.Pruned == 0 && r.DeadLettered == 0 {
		return fmt.Sprintf("Nothing was fired or pruned. The sweep took %s.\n", short(r.Elapsed))
	}
	return fmt.Sprintf("Fired %d timers and pruned %d expired keys. It took %s.\n", r.Fired, r.Pruned, short(r.Elapsed))
}

// notes tell what a person may have to do something about.
func notes(r timers.Report) string {
	var b strings.Builder
	if r.FireOff {
		b.WriteString("timers: an operator has switched the fire off (timersFire); they wait.\n")
	}
	if r.Stale > 0 {
		fmt.Fprintf(&b, "timers: %d were not fired because others of their partition had changed hands; they are due again.\n", r.Stale)
	}
	if r.Failed > 0 {
		fmt.Fprintf(&b, "timers: %d failed and are tried again after a pause; the log says why.\n", r.Failed)
	}
	if r.DeadLettered > 0 {
		fmt.Fprintf(&b, "timers: %d failed too often and are now dead letters of the group __timer__.\n", r.DeadLettered)
	}
	if r.Unpruned > 0 {
		fmt.Fprintf(&b, "keys: %s expired ones are left, locked by others or too many for one sweep.\n", capped(r.Unpruned, r.UnprunedCapped))
	}
	return b.String()
}
