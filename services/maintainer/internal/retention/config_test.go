package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigDefaultsAndFloor(t *testing.T) {
	t.Parallel()
	require.Equal(t, Config{
		Interval: 5 * time.Second, BatchSize: 1000, CleanupAge: 30 * 24 * time.Hour, MetricsAge: 90 * 24 * time.Hour,
	}, Config{}.withDefaults())
	for given, want := range map[time.Duration]time.Duration{
		time.Second: 24 * time.Hour, 24 * time.Hour: 24 * time.Hour, 25 * time.Hour: 25 * time.Hour,
	} {
		require.Equal(t, want, Config{CleanupAge: given}.withDefaults().CleanupAge)
	}
	own := Config{Interval: time.Second, BatchSize: 1, Cleanup: true, CleanupAge: 48 * time.Hour, MetricsAge: time.Hour}
	require.Equal(t, own, own.withDefaults())
}
