package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

// cycle is a report for programs. Counts are exact, times are milliseconds.
type cycle struct {
	Led       bool      `json:"led"` // false: another maintainer was at it, and nothing was done
	DryRun    bool      `json:"dryRun"`
	Began     time.Time `json:"began"`
	ElapsedMS int64     `json:"elapsedMs"`
	Phases    []phase   `json:"phases"`
	Queues    []queue   `json:"queues"`
}

type phase struct {
	Name       string `json:"name"`
	ElapsedMS  int64  `json:"elapsedMs"`
	Queues     int64  `json:"queues"` // with something due
	Partitions int64  `json:"partitions"`
	Segments   int64  `json:"segments"`
	Messages   int64  `json:"messages"`
	Bytes      int64  `json:"bytes"`
	Rows       int64  `json:"rows"`
	Held       int64  `json:"held"`
	TimedOut   int64  `json:"timedOut"`
	Failed     int64  `json:"failed"`
	Unfinished bool   `json:"unfinished"`
}

type queue struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Segments    int64  `json:"segments"`
	Messages    int64  `json:"messages"`
	Bytes       int64  `json:"bytes"`
	Evicted     int64  `json:"evictedMessages"`
	SidecarRows int64  `json:"sidecarRows"`
	Held        int64  `json:"held"`
}

// JSON writes the report as one object on one line. led is false when another
// maintainer was at it; the report is empty then.
func JSON(w io.Writer, r retention.Report, led, dry bool) error {
	out := cycle{
		Led: led, DryRun: dry, Began: r.Began, ElapsedMS: r.Elapsed.Milliseconds(),
		Phases: make([]phase, 0, len(r.Phases)), Queues: make([]queue, 0, len(r.Queues)),
	}
	for _, p := range r.Phases {
		out.Phases = append(out.Phases, phase{
			Name: p.Name, ElapsedMS: p.Elapsed.Milliseconds(), Queues: p.Queues, Partitions: p.Lanes, Segments: p.Segments,
			Messages: p.Messages, Bytes: p.Bytes, Rows: p.Rows, Held: p.Held, TimedOut: p.TimedOut, Failed: p.Failed, Unfinished: p.Unfinished,
		})
	}
	for _, q := range r.Queues {
		out.Queues = append(out.Queues, queue{
			ID: q.ID.String(), Name: q.Name, Segments: q.Segments, Messages: q.Messages, Bytes: q.Bytes,
			Evicted: q.Evicted, SidecarRows: q.SidecarRows, Held: q.Held,
		})
	}
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
