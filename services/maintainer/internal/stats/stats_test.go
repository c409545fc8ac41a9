package stats_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/maintainer/internal/stats"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestOnceRefreshesWhateverTheClockSays(t *testing.T) {
	t.Parallel()
	db := store.New(pgtest.New(t))
	r, err := stats.New(stats.Config{}, stats.Deps{Store: db, Log: logtest.New(t), Meter: noop.Meter{}})
	require.NoError(t, err)
	for range 2 {
		_, done, err := r.Once(t.Context())
		require.NoError(t, err)
		require.True(t, done)
	}
}
