// Package soak loads an installation as its users do and judges what came of it: many
// lanes with numbered messages, groups that read and acknowledge them, a timer for each
// lane and a counter. It speaks plain HTTP to a base address and knows nothing of what
// runs behind it, so that it can run beside three processes as well as in a cluster.
//
// A lane is pushed to by one goroutine, one message after the other, so that its order
// is known, and each message is sent again under its transaction id until it is answered.
// What was delivered is judged at once, by the number alone:
//
//   - a delivery of a lane is one run of numbers;
//   - it goes on where the deliveries of the group ended, or repeats some of them;
//   - it repeats nothing that the group had acknowledged when it asked;
//   - it repeats something only once the lease on it has ended, or where the answer to
//     an acknowledgement did not arrive.
//
// In the end every group must have had everything that was stored, and nothing else.
package soak
