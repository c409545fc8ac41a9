package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	b := setup(t)
	read := func() map[store.Flag]bool {
		flags, err := b.store.Flags(t.Context(), store.FlagPushMaintenance, store.FlagPopMaintenance)
		require.NoError(t, err)
		return flags
	}
	require.Empty(t, read(), "what is not recorded is left out")
	require.NoError(t, b.store.SetFlags(t.Context(), map[store.Flag]bool{store.FlagPushMaintenance: true, store.FlagPopMaintenance: false, store.FlagKV: false}))
	require.Equal(t, map[store.Flag]bool{store.FlagPushMaintenance: true, store.FlagPopMaintenance: false}, read())
	require.NoError(t, b.store.SetFlags(t.Context(), map[store.Flag]bool{store.FlagPopMaintenance: true}))
	require.Equal(t, map[store.Flag]bool{store.FlagPushMaintenance: true, store.FlagPopMaintenance: true}, read())

	for _, value := range []string{`{}`, `null`, `[]`, `true`, `{"enabled":"true"}`, `{"enabled":1}`, `{"enabled":null}`} {
		b.exec(`UPDATE queen.system_state SET value = $1::TEXT::JSONB WHERE key = 'maintenance_mode'`, value)
		require.Equal(t, map[store.Flag]bool{store.FlagPopMaintenance: true}, read(), "%s is no flag", value)
	}
}
