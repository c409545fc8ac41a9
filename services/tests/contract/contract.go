package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"

	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/content"
	"github.com/pb33f/libopenapi-validator/responses"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

// What a request answers that no route takes.
const (
	noSuchRoute  = `{"error":"Not Found","code":"no_such_route"}`
	wrongMethod  = `{"error":"method not allowed"}`
	allowMissing = "a refused method is answered without the allowed ones"
)

// Contract is the description of the routes. It is safe for concurrent use.
type Contract struct {
	check responses.ResponseBodyValidator
	paths []path
}

// Parse reads the text of a description.
func Parse(text []byte) (*Contract, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse the description of the routes: %w", err)
	}
	// This one compiles all schemas ahead. Compiling is what it must not do twice at once.
	v := validator.NewValidatorFromV3Model(doc, config.WithFormatAssertions(),
		config.WithBodyDecoder("application/json", content.DecoderFunc(decodeJSON)))
	c := &Contract{check: v.GetResponseBodyValidator()}
	for template, item := range doc.Paths.PathItems.FromOldest() {
		c.paths = append(c.paths, newPath(template, item))
	}
	// '{' sorts behind every letter, so that a literal segment is found before a name.
	slices.SortFunc(c.paths, func(a, b path) int { return strings.Compare(a.template, b.template) })
	return c, nil
}

// Answer is one response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Verify compares the answer to a request with the description.
func (c *Contract) Verify(req *http.Request, a Answer) error {
	p := c.find(req.URL.EscapedPath())
	switch {
	case p == nil:
		return a.mustBe(req, http.StatusNotFound, noSuchRoute)
	case a.Status == http.StatusMethodNotAllowed && p.item.GetOperations().GetOrZero(strings.ToLower(req.Method)) == nil:
		if a.Header.Get("Allow") == "" {
			return errors.New(allowMissing)
		}
		return a.mustBe(req, http.StatusMethodNotAllowed, wrongMethod)
	case a.Status == http.StatusNoContent && len(a.Body) > 0:
		return errors.New("an answer without content has a body")
	}
	res := &http.Response{StatusCode: a.Status, Header: a.Header, Body: io.NopCloser(bytes.NewReader(a.Body))}
	if req.Method == http.MethodHead {
		res.Body = http.NoBody
	}
	_, problems := c.check.ValidateResponseBodyWithPathItem(req, res, p.item, p.template)
	var errs []error
	for _, problem := range problems {
		errs = append(errs, fmt.Errorf("%s: %s", problem.Message, problem.Reason))
		for _, s := range problem.SchemaValidationErrors {
			errs = append(errs, fmt.Errorf("at %s: %s", s.FieldPath, s.Reason))
		}
	}
	return errors.Join(errs...)
}

func (a Answer) mustBe(req *http.Request, status int, body string) error {
	if req.Method == http.MethodHead {
		body = ""
	}
	if a.Status != status || string(a.Body) != body {
		return fmt.Errorf("only %d %s is described", status, body)
	}
	return nil
}

// path is a path of the description.
type path struct {
	template string
	segments []string
	rest     int // the segment that takes all that the others leave, 0 for none
	item     *v3.PathItem
}

func newPath(template string, item *v3.PathItem) path {
	p := path{template: template, segments: strings.Split(template, "/"), item: item}
	parameters := item.Parameters
	for _, op := range item.GetOperations().FromOldest() {
		parameters = slices.Concat(parameters, op.Parameters)
	}
	for _, parameter := range parameters {
		if rest := parameter.Extensions.GetOrZero("x-queen-rest-of-path"); rest != nil && rest.Value == "true" {
			p.rest = slices.Index(p.segments, "{"+parameter.Name+"}")
		}
	}
	return p
}

// find is the path that a request goes to, nil for none.
func (c *Contract) find(escaped string) *path {
	segments := strings.Split(escaped, "/")
	for i := range c.paths {
		if c.paths[i].matches(segments) {
			return &c.paths[i]
		}
	}
	return nil
}

func (p *path) matches(segments []string) bool {
	more := len(segments) - len(p.segments)
	if more < 0 || more > 0 && p.rest == 0 {
		return false
	}
	for i, want := range p.segments {
		at := i
		if p.rest > 0 && i > p.rest {
			at += more
		}
		if want != segments[at] && !strings.HasPrefix(want, "{") {
			return false
		}
	}
	return true
}

// decodeJSON reads payloads that hold larger numbers than a machine does.
func decodeJSON(in *content.DecodeInput) (any, error) {
	d := json.NewDecoder(in.Body)
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the value")
	}
	return bounded(value), nil
}

func bounded(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			v[key] = bounded(child)
		}
	case []any:
		for i, child := range v {
			v[i] = bounded(child)
		}
	case json.Number:
		n, _ := v.Float64() // infinite when it is out of range
		return max(-math.MaxFloat64, min(n, math.MaxFloat64))
	}
	return value
}
