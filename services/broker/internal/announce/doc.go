// Package announce is the one place that hears of new work after a commit and
// tells whom it concerns: the hot list, the pops that wait here, and the peers.
//
// An announcement only ever means "look at PostgreSQL now". It may be lost,
// repeated or reordered; then somebody looks later, or in vain. Nothing here
// blocks but CursorsMoved, and nothing here remembers anything but the nearest timer that sweepers
// were told: what folds repeated announcements are the hub, the hot list and the
// pool, each for itself.
//
//	                                 hot list   waiting pops   caches   peers
//	Pushed       push committed      quietly    yes            -        yes
//	Taken        messages claimed    -          -              -        yes
//	Wake         any other write     at once    yes            -        yes
//	Released     a lease ended       promote    of the lane    -        yes
//	CursorMoved  cursor went back    one group  yes            -        yes
//	CursorsMoved all of a group did  walk       yes            -        yes
//	GroupDeleted cursors are gone    drop ring  yes            -        yes
//	QueueChanged configured, deleted re-read    yes            drop     yes
//	TimerDue     timers scheduled    -          -              -        if nearer
//	FlagsChanged a switch flipped    -          -              -        yes
//
// The last one has the switches read again, here as well.
//
// Where there is a hot list, it wakes the pops after a push, since only it knows
// whether the lane is hidden for a while; where there is none, the hub is told.
// What a push of a peer wakes is folded like that of our own: by then a peer may
// have told that it took the messages.
//
// Local is everything but the peers. What a peer has announced goes through
// Local, so that it cannot be passed on.
package announce
