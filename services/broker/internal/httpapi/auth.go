package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
)

func (a *API) addAuthRoutes() {
	a.read("/auth/me", Public, a.me)
	a.read("/auth/login", Public, a.login)
	a.route(http.MethodPost, "/auth/logout", Public, a.logout)
}

// localName is what a broker without authentication calls its only user, its only
// cluster and all that is around it.
const localName = "local"

// headerActCluster is the header by which a dashboard behind a proxy chooses among
// clusters.
const headerActCluster = "x-queen-act-cluster"

type cluster struct {
	ID         string `json:"id"`
	Slug       string `json:"slug"`
	TenantSlug string `json:"tenant_slug"`
	CellSlug   string `json:"cell_slug"`
	Status     string `json:"status"`
	Role       string `json:"role"`
}

type actingCluster struct {
	ID   string `json:"id"`
	Slug string `json:"slug"`
}

type identity struct {
	UserID           string        `json:"user_id"`
	Email            string        `json:"email"`
	Clusters         []cluster     `json:"clusters"`
	ActingCluster    actingCluster `json:"acting_cluster"`
	ActClusterHeader string        `json:"act_cluster_header"`
	IsOperator       bool          `json:"is_operator"`
	OperatorEnabled  bool          `json:"operator_enabled"`
	OperatorLive     bool          `json:"operator_live"`
	Standalone       bool          `json:"standalone"`
}

// me handles GET /auth/me: whoever reaches a broker without authentication is its
// operator.
func (a *API) me(c echo.Context) error {
	id := store.DefaultTenant().String()
	return respondValue(c, http.StatusOK, identity{
		UserID: localName, Email: localName + "@localhost",
		Clusters: []cluster{{
			ID: id, Slug: localName, TenantSlug: localName, CellSlug: localName, Status: "active", Role: Admin.String(),
		}},
		ActingCluster: actingCluster{id, localName}, ActClusterHeader: headerActCluster,
		IsOperator: true, OperatorEnabled: true, OperatorLive: true, Standalone: true,
	})
}

const loginPage = `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Queen</title></head>
<body><p>This broker has no login of its own. Put a proxy in front of it that authenticates its users, or open the <a href="/">dashboard</a> as it is.</p></body>
</html>
`

// login handles GET /auth/login.
func (a *API) login(c echo.Context) error {
	return respondAs(c, http.StatusOK, echo.MIMETextHTMLCharsetUTF8, []byte(loginPage))
}

// logout handles POST /auth/logout: there is no session that could end.
func (a *API) logout(c echo.Context) error {
	return respondValue(c, http.StatusOK, struct {
		Success bool `json:"success"`
	}{true})
}
