-- The log: partitions, segments, the hash sidecar and the consumer cursors,
-- and the one helper both the push probe and the ack resolution use.
--
-- Locks: creation only; on an existing database CREATE TABLE IF NOT EXISTS
-- locks nothing. Re-applying is safe because every statement is create-only,
-- and CREATE OR REPLACE keeps the helper's signature.
--
-- A database of generation 2 gets two columns and three indexes under traffic, each
-- in a transaction of its own that waits at most 2 s for its lock. The columns are a
-- change of the catalogue alone (ACCESS EXCLUSIVE, 1 ms). An index is built under
-- SHARE, which stops pushes meanwhile; measured at 1,000,000 partitions, where all
-- watermarks are still NULL: 0.1 s for each of the watermarks, which have no entry,
-- and 0.9 s for the empty ones. CONCURRENTLY would stop nobody, but waits for
-- every transaction at work, an hour of pg_dump included, and leaves an invalid index
-- when it gives up. Where a second is too long, add the columns and build the three
-- indexes CONCURRENTLY by hand before the upgrade: what exists is left alone.
-- The watermarks themselves are filled in by log_watermark_walk_step_v1.

-- One row per partition; its row lock serialises the partition's writers.
-- fillfactor and threshold-driven vacuum because every push updates the row;
-- vacuum_truncate off because truncation takes ACCESS EXCLUSIVE, which would
-- freeze every push and pop for nothing on a table of stable size.
CREATE TABLE IF NOT EXISTS queen.log_partitions (
    id            UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id      UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    name          TEXT NOT NULL DEFAULT 'Default',
    last_offset   BIGINT NOT NULL DEFAULT -1,
    log_start     BIGINT NOT NULL DEFAULT 0,
    txns_start    BIGINT NOT NULL DEFAULT 0,
    last_write_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    -- created_at of the first segment and of the first sidecar row; NULL: none.
    oldest_live_at TIMESTAMPTZ,
    oldest_txn_at  TIMESTAMPTZ,
    UNIQUE (queue_id, name)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- The watermarks of generation 3, for a table that lacks them. The catalogue is
-- asked first: ALTER takes ACCESS EXCLUSIVE even when it has nothing to add.
DO $$
BEGIN
    IF 2 > (
        SELECT count(*) FROM pg_catalog.pg_attribute
        WHERE attrelid = 'queen.log_partitions'::regclass AND attname IN ('oldest_live_at', 'oldest_txn_at')
    ) THEN
        ALTER TABLE queen.log_partitions
            ADD COLUMN IF NOT EXISTS oldest_live_at TIMESTAMPTZ,
            ADD COLUMN IF NOT EXISTS oldest_txn_at TIMESTAMPTZ;
    END IF;
END
$$;

-- Range of recently written partitions for the wildcard candidate scan.
-- last_write_at changes at most once a second so that pushes stay HOT.
CREATE INDEX IF NOT EXISTS idx_log_partitions_queue_write
    ON queen.log_partitions (queue_id, last_write_at);

-- What maintenance looks for, found without reading a partition that has nothing
-- due: those with old segments, those with old sidecar rows, and the empty ones
-- that were not written for long. A push sets a watermark only where it fills an
-- empty partition, so that a steady push stays HOT and costs what it did (2,210
-- bytes of WAL, the same processor time). The first push of a second, never HOT
-- because of last_write_at, makes two index entries more: 200 bytes of WAL on 2,500.
CREATE INDEX IF NOT EXISTS idx_log_partitions_oldest_live
    ON queen.log_partitions (queue_id, oldest_live_at, id) WHERE oldest_live_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_log_partitions_oldest_txn
    ON queen.log_partitions (queue_id, oldest_txn_at, id) WHERE oldest_txn_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_log_partitions_empty
    ON queen.log_partitions (last_write_at, id) WHERE oldest_live_at IS NULL;

-- The messages. The primary key is the pop path; there is no other index.
CREATE TABLE IF NOT EXISTS queen.log_segments (
    partition_id UUID NOT NULL REFERENCES queen.log_partitions (id) ON DELETE CASCADE,
    base_offset  BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    blob         BYTEA NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_insert_scale_factor = 0.3,
    autovacuum_vacuum_cost_limit = 4000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.1,
    toast.autovacuum_vacuum_insert_scale_factor = 0.3,
    toast.autovacuum_vacuum_cost_limit = 4000,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- PostgreSQL 15 cannot state column storage in CREATE TABLE. The catalogue is
-- asked first: ALTER takes ACCESS EXCLUSIVE and must not run on a live table.
DO $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM pg_catalog.pg_attribute
        WHERE attrelid = 'queen.log_segments'::regclass AND attname = 'blob' AND attstorage <> 'e'
    ) THEN
        ALTER TABLE queen.log_segments ALTER COLUMN blob SET STORAGE EXTERNAL;
    END IF;
END
$$;

-- The hash sidecar: one row per segment, 16 bytes per frame, written on every
-- push. No foreign key: the purge path must not pay for its triggers; whatever
-- deletes a partition deletes these rows itself.
CREATE TABLE IF NOT EXISTS queen.log_txns (
    partition_id UUID NOT NULL,
    base_offset  BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    hashes       BYTEA NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
);

-- Consumption: one row per (partition, group). The leased span is
-- (committed, batch_end]; one row can hold one lease.
CREATE TABLE IF NOT EXISTS queen.log_consumers (
    partition_id      UUID NOT NULL REFERENCES queen.log_partitions (id) ON DELETE CASCADE,
    consumer_group    TEXT NOT NULL DEFAULT '__QUEUE_MODE__',
    committed         BIGINT NOT NULL DEFAULT -1,
    batch_end         BIGINT,
    worker_id         TEXT,
    lease_expires_at  TIMESTAMPTZ,
    lease_acquired_at TIMESTAMPTZ,
    batch_retry_count INTEGER NOT NULL DEFAULT 0,
    attempt_offset    BIGINT,
    attempt_count     INTEGER NOT NULL DEFAULT 0,
    total_consumed    BIGINT NOT NULL DEFAULT 0,
    created_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (partition_id, consumer_group)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Slices a blob at a 16-byte stride into (idx from 0, hash); trailing partial
-- bytes are ignored. A single SELECT, so the planner inlines it.
CREATE OR REPLACE FUNCTION queen.log_unnest_hashes(p BYTEA)
RETURNS TABLE (idx INT, h BYTEA)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT g, substring(p FROM g * 16 + 1 FOR 16)
    FROM generate_series(0, octet_length(p) / 16 - 1) AS g
$$;

-- The partition of a name, for lateral joins; a single SELECT, so that the planner
-- inlines it. Asked for by equality, a partition may be looked for among all of its
-- queue: before the first ANALYZE of a growing table the index of the recently
-- written looks as good as the unique one (measured: 128 new names among 12,800, 225
-- ms against 2 ms). Only the unique index has the names in order.
CREATE OR REPLACE FUNCTION queen.log_partition_named_v1(p_queue_id UUID, p_name TEXT)
RETURNS SETOF queen.log_partitions
LANGUAGE sql STABLE
AS $$
    SELECT x.*
    FROM (
        SELECT p.* FROM queen.log_partitions AS p
        WHERE p.queue_id = p_queue_id AND p.name >= p_name
        ORDER BY p.name
        LIMIT 1
    ) AS x
    WHERE x.name = p_name
$$;
