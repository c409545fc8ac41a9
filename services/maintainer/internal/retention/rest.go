package retention

import (
	"context"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
)

// rest has a phase give way to others. A backlog has time, and a push has not: while
// other sessions are at work on the database, the work of every RestAfter is followed
// by a rest RestFactor times as long. An empty machine is used as it is.
type rest struct {
	// others asks whether other sessions are at work at this moment.
	others func(ctx context.Context) (bool, error)

	worked time.Duration // since the last rest
	met    time.Time     // when others were last at work
}

// after accounts for a step that took so long.
func (r *rest) after(ctx context.Context, took time.Duration) {
	if r.worked += took; r.worked < RestAfter {
		return
	}
	worked := r.worked
	r.worked = 0
	// One look may miss them. An error is left to the next step, which meets it too.
	if busy, err := r.others(ctx); err == nil && busy {
		r.met = time.Now()
	}
	if !r.met.IsZero() && time.Since(r.met) < RestMemory {
		lifecycle.Sleep(ctx, min(RestFactor*worked, RestMost))
	}
}
