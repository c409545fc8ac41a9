package wire

import (
	"encoding/json"
	"slices"
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

// optionList holds options in the order they came in.
type optionList []queueOption

type queueOption struct {
	key   string
	kind  optionType
	value []byte // JSON
}

func (l optionList) has(key string) bool {
	return slices.ContainsFunc(l, func(o queueOption) bool { return o.key == key })
}

const (
	bitConfigureQueue uint = iota
	bitConfigureMode
	bitConfigureOptions
)

// configureFields gathers a configure body while its members come in any order.
type configureFields struct {
	seen      uint
	queue     string
	merge     bool
	hasNested bool
	nested    optionList // of the options object
	top       optionList // of the top level
}

// ParseConfigure reads the body of POST /api/v1/configure. The empty queue name
// is legal here, where a push refuses it.
func ParseConfigure(body []byte) (ConfigureRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return ConfigureRequest{}, err
	}
	var f configureFields
	if err := p.object(func(key []byte) error { return p.configureMember(&f, key) }); err != nil {
		return ConfigureRequest{}, err
	}
	if err := p.finish(); err != nil {
		return ConfigureRequest{}, err
	}
	if f.seen&(1<<bitConfigureQueue) == 0 {
		return ConfigureRequest{}, badBody("missing field `queue`: a name is needed")
	}
	return ConfigureRequest{Queue: f.queue, Options: f.options(), Merge: f.merge}, nil
}

func (p *parser) configureMember(f *configureFields, key []byte) error {
	switch string(key) {
	case KindQueue:
		if err := p.once(&f.seen, bitConfigureQueue, KindQueue); err != nil {
			return err
		}
		return p.configureQueue(f)
	case "mode":
		if err := p.once(&f.seen, bitConfigureMode, "mode"); err != nil {
			return err
		}
		return p.configureMode(f)
	case "options":
		if err := p.once(&f.seen, bitConfigureOptions, "options"); err != nil {
			return err
		}
		return p.configureOptions(f)
	}
	return p.optionMember(&f.top, key)
}

func (p *parser) configureQueue(f *configureFields) error {
	p.push(KindQueue)
	defer p.pop()
	if kind := p.dec.PeekKind(); kind != '"' {
		return p.wrongKind("a string", kind)
	}
	var err error
	f.queue, err = p.name(KindQueue, "")
	return err
}

// configureMode knows two words; null is as absent.
func (p *parser) configureMode(f *configureFields) error {
	value, err := p.raw()
	if err != nil {
		return err
	}
	word := value
	if value[0] == '"' {
		word = unquoteKey(value)
	}
	switch {
	case value[0] == 'n', value[0] == '"' && string(word) == "replace":
	case value[0] == '"' && string(word) == "merge":
		f.merge = true
	default:
		return badRequest(`mode must be "merge" or "replace", got %s`, clip(value))
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
	return p.object(func(key []byte) error { return p.optionMember(&f.nested, key) })
}

// optionMember reads an option into the list, and skips what is none.
func (p *parser) optionMember(list *optionList, key []byte) error {
	kind, known := optionTypes(string(key))
	if !known {
		return p.skip()
	}
	name := string(key)
	if list.has(name) {
		return p.fail("key %q is given twice", name)
	}
	value, err := p.option(name, kind)
	*list = append(*list, queueOption{name, kind, value})
	return err
}

// int32Range is what the columns of the numbers hold.
const int32Range = "a whole number from -2147483648 to 2147483647"

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
			return nil, p.fail("%s is allowed here, got %s", int32Range, clip(value))
		}
		return value, nil
	case want == boolOption && (kind == 't' || kind == 'f'):
		return p.raw()
	case want == labelOption && kind == '"':
		s, err := p.name(key, "")
		return appendString(nil, s), err
	}
	return nil, p.wrongKind([]string{"a whole number", "true or false", "a string"}[want], kind)
}

// options is the object that the procedure gets: the options object, or the
// option keys of the top level when there is none. Labels of the top level join an
// options object that does not name them itself, unless they are null or empty,
// which is how clients leave them out.
func (f *configureFields) options() json.RawMessage {
	list := f.top
	if f.hasNested {
		list = f.nested
		for _, o := range f.top {
			given := string(o.value) != "null" && string(o.value) != `""`
			if o.kind == labelOption && given && !f.nested.has(o.key) {
				list = append(list, o)
			}
		}
	}
	out := []byte{'{'}
	for i, o := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, o.key), ':')
		out = append(out, o.value...)
	}
	return append(out, '}')
}
