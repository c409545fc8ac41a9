package admission

import "time"

// The constants of the control law.
const (
	// lateCycles is how many flush cycles an admitted transaction may take. One
	// and a half are normal: the rest of the flush under way and its own.
	lateCycles = 4
	// lateTicks in a row make it a fact and not a hiccup.
	lateTicks = 2
	// wideningPercent of the usual cycle or more is a stalling disk. Fewer
	// transactions would not make it faster.
	wideningPercent = 125
	// usualParts is the inverse weight of a tick in the usual cycle.
	usualParts = 4
	// stepParts is the inverse of a step: a tenth, at least 1.
	stepParts = 10
	// stillTicks keep a level that proved too high from being tried again at once.
	// Every further failure doubles them, up to maxStillTicks.
	stillTicks    = 6
	maxStillTicks = 120

	// noSyncTicks in a row decide that commits carry no signal, or that they do.
	noSyncTicks = 3
	// leastCommits is how many commit times a tick needs for a percentile.
	leastCommits = 20

	// betterPercent of the completions before a raise justify it.
	betterPercent = 105
	// For pops it is the age of the oldest lane that is ready: a lower one, or one
	// nobody minds.
	youngerPercent = 90
	youngEnough    = 10 * time.Millisecond
	// A worse age does not count against a raise while more lanes became ready and
	// as many were visited: then it is the load that grew.
	deeperPercent  = 120
	visitedPercent = 95
)

// sight is what the gate saw during one tick.
type sight struct {
	trains     trainSight
	exhausted  bool          // somebody found the budget used up
	oldest     time.Duration // age of the oldest transaction, outliers aside
	commitTime time.Duration // the 10th percentile; 0: too few to tell
	lanes      [classes]laneSight
}

// laneSight is the part of one class.
type laneSight struct {
	capped bool // somebody found the lane's cap reached and the budget not
	done   int  // slots given back

	// Of pops where known: the age of the oldest lane that is ready, and how many are.
	aged  bool
	age   time.Duration
	depth int
}

// decision is what the law made of a tick. Lane is empty for the budget.
type decision struct {
	what string
	lane string
	from int
	to   int
}

// The decisions.
const (
	grow, shrink   = "grow", "shrink"
	pin, unpin     = "pin", "unpin"
	raise          = "raise"
	keep, hold     = "keep", "hold"
	revert         = "revert"
	wholeBudget    = ""
	decisionsAtTop = 1 + int(classes)
)

// law decides how many slots there are. It knows no clock and no lock: it is fed
// one sight per tick.
type law struct {
	min, max int // of the budget
	noSync   int // the budget while pinned
	floor    time.Duration

	budget   int
	adaptive int // what the budget returns to when it is no longer pinned
	pinned   bool
	fast     int // ticks in a row that speak for pinning, or against it

	last    string        // decision about the budget
	usual   time.Duration // smoothed flush cycle
	late    int           // ticks in a row with a late transaction
	tooHigh int           // level that proved too high, 0 for none
	still   int           // ticks until it may be tried again
	penalty int           // how many those will be

	lanes [classes]laneLaw
}

// laneLaw is the cap of one class.
type laneLaw struct {
	cap     int
	probing bool
	from    int       // cap before the raise
	before  laneSight // what the raise is judged against
	still   int
}

func newLaw(cfg Config) law {
	l := law{
		min: cfg.Min, max: cfg.Max, noSync: min(max(cfg.NoSync, cfg.Min), cfg.Max), floor: 2 * cfg.TrainGap,
		budget: cfg.Init, adaptive: cfg.Init, penalty: stillTicks,
	}
	for c := range l.lanes {
		l.lanes[c].cap = cfg.Init
	}
	return l
}

// step takes in one tick and returns what it decided.
func (l *law) step(s sight) []decision {
	made := make([]decision, 0, decisionsAtTop)
	from := l.budget
	if what := l.stepBudget(s); what != "" {
		made = append(made, decision{what, wholeBudget, from, l.budget})
		l.last = what
	}
	for c := range classes {
		lane := &l.lanes[c]
		from := lane.cap
		if what := lane.step(s.lanes[c], l.max); what != "" {
			made = append(made, decision{what, c.String(), from, lane.cap})
		}
	}
	return made
}

func (l *law) stepBudget(s sight) string {
	late := l.isLate(s.trains.cycle, s.oldest)
	if what := l.stepPin(s.commitTime); what != "" {
		return what
	}
	if l.pinned {
		return ""
	}
	if l.still > 0 {
		l.still--
	}
	what := ""
	switch {
	case late && l.budget > l.min:
		l.tooHigh, l.still = l.budget, l.penalty
		l.penalty = min(2*l.penalty, maxStillTicks)
		l.budget, l.late, what = max(l.min, l.budget-step(l.budget)), 0, shrink
	case l.late == 0 && s.exhausted:
		if l.tooHigh > 0 && l.budget >= l.tooHigh {
			l.tooHigh, l.penalty = 0, stillTicks // it holds now
		}
		if to := l.growth(); to > l.budget {
			l.budget, what = to, grow
		}
	}
	l.adaptive = l.budget
	return what
}

// isLate says whether transactions have been queueing within the database for
// some ticks. A disk that stalls, or commits without a visible cycle, say
// nothing about that.
func (l *law) isLate(cycle, oldest time.Duration) bool {
	if cycle == 0 {
		l.late = 0
		return false
	}
	widening := l.usual > 0 && cycle*100 >= l.usual*wideningPercent
	if l.usual == 0 {
		l.usual = cycle
	}
	l.usual += (cycle - l.usual) / usualParts
	if widening || oldest <= lateCycles*cycle {
		l.late = 0
		return false
	}
	l.late++
	return l.late >= lateTicks
}

// growth is the next level up, short of one that proved too high.
func (l *law) growth() int {
	to := min(l.max, l.budget+step(l.budget))
	if l.still > 0 && to >= l.tooHigh {
		to = l.tooHigh - 1
	}
	return to
}

// stepPin fixes the budget while the log is flushed too fast, or not at all, for
// its cycle to be seen: a transaction takes at least the flush it waits for, and
// trains closer than their gap look like one.
func (l *law) stepPin(commitTime time.Duration) string {
	switch {
	case commitTime == 0: // no news
		return ""
	case (commitTime < l.floor) == l.pinned:
		l.fast = 0
		return ""
	}
	if l.fast++; l.fast < noSyncTicks {
		return ""
	}
	l.fast, l.pinned = 0, !l.pinned
	if l.pinned {
		l.budget = l.noSync
		return pin
	}
	l.budget = l.adaptive
	return unpin
}

func step(level int) int { return max(1, level/stepParts) }

// step judges the raise being tried, or tries one where the cap was in the way.
func (l *laneLaw) step(s laneSight, ceiling int) string {
	switch {
	case l.probing:
		what := l.judge(s)
		if what != hold {
			l.probing = false
		}
		if what == revert {
			l.cap, l.still = l.from, stillTicks
		}
		return what
	case l.still > 0:
		l.still--
	case s.capped && l.cap < ceiling:
		l.probing, l.from, l.before = true, l.cap, s
		l.cap = min(ceiling, l.cap+step(l.cap))
		return raise
	}
	return ""
}

func (l *laneLaw) judge(s laneSight) string {
	switch {
	case !s.aged || !l.before.aged:
		if s.done*100 >= l.before.done*betterPercent {
			return keep
		}
	case s.age <= youngEnough, s.age*100 <= l.before.age*youngerPercent:
		return keep
	case s.age > l.before.age && s.depth*100 >= l.before.depth*deeperPercent && s.done*100 >= l.before.done*visitedPercent:
		return hold
	}
	return revert
}
