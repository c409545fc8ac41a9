package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// ConfigureRequest is the body of POST /api/v1/configure.
type ConfigureRequest struct {
	Queue string
	// Options is a JSON object of known options with values of the right type.
	Options json.RawMessage
	// Merge keeps what is omitted; otherwise everything is replaced.
	Merge bool
}

type optionType int

const (
	intOption optionType = iota
	boolOption
	labelOption
)

// optionTypes lists every option of a queue. Unknown keys are ignored.
func optionTypes(key string) (optionType, bool) {
	switch key {
	case "leaseTime", "retryLimit", "retryDelay", "priority", "maxSize", "ttl", "delayedProcessing",
		"windowBuffer", "minPopWaitTime", "retentionSeconds", "completedRetentionSeconds",
		"maxWaitTimeSeconds", "dedupWindowSeconds":
		return intOption, true
	case "deadLetterQueue", "dlqAfterMaxRetries", "retentionEnabled", "encryptionEnabled":
		return boolOption, true
	case KindNamespace, KindTask:
		return labelOption, true
	}
	return 0, false
}

// configureFields gathers a configure body while its members come in any order.
type configureFields struct {
	seen        map[string]bool
	queue       string
	hasQueue    bool
	merge       bool
	nested      map[string][]byte // the options object
	hasNested   bool
	top         map[string][]byte // option keys at the top level
	labelsOnTop map[string][]byte
}

// ParseConfigure reads the body of POST /api/v1/configure.
func ParseConfigure(body []byte) (ConfigureRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return ConfigureRequest{}, err
	}
	f := configureFields{
		seen: map[string]bool{}, nested: map[string][]byte{}, top: map[string][]byte{}, labelsOnTop: map[string][]byte{},
	}
	if err := p.object(func(key []byte) error { return p.configureMember(&f, string(key)) }); err != nil {
		return ConfigureRequest{}, err
	}
	if err := p.finish(); err != nil {
		return ConfigureRequest{}, err
	}
	if !f.hasQueue {
		return ConfigureRequest{}, badBody("missing field `queue`: a name is needed")
	}
	return ConfigureRequest{Queue: f.queue, Options: f.options(), Merge: f.merge}, nil
}

func (p *parser) configureMember(f *configureFields, key string) error {
	kind, isOption := optionTypes(key)
	known := isOption || key == "queue" || key == "options" || key == "mode"
	if known && f.seen[key] {
		return p.fail("key %q is given twice", key)
	}
	f.seen[key] = known
	switch {
	case key == "queue":
		return p.configureQueue(f)
	case key == "mode":
		return p.configureMode(f)
	case key == "options":
		return p.configureOptions(f)
	case isOption && kind == labelOption:
		value, err := p.option(key, kind)
		f.labelsOnTop[key] = value
		return err
	case isOption:
		value, err := p.option(key, kind)
		f.top[key] = value
		return err
	}
	return p.skip()
}

func (p *parser) configureQueue(f *configureFields) error {
	p.push("queue")
	defer p.pop()
	if kind := p.dec.PeekKind(); kind != '"' {
		return p.wrongKind("a string", kind)
	}
	f.hasQueue = true
	var err error
	f.queue, err = p.name(KindQueue)
	return err
}

// configureMode knows two words; null is as absent.
func (p *parser) configureMode(f *configureFields) error {
	value, err := p.raw()
	if err != nil {
		return err
	}
	switch string(value) {
	case "null", `"replace"`:
	case `"merge"`:
		f.merge = true
	default:
		return badRequest(`mode must be "merge" or "replace", got %s`, value)
	}
	return nil
}

func (p *parser) configureOptions(f *configureFields) error {
	p.push("options")
	defer p.pop()
	if p.dec.PeekKind() == 'n' {
		return p.skip()
	}
	f.hasNested = true
	return p.object(func(key []byte) error {
		kind, known := optionTypes(string(key))
		if !known {
			return p.skip()
		}
		if _, twice := f.nested[string(key)]; twice {
			return p.fail("key %q is given twice", key)
		}
		value, err := p.option(string(key), kind)
		f.nested[string(key)] = value
		return err
	})
}

// option reads a value of the option's type; null stands for the default.
func (p *parser) option(key string, want optionType) ([]byte, error) {
	p.push(key)
	defer p.pop()
	kind := p.dec.PeekKind()
	if kind == 'n' {
		return p.raw()
	}
	switch {
	case want == intOption && kind == '0':
		value, err := p.raw()
		if err != nil {
			return nil, err
		}
		if _, err := strconv.ParseInt(string(value), 10, 32); err != nil {
			return nil, p.fail("%s: a whole number from -2147483648 to 2147483647 is allowed", value)
		}
		return value, nil
	case want == boolOption && (kind == 't' || kind == 'f'):
		return p.raw()
	case want == labelOption && kind == '"':
		s, err := p.name(key)
		return appendString(nil, s), err
	}
	return nil, p.wrongKind([]string{"a whole number", "true or false", "a string"}[want], kind)
}

// options is the object that the procedure gets: the options object, or the
// option keys of the top level when there is none; labels of the top level join
// when they are not empty and not given inside.
func (f *configureFields) options() json.RawMessage {
	from := f.top
	if f.hasNested {
		from = f.nested
	}
	for label, value := range f.labelsOnTop {
		if _, given := from[label]; given {
			continue
		}
		if empty := bytes.Equal(value, []byte("null")) || bytes.Equal(value, []byte(`""`)); !empty || !f.hasNested {
			from[label] = value
		}
	}
	out := []byte{'{'}
	for key, value := range from {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, key...)
		out = append(out, `":`...)
		out = append(out, value...)
	}
	return append(out, '}')
}
