package timers

import (
	"time"

	"github.com/queenmq/queen/services/sweeper/internal/kv"
)

const (
	// pressureMax is up to where failures of the database raise the pressure: pauses
	// are doubled, and claims halved, so many times at most.
	pressureMax = 8
	// claimLeast is the fewest timers that a claim asks for under pressure: the least
	// share of a shard.
	claimLeast = 8
	// shedRollupAt is from which pressure on the rollup is left out too; the prune is
	// from 1 on.
	shedRollupAt = 2
	// behindPrune and behindRollup are after how many cycles in a row that took all
	// they may, while timers became later all the same, each is left out.
	behindPrune  = 3
	behindRollup = 6
)

// pressure is what a sweeper feels of the database. Failures say that it is in trouble:
// then the fire shrinks its claims and lengthens its pauses, but never stops. Timers that
// become later although cycles take all they may say that this sweeper is too slow: then
// it leaves out what nobody waits for.
type pressure struct {
	level  int
	behind int
	late   time.Duration
}

// felt notes a cycle.
func (p *pressure) felt(failed, capped bool, late time.Duration) {
	if failed {
		p.level = min(p.level+1, pressureMax)
	} else {
		p.level = max(p.level-1, 0)
	}
	if capped && late > p.late {
		p.behind++
	} else if !failed {
		p.behind = 0
	}
	p.late = late
}

// sheds is what is left out, from the bottom of the ladder.
func (p *pressure) sheds() kv.Shed {
	switch {
	case p.level >= shedRollupAt || p.behind >= behindRollup:
		return kv.ShedRollup
	case p.level > 0 || p.behind >= behindPrune:
		return kv.ShedPrune
	}
	return kv.ShedNothing
}

// rows is how many timers a claim asks for instead of so many.
func (p *pressure) rows(n int) int { return max(n>>p.level, min(n, claimLeast)) }
