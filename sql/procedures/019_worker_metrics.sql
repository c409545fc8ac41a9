-- What the processes of an installation count: one row per replica and flush, one
-- row per queue and minute, and what happened to partitions. The readers of these
-- tables come later; the stored columns are what they need.
--
-- Locks, in this order: queue rows FOR KEY SHARE, ascending by id, in one
-- statement; then rows of queue_lag_metrics and of queue_parked_replica, each
-- ascending by its key; then the one row of worker_metrics_summary. So replicas
-- that flush at once only wait for each other. A queue that is being deleted is
-- waited for, and skipped when it is gone; its deletion waits for a flush that
-- holds it, and never for one that waits for another queue. The purge skips what
-- is locked, as the cascade of a queue takes its rows in no certain order. The
-- trigger functions on log_partitions only insert rows that nobody else can see.
--
-- Re-applying is safe: tables and indexes are create-only, the trigger is attached
-- only when absent, and CREATE OR REPLACE keeps every signature.

-- One row per replica and flush: what it has counted since its last one. The lag is
-- the age of messages when they were delivered. Pops that found nothing are among
-- the pop requests. An ack failed when it was refused, whatever it reported.
CREATE TABLE IF NOT EXISTS queen.worker_metrics (
    id                    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flush_id              UUID NOT NULL UNIQUE, -- of the caller: a repeated flush is found by it
    service               TEXT NOT NULL,
    hostname              TEXT NOT NULL,
    worker_id             INTEGER NOT NULL DEFAULT 0,
    port                  INTEGER NOT NULL DEFAULT 0,
    pid                   INTEGER NOT NULL DEFAULT 0,
    captured_at           TIMESTAMPTZ NOT NULL DEFAULT now(),
    interval_ms           BIGINT NOT NULL,
    push_requests         BIGINT NOT NULL,
    push_messages         BIGINT NOT NULL,
    pop_requests          BIGINT NOT NULL,
    pop_messages          BIGINT NOT NULL,
    pop_empty             BIGINT NOT NULL,
    ack_requests          BIGINT NOT NULL,
    ack_success           BIGINT NOT NULL,
    ack_failed            BIGINT NOT NULL,
    transactions          BIGINT NOT NULL,
    dlq_count             BIGINT NOT NULL,
    db_errors             BIGINT NOT NULL,
    avg_lag_ms            DOUBLE PRECISION, -- over pop_messages; NULL without any
    max_lag_ms            DOUBLE PRECISION,
    avg_event_loop_lag_ms DOUBLE PRECISION,
    max_event_loop_lag_ms DOUBLE PRECISION,
    db_connections        INTEGER NOT NULL, -- in use at the flush
    free_slots            INTEGER NOT NULL, -- idle at the flush
    parked                INTEGER NOT NULL  -- pops that wait, at the flush
);

CREATE INDEX IF NOT EXISTS idx_worker_metrics_captured_at ON queen.worker_metrics (captured_at);

-- Lifetime totals of the installation: one row, which outlives the purge.
CREATE TABLE IF NOT EXISTS queen.worker_metrics_summary (
    scope         TEXT PRIMARY KEY,
    push_requests BIGINT NOT NULL,
    push_messages BIGINT NOT NULL,
    pop_requests  BIGINT NOT NULL,
    pop_messages  BIGINT NOT NULL,
    pop_empty     BIGINT NOT NULL,
    ack_requests  BIGINT NOT NULL,
    ack_success   BIGINT NOT NULL,
    ack_failed    BIGINT NOT NULL,
    transactions  BIGINT NOT NULL,
    dlq_count     BIGINT NOT NULL,
    db_errors     BIGINT NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- One row per replica and flush: the state of the process. Leaves of the document:
-- cpu.user_us, cpu.system_us (per cent of one processor, times 100),
-- memory.rss_bytes, database.pool_size, pool_idle, pool_active, uptime_seconds.
CREATE TABLE IF NOT EXISTS queen.system_metrics (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service     TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    worker_id   INTEGER NOT NULL DEFAULT 0,
    port        INTEGER NOT NULL DEFAULT 0,
    captured_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    metrics     JSONB NOT NULL
);

CREATE INDEX IF NOT EXISTS idx_system_metrics_captured_at ON queen.system_metrics (captured_at);

-- One row per queue and minute, over all replicas. parked_count is the mean number
-- of pops that waited during the minute: a flush adds what it saw, weighted by the
-- part of the minute that it stands for.
CREATE TABLE IF NOT EXISTS queen.queue_lag_metrics (
    bucket_time        TIMESTAMPTZ NOT NULL,
    queue_id           UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    push_requests      BIGINT NOT NULL DEFAULT 0,
    push_messages      BIGINT NOT NULL DEFAULT 0,
    pop_requests       BIGINT NOT NULL DEFAULT 0,
    pop_messages       BIGINT NOT NULL DEFAULT 0,
    pop_empty          BIGINT NOT NULL DEFAULT 0,
    ack_requests       BIGINT NOT NULL DEFAULT 0,
    ack_success        BIGINT NOT NULL DEFAULT 0,
    ack_failed         BIGINT NOT NULL DEFAULT 0,
    transactions       BIGINT NOT NULL DEFAULT 0,
    avg_lag_ms         DOUBLE PRECISION, -- over pop_messages; NULL without any
    max_lag_ms         DOUBLE PRECISION,
    parked_count       DOUBLE PRECISION NOT NULL DEFAULT 0,
    partitions_created BIGINT NOT NULL DEFAULT 0,
    partitions_deleted BIGINT NOT NULL DEFAULT 0,
    partition_count    BIGINT, -- of the last refresh of queen.stats; NULL before the first
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (bucket_time, queue_id)
) WITH (fillfactor = 80);

-- For the cascade from queues, and for the series of one queue.
CREATE INDEX IF NOT EXISTS idx_queue_lag_metrics_queue ON queen.queue_lag_metrics (queue_id, bucket_time);

-- The parked_count of each replica, for queues that had parked pops.
CREATE TABLE IF NOT EXISTS queen.queue_parked_replica (
    bucket_time  TIMESTAMPTZ NOT NULL,
    queue_id     UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    hostname     TEXT NOT NULL,
    worker_id    INTEGER NOT NULL DEFAULT 0,
    parked_count DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (bucket_time, queue_id, hostname, worker_id)
) WITH (fillfactor = 80);

CREATE INDEX IF NOT EXISTS idx_queue_parked_replica_queue ON queen.queue_parked_replica (queue_id, bucket_time);

-- Partitions created and deleted, as they happen: whoever creates a lane must not
-- wait for whoever creates another one of the queue. metrics_fold_partitions_v1
-- moves the rows on. No foreign key, which would lock the queue; no index, as every
-- reader takes all.
CREATE TABLE IF NOT EXISTS queen.partition_events (
    bucket_time TIMESTAMPTZ NOT NULL,
    queue_id    UUID NOT NULL,
    created     BIGINT NOT NULL,
    deleted     BIGINT NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The trigger functions of 020. Statement triggers: a statement that creates many
-- lanes of a queue writes one row.
CREATE OR REPLACE FUNCTION queen.count_partitions_created_v1()
RETURNS TRIGGER
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO queen.partition_events (bucket_time, queue_id, created, deleted)
    SELECT date_trunc('minute', now()), n.queue_id, count(*), 0
    FROM created AS n
    GROUP BY n.queue_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION queen.count_partitions_deleted_v1()
RETURNS TRIGGER
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO queen.partition_events (bucket_time, queue_id, created, deleted)
    SELECT date_trunc('minute', now()), o.queue_id, 0, count(*)
    FROM deleted AS o
    GROUP BY o.queue_id;
    RETURN NULL;
END
$$;

-- Adds new rows of worker_metrics to the totals.
CREATE OR REPLACE FUNCTION queen.fold_worker_metrics_v1()
RETURNS TRIGGER
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO queen.worker_metrics_summary AS s (
        scope, push_requests, push_messages, pop_requests, pop_messages, pop_empty,
        ack_requests, ack_success, ack_failed, transactions, dlq_count, db_errors)
    SELECT 'cluster', sum(a.push_requests), sum(a.push_messages), sum(a.pop_requests), sum(a.pop_messages), sum(a.pop_empty),
           sum(a.ack_requests), sum(a.ack_success), sum(a.ack_failed), sum(a.transactions), sum(a.dlq_count), sum(a.db_errors)
    FROM added AS a
    HAVING count(*) > 0
    ON CONFLICT (scope) DO UPDATE SET
        push_requests = s.push_requests + excluded.push_requests,
        push_messages = s.push_messages + excluded.push_messages,
        pop_requests  = s.pop_requests + excluded.pop_requests,
        pop_messages  = s.pop_messages + excluded.pop_messages,
        pop_empty     = s.pop_empty + excluded.pop_empty,
        ack_requests  = s.ack_requests + excluded.ack_requests,
        ack_success   = s.ack_success + excluded.ack_success,
        ack_failed    = s.ack_failed + excluded.ack_failed,
        transactions  = s.transactions + excluded.transactions,
        dlq_count     = s.dlq_count + excluded.dlq_count,
        db_errors     = s.db_errors + excluded.db_errors,
        updated_at    = now();
    RETURN NULL;
END
$$;

DO $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_trigger
        WHERE tgrelid = 'queen.worker_metrics'::regclass AND tgname = 'trg_worker_metrics_summary'
    ) THEN
        CREATE TRIGGER trg_worker_metrics_summary
            AFTER INSERT ON queen.worker_metrics
            REFERENCING NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION queen.fold_worker_metrics_v1();
    END IF;
END
$$;

-- Width, in minutes, of the points of a series over a window.
CREATE OR REPLACE FUNCTION queen.metrics_bucket_minutes_v1(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS INTEGER
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN w.seconds <= 3600 THEN 1
        WHEN w.seconds <= 6 * 3600 THEN 5
        WHEN w.seconds <= 24 * 3600 THEN 15
        WHEN w.seconds <= 7 * 24 * 3600 THEN 60
        ELSE 360
    END
    FROM (SELECT extract(epoch FROM p_to) - extract(epoch FROM p_from) AS seconds) AS w
$$;

-- Adds what one replica has counted per queue to the current minute. Rows name
-- their queue by tenant and name, or by the id of one of its partitions; both may
-- occur for the same queue. What names none, because it is gone, is skipped.
-- Answers how many queues were written.
--
-- Keys of a row: tenant, queue or partition; push_requests, push_messages,
-- pop_requests, pop_messages, pop_empty, lag_us (the sum over the messages),
-- max_lag_us, ack_requests, ack_success, ack_failed, transactions, parked.
CREATE OR REPLACE FUNCTION queen.metrics_flush_queues_v1(
    p_hostname    TEXT,
    p_worker_id   INTEGER,
    p_interval_ms BIGINT,
    p_queues      JSONB
)
RETURNS INTEGER
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_bucket TIMESTAMPTZ := date_trunc('minute', now());
    -- A flush stands for a part of the minute; one that is late for all of it.
    v_share  DOUBLE PRECISION := least(greatest(p_interval_ms, 0) / 60000.0, 1);
    v_rows   INTEGER;
BEGIN
    WITH told AS MATERIALIZED (
        SELECT COALESCE(q.id, p.queue_id) AS queue_id, t.*
        FROM jsonb_to_recordset(p_queues) AS t (
            tenant UUID, queue TEXT, partition UUID, push_requests BIGINT, push_messages BIGINT,
            pop_requests BIGINT, pop_messages BIGINT, pop_empty BIGINT, lag_us BIGINT, max_lag_us BIGINT,
            ack_requests BIGINT, ack_success BIGINT, ack_failed BIGINT, transactions BIGINT, parked BIGINT)
        LEFT JOIN queen.queues AS q ON q.tenant_id = t.tenant AND q.name = t.queue
        LEFT JOIN queen.log_partitions AS p ON p.id = t.partition
    ), sums AS (
        SELECT t.queue_id,
               sum(t.push_requests) AS push_requests, sum(t.push_messages) AS push_messages,
               sum(t.pop_requests) AS pop_requests, sum(t.pop_messages) AS pop_messages, sum(t.pop_empty) AS pop_empty,
               sum(t.lag_us) / 1000.0 / NULLIF(sum(t.pop_messages), 0) AS avg_lag_ms,
               CASE WHEN sum(t.pop_messages) > 0 THEN max(t.max_lag_us) / 1000.0 END AS max_lag_ms,
               sum(t.ack_requests) AS ack_requests, sum(t.ack_success) AS ack_success, sum(t.ack_failed) AS ack_failed,
               sum(t.transactions) AS transactions, sum(t.parked) * v_share AS parked_count
        FROM told AS t
        WHERE t.queue_id IS NOT NULL
        GROUP BY t.queue_id
    ), present AS MATERIALIZED (
        SELECT q.id FROM queen.queues AS q
        WHERE q.id IN (SELECT s.queue_id FROM sums AS s)
        ORDER BY q.id
        FOR KEY SHARE
    ), written AS (
        INSERT INTO queen.queue_lag_metrics AS m (
            bucket_time, queue_id, push_requests, push_messages, pop_requests, pop_messages, pop_empty,
            ack_requests, ack_success, ack_failed, transactions, avg_lag_ms, max_lag_ms, parked_count, partition_count)
        SELECT v_bucket, s.queue_id, s.push_requests, s.push_messages, s.pop_requests, s.pop_messages, s.pop_empty,
               s.ack_requests, s.ack_success, s.ack_failed, s.transactions, s.avg_lag_ms, s.max_lag_ms, s.parked_count,
               (SELECT x.child_count FROM queen.stats AS x
                WHERE x.stat_type = 'queue' AND x.stat_key = s.queue_id::TEXT AND x.consumer_group = '__QUEUE_MODE__')
        FROM sums AS s
        JOIN present AS p ON p.id = s.queue_id
        ORDER BY s.queue_id
        ON CONFLICT (bucket_time, queue_id) DO UPDATE SET
            push_requests   = m.push_requests + excluded.push_requests,
            push_messages   = m.push_messages + excluded.push_messages,
            pop_requests    = m.pop_requests + excluded.pop_requests,
            pop_messages    = m.pop_messages + excluded.pop_messages,
            pop_empty       = m.pop_empty + excluded.pop_empty,
            ack_requests    = m.ack_requests + excluded.ack_requests,
            ack_success     = m.ack_success + excluded.ack_success,
            ack_failed      = m.ack_failed + excluded.ack_failed,
            transactions    = m.transactions + excluded.transactions,
            avg_lag_ms      = (COALESCE(m.avg_lag_ms, 0) * m.pop_messages + COALESCE(excluded.avg_lag_ms, 0) * excluded.pop_messages)
                              / NULLIF(m.pop_messages + excluded.pop_messages, 0),
            max_lag_ms      = greatest(m.max_lag_ms, excluded.max_lag_ms),
            parked_count    = m.parked_count + excluded.parked_count,
            partition_count = COALESCE(excluded.partition_count, m.partition_count),
            updated_at      = now()
        RETURNING m.queue_id
    ), parked AS (
        INSERT INTO queen.queue_parked_replica AS r (bucket_time, queue_id, hostname, worker_id, parked_count)
        SELECT v_bucket, s.queue_id, p_hostname, p_worker_id, s.parked_count
        FROM sums AS s
        JOIN written AS w ON w.queue_id = s.queue_id -- so that it comes second
        WHERE s.parked_count > 0
        ORDER BY s.queue_id
        ON CONFLICT (bucket_time, queue_id, hostname, worker_id) DO UPDATE SET
            parked_count = r.parked_count + excluded.parked_count
    )
    SELECT count(*) INTO v_rows FROM written;
    RETURN v_rows;
END
$$;

-- Writes what one replica has counted since its last flush, all of it or nothing.
-- A call whose answer was lost is repeated with the same p_flush, and then changes
-- nothing when the first one was carried out.
--
-- Keys of p_worker: those of worker_metrics from push_requests to db_errors, lag_us
-- (the sum over the messages), max_lag_us, avg_event_loop_lag_ms and
-- max_event_loop_lag_ms (null where there is no sample), db_connections, free_slots,
-- parked.
CREATE OR REPLACE FUNCTION queen.metrics_flush_v1(
    p_flush       UUID,
    p_service     TEXT,
    p_hostname    TEXT,
    p_worker_id   INTEGER,
    p_port        INTEGER,
    p_pid         INTEGER,
    p_interval_ms BIGINT,
    p_worker      JSONB,
    p_system      JSONB,
    p_queues      JSONB
)
RETURNS INTEGER
LANGUAGE plpgsql
AS $$
DECLARE
    v_queues INTEGER;
BEGIN
    IF EXISTS (SELECT 1 FROM queen.worker_metrics AS w WHERE w.flush_id = p_flush) THEN
        RETURN 0;
    END IF;
    v_queues := queen.metrics_flush_queues_v1(p_hostname, p_worker_id, p_interval_ms, p_queues);
    INSERT INTO queen.system_metrics (service, hostname, worker_id, port, metrics)
    VALUES (p_service, p_hostname, p_worker_id, p_port, p_system);
    -- Last, since its trigger locks the row that all replicas share.
    INSERT INTO queen.worker_metrics (
        flush_id, service, hostname, worker_id, port, pid, interval_ms,
        push_requests, push_messages, pop_requests, pop_messages, pop_empty,
        ack_requests, ack_success, ack_failed, transactions, dlq_count, db_errors,
        avg_lag_ms, max_lag_ms, avg_event_loop_lag_ms, max_event_loop_lag_ms, db_connections, free_slots, parked)
    SELECT p_flush, p_service, p_hostname, p_worker_id, p_port, p_pid, p_interval_ms,
           t.push_requests, t.push_messages, t.pop_requests, t.pop_messages, t.pop_empty,
           t.ack_requests, t.ack_success, t.ack_failed, t.transactions, t.dlq_count, t.db_errors,
           t.lag_us / 1000.0 / NULLIF(t.pop_messages, 0), CASE WHEN t.pop_messages > 0 THEN t.max_lag_us / 1000.0 END,
           t.avg_event_loop_lag_ms, t.max_event_loop_lag_ms, t.db_connections, t.free_slots, t.parked
    FROM jsonb_to_record(p_worker) AS t (
        push_requests BIGINT, push_messages BIGINT, pop_requests BIGINT, pop_messages BIGINT, pop_empty BIGINT,
        ack_requests BIGINT, ack_success BIGINT, ack_failed BIGINT, transactions BIGINT, dlq_count BIGINT, db_errors BIGINT,
        lag_us BIGINT, max_lag_us BIGINT, avg_event_loop_lag_ms DOUBLE PRECISION, max_event_loop_lag_ms DOUBLE PRECISION,
        db_connections INTEGER, free_slots INTEGER, parked INTEGER)
    ON CONFLICT (flush_id) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'QMETRICS flush % is being made by an earlier call', p_flush USING ERRCODE = '40001';
    END IF;
    RETURN v_queues;
END
$$;

-- Moves at most p_max_rows partition events to the minutes of their queues, and
-- answers how many it took. Those of queues that are gone are dropped. Callers at
-- the same time share the rows.
CREATE OR REPLACE FUNCTION queen.metrics_fold_partitions_v1(p_max_rows INTEGER)
RETURNS INTEGER
LANGUAGE plpgsql
AS $$
DECLARE
    v_rows INTEGER;
BEGIN
    WITH taken AS (
        DELETE FROM queen.partition_events AS e
        WHERE e.ctid = ANY (ARRAY(
            SELECT x.ctid FROM queen.partition_events AS x LIMIT p_max_rows FOR UPDATE SKIP LOCKED))
        RETURNING e.bucket_time, e.queue_id, e.created, e.deleted
    ), sums AS (
        SELECT t.bucket_time, t.queue_id, sum(t.created) AS created, sum(t.deleted) AS deleted
        FROM taken AS t
        GROUP BY t.bucket_time, t.queue_id
    ), present AS MATERIALIZED (
        SELECT q.id FROM queen.queues AS q
        WHERE q.id IN (SELECT s.queue_id FROM sums AS s)
        ORDER BY q.id
        FOR KEY SHARE
    ), written AS (
        INSERT INTO queen.queue_lag_metrics AS m (bucket_time, queue_id, partitions_created, partitions_deleted)
        SELECT s.bucket_time, s.queue_id, s.created, s.deleted
        FROM sums AS s
        JOIN present AS p ON p.id = s.queue_id
        ORDER BY s.bucket_time, s.queue_id
        ON CONFLICT (bucket_time, queue_id) DO UPDATE SET
            partitions_created = m.partitions_created + excluded.partitions_created,
            partitions_deleted = m.partitions_deleted + excluded.partitions_deleted,
            updated_at         = now()
    )
    SELECT count(*) INTO v_rows FROM taken;
    RETURN v_rows;
END
$$;

-- Deletes what was recorded before p_cutoff, at most p_max_rows of each table, so
-- that none of them waits for another's backlog. Answers how many rows went.
CREATE OR REPLACE FUNCTION queen.metrics_purge_v1(p_cutoff TIMESTAMPTZ, p_max_rows INTEGER)
RETURNS BIGINT
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_total BIGINT := 0;
    v_rows  BIGINT;
BEGIN
    DELETE FROM queen.worker_metrics AS w
    WHERE w.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.worker_metrics AS x WHERE x.captured_at < p_cutoff
        ORDER BY x.captured_at LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_total := v_total + v_rows;

    DELETE FROM queen.queue_lag_metrics AS m
    WHERE m.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.queue_lag_metrics AS x WHERE x.bucket_time < p_cutoff
        ORDER BY x.bucket_time LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_total := v_total + v_rows;

    DELETE FROM queen.queue_parked_replica AS r
    WHERE r.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.queue_parked_replica AS x WHERE x.bucket_time < p_cutoff
        ORDER BY x.bucket_time LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_total := v_total + v_rows;

    DELETE FROM queen.retention_history AS h
    WHERE h.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.retention_history AS x WHERE x.executed_at < p_cutoff
        ORDER BY x.executed_at LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_total + v_rows;
END
$$;

-- The same for the state of the processes.
CREATE OR REPLACE FUNCTION queen.system_metrics_purge_v1(p_cutoff TIMESTAMPTZ, p_max_rows INTEGER)
RETURNS BIGINT
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_rows BIGINT;
BEGIN
    DELETE FROM queen.system_metrics AS s
    WHERE s.ctid = ANY (ARRAY(
        SELECT x.ctid FROM queen.system_metrics AS x WHERE x.captured_at < p_cutoff
        ORDER BY x.captured_at LIMIT p_max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

-- How many rows both would delete if they were not bounded.
CREATE OR REPLACE FUNCTION queen.metrics_purge_forecast_v1(p_cutoff TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT (SELECT count(*) FROM queen.worker_metrics AS w WHERE w.captured_at < p_cutoff)
         + (SELECT count(*) FROM queen.queue_lag_metrics AS m WHERE m.bucket_time < p_cutoff)
         + (SELECT count(*) FROM queen.queue_parked_replica AS r WHERE r.bucket_time < p_cutoff)
         + (SELECT count(*) FROM queen.retention_history AS h WHERE h.executed_at < p_cutoff)
         + (SELECT count(*) FROM queen.system_metrics AS s WHERE s.captured_at < p_cutoff)
$$;
