package httpapi_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/go-yaml"
	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// descriptionText is what brokers serve.
func descriptionText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	return string(text)
}

// described is the description, parsed.
func described(t *testing.T) (libopenapi.Document, *v3.Document) {
	t.Helper()
	doc, err := libopenapi.NewDocument([]byte(descriptionText(t)))
	require.NoError(t, err)
	model, err := doc.BuildV3Model()
	require.NoError(t, err)
	return doc, &model.Model
}

// operation is one operation of the description, with those of its parameters that it
// shares with the others of its path.
type operation struct {
	*v3.Operation
	method, path string
	parameters   []*v3.Parameter
}

func (o operation) String() string { return o.method + " " + o.path }

func operations(doc *v3.Document) []operation {
	var out []operation
	for path, item := range doc.Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			out = append(out, operation{
				Operation: op, method: strings.ToUpper(method), path: path, parameters: slices.Concat(item.Parameters, op.Parameters),
			})
		}
	}
	return out
}

// access is the class of access that an operation names.
func (o operation) access() string {
	node := o.Extensions.GetOrZero("x-queen-access")
	if node == nil {
		return ""
	}
	return node.Value
}

// route is the path of an operation as the router writes it.
func (o operation) route() string {
	path := o.path
	for _, p := range o.parameters {
		if p.In != "path" {
			continue
		}
		if rest := p.Extensions.GetOrZero("x-queen-rest-of-path"); rest != nil && rest.Value == "true" {
			before, _, _ := strings.Cut(path, "{"+p.Name+"}")
			return before + "*" // what follows a name with slashes is the handler's affair
		}
		path = strings.ReplaceAll(path, "{"+p.Name+"}", ":"+p.Name)
	}
	return path
}

func TestDescriptionIsServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res, body := b.call("GET", "/openapi.yaml", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "application/yaml", res.Header.Get("Content-Type"))
	require.Equal(t, descriptionText(t), body)
}

func TestDescriptionIsAnOpenAPIDocument(t *testing.T) {
	t.Parallel()
	doc, _ := described(t)
	require.Equal(t, "3.1.0", doc.GetVersion())
	_, problems := schema_validation.ValidateOpenAPIDocument(doc)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Message, p.Reason)
		for _, s := range p.SchemaValidationErrors {
			t.Errorf("at %s (line %d): %s", s.FieldPath, s.Line, s.Reason)
		}
	}
}

// TestDescriptionNamesTheRoutesOfTheRouter compares both ways, with the classes of
// access.
func TestDescriptionNamesTheRoutesOfTheRouter(t *testing.T) {
	t.Parallel()
	_, doc := described(t)
	api, err := httpapi.New(httpapi.Config{MaxBodyBytes: 1, MaxInflightBytes: 1}, httpapi.Deps{Meter: noop.Meter{}})
	require.NoError(t, err)
	var routed, named []string
	for _, r := range api.Routes() {
		routed = append(routed, fmt.Sprintf("%s %s (%s)", r.Method, r.Path, r.Access))
	}
	for _, o := range operations(doc) {
		named = append(named, fmt.Sprintf("%s %s (%s)", o.method, o.route(), o.access()))
	}
	slices.Sort(routed)
	slices.Sort(named)
	require.Equal(t, routed, named)
}

// TestDescriptionIsComplete checks what no general rule asks for.
func TestDescriptionIsComplete(t *testing.T) {
	t.Parallel()
	_, doc := described(t)
	var tags []string
	for _, tag := range doc.Tags {
		require.NotEmpty(t, tag.Description, tag.Name)
		tags = append(tags, tag.Name)
	}
	ids, used := map[string]string{}, map[string]bool{}
	for _, o := range operations(doc) {
		require.NotEmpty(t, o.OperationId, o)
		require.Empty(t, ids[o.OperationId], "%s: the name of another operation", o)
		ids[o.OperationId] = o.String()
		require.NotEmpty(t, o.Summary, o)
		require.False(t, strings.HasSuffix(o.Summary, "."), "%s: a summary is no sentence", o)
		require.Len(t, o.Tags, 1, o)
		require.Contains(t, tags, o.Tags[0], o)
		used[o.Tags[0]] = true
		o.requireParameters(t)
		o.requireResponses(t)
	}
	require.Len(t, used, len(tags), "a tag without operations")
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

func (o operation) requireParameters(t *testing.T) {
	t.Helper()
	var inPath, declared []string
	for _, m := range placeholder.FindAllStringSubmatch(o.path, -1) {
		inPath = append(inPath, m[1])
	}
	for _, p := range o.parameters {
		require.NotEmpty(t, p.Description, "%s: parameter %s", o, p.Name)
		require.NotNil(t, p.Schema, "%s: parameter %s", o, p.Name)
		if p.In == "path" {
			declared = append(declared, p.Name)
		}
	}
	require.ElementsMatch(t, inPath, declared, o)
}

// requireResponses checks that whatever carries a body says what it looks like, and
// that a request that reads one may be too large, too slow or too much.
func (o operation) requireResponses(t *testing.T) {
	t.Helper()
	codes := map[string]bool{}
	for code, response := range o.Responses.Codes.FromOldest() {
		codes[code] = true
		require.NotEmpty(t, response.Description, "%s: %s", o, code)
		if code == "204" {
			require.Zero(t, orderedmap.Len(response.Content), o)
			continue
		}
		require.Equal(t, 1, orderedmap.Len(response.Content), "%s: %s", o, code)
		require.NotNil(t, response.Content.First().Value().Schema, "%s: %s", o, code)
	}
	if o.RequestBody == nil {
		return
	}
	for _, code := range []string{"400", "408", "413", "429", "500"} {
		require.True(t, codes[code], "%s: %s is missing", o, code)
	}
}

func TestDescriptionUsesWhatItDefines(t *testing.T) {
	t.Parallel()
	_, doc := described(t)
	text := descriptionText(t)
	require.Empty(t, regexp.MustCompile(`[:-] [&*]\w`).FindAllString(text, -1), "not every reader knows anchors")
	var names []string
	for name := range doc.Components.Schemas.KeysFromOldest() {
		names = append(names, "schemas/"+name)
	}
	for name := range doc.Components.Responses.KeysFromOldest() {
		names = append(names, "responses/"+name)
	}
	for name := range doc.Components.Parameters.KeysFromOldest() {
		names = append(names, "parameters/"+name)
	}
	for _, name := range names {
		require.Contains(t, text, "'#/components/"+name+"'")
	}
}

// TestDescriptionHasNoStrayKeys looks for what becomes of a comma in a text that is not
// quoted: a key that no rule knows.
func TestDescriptionHasNoStrayKeys(t *testing.T) {
	t.Parallel()
	doc, _ := described(t)
	requireKeysAreWords(t, doc.GetSpecInfo().RootNode)
}

func requireKeysAreWords(t *testing.T, node *yaml.Node) {
	t.Helper()
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			require.NotContains(t, child.Value, " ", "line %d", child.Line)
		}
		requireKeysAreWords(t, child)
	}
}

func TestExamplesOfTheDescriptionAreValid(t *testing.T) {
	t.Parallel()
	_, doc := described(t)
	check, n := schema_validation.NewSchemaValidator(), 0
	for _, o := range operations(doc) {
		if o.RequestBody == nil {
			continue
		}
		for _, content := range o.RequestBody.Content.FromOldest() {
			if content.Example == nil {
				continue
			}
			n++
			var example any
			require.NoError(t, content.Example.Decode(&example), o)
			_, problems := check.ValidateSchemaObject(content.Schema.Schema(), example)
			require.Empty(t, problems, o)
		}
	}
	require.NotZero(t, n)
}
