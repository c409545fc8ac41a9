package wake

import "time"

// gate holds the waiters of one place. The hub's lock guards all of it.
type gate struct {
	hub   *Hub
	place place
	users int                          // registered waiters, idle or busy looking
	wild  map[string]*class            // waiters for any lane, by class
	lanes map[string]map[string]*class // by partition, then class
	// recent holds the lanes rung since the last tick; true: rung again since.
	recent map[string]bool
	timer  *time.Timer
}

func newGate(h *Hub, p place) *gate {
	return &gate{
		hub: h, place: p,
		wild:   make(map[string]*class),
		lanes:  make(map[string]map[string]*class),
		recent: make(map[string]bool),
	}
}

// ring wakes for one lane now, or at the next tick when it was rung just before.
func (g *gate) ring(lane string) {
	if _, again := g.recent[lane]; again {
		g.recent[lane] = true
		return
	}
	g.recent[lane] = false
	if g.timer == nil {
		g.timer = time.AfterFunc(Tick, g.tick)
	}
	g.release(lane)
}

// tick delivers what was folded and forgets lanes that stayed quiet.
func (g *gate) tick() {
	g.hub.mu.Lock()
	defer g.hub.mu.Unlock()
	if g.timer == nil {
		return // stopped meanwhile
	}
	for lane, again := range g.recent {
		if !again {
			delete(g.recent, lane)
			continue
		}
		g.recent[lane] = false
		g.release(lane)
	}
	if len(g.recent) == 0 {
		g.timer = nil
		g.retire()
		return
	}
	g.timer.Reset(Tick)
}

// release hands a wake of a lane to one waiter of every class that could serve
// it: a lane has at most one lease per group, so waking more would only make
// them look in vain. Of an unknown lane one waiter of every class hears.
func (g *gate) release(lane string) {
	if lane == "" {
		g.ready(Wide)
		for _, classes := range g.lanes {
			for _, c := range classes {
				c.signal(Wide)
			}
		}
		return
	}
	g.ready(Lane)
	for _, c := range g.lanes[lane] {
		c.signal(Lane)
	}
}

// ready wakes those that wait for any lane.
func (g *gate) ready(r Reason) {
	for _, c := range g.wild {
		c.signal(r)
	}
}

// find returns the class of a topic, nil when nobody waits for it.
func (g *gate) find(t Topic) *class {
	if t.Partition == "" {
		return g.wild[t.Class]
	}
	return g.lanes[t.Partition][t.Class]
}

// join returns the class of a topic with one user more.
func (g *gate) join(t Topic) *class {
	classes := g.wild
	if t.Partition != "" {
		if classes = g.lanes[t.Partition]; classes == nil {
			classes = make(map[string]*class)
			g.lanes[t.Partition] = classes
		}
	}
	c := classes[t.Class]
	if c == nil {
		c = &class{}
		classes[t.Class] = c
	}
	g.users++
	c.users++
	return c
}

// leave takes back what join gave and forgets what nobody uses any more.
func (g *gate) leave(t Topic, c *class) {
	g.users--
	c.users--
	c.missed = min(c.missed, c.users)
	if c.users == 0 {
		if t.Partition == "" {
			delete(g.wild, t.Class)
		} else if delete(g.lanes[t.Partition], t.Class); len(g.lanes[t.Partition]) == 0 {
			delete(g.lanes, t.Partition)
		}
	}
	g.retire()
}

// retire forgets a gate that nobody uses and no tick is due for.
func (g *gate) retire() {
	if g.users == 0 && g.timer == nil {
		delete(g.hub.gates, g.place)
	}
}

// rouse wakes every waiter.
func (g *gate) rouse() {
	for _, c := range g.wild {
		c.rouse()
	}
	for _, classes := range g.lanes {
		for _, c := range classes {
			c.rouse()
		}
	}
}

// stop wakes every idle waiter for the last time.
func (g *gate) stop() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	clear(g.recent)
	for _, c := range g.wild {
		c.dismiss()
	}
	for _, classes := range g.lanes {
		for _, c := range classes {
			c.dismiss()
		}
	}
}
