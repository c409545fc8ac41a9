package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/wire"
)

// notify handles POST /internal/api/notify: somebody else has written messages.
func (a *API) notify(c echo.Context) error {
	return a.withBody(c, func(body []byte) error {
		n, err := wire.ParseNotify(body)
		if err != nil {
			return err
		}
		a.deps.Notify(a.tenant(c), n.Queue, n.Partition)
		return respondValue(c, http.StatusOK, struct {
			Status string `json:"status"`
		}{"ok"})
	})
}

// meshStats handles GET /internal/api/shared-state/stats and its alias.
func (a *API) meshStats(c echo.Context) error {
	return respondValue(c, http.StatusOK, a.deps.MeshStats())
}
