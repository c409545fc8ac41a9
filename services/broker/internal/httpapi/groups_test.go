package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// otherGroups are the methods that no test calls.
type otherGroups interface{ httpapi.Groups }

// groupsFake goes two steps in every queue, and notes what it is asked and what is
// announced.
type groupsFake struct {
	otherGroups
	failAt int // the call that fails, counted from 1; 0: none
	repair error
	calls  []string
	news   []string
}

var errGroups = errors.New("away")

func (f *groupsFake) call(format string, args ...any) error {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	if len(f.calls) == f.failAt {
		return errGroups
	}
	return nil
}

func (f *groupsFake) twoSteps(step store.GroupStep, err error) (store.GroupStep, error) {
	if err != nil {
		return store.GroupStep{}, err
	}
	return store.GroupStep{More: !step.More, Answer: store.RawJSON(fmt.Sprintf(`{"success": true, "calls": %d}`, len(f.calls)))}, nil
}

func (f *groupsFake) SeekStep(_ context.Context, _ uuid.UUID, queue, group string, to store.SeekTo, step store.GroupStep) (store.GroupStep, error) {
	return f.twoSteps(step, f.call("seek %s of %s end %t", group, queue, to.End))
}

func (f *groupsFake) DeleteGroupStep(_ context.Context, _ uuid.UUID, queue, group string, metadata bool, step store.GroupStep) (store.GroupStep, error) {
	return f.twoSteps(step, f.call("delete %s of %s %t", group, queue, metadata))
}

func (f *groupsFake) DeleteGroupLabels(_ context.Context, _ uuid.UUID, group string, metadata bool) (store.GroupStep, error) {
	return store.GroupStep{Answer: store.RawJSON(`{}`)}, f.call("labels of %s %t", group, metadata)
}

func (f *groupsFake) GroupQueues(_ context.Context, _ uuid.UUID, group string) ([]string, error) {
	return []string{"a", "b"}, f.call("queues of %s", group)
}

func (f *groupsFake) CursorMoved(_ uuid.UUID, queue, partition, group string) {
	f.news = append(f.news, fmt.Sprintf("moved %s/%s of %s", queue, partition, group))
}

func (f *groupsFake) CursorsMoved(_ context.Context, _ uuid.UUID, queue, group string) error {
	f.news = append(f.news, fmt.Sprintf("repair %s of %s", queue, group))
	return f.repair
}

func (f *groupsFake) GroupDeleted(_ uuid.UUID, queue, group string) {
	f.news = append(f.news, fmt.Sprintf("deleted %s of %s", queue, group))
}

func setupGroups(t *testing.T, f *groupsFake) *bundle {
	t.Helper()
	return setupWith(t, func(d *httpapi.Deps) { d.Groups, d.GroupNews = f, f })
}

const (
	seekQ   = "/api/v1/consumer-groups/g/queues/q/seek"
	deleteG = "/api/v1/consumer-groups/g"
	failed  = `{"error":"%s failed: away"}`
)

func TestSeekGoesOnToItsLastStep(t *testing.T) {
	t.Parallel()
	f := &groupsFake{}
	b := setupGroups(t, f)
	b.want(http.MethodPost, seekQ, `{"toEnd":true}`, http.StatusOK, `{"success": true, "calls": 2}`)
	require.Equal(t, []string{"seek g of q end true", "seek g of q end true"}, f.calls)
	require.Equal(t, []string{"repair q of g"}, f.news)
}

// The lanes of earlier steps have moved, whatever becomes of the others.
func TestASeekThatFailsOnItsWayIsAnnounced(t *testing.T) {
	t.Parallel()
	f := &groupsFake{failAt: 2}
	b := setupGroups(t, f)
	b.want(http.MethodPost, seekQ, `{"toEnd":true}`, http.StatusInternalServerError, fmt.Sprintf(failed, "seek"))
	require.Equal(t, []string{"moved q/ of g"}, f.news)
}

func TestASeekTellsWhenPopsMayNoticeLate(t *testing.T) {
	t.Parallel()
	b := setupGroups(t, &groupsFake{repair: errGroups})
	b.want(http.MethodPost, seekQ, `{"toEnd":true}`, http.StatusOK, `{"success": true, "calls": 2,"hotlistRepaired":false,"warning":`+
		`"the cursors are moved, but the list of ready partitions could not be derived anew: waiting consumers may notice up to 30 s late"}`)
	require.Contains(t, b.log.String(), "hot list not repaired after a seek")
}

func TestAGroupIsDeletedQueueByQueue(t *testing.T) {
	t.Parallel()
	f := &groupsFake{}
	b := setupGroups(t, f)
	b.want(http.MethodDelete, deleteG+"?deleteMetadata=false", "", http.StatusOK, `{"success": true, "calls": 6}`)
	require.Equal(t, []string{
		"labels of g false", "queues of g", "delete g of a false", "delete g of a false", "delete g of b false", "delete g of b false",
	}, f.calls)
	require.Equal(t, []string{"deleted a of g", "deleted b of g"}, f.news)
	b.want(http.MethodDelete, deleteG+"/queues/x%22", "", http.StatusOK, `{"success": true, "calls": 8,"queueName":"x\""}`)
}

func TestADeletionThatFailsOnItsWayIsAnnounced(t *testing.T) {
	t.Parallel()
	for at, news := range map[int][]string{1: nil, 2: nil, 3: {"deleted a of g"}, 6: {"deleted a of g", "deleted b of g"}} {
		f := &groupsFake{failAt: at}
		b := setupGroups(t, f)
		b.want(http.MethodDelete, deleteG, "", http.StatusInternalServerError, fmt.Sprintf(failed, "consumer group delete"))
		require.Equal(t, news, f.news, "at call %d", at)
		require.Len(t, f.calls, at)
	}
}
