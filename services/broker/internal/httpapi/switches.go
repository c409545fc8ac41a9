package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// switchesBody is the state of the switches and of the view of quotas. Mirrored is
// for changes.
type switchesBody struct {
	KV             bool  `json:"kvEnabled"`
	TimersSchedule bool  `json:"timersScheduleEnabled"`
	TimersFire     bool  `json:"timersFireEnabled"`
	QuotaTenants   int   `json:"quotaTenants"`
	QuotaAgeMs     int64 `json:"quotaAgeMs"`
	QuotaHot       int   `json:"quotaHot"`
	Mirrored       *bool `json:"mirrored,omitempty"`
}

func (a *API) switchesBody(s store.KVSwitches) switchesBody {
	q := a.deps.Switches.Summary()
	return switchesBody{
		KV: s.KV, TimersSchedule: s.TimersSchedule, TimersFire: s.TimersFire,
		QuotaTenants: q.Tenants, QuotaAgeMs: q.Age.Milliseconds(), QuotaHot: q.Hot,
	}
}

// getSwitches handles GET /api/v1/system/kv-timers.
func (a *API) getSwitches(c echo.Context) error {
	return respondValue(c, http.StatusOK, a.switchesBody(a.deps.Switches.RefreshSwitches(c.Request().Context())))
}

// setSwitches handles POST /api/v1/system/kv-timers.
func (a *API) setSwitches(c echo.Context) error {
	return a.withBody(c, func(body []byte) error {
		change, err := wire.ParseSwitchChange(body)
		if err != nil {
			return err
		}
		mirrored := a.deps.Switches.SetSwitches(c.Request().Context(), store.KVSwitchChange(change))
		a.deps.FlagsChanged()
		answer := a.switchesBody(a.deps.Switches.Switches())
		answer.Mirrored = &mirrored
		return respondValue(c, http.StatusOK, answer)
	})
}
