package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/replay"
)

// DeadLetters is the part of the store behind the routes of dead letters.
type DeadLetters interface {
	DLQMessages(ctx context.Context, filter store.DLQFilter) (store.RawJSON, error)
	DLQLetter(ctx context.Context, tenant, id uuid.UUID) (store.Letter, bool, error)
	DLQNewest(ctx context.Context, tenant, partition uuid.UUID, txn string) (store.Letter, bool, error)
	DLQDelete(ctx context.Context, tenant, partition uuid.UUID, txn string) (int64, error)
	DLQPurge(ctx context.Context, filter store.DLQFilter, rows int) (int64, error)
}

// Mover moves dead letters back into lanes.
type Mover interface {
	Move(ctx context.Context, m replay.Move) (replay.Moved, error)
}

const (
	dlqLimitDefault = 100
	// dlqLimitMax bounds one answer; its rows carry whole payloads. The answer's
	// pagination shows the limit that was applied.
	dlqLimitMax = 1000
	// purgeRows is how many dead letters are deleted in one transaction.
	purgeRows = 5000
)

func (a *API) addDeadLetterRoutes() {
	a.read("/api/v1/dlq", ReadOnly, a.listLetters)
	a.route(http.MethodDelete, "/api/v1/dlq", Admin, a.purgeLetters)
	a.route(http.MethodPost, "/api/v1/dlq/:id/replay", ReadWrite, a.replayLetter)
}

// listLetters handles GET /api/v1/dlq.
func (a *API) listLetters(c echo.Context) error {
	p := parameters(c)
	f := dlqFilter(p)
	f.Limit = min(p.number("limit", dlqLimitDefault, 0, pageOffsetMax), dlqLimitMax)
	f.Offset = p.number("offset", 0, 0, pageOffsetMax)
	f.After = p.after(f.Offset)
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "dlq lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.DeadLetters.DLQMessages(ctx, f)
	})
}

func dlqFilter(p *params) store.DLQFilter {
	return store.DLQFilter{
		Queue:         p.name("queue", wire.KindQueue),
		ConsumerGroup: p.name("consumerGroup", wire.KindGroup),
		Partition:     p.name("partition", wire.KindPartition),
		From:          p.instant("from"),
		To:            p.instant("to"),
	}
}

// purgeLetters handles DELETE /api/v1/dlq.
func (a *API) purgeLetters(c echo.Context) error {
	p := parameters(c)
	f := dlqFilter(p)
	if f.Queue == "" {
		p.require("queue")
	}
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	deleted, err := a.purge(c.Request().Context(), f)
	if err != nil {
		return err
	}
	return respondValue(c, http.StatusOK, struct {
		Success       bool    `json:"success"`
		Deleted       int64   `json:"deleted"`
		Queue         string  `json:"queue"`
		ConsumerGroup *string `json:"consumerGroup"`
	}{true, deleted, f.Queue, orNull(f.ConsumerGroup)})
}

// purge deletes in steps, each a turn and a transaction of its own.
func (a *API) purge(ctx context.Context, f store.DLQFilter) (deleted int64, err error) {
	for {
		var n int64
		_, err := a.ask(ctx, "dlq purge", func(ctx context.Context) (_ store.RawJSON, err error) {
			n, err = a.deps.DeadLetters.DLQPurge(ctx, f, purgeRows)
			return nil, err
		})
		if err != nil {
			return deleted, err
		}
		if deleted += n; n < purgeRows {
			return deleted, nil
		}
	}
}

// orNull is a text or null.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// letterAnswer is what is said of an address without a dead letter, and of one whose
// letters were deleted.
type letterAnswer struct {
	Success       bool   `json:"success"`
	PartitionID   string `json:"partitionId"`
	TransactionID string `json:"transactionId"`
	Error         string `json:"error,omitempty"`
	Message       string `json:"message"`
}

const (
	lettersDeleted = "Message deleted successfully"
	noLetterHere   = "there is no dead letter at this address; a message that is alive can neither be deleted nor replayed"
)

func noLetter(c echo.Context, at address) error {
	return respondValue(c, http.StatusNotFound, letterAnswer{
		PartitionID: at.partitionID, TransactionID: at.txn, Error: noMessage, Message: noLetterHere,
	})
}

// deleteLetters handles DELETE /api/v1/messages/:partitionId/:transactionId.
func (a *API) deleteLetters(c echo.Context) error {
	at, err := addressOf(c)
	if err != nil {
		return err
	}
	var n int64
	if at.exists {
		_, err = a.ask(c.Request().Context(), "dlq delete", func(ctx context.Context) (_ store.RawJSON, err error) {
			n, err = a.deps.DeadLetters.DLQDelete(ctx, a.tenant(c), at.partition, at.txn)
			return nil, err
		})
	}
	switch {
	case err != nil:
		return err
	case n == 0:
		return noLetter(c, at)
	}
	return respondValue(c, http.StatusOK, letterAnswer{
		Success: true, PartitionID: at.partitionID, TransactionID: at.txn, Message: lettersDeleted,
	})
}

// retryLetter handles POST /api/v1/messages/:partitionId/:transactionId/retry. Of a
// body nothing is read.
func (a *API) retryLetter(c echo.Context) error {
	at, err := addressOf(c)
	if err != nil {
		return err
	}
	if a.deps.Modes.PushMaintenance() {
		return respondValue(c, http.StatusServiceUnavailable, heldBack())
	}
	var letter store.Letter
	found := false
	if at.exists {
		_, err = a.ask(c.Request().Context(), "dlq lookup", func(ctx context.Context) (_ store.RawJSON, err error) {
			letter, found, err = a.deps.DeadLetters.DLQNewest(ctx, a.tenant(c), at.partition, at.txn)
			return nil, err
		})
	}
	switch {
	case err != nil:
		return err
	case !found:
		return noLetter(c, at)
	}
	return a.move(c, letter, wire.Destination{}, func() error { return noLetter(c, at) })
}

// goneAnswer is what is said of an id that is none of a dead letter.
type goneAnswer struct {
	Success bool   `json:"success"`
	Result  string `json:"result"`
	ID      string `json:"dlqId"`
	Error   string `json:"error"`
	Message string `json:"message"`
}

const letterGone = "there is no dead letter with this id: it was replayed or deleted, or has never been"

// replayLetter handles POST /api/v1/dlq/:id/replay.
func (a *API) replayLetter(c echo.Context) error {
	sent, err := unescape(c.Param("id"), "id")
	if err != nil {
		return err
	}
	return a.withBody(c, func(body []byte) error {
		to, err := wire.ParseReplay(body)
		if err != nil {
			return err
		}
		if a.deps.Modes.PushMaintenance() {
			return respondValue(c, http.StatusServiceUnavailable, heldBack())
		}
		gone := func() error {
			return respondValue(c, http.StatusNotFound, goneAnswer{Result: string(store.ReplayGone), ID: sent, Error: noMessage, Message: letterGone})
		}
		id, err := uuid.Parse(sent)
		if err != nil {
			return gone()
		}
		var letter store.Letter
		found := false
		_, err = a.ask(c.Request().Context(), "dlq lookup", func(ctx context.Context) (_ store.RawJSON, err error) {
			letter, found, err = a.deps.DeadLetters.DLQLetter(ctx, a.tenant(c), id)
			return nil, err
		})
		switch {
		case err != nil:
			return a.notMoved(c, err, false)
		case !found:
			return gone()
		}
		return a.move(c, letter, to, gone)
	})
}

// replayFailure is the answer to a replay that did not happen, or of which nobody
// knows: then Removed is null.
type replayFailure struct {
	Success bool   `json:"success"`
	Result  string `json:"result,omitempty"`
	Error   string `json:"error"`
	Removed *bool  `json:"dlqRowRemoved"`
}

// heldBack is the answer to a replay while pushes are.
func heldBack() replayFailure {
	return replayFailure{
		Result: "maintenance", Error: "push maintenance is on: the dead letter was left where it is", Removed: new(bool),
	}
}

// notMoved answers and logs a replay that failed.
func (a *API) notMoved(c echo.Context, err error, unknown bool) error {
	ctx := c.Request().Context()
	f := failureOf(ctx, err)
	if f.status != http.StatusInternalServerError {
		return err
	}
	a.logFailure(ctx, c.Request().Method, c.Path(), func() []slog.Attr { return placeOf(c) }, f, err)
	answer := replayFailure{Error: f.text, Removed: new(bool)}
	if unknown {
		answer.Removed = nil
	}
	return respondValue(c, f.status, answer)
}

// replayAnswer is the answer to a replay.
type replayAnswer struct {
	Success               bool     `json:"success"`
	Result                string   `json:"result"`
	Queue                 string   `json:"queue"`
	Partition             string   `json:"partition"`
	ConsumerGroup         string   `json:"consumerGroup"`
	ID                    string   `json:"dlqId"`
	OriginalTransactionID string   `json:"originalTransactionId"`
	As                    replayed `json:"replayedAs"`
	Removed               bool     `json:"dlqRowRemoved"`
}

// replayed is the result of a push.
type replayed struct {
	Index         int       `json:"index"`
	MessageID     uuid.UUID `json:"message_id"`
	TransactionID string    `json:"transaction_id"`
	QueueName     string    `json:"queueName"`
	Status        string    `json:"status"`
	Offset        int64     `json:"offset"`
}

var errTimerLetter = &wire.Error{
	Status: http.StatusBadRequest,
	Text:   "a dead letter of a timer is not replayed: schedule the timer again, and delete the letter",
}

// move moves a letter and answers; gone answers when somebody else was faster.
func (a *API) move(c echo.Context, l store.Letter, to wire.Destination, gone func() error) error {
	if l.Group == store.TimerGroup {
		return errTimerLetter
	}
	m := replay.Move{Tenant: a.tenant(c), ProducerSub: a.producer(c), Letter: l, Queue: l.Queue, Partition: l.Partition}
	if to.Queue != "" {
		m.Queue = to.Queue
	}
	if to.Partition != "" {
		m.Partition = to.Partition
	}
	var out replay.Moved
	_, err := a.ask(c.Request().Context(), "dlq replay", func(ctx context.Context) (_ store.RawJSON, err error) {
		out, err = a.deps.Mover.Move(ctx, m)
		return nil, err
	})
	var call *callError
	switch {
	case err != nil:
		return a.notMoved(c, err, errors.As(err, &call) && store.Ambiguous(call.err))
	case out.Result == store.ReplayGone:
		return gone()
	}
	status := wire.StatusQueued
	if out.Result == store.ReplayDuplicate {
		status = wire.StatusDuplicate
	}
	return respondValue(c, http.StatusOK, replayAnswer{
		Success: true, Result: string(out.Result), Queue: m.Queue, Partition: m.Partition, ConsumerGroup: l.Group,
		ID: l.ID.String(), OriginalTransactionID: l.TransactionID, Removed: out.Result == store.ReplayMoved,
		As: replayed{MessageID: out.MessageID, TransactionID: out.TransactionID, QueueName: m.Queue, Status: status, Offset: out.Offset},
	})
}
