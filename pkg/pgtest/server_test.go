package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/schema"
)

// given runs servers on the shared one as if QUEEN_TEST_PG_URL named it.
func given(t *testing.T) *server {
	t.Helper()
	s := &server{}
	sum, err := schema.Fingerprint()
	require.NoError(t, err)
	s.setNames(sum[:fingerprintLen])
	require.NoError(t, s.useGiven(t.Context(), start(t).admin.ConnString()))
	return s
}

func databases(t *testing.T, s *server) []string {
	t.Helper()
	rows, err := s.owner.Query(t.Context(), "SELECT datname FROM pg_database")
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

// Not parallel: to a run on a given server, the clones of this binary's own
// private server look abandoned.
func TestAGivenServerKeepsLiveClonesAndDropsAbandonedOnes(t *testing.T) {
	live, dead := given(t), given(t)
	t.Cleanup(func() { require.NoError(t, live.close(t.Context())) })
	require.Equal(t, live.template, dead.template)
	require.NoError(t, live.create(t.Context(), live.prefix+"_1", "TEMPLATE "+live.template))
	require.NoError(t, dead.create(t.Context(), dead.prefix+"_1", "TEMPLATE "+dead.template))
	require.NoError(t, dead.create(t.Context(), "queen_test_00000000_template", ""))
	require.NoError(t, dead.close(t.Context()))

	var names []string
	require.Eventually(t, func() bool { // the server notices the end of a session a moment later
		next := given(t)
		names = databases(t, next)
		require.NoError(t, next.close(t.Context()))
		return !contains(names, dead.prefix+"_1")
	}, time.Minute, time.Millisecond)
	require.Contains(t, names, live.prefix+"_1")
	require.Contains(t, names, live.template)
	require.NotContains(t, names, "queen_test_00000000_template")
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}
