package pop

import (
	"context"
	"errors"
	"time"

	"github.com/queenmq/queen/services/broker/internal/wake"
)

// await looks until something is delivered or the deadline passes. Between looks
// it holds neither a slot nor a connection.
func (p *poll) await(ctx context.Context) error {
	if p.parked.Add(1) > int64(p.cfg.MaxParked) {
		p.parked.Add(-1)
		return ErrOverloaded
	}
	defer p.parked.Add(-1)
	w := p.Hub.Register(p.topic())
	defer w.Close()

	// The first look is a claim whatever the probe would say: it registers a
	// group that was never seen here.
	look, _ := w.Begin()
	if done, err := p.lookOnce(ctx, w, look, claim); done || err != nil {
		return err
	}
	for fruitless := 0; ; {
		interval := p.cfg.interval(fruitless)
		if more, err := p.rest(ctx, w, interval); !more {
			return err
		}
		look, woken := w.Begin()
		how := probe
		if woken {
			fruitless, how = 0, p.onWake()
		} else {
			fruitless++
			if w.Redundant(look, interval/2) {
				continue
			}
		}
		done, err := p.lookOnce(ctx, w, look, how)
		if errors.Is(err, ErrOverloaded) {
			continue // it has waited so far and may go on
		}
		if done || err != nil {
			return err
		}
	}
}

// lookOnce looks and tells the waiter how it went.
func (p *poll) lookOnce(ctx context.Context, w *wake.Waiter, l wake.Look, how mode) (done bool, err error) {
	if err := p.lookAfterHold(ctx, how); err != nil {
		return false, err // a wake stays owed, and goes to another waiter
	}
	if p.body == nil {
		w.Empty(l)
		return false, nil
	}
	w.Served()
	return true, nil
}

// rest waits for a wake or for the interval to pass, never beyond the deadline.
// It reports whether to look again.
func (p *poll) rest(ctx context.Context, w *wake.Waiter, interval time.Duration) (more bool, err error) {
	left := time.Until(p.deadline)
	if left <= 0 {
		return false, nil
	}
	t := time.NewTimer(min(interval, left))
	defer t.Stop()
	select {
	case <-w.Ready():
		return true, nil
	case <-t.C:
		return interval < left, nil
	case <-p.Hub.Done():
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// onWake says how to look after an announcement. One that names the queue is
// worth a claim; discovery hears of every queue of its tenant.
func (p *poll) onWake() mode {
	if p.req.Route == Discover {
		return probe
	}
	return claim
}

// topic is what the request waits for. Pops of one topic are interchangeable:
// what one of them found empty is empty for all.
func (p *poll) topic() wake.Topic {
	q := &p.req.Query
	t := wake.Topic{Tenant: p.req.Tenant, Class: q.Group}
	switch p.req.Route {
	case Wildcard:
		t.Queue = p.req.Queue
	case Specific:
		t.Queue, t.Partition = p.req.Queue, p.req.Partition
	case Discover:
		t.Class = q.Group + "\x1f" + q.Namespace + "\x1f" + q.Task
	}
	return t
}
