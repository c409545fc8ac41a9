package config

import (
	"context"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

// Floors raises values that are below their floor, as the original system does, and
// remembers them for the log.
type Floors struct{ raised []raised }

// raised is a value that was below its floor, in the unit of its variable.
type raised struct {
	name                 string
	requested, effective int64
}

// Count raises a number.
func (f *Floors) Count(name string, value *int, least int) {
	if *value < least {
		f.raised = append(f.raised, raised{name, int64(*value), int64(least)})
		*value = least
	}
}

// Wait raises a duration that the variable gives in milliseconds.
func (f *Floors) Wait(name string, value *time.Duration, least time.Duration) {
	if *value < least {
		f.raised = append(f.raised, raised{name, value.Milliseconds(), least.Milliseconds()})
		*value = least
	}
}

// Warn logs what was raised.
func (f *Floors) Warn(ctx context.Context, log *slog.Logger) {
	for _, r := range f.raised {
		log.WarnContext(ctx, "value is below its floor and was raised", slog.String(logging.KeyVariable, r.name),
			slog.Int64("requested", r.requested), slog.Int64("effective", r.effective))
	}
}
