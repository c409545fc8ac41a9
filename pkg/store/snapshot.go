package store

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// rawKey marks a snapshot that jsonb could not hold as it was.
const rawKey = "$raw"

// maxExponent is the largest power of ten that a snapshot may spell out. jsonb
// takes far larger ones and prints all their zeros: ten bytes become 131 kB of text.
const maxExponent = 64

// DecodeSnapshot gives back the bytes of a payload that was stored as
// {"$raw": base64}. Any other snapshot is returned as it is.
func DecodeSnapshot(snapshot []byte) []byte {
	if !isRawForm(snapshot) {
		return snapshot
	}
	var form map[string]string
	if json.Unmarshal(snapshot, &form) != nil {
		return snapshot
	}
	raw, err := base64.StdEncoding.DecodeString(form[rawKey])
	if err != nil {
		return snapshot
	}
	return raw
}

// AsJSON is a payload as it may stand in an answer: as it is, or {"$raw": base64} when
// it is no JSON. Pushed payloads have been read as JSON, those of timers by nobody: one
// that went out as it is would spoil every answer with it, or pass for a part of one.
func AsJSON(payload []byte) []byte {
	if json.Valid(payload) {
		return payload
	}
	return rawForm(payload)
}

func rawForm(payload []byte) []byte {
	out := []byte(`{"` + rawKey + `":"`)
	out = base64.StdEncoding.AppendEncode(out, payload)
	return append(out, `"}`...)
}

// isRawForm tells whether a payload is an object with the marker as its only key,
// however that is spelled. The first key decides for nearly all payloads.
func isRawForm(payload []byte) bool {
	d := json.NewDecoder(bytes.NewReader(payload))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	if key, err := d.Token(); err != nil || key != rawKey {
		return false
	}
	var object map[string]json.RawMessage
	return json.Unmarshal(payload, &object) == nil && len(object) == 1
}

// fitsJSONB looks for what jsonb refuses or blows up: a NUL or half a surrogate
// pair written as an escape, invalid UTF-8, exponents. It saves the server an
// error, no more: limits of nesting and size are left to it. Payloads are valid
// JSON, so a backslash is only met inside a string.
func fitsJSONB(payload []byte) bool {
	if !utf8.Valid(payload) {
		return false
	}
	inString := false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case c == '"':
			inString = !inString
		case c == '\\':
			skip, ok := escape(payload[i:])
			if !ok {
				return false
			}
			i += skip - 1
		case !inString && (c == 'e' || c == 'E') && !modestExponent(payload[i+1:]):
			return false
		}
	}
	return true
}

// escape measures the escape sequence that s starts with, a surrogate pair as one.
func escape(s []byte) (length int, ok bool) {
	if len(s) < 2 || s[1] != 'u' {
		return 2, len(s) >= 2
	}
	r, ok := codeUnit(s)
	switch {
	case !ok || r == 0:
		return 0, false
	case !utf16.IsSurrogate(r):
		return 6, true
	}
	low, ok := codeUnit(s[6:])
	return 12, ok && utf16.DecodeRune(r, low) != utf8.RuneError
}

// codeUnit reads \uXXXX.
func codeUnit(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	return rune(n), err == nil
}

// modestExponent reads the digits behind an e. The e of true and false has none.
func modestExponent(s []byte) bool {
	s = bytes.TrimLeft(s, "+-0")
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
		if n > maxExponent {
			return false
		}
	}
	return true
}
