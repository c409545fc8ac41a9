package clock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/clock"
)

func TestAFakeMovesOnlyWhenTold(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	f := clock.NewFake(start)
	require.Equal(t, start, f.Now())
	require.Equal(t, start.Add(time.Hour), f.Advance(time.Hour))
	require.Equal(t, start.Add(time.Hour), f.Now())
	f.Set(start)
	require.Equal(t, start, f.Now())

	var g sync.WaitGroup
	for range 10 {
		g.Go(func() { f.Advance(time.Second) })
	}
	g.Wait()
	require.Equal(t, start.Add(10*time.Second), f.Now())
}

func TestBothAreClocks(t *testing.T) {
	t.Parallel()
	before := time.Now()
	for _, c := range []clock.Clock{clock.System{}, clock.NewFake(before)} {
		require.False(t, c.Now().Before(before))
	}
}
