package httpapi

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/wire"
)

// Bounds of the pages that management routes answer.
const (
	pageLimitMax  = 1000
	pageOffsetMax = 1<<31 - 1
)

// params are the query parameters of a management route. They arrive as text; an
// empty one counts as absent, and one that no handler asks for is ignored. What is
// wrong with the first bad one is kept in err, so that a handler looks once.
type params struct {
	values url.Values
	err    error
}

// parameters reads the query string of a request.
func parameters(c echo.Context) *params {
	values, err := query(c)
	return &params{values: values, err: err}
}

// reject keeps the first thing that is wrong.
func (p *params) reject(param, format string, args ...any) {
	if p.err == nil {
		p.err = badRequest(param + " " + fmt.Sprintf(format, args...))
	}
}

// text is a parameter as it was sent, "" when it is absent.
func (p *params) text(param string) string { return p.values.Get(param) }

// name is a parameter that holds a name of a kind.
func (p *params) name(param, kind string) string {
	value := p.text(param)
	if err := wire.CheckName(kind, value); err != nil && p.err == nil {
		p.err = err
	}
	return value
}

// number is a whole number from lowest to highest.
func (p *params) number(param string, fallback, lowest, highest int) int {
	text := strings.TrimSpace(p.text(param))
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > highest {
		p.reject(param, "must be a whole number from %d to %d", lowest, highest)
		return fallback
	}
	return n
}

// after is the mark behind which a page begins, which an offset would contradict.
func (p *params) after(offset int) string {
	mark := p.text("after")
	if fault := textFault(mark); fault != "" {
		p.reject("after", "%s", fault)
	}
	if mark != "" && offset > 0 {
		p.reject("after", "and offset exclude each other")
	}
	return mark
}

// require says that a parameter is missing.
func (p *params) require(param string) { p.reject(param, "is required") }

// page is the size of a page and the number of rows before it.
func (p *params) page(limit int) (size, offset int) {
	return p.number("limit", limit, 1, pageLimitMax), p.number("offset", 0, 0, pageOffsetMax)
}

// flag is a truth value, in the spellings that clients use.
func (p *params) flag(param string, fallback bool) bool {
	switch strings.ToLower(strings.TrimSpace(p.text(param))) {
	case "":
	case "true", "1", "yes":
		return true
	case "false", "0", "no":
		return false
	default:
		p.reject(param, "must be true or false, 1 or 0, yes or no")
	}
	return fallback
}

// choice is one of a few words; the first one is the fallback.
func (p *params) choice(param string, words ...string) string {
	text := strings.TrimSpace(p.text(param))
	if text == "" {
		return words[0]
	}
	for _, word := range words {
		if text == word {
			return word
		}
	}
	p.reject(param, "must be one of %s", strings.TrimPrefix(strings.Join(words, ", "), ", ")) // the fallback may be none
	return words[0]
}

// layouts are the spellings of instants that clients use. One without a zone is UTC.
var layouts = [...]string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateOnly}

// instant is a point in time, zero when it is absent.
func (p *params) instant(param string) time.Time {
	// A plus sign that was not escaped arrives as a blank.
	text := strings.ReplaceAll(strings.TrimSpace(p.text(param)), " ", "+")
	if text == "" {
		return time.Time{}
	}
	t, ok := parseInstant(text)
	if !ok {
		p.reject(param, instantFault)
	}
	return t
}

const instantFault = "must be an RFC 3339 instant"

// parseInstant reads an instant, in the spellings that clients use.
func parseInstant(text string) (t time.Time, ok bool) {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}
