package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	bigQueue     = "big"
	smallQueue   = "small"
	segmentLanes = 8
	segmentPops  = 8 // consumers
)

// runBigSegments compares pops of one message out of large segments with pops
// of segments of one message. The cursor moves with the pop, so that the cost of
// acknowledging does not hide that of popping.
func runBigSegments(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		if err := b.makeSegments(ctx, s, out); err != nil {
			return err
		}
		total := int64(segmentLanes * b.scale.Segment)
		big, small := &backlog{queue: bigQueue, total: total}, &backlog{queue: smallQueue, total: total}
		got, err := b.alternate(ctx,
			contender{"large segments", s, func() runner { return big.next(s.addrs()) }},
			contender{"segments of one", s, func() runner { return small.next(s.addrs()) }})
		if err != nil {
			return err
		}
		out.took(got...)
		out.add("large/one", "", ratios(got[0], got[1], block.ackRate), atLeast(0.5))
		out.tell("large segments", "pops/s", each(got[0], block.ackRate))
		out.tell("segments of one", "pops/s", each(got[1], block.ackRate))
		out.tell("pop p99, large", "ms", each(got[0], block.popP99))
		out.tell("pop p99, one", "ms", each(got[1], block.popP99))
		out.tell("server CPU, large", "µs/pop", each(got[0], block.serverCPU))
		out.tell("server CPU, one", "µs/pop", each(got[1], block.serverCPU))
		return nil
	})
}

// makeSegments pushes the large ones; the small ones go past the broker, which
// would fuse them.
func (b *bench) makeSegments(ctx context.Context, s *stack, out *outcome) error {
	progress("  making %d lanes of %d messages, twice", segmentLanes, b.scale.Segment)
	err := s.runOnce(ctx, flow{
		shape:   shape{Queue: bigQueue, Batch: b.scale.Segment, Lanes: segmentLanes},
		pushers: 2, requests: segmentLanes,
	})
	if err != nil {
		return err
	}
	const q = `SELECT avg(s.end_offset - s.base_offset + 1)::float8 FROM queen.log_segments AS s
		JOIN queen.log_partitions AS p ON p.id = s.partition_id JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`
	var size float64
	if err := s.db.QueryRow(ctx, q, bigQueue).Scan(&size); err != nil {
		return err
	}
	out.tell("messages of a large segment", "", []float64{size})
	small := bulk{queue: smallQueue, lanes: segmentLanes, segments: b.scale.Segment, messages: 1}
	if err := small.write(ctx, s.db, func() ([]byte, error) { return newPayload(payloadBytes) }); err != nil {
		return err
	}
	return s.settle(ctx)
}

// backlog is a queue that is read from its start, by a new group when the last
// one has had most of it.
type backlog struct {
	queue string
	total int64
	group int
	last  *popRun
	taken int64
}

func (k *backlog) next(addrs []string) *popRun {
	if k.last != nil {
		k.taken += k.last.done.messages.Load()
	}
	if k.taken > k.total/2 {
		k.group, k.taken = k.group+1, 0
	}
	k.last = &popRun{addrs: addrs, queue: k.queue, group: groupName(k.group), limit: k.total - k.taken, done: newTally()}
	return k.last
}

// popRun pops single messages until a number of them is reached.
type popRun struct {
	addrs []string
	queue string
	group string
	limit int64
	done  *tally // latency is that of pops that delivered
}

func (r *popRun) counts() (pushed, acked int64) { return 0, r.done.messages.Load() }

func (r *popRun) report(b *block) {
	b.pop, b.failures, b.err = r.done.latency, r.done.failures.Load(), r.done.err
}

func (r *popRun) run(ctx context.Context, stop <-chan struct{}, w *window) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	request := popRequest(r.queue, r.group, 1, 1, 0, "&autoAck=true")
	var wg sync.WaitGroup
	for i := range segmentPops {
		wg.Go(func() {
			own := newHistogram()
			defer r.done.merge(own)
			c := newClient(r.addrs, i)
			defer c.close()
			for ctx.Err() == nil && r.done.messages.Load() < r.limit {
				r.once(ctx, c, request, w, own)
			}
		})
	}
	wg.Wait()
}

// once is one pop. A pop finds nothing when all lanes are at work.
func (r *popRun) once(ctx context.Context, c *client, request []byte, w *window, own *hdrhistogram.Histogram) {
	began := time.Now()
	a, err := c.do(context.WithoutCancel(ctx), request)
	switch {
	case err != nil:
	case a.status == http.StatusNoContent:
		waitUntil(ctx, began.Add(pause))
		return
	case a.status != http.StatusOK || bytes.Count(a.body, transactionMark) != 1:
		err = fmt.Errorf("not one message: %w", unexpected(request, a))
	}
	if err != nil {
		r.done.fail(err, 1)
		waitUntil(ctx, time.Now().Add(afterFailure))
		return
	}
	r.done.messages.Add(1)
	if w.holds(began.UnixMicro()) {
		_ = own.RecordValue(max(time.Since(began).Microseconds(), 1))
	}
}
