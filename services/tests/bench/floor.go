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
DROP SCHEMA IF EXISTS bench CASCADE;
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

// floorLoad writes the workload's blobs straight into PostgreSQL.
type floorLoad struct {
	load  *workload
	db    *pgxpool.Pool
	lanes []uuid.UUID
}

func newFloorLoad(ctx context.Context, w *workload, db *pgxpool.Pool) (*floorLoad, error) {
	if _, err := db.Exec(ctx, floorSchema); err != nil {
		return nil, fmt.Errorf("create the floors' tables: %w", err)
	}
	f := &floorLoad{load: w, db: db}
	for range w.opts.Lanes {
		f.lanes = append(f.lanes, uuid.New())
	}
	if _, err := db.Exec(ctx, `INSERT INTO bench.lanes (id) SELECT unnest($1::uuid[])`, f.lanes); err != nil {
		return nil, fmt.Errorf("create the floors' lanes: %w", err)
	}
	return f, nil
}

// plain is floor A.
func (f *floorLoad) plain(ctx context.Context, _, n int, _ time.Time) error {
	_, err := f.db.Exec(ctx, plainInsert, f.load.blobs[n%len(f.load.blobs)])
	return err
}

// log is floor B.
func (f *floorLoad) log(ctx context.Context, _, n int, _ time.Time) error {
	i := n % len(f.load.blobs)
	_, err := f.db.Exec(ctx, logInsert, f.lanes[n%len(f.lanes)], f.load.opts.Batch, f.load.blobs[i], f.load.hashes[i])
	return err
}
