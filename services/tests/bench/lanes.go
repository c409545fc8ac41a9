package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// once sends a single request to the first broker and wants that status.
func (s *stack) once(ctx context.Context, request []byte, status int) error {
	c := newClient(s.addrs()[:1], 0)
	defer c.close()
	_, err := c.expect(ctx, request, status)
	return err
}

// register makes a group known on a queue that has no messages yet.
func (s *stack) register(ctx context.Context, queue string) error {
	return s.registerGroups(ctx, queue, 1)
}

func (s *stack) registerGroups(ctx context.Context, queue string, groups int) error {
	for g := range groups {
		if err := s.once(ctx, popRequest(queue, groupName(g), 1, 1, 0, ""), http.StatusNoContent); err != nil {
			return err
		}
	}
	return nil
}

// configure sets a queue's options (a JSON object).
func (s *stack) configure(ctx context.Context, queue, options string) error {
	body := fmt.Sprintf(`{"queue":%q,"options":%s}`, queue, options)
	return s.once(ctx, newRequest(http.MethodPost, "/api/v1/configure", body), http.StatusOK)
}

// runOnce runs a flow with a fixed number of requests, unmeasured.
func (s *stack) runOnce(ctx context.Context, f flow) error {
	load, err := newWorkload(f.shape)
	if err != nil {
		return err
	}
	r := f.prepare(s, load)
	r.run(ctx, make(chan struct{}), newWindow())
	var b block
	r.report(&b)
	if b.failures > 0 {
		return fmt.Errorf("prepare %s: %d failed: %w", f.shape.Queue, b.failures, b.err)
	}
	return ctx.Err()
}

// Preparing many lanes takes large requests: the clock does not run yet. One
// push is still few enough transactions to meet its deadline on a busy machine.
const (
	prepareBatch = 250
	prepareLanes = 256 // of one pop
)

// makeLanes creates lanes the way they come to be: the group is registered,
// then every lane gets a message, which the group reads.
func (s *stack) makeLanes(ctx context.Context, queue string, lanes int) error {
	progress("  making %d lanes in %s", lanes, queue)
	began := time.Now()
	if err := s.register(ctx, queue); err != nil {
		return err
	}
	batch := min(prepareBatch, lanes)
	err := s.runOnce(ctx, flow{
		shape:   shape{Queue: queue, Batch: batch, Lanes: lanes, Spread: true},
		pushers: 4, requests: int64((lanes + batch - 1) / batch), patient: true,
		groups: 1, consumers: 4, popBatch: 4 * prepareBatch, popLanes: prepareLanes,
	})
	if err != nil {
		return err
	}
	progress("  made in %s", time.Since(began).Round(time.Second/10))
	return s.settle(ctx)
}

// settle does at once what autovacuum would do in the middle of a block.
func (s *stack) settle(ctx context.Context) error {
	_, err := s.db.Exec(ctx, "VACUUM (ANALYZE)")
	return err
}
