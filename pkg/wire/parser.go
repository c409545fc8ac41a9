package wire

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// parser walks one body. Values are found by their offsets in the body, so that
// nothing is copied before it is known to be wanted.
type parser struct {
	body []byte
	dec  *jsontext.Decoder
	buf  bytes.Buffer // what dec reads
	path []step       // for error texts: "items[3].payload"
}

// step is one part of the way to the current value; the text is made only when
// something is wrong there.
type step struct {
	name  string
	index int // in an array; noIndex elsewhere
}

const noIndex = -1

func newParser(body []byte) (*parser, error) {
	switch {
	case !utf8.Valid(body):
		return nil, badBody("not valid UTF-8")
	case bytes.HasPrefix(body, []byte("\ufeff")):
		return nil, badBody("begins with a byte order mark; a JSON object is allowed")
	case len(bytes.TrimLeft(body, blanks)) == 0:
		return nil, badBody("empty; a JSON object is needed")
	}
	p := &parser{dec: new(jsontext.Decoder)}
	p.read(body)
	return p, nil
}

const blanks = " \t\r\n"

// read makes the parser begin with a body.
func (p *parser) read(body []byte) {
	p.body = body
	// Unpaired surrogate escapes count as invalid UTF-8 for the library; raw
	// bytes have been checked before.
	p.buf = *bytes.NewBuffer(body)
	p.dec.Reset(&p.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// finish refuses anything after the top-level value.
func (p *parser) finish() error {
	rest := bytes.TrimLeft(p.body[p.dec.InputOffset():], blanks)
	if len(rest) > 0 {
		return badBody("%d bytes follow the JSON object", len(rest))
	}
	return nil
}

// fail is a 400 that names the place.
func (p *parser) fail(format string, args ...any) error {
	if len(p.path) > 0 {
		format = strings.ReplaceAll(p.place(), "%", "%%") + ": " + format
	}
	return badBody(format, args...)
}

func (p *parser) push(name string) { p.path = append(p.path, step{name, noIndex}) }
func (p *parser) pop()             { p.path = p.path[:len(p.path)-1] }

// at notes the element of the array that the path ends in.
func (p *parser) at(i int) { p.path[len(p.path)-1].index = i }

func (p *parser) place() string {
	var b strings.Builder
	for i, s := range p.path {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.name)
		if s.index != noIndex {
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		}
	}
	return b.String()
}

// syntax turns the library's error into ours.
func (p *parser) syntax(err error) error { return badBody("%v", err) }

// object calls member for every member of the object that comes next. member
// must consume the value.
func (p *parser) object(member func(key []byte) error) error {
	if kind := p.dec.PeekKind(); kind != '{' {
		return p.wrongKind("an object", kind)
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	for p.dec.PeekKind() == '"' {
		quoted, err := p.dec.ReadValue()
		if err != nil {
			return p.syntax(err)
		}
		if err := member(unquoteKey(quoted)); err != nil {
			return err
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	return nil
}

// array calls element for every element of the array that comes next.
func (p *parser) array(element func(i int) error) error {
	if kind := p.dec.PeekKind(); kind != '[' {
		return p.wrongKind("an array", kind)
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	for i := 0; ; i++ {
		if kind := p.dec.PeekKind(); kind == ']' || kind == 0 {
			break
		}
		if i == MaxElements {
			return p.fail("more than %d elements in one request", MaxElements)
		}
		if err := element(i); err != nil {
			return err
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	return nil
}

// unquoteKey views a key without its quotes; escaped keys are rare and copied.
func unquoteKey(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	// A mangled surrogate cannot equal a known key, so its error does not matter.
	key, _ := jsontext.AppendUnquote(nil, quoted)
	return key
}

func (p *parser) wrongKind(want string, kind jsontext.Kind) error {
	if kind == 0 || kind == ']' || kind == '}' {
		// Let the library say what is wrong with the bytes.
		if _, err := p.dec.ReadToken(); err != nil {
			return p.syntax(err)
		}
	}
	return p.fail("%s is allowed here, got %s", want, kindName(kind))
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "something unreadable"
}

// raw takes the next value as the bytes of the body.
func (p *parser) raw() ([]byte, error) {
	v, err := p.dec.ReadValue()
	if err != nil {
		return nil, p.syntax(err)
	}
	end := p.dec.InputOffset()
	value := p.body[end-int64(len(v)) : end : end]
	if tooDeep(value) {
		return nil, p.fail("nested deeper than %d levels", MaxDepth)
	}
	return value, nil
}

// skip passes over an unknown member.
func (p *parser) skip() error {
	_, err := p.raw()
	return err
}

// quoted takes the next value as a string still in quotes; null gives nil.
func (p *parser) quoted() ([]byte, error) {
	switch kind := p.dec.PeekKind(); kind {
	case 'n':
		return nil, p.skip()
	case '"':
		return p.raw()
	default:
		return nil, p.wrongKind("a string", kind)
	}
}

// verbatim is the text of a quoted string without escapes. Only such a string may
// be compared as it stands: `a\nb` in the body is not the name `a\nb`.
func verbatim(quoted []byte) (inner []byte, ok bool) {
	inner = quoted[1 : len(quoted)-1]
	return inner, bytes.IndexByte(inner, '\\') < 0
}

// freeText takes the next value as prose that is only stored: what PostgreSQL
// cannot hold is replaced instead of refused. previous is as in name.
func (p *parser) freeText(previous string) (string, error) {
	quoted, err := p.quoted()
	if quoted == nil {
		return "", err
	}
	if inner, ok := verbatim(quoted); ok {
		return shared(inner, previous), nil
	}
	s, _ := jsontext.AppendUnquote(nil, quoted) // its error says that a replacement was made
	return strings.ReplaceAll(string(s), "\x00", "\uFFFD"), nil
}

// name takes the next value as a name of that kind; null gives "". It shares the
// memory of previous, a name of the same kind, when they are equal: requests
// repeat most of their names.
func (p *parser) name(kind, previous string) (string, error) {
	quoted, err := p.quoted()
	if quoted == nil {
		return "", err
	}
	var s string
	if inner, ok := verbatim(quoted); ok {
		if s = shared(inner, previous); s == previous {
			return s, nil // checked when it came first
		}
	} else {
		unquoted, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return "", p.fail("holds an unpaired surrogate")
		}
		s = string(unquoted)
	}
	if fault := nameFault(kind, s); fault != "" {
		return "", p.fail("%s", fault)
	}
	return s, nil
}

func shared(text []byte, previous string) string {
	if string(text) == previous {
		return previous
	}
	return string(text)
}

// member reads a name under its key, which is also its kind.
func (p *parser) member(seen *uint, bit uint, kind, previous string) (string, error) {
	if err := p.once(seen, bit, kind); err != nil {
		return "", err
	}
	p.push(kind)
	defer p.pop()
	return p.name(kind, previous)
}

// once refuses a known key that has been seen.
func (p *parser) once(seen *uint, bit uint, key string) error {
	if *seen&(1<<bit) != 0 {
		return p.fail("key %q is given twice", key)
	}
	*seen |= 1 << bit
	return nil
}

// tooDeep looks at length and number of brackets first: few cannot nest deeply.
func tooDeep(value []byte) bool {
	if len(value) <= MaxDepth {
		return false
	}
	if bytes.Count(value, []byte{'['})+bytes.Count(value, []byte{'{'}) <= MaxDepth {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > MaxDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}
