package wire_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestOperationsAreFoundInBothForms(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		` [ {"op":"get"} ] `:      `[ {"op":"get"} ]`,
		`[]`:                      `[]`,
		`{"operations":[1, "x"]}`: `[1, "x"]`,
		`{"a":{"operations":1},"oper\u0061tions": []}`:                  `[]`,
		`[` + strings.Repeat(`[`, 511) + strings.Repeat(`]`, 511) + `]`: `[` + strings.Repeat(`[`, 511) + strings.Repeat(`]`, 511) + `]`,
	} {
		ops, err := wire.ParseOperations([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, string(ops))
	}
}

func TestBodiesWithoutOperationsAreRefused(t *testing.T) {
	t.Parallel()
	for body, text := range map[string]string{
		``:                                  "bad body: empty",
		"\xff":                              "bad body: not valid UTF-8",
		`7`:                                 "bad body: an object is allowed here, got a number",
		`{}`:                                "bad body: missing field `operations`",
		`{"operations":null}`:               "bad body: operations: an array is allowed here, got null",
		`{"operations":{}}`:                 "bad body: operations: an array is allowed here, got an object",
		`{"operations":[],"operations":[]}`: `bad body: key "operations" is given twice`,
		`[] []`:                             "bad body: 2 bytes follow",
		`[1,]`:                              "bad body: ",
		`{"operations":[`:                   "bad body: ",
		strings.Repeat(`[`, 513) + strings.Repeat(`]`, 513): "bad body: nested deeper than 512 levels",
	} {
		_, err := wire.ParseOperations([]byte(body))
		var bad *wire.Error
		require.ErrorAs(t, err, &bad, body)
		require.Equal(t, http.StatusBadRequest, bad.Status)
		require.Contains(t, bad.Text, text, body)
	}
}
