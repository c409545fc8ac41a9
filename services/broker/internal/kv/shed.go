package kv

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
)

// ShedAfterDefault is how many calls in a row may find no connection.
const ShedAfterDefault = 5

// shedFor is how long writes are turned away after the last call that found no
// connection. Then they try again: reads alone need not come along to find out.
const shedFor = time.Second

// shed turns writes away while calls find no connection. It ends as soon as any call
// has one, or a second after the last that had none; if writes then find none again,
// it goes on at once.
type shed struct {
	after   int64
	refused atomic.Int64 // calls in a row
	last    atomic.Int64 // Unix nanoseconds of the last of them
}

func (s *shed) on() bool {
	return s.refused.Load() >= s.after && time.Since(time.Unix(0, s.last.Load())) < shedFor
}

// noConnection notes a call that found none.
func (s *shed) noConnection() {
	s.last.Store(time.Now().UnixNano())
	s.refused.Add(1)
}

// connected notes a call that had a connection, whatever became of it.
func (s *shed) connected() {
	if s.refused.Load() != 0 {
		s.refused.Store(0)
	}
}

// pool notes whether a call had a connection.
func (s *Service) pool(d Demand, err error) {
	switch {
	case errors.Is(err, pgdb.ErrExhausted):
		s.shed.noConnection()
		s.gate.KVPoolRefused(d.Reads > 0, d.Writes > 0)
	case !errors.Is(err, pgdb.ErrPool):
		s.shed.connected()
	}
}
