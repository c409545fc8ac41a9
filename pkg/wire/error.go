package wire

import (
	"fmt"
	"net/http"
	"strings"
)

// Error is a request that cannot be served, with the status and the text that
// the client gets.
type Error struct {
	Status int
	Text   string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// badBody is a 400 for a body, in the words the sheet asks for.
func badBody(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &Error{http.StatusBadRequest, "bad body: " + strings.TrimPrefix(text, "jsontext: ")}
}

// clip keeps what a client sent short enough for an error text.
func clip[T string | []byte](sent T) string {
	const enough = 80
	if len(sent) <= enough {
		return string(sent)
	}
	return strings.ToValidUTF8(string(sent[:enough]), "") + "…"
}

func badRequest(format string, args ...any) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}
