package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// Groups is the part of the store behind the routes of consumer groups. What it does
// to many lanes it does in steps, so that nobody waits for all of them.
type Groups interface {
	Groups(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
	LaggingLanes(ctx context.Context, tenant uuid.UUID, seconds, limit int) (store.RawJSON, error)
	GroupDetails(ctx context.Context, tenant uuid.UUID, p store.GroupPage) (store.RawJSON, error)
	Subscribe(ctx context.Context, tenant uuid.UUID, group string, at time.Time) (store.RawJSON, error)
	SeekStep(ctx context.Context, tenant uuid.UUID, queue, group string, to store.SeekTo, step store.GroupStep) (store.GroupStep, error)
	SeekPartition(ctx context.Context, tenant uuid.UUID, queue, partition, group string, to store.SeekTo) (store.RawJSON, error)
	GroupQueues(ctx context.Context, tenant uuid.UUID, group string) ([]string, error)
	DeleteGroupLabels(ctx context.Context, tenant uuid.UUID, group string, metadata bool) (store.GroupStep, error)
	DeleteGroupStep(ctx context.Context, tenant uuid.UUID, queue, group string, metadata bool, step store.GroupStep) (store.GroupStep, error)
}

// GroupNews hears of cursors that were moved or removed, after the commit.
type GroupNews interface {
	// CursorMoved is for one lane, CursorsMoved for all of a queue. After an error of
	// the latter pops of this broker may notice late.
	CursorMoved(tenant uuid.UUID, queue, partition, group string)
	CursorsMoved(ctx context.Context, tenant uuid.UUID, queue, group string) error
	GroupDeleted(tenant uuid.UUID, queue, group string)
}

const (
	// lagDefault is the age in seconds from which on a lane is listed as lagging.
	lagDefault = 3600
	lagMax     = 1<<31 - 1
	// groupLanesMax bounds the lanes of one answer about a group.
	groupLanesMax = 10_000
	// repairTimeout bounds the look over a queue for which the answer of a seek waits.
	repairTimeout = 10 * time.Second
)

// repairWarning is told after a seek when the look has failed.
const repairWarning = "the cursors are moved, but the list of ready partitions could not be derived anew: " +
	"waiting consumers may notice up to 30 s late"

func (a *API) addGroupRoutes() {
	const root = "/api/v1/consumer-groups"
	a.read(root, ReadOnly, a.listGroups)
	a.read(root+"/lagging", ReadOnly, a.laggingLanes)
	a.read(root+"/:group", ReadOnly, a.groupDetails)
	a.route(http.MethodDelete, root+"/:group", Admin, a.deleteGroup)
	a.route(http.MethodPost, root+"/:group/subscription", ReadWrite, a.subscribe)
	a.route(http.MethodDelete, root+"/:group/queues/:queue", Admin, a.deleteGroupOfQueue)
	a.route(http.MethodPost, root+"/:group/queues/:queue/seek", ReadWrite, a.seekQueue)
	// A client that does not escape the slashes of a partition sends more segments.
	a.route(http.MethodPost, root+"/:group/queues/:queue/partitions/*", ReadWrite, a.seekPartition)
}

// listGroups handles GET /api/v1/consumer-groups.
func (a *API) listGroups(c echo.Context) error {
	return a.procedure(c, "consumer group list", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Groups.Groups(ctx, a.tenant(c))
	})
}

// laggingLanes handles GET /api/v1/consumer-groups/lagging.
func (a *API) laggingLanes(c echo.Context) error {
	p := parameters(c)
	seconds := p.number("minLagSeconds", lagDefault, 0, lagMax)
	limit := p.number("limit", pageLimitMax, 1, pageLimitMax)
	if p.err != nil {
		return p.err
	}
	return a.procedure(c, "lag lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Groups.LaggingLanes(ctx, a.tenant(c), seconds, limit)
	})
}

// groupDetails handles GET /api/v1/consumer-groups/:group.
func (a *API) groupDetails(c echo.Context) error {
	group, err := groupName(c)
	if err != nil {
		return err
	}
	p := parameters(c)
	page := store.GroupPage{
		Group: group, Queue: p.name("queue", wire.KindQueue), After: p.name("after", wire.KindPartition),
		Limit: p.number("limit", groupLanesMax, 1, groupLanesMax),
	}
	if page.After != "" && page.Queue == "" {
		p.reject("after", "needs a queue: it is the partition to go on behind")
	}
	if p.err != nil {
		return p.err
	}
	return a.procedure(c, "consumer group lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Groups.GroupDetails(ctx, a.tenant(c), page)
	})
}

// subscribe handles POST /api/v1/consumer-groups/:group/subscription.
func (a *API) subscribe(c echo.Context) error {
	group, err := groupName(c)
	if err != nil {
		return err
	}
	return a.withBody(c, func(body []byte) error {
		text, err := wire.ParseSubscription(body)
		if err != nil {
			return err
		}
		at, ok := parseInstant(text)
		if !ok {
			return badRequest("subscriptionTimestamp " + instantFault)
		}
		doc, err := a.ask(c.Request().Context(), "subscription update", func(ctx context.Context) (store.RawJSON, error) {
			return a.deps.Groups.Subscribe(ctx, a.tenant(c), group, at)
		})
		if err != nil {
			return err
		}
		return respond(c, passThroughStatus(doc), doc)
	})
}

// seekQueue handles POST /api/v1/consumer-groups/:group/queues/:queue/seek.
func (a *API) seekQueue(c echo.Context) error {
	group, queue, err := groupNames(c)
	if err != nil {
		return err
	}
	return a.withBody(c, func(body []byte) error {
		s, err := wire.ParseSeek(body)
		if err != nil {
			return err
		}
		to, err := seekTo(s)
		if err != nil {
			return err
		}
		doc, err := a.seekInSteps(c, queue, group, to)
		if err != nil {
			return err
		}
		status := passThroughStatus(doc)
		if status == http.StatusOK {
			doc = a.repair(c, queue, group, doc)
		}
		return respond(c, status, doc)
	})
}

// seekInSteps moves all cursors of a group in a queue.
func (a *API) seekInSteps(c echo.Context, queue, group string, to store.SeekTo) (store.RawJSON, error) {
	tenant := a.tenant(c)
	step, err := a.inSteps(c, "seek", store.GroupStep{}, func(ctx context.Context, step store.GroupStep) (store.GroupStep, error) {
		return a.deps.Groups.SeekStep(ctx, tenant, queue, group, to, step)
	})
	if err != nil {
		a.deps.GroupNews.CursorMoved(tenant, queue, "", group) // those of earlier steps have
	}
	return step.Answer, err
}

// inSteps goes on from a step to the last one, each in its own turn.
func (a *API) inSteps(
	c echo.Context, verb string, step store.GroupStep, next func(context.Context, store.GroupStep) (store.GroupStep, error),
) (store.GroupStep, error) {
	for {
		_, err := a.ask(c.Request().Context(), verb, func(ctx context.Context) (_ store.RawJSON, err error) {
			step, err = next(ctx, step)
			return step.Answer, err
		})
		if err != nil || !step.More {
			return step, err
		}
	}
}

// repair has this broker look at cursors that have moved. The client waits, so that
// its next pop sees it; it is told when that may not be so.
func (a *API) repair(c echo.Context, queue, group string, doc store.RawJSON) store.RawJSON {
	// Also for a client that has left: the cursors have moved.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), repairTimeout)
	defer cancel()
	err := a.deps.GroupNews.CursorsMoved(ctx, a.tenant(c), queue, group)
	if err == nil {
		return doc
	}
	a.deps.Log.WarnContext(ctx, "hot list not repaired after a seek", slog.String(logging.KeyQueue, queue),
		slog.String(logging.KeyGroup, group), logging.Err(err))
	return extended(doc, struct {
		Repaired bool   `json:"hotlistRepaired"`
		Warning  string `json:"warning"`
	}{false, repairWarning})
}

// seekPartition handles POST /api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek.
func (a *API) seekPartition(c echo.Context) error {
	raw, ok := strings.CutSuffix(c.Param("*"), "/seek")
	if !ok {
		return errNoRoute
	}
	group, queue, err := groupNames(c)
	if err != nil {
		return err
	}
	partition, err := unescape(raw, wire.KindPartition)
	if err != nil {
		return err
	}
	if err := wire.CheckName(wire.KindPartition, partition); err != nil {
		return err
	}
	return a.withBody(c, func(body []byte) error {
		s, err := wire.ParseSeek(body)
		if err != nil {
			return err
		}
		s.ToEnd = s.ToEnd || s.Empty // Go clients say nothing and mean the end
		to, err := seekTo(s)
		if err != nil {
			return err
		}
		tenant := a.tenant(c)
		doc, err := a.ask(c.Request().Context(), "seek", func(ctx context.Context) (store.RawJSON, error) {
			return a.deps.Groups.SeekPartition(ctx, tenant, queue, partition, group, to)
		})
		if err != nil {
			return err
		}
		status := passThroughStatus(doc)
		if status == http.StatusOK {
			a.deps.GroupNews.CursorMoved(tenant, queue, partition, group)
		}
		return respond(c, status, doc)
	})
}

// seekTo is where a seek is to go.
func seekTo(s wire.Seek) (store.SeekTo, error) {
	if err := s.Check(); err != nil || s.ToEnd {
		return store.SeekTo{End: true}, err
	}
	at, ok := parseInstant(s.Timestamp)
	if !ok {
		return store.SeekTo{}, badRequest("timestamp " + instantFault)
	}
	return store.SeekTo{At: at}, nil
}

// deleteGroup handles DELETE /api/v1/consumer-groups/:group.
func (a *API) deleteGroup(c echo.Context) error {
	group, err := groupName(c)
	if err != nil {
		return err
	}
	metadata, err := deletesMetadata(c)
	if err != nil {
		return err
	}
	queues, step, err := a.deleteLabels(c, group, metadata)
	for i := 0; i < len(queues) && err == nil; i++ {
		step, err = a.deleteFromQueue(c, queues[i], group, metadata, step)
	}
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, step.Answer)
}

// deleteLabels removes the registrations of a group for namespaces and tasks, after
// which no further queue is registered by them, and lists the queues that it is in.
func (a *API) deleteLabels(c echo.Context, group string, metadata bool) (queues []string, step store.GroupStep, err error) {
	tenant := a.tenant(c)
	_, err = a.ask(c.Request().Context(), deleteVerb, func(ctx context.Context) (store.RawJSON, error) {
		var err error
		if step, err = a.deps.Groups.DeleteGroupLabels(ctx, tenant, group, metadata); err != nil {
			return nil, err
		}
		queues, err = a.deps.Groups.GroupQueues(ctx, tenant, group)
		return step.Answer, err
	})
	return queues, step, err
}

const deleteVerb = "consumer group delete"

// deleteFromQueue removes a group from one queue.
func (a *API) deleteFromQueue(c echo.Context, queue, group string, metadata bool, step store.GroupStep) (store.GroupStep, error) {
	tenant := a.tenant(c)
	step, err := a.inSteps(c, deleteVerb, step, func(ctx context.Context, step store.GroupStep) (store.GroupStep, error) {
		return a.deps.Groups.DeleteGroupStep(ctx, tenant, queue, group, metadata, step)
	})
	a.deps.GroupNews.GroupDeleted(tenant, queue, group) // after an error as well: earlier steps have removed cursors
	return step, err
}

// deleteGroupOfQueue handles DELETE /api/v1/consumer-groups/:group/queues/:queue.
func (a *API) deleteGroupOfQueue(c echo.Context) error {
	group, queue, err := groupNames(c)
	if err != nil {
		return err
	}
	metadata, err := deletesMetadata(c)
	if err != nil {
		return err
	}
	step, err := a.deleteFromQueue(c, queue, group, metadata, store.GroupStep{})
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, extended(step.Answer, struct {
		Queue string `json:"queueName"`
	}{queue}))
}

// deletesMetadata says whether a deletion takes the registrations along.
func deletesMetadata(c echo.Context) (bool, error) {
	p := parameters(c)
	metadata := p.flag("deleteMetadata", true)
	return metadata, p.err
}

// groupName is the group in the path.
func groupName(c echo.Context) (string, error) {
	group, err := name(c, "group", wire.KindGroup)
	if err == nil && group == "" {
		err = badRequest("consumerGroup: missing in the path")
	}
	return group, err
}

// groupNames are the group and the queue in the path.
func groupNames(c echo.Context) (group, queue string, err error) {
	if group, err = groupName(c); err != nil {
		return "", "", err
	}
	queue, err = name(c, "queue", wire.KindQueue)
	return group, queue, err
}

// extended is an answer with more members, which are those of a struct.
func extended(doc store.RawJSON, more any) store.RawJSON {
	members, err := json.Marshal(more)
	if err != nil || len(members) < 2 { // strings and truth values always encode
		return doc
	}
	return append(append(doc[:len(doc)-1:len(doc)-1], ','), members[1:]...)
}
