package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The floors' tables have the shape and the storage settings of the product's,
// so that the ratio measures the broker and not the tables.
const floorSchema = `
CREATE SCHEMA bench;
CREATE TABLE bench.plain (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, blob BYTEA NOT NULL);
ALTER TABLE bench.plain ALTER COLUMN blob SET STORAGE EXTERNAL;
CREATE TABLE bench.lanes (id UUID PRIMARY KEY, last_offset BIGINT NOT NULL DEFAULT -1) WITH (fillfactor = 70);
CREATE TABLE bench.segments (partition_id UUID, base_offset BIGINT, end_offset BIGINT NOT NULL,
	created_at TIMESTAMPTZ NOT NULL, blob BYTEA NOT NULL, PRIMARY KEY (partition_id, base_offset));
ALTER TABLE bench.segments ALTER COLUMN blob SET STORAGE EXTERNAL;
CREATE TABLE bench.txns (partition_id UUID, base_offset BIGINT, end_offset BIGINT NOT NULL,
	created_at TIMESTAMPTZ NOT NULL, hashes BYTEA NOT NULL, PRIMARY KEY (partition_id, base_offset));`

const (
	plainInsert = `INSERT INTO bench.plain (blob) VALUES ($1)`
	logInsert   = `WITH a AS (
		UPDATE bench.lanes SET last_offset = last_offset + $2 WHERE id = $1
		RETURNING last_offset - $2 + 1 AS base, last_offset AS top, clock_timestamp() AS at
	), s AS (
		INSERT INTO bench.segments SELECT $1, base, top, at, $3 FROM a
	)
	INSERT INTO bench.txns SELECT $1, base, top, at, $4 FROM a`
)

// floors write a workload straight into PostgreSQL:
//
//	A  one INSERT per transaction of the segment that the broker would store
//	B  allocator UPDATE, segment INSERT and sidecar INSERT in one round trip
//	R  one INSERT per transaction of one message as it is
type floors struct {
	load   *workload
	packed packed
	db     *pgxpool.Pool
	lanes  []uuid.UUID
}

func newFloors(ctx context.Context, w *workload, db *pgxpool.Pool) (*floors, error) {
	f := &floors{load: w, db: db}
	var err error
	if f.packed, err = w.pack(); err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, floorSchema); err != nil {
		return nil, fmt.Errorf("create the floors' tables: %w", err)
	}
	for range w.shape.Lanes {
		f.lanes = append(f.lanes, uuid.New())
	}
	if _, err := db.Exec(ctx, `INSERT INTO bench.lanes (id) SELECT unnest($1::uuid[])`, f.lanes); err != nil {
		return nil, fmt.Errorf("create the floors' lanes: %w", err)
	}
	return f, nil
}

// plain is floor A.
func (f *floors) plain(ctx context.Context, n int, _ time.Time) (int, error) {
	_, err := f.db.Exec(ctx, plainInsert, f.packed.blobs[n%len(f.packed.blobs)])
	return f.load.shape.Batch, err
}

// log is floor B.
func (f *floors) log(ctx context.Context, n int, _ time.Time) (int, error) {
	i := n % len(f.packed.blobs)
	_, err := f.db.Exec(ctx, logInsert, f.lanes[n%len(f.lanes)], f.load.shape.Batch, f.packed.blobs[i], f.packed.hashes[i])
	return f.load.shape.Batch, err
}

// row is floor R.
func (f *floors) row(ctx context.Context, n int, _ time.Time) (int, error) {
	_, err := f.db.Exec(ctx, plainInsert, f.load.payloads[n%len(f.load.payloads)][0])
	return 1, err
}

// floorRun is one run of a floor.
type floorRun struct {
	workers int
	send    sender
	done    *tally
}

func newFloorRun(workers int, send sender) *floorRun {
	return &floorRun{workers: workers, send: send, done: newTally()}
}

func (r *floorRun) counts() (pushed, acked int64) { return r.done.messages.Load(), 0 }

func (r *floorRun) run(ctx context.Context, stop <-chan struct{}, w *window) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	drive(ctx, loop{workers: r.workers, sender: func(int) sender { return r.send }}, w, r.done)
}

func (r *floorRun) report(b *block) {
	b.push, b.failures, b.err = r.done.latency, r.done.failures.Load(), r.done.err
}
