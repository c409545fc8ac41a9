package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

// statusClientGone is what logs and metrics show for a request whose client did
// not wait for the answer. Nobody receives it.
const statusClientGone = 499

var (
	errNoRoute = errors.New("no such route")
	errMethod  = errors.New("method not allowed")
	errPanic   = errors.New("panic")
)

// callError is a database call that failed. Its text reaches the client, as the
// wire promises.
type callError struct {
	verb string
	err  error
}

func (e *callError) Error() string { return fmt.Sprintf("%s failed: %v", e.verb, e.err) }
func (e *callError) Unwrap() error { return e.err }

// failure is how an error is answered.
type failure struct {
	status int
	text   string // goes into {"error": text}
	code   string // goes into "code", mostly empty
	// refusal is what the families of keys, timers and switches answer instead.
	refusal *wire.Refusal
}

// failureOf is the one table from errors to statuses.
func failureOf(ctx context.Context, err error) failure {
	var wireErr *wire.Error
	var refusal *wire.Refusal
	var call *callError
	var asked *store.BrowseRefused
	switch {
	case errors.As(err, &refusal) && (ctx.Err() == nil || refusal.Status < http.StatusInternalServerError):
		return failure{status: refusal.Status, refusal: refusal}
	case errors.As(err, &asked):
		return failure{status: http.StatusBadRequest, text: asked.Text}
	case errors.As(err, &wireErr):
		return failure{status: wireErr.Status, text: wireErr.Text}
	case errors.Is(err, errNoRoute):
		return failure{status: http.StatusNotFound, text: http.StatusText(http.StatusNotFound), code: "no_such_route"}
	case errors.Is(err, errMethod):
		return failure{status: http.StatusMethodNotAllowed, text: "method not allowed"}
	case errors.Is(err, errTooLarge):
		return failure{status: http.StatusRequestEntityTooLarge, text: errTooLarge.Error()}
	case errors.Is(err, errSlow):
		return failure{status: http.StatusRequestTimeout, text: errSlow.Error()}
	case errors.Is(err, errCutOff):
		return failure{status: http.StatusBadRequest, text: "bad body: " + errCutOff.Error()}
	case errors.Is(err, errBusy), errors.Is(err, admission.ErrOverloaded):
		return failure{status: http.StatusTooManyRequests, text: "overloaded, try again later"}
	case ctx.Err() != nil:
		return failure{status: statusClientGone, text: "client closed the request"}
	case errors.Is(err, errFraming): // only the client and its line have a part in reading
		return failure{status: http.StatusBadRequest, text: "bad body: " + errFraming.Error()}
	case errors.Is(err, pgdb.ErrPool), errors.Is(err, pop.ErrPool):
		return failure{status: http.StatusInternalServerError, text: "pool"}
	case errors.Is(err, pop.ErrFailed):
		return failure{status: http.StatusInternalServerError, text: pop.ErrFailed.Error()}
	case errors.Is(err, transact.ErrFailed):
		return failure{status: http.StatusInternalServerError, text: transact.ErrFailed.Error()}
	case errors.Is(err, transact.ErrUnknown):
		return failure{status: http.StatusInternalServerError, text: transact.ErrUnknown.Error()}
	case errors.As(err, &call):
		return failure{status: http.StatusInternalServerError, text: call.Error()}
	}
	return failure{status: http.StatusInternalServerError, text: "internal error"}
}

// routingError translates what echo's router found out.
func routingError(err error) error {
	var he *echo.HTTPError
	if !errors.As(err, &he) {
		return err
	}
	switch he.Code {
	case http.StatusNotFound:
		return errNoRoute
	case http.StatusMethodNotAllowed:
		return errMethod
	}
	return err
}
