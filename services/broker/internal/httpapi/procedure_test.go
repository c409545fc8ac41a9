package httpapi_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// Management calls take a place behind the messages, and give it back.
func TestManagementCallsAreAdmitted(t *testing.T) {
	t.Parallel()
	var inside, most, admitted atomic.Int64
	b := setupWith(t, func(d *httpapi.Deps) {
		d.Admit = func(context.Context) (func(), error) {
			admitted.Add(1)
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			return func() { inside.Add(-1) }, nil
		}
	})
	const calls = 12
	arrived, open := make(chan struct{}, calls), make(chan struct{})
	b.queues = func(string, string) (store.RawJSON, error) {
		arrived <- struct{}{}
		<-open
		return store.RawJSON(`{}`), nil
	}
	var work sync.WaitGroup
	for range calls {
		work.Go(func() { b.want(http.MethodGet, "/api/v1/resources/queues", "", http.StatusOK, `{}`) })
	}
	for range httpapi.ManagementCalls {
		<-arrived
	}
	require.Empty(t, arrived, "the others wait")
	close(open)
	work.Wait()
	require.EqualValues(t, calls, admitted.Load())
	require.EqualValues(t, httpapi.ManagementCalls, most.Load())
	require.Zero(t, inside.Load())
}

// There is no 429 on this surface.
func TestManagementCallsWithoutAPlaceSayPool(t *testing.T) {
	t.Parallel()
	b := setupWith(t, func(d *httpapi.Deps) {
		d.Admit = func(context.Context) (func(), error) { return nil, admission.ErrOverloaded }
	})
	for range 2 * httpapi.ManagementCalls { // none of them keeps a desk
		b.want(http.MethodGet, "/api/v1/resources/queues", "", http.StatusInternalServerError, `{"error":"pool"}`)
	}
}
