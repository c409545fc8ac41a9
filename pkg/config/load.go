package config

import "reflect"

// Validator is implemented by configuration structs whose fields have bounds
// or depend on each other. Several problems are joined with errors.Join.
type Validator interface{ Validate() error }

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
			if err := f.load(); err != nil {
				problems = append(problems, err)
			}
		}
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
	if c, ok := v.Interface().(Validator); ok {
		problems = append(problems, split(c.Validate())...)
	}
	v = reflect.Indirect(v)
	for i := range v.NumField() {
		ft, fv := v.Type().Field(i), v.Field(i)
		// An embedded struct's method is promoted and has been asked already.
		if ft.IsExported() && !ft.Anonymous && fv.Kind() == reflect.Struct && fv.CanAddr() {
			problems = append(problems, validate(fv.Addr())...)
		}
	}
	return problems
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
