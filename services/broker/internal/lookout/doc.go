// Package lookout finds the messages of timers soon after they were fired, while no
// sweeper tells this broker of them: the hint pool is off, or no sweeper is in it.
//
// Then a parked pop would hear of a message at the next look that all pops of its
// kind share, which is a second away. The lookout looks more often, but only when it
// is worth it:
//
//	no pop is parked      nothing at all, not even a timer of its own
//	a sweeper is linked   nothing: its hints are quicker than any look
//	otherwise             four times a second: is a timer due until the next time?
//	  if so               a look every 50 ms
//
// What this broker schedules meanwhile is known without asking. A timer counts until
// Stay after its time: it may wait for the sleep of a sweeper, and then for its fire.
//
// Looks take no more than a tenth of the time. Where they are slow they are rarer, and
// where they cannot keep up there are the ordinary ones.
package lookout
