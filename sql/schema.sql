-- Shared tables of Queen: the queue row (identity and configuration) and what
-- hangs off it. The log itself is in procedures/001_log_schema.sql.
--
-- Locks: CREATE ... IF NOT EXISTS on an existing object takes no lock that
-- stops a reader or a writer. Re-applying is safe: every statement is a no-op
-- when its object exists, and nothing here alters or drops a table.
--
-- PostgreSQL 15 or newer: cgm_identity_uk uses NULLS NOT DISTINCT.

CREATE SCHEMA IF NOT EXISTS queen;

-- What was applied. An identical boot finds its own sums here and runs no DDL;
-- min_compatible is the oldest generation of binary that may run on this database.
CREATE TABLE IF NOT EXISTS queen.schema_files (
    name           TEXT PRIMARY KEY,
    sha256         TEXT NOT NULL,
    generation     INTEGER NOT NULL,
    min_compatible INTEGER NOT NULL,
    applied_at     TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- One row per queue: identity is the id, the wire name is (tenant_id, name).
-- Implicit creation (push, early subscriber) takes the column defaults.
CREATE TABLE IF NOT EXISTS queen.queues (
    id                          UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id                   UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    name                        VARCHAR(255) NOT NULL,
    namespace                   VARCHAR(255),
    task                        VARCHAR(255),
    priority                    INTEGER DEFAULT 0,
    lease_time                  INTEGER DEFAULT 60,
    retry_limit                 INTEGER DEFAULT 3,
    retry_delay                 INTEGER DEFAULT 1000,
    max_queue_size              INTEGER DEFAULT 0,
    ttl                         INTEGER DEFAULT 3600,
    dead_letter_queue           BOOLEAN DEFAULT TRUE,
    dlq_after_max_retries       BOOLEAN DEFAULT TRUE,
    delayed_processing          INTEGER DEFAULT 0,
    window_buffer               INTEGER DEFAULT 0,
    retention_enabled           BOOLEAN DEFAULT FALSE,
    retention_seconds           INTEGER DEFAULT 0,
    completed_retention_seconds INTEGER DEFAULT 0,
    max_wait_time_seconds       INTEGER DEFAULT 0,
    min_pop_wait_time           INTEGER DEFAULT 0,
    encryption_enabled          BOOLEAN DEFAULT FALSE,
    dedup_window_seconds        INTEGER NOT NULL DEFAULT 3600,
    created_at                  TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE UNIQUE INDEX IF NOT EXISTS queues_tenant_name_uk ON queen.queues (tenant_id, name);

-- Durable subscription of a group, and the marker of its first contact.
-- queue_id is NULL only for namespace/task registrations, which name no queue.
CREATE TABLE IF NOT EXISTS queen.consumer_groups_metadata (
    id                     UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id              UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    consumer_group         TEXT NOT NULL,
    queue_id               UUID REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_name         TEXT NOT NULL DEFAULT '',
    namespace              TEXT NOT NULL DEFAULT '',
    task                   TEXT NOT NULL DEFAULT '',
    subscription_mode      TEXT NOT NULL,
    subscription_timestamp TIMESTAMPTZ NOT NULL,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT cgm_identity_uk UNIQUE NULLS NOT DISTINCT
        (tenant_id, consumer_group, queue_id, partition_name, namespace, task)
);

-- The cascade from queues looks rows up by queue_id alone.
CREATE INDEX IF NOT EXISTS idx_cgm_queue ON queen.consumer_groups_metadata (queue_id);

-- Empty-scan watermark per (queue, group): the candidate scan starts here, and
-- updated_at says when emptiness was last verified with leases ignored.
CREATE TABLE IF NOT EXISTS queen.consumer_watermarks (
    queue_id           UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group     TEXT NOT NULL,
    last_empty_scan_at TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01T00:00:00Z',
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (queue_id, consumer_group)
);

-- Output of the stats reconciler: one row per queue, namespace, task and for
-- the system. partition_id carries a log id without a foreign key. Every refresh
-- writes every row: half a page is free, so that the updates stay HOT.
CREATE TABLE IF NOT EXISTS queen.stats (
    stat_type            TEXT NOT NULL,
    stat_key             TEXT NOT NULL,
    consumer_group       TEXT NOT NULL DEFAULT '__QUEUE_MODE__',
    tenant_id            UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    queue_id             UUID REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_id         UUID,
    namespace            TEXT,
    task                 TEXT,
    child_count          BIGINT NOT NULL DEFAULT 0,
    total_messages       BIGINT NOT NULL DEFAULT 0,
    pending_messages     BIGINT NOT NULL DEFAULT 0,
    processing_messages  BIGINT NOT NULL DEFAULT 0,
    completed_messages   BIGINT NOT NULL DEFAULT 0,
    dead_letter_messages BIGINT NOT NULL DEFAULT 0,
    segment_count        BIGINT NOT NULL DEFAULT 0,
    retained_bytes       BIGINT NOT NULL DEFAULT 0,
    retained_bytes_at    TIMESTAMPTZ,
    avg_lag_seconds      DOUBLE PRECISION,
    median_lag_seconds   DOUBLE PRECISION,
    min_lag_seconds      DOUBLE PRECISION,
    max_lag_seconds      DOUBLE PRECISION,
    avg_offset_lag       BIGINT,
    median_offset_lag    BIGINT,
    min_offset_lag       BIGINT,
    max_offset_lag       BIGINT,
    oldest_pending_at    TIMESTAMPTZ,
    newest_message_at    TIMESTAMPTZ,
    prev_total           BIGINT NOT NULL DEFAULT 0,
    prev_completed       BIGINT NOT NULL DEFAULT 0,
    prev_at              TIMESTAMPTZ,
    last_computed_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (stat_type, stat_key, consumer_group)
) WITH (fillfactor = 50);

CREATE INDEX IF NOT EXISTS idx_stats_queue ON queen.stats (queue_id);

-- One row per retention step that deleted something. No foreign key on
-- partition_id: the step that deletes a partition writes its own audit row.
CREATE TABLE IF NOT EXISTS queen.retention_history (
    id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id     UUID,
    messages_deleted BIGINT NOT NULL DEFAULT 0,
    retention_type   TEXT NOT NULL,
    executed_at      TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- Traces outlive the segments and partitions they describe: no foreign keys
-- on log ids, only from a label to its trace.
CREATE TABLE IF NOT EXISTS queen.message_traces (
    id             UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    message_id     UUID,
    partition_id   UUID NOT NULL,
    transaction_id TEXT NOT NULL,
    consumer_group TEXT,
    event_type     TEXT NOT NULL DEFAULT 'info',
    data           JSONB NOT NULL DEFAULT '{}',
    worker_id      TEXT,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE INDEX IF NOT EXISTS idx_message_traces_address
    ON queen.message_traces (partition_id, transaction_id, created_at);

CREATE TABLE IF NOT EXISTS queen.message_trace_names (
    trace_id   UUID NOT NULL REFERENCES queen.message_traces (id) ON DELETE CASCADE,
    trace_name TEXT NOT NULL,
    PRIMARY KEY (trace_id, trace_name)
);

CREATE INDEX IF NOT EXISTS idx_message_trace_names_name ON queen.message_trace_names (trace_name);

-- Flags every process reads: maintenance modes, kill switches, cluster identity.
CREATE TABLE IF NOT EXISTS queen.system_state (
    key        TEXT PRIMARY KEY,
    value      JSONB NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

GRANT USAGE ON SCHEMA queen TO PUBLIC;
