package segment

import "github.com/zeebo/xxh3"

// HashSize is the width of one slot of queen.log_txns.hashes.
const HashSize = 16

// Hash is the 128-bit xxh3 of a transaction id (seed 0), big-endian.
func Hash(transactionID string) [HashSize]byte {
	return xxh3.HashString128(transactionID).Bytes()
}

// AppendHash appends the hash of a transaction id.
func AppendHash(dst []byte, transactionID string) []byte {
	h := Hash(transactionID)
	return append(dst, h[:]...)
}
