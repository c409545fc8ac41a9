package timers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/sweeper/internal/kv"
)

func TestPressureShedsFromTheBottom(t *testing.T) {
	t.Parallel()
	p := &pressure{}
	require.Equal(t, kv.ShedNothing, p.sheds())
	var sheds []kv.Shed
	var rows []int
	for range 10 {
		p.felt(true, false, 0)
		sheds, rows = append(sheds, p.sheds()), append(rows, p.rows(200))
	}
	require.Equal(t, kv.ShedPrune, sheds[0], "the prune first")
	require.Equal(t, kv.ShedRollup, sheds[1], "the rollup second")
	require.Equal(t, []int{100, 50, 25, 12, 8, 8, 8, 8, 8, 8}, rows, "the fire shrinks its claims, and never to nothing")
	require.Equal(t, 3, p.rows(3))
	require.Equal(t, pressureMax, p.level)

	for range 6 {
		p.felt(false, false, 0)
	}
	require.Equal(t, kv.ShedRollup, p.sheds())
	p.felt(false, false, 0)
	require.Equal(t, kv.ShedPrune, p.sheds())
	p.felt(false, false, 0)
	require.Equal(t, kv.ShedNothing, p.sheds())
	require.Equal(t, 200, p.rows(200))
}

func TestAFireThatFallsBehindShedsTheRest(t *testing.T) {
	t.Parallel()
	p := &pressure{}
	late := time.Second
	behind := func(n int) {
		for range n {
			late += time.Second
			p.felt(false, true, late)
		}
	}
	behind(2)
	require.Equal(t, kv.ShedNothing, p.sheds())
	behind(1)
	require.Equal(t, kv.ShedPrune, p.sheds())
	behind(2)
	require.Equal(t, kv.ShedPrune, p.sheds())
	behind(1)
	require.Equal(t, kv.ShedRollup, p.sheds())
	require.Equal(t, 200, p.rows(200), "a backlog is not drained sooner by smaller claims")

	p.felt(false, true, late)
	require.Equal(t, kv.ShedNothing, p.sheds(), "it does not grow any more")
	behind(3)
	p.felt(false, false, late+time.Second)
	require.Equal(t, kv.ShedNothing, p.sheds(), "the cycle took all there was")
}
