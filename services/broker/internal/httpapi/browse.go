package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/browse"
)

// Browser shows messages as JSON.
type Browser interface {
	Page(ctx context.Context, f store.MessageFilter) ([]byte, error)
	Message(ctx context.Context, tenant, partition uuid.UUID, txn string) ([]byte, error)
}

const (
	messagesLimitDefault = 200
	// messagesOffsetMax bounds the rows that a page passes over: all of them are
	// looked for. Marks pass over none.
	messagesOffsetMax = 10_000
)

func (a *API) addBrowseRoutes() {
	a.read("/api/v1/messages", ReadOnly, a.listMessages)
	a.read("/api/v1/messages/:partitionId/:transactionId", ReadOnly, a.getMessage)
	a.route(http.MethodDelete, "/api/v1/messages/:partitionId/:transactionId", ReadWrite, a.deleteLetters)
	a.route(http.MethodPost, "/api/v1/messages/:partitionId/:transactionId/retry", ReadWrite, a.retryLetter)
}

// listMessages handles GET /api/v1/messages.
func (a *API) listMessages(c echo.Context) error {
	p := parameters(c)
	f := messageFilter(p)
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "message list", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Browser.Page(ctx, f)
	})
}

func messageFilter(p *params) store.MessageFilter {
	f := store.MessageFilter{
		Queue:     p.name("queue", wire.KindQueue),
		Partition: p.name("partition", wire.KindPartition),
		Namespace: p.name("namespace", wire.KindNamespace),
		Task:      p.name("task", wire.KindTask),
		Status:    p.choice("status", "", "pending", "processing", "completed", "dead_letter"),
		From:      p.instant("from"),
		To:        p.instant("to"),
		Limit:     p.number("limit", messagesLimitDefault, 1, pageLimitMax),
		Offset:    p.number("offset", 0, 0, messagesOffsetMax),
	}
	if f.Namespace == "" {
		f.Namespace = p.name("ns", wire.KindNamespace)
	}
	f.After = p.after(f.Offset)
	return f
}

// getMessage handles GET /api/v1/messages/:partitionId/:transactionId.
func (a *API) getMessage(c echo.Context) error {
	at, err := addressOf(c)
	if err != nil {
		return err
	}
	if !at.exists {
		return errNoMessage
	}
	doc, err := a.ask(c.Request().Context(), "message lookup", func(ctx context.Context) (store.RawJSON, error) {
		ctx, cancel := context.WithTimeout(ctx, managementTimeout)
		defer cancel()
		return a.deps.Browser.Message(ctx, a.tenant(c), at.partition, at.txn)
	})
	switch {
	case errors.Is(err, browse.ErrNotFound):
		return errNoMessage
	case errors.Is(err, browse.ErrDecode):
		return &wire.Error{Status: http.StatusInternalServerError, Text: browse.ErrDecode.Error()}
	case err != nil:
		return err
	}
	return respond(c, http.StatusOK, doc)
}

// noMessage is what is said of a message that is not there.
const noMessage = "Message not found"

var errNoMessage = &wire.Error{Status: http.StatusNotFound, Text: noMessage}

// address is the address of a message. A partition id that is none leads nowhere.
type address struct {
	partitionID string // as it was sent
	partition   uuid.UUID
	txn         string
	exists      bool
}

func addressOf(c echo.Context) (at address, err error) {
	if at.partitionID, err = name(c, "partitionId", wire.KindPartitionID); err != nil {
		return at, err
	}
	if at.txn, err = name(c, "transactionId", wire.KindTransactionID); err != nil {
		return at, err
	}
	id, err := uuid.Parse(at.partitionID)
	at.partition, at.exists = id, err == nil
	return at, nil
}
