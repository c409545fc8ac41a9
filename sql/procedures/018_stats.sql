-- The rows of queen.stats above the queues, and the readers of all of them.
--
-- Locks: the rollup, which comes after the rows of the queues, takes the row of the
-- system first and waits for it, so that of two refreshes at once one makes its
-- rollups after the other: they need not see the same labels, and each would wait for
-- a row that the other has removed. The readers take none beyond those of a SELECT.
-- Re-applying is safe: CREATE OR REPLACE, and the setting of a table made before
-- it had one, which takes SHARE UPDATE EXCLUSIVE and stops no reader or writer.

DO $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_class AS c
        WHERE c.oid = 'queen.stats'::regclass AND c.reloptions @> ARRAY['fillfactor=50']
    ) THEN
        ALTER TABLE queen.stats SET (fillfactor = 50);
    END IF;
END
$$;

-- Messages per second between two refreshes: 0 without an earlier one, within 3 s
-- of it (too short to say anything), and when the figure shrank, as after a
-- sweep of the retention.
CREATE OR REPLACE FUNCTION queen.stats_rate_v1(p_now BIGINT, p_before BIGINT, p_at TIMESTAMPTZ, p_before_at TIMESTAMPTZ)
RETURNS DOUBLE PRECISION
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_at - p_before_at >= INTERVAL '3 seconds'
        THEN greatest(p_now - p_before, 0) / EXTRACT(EPOCH FROM p_at - p_before_at)::DOUBLE PRECISION
        ELSE 0 END
$$;

-- Recomputes the rows of the namespaces and tasks of each tenant and of the whole
-- system from those of the queues, and removes those of labels that no queue has
-- any more. A queue without a label counts under the empty one. child_count is the
-- number of queues, of the system that of its partitions. Lag figures are those of
-- the queues that have something pending. The previous values are the sums of the
-- queues' own, so that a deleted or relabelled queue makes no rate.
-- Answers how many rows of each kind there are.
CREATE OR REPLACE FUNCTION queen.log_stats_rollup_v1(p_partitions BIGINT)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    v_rows JSONB;
BEGIN
    INSERT INTO queen.stats (stat_type, stat_key) VALUES ('system', 'global')
    ON CONFLICT (stat_type, stat_key, consumer_group) DO NOTHING;
    PERFORM 1 FROM queen.stats AS s
    WHERE s.stat_type = 'system' AND s.stat_key = 'global' AND s.consumer_group = '__QUEUE_MODE__'
    FOR NO KEY UPDATE;

    WITH sums AS MATERIALIZED (
        SELECT l.kind, l.key, l.tenant, l.namespace, l.task, count(q.stat_key) AS queues,
               COALESCE(sum(q.total_messages), 0) AS total, COALESCE(sum(q.pending_messages), 0) AS pending,
               COALESCE(sum(q.processing_messages), 0) AS processing, COALESCE(sum(q.completed_messages), 0) AS completed,
               COALESCE(sum(q.dead_letter_messages), 0) AS dead_letter, COALESCE(sum(q.segment_count), 0) AS segments,
               COALESCE(sum(q.retained_bytes), 0) AS bytes, min(q.retained_bytes_at) AS bytes_at,
               min(q.oldest_pending_at) AS oldest, COALESCE(sum(q.prev_total), 0) AS prev_total,
               COALESCE(sum(q.prev_completed), 0) AS prev_completed, max(q.prev_at) AS prev_at,
               COALESCE(avg(q.max_lag_seconds) FILTER (WHERE q.pending_messages > 0), 0) AS lag_avg,
               COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY q.max_lag_seconds) FILTER (WHERE q.pending_messages > 0), 0) AS lag_median,
               COALESCE(min(q.max_lag_seconds) FILTER (WHERE q.pending_messages > 0), 0) AS lag_min,
               COALESCE(max(q.max_lag_seconds) FILTER (WHERE q.pending_messages > 0), 0) AS lag_max,
               COALESCE(avg(q.pending_messages) FILTER (WHERE q.pending_messages > 0), 0) AS offset_avg,
               COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY q.pending_messages) FILTER (WHERE q.pending_messages > 0), 0) AS offset_median,
               COALESCE(min(q.pending_messages) FILTER (WHERE q.pending_messages > 0), 0) AS offset_min,
               COALESCE(max(q.pending_messages) FILTER (WHERE q.pending_messages > 0), 0) AS offset_max
        FROM (VALUES (TRUE)) AS one (row)
        LEFT JOIN queen.stats AS q ON q.stat_type = 'queue' AND q.consumer_group = '__QUEUE_MODE__'
        CROSS JOIN LATERAL (VALUES
            ('namespace', q.tenant_id || ':' || COALESCE(q.namespace, ''), q.tenant_id, COALESCE(q.namespace, ''), NULL),
            ('task', q.tenant_id || ':' || COALESCE(q.task, ''), q.tenant_id, NULL, COALESCE(q.task, '')),
            ('system', 'global', '00000000-0000-0000-0000-000000000001', NULL, NULL)
        ) AS l (kind, key, tenant, namespace, task)
        -- The system has a row also when there is no queue.
        WHERE q.stat_key IS NOT NULL OR l.kind = 'system'
        GROUP BY l.kind, l.key, l.tenant, l.namespace, l.task
    ),
    gone AS (
        DELETE FROM queen.stats AS s
        WHERE s.stat_type IN ('namespace', 'task')
          AND NOT EXISTS (SELECT 1 FROM sums AS u WHERE u.kind = s.stat_type AND u.key = s.stat_key)
    ),
    written AS (
        INSERT INTO queen.stats AS t (
            stat_type, stat_key, tenant_id, namespace, task, child_count, total_messages, pending_messages,
            processing_messages, completed_messages, dead_letter_messages, segment_count, retained_bytes,
            retained_bytes_at, avg_lag_seconds, median_lag_seconds, min_lag_seconds, max_lag_seconds, avg_offset_lag,
            median_offset_lag, min_offset_lag, max_offset_lag, oldest_pending_at, prev_total, prev_completed, prev_at,
            last_computed_at)
        SELECT u.kind, u.key, u.tenant, u.namespace, u.task,
               CASE u.kind WHEN 'system' THEN p_partitions ELSE u.queues END, u.total, u.pending,
               u.processing, u.completed, u.dead_letter, u.segments, u.bytes,
               u.bytes_at, u.lag_avg, u.lag_median, u.lag_min, u.lag_max, u.offset_avg,
               u.offset_median, u.offset_min, u.offset_max, u.oldest, u.prev_total, u.prev_completed, u.prev_at,
               now()
        FROM sums AS u
        ORDER BY u.kind, u.key COLLATE "C"
        ON CONFLICT (stat_type, stat_key, consumer_group) DO UPDATE SET
            child_count = EXCLUDED.child_count,
            total_messages = EXCLUDED.total_messages,
            pending_messages = EXCLUDED.pending_messages,
            processing_messages = EXCLUDED.processing_messages,
            completed_messages = EXCLUDED.completed_messages,
            dead_letter_messages = EXCLUDED.dead_letter_messages,
            segment_count = EXCLUDED.segment_count,
            retained_bytes = EXCLUDED.retained_bytes,
            retained_bytes_at = EXCLUDED.retained_bytes_at,
            avg_lag_seconds = EXCLUDED.avg_lag_seconds,
            median_lag_seconds = EXCLUDED.median_lag_seconds,
            min_lag_seconds = EXCLUDED.min_lag_seconds,
            max_lag_seconds = EXCLUDED.max_lag_seconds,
            avg_offset_lag = EXCLUDED.avg_offset_lag,
            median_offset_lag = EXCLUDED.median_offset_lag,
            min_offset_lag = EXCLUDED.min_offset_lag,
            max_offset_lag = EXCLUDED.max_offset_lag,
            oldest_pending_at = EXCLUDED.oldest_pending_at,
            prev_total = EXCLUDED.prev_total,
            prev_completed = EXCLUDED.prev_completed,
            prev_at = EXCLUDED.prev_at,
            last_computed_at = EXCLUDED.last_computed_at
    )
    SELECT jsonb_object_agg(k.kind, k.n) INTO v_rows
    FROM (SELECT u.kind, count(*) AS n FROM sums AS u GROUP BY u.kind) AS k;
    RETURN v_rows;
END
$$;

-- Age of the reconciled figures in whole seconds, -1 before the first refresh.
CREATE OR REPLACE FUNCTION queen.stats_age_v1()
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE((
        SELECT greatest(floor(EXTRACT(EPOCH FROM clock_timestamp() - s.last_computed_at))::BIGINT, 0)
        FROM queen.stats AS s
        WHERE s.stat_type = 'system' AND s.stat_key = 'global' AND s.consumer_group = '__QUEUE_MODE__'
    ), -1)
$$;

-- The queues of a tenant grouped by one of their labels, p_kind namespace or task, by
-- name. Queues and partitions are live, the messages are reconciled figures.
CREATE OR REPLACE FUNCTION queen.stats_by_label_v1(p_kind TEXT, p_tenant UUID)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               p_kind, g.label,
               'queues', g.queues,
               'partitions', g.partitions,
               'messages', jsonb_build_object('total', COALESCE(s.total_messages, 0), 'pending', COALESCE(s.pending_messages, 0))
           ) ORDER BY g.label COLLATE "C"), '[]')
    FROM (
        SELECT COALESCE(CASE p_kind WHEN 'task' THEN q.task ELSE q.namespace END, '') AS label,
               count(*) AS queues, COALESCE(sum(n.partitions), 0) AS partitions
        FROM queen.queues AS q
        CROSS JOIN LATERAL (SELECT count(*) AS partitions FROM queen.log_partitions AS p WHERE p.queue_id = q.id) AS n
        WHERE q.tenant_id = p_tenant
        GROUP BY 1
    ) AS g
    LEFT JOIN queen.stats AS s ON s.stat_type = p_kind AND s.stat_key = p_tenant || ':' || g.label
        AND s.consumer_group = '__QUEUE_MODE__'
$$;

-- Namespaces of a tenant; queues without one are under the empty text.
CREATE OR REPLACE FUNCTION queen.get_namespaces_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('namespaces', queen.stats_by_label_v1('namespace', p_tenant))
$$;

-- Tasks of a tenant, likewise.
CREATE OR REPLACE FUNCTION queen.get_tasks_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('tasks', queen.stats_by_label_v1('task', p_tenant))
$$;

-- Reconciled figures of the queues of one tenant, by name. Filter keys, all
-- optional: queue, namespace, task (exact; an empty text does not filter), limit (100),
-- offset (0), _tenant.
CREATE OR REPLACE FUNCTION queen.get_status_queues_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_namespace TEXT := NULLIF(p_filters ->> 'namespace', '');
    v_task      TEXT := NULLIF(p_filters ->> 'task', '');
    v_limit     BIGINT := greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 100), 0);
    v_offset    BIGINT := greatest(COALESCE((p_filters ->> 'offset')::BIGINT, 0), 0);
    v_queues    JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id,
               'name', q.name,
               'namespace', COALESCE(q.namespace, ''),
               'task', COALESCE(q.task, ''),
               'createdAt', queen.iso_ms_v1(q.created_at),
               'partitions', COALESCE(s.child_count, 0),
               'retainedBytes', COALESCE(s.retained_bytes, 0),
               'messages', jsonb_build_object('total', COALESCE(s.total_messages, 0),
                   'pending', COALESCE(s.pending_messages, 0), 'processing', COALESCE(s.processing_messages, 0),
                   'completed', COALESCE(s.completed_messages, 0), 'deadLetter', COALESCE(s.dead_letter_messages, 0))
           ) ORDER BY q.name COLLATE "C"), '[]')
    INTO v_queues
    FROM (
        SELECT u.* FROM queen.queues AS u
        WHERE u.tenant_id = v_tenant
          AND (v_queue IS NULL OR u.name = v_queue)
          AND (v_namespace IS NULL OR u.namespace = v_namespace)
          AND (v_task IS NULL OR u.task = v_task)
        ORDER BY u.name COLLATE "C"
        LIMIT v_limit OFFSET v_offset
    ) AS q
    LEFT JOIN LATERAL queen.queue_figures_v1(q.id) AS s ON TRUE;
    RETURN jsonb_build_object('queues', v_queues,
        'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset));
END
$$;

-- How far the queues of a tenant are behind, in seconds and in messages; those that have
-- nothing pending do not count. NULL for all queues.
CREATE OR REPLACE FUNCTION queen.stats_lag_v1(p_tenant UUID)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'time', jsonb_build_object('avg', COALESCE(round(avg(s.max_lag_seconds)::NUMERIC, 3), 0),
            'median', COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY s.max_lag_seconds), 0),
            'min', COALESCE(min(s.max_lag_seconds), 0), 'max', COALESCE(max(s.max_lag_seconds), 0)),
        'offset', jsonb_build_object('avg', COALESCE(round(avg(s.pending_messages), 3), 0),
            'median', COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY s.pending_messages), 0),
            'min', COALESCE(min(s.pending_messages), 0), 'max', COALESCE(max(s.pending_messages), 0)))
    FROM queen.stats AS s
    WHERE s.stat_type = 'queue' AND s.consumer_group = '__QUEUE_MODE__' AND s.pending_messages > 0
      AND (p_tenant IS NULL OR s.tenant_id = p_tenant)
$$;

-- The reconciled part of the overview of a tenant: what its queues add up to, how far
-- they are behind, and how many messages a second came and went between the last two
-- refreshes.
CREATE OR REPLACE FUNCTION queen.get_stats_overview_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'queues', (SELECT count(*) FROM queen.queues AS q WHERE q.tenant_id = p_tenant),
        'partitions', COALESCE(sum(s.child_count), 0),
        'namespaces', count(DISTINCT COALESCE(s.namespace, '')),
        'tasks', count(DISTINCT COALESCE(s.task, '')),
        'messages', jsonb_build_object('total', COALESCE(sum(s.total_messages), 0), 'pending', COALESCE(sum(s.pending_messages), 0),
            'processing', COALESCE(sum(s.processing_messages), 0), 'completed', COALESCE(sum(s.completed_messages), 0),
            'failed', NULL, 'deadLetter', COALESCE(sum(s.dead_letter_messages), 0)),
        'lag', queen.stats_lag_v1(p_tenant),
        'throughput', jsonb_build_object(
            'ingestedPerSecond', COALESCE(sum(queen.stats_rate_v1(s.total_messages, s.prev_total, s.last_computed_at, s.prev_at)), 0),
            'processedPerSecond', COALESCE(sum(queen.stats_rate_v1(s.completed_messages, s.prev_completed, s.last_computed_at, s.prev_at)), 0)),
        'timestamp', queen.iso_ms_v1(now()),
        'statsAge', queen.stats_age_v1())
    FROM queen.stats AS s
    WHERE s.stat_type = 'queue' AND s.consumer_group = '__QUEUE_MODE__' AND s.tenant_id = p_tenant
$$;

-- The overview of a tenant. That of the default one tells of the whole installation: it
-- counts all queues, and its messages are what was ever pushed (total), acknowledged
-- (completed) and refused (failed), by the counters that outlive the messages, which are
-- no less than what is there. Messages a second are those of the last five minutes. Other
-- tenants have the reconciled figures of their own queues. In PL/pgSQL, since the
-- counters come with a later file.
CREATE OR REPLACE FUNCTION queen.get_overview_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_all   JSONB;
    v_life  RECORD;
    v_rates RECORD;
    v_now   RECORD;
BEGIN
    IF p_tenant <> '00000000-0000-0000-0000-000000000001' THEN
        SELECT COALESCE(sum(m.push_messages), 0) AS pushed, COALESCE(sum(m.ack_success), 0) AS acked INTO v_rates
        FROM queen.queues AS q
        JOIN queen.queue_lag_metrics AS m ON m.queue_id = q.id
        WHERE q.tenant_id = p_tenant AND m.bucket_time > now() - INTERVAL '5 minutes';
        RETURN queen.get_stats_overview_v1(p_tenant) || queen.overview_throughput_v1(v_rates.pushed, v_rates.acked);
    END IF;
    SELECT COALESCE(max(s.push_messages), 0) AS pushed, COALESCE(max(s.ack_success), 0) AS acked, COALESCE(max(s.ack_failed), 0) AS failed
    INTO v_life
    FROM queen.worker_metrics_summary AS s;
    SELECT COALESCE(sum(w.push_messages), 0) AS pushed, COALESCE(sum(w.ack_success), 0) AS acked INTO v_rates
    FROM queen.worker_metrics AS w
    WHERE w.captured_at > now() - INTERVAL '5 minutes';
    SELECT COALESCE(sum(s.child_count), 0) AS partitions, COALESCE(sum(s.total_messages), 0) AS total,
           COALESCE(sum(s.pending_messages), 0) AS pending, COALESCE(sum(s.processing_messages), 0) AS processing,
           COALESCE(sum(s.completed_messages), 0) AS completed, COALESCE(sum(s.dead_letter_messages), 0) AS dead_letter
    INTO v_now
    FROM queen.stats AS s
    WHERE s.stat_type = 'system' AND s.stat_key = 'global' AND s.consumer_group = '__QUEUE_MODE__';
    SELECT jsonb_build_object('queues', count(*), 'partitions', v_now.partitions,
               'namespaces', count(DISTINCT COALESCE(q.namespace, '')), 'tasks', count(DISTINCT COALESCE(q.task, '')),
               'messages', jsonb_build_object('total', greatest(v_life.pushed, v_now.total), 'pending', v_now.pending,
                   'processing', v_now.processing, 'completed', greatest(v_life.acked, v_now.completed),
                   'failed', v_life.failed, 'deadLetter', v_now.dead_letter),
               'lag', queen.stats_lag_v1(NULL), 'timestamp', queen.iso_ms_v1(now()), 'statsAge', queen.stats_age_v1())
    INTO v_all
    FROM queen.queues AS q;
    RETURN v_all || queen.overview_throughput_v1(v_rates.pushed, v_rates.acked);
END
$$;

-- Messages a second of what five minutes have seen.
CREATE OR REPLACE FUNCTION queen.overview_throughput_v1(p_pushed NUMERIC, p_acked NUMERIC)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('throughput', jsonb_build_object(
        'ingestedPerSecond', round(p_pushed / 300, 3), 'processedPerSecond', round(p_acked / 300, 3)))
$$;
