package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/wire"
)

// Modes are the operator's means to hold traffic back.
type Modes interface {
	PushMaintenance() bool
	PopMaintenance() bool
	// Read has what is on record hold here.
	Read(ctx context.Context) error
	// SetPush and SetPop change what holds here, and then the record; mirrored tells
	// whether that has worked.
	SetPush(ctx context.Context, on bool) (mirrored bool)
	SetPop(ctx context.Context, on bool) (mirrored bool)
}

func (a *API) addModeRoutes() {
	a.read("/api/v1/system/maintenance", Admin, a.getMaintenance)
	a.route(http.MethodPost, "/api/v1/system/maintenance", Admin, a.setMaintenance)
	a.read("/api/v1/system/maintenance/pop", Admin, a.getPopMaintenance)
	a.route(http.MethodPost, "/api/v1/system/maintenance/pop", Admin, a.setPopMaintenance)
	a.read("/api/v1/system/shared-state", Admin, a.sharedState)
	a.read("/api/v1/status/buffers", ReadOnly, a.buffers)
}

// recordTimeout bounds the reading and the recording of a flag: what holds here is
// answered also while the database does not.
const recordTimeout = 5 * time.Second

// recording is the context of what goes on when the client leaves.
func recording(c echo.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Request().Context()), recordTimeout)
}

// Messages that tools compare with.
const (
	pushHeld    = "Maintenance mode ENABLED. All PUSHes routing to file buffer."
	pushResumed = "Maintenance mode DISABLED. Background processor will drain buffer to DB."
	popHeld     = "Pop maintenance mode ENABLED. All POP operations will return empty arrays."
	popResumed  = "Pop maintenance mode DISABLED. Normal operation."
	popIsOn     = "Pop maintenance mode is ON. All POP operations return empty arrays."
	popIsOff    = "Pop maintenance mode is OFF. Normal operation."
)

// failedFiles are the files of the spool that wait to be drained. There is no spool,
// so nothing ever waits.
type failedFiles struct {
	Count         int     `json:"count"`
	TotalBytes    int64   `json:"totalBytes"`
	TotalMB       float64 `json:"totalMB"`
	FailoverCount int     `json:"failoverCount"`
	QoS0Count     int     `json:"qos0Count"`
}

type bufferStats struct {
	PendingCount int         `json:"pendingCount"`
	FailedCount  int         `json:"failedCount"`
	DBHealthy    bool        `json:"dbHealthy"`
	FailedFiles  failedFiles `json:"failedFiles"`
}

type maintenanceBody struct {
	Push     bool        `json:"maintenanceMode"`
	Pop      bool        `json:"popMaintenanceMode"`
	Buffered int         `json:"bufferedMessages"`
	Healthy  bool        `json:"bufferHealthy"`
	Stats    bufferStats `json:"bufferStats"`
}

// getMaintenance handles GET /api/v1/system/maintenance. It never fails: without the
// database it tells what holds here.
func (a *API) getMaintenance(c echo.Context) error {
	ctx, cancel := recording(c)
	defer cancel()
	healthy := a.deps.Modes.Read(ctx) == nil
	return respondValue(c, http.StatusOK, maintenanceBody{
		Push: a.deps.Modes.PushMaintenance(), Pop: a.deps.Modes.PopMaintenance(), Healthy: healthy, Stats: bufferStats{DBHealthy: healthy},
	})
}

// setMaintenance handles POST /api/v1/system/maintenance.
func (a *API) setMaintenance(c echo.Context) error {
	return a.setMode(c, a.deps.Modes.SetPush, func(on, mirrored bool) any {
		return struct {
			Push     bool   `json:"maintenanceMode"`
			Buffered int    `json:"bufferedMessages"`
			Healthy  bool   `json:"bufferHealthy"`
			Message  string `json:"message"`
		}{Push: on, Healthy: mirrored, Message: either(on, pushHeld, pushResumed)}
	})
}

type popMaintenanceBody struct {
	On      bool   `json:"popMaintenanceMode"`
	Message string `json:"message"`
}

// getPopMaintenance handles GET /api/v1/system/maintenance/pop.
func (a *API) getPopMaintenance(c echo.Context) error {
	on := a.deps.Modes.PopMaintenance()
	return respondValue(c, http.StatusOK, popMaintenanceBody{on, either(on, popIsOn, popIsOff)})
}

// setPopMaintenance handles POST /api/v1/system/maintenance/pop.
func (a *API) setPopMaintenance(c echo.Context) error {
	return a.setMode(c, a.deps.Modes.SetPop, func(on, _ bool) any {
		return popMaintenanceBody{on, either(on, popHeld, popResumed)}
	})
}

// setMode changes a mode and answers what it has become.
func (a *API) setMode(c echo.Context, set func(ctx context.Context, on bool) (mirrored bool), answer func(on, mirrored bool) any) error {
	return a.withBody(c, func(body []byte) error {
		on, err := wire.ParseEnabled(body)
		if err != nil {
			return err
		}
		ctx, cancel := recording(c)
		defer cancel()
		mirrored := set(ctx, on)
		a.deps.FlagsChanged()
		return respondValue(c, http.StatusOK, answer(on, mirrored))
	})
}

func either(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

// maintenance is what holds here, as several answers show it.
func (a *API) maintenance() wire.Maintenance {
	return wire.Maintenance{Push: a.deps.Modes.PushMaintenance(), Pop: a.deps.Modes.PopMaintenance()}
}

// sharedState handles GET /api/v1/system/shared-state, whose answer is fixed but for
// the modes: brokers share nothing but the database.
func (a *API) sharedState(c echo.Context) error {
	return respondValue(c, http.StatusOK, wire.SharedState{Reason: wire.ReasonSingleNode, Maintenance: a.maintenance()})
}

// buffers handles GET /api/v1/status/buffers, which tells of a spool that there is not.
func (a *API) buffers(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), healthTimeout)
	defer cancel()
	return respondValue(c, http.StatusOK, struct {
		Pending   int  `json:"pending"`
		Failed    int  `json:"failed"`
		DBHealthy bool `json:"dbHealthy"`
		Worker    int  `json:"worker"`
	}{DBHealthy: a.deps.Database.Ping(ctx) == nil})
}
