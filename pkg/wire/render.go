package wire

import (
	"encoding/hex"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// appendString renders a JSON string. Its input has been checked on the way in,
// or comes from the database, which holds only valid UTF-8; anything else is
// rendered with replacement characters.
func appendString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only tells of a replacement
	return dst
}

// appendUUID renders a quoted UUID without an intermediate string.
func appendUUID(dst []byte, id uuid.UUID) []byte {
	dst = append(dst, '"')
	dst = hex.AppendEncode(dst, id[0:4])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, id[4:6])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, id[6:8])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, id[8:10])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, id[10:16])
	return append(dst, '"')
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
