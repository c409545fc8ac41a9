package admission

import (
	"cmp"
	"fmt"
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
	c.Shares = cmp.Or(c.Shares, SharesDefault())
	c.MaxWaiting = cmp.Or(c.MaxWaiting, MaxWaitingDefault)
	c.MaxWait = cmp.Or(c.MaxWait, MaxWaitDefault)
	if c.Slots < 1 || c.MaxWaiting < 0 || c.MaxWait < 0 {
		return c, fmt.Errorf("%d slots, %d waiting for %s are no bounds", c.Slots, c.MaxWaiting, c.MaxWait)
	}
	c.shares = [classes]float64{Push: c.Shares.Push, Pop: c.Shares.Pop, Ack: c.Shares.Ack, Maint: c.Shares.Maint}
	var sum float64
	for i := range c.shares {
		c.shares[i] = max(c.shares[i], leastShare)
		sum += c.shares[i]
	}
	for i := range c.shares {
		c.shares[i] /= sum
	}
	return c, nil
}
