package wire

import "encoding/json"

// ParseOperations finds the operations in the body of POST /api/v1/kv or POST
// /api/v1/timers: an array, or an object with one under "operations", whose other
// members do not matter. The result is a part of body; what its elements are, the
// caller finds out.
func ParseOperations(body []byte) (json.RawMessage, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	var ops json.RawMessage
	if p.dec.PeekKind() == '[' {
		ops, err = p.raw()
	} else {
		ops, err = p.operations()
	}
	if err != nil {
		return nil, err
	}
	return ops, p.finish()
}

// operations reads the object around an array of operations.
func (p *parser) operations() (ops json.RawMessage, err error) {
	var seen uint
	err = p.object(func(key []byte) error {
		if string(key) != "operations" {
			return p.skip()
		}
		if err := p.once(&seen, bitOperations, "operations"); err != nil {
			return err
		}
		p.push("operations")
		defer p.pop()
		if kind := p.dec.PeekKind(); kind != '[' {
			return p.wrongKind("an array", kind)
		}
		ops, err = p.raw()
		return err
	})
	if err == nil && ops == nil {
		err = badBody("missing field `operations`: an array of operations is needed")
	}
	return ops, err
}
