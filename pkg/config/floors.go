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
func (f *Floors) Count(name string, value *int, least int) { raise(f, name, value, least, 1) }

// Size raises a number of bytes.
func (f *Floors) Size(name string, value *int64, least int64) { raise(f, name, value, least, 1) }

// Wait raises a duration that the variable gives in milliseconds.
func (f *Floors) Wait(name string, value *time.Duration, least time.Duration) {
	raise(f, name, value, least, time.Millisecond)
}

func raise[T ~int | ~int64](f *Floors, name string, value *T, least, unit T) {
	if *value < least {
		f.raised = append(f.raised, raised{name, int64(*value / unit), int64(least / unit)})
		*value = least
	}
}

// Warn logs what was raised.
func (f *Floors) Warn(ctx context.Context, log *slog.Logger) {
	for _, r := range f.raised {
		log.WarnContext(ctx, "value is below its floor and was raised", slog.String(logging.KeyVariable, r.name),
			slog.Int64(logging.KeyRequested, r.requested), slog.Int64(logging.KeyEffective, r.effective))
	}
}
