package pop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

func TestChangedQueueIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		serve := func(changed uuid.UUID, queue string) int {
			b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1", "2")})
			q := query(true, 10*time.Second)
			q.Batch = 2
			require.NotNil(t, (<-b.start(t.Context(), wildcard(q))).body)
			b.svc.QueueChanged(changed, queue, false)
			return b.store.settings
		}
		require.Equal(t, 1, serve(tenant, "other"))
		require.Equal(t, 1, serve(uuid.UUID{9}, "q"))
		require.Equal(t, 1, serve(tenant, "q"))
		require.Equal(t, 2, serve(tenant, "q"))
	})
}
