package config

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// Tags of a configuration field, beside envconfig's own `envconfig` (the
// variable's name) and `default`.
const (
	tagAlias   = "alias"   // further names, comma separated, in order of preference
	tagSecret  = "secret"  // "true": never printed
	tagAllowed = "allowed" // comma separated values; blanks and case do not matter
	tagWithout = "without" // a variable that takes this one's place: not both may be set
	// tagDefaults of a nested struct gives variables in it another default, as
	// NAME=value, comma separated: services share a struct and differ in a number.
	tagDefaults = "defaults"
)

// field is one leaf of a configuration struct.
type field struct {
	name    string
	aliases []string
	def     string
	secret  bool
	choices []string
	without string
	value   reflect.Value
}

// fieldsOf lists the leaves of the struct that spec points to. Nested structs
// are walked into; a field without a variable name is none of ours.
func fieldsOf(spec any) []field {
	v := reflect.ValueOf(spec)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	var fields []field
	for i := range v.NumField() {
		ft, fv := v.Type().Field(i), v.Field(i)
		if !ft.IsExported() {
			continue
		}
		name := ft.Tag.Get("envconfig")
		if name == "" {
			if fv.Kind() == reflect.Struct {
				nested := fieldsOf(addressOf(fv))
				override(nested, list(ft.Tag.Get(tagDefaults)))
				fields = append(fields, nested...)
			}
			continue
		}
		fields = append(fields, field{
			name: name, aliases: list(ft.Tag.Get(tagAlias)), def: ft.Tag.Get("default"),
			secret:  ft.Tag.Get(tagSecret) == "true" || fv.Type() == reflect.TypeFor[Secret](),
			choices: list(ft.Tag.Get(tagAllowed)), without: ft.Tag.Get(tagWithout), value: fv,
		})
	}
	return fields
}

// override gives fields other defaults.
func override(fields []field, defaults []string) {
	for _, entry := range defaults {
		name, def, _ := strings.Cut(entry, "=")
		for i := range fields {
			if fields[i].name == name {
				fields[i].def = def
			}
		}
	}
}

func addressOf(v reflect.Value) any {
	if v.CanAddr() {
		return v.Addr().Interface()
	}
	return v.Interface()
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// isString reports whether a blank value means itself rather than the default.
func (f field) isString() bool {
	return f.value.Kind() == reflect.String && f.choices == nil && !isText(f.value.Type())
}

// source finds the variable that supplies the value, and whether one does. Of
// several names the first non-empty one counts. A variable that is present but
// blank leaves everything but a plain text at its default.
func (f field) source() (string, bool) {
	for _, name := range append([]string{f.name}, f.aliases...) {
		v, ok := os.LookupEnv(name)
		if !ok {
			continue
		}
		if strings.TrimSpace(v) != "" || f.isString() && f.aliases == nil {
			return name, true
		}
	}
	return f.name, false
}

// conflict refuses a variable beside the one that takes its place.
func (f field) conflict() error {
	if f.without == "" || os.Getenv(f.without) == "" {
		return nil
	}
	name, given := f.source()
	if !given || strings.TrimSpace(os.Getenv(name)) == "" {
		return nil
	}
	return fmt.Errorf("%s and %s are both set: only one of them is allowed", name, f.without)
}

// load decodes one field through envconfig, in a struct that holds only this
// field: envconfig stops at its first error, and we want all of them.
func (f field) load() error {
	name, given := f.source()
	key := name
	if !given {
		// No environment can hold a name with an equals sign, so that envconfig
		// sees an unset variable also where ours is present but blank.
		key = name + "=unset"
	}
	err := f.decode(key)
	if err == nil {
		return nil
	}
	raw := os.Getenv(name)
	if f.secret {
		raw = mask(raw)
	}
	problem := &ValueError{Name: name, Value: raw, Allowed: allowedText(err)}
	if !given {
		return fmt.Errorf("default of %w", problem)
	}
	// The default stands in, so that later checks do not complain about the
	// same variable again.
	if err := f.decode(name + "=unset"); err != nil {
		return fmt.Errorf("default of %w", problem)
	}
	return problem
}

func (f field) decode(key string) error {
	tag := fmt.Sprintf("envconfig:%q default:%q", key, f.def)
	shape := reflect.StructOf([]reflect.StructField{{
		Name: "Value", Type: f.standIn(), Tag: reflect.StructTag(tag),
	}})
	holder := reflect.New(shape)
	if err := envconfig.Process("", holder.Interface()); err != nil {
		// ParseError does not unwrap, and its text is envconfig's own.
		var pe *envconfig.ParseError
		if errors.As(err, &pe) {
			return pe.Err
		}
		return err
	}
	return f.assign(holder.Elem().Field(0))
}
