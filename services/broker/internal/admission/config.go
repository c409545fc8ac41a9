package admission

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
)

// Class is the kind of work a slot is taken for.
type Class int

// The classes. A transaction counts as a push: both hold lane locks. Maint is
// work in the background.
const (
	Push Class = iota
	Pop
	Ack
	Maint
	classes
)

// String returns the name of the class in metrics and logs.
func (c Class) String() string {
	return [classes]string{"push", "pop", "ack", "maint"}[c]
}

// wakeOrder is the order in which waiting classes are served when a slot is
// free: finishing work before handing out work before taking in more.
func wakeOrder() [classes]Class { return [classes]Class{Ack, Pop, Push, Maint} }

// Config sizes a Gate. Zero values take the defaults.
type Config struct {
	// Slots is the number of slots there can be (default 32). It stays below the
	// pool's size, so that a slot never waits for a connection.
	Slots int
	// Min, Init and Max bound the budget, which adapts between them (default two
	// thirds of the slots, at least 8, for Min and Init; 128 for Max). None is
	// above Slots.
	Min, Init, Max int
	// NoSync is the budget while commits are too fast to tell anything (default
	// 64, within Min and Max).
	NoSync int
	// Tick is the time between two decisions (default 500 ms).
	Tick time.Duration
	// TrainGap is the pause that separates the commits of two flushes (default
	// 300 µs).
	TrainGap time.Duration
	// PopAge tells how long the lane that has been ready for the longest waits to
	// be popped, and how many are ready. Without it pops are judged like the
	// others, by how many complete.
	PopAge func() (oldest time.Duration, depth int)
	// Trace hears of every decision; nil for none.
	Trace *slog.Logger
	// Shares rank those who wait once the budget is used up (default 0.30 for ack,
	// 0.40 for pop, 0.25 for push, 0.05 for maint).
	Shares Shares
	// MaxWaiting is the number of requests that may wait per class (default 4096).
	MaxWaiting int
	// MaxWait is how long one of them may wait (default 10 s).
	MaxWait time.Duration

	shares [classes]float64 // what Shares come to: positive, 1 in all
}

// Shares are the parts of the budget that the classes may count on when others
// want them too.
type Shares struct{ Push, Pop, Ack, Maint float64 }

// Defaults of Config.
const (
	SlotsDefault      = 32
	MinDefault        = 8 // or two thirds of the slots, if that is more
	MaxDefault        = 128
	NoSyncDefault     = 64
	TickDefault       = 500 * time.Millisecond
	TrainGapDefault   = 300 * time.Microsecond
	MaxWaitingDefault = 4096
	MaxWaitDefault    = 10 * time.Second
)

// SharesDefault returns the default shares.
func SharesDefault() Shares { return Shares{Push: 0.25, Pop: 0.40, Ack: 0.30, Maint: 0.05} }

// leastShare is what a class without a share counts with, so that it is served
// last and rarely, but is served.
const leastShare = 0.01

// resolve fills in the defaults and what follows from the settings.
func (c Config) resolve() (Config, error) {
	c.Slots = cmp.Or(c.Slots, SlotsDefault)
	c.NoSync = cmp.Or(c.NoSync, NoSyncDefault)
	c.Tick = cmp.Or(c.Tick, TickDefault)
	c.TrainGap = cmp.Or(c.TrainGap, TrainGapDefault)
	c.Shares = cmp.Or(c.Shares, SharesDefault())
	c.MaxWaiting = cmp.Or(c.MaxWaiting, MaxWaitingDefault)
	c.MaxWait = cmp.Or(c.MaxWait, MaxWaitDefault)
	if min(c.Slots, c.Min+1, c.Init+1, c.Max+1, c.NoSync, c.MaxWaiting) < 1 {
		return c, fmt.Errorf("%d slots (%d to %d, at first %d, %d without a signal), %d waiting are no bounds",
			c.Slots, c.Min, c.Max, c.Init, c.NoSync, c.MaxWaiting)
	}
	if min(c.Tick, c.TrainGap, c.MaxWait) < 0 {
		return c, fmt.Errorf("a tick of %s, a gap of %s, a wait of %s are no times", c.Tick, c.TrainGap, c.MaxWait)
	}
	floor := max(MinDefault, c.Slots*2/3)
	c.Max = min(cmp.Or(c.Max, MaxDefault), c.Slots)
	c.Min = min(cmp.Or(c.Min, floor), c.Max)
	c.Init = min(max(cmp.Or(c.Init, floor), c.Min), c.Max)
	c.shares = c.Shares.normal()
	return c, nil
}

// normal makes the shares positive and 1 in all.
func (s Shares) normal() [classes]float64 {
	parts := [classes]float64{Push: s.Push, Pop: s.Pop, Ack: s.Ack, Maint: s.Maint}
	var sum float64
	for c := range parts {
		parts[c] = max(parts[c], leastShare)
		sum += parts[c]
	}
	for c := range parts {
		parts[c] /= sum
	}
	return parts
}
