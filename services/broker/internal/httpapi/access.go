package httpapi

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// Access is who may use a route where requests are authenticated. The classes are
// no ladder: whoever may only write reads nothing, and the reverse.
type Access int

// The classes of access, with the roles that pass.
const (
	ReadWrite Access = iota // read-write, admin; also for what is not known
	Public                  // everybody, with or without a token
	ReadOnly                // read-only, read-write, admin
	WriteOnly               // write-only, read-write, admin
	Admin                   // admin
)

// String is the class as documents write it.
func (a Access) String() string {
	return [...]string{"read-write", "public", "read-only", "write-only", "admin"}[a]
}

// Route is one method of one path, in the notation of the router.
type Route struct {
	Method, Path string
	Access       Access
}

// Routes are the routes of the surface, in the order of their registration. HEAD,
// which stands beside every GET that changes nothing, is left out.
func (a *API) Routes() []Route { return append([]Route(nil), a.routes...) }

// route adds a route.
func (a *API) route(method, path string, access Access, h echo.HandlerFunc) {
	a.echo.Add(method, path, h)
	a.routes = append(a.routes, Route{method, path, access})
}

// read adds a route that changes nothing, so that HEAD is harmless.
func (a *API) read(path string, access Access, h echo.HandlerFunc) {
	a.route(http.MethodGet, path, access, h)
	a.echo.HEAD(path, h)
}

// strays tells whether the last name in the path has swallowed slashes: the router
// gives such a name all the rest of the path when no route goes on below it.
func strays(c echo.Context) bool {
	route := c.Path()
	return strings.HasPrefix(route[strings.LastIndexByte(route, '/')+1:], ":") &&
		strings.Count(c.Request().URL.RawPath, "/") != strings.Count(route, "/")
}
