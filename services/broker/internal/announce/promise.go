package announce

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxAhead is far beyond every delay that a timer may have.
const maxAhead = 100 * 365 * 24 * time.Hour

// promise is the nearest instant of a timer that the sweepers have been told. It is
// kept by the monotonic clock of this process, so that no clock that is set moves it.
type promise struct {
	once  sync.Once
	start time.Time
	until atomic.Int64 // since start; what has passed promises nothing
}

// nearer says whether an instant has to be told, which it then is taken to be: it is
// earlier than the one told last, or that one has passed and sweepers have looked
// since. It takes no lock and allocates nothing.
func (p *promise) nearer(in time.Duration) bool {
	p.once.Do(func() { p.start = time.Now() })
	now := int64(time.Since(p.start))
	at := now + int64(min(max(in, 0), maxAhead))
	for {
		until := p.until.Load()
		if now < until && until <= at {
			return false
		}
		if p.until.CompareAndSwap(until, at) {
			return true
		}
	}
}
