-- Tables of the streaming surface: registered queries and their keyed state.
-- The procedures that use them come in 007 to 009.
--
-- Locks: creation only. Re-applying is safe: create-only statements and
-- grants that already hold.

CREATE SCHEMA IF NOT EXISTS queen_streams;

CREATE TABLE IF NOT EXISTS queen_streams.queries (
    id           UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id    UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    name         TEXT NOT NULL,
    source_queue TEXT NOT NULL,
    sink_queue   TEXT,
    config_hash  TEXT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name)
);

-- partition_id has no foreign key: reclaiming a partition must not silently
-- drop state, so a partition that still has state is never reclaimed.
CREATE TABLE IF NOT EXISTS queen_streams.state (
    query_id     UUID NOT NULL REFERENCES queen_streams.queries (id) ON DELETE CASCADE,
    partition_id UUID NOT NULL,
    key          TEXT NOT NULL,
    value        JSONB NOT NULL,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (query_id, partition_id, key)
);

CREATE INDEX IF NOT EXISTS idx_streams_state_partition ON queen_streams.state (partition_id);

GRANT USAGE ON SCHEMA queen_streams TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON queen_streams.queries, queen_streams.state TO PUBLIC;
