package config

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// The types below stand in for the fields of a configuration struct while
// envconfig decodes them: its own parsers accept spellings that are not
// documented (0x10, t, 1e3) and reject ones that are (yes, on).

type boolValue bool

// allowedError is a parse error whose text says what would have been allowed.
type allowedError string

func (e allowedError) Error() string { return string(e) }

func (b *boolValue) Decode(text string) error {
	v, err := ParseBool(text)
	*b = boolValue(v)
	return err
}

// ParseBool understands true/false, 1/0, yes/no and on/off in any case, with
// blanks around them. It is the one parser of booleans.
func ParseBool(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, allowedError("true/false, 1/0, yes/no or on/off (any case)")
}

type intValue int64

func (i *intValue) Decode(text string) error {
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return allowedError("a whole number")
	}
	*i = intValue(v)
	return nil
}

type floatValue float64

func (f *floatValue) Decode(text string) error {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return allowedError("a decimal number")
	}
	*f = floatValue(v)
	return nil
}

type millisValue time.Duration

func (m *millisValue) Decode(text string) error {
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || v < 0 || v > math.MaxInt64/int64(time.Millisecond) {
		return allowedError("a whole number of milliseconds, 0 or more,")
	}
	*m = millisValue(time.Duration(v) * time.Millisecond)
	return nil
}

type choiceValue string

func (c *choiceValue) Decode(text string) error {
	*c = choiceValue(strings.ToLower(strings.TrimSpace(text)))
	return nil
}

// standIn picks the type that envconfig decodes for one field.
func (f field) standIn() reflect.Type {
	switch {
	case f.value.Type() == reflect.TypeFor[time.Duration]():
		return reflect.TypeFor[millisValue]()
	case f.choices != nil:
		return reflect.TypeFor[choiceValue]()
	case isText(f.value.Type()):
		return f.value.Type()
	}
	switch f.value.Kind() {
	case reflect.Bool:
		return reflect.TypeFor[boolValue]()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return reflect.TypeFor[intValue]()
	case reflect.Float64:
		return reflect.TypeFor[floatValue]()
	}
	return f.value.Type()
}

// assign moves a decoded stand-in into the field.
func (f field) assign(decoded reflect.Value) error {
	if f.value.CanInt() && decoded.CanInt() && f.value.OverflowInt(decoded.Int()) {
		return allowedError("a whole number that fits its range")
	}
	if f.choices != nil && !contains(f.choices, decoded.String()) {
		return allowedError(strings.Join(f.choices, " or "))
	}
	f.value.Set(decoded.Convert(f.value.Type()))
	return nil
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// allowedText extracts what a decoder says is allowed.
func allowedText(err error) string {
	var allowed allowedError
	if errors.As(err, &allowed) {
		return string(allowed)
	}
	return err.Error()
}
