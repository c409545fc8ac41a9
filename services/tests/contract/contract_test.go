package contract_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/contract"
)

const description = `
openapi: 3.1.0
info: {title: Fruit, version: "1"}
paths:
  /fruit/{name}:
    parameters:
      - {name: name, in: path, required: true, schema: {type: string}}
    get:
      responses:
        "200":
          description: The fruit.
          content:
            application/json:
              schema: {$ref: '#/components/schemas/Fruit'}
        "204": {description: None.}
        "429":
          description: Too much fruit.
          headers:
            Retry-After: {required: true, schema: {type: integer}}
          content:
            application/json:
              schema: {$ref: '#/components/schemas/Error'}
  /fruit/all:
    get:
      responses:
        "200":
          description: All fruit.
          content:
            application/json:
              schema:
                type: object
                required: [fruit]
                properties:
                  fruit: {type: array, items: {$ref: '#/components/schemas/RipeFruit'}}
  /baskets/{name}/{rest}:
    delete:
      parameters:
        - {name: name, in: path, required: true, schema: {type: string}}
        - {name: rest, in: path, required: true, x-queen-rest-of-path: true, schema: {type: string}}
      responses:
        "204": {description: Gone.}
  /cellars/{name}/open:
    post:
      parameters:
        - {name: name, in: path, required: true, x-queen-rest-of-path: true, schema: {type: string}}
      responses:
        "204": {description: Open.}
components:
  schemas:
    Error:
      type: object
      required: [error]
      properties:
        error: {type: string}
    Fruit:
      type: object
      required: [id, size]
      properties:
        id: {type: string, format: uuid}
        size: {type: integer, minimum: 1}
        note: {}
    RipeFruit:
      allOf:
        - {$ref: '#/components/schemas/Fruit'}
        - type: object
          required: [ripe]
          properties:
            ripe: {type: boolean}
`

const id = `"id":"019a0000-0000-7000-8000-000000000000"`

func TestAnswersAreComparedWithTheDescription(t *testing.T) {
	t.Parallel()
	c, err := contract.Parse([]byte(description))
	require.NoError(t, err)
	json := http.Header{"Content-Type": {"application/json"}}
	allow := http.Header{"Content-Type": {"application/json"}, "Allow": {"GET"}}
	later := http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}}
	for name, tc := range map[string]struct {
		method, path string
		status       int
		header       http.Header
		body         string
		fault        string // "" for none
	}{
		"as described":                   {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":1}`, ""},
		"any value where any is allowed": {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":1,"note":{"a":[1e999999999]}}`, ""},
		"a member is missing":            {"GET", "/fruit/plum", 200, json, `{` + id + `}`, "size"},
		"a member is of another type":    {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":"1"}`, "string"},
		"a member is out of range":       {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":0}`, "minimum"},
		"a text is of another format":    {"GET", "/fruit/plum", 200, json, `{"id":"plum","size":1}`, "uuid"},
		"a member is not described":      {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":1,"colour":"blue"}`, "colour"},
		"no JSON":                        {"GET", "/fruit/plum", 200, json, `{`, "decoded"},
		"more than JSON":                 {"GET", "/fruit/plum", 200, json, `{` + id + `,"size":1}{}`, "follows"},
		"another type of content":        {"GET", "/fruit/plum", 200, http.Header{"Content-Type": {"text/html"}}, `{` + id + `,"size":1}`, "text/html"},
		"another status":                 {"GET", "/fruit/plum", 201, json, `{` + id + `,"size":1}`, "201"},
		"nothing":                        {"GET", "/fruit/plum", 204, nil, ``, ""},
		"nothing with a body":            {"GET", "/fruit/plum", 204, json, `{}`, "body"},
		"only the head":                  {"HEAD", "/fruit/plum", 200, json, ``, ""},
		"a header":                       {"GET", "/fruit/plum", 429, later, `{"error":"full"}`, ""},
		"a header is missing":            {"GET", "/fruit/plum", 429, json, `{"error":"full"}`, "Retry-After"},
		"a name that is escaped":         {"GET", "/fruit/a%2Fb", 200, json, `{` + id + `,"size":1}`, ""},
		"a literal goes before a name":   {"GET", "/fruit/all", 200, json, `{"fruit":[]}`, ""},
		"composed":                       {"GET", "/fruit/all", 200, json, `{"fruit":[{` + id + `,"size":1,"ripe":true}]}`, ""},
		"composed, a member too much":    {"GET", "/fruit/all", 200, json, `{"fruit":[{` + id + `,"size":1,"ripe":true,"colour":"blue"}]}`, "colour"},
		"composed, a member too few":     {"GET", "/fruit/all", 200, json, `{"fruit":[{` + id + `,"size":1}]}`, "ripe"},
		"the rest of the path":           {"DELETE", "/baskets/a/b/c%2Fd//e", 204, nil, ``, ""},
		"the middle of the path":         {"POST", "/cellars/a/b/open", 204, nil, ``, ""},
		"no end of the path":             {"POST", "/cellars/a/b/close", 204, nil, ``, "only 404"},
		"too little of a path":           {"DELETE", "/baskets/a", 204, nil, ``, "only 404"},
		"no such route":                  {"GET", "/bread", 404, json, `{"error":"Not Found","code":"no_such_route"}`, ""},
		"no such route, in other words":  {"GET", "/bread", 404, json, `{"error":"Not Found"}`, "only 404"},
		"a route that is not described":  {"GET", "/bread", 200, json, `{}`, "only 404"},
		"a refused method":               {"POST", "/fruit/all", 405, allow, `{"error":"method not allowed"}`, ""},
		"a refused method without help":  {"POST", "/fruit/all", 405, json, `{"error":"method not allowed"}`, "allowed ones"},
		"a described method is refused":  {"GET", "/fruit/all", 405, allow, `{"error":"method not allowed"}`, "405"},
		"a method that is not described": {"POST", "/fruit/all", 200, json, `{"fruit":[]}`, "POST"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.Verify(httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil), contract.Answer{Status: tc.status, Header: tc.header, Body: []byte(tc.body)})
			if tc.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.fault)
		})
	}
}

func TestTextsThatDescribeNothingAreRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no YAML":       "a: [",
		"no components": "openapi: 3.1.0",
		"no OpenAPI":    "components: {}",
		"a bad reference": description + `
    Bread: {$ref: '#/components/schemas/Missing'}
`,
	} {
		_, err := contract.Parse([]byte(text))
		require.ErrorContains(t, err, "parse the description of the routes", name)
	}
}
