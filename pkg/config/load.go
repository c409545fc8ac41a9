package config

import (
	"errors"
	"reflect"
)

// Validator is implemented by configuration structs whose fields have bounds
// or depend on each other. Several problems are joined with errors.Join.
type Validator interface{ Validate() error }

// Resolver is implemented by configuration structs some of whose fields follow from
// others, for Load to call before it validates.
type Resolver interface{ Resolve() }

// Load fills the structs that specs point to from the environment and checks
// them. The error is an *Error with every problem of all of them.
//
// A field names its variable with `envconfig:"NAME"` and its default with
// `default:"…"`, which `defaults:"NAME=…"` of the struct around its struct overrules. Texts (string, Secret) are taken verbatim, also when empty;
// every other type trims blanks and takes the default when the variable is
// blank. Whole numbers, decimals, booleans and texts stand for themselves, a
// time.Duration is a number of milliseconds.
func Load(specs ...any) error {
	var problems []error
	for _, spec := range specs {
		for _, f := range fieldsOf(spec) {
			problems = append(problems, split(errors.Join(f.load(), f.conflict()))...)
		}
	}
	for _, spec := range specs {
		resolve(reflect.ValueOf(spec))
	}
	for _, spec := range specs {
		problems = append(problems, validate(reflect.ValueOf(spec))...)
	}
	if len(problems) == 0 {
		return nil
	}
	return &Error{Problems: problems}
}

// validate asks a struct and those nested in it.
func validate(v reflect.Value) []error {
	var problems []error
	walk(v, func(spec any) {
		if c, ok := spec.(Validator); ok {
			problems = append(problems, split(c.Validate())...)
		}
	})
	return problems
}

func resolve(v reflect.Value) {
	walk(v, func(spec any) {
		if c, ok := spec.(Resolver); ok {
			c.Resolve()
		}
	})
}

// walk visits a struct and those nested in it.
func walk(v reflect.Value, visit func(spec any)) {
	visit(v.Interface())
	v = reflect.Indirect(v)
	for i := range v.NumField() {
		ft, fv := v.Type().Field(i), v.Field(i)
		// An embedded struct's method is promoted and has been asked already.
		if ft.IsExported() && !ft.Anonymous && fv.Kind() == reflect.Struct && fv.CanAddr() {
			walk(fv.Addr(), visit)
		}
	}
}

// split takes joined errors apart, so that each problem gets its own line.
func split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}
