package admission

import (
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/queenmq/queen/pkg/rates"

	"github.com/queenmq/queen/pkg/logging"
)

// reasons tell why the budget last changed, as operators know them.
var reasons = map[string]string{
	"": "init", grow: "saturated", shrink: "oldest-age", pin: "nosync-detected", unpin: "signal-restored",
}

// Rates tells how much may run at once and why, and who waits.
func (g *Gate) Rates(s *rates.Sample) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	mode := "adaptive"
	if g.law.pinned {
		mode = "nosync"
	}
	var oldest time.Duration
	lanes := make([]any, 0, classes)
	for c := range classes {
		l := &g.lanes[c]
		// In use of the most there may be, and those who wait: for a slot, or for
		// a shared transaction.
		text := strconv.Itoa(l.inUse) + "/" + strconv.Itoa(min(g.law.lanes[c].cap, g.law.budget)) + " +" + strconv.Itoa(l.waiting.len+l.entered)
		lanes = append(lanes, slog.String(c.String(), text)) //nolint:sloglint // the classes are named once
		if l.waiting.head != nil {
			oldest = max(oldest, now.Sub(l.waiting.head.since))
		}
	}
	s.State(slog.Int(logging.KeyAdmissionBudget, g.law.budget), slog.String(logging.KeyAdmissionMode, mode), slog.Group(logging.KeyAdmissionLanes, lanes...),
		slog.Float64(logging.KeyTrainsRate, float64(g.shown.count)/g.cfg.Tick.Seconds()),
		slog.Float64(logging.KeyCycleMs, math.Round(g.law.usual.Seconds()*1e5)/100), slog.Int64(logging.KeyOldestWaitMs, oldest.Milliseconds()),
		slog.String(logging.KeyAdmissionLast, reasons[g.law.last]))
}
