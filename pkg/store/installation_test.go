package store_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestInstallationIsCreatedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := make([]uuid.UUID, 8)
	var g errgroup.Group
	for i := range got {
		g.Go(func() (err error) {
			got[i], err = b.store.Installation(t.Context())
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.NotEqual(t, uuid.Nil, got[0])
	for _, id := range got {
		require.Equal(t, got[0], id)
	}
	other, err := setup(t).store.Installation(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, got[0], other, "another database is another installation")
}
