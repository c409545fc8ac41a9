package pop

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/services/broker/internal/wake"
)

// Parked is a pop that waits. While it rests it holds neither a goroutine nor a
// slot nor a connection; a wake gives it a goroutine for one look. See the
// package comment for its states.
type Parked struct {
	poll
	waiter *wake.Waiter
	watch  *watch
	timer  *time.Timer // of the deadline
	span   trace.Span
	noted  bool // the counters of the queue know that it is parked

	mu      sync.Mutex
	state   state
	expired bool               // the deadline passed during a look
	left    bool               // the client left during a look
	cancel  context.CancelFunc // ends the look under way
	gone    func() error       // why the caller of Wait no longer waits
	answer  func(body []byte, err error)
	err     error // with the body, the outcome
}

// state is what a parked pop is doing.
type state uint8

const (
	looking state = iota
	resting
	ending   // decided, about to answer
	answered // the outcome is there
)

// Request is what was asked for.
func (p *Parked) Request() Request { return p.req }

// Begin looks once. It answers the request, or returns what goes on waiting for
// it: the caller then needs one of Answer and Wait.
func (s *Service) Begin(ctx context.Context, req Request) ([]byte, *Parked, error) {
	worker, err := s.IDs.New()
	if err != nil {
		return nil, nil, errors.Join(ErrFailed, err)
	}
	p := &Parked{poll: poll{Service: s, req: req, worker: worker.String()}}
	if !req.Query.Wait || req.Query.Timeout <= 0 {
		if err = p.look(ctx, first); err != nil {
			err = p.explain(ctx, err)
		}
		p.answered(ctx, err)
		return p.body, nil, err
	}
	if err := p.park(ctx); err != nil {
		p.answered(ctx, err)
		return nil, nil, err
	}
	if p.run(ctx, first) {
		return p.body, nil, p.err
	}
	return nil, p, nil
}

// park registers the request before its first look.
func (p *Parked) park(ctx context.Context) error {
	parked := p.parked.Add(1)
	if parked > int64(p.cfg.MaxParked) {
		p.parked.Add(-1)
		return ErrOverloaded
	}
	if parked == 1 && p.OnPark != nil {
		p.OnPark()
	}
	p.noted = p.Counters.Park(p.queue())
	left := p.cfg.patience(p.req.Query.Timeout)
	p.deadline = time.Now().Add(left)
	p.span = trace.SpanFromContext(ctx)
	t := p.topic()
	p.waiter = p.Hub.Register(t, p)
	p.watch = p.rechecks.join(t, &p.req)
	p.timer = time.AfterFunc(left, p.expire)
	return nil
}

// run looks until the request is answered, which it reports, or has to rest.
func (p *Parked) run(ctx context.Context, how mode) (over bool) {
	for {
		err := p.lookAfterHold(ctx, how)
		if errors.Is(err, ErrOverloaded) && how != first {
			err = nil // it has waited so far and may go on
		}
		if err == nil && p.body != nil {
			p.waiter.Served()
			p.passOn()
		}
		if p.mayRest(err) && !p.rest() {
			return false
		}
		if !p.mayRest(err) { // asked again: what rest was refused for may be the end
			p.finish(ctx, err)
			return true
		}
		how = p.onWake(p.waiter.Begin())
	}
}

// mayRest says whether the outcome of a look leaves something to wait for.
func (p *Parked) mayRest(err error) bool {
	if err != nil || p.body != nil || p.stopping() || p.suspended() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.left && time.Until(p.deadline) > 0
}

func (p *Parked) stopping() bool {
	select {
	case <-p.Hub.Done():
		return true
	default:
		return false
	}
}

// rest ends a look. It reports true when there is a reason to go on at once.
func (p *Parked) rest() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left || p.expired || p.waiter.Rest() {
		return true
	}
	p.state, p.cancel = resting, nil
	return false
}

// Woken is called under the lock of the hub.
func (p *Parked) Woken() { go p.resume() }

// resume looks once more, on behalf of a wake.
func (p *Parked) resume() {
	p.mu.Lock()
	if p.state != resting {
		p.mu.Unlock()
		return // it has just ended, and hands the wake on
	}
	ctx, cancel := context.WithCancel(trace.ContextWithSpan(context.Background(), p.span))
	defer cancel()
	p.state, p.cancel = looking, cancel
	gone := p.gone
	p.mu.Unlock()
	switch {
	case p.stopping(), p.suspended():
		p.finish(ctx, nil)
	case gone != nil && gone() != nil:
		p.finish(ctx, gone())
	default:
		p.run(ctx, p.onWake(p.waiter.Begin()))
	}
}

// expire ends the wait at the deadline. A look under way may still deliver.
func (p *Parked) expire() {
	p.mu.Lock()
	if p.state != resting {
		p.expired = true
		p.mu.Unlock()
		return
	}
	p.state = ending
	p.mu.Unlock()
	p.finish(context.Background(), nil)
}

// Cancel ends the wait because the client has left. A claim under way is
// cancelled; one that has just been made expires.
func (p *Parked) Cancel() {
	p.mu.Lock()
	p.left = true
	if p.state != resting {
		if p.cancel != nil {
			p.cancel()
		}
		p.mu.Unlock()
		return
	}
	p.state = ending
	p.mu.Unlock()
	p.finish(context.Background(), context.Canceled)
}

// finish answers. It is called once.
func (p *Parked) finish(ctx context.Context, err error) {
	p.timer.Stop()
	p.waiter.Close()
	p.rechecks.leave(p.watch, p.body != nil)
	p.parked.Add(-1)
	p.Counters.Unpark(p.queue(), p.noted)
	if err != nil {
		err = p.explain(ctx, err)
	}
	p.mu.Lock()
	if err == nil && p.left && p.body == nil {
		err = context.Canceled
	}
	p.state, p.err = answered, err
	answer := p.answer
	p.mu.Unlock()
	p.answered(ctx, err)
	if answer != nil {
		answer(p.body, err)
	}
}

// Answer has f called with the outcome: at once when it is there, else on a
// goroutine of this package. It replaces the f of an earlier call, and a Wait.
func (p *Parked) Answer(f func(body []byte, err error)) { p.hear(f, nil) }

func (p *Parked) hear(f func(body []byte, err error), gone func() error) {
	p.mu.Lock()
	p.answer, p.gone = f, gone
	there := p.state == answered
	p.mu.Unlock()
	if there {
		f(p.body, p.err)
	}
}

// Wait returns the outcome.
func (p *Parked) Wait(ctx context.Context) ([]byte, error) {
	p.wait(ctx, nil)
	return p.body, p.err
}

// WaitFor waits for some time and reports whether the outcome is there: Wait then
// returns it at once. It also is when ctx has ended.
func (p *Parked) WaitFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	return p.wait(ctx, t.C)
}

func (p *Parked) wait(ctx context.Context, limit <-chan time.Time) bool {
	over := make(chan struct{})
	p.hear(func([]byte, error) { close(over) }, ctx.Err)
	select {
	case <-over:
	case <-limit:
		return false
	case <-ctx.Done():
		p.Cancel()
		<-over
	}
	return true
}

// onWake says how to look. A lane of the topic is worth a claim; discovery hears
// of every queue of its tenant, and an announcement without a lane means little
// to those that wait for one.
func (p *Parked) onWake(r wake.Reason) mode {
	if r&wake.Found != 0 {
		return claim
	}
	p.rechecks.stir(p.watch)
	if p.req.Route == Discover || p.req.Route == Specific && r&wake.Lane == 0 {
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
