package fusion

import (
	"context"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/retry"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

const (
	// busyWait is how long a bundle of lanes that were found held waits for each of
	// them. Another broker's bundle is over by then; a longer hold is waited for
	// alone.
	busyWait = 20 * time.Millisecond
	// readWait is how long a bundle waits for the windows of cold lanes.
	readWait = 25 * time.Millisecond
	// maxSplits bounds the search for what a refusal concerns: a fault of one
	// message in the largest segment is found, a fault of all is not repeated for
	// each.
	maxSplits = 64
)

// writer sees the flights of one bundle to their end.
type writer struct {
	*Fuser
	shard   *shard
	ctx     context.Context
	patient bool // nobody else waits for what this one waits for
	splits  int
}

// bundle writes flights of different lanes. It returns when all have landed but
// those that are waited for alone.
func (w *writer) bundle(flights []*flight) {
	w.summary.bundle(len(flights))
	w.summary.log(w.ctx, w.Logger)
	if w.shard.contended() {
		// Another broker writes to the same lanes: its bundle is short, and waiting
		// for it costs less than being turned away first.
		flights = w.run(flights, store.LockWait(busyWait))
	}
	held := w.run(flights, store.SkipLocked)
	w.shard.met(len(held) > 0)
	held = w.run(held, store.LockWait(busyWait))
	for _, fl := range held {
		go w.writeAlone(w.shard, fl)
	}
}

// writeAlone waits for a lane that another transaction holds, in the way of
// nobody but the lane itself.
func (f *Fuser) writeAlone(s *shard, fl *flight) {
	ctx, span := startFlush([]*flight{fl})
	defer span.End()
	w := &writer{Fuser: f, shard: s, ctx: ctx, patient: true}
	ctx, cancel := context.WithDeadline(w.ctx, fl.deadline())
	defer cancel()
	release, err := f.turn(ctx)
	if err != nil {
		w.refuse(fl, err)
		w.land(fl)
	} else {
		w.run([]*flight{fl}, w.patience(fl))
		release()
	}
	f.start(s)
}

// turn takes one of the places for lanes that are waited for, and a slot.
func (f *Fuser) turn(ctx context.Context) (release func(), err error) {
	select {
	case f.alone <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	slot, err := f.Admission.Acquire(ctx, admission.Push)
	if err != nil {
		<-f.alone
		return nil, err
	}
	return func() { slot(); <-f.alone }, nil
}

// patience is how long a flight can wait for its lane. It is never busyWait, the
// end of which is no end of the flight.
func (w *writer) patience(fl *flight) store.LockWait {
	return store.LockWait(max(time.Until(fl.deadline()), busyWait+time.Millisecond))
}

// run submits flights until all have landed, but those whose lane is held for
// longer than wait.
func (w *writer) run(flights []*flight, wait store.LockWait) (held []*flight) {
	for len(flights) > 0 {
		again, busy := w.submit(flights, wait)
		held = append(held, busy...)
		if flights = again; len(flights) > 0 || len(held) > 0 {
			w.startBeside(w.shard) // what has landed need not wait for the others
		}
	}
	return held
}

// submit repeats one bundle until it has an answer that stands. It returns the
// flights to be submitted in another form, and those whose lane is held.
func (w *writer) submit(flights []*flight, wait store.LockWait) (again, held []*flight) {
	for attempt := 0; ; attempt++ {
		if flights = w.prepare(flights); len(flights) == 0 {
			return nil, nil
		}
		verdicts, err := w.call(flights, wait)
		switch {
		case err == nil:
			return w.apply(flights, verdicts)
		case wait == store.LockWait(busyWait) && store.Locked(err):
			for _, fl := range flights {
				fl.submitted = false // it ended before it wrote anything
			}
			return nil, flights
		case retry.Definite(err):
		case store.Ambiguous(err):
			// It may have committed. Only a probe can tell, and only an open window
			// probes (design rule 6).
			flights = w.keepProbed(flights, err)
		default:
			w.isolate(flights, err)
			return nil, nil
		}
		if flights = w.pause(attempt, flights, err); len(flights) == 0 {
			return nil, nil
		}
	}
}

// prepare packs and marks flights. What cannot be packed has landed; a lane whose
// window has to be read first leaves the bundle if that takes long.
func (w *writer) prepare(flights []*flight) []*flight {
	var kept, cold []*flight
	for _, fl := range flights {
		switch err := w.pack(w.ctx, fl); {
		case err != nil:
			w.refuse(fl, err)
			w.land(fl)
		case w.tryMark(fl):
			kept = append(kept, fl)
		default:
			cold = append(cold, fl)
		}
	}
	if w.patient {
		for _, fl := range cold {
			w.mark(w.ctx, fl)
		}
		return append(kept, cold...)
	}
	return append(kept, w.read(cold)...)
}

// read marks cold lanes, several at once. It returns those that were read within
// readWait; the others are written alone when they are.
func (w *writer) read(cold []*flight) (marked []*flight) {
	if len(cold) == 0 {
		return nil
	}
	done := make(chan *flight, len(cold))
	for _, fl := range cold {
		go func() {
			w.mark(w.ctx, fl)
			done <- fl
		}()
	}
	limit := time.NewTimer(readWait)
	defer limit.Stop()
	for len(marked) < len(cold) {
		select {
		case fl := <-done:
			marked = append(marked, fl)
			continue
		case <-limit.C:
		}
		late := len(cold) - len(marked)
		go func() {
			for range late {
				go w.writeAlone(w.shard, <-done)
			}
		}()
		break
	}
	return marked
}

func (w *writer) call(flights []*flight, wait store.LockWait) ([]store.PushVerdict, error) {
	segments, messages := make([]store.PushSegment, len(flights)), 0
	for i, fl := range flights {
		segments[i], fl.submitted, fl.marked = fl.segment, true, false
		messages += fl.segment.Count
	}
	began := time.Now()
	verdicts, err := w.Store.PushBundle(w.ctx, segments, wait)
	w.Batches.Fired(w.ctx, batches.Push, messages, time.Since(began))
	if err == nil {
		w.Admission.Commit()
	}
	w.metrics.call(w.ctx, segments, err)
	return verdicts, err
}

// pause waits before another attempt and returns the flights that are worth one.
func (w *writer) pause(attempt int, flights []*flight, cause error) []*flight {
	var last time.Time
	for _, fl := range flights {
		if d := fl.deadline(); d.After(last) {
			last = d
		}
	}
	more := len(flights) > 0 && retry.Pause(w.ctx, attempt, last)
	now := time.Now()
	kept := flights[:0:0]
	for _, fl := range flights {
		if more && fl.expire(now, cause) {
			kept = append(kept, fl)
			continue
		}
		w.refuse(fl, cause)
		w.land(fl)
	}
	return kept
}

// keepProbed ends the flights whose queue has no window and returns the others.
func (w *writer) keepProbed(flights []*flight, cause error) []*flight {
	kept := flights[:0:0]
	for _, fl := range flights {
		open, err := w.windowOpen(w.ctx, fl)
		if err == nil && open {
			kept = append(kept, fl)
			continue
		}
		if err == nil {
			err = cause
		}
		w.refuse(fl, err)
		w.land(fl)
	}
	return kept
}

// isolate handles a refusal that repeating cannot mend: the fault of one must not
// fail its neighbours. Halves go one after the other, since the pieces of a
// segment keep their order.
func (w *writer) isolate(flights []*flight, cause error) {
	one := flights[0]
	if w.splits >= maxSplits || len(flights) == 1 && len(one.messages) == 1 {
		for _, fl := range flights {
			w.refuse(fl, cause)
		}
		w.land(flights...)
		return
	}
	w.splits++
	if n := len(flights) / 2; n > 0 {
		w.run(flights[:n], w.patience(one))
		w.run(flights[n:], w.patience(one))
		return
	}
	first, second := one.split()
	w.run([]*flight{first}, w.patience(one))
	w.run([]*flight{second}, w.patience(one))
}

// refuse ends what a flight has left without storing it, or without knowing that
// it is stored.
func (w *writer) refuse(fl *flight, err error) {
	w.failures.Do(func() {
		w.Logger.ErrorContext(w.ctx, "push failed", slog.String(logging.KeyQueue, fl.lane.Queue),
			slog.String(logging.KeyPartition, fl.lane.Partition), slog.Int(logging.KeyCount, len(fl.messages)), logging.Err(err))
	})
	spans.Fail(w.ctx, err)
	fl.fail(err)
}

// land ends flights: lanes first, so that what follows goes on, then the requests.
func (w *writer) land(flights ...*flight) {
	over := flights[:0:0]
	for _, fl := range flights {
		if fl.root.open--; fl.root.open == 0 {
			over = append(over, fl.root)
		}
	}
	w.shard.land(over)
	for _, fl := range over {
		fl.settle()
	}
}
