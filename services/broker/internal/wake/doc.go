// Package wake lets long polls sleep until something may have become
// deliverable, and wakes no more of them than can be served.
//
// A waiter is registered before it looks for work, so that an announcement can
// fall between its look and its sleep without being missed. It is in one of two
// states:
//
//	busy --Rest--> idle --Woken---> busy --Begin, look--> ...
//
// A wake goes to the waiter of a class that has been idle longest. When all of
// them are busy it is kept for the first that wants to rest, which then looks
// once more. A waiter that ends without having answered its wake hands it on.
//
// An idle waiter costs no goroutine: Woken is a callback. Seize
// takes an idle waiter without waking it, for somebody who does its work.
package wake
