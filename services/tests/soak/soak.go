package soak

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	progressEvery = 5 * time.Second
	restEvery     = 50 * time.Millisecond
)

// run is one run of a load.
type run struct {
	cfg     *Config
	tally   *tally
	client  *client
	books   []*book    // of the groups
	timers  *scheduler // nil without timers
	pushers *pushers
	began   time.Time
}

// Run loads an installation, waits until everything is delivered and acknowledged, and
// judges. When ctx ends, nothing more is pushed, and the rest goes on as always.
func Run(ctx context.Context, cfg Config) (Verdict, error) {
	if err := cfg.Validate(); err != nil {
		return Verdict{}, err
	}
	r := &run{cfg: &cfg, tally: newTally(), began: time.Now()}
	r.client = newClient(&cfg, r.tally)
	defer r.client.http.CloseIdleConnections()
	for g := range cfg.Groups {
		r.books = append(r.books, newBook(groupName(g), &cfg, r.tally))
	}
	if cfg.Timers {
		b := newBook("timers", &cfg, r.tally)
		b.delivered, b.acknowledged = &r.tally.fired, &r.tally.done
		r.timers = &scheduler{cfg: &cfg, client: r.client, tally: r.tally, book: b}
	}
	attending, leave := context.WithCancel(context.WithoutCancel(ctx))
	var attendants sync.WaitGroup
	attendants.Go(func() { r.client.renew(attending) })
	attendants.Go(func() { r.progress(attending) })
	r.consume(attending, &attendants)
	r.load(ctx)
	r.drain()
	leave()
	attendants.Wait()
	r.judge(context.WithoutCancel(ctx))
	if !cfg.Keep && r.verdict().OK {
		r.remove(context.WithoutCancel(ctx))
	}
	return r.verdict(), nil
}

func groupName(g int) string { return "group-" + strconv.Itoa(g) }

// load pushes, schedules and counts until the time is over.
func (r *run) load(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.For)
	defer cancel()
	var wg sync.WaitGroup
	r.pushers = newPushers(r.cfg, r.client, r.tally, r.books)
	for i := range r.cfg.Pushers {
		wg.Go(func() { r.pushers.run(ctx, i) })
	}
	for range r.cfg.Counters {
		wg.Go(func() { (&counter{r.cfg, r.client, r.tally}).run(ctx) })
	}
	if r.timers != nil {
		wg.Go(func() { r.timers.run(ctx) })
	}
	wg.Wait()
}

// consume starts the groups.
func (r *run) consume(ctx context.Context, wg *sync.WaitGroup) {
	for _, b := range r.books {
		for range r.cfg.Consumers {
			c := newConsumer(r.cfg, r.client, r.tally, b, r.cfg.Queue, b.name)
			wg.Go(func() { c.run(ctx) })
		}
	}
	if r.timers != nil {
		c := newConsumer(r.cfg, r.client, r.tally, r.timers.book, timerQueue(r.cfg), r.timers.book.name)
		wg.Go(func() { c.run(ctx) })
	}
}

// rest is what the groups have not acknowledged yet.
func (r *run) rest() int {
	n := 0
	for _, b := range r.books {
		n += b.rest()
	}
	if r.timers != nil {
		n += r.timers.book.rest()
	}
	return n
}

// drain waits until everything is acknowledged, or nothing moves.
func (r *run) drain() {
	least, since := r.rest(), time.Now()
	for {
		rest := r.rest()
		switch {
		case rest == 0:
			return
		case rest < least:
			least, since = rest, time.Now()
		case time.Since(since) > r.cfg.Patience:
			r.tally.problem("%d messages are not acknowledged after %v without progress", rest, r.cfg.Patience)
			return
		}
		time.Sleep(restEvery)
	}
}

func (r *run) judge(ctx context.Context) {
	for _, b := range r.books {
		b.close(func(lane int) int { return int(r.pushers.attempted[lane].Load()) })
	}
	if r.timers != nil {
		r.timers.book.close(func(int) int { return r.timers.rounds })
	}
	if r.cfg.Counters > 0 {
		(&counter{r.cfg, r.client, r.tally}).judge(ctx)
	}
}

// remove deletes what the run has made.
func (r *run) remove(ctx context.Context) {
	paths := []string{"/api/v1/resources/queues/" + url.PathEscape(r.cfg.Queue)}
	if r.timers != nil {
		paths = append(paths, "/api/v1/resources/queues/"+url.PathEscape(timerQueue(r.cfg)))
	}
	if r.cfg.Counters > 0 {
		paths = append(paths, counterPath(r.cfg))
	}
	for _, path := range paths {
		_, _ = r.client.ask(ctx, request{"delete", http.MethodDelete, path, nil, http.StatusOK}) // counted
	}
}

func (r *run) verdict() Verdict {
	v := r.tally.verdict()
	v.Seconds = float64(time.Since(r.began).Milliseconds()) / 1000
	v.Rest = int64(r.rest())
	v.OK = v.OK && v.Rest == 0 && v.Pushed > 0
	return v
}

// progress tells now and then how far it is.
func (r *run) progress(ctx context.Context) {
	if r.cfg.Progress == nil {
		return
	}
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.cfg.Progress(r.verdict())
		}
	}
}
