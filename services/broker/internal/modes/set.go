package modes

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// Every is how often flags are read.
const Every = time.Second

// Store is where flags are recorded.
type Store interface {
	Flags(ctx context.Context, flags ...store.Flag) (map[store.Flag]bool, error)
	SetFlags(ctx context.Context, flags map[store.Flag]bool) error
}

// Flag is one flag of a Set.
type Flag struct {
	Key     store.Flag
	Name    string // in the log
	Default bool   // while it is not recorded
}

// Bits are the flags of a Set at one instant, in its order.
type Bits uint32

// On says whether a flag is on.
func (b Bits) On(i int) bool { return b&(1<<i) != 0 }

// with is b with the bits of mask replaced by those of values.
func (b Bits) with(mask, values Bits) Bits { return b&^mask | values&mask }

// Set is up to 32 flags. It is safe for concurrent use.
type Set struct {
	store Store
	log   *slog.Logger
	flags []Flag
	keys  []store.Flag
	// flipped hears of every change in force, under the lock; it may be nil.
	flipped func(was, is Bits)
	kick    chan struct{}
	inForce atomic.Uint32

	mu       sync.Mutex
	recorded Bits // as it was last read
	unsaved  Bits // mask of those that are in force here alone
	changes  int  // made here; a reading that was begun before one says nothing
}

// NewSet returns a set in which the defaults are in force.
func NewSet(db Store, log *slog.Logger, flags ...Flag) *Set {
	s := &Set{store: db, log: log, flags: flags, kick: make(chan struct{}, 1)}
	for _, f := range flags {
		s.keys = append(s.keys, f.Key)
	}
	s.recorded = s.bits(nil)
	s.inForce.Store(uint32(s.recorded))
	return s
}

// bits are the flags as they are recorded, or else by default.
func (s *Set) bits(recorded map[store.Flag]bool) (b Bits) {
	for i, f := range s.flags {
		on, ok := recorded[f.Key]
		if on || !ok && f.Default {
			b |= 1 << i
		}
	}
	return b
}

// InForce are the flags as they are in force here.
func (s *Set) InForce() Bits { return Bits(s.inForce.Load()) }

// Read reads the flags and puts them in force; when that fails, they stay.
func (s *Set) Read(ctx context.Context) error {
	s.mu.Lock()
	before := s.changes
	s.mu.Unlock()
	read, err := s.store.Flags(ctx, s.keys...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != before {
		return nil
	}
	now := s.bits(read)
	s.unsaved &^= s.recorded ^ now
	s.recorded = now
	s.force(ctx, now.with(s.unsaved, s.InForce()))
	return nil
}

// Change changes flags: here at once, and then on record. mirrored tells whether they
// are on record; otherwise the change holds here alone.
func (s *Set) Change(ctx context.Context, flags map[store.Flag]bool) (mirrored bool) {
	var mask Bits
	for i, f := range s.flags {
		if _, ok := flags[f.Key]; ok {
			mask |= 1 << i
		}
	}
	values := s.bits(flags)
	s.change(ctx, mask, values, func() { s.unsaved |= mask })
	if err := s.store.SetFlags(ctx, flags); err != nil {
		s.log.WarnContext(ctx, "switches could not be recorded, they hold in this process alone", logging.Err(err))
		return false
	}
	s.change(ctx, mask, values, func() {
		s.unsaved &^= mask
		s.recorded = s.recorded.with(mask, values)
	})
	return true
}

// change puts a change in force; note says what is known of its record.
func (s *Set) change(ctx context.Context, mask, values Bits, note func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	note()
	s.force(ctx, s.InForce().with(mask, values))
}

// force puts flags in force and logs those that have flipped. The caller holds the
// lock.
func (s *Set) force(ctx context.Context, next Bits) {
	was := Bits(s.inForce.Swap(uint32(next)))
	for i, f := range s.flags {
		if was.On(i) != next.On(i) {
			s.log.WarnContext(ctx, "switch has flipped", slog.String(logging.KeySwitch, f.Name), slog.Bool(logging.KeyOn, next.On(i)))
		}
	}
	if was != next && s.flipped != nil {
		s.flipped(was, next)
	}
}

// Run reads the flags at once, every second, and when kicked, until ctx ends. It logs
// the beginning and the end of a time in which they cannot be read.
func (s *Set) Run(ctx context.Context) error {
	every := time.NewTicker(Every)
	defer every.Stop()
	failing := false
	for {
		err := s.Read(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			s.log.WarnContext(ctx, "switches cannot be read, they stay as they are", logging.Err(err))
		case err == nil && failing:
			s.log.InfoContext(ctx, "switches are read again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		case <-s.kick:
		}
	}
}

// Kick has the flags read now. It does not wait.
func (s *Set) Kick() {
	select {
	case s.kick <- struct{}{}:
	default: // they are about to be read
	}
}
