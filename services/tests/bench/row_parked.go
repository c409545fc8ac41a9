package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	parkedLimit  = 20 // KB each
	parkedQueues = 10
	// parkedPace keeps the arrival of the pops from being the load.
	parkedPace   = 400 * time.Microsecond
	parkedFor    = 5 * time.Minute
	parkedWarmup = 1000 // pops that are answered before the broker counts as idle

	// Memory counts as settled when it has stayed within steadyShare for steadyLooks looks.
	steadyLooks = 3
	steadyShare = 0.01
	maxLooks    = 20
)

// runParked measures what a waiting pop costs the broker in memory.
func runParked(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		pid := s.brokers[0].proc.PID()
		if err := warmPops(ctx, s); err != nil {
			return err
		}
		idle, err := steadyMemory(ctx, pid, b.scale.Look)
		if err != nil {
			return err
		}
		conns := make([]*conn, b.scale.Parked)
		defer func() {
			for _, c := range conns {
				if c != nil {
					c.close()
				}
			}
		}()
		began := time.Now()
		for i := range conns {
			conns[i] = &conn{addr: s.brokers[0].addr, small: true}
			if err := conns[i].send(ctx, popRequest(parkedQueue(i), groupName(0), 1, 1, parkedFor, "")); err != nil {
				return fmt.Errorf("park pop %d: %w", i, err)
			}
			if !waitUntil(ctx, began.Add(time.Duration(i)*parkedPace)) {
				return ctx.Err()
			}
		}
		parked, err := steadyMemory(ctx, pid, b.scale.Look)
		if err != nil {
			return err
		}
		if err := allWaiting(conns); err != nil {
			return err
		}
		out.add("memory of a parked pop", "KB", []float64{(parked - idle) / float64(len(conns)) / 1000}, atMost(parkedLimit))
		out.tell("broker resident, idle", "MB", []float64{idle / 1e6})
		out.tell("broker resident, all parked", "MB", []float64{parked / 1e6})
		return nil
	})
}

func parkedQueue(i int) string { return "parked-" + strconv.Itoa(i%parkedQueues) }

// warmPops makes the queues and lets the broker have served something.
func warmPops(ctx context.Context, s *stack) error {
	for i := range parkedWarmup {
		if err := s.register(ctx, parkedQueue(i)); err != nil {
			return err
		}
	}
	return nil
}

// steadyMemory waits for a process's memory to settle.
func steadyMemory(ctx context.Context, pid int, interval time.Duration) (float64, error) {
	last, steady := 0.0, 0
	for look := 1; ; look++ {
		now, err := resident(pid)
		if err != nil {
			return 0, err
		}
		if steady++; now > last*(1+steadyShare) || now < last*(1-steadyShare) {
			last, steady = now, 0
		}
		if steady >= steadyLooks || look >= maxLooks {
			return now, nil
		}
		if !waitUntil(ctx, time.Now().Add(interval)) {
			return 0, ctx.Err()
		}
	}
}

// allWaiting looks for connections on which an answer has come.
func allWaiting(conns []*conn) error {
	var wg sync.WaitGroup
	got := make([]error, len(conns))
	for i, c := range conns {
		wg.Go(func() { got[i] = c.silent() })
	}
	wg.Wait()
	problems := slices.DeleteFunc(got, func(err error) bool { return err == nil })
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d pops did not stay parked: %w", len(problems), len(conns), problems[0])
}

// silent fails unless the connection is open and has nothing to read.
func (c *conn) silent() error {
	const look = 100 * time.Millisecond
	if err := c.nc.SetReadDeadline(time.Now().Add(look)); err != nil {
		return err
	}
	_, err := c.r.Peek(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return err
	}
	r, err := c.receive()
	if err != nil {
		return err
	}
	return fmt.Errorf("answered %d: %.200s", r.status, r.body)
}
