package retention

import (
	"cmp"
	"time"
)

// Defaults of Config.
const (
	IntervalDefault   = 5 * time.Second
	BatchSizeDefault  = 1000
	CleanupAgeDefault = 30 * 24 * time.Hour
	MetricsAgeDefault = 90 * 24 * time.Hour
)

// CleanupAgeMin is the least age at which an empty partition is removed: a
// setting of 0 must not mean everything that was quiet for a second.
const CleanupAgeMin = 24 * time.Hour

// Cadences and bounds.
const (
	// PhaseTime is after how long a phase that deletes leaves the rest to the
	// next cycle.
	PhaseTime = 2 * time.Second
	// LookTime is the same of a phase that has found nothing to delete, and what
	// every phase gets although an eviction is due.
	LookTime = 500 * time.Millisecond
	// TurnTime is how long a queue may be worked on while others wait for theirs.
	TurnTime = 250 * time.Millisecond
	// EvictPause is the least time between two turns of the eviction alone.
	EvictPause = time.Second
	// ClockPeriod is how often partitions are cleaned up and watermarks are
	// tested, whatever the interval of the cycle.
	ClockPeriod = time.Minute
	// WalkTime is how long, in each ClockPeriod, the lanes' watermarks are compared
	// with their first rows: about 6000 lanes, a million in three hours.
	WalkTime = 50 * time.Millisecond
	// HeldMin and HeldMax bound how long a lane is left alone that is due and held
	// by a slow group.
	HeldMin = 5 * time.Second
	HeldMax = 10 * time.Minute
	// StepTime is what a step should take at most, since pushes of its lane wait
	// for it: slower ones are followed by smaller ones.
	StepTime = 200 * time.Millisecond
	// EvictHeldMax is the same as HeldMax of a lane whose eviction did not succeed:
	// those have a promise to keep.
	EvictHeldMax = 5 * time.Second
	// AsideLanes is how many lanes a phase remembers that were locked or failed,
	// about 100 bytes each.
	AsideLanes = 10_000
	// HastyWait is how long a step waits for its lane once another has waited in
	// vain in the same run of its phase: who holds one may hold a thousand.
	HastyWait = 50 * time.Millisecond
	// RestAfter, RestFactor and RestMost say how steps give way to others: after so
	// much work, for so many times as long, and never longer (the server ends the
	// session of a leader that is silent). RestMemory is for how long others that
	// were seen at work count as being so.
	RestAfter  = 20 * time.Millisecond
	RestFactor = 3
	RestMost   = time.Second
	RestMemory = time.Second
	// ErrorQuiet and PurgeQuiet are the least times between two lines about a
	// cycle that failed, or did not release its lock, and about a metrics purge
	// that failed.
	ErrorQuiet = 30 * time.Second
	PurgeQuiet = time.Minute

	pageLanes     = 1000 // lanes of one look, and of one held range
	walkLanes     = 1000 // lanes of one step of the safety walk
	laneErrors    = 10   // failures in a row that may concern all lanes before a phase is given up
	releaseTime   = 2 * time.Second
	evictionSlack = 10 * time.Millisecond // past the instant, so that its lanes are due for certain
)

// Names of the clocks and of the walk's places in queen.system_state.
const (
	cleanupClock = "retention_cleanup"
	walkClock    = "retention_walk"
	deepPlace    = "retention_walk_deep"
	shallowPlace = "retention_walk_shallow"
)

// Config tunes the cycle. Zero values take the defaults, but for Cleanup.
type Config struct {
	// Interval is the time from the start of a cycle to the start of the next.
	Interval time.Duration
	// BatchSize is how many rows a step deletes at most, and how many partitions.
	BatchSize int
	// Cleanup switches on the removal of empty partitions, CleanupAge is how long
	// they must have been quiet; CleanupAgeMin at least.
	Cleanup    bool
	CleanupAge time.Duration
	// MetricsAge is how long the rows of the metrics tables and the retention
	// history are kept.
	MetricsAge time.Duration
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, IntervalDefault)
	c.BatchSize = cmp.Or(c.BatchSize, BatchSizeDefault)
	c.CleanupAge = max(cmp.Or(c.CleanupAge, CleanupAgeDefault), CleanupAgeMin)
	c.MetricsAge = cmp.Or(c.MetricsAge, MetricsAgeDefault)
	return c
}
