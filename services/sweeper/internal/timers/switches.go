package timers

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// switchEvery is how often the operator's switches are read.
const switchEvery = time.Second

// switches are the operator's. The sweeper obeys one of them: whether timers fire.
// What cannot be read stays as it was.
type switches struct {
	read    func(ctx context.Context) (store.KVSwitches, error)
	flipped func(fire bool)
	log     *slog.Logger
	errors  logging.Quiet

	off  atomic.Bool   // the fire
	kick chan struct{} // holds a token when they are to be read now
}

// fire tells whether timers may be claimed.
func (s *switches) fire() bool { return !s.off.Load() }

// look reads the switches, and tells of a flip.
func (s *switches) look(ctx context.Context) error {
	now, err := s.read(ctx)
	if err != nil {
		return err
	}
	if s.off.Swap(!now.TimersFire) == now.TimersFire {
		s.log.InfoContext(ctx, "switch was flipped", slog.String(logging.KeySwitch, "timersFire"), slog.Bool(logging.KeyEnabled, now.TimersFire))
		s.flipped(now.TimersFire)
	}
	return nil
}

// run reads the switches each second, and when it is kicked, until ctx ends.
func (s *switches) run(ctx context.Context) {
	ticker := time.NewTicker(switchEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.kick:
			// One that follows is of the same burst.
			lifecycle.Sleep(ctx, kickPause)
		}
		s.lookQuietly(ctx)
	}
}

// kickPause bounds how often kicks, which anybody may repeat, have the switches read.
const kickPause = 10 * time.Millisecond

func (s *switches) lookQuietly(ctx context.Context) {
	err := s.look(ctx)
	if err == nil || ctx.Err() != nil {
		return
	}
	if left, ok := s.errors.Speak(); ok {
		s.log.WarnContext(ctx, "switches could not be read and stay as they were", slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
}

// now has them read.
func (s *switches) now() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
