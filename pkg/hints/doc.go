// Package hints tells other processes of one installation where to look. It is a
// gossip pool of brokers and sweepers over memberlist.
//
// A hint only ever means "look at PostgreSQL now". It may be lost, repeated,
// reordered or forged: then somebody looks later, or in vain. So nothing here is
// acknowledged or repeated, nobody waits for anything, and every buffer has a
// bound beyond which hints are dropped and counted.
//
// # Sending
//
//	Send -> batch (a set: equal hints become one) -> flush -> one datagram per peer
//
// The first hint of an idle process is sent at once; those that follow gather
// for FlushInterval. A flush goes straight to every member that can use it, not
// through the slow gossip queue, in datagrams that no network fragments. A hint
// too long for one is sent with less in it: without the lane it means the queue.
//
// # Receiving
//
//	datagram -> inbox (bounded) -> decode, all or nothing -> Deps.Receive
//
// Kinds that this build does not know are skipped, and so are whole datagrams of
// another version. Nothing that was received is ever sent on.
//
// # Membership
//
// The configured peers are resolved again and again. An address that is no
// member is asked to join, so that a pool that was split, or that started in
// pieces, becomes one as soon as the pieces reach each other. Members speak only
// to those with the same secret (it encrypts all traffic) and the same label,
// which is the identity of the database: two installations never merge, even
// where an address moves from one to the other. A process that starts again is a
// new member; what peers remember of its last life does not concern it.
package hints
