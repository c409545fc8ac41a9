package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	unmatched   = "unmatched"
	otherMethod = "other"
)

// observe surrounds every request: it turns errors and panics into answers and
// counts what came out.
func (a *API) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		a.metrics.active.Add(1)
		a.metrics.requests.Add(1)
		left := int64(1)
		defer func() { a.metrics.active.Add(-left) }()
		err := a.guarded(c, next)
		if errors.Is(err, errParked) {
			left = 0 // the lot accounts for it
			return nil
		}
		if err != nil {
			a.fail(c, routingError(err))
		}
		ctx := context.WithoutCancel(c.Request().Context())
		a.account(ctx, c.Path(), c.Request().Method, c.Response().Status, time.Since(began))
		return nil
	}
}

// guarded runs the handler. A panic costs one request, not the process.
func (a *API) guarded(c echo.Context, next echo.HandlerFunc) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if cause, ok := p.(error); ok && errors.Is(cause, http.ErrAbortHandler) {
			panic(p)
		}
		a.deps.Log.ErrorContext(c.Request().Context(), "request handler panicked", slog.String(logging.KeyMethod, c.Request().Method),
			slog.String(logging.KeyRoute, c.Path()), slog.Any(logging.KeyPanic, p), slog.String(logging.KeyStack, string(debug.Stack())))
		if c.Response().Committed {
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		}
		err = fmt.Errorf("%w: %v", errPanic, p)
	}()
	if strays(c) {
		return errNoRoute
	}
	if c.Request().Method == http.MethodOptions && c.Get(echo.ContextKeyHeaderAllow) != nil {
		return errMethod // the router would answer it by itself
	}
	return next(c)
}

func (a *API) account(ctx context.Context, route, method string, status int, took time.Duration) {
	if route == "" {
		route = unmatched
	}
	method = knownMethod(method)
	a.metrics.record(ctx, route, method, status, took)
	if a.deps.Log.Enabled(ctx, slog.LevelDebug) {
		a.deps.Log.DebugContext(ctx, "request", slog.String(logging.KeyMethod, method), slog.String(logging.KeyRoute, route),
			slog.Int(logging.KeyStatus, status), slog.Duration(logging.KeyElapsed, took))
	}
}

// knownMethod keeps clients from inventing label values.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return otherMethod
}
