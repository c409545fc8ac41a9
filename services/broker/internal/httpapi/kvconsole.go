package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// kvNamespaces handles GET /api/v1/resources/kv/namespaces.
func (a *API) kvNamespaces(c echo.Context) error {
	if err := noQuery(c); err != nil {
		return err
	}
	list, err := a.deps.Keys.Namespaces(c.Request().Context(), a.tenant(c))
	if err != nil {
		return err
	}
	body := append([]byte(`{"namespaces":`), list...)
	return respond(c, http.StatusOK, append(body, '}'))
}

// kvList handles POST /api/v1/resources/kv/list.
func (a *API) kvList(c echo.Context) error {
	if err := noQuery(c); err != nil {
		return err
	}
	return a.withKVBody(c, func(body []byte) error {
		page, err := wire.ParseKVPage(body)
		if err != nil {
			return badKVBody(err)
		}
		doc, err := a.deps.Keys.List(c.Request().Context(), a.tenant(c), store.KVPage(page))
		if err != nil {
			return err
		}
		return respond(c, http.StatusOK, doc)
	})
}
