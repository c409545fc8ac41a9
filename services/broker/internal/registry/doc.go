// Package registry remembers what this broker has delivered under leases: the
// set of each leased batch, so that an ack of exactly that set is one cursor move
// instead of a search for its hashes, and the lanes that each lease covers, so
// that its renewal need not search for them.
//
// A batch is born with a leasing pop (Delivered), replaces what its lane and
// group had before, and dies when an ack matches it (Match, Take), before anything
// else is done under its lease (Forget, Drop), some time after its lease, or by
// eviction. The lanes of a lease live as long as the lease may (Released, Keep).
//
// Nothing here decides. The database checks the lease, and that nothing of the
// batch was committed meanwhile, under the lock of the cursor; what it cannot
// check is that the acked ids are the batch's. That is what the registry vouches
// for, and it does so only for batches without a repeated id (design rule 16):
// the set of {a, a, b} says not which a was acked.
//
// A set is kept as its size and one 128-bit sum: every hash is encrypted by AES
// under a key that this process draws at boot and never shows, and the results
// are added modulo 2^128. A permutation of blocks under a secret key is as good
// as random, so the sums of two different multisets of at most 2^32 members are
// equal with a probability below 2^-96, however a client chooses its ids: it sees
// neither key nor sums, and has one guess for each delivery, since an ack that
// was compared and found different goes by its hashes, which forgets the batch. A
// batch costs the same few hundred bytes whether it holds one message or ten
// thousand.
package registry
