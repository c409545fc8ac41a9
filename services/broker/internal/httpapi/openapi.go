package httpapi

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

//go:embed openapi.yaml
var description []byte

// yamlType is the media type of RFC 9512.
const yamlType = "application/yaml"

// openapi handles GET /openapi.yaml: the description of every route.
func (a *API) openapi(c echo.Context) error {
	expectWrite(c, len(description))
	return respondAs(c, http.StatusOK, yamlType, description)
}
