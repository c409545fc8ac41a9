package config

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"
)

// maxShown is the longest text that is logged whole.
const maxShown = 256

// Show logs the resolved values of spec as the block "config: <name>". The
// extra attributes state what follows from the values.
func Show(ctx context.Context, log *slog.Logger, name string, spec any, extra ...slog.Attr) {
	//nolint:sloglint // operators look for these titles, one for each block
	log.LogAttrs(ctx, slog.LevelInfo, "config: "+name, append(Values(spec), extra...)...)
}

// Values lists every variable of spec with its resolved value, secrets masked.
func Values(spec any) []slog.Attr {
	var attrs []slog.Attr
	for _, f := range fieldsOf(spec) {
		attrs = append(attrs, slog.Any(f.name, f.shown())) //nolint:sloglint // variables are their own keys
	}
	return attrs
}

func (f field) shown() any {
	value := f.value.Interface()
	if f.secret || soundsSecret(f.name) {
		if f.value.Kind() == reflect.String {
			return mask(f.value.String())
		}
		return mask(fmt.Sprint(value))
	}
	switch v := value.(type) {
	case time.Duration:
		return v.Milliseconds()
	case fmt.Stringer:
		return v.String()
	case string:
		// A certificate, say: the log needs to tell that it is there.
		if len(v) > maxShown {
			return fmt.Sprintf("%.20q… (%d bytes)", v, len(v))
		}
	}
	return value
}

// soundsSecret is the net under a forgotten secret tag.
func soundsSecret(name string) bool {
	for _, suffix := range []string{"PASSWORD", "SECRET", "_KEY", "TOKEN"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
