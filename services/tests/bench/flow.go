package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// drainQuiets bounds the wait for the last messages, in times that it may go on
// without progress.
const drainQuiets = 12

// flow is a load on brokers: pushes, and consumers that read and acknowledge
// everything.
type flow struct {
	shape   shape
	pushers int
	rate    float64 // messages per second offered; 0: closed loop
	// outstanding bounds what a closed loop pushes ahead of the consumers, so
	// that it measures the slower side and leaves no long backlog; 0: no bound.
	outstanding int64
	requests    int64 // pushes in total; 0: until stopped
	// patient load prepares for another one: it repeats what an overloaded broker
	// refuses, and its last messages may take their time.
	patient bool
	status  []byte // the status that a push expects of every message

	groups    int // 0: push only
	consumers int // per group
	popBatch  int
	popLanes  int
	singleAck bool // /ack in place of /ack/batch
}

// flowRun is one run of a flow.
type flowRun struct {
	flow
	load  *workload
	addrs []string
	scale scale
	push  *tally
	ack   *tally                  // messages acknowledged; latency from due time to arrival
	pop   *hdrhistogram.Histogram // duration of pops that delivered
}

// prepare makes a run of the flow on the brokers of a stack. The workload is
// made from the flow's shape, and serves every run of it.
func (f flow) prepare(s *stack, load *workload) *flowRun {
	if f.status == nil {
		f.status = queuedMark
	}
	return &flowRun{flow: f, load: load, addrs: s.addrs(), scale: s.lab.scale, push: newTally(), ack: newTally(), pop: newHistogram()}
}

func (r *flowRun) counts() (pushed, acked int64) {
	return r.push.messages.Load(), r.ack.messages.Load() / int64(max(r.groups, 1))
}

// run pushes until stop is closed or the wanted requests are sent, and then
// lets the consumers finish.
func (r *flowRun) run(ctx context.Context, stop <-chan struct{}, w *window) {
	consuming, end := context.WithCancel(ctx)
	defer end()
	wg := r.consume(consuming, w)
	pushing, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
		case <-pushing.Done():
		}
		cancel()
	}()
	drive(pushing, r.loop(), w, r.push)
	r.drain(ctx)
	end()
	wg.Wait()
}

func (r *flowRun) loop() loop {
	l := loop{workers: r.pushers, limit: r.requests, sender: r.pusher}
	if r.rate > 0 {
		l.interval = time.Duration(float64(time.Second) * float64(r.shape.Batch) / r.rate)
	}
	if r.outstanding > 0 && r.groups > 0 {
		l.ready = func() bool {
			pushed, acked := r.counts()
			return pushed-acked < r.outstanding
		}
	}
	return l
}

// pusher sends batches and checks that every message got the wanted status.
func (r *flowRun) pusher(worker int) sender {
	c := newClient(r.addrs, worker)
	rng := newRand(int(time.Now().UnixNano()) + worker)
	var request []byte
	return func(ctx context.Context, n int, at time.Time) (int, error) {
		request = r.load.fill(request, n, rng, at)
		a, err := r.ask(ctx, c, request, http.StatusCreated)
		if err == nil && bytes.Count(a.body, r.status) != r.shape.Batch {
			err = fmt.Errorf("push answered %d: %.200s", a.status, odd(a.body, r.status))
		}
		return r.shape.Batch, err
	}
}

// overloadPause is how long a patient load leaves an overloaded broker alone.
const overloadPause = 200 * time.Millisecond

// ask sends a request and wants that status, or that nothing is there. What was
// refused for overload has done nothing, so it can be repeated.
func (r *flowRun) ask(ctx context.Context, c *client, request []byte, status int) (reply, error) {
	for {
		a, err := c.do(ctx, request)
		switch {
		case err != nil || a.status == status || a.status == http.StatusNoContent:
			return a, err
		case !r.patient || a.status != http.StatusTooManyRequests || !waitUntil(ctx, time.Now().Add(overloadPause)):
			return a, unexpected(request, a)
		}
	}
}

// drain waits until the consumers have everything. What is missing then, or
// was delivered twice, counts as failed.
func (r *flowRun) drain(ctx context.Context) {
	if r.groups == 0 {
		return
	}
	quiet, limit := r.scale.Quiet, drainQuiets*r.scale.Quiet
	if r.patient {
		quiet, limit = limit, 5*limit
	}
	deadline, seen, since := time.Now().Add(limit), int64(-1), time.Now()
	for {
		pushed, acked := r.push.messages.Load()*int64(r.groups), r.ack.messages.Load()
		if acked != seen {
			seen, since = acked, time.Now()
		}
		if acked >= pushed {
			break
		}
		if now := time.Now(); now.After(deadline) || now.Sub(since) > quiet || !waitUntil(ctx, now.Add(pause)) {
			break
		}
	}
	pushed, acked := r.push.messages.Load()*int64(r.groups), r.ack.messages.Load()
	if lost := pushed - acked; lost != 0 && ctx.Err() == nil {
		r.ack.fail(fmt.Errorf("%d messages pushed, %d acknowledged", pushed, acked), max(lost, -lost))
	}
}

const groupPrefix = "group-"

func groupName(g int) string { return groupPrefix + strconv.Itoa(g) }

// popRequest asks for messages of a queue and waits for them.
func popRequest(queue, group string, batch, lanes int, wait time.Duration, more string) []byte {
	path := fmt.Sprintf("/api/v1/pop/queue/%s?consumerGroup=%s&batch=%d&partitions=%d%s", queue, group, batch, lanes, more)
	if wait > 0 {
		path += fmt.Sprintf("&wait=true&timeout=%d", wait.Milliseconds())
	}
	return newRequest(http.MethodGet, path, "")
}

// consume runs the groups until ctx ends. Every message is acknowledged.
func (r *flowRun) consume(ctx context.Context, w *window) *sync.WaitGroup {
	var wg sync.WaitGroup
	for g := range r.groups {
		for i := range r.consumers {
			wg.Go(func() {
				c := &consumer{
					run: r, client: newClient(r.addrs, i), group: groupName(g), window: w,
					ends: newHistogram(), pops: newHistogram(),
				}
				c.pop = popRequest(r.shape.Queue, c.group, r.popBatch, r.popLanes, r.scale.Poll, "")
				c.loop(ctx)
			})
		}
	}
	return &wg
}

// consumer is one consumer of a group.
type consumer struct {
	run      *flowRun
	client   *client
	group    string
	pop      []byte
	window   *window
	messages []message
	body     []byte
	request  []byte
	ends     *hdrhistogram.Histogram
	pops     *hdrhistogram.Histogram
}

func (c *consumer) loop(ctx context.Context) {
	defer c.client.close()
	for ctx.Err() == nil {
		if err := c.once(context.WithoutCancel(ctx)); err != nil {
			c.run.ack.fail(err, 1)
			waitUntil(ctx, time.Now().Add(afterFailure))
		}
	}
	c.run.ack.merge(c.ends)
	c.run.ack.mu.Lock()
	defer c.run.ack.mu.Unlock()
	c.run.pop.Merge(c.pops)
}

// once is one pop and the acknowledgement of everything it returned.
func (c *consumer) once(ctx context.Context) error {
	asked := time.Now()
	a, err := c.run.ask(ctx, c.client, c.pop, http.StatusOK)
	if err != nil || a.status == http.StatusNoContent {
		return err
	}
	arrived := time.Now()
	if c.messages, err = scanPop(c.messages[:0], a.body); err != nil {
		return err
	}
	if c.window.holds(arrived.UnixMicro()) {
		_ = c.pops.RecordValue(max(arrived.Sub(asked).Microseconds(), 1))
	}
	for i := range c.messages {
		if sent := c.messages[i].sent; c.window.holds(sent) {
			_ = c.ends.RecordValue(max(arrived.UnixMicro()-sent, 1))
		}
	}
	return c.ackAll(ctx)
}

// ackAll acknowledges the messages. They are slices of the answer that the next
// request overwrites, so all bodies are made first.
func (c *consumer) ackAll(ctx context.Context) error {
	if !c.run.singleAck {
		c.body = appendAcks(c.body[:0], c.group, c.messages)
		return c.ack(ctx, "/api/v1/ack/batch", c.body, len(c.messages))
	}
	c.body = c.body[:0]
	ends := make([]int, 0, len(c.messages))
	for _, m := range c.messages {
		c.body = appendAck(c.body, c.group, m)
		ends = append(ends, len(c.body))
	}
	from := 0
	for _, end := range ends {
		if err := c.ack(ctx, "/api/v1/ack", c.body[from:end], 1); err != nil {
			return err
		}
		from = end
	}
	return nil
}

func (c *consumer) ack(ctx context.Context, path string, body []byte, n int) error {
	c.request = append(appendHead(c.request[:0], http.MethodPost, path, len(body)), body...)
	a, err := c.run.ask(ctx, c.client, c.request, http.StatusOK)
	if err != nil {
		return err
	}
	good := bytes.Count(a.body, succeededMark)
	c.run.ack.requests.Add(1)
	c.run.ack.messages.Add(int64(good))
	if good != n {
		return unexpected(c.request, a)
	}
	return nil
}

func (r *flowRun) report(b *block) {
	b.push, b.end, b.pop = r.push.latency, r.ack.latency, r.pop
	b.push.Merge(r.push.unsent)
	for _, late := range r.push.unsent.Distribution() {
		if r.groups > 0 && late.Count > 0 {
			_ = b.end.RecordValues(late.To, late.Count*int64(r.shape.Batch))
		}
	}
	b.failures = r.push.failures.Load() + r.ack.failures.Load()
	if b.err = r.push.err; b.err == nil {
		b.err = r.ack.err
	}
}
