package config

import (
	"fmt"
	"log/slog"
)

// Secret is a text that never prints: whatever formats, logs or encodes it
// shows only whether it is set and how long it is.
type Secret string

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// String tells whether the secret is set.
func (s Secret) String() string { return mask(string(s)) }

// GoString is what %#v prints.
func (s Secret) GoString() string { return mask(string(s)) }

// MarshalText is what encoders print.
func (s Secret) MarshalText() ([]byte, error) { return []byte(mask(string(s))), nil }

// LogValue is what slog prints.
func (s Secret) LogValue() slog.Value { return slog.StringValue(mask(string(s))) }

// Format covers the verbs that would reach the underlying string, such as %x and %q.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(mask(string(s)))) }

func mask(s string) string {
	if s == "" {
		return "<unset>"
	}
	return fmt.Sprintf("<set:%d chars>", len([]rune(s)))
}
