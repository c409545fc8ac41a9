package store_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Operations may be as long as a body: they are copied into what is sent, and not
// once more on their way there.
//
//nolint:paralleltest // what is measured is of the whole process
func TestOperationsAreCopiedOnce(t *testing.T) {
	b := setup(t)
	long := strings.Repeat("AAAA", 2<<20)
	schedule := json.RawMessage(`[{"op":"schedule","queue":"q","timerKey":"k","delayMs":60000,"txn":"t","payload":"` + long + `"}]`)
	refused := json.RawMessage(`[{"op":"put","ns":"n","key":"k","value":"` + long + `","forever":true}]`)
	for name, call := range map[string]func() error{
		"timers": func() error {
			_, err := b.store.TimersApply(t.Context(), store.DefaultTenant(), "", schedule)
			return err
		},
		"keys": func() error {
			_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), refused)
			var tooLarge *store.KVRefused
			require.ErrorAs(t, err, &tooLarge)
			return nil
		},
	} {
		require.NoError(t, call(), "the connection is there now")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.NoError(t, call())
		runtime.ReadMemStats(&after)
		// The buffer of what is sent has grown before it was large enough.
		require.Less(t, float64(after.TotalAlloc-before.TotalAlloc)/float64(len(long)), 2.5, name)
	}
}
