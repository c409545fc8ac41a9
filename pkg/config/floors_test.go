package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/logtest"
)

func TestFloorsRaiseWhatIsBelowAndSaySo(t *testing.T) {
	t.Parallel()
	var f config.Floors
	low, exact, bytes, brief, long := 0, 3, int64(7), 999*time.Millisecond, time.Second
	f.Count("LOW", &low, 1)
	f.Count("EXACT", &exact, 3)
	f.Size("BYTES", &bytes, 8)
	f.Wait("BRIEF_MS", &brief, time.Second)
	f.Wait("LONG_MS", &long, time.Second)
	require.Equal(t, []any{1, 3, int64(8), time.Second, time.Second}, []any{low, exact, bytes, brief, long})
	log, lines := logtest.NewRecorder()
	f.Warn(t.Context(), log)
	require.Equal(t, 3, strings.Count(lines.String(), "value is below its floor and was raised"))
	require.Contains(t, lines.String(), "variable=LOW requested=0 effective=1\n")
	require.Contains(t, lines.String(), "variable=BRIEF_MS requested=999 effective=1000\n")
}
