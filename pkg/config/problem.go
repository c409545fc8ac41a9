package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ValueError is one variable with a value that is not allowed.
type ValueError struct {
	Name    string // variable
	Value   string // offending value, already masked where it is a secret
	Allowed string // what would be allowed
}

// Error names the variable, its value and what is allowed.
func (p *ValueError) Error() string {
	return fmt.Sprintf("%s=%q: %s is allowed", p.Name, p.Value, p.Allowed)
}

// Error is every problem of one configuration.
type Error struct{ Problems []error }

// Error lists the problems, one a line.
func (e *Error) Error() string {
	var b strings.Builder
	if len(e.Problems) == 1 {
		b.WriteString("configuration: 1 problem")
	} else {
		fmt.Fprintf(&b, "configuration: %d problems", len(e.Problems))
	}
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		b.WriteString(strings.ReplaceAll(p.Error(), "\n", "\n    "))
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As access to the problems.
func (e *Error) Unwrap() []error { return e.Problems }

// Between checks that an integer variable lies within the bounds, both included.
func Between[T ~int | ~int64](name string, value, low, high T) error {
	if value >= low && value <= high {
		return nil
	}
	return &ValueError{
		Name: name, Value: strconv.FormatInt(int64(value), 10),
		Allowed: fmt.Sprintf("a whole number between %d and %d", low, high),
	}
}

// MillisBetween checks a duration that the variable gives in milliseconds.
func MillisBetween(name string, value, low, high time.Duration) error {
	if value >= low && value <= high {
		return nil
	}
	return &ValueError{
		Name: name, Value: strconv.FormatInt(value.Milliseconds(), 10),
		Allowed: fmt.Sprintf("a number of milliseconds between %d and %d", low.Milliseconds(), high.Milliseconds()),
	}
}
