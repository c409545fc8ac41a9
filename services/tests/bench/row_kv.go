package main

import (
	"context"
	"fmt"
)

const (
	kvRatio      = 0.5
	kvBatch      = 25
	kvBatchRatio = 4

	kvNamespace      = "broker"
	kvBatchNamespace = "batches"
	pgbenchNamespace = "pgbench"
	plainNamespace   = "plain"
)

// runKV has 32 clients call the broker, one operation in a request, in a closed loop:
// gets and increments of 100,000 counters, putIfAbsent of as many other keys. Rate
// limits are off, and the broker has 32 connections for keys. Taking turns with it on
// the same server, pgbench has 32 prepared connections call the procedure with the same
// operations on keys of its own. Plain statements that do the same are a second
// reference. Afterwards the counters must hold what was answered.
func runKV(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, crew{brokers: 1, env: unlimited}, func(s *stack) error {
		if _, err := s.lab.pgbenchProgram(); err != nil {
			return err
		}
		if err := s.seedKeys(ctx, []string{kvNamespace, pgbenchNamespace, plainNamespace}, b.scale.Keys); err != nil {
			return err
		}
		load := &kvLoad{ns: kvNamespace, keys: b.scale.Keys, ops: 1, clients: kvClients}
		broker, call, plain, err := b.kvRounds(ctx, s, load)
		if err != nil {
			return err
		}
		out.took(broker, call, plain)
		out.add("broker/pgbench", "", ratios(broker, call, block.pushRate), atLeast(kvRatio))
		out.tell("broker/plain statements", "", ratios(broker, plain, block.pushRate))
		out.tell("broker", "op/s", each(broker, block.pushRate))
		out.tell("pgbench", "op/s", each(call, block.pushRate))
		out.tell("plain statements", "op/s", each(plain, block.pushRate))
		out.tell("call p99", "ms", each(broker, block.pushP99))
		out.tell("broker", "µs/op", each(broker, block.brokerCPU))
		out.tell("postgres", "µs/op", each(broker, block.postgresCPU))
		out.tell("driver", "µs/op", each(broker, block.driverCPU))
		out.tell("commits per operation", "", each(broker, block.commits))
		out.tell("pgbench postgres", "µs/op", each(call, block.postgresCPU))
		out.tell("plain postgres", "µs/op", each(plain, block.postgresCPU))
		return s.checkCounters(ctx, load)
	})
}

// kvRounds has the contenders take turns.
func (b *bench) kvRounds(ctx context.Context, s *stack, load *kvLoad) (broker, call, plain []block, err error) {
	for i := range b.scale.Rounds {
		progress("  round %d of %d: broker", i+1, b.scale.Rounds)
		got, err := b.measure(ctx, s, load.prepare(s))
		if err != nil {
			return nil, nil, nil, err
		}
		broker = append(broker, got)
		progress("  round %d of %d: pgbench, the procedure", i+1, b.scale.Rounds)
		if got, err = b.pgbench(ctx, s, procedureScripts(pgbenchNamespace)); err != nil {
			return nil, nil, nil, err
		}
		call = append(call, got)
		progress("  round %d of %d: pgbench, plain statements", i+1, b.scale.Rounds)
		if got, err = b.pgbench(ctx, s, plainScripts(plainNamespace)); err != nil {
			return nil, nil, nil, err
		}
		plain = append(plain, got)
	}
	return broker, call, plain, nil
}

// checkCounters makes sure that every increment that was answered is there, and no other.
func (s *stack) checkCounters(ctx context.Context, load *kvLoad) error {
	stored, err := s.counted(ctx, load.ns)
	if err != nil {
		return err
	}
	if answered := load.incrs.Load(); stored != answered {
		return fmt.Errorf("the counters of %s add up to %d after %d increments", load.ns, stored, answered)
	}
	return nil
}

// runKVBatch compares calls of 25 operations with calls of one, by the same clients on
// the same broker, in operations per second.
func runKVBatch(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, crew{brokers: 1, env: unlimited}, func(s *stack) error {
		if err := s.seedKeys(ctx, []string{kvNamespace, kvBatchNamespace}, b.scale.Keys); err != nil {
			return err
		}
		single := &kvLoad{ns: kvNamespace, keys: b.scale.Keys, ops: 1, clients: kvClients}
		batch := &kvLoad{ns: kvBatchNamespace, keys: b.scale.Keys, ops: kvBatch, clients: kvClients}
		got, err := b.alternate(ctx,
			contender{"calls of 25 operations", s, func() runner { return batch.prepare(s) }},
			contender{"calls of one", s, func() runner { return single.prepare(s) }})
		if err != nil {
			return err
		}
		out.took(got...)
		out.add("calls of 25/calls of one", "", ratios(got[0], got[1], block.pushRate), atLeast(kvBatchRatio))
		out.tell("calls of 25", "op/s", each(got[0], block.pushRate))
		out.tell("calls of one", "op/s", each(got[1], block.pushRate))
		out.tell("p99 of a call of 25", "ms", each(got[0], block.pushP99))
		out.tell("p99 of a call of one", "ms", each(got[1], block.pushP99))
		out.tell("postgres, calls of 25", "µs/op", each(got[0], block.postgresCPU))
		out.tell("postgres, calls of one", "µs/op", each(got[1], block.postgresCPU))
		if err := s.checkCounters(ctx, single); err != nil {
			return err
		}
		return s.checkCounters(ctx, batch)
	})
}
