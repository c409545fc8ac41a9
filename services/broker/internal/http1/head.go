package http1

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// head is the head of a request. It is kept for the next one of its connection,
// which mostly has the same: what is equal is not parsed again.
type head struct {
	method string
	target string
	url    url.URL
	host   string
	header http.Header
	fields []byte // as they came, all but Content-Length
	length int64  // of the body
}

const (
	maxBody    = 256 << 10
	httpOneOne = " HTTP/1.1\r\n"
	endOfHead  = "\r\n\r\n"
)

// parse reads a head from the beginning of text. It returns its length, or 0 for
// anything that is not plain.
func (h *head) parse(text []byte) int {
	end := bytes.Index(text, []byte(endOfHead))
	if end < 0 {
		return 0
	}
	end += len(endOfHead)
	line := bytes.IndexByte(text, '\n') + 1
	if !h.requestLine(text[:line]) || !h.readFields(text[line:end-2]) {
		return 0
	}
	return end
}

func (h *head) requestLine(line []byte) bool {
	line, ok := bytes.CutSuffix(line, []byte(httpOneOne))
	if !ok {
		return false
	}
	method, target, ok := bytes.Cut(line, []byte(" "))
	if !ok || !h.setMethod(method) {
		return false
	}
	return string(target) == h.target || h.setTarget(target)
}

func (h *head) setMethod(method []byte) bool {
	for _, known := range [...]string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut} {
		if string(method) == known {
			h.method = known
			return true
		}
	}
	return false
}

func (h *head) setTarget(target []byte) bool {
	h.target = ""
	if len(target) == 0 || target[0] != '/' || bytes.HasPrefix(target, []byte("//")) {
		return false
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	u, err := url.ParseRequestURI(string(target))
	if err != nil {
		return false
	}
	h.target, h.url = string(target), *u
	return true
}

// readFields reads the lines of the fields, each with its end. Lines that are those
// of the request before have been found plain then.
func (h *head) readFields(lines []byte) bool {
	h.length = -1
	known := h.fields
	for rest := lines; len(rest) > 0; {
		line := rest[:bytes.IndexByte(rest, '\n')+1]
		rest = rest[len(line):]
		if isLength(line) {
			if !h.setLength(line) {
				return false
			}
			continue
		}
		if !bytes.HasPrefix(known, line) {
			return h.rebuild(lines)
		}
		known = known[len(line):]
	}
	if len(known) > 0 || len(h.fields) == 0 {
		return h.rebuild(lines)
	}
	return h.plainBody()
}

// plainBody says whether the body is one that is served here; without a length there
// is none.
func (h *head) plainBody() bool {
	if h.length < 0 {
		h.length = 0
	}
	return h.length <= maxBody
}

const lengthField = "content-length:"

func isLength(line []byte) bool {
	return len(line) > len(lengthField) && (line[0]|0x20) == 'c' && bytes.EqualFold(line[:len(lengthField)], []byte(lengthField))
}

// setLength takes digits only, and one length only.
func (h *head) setLength(line []byte) bool {
	digits := bytes.Trim(line[len(lengthField):len(line)-1], " \t")
	digits, ok := bytes.CutSuffix(digits, []byte("\r"))
	digits = bytes.Trim(digits, " \t")
	if !ok || h.length >= 0 || len(digits) == 0 || len(digits) > 9 {
		return false
	}
	h.length = 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
		h.length = 10*h.length + int64(c-'0')
	}
	return true
}

// rebuild reads all fields anew.
func (h *head) rebuild(lines []byte) bool {
	h.length, h.host, h.fields = -1, "", h.fields[:0]
	h.header = make(http.Header, 8) // the last one may still be in somebody's hands
	for rest := lines; len(rest) > 0; {
		line := rest[:bytes.IndexByte(rest, '\n')+1]
		rest = rest[len(line):]
		switch {
		case isLength(line):
			if !h.setLength(line) {
				return h.reject()
			}
		case !h.addField(line):
			return h.reject()
		default:
			h.fields = append(h.fields, line...)
		}
	}
	if h.host == "" {
		return h.reject()
	}
	return h.plainBody()
}

func (h *head) reject() bool {
	h.fields = h.fields[:0]
	return false
}

func (h *head) addField(line []byte) bool {
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return false
	}
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || !isToken(name) || !isText(value) {
		return false
	}
	key := textproto.CanonicalMIMEHeaderKey(string(name))
	text := strings.Trim(string(value), " \t")
	switch key {
	case "Host":
		if h.host != "" || !isHost(text) {
			return false
		}
		h.host = text // net/http takes it out of the fields
		return true
	case "Connection":
		if !strings.EqualFold(text, "keep-alive") {
			return false
		}
	case "Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Http2-Settings", "Proxy-Connection", "Content-Length":
		return false
	}
	h.header[key] = append(h.header[key], text)
	return true
}

func isToken(name []byte) bool {
	for _, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return len(name) > 0
}

func isText(value []byte) bool {
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

func isHost(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return text != ""
}
