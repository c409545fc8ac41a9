package quota

import (
	"time"

	"golang.org/x/time/rate"
)

// limiter is a bucket of burst tokens that is filled by perSecond; a rate of 0 sets
// no bound.
func limiter(perSecond, burst int) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(burst, 1))
}

// adjust gives a bucket the rate of a quota, or the configured one. A quota sets the
// rate; the burst follows in the proportion of the configuration.
func adjust(l *rate.Limiter, quota *int64, perSecond, burst int) *rate.Limiter {
	limit, size := rate.Inf, 0
	switch {
	case quota != nil && *quota <= 0:
		limit = 0 // and an empty bucket: nothing passes
	case quota != nil:
		limit, size = rate.Limit(*quota), proportional(*quota, perSecond, burst)
	case perSecond > 0:
		limit, size = rate.Limit(perSecond), max(burst, 1)
	}
	if l == nil {
		return rate.NewLimiter(limit, size)
	}
	if l.Limit() != limit || l.Burst() != size {
		now := time.Now()
		l.SetLimitAt(now, limit)
		l.SetBurstAt(now, size)
	}
	return l
}

// proportional is the burst of a tenant's own rate: twice the rate, unless the
// configuration says otherwise.
func proportional(own int64, perSecond, burst int) int {
	ratio := 2.0
	if perSecond > 0 {
		ratio = float64(burst) / float64(perSecond)
	}
	return int(min(max(float64(own)*ratio, 1), maxBurst))
}

const maxBurst = 1 << 30

// tokens are taken from buckets, from all of them or from none.
type tokens struct {
	now   time.Time
	taken []*rate.Reservation
}

// take takes n tokens, or none and tells how long to wait for them. A bucket that
// can never hold n gives all it can hold and the rest as a debt. never tells that
// the bucket admits nothing.
func (t *tokens) take(l *rate.Limiter, n int) (wait time.Duration, never bool) {
	if n == 0 || l.Limit() == rate.Inf {
		return 0, false
	}
	burst := l.Burst()
	if burst == 0 {
		return 0, true
	}
	for first := true; n > 0; first = false {
		part := min(n, burst)
		r := l.ReserveN(t.now, part)
		if !r.OK() {
			return 0, true // the burst has just become smaller
		}
		if wait = r.DelayFrom(t.now); first && wait > 0 {
			r.CancelAt(t.now)
			return wait, false
		}
		t.taken = append(t.taken, r)
		n -= part
	}
	return 0, false
}

// giveBack undoes what was taken.
func (t *tokens) giveBack() {
	for i := len(t.taken) - 1; i >= 0; i-- {
		t.taken[i].CancelAt(t.now)
	}
}
