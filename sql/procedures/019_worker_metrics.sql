-- What the processes of an installation count: one row per replica and flush, one
-- row per queue and minute, and what happened to partitions; and the readers of what
-- processes write of themselves. Those of the queues are in 013.
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

-- What the replicas have counted, in points of p_minutes. p_hostname and p_worker filter
-- where they are not NULL. Gauges are those of brokers, and NULL where none has written:
-- the pool of a maintainer says nothing about requests.
CREATE OR REPLACE FUNCTION queen.worker_points_v1(
    p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_minutes INTEGER, p_hostname TEXT DEFAULT NULL, p_worker INTEGER DEFAULT NULL
)
RETURNS TABLE (
    r_bucket        TIMESTAMPTZ,
    r_push_requests NUMERIC,
    r_push_messages NUMERIC,
    r_pop_requests  NUMERIC,
    r_pop_messages  NUMERIC,
    r_ack_requests  NUMERIC,
    r_ack_success   NUMERIC,
    r_ack_failed    NUMERIC,
    r_dlq_count     NUMERIC,
    r_db_errors     NUMERIC,
    r_avg_lag_ms    NUMERIC,
    r_max_lag_ms    NUMERIC,
    r_avg_loop_ms   NUMERIC,
    r_max_loop_ms   NUMERIC,
    r_connections   NUMERIC,
    r_avg_free      NUMERIC,
    r_min_free      INTEGER
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT queen.metrics_bucket_v1(w.captured_at, p_minutes) AS bucket, sum(w.push_requests), sum(w.push_messages),
           sum(w.pop_requests), sum(w.pop_messages), sum(w.ack_requests), sum(w.ack_success), sum(w.ack_failed),
           sum(w.dlq_count), sum(w.db_errors),
           round((sum(w.avg_lag_ms * w.pop_messages) / NULLIF(sum(w.pop_messages), 0)::DOUBLE PRECISION)::NUMERIC, 2),
           round(max(w.max_lag_ms)::NUMERIC, 2),
           round(avg(w.avg_event_loop_lag_ms) FILTER (WHERE w.service = 'broker')::NUMERIC, 3),
           round(max(w.max_event_loop_lag_ms) FILTER (WHERE w.service = 'broker')::NUMERIC, 3),
           round(avg(w.db_connections) FILTER (WHERE w.service = 'broker'), 2),
           round(avg(w.free_slots) FILTER (WHERE w.service = 'broker'), 2),
           min(w.free_slots) FILTER (WHERE w.service = 'broker')
    FROM queen.worker_metrics AS w
    WHERE w.captured_at >= p_from AND w.captured_at <= p_to
      AND (p_hostname IS NULL OR w.hostname = p_hostname)
      AND (p_worker IS NULL OR w.worker_id = p_worker)
    GROUP BY bucket;
END
$$;

-- The points of throughput of the whole installation, oldest first. Filter keys, all
-- optional: from, to, queue, namespace, task, hostname, workerId, _tenant. An empty text does
-- not filter. With a queue or a label the figures of messages are those of its
-- queues, over all replicas; what tells of health stays that of the replicas.
CREATE OR REPLACE FUNCTION queen.throughput_points_v1(p_filters JSONB)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_namespace TEXT := NULLIF(p_filters ->> 'namespace', '');
    v_task      TEXT := NULLIF(p_filters ->> 'task', '');
    v_named     BOOLEAN := COALESCE(v_queue, v_namespace, v_task) IS NOT NULL;
    v_window    RECORD;
    v_points    JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    WITH named AS (
        SELECT p.r_bucket AS bucket, sum(p.r_push_requests) AS push_requests, sum(p.r_push_messages) AS push_messages,
               sum(p.r_pop_requests) AS pop_requests, sum(p.r_pop_messages) AS pop_messages, sum(p.r_ack_requests) AS ack_requests,
               sum(p.r_ack_success) AS ack_success, sum(p.r_ack_failed) AS ack_failed,
               round((sum(p.r_lag_sum) / NULLIF(sum(p.r_pop_messages), 0)::DOUBLE PRECISION)::NUMERIC, 2) AS avg_lag,
               round(max(p.r_max_lag_ms)::NUMERIC, 2) AS max_lag
        FROM queen.queue_points_v1(v_tenant, v_window.r_from, v_window.r_to, v_window.r_minutes, v_queue, v_namespace, v_task) AS p
        WHERE v_named
        GROUP BY p.r_bucket
    ), points AS (
        SELECT COALESCE(w.r_bucket, n.bucket) AS bucket, w.*, f.*
        FROM queen.worker_points_v1(v_window.r_from, v_window.r_to, v_window.r_minutes,
            NULLIF(p_filters ->> 'hostname', ''), (p_filters ->> 'workerId')::INTEGER) AS w
        FULL JOIN named AS n ON n.bucket = w.r_bucket
        CROSS JOIN LATERAL (
            SELECT COALESCE(CASE WHEN v_named THEN n.push_requests ELSE w.r_push_requests END, 0) AS push_requests,
                   COALESCE(CASE WHEN v_named THEN n.push_messages ELSE w.r_push_messages END, 0) AS push_messages,
                   COALESCE(CASE WHEN v_named THEN n.pop_requests ELSE w.r_pop_requests END, 0) AS pop_requests,
                   COALESCE(CASE WHEN v_named THEN n.pop_messages ELSE w.r_pop_messages END, 0) AS pop_messages,
                   COALESCE(CASE WHEN v_named THEN n.ack_requests ELSE w.r_ack_requests END, 0) AS ack_requests,
                   COALESCE(CASE WHEN v_named THEN n.ack_success ELSE w.r_ack_success END, 0) AS ack_success,
                   COALESCE(CASE WHEN v_named THEN n.ack_failed ELSE w.r_ack_failed END, 0) AS ack_failed,
                   CASE WHEN v_named THEN n.avg_lag ELSE w.r_avg_lag_ms END AS avg_lag,
                   CASE WHEN v_named THEN n.max_lag ELSE w.r_max_lag_ms END AS max_lag
        ) AS f
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'timestamp', queen.iso_ms_v1(p.bucket),
               'pushMessages', p.push_messages, 'popMessages', p.pop_messages, 'ackMessages', p.ack_success,
               'pushRequests', p.push_requests, 'popRequests', p.pop_requests, 'ackRequests', p.ack_requests,
               'ackSuccess', p.ack_success, 'ackFailed', p.ack_failed,
               'dlqCount', COALESCE(p.r_dlq_count, 0), 'dbErrors', COALESCE(p.r_db_errors, 0),
               'pushPerSecond', round(p.push_messages / (v_window.r_minutes * 60), 3),
               'popPerSecond', round(p.pop_messages / (v_window.r_minutes * 60), 3),
               'ackPerSecond', round(p.ack_success / (v_window.r_minutes * 60), 3),
               'avgEventLoopLagMs', p.r_avg_loop_ms, 'maxEventLoopLagMs', p.r_max_loop_ms,
               'avgLagMs', p.avg_lag, 'maxLagMs', p.max_lag, 'lagCount', p.pop_messages,
               'dbConnections', p.r_connections, 'avgFreeSlots', p.r_avg_free, 'minFreeSlots', p.r_min_free,
               'jobsDone', p.push_requests, 'avgJobQueueSize', 0, 'maxJobQueueSize', 0, 'backoffSize', 0
           ) ORDER BY p.bucket), '[]')
    INTO v_points
    FROM points AS p;
    RETURN v_points;
END
$$;

-- The replicas that have written within a window, by host name: what they counted in it,
-- and their last gauges.
CREATE OR REPLACE FUNCTION queen.worker_list_v1(
    p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_hostname TEXT DEFAULT NULL, p_worker INTEGER DEFAULT NULL
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'hostname', r.hostname, 'workerId', r.worker_id, 'service', r.service, 'port', r.port, 'pid', (r.last ->> 'pid')::INTEGER,
               'lastSeen', queen.iso_ms_v1(r.seen),
               'pushMessages', r.pushed, 'popMessages', r.popped, 'ackMessages', r.acked, 'messagesProcessed', r.pushed + r.popped,
               'ackFailed', r.refused, 'dbErrors', r.errors,
               'avgEventLoopLagMs', round(r.avg_loop::NUMERIC, 3), 'maxEventLoopLagMs', round(r.max_loop::NUMERIC, 3),
               'dbConnections', (r.last ->> 'used')::INTEGER, 'freeSlots', (r.last ->> 'free')::INTEGER, 'parked', (r.last ->> 'parked')::INTEGER
           ) ORDER BY r.hostname COLLATE "C", r.service, r.port, r.worker_id), '[]')
    FROM (
        SELECT w.service, w.hostname, w.worker_id, w.port, max(w.captured_at) AS seen,
               sum(w.push_messages) AS pushed, sum(w.pop_messages) AS popped, sum(w.ack_success) AS acked,
               sum(w.ack_failed) AS refused, sum(w.db_errors) AS errors,
               avg(w.avg_event_loop_lag_ms) AS avg_loop, max(w.max_event_loop_lag_ms) AS max_loop,
               (array_agg(jsonb_build_object('pid', w.pid, 'used', w.db_connections, 'free', w.free_slots, 'parked', w.parked)
                   ORDER BY w.captured_at DESC))[1] AS last
        FROM queen.worker_metrics AS w
        WHERE w.captured_at >= p_from AND w.captured_at <= p_to
          AND (p_hostname IS NULL OR w.hostname = p_hostname)
          AND (p_worker IS NULL OR w.worker_id = p_worker)
        GROUP BY w.service, w.hostname, w.worker_id, w.port
    ) AS r
$$;

-- What the installation has done over time, the replicas and the queues that have done
-- it, and all of it added up. Filter keys as in throughput_points_v1. Of the queues the
-- thousand busiest ones are listed.
CREATE OR REPLACE FUNCTION queen.get_worker_metrics_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    c_queues  CONSTANT INTEGER := 1000;
    c_whole   CONSTANT INTEGER := 5256000; -- ten years: one point of all
    v_tenant  UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_points  JSONB := queen.throughput_points_v1(p_filters);
    v_window  RECORD;
    v_queues  JSONB;
    v_summary JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'queueName', q.name, 'pushMessages', s.pushed, 'popMessages', s.popped, 'ackMessages', s.acked, 'ackFailed', s.refused,
               'avgLagMs', round((s.lag_sum / NULLIF(s.popped, 0)::DOUBLE PRECISION)::NUMERIC, 2), 'maxLagMs', round(s.max_lag::NUMERIC, 2)
           ) ORDER BY s.pushed + s.popped DESC, q.name COLLATE "C"), '[]')
    INTO v_queues
    FROM (
        SELECT p.r_queue_id AS id, sum(p.r_push_messages) AS pushed, sum(p.r_pop_messages) AS popped, sum(p.r_ack_success) AS acked,
               sum(p.r_ack_failed) AS refused, sum(p.r_lag_sum) AS lag_sum, max(p.r_max_lag_ms) AS max_lag
        FROM queen.queue_points_v1(v_tenant, v_window.r_from, v_window.r_to, c_whole, NULLIF(p_filters ->> 'queue', '')) AS p
        GROUP BY p.r_queue_id
        ORDER BY sum(p.r_push_messages) + sum(p.r_pop_messages) DESC, p.r_queue_id
        LIMIT c_queues
    ) AS s
    JOIN queen.queues AS q ON q.id = s.id;
    SELECT jsonb_object_agg(k.key, COALESCE(t.total, 0)) INTO v_summary
    FROM unnest(ARRAY['pushMessages', 'popMessages', 'ackMessages', 'pushRequests', 'popRequests', 'ackRequests',
        'ackSuccess', 'ackFailed', 'dlqCount', 'dbErrors']) AS k (key)
    CROSS JOIN LATERAL (SELECT sum((p ->> k.key)::NUMERIC) AS total FROM jsonb_array_elements(v_points) AS p) AS t;
    RETURN jsonb_build_object(
        'timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes,
        'pointCount', jsonb_array_length(v_points), 'timeSeries', v_points,
        'workers', queen.worker_list_v1(v_window.r_from, v_window.r_to, NULLIF(p_filters ->> 'hostname', ''), (p_filters ->> 'workerId')::INTEGER),
        'queues', v_queues, 'summary', v_summary);
END
$$;

-- A gauge of one process over a part of the time.
CREATE OR REPLACE FUNCTION queen.gauge_figures_v1(
    p_avg DOUBLE PRECISION, p_min DOUBLE PRECISION, p_max DOUBLE PRECISION, p_last JSONB
)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('avg', round(p_avg::NUMERIC, 2), 'min', p_min, 'max', p_max, 'last', p_last)
$$;

-- The state of the processes over time, by host name. Filter keys, all optional: from,
-- to, hostname, workerId. There is no thread pool, and processes share nothing but the
-- database: what readers expect of either is null or 0.
CREATE OR REPLACE FUNCTION queen.get_system_metrics_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
DECLARE
    v_host     TEXT := NULLIF(p_filters ->> 'hostname', '');
    v_worker   INTEGER := (p_filters ->> 'workerId')::INTEGER;
    v_window   RECORD;
    v_replicas JSONB;
    v_points   BIGINT;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    WITH samples AS (
        SELECT m.service, m.hostname, m.worker_id, m.port, m.captured_at, m.metrics,
               queen.metrics_bucket_v1(m.captured_at, v_window.r_minutes) AS bucket,
               (m.metrics -> 'cpu' ->> 'user_us')::DOUBLE PRECISION AS cpu_user,
               (m.metrics -> 'cpu' ->> 'system_us')::DOUBLE PRECISION AS cpu_system,
               (m.metrics -> 'memory' ->> 'rss_bytes')::DOUBLE PRECISION AS rss,
               (m.metrics -> 'database' ->> 'pool_size')::DOUBLE PRECISION AS pool_size,
               (m.metrics -> 'database' ->> 'pool_idle')::DOUBLE PRECISION AS pool_idle,
               (m.metrics -> 'database' ->> 'pool_active')::DOUBLE PRECISION AS pool_active,
               (m.metrics ->> 'uptime_seconds')::DOUBLE PRECISION AS uptime
        FROM queen.system_metrics AS m
        WHERE m.captured_at >= v_window.r_from AND m.captured_at <= v_window.r_to
          AND (v_host IS NULL OR m.hostname = v_host)
          AND (v_worker IS NULL OR m.worker_id = v_worker)
        OFFSET 0 -- so that each leaf is taken out once, not for each of its figures
    ), gathered AS (
        SELECT s.service, s.hostname, s.worker_id, s.port, s.bucket, (array_agg(s.metrics ORDER BY s.captured_at DESC))[1] AS last,
               avg(s.cpu_user) AS cpu_user_avg, min(s.cpu_user) AS cpu_user_min, max(s.cpu_user) AS cpu_user_max,
               avg(s.cpu_system) AS cpu_system_avg, min(s.cpu_system) AS cpu_system_min, max(s.cpu_system) AS cpu_system_max,
               avg(s.rss) AS rss_avg, min(s.rss) AS rss_min, max(s.rss) AS rss_max,
               avg(s.pool_size) AS size_avg, min(s.pool_size) AS size_min, max(s.pool_size) AS size_max,
               avg(s.pool_idle) AS idle_avg, min(s.pool_idle) AS idle_min, max(s.pool_idle) AS idle_max,
               avg(s.pool_active) AS active_avg, min(s.pool_active) AS active_min, max(s.pool_active) AS active_max,
               avg(s.uptime) AS uptime_avg, min(s.uptime) AS uptime_min, max(s.uptime) AS uptime_max
        FROM samples AS s
        GROUP BY s.service, s.hostname, s.worker_id, s.port, s.bucket
    ), points AS (
        SELECT g.*, jsonb_build_object(
                   'cpu', jsonb_build_object(
                       'user_us', queen.gauge_figures_v1(g.cpu_user_avg, g.cpu_user_min, g.cpu_user_max, g.last #> '{cpu,user_us}'),
                       'system_us', queen.gauge_figures_v1(g.cpu_system_avg, g.cpu_system_min, g.cpu_system_max, g.last #> '{cpu,system_us}')),
                   'memory', jsonb_build_object(
                       'rss_bytes', queen.gauge_figures_v1(g.rss_avg, g.rss_min, g.rss_max, g.last #> '{memory,rss_bytes}')),
                   'database', jsonb_build_object(
                       'pool_size', queen.gauge_figures_v1(g.size_avg, g.size_min, g.size_max, g.last #> '{database,pool_size}'),
                       'pool_idle', queen.gauge_figures_v1(g.idle_avg, g.idle_min, g.idle_max, g.last #> '{database,pool_idle}'),
                       'pool_active', queen.gauge_figures_v1(g.active_avg, g.active_min, g.active_max, g.last #> '{database,pool_active}')),
                   'uptime_seconds', queen.gauge_figures_v1(g.uptime_avg, g.uptime_min, g.uptime_max, g.last -> 'uptime_seconds'),
                   'threadpool', NULL,
                   'shared_state', '{"enabled": false, "queue_config_cache": {"size": 0, "hits": 0, "misses": 0},
                       "transport": {"sent": 0, "received": 0, "dropped": 0}}'::JSONB) AS metrics
        FROM gathered AS g
    ), replicas AS (
        SELECT p.hostname, p.port, count(*) AS points, jsonb_build_object(
                   'hostname', p.hostname, 'port', p.port, 'workerId', p.worker_id, 'service', p.service,
                   'timeSeries', jsonb_agg(jsonb_build_object('timestamp', queen.iso_ms_v1(p.bucket), 'metrics', p.metrics) ORDER BY p.bucket)) AS document
        FROM points AS p
        GROUP BY p.service, p.hostname, p.worker_id, p.port
    )
    SELECT COALESCE(jsonb_agg(r.document ORDER BY r.hostname COLLATE "C", r.port), '[]'), COALESCE(max(r.points), 0)
    INTO v_replicas, v_points
    FROM replicas AS r;
    RETURN jsonb_build_object('timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes,
        'pointCount', v_points, 'replicaCount', jsonb_array_length(v_replicas), 'replicas', v_replicas);
END
$$;
