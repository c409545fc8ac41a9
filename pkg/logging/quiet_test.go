package logging_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logging"
)

func TestQuietCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := logging.Quiet{Every: time.Minute}
		left, ok := q.Speak()
		require.True(t, ok)
		require.Zero(t, left)
		for range 3 {
			_, ok = q.Speak()
			require.False(t, ok)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		_, ok = q.Speak()
		require.False(t, ok)
		time.Sleep(time.Nanosecond)
		left, ok = q.Speak()
		require.True(t, ok)
		require.Equal(t, 4, left)
		time.Sleep(time.Hour)
		left, ok = q.Speak()
		require.True(t, ok)
		require.Zero(t, left)
	})
}
