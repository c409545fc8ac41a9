package wire

import (
	"math"
	"strconv"
)

// DefaultExtendSeconds is how far a lease is extended when the body says nothing.
const DefaultExtendSeconds = 60

// ParseExtend reads the body of a lease extension. It never fails: whatever does
// not say a number of seconds means the default. A fraction is cut off, and what
// is out of range becomes the nearest bound.
func ParseExtend(body []byte) int {
	p, err := newParser(body)
	if err != nil {
		return DefaultExtendSeconds
	}
	seconds := DefaultExtendSeconds
	err = p.object(func(key []byte) error {
		if string(key) != "seconds" || p.dec.PeekKind() != '0' {
			return p.skip()
		}
		value, err := p.raw()
		if err != nil {
			return err
		}
		sent, _ := strconv.ParseFloat(string(value), 64) // infinite when it is out of range
		seconds = int(max(1, min(sent, math.MaxInt32)))
		return nil
	})
	if err != nil || p.finish() != nil {
		return DefaultExtendSeconds
	}
	return seconds
}

// ExtendResult is the outcome of a lease extension.
type ExtendResult struct {
	LeaseID   string
	Renewed   int
	ExpiresAt string // earliest expiry among the renewed, "" without any
}

// AppendExtendResult renders the answer of a lease extension.
func AppendExtendResult(dst []byte, r ExtendResult) []byte {
	dst = append(dst, `{"leaseId":`...)
	dst = appendString(dst, r.LeaseID)
	dst = append(dst, `,"success":`...)
	dst = appendBool(dst, r.Renewed > 0)
	dst = append(dst, `,"renewed":`...)
	dst = strconv.AppendInt(dst, int64(r.Renewed), 10)
	for _, key := range []string{"newExpiresAt", "expiresAt", "lease_expires_at"} {
		dst = append(dst, `,"`...)
		dst = append(dst, key...)
		dst = append(dst, `":`...)
		dst = appendOptional(dst, r.ExpiresAt)
	}
	return append(dst, '}')
}
