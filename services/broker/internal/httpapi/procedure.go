package httpapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
)

const (
	// managementCalls is how many calls of the management routes use the database at
	// the same time. Some of them take a processor of it for a second: messages must not
	// wait because a few people look at their numbers.
	managementCalls = 4
	// managementTimeout is how long a call that only reads may take, the wait for its
	// turn included.
	managementTimeout = 15 * time.Second
)

// office lets management routes use the database, few at a time and behind the messages.
type office struct {
	desks *semaphore.Weighted
	admit func(ctx context.Context) (release func(), err error)
}

func newOffice(admit func(ctx context.Context) (func(), error)) *office {
	if admit == nil {
		admit = func(context.Context) (func(), error) { return func() {}, nil }
	}
	return &office{desks: semaphore.NewWeighted(managementCalls), admit: admit}
}

// enter waits for a turn. This surface has no answer for too many requests: whoever
// gets no turn is told what it is told without a connection.
func (o *office) enter(ctx context.Context) (leave func(), err error) {
	if err := o.desks.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("%w: %w", pgdb.ErrPool, err)
	}
	release, err := o.admit(ctx)
	if err != nil {
		o.desks.Release(1)
		if errors.Is(err, admission.ErrOverloaded) {
			return nil, fmt.Errorf("%w: %v", pgdb.ErrPool, err) //nolint:errorlint // it would be answered as such
		}
		return nil, err
	}
	return func() {
		release()
		o.desks.Release(1)
	}, nil
}

// procedure makes a call of a management route that only reads and passes its answer
// to the client unchanged. verb says in an error what has failed.
func (a *API) procedure(c echo.Context, verb string, call func(ctx context.Context) (store.RawJSON, error)) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), managementTimeout)
	defer cancel()
	doc, err := a.ask(ctx, verb, call)
	if err != nil {
		return err
	}
	return respond(c, passThroughStatus(doc), doc)
}

// ask makes a call of a management route when it is its turn.
func (a *API) ask(ctx context.Context, verb string, call func(ctx context.Context) (store.RawJSON, error)) (store.RawJSON, error) {
	leave, err := a.office.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	doc, err := call(ctx)
	if err != nil {
		return nil, &callError{verb, err}
	}
	return doc, nil
}
