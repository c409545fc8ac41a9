package wire

import (
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// appendString renders a JSON string. Its input has been checked on the way in,
// or comes from the database, which holds only valid UTF-8; anything else is
// rendered with replacement characters.
func appendString(dst []byte, s string) []byte {
	if !standsAsItIs(s) {
		dst, _ = jsontext.AppendQuote(dst, s) // the error only tells of a replacement
		return dst
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// standsAsItIs says that a string needs no escapes and no check: printable ASCII.
func standsAsItIs(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// appendUUID renders a quoted UUID without an intermediate string.
func appendUUID(dst []byte, id uuid.UUID) []byte {
	const digits = "0123456789abcdef"
	const blank = `"00000000-0000-0000-0000-000000000000"`
	at := len(dst) + 1
	dst = append(dst, blank...)
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			at++
		}
		dst[at], dst[at+1] = digits[b>>4], digits[b&15]
		at += 2
	}
	return dst
}

// appendOptional renders "" as null.
func appendOptional(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// AppendError renders the generic error envelope.
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, `{"error":`...)
	return append(appendString(dst, text), '}')
}
