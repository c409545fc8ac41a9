-- What retention has deleted, over time.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE
-- only.

-- Five figures of what was deleted, as a document.
CREATE OR REPLACE FUNCTION queen.retention_figures_v1(
    p_by_age NUMERIC, p_completed NUMERIC, p_evicted NUMERIC, p_total NUMERIC, p_events NUMERIC
)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('retentionMsgs', COALESCE(p_by_age, 0), 'completedRetentionMsgs', COALESCE(p_completed, 0),
        'evictionMsgs', COALESCE(p_evicted, 0), 'totalMsgs', COALESCE(p_total, 0), 'eventCount', COALESCE(p_events, 0))
$$;

-- Messages deleted by each rule, in buckets, oldest first, and over the window.
-- Filter keys, all optional: from (an hour ago), to (now), both inclusive; queue;
-- groupBy; _tenant. An empty text does not filter. Only buckets in which something was
-- deleted are listed. With groupBy (namespace, task or queue) there are rows too: the
-- totals of each label, the largest first.
--
-- Events of partitions (types of the form __%__) carry no messages and are left
-- out. What was deleted from partitions that are gone since names no queue, and so
-- no tenant: it stays in the answers of the default tenant, whose partitions they are where
-- there is no other, but not in one for a queue.
CREATE OR REPLACE FUNCTION queen.get_retention_timeseries_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_tenant  UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue   TEXT := NULLIF(p_filters ->> 'queue', '');
    v_by      TEXT := NULLIF(p_filters ->> 'groupBy', '');
    v_window  RECORD;
    v_series  JSONB;
    v_totals  JSONB;
    v_rows    JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    WITH points AS MATERIALIZED (
        SELECT queen.metrics_bucket_v1(h.executed_at, v_window.r_minutes) AS bucket, q.id AS queue_id,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'retention'), 0) AS by_age,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'completed_retention'), 0) AS completed,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'max_wait_time_eviction'), 0) AS evicted,
               sum(h.messages_deleted) AS total,
               count(*) AS events
        FROM queen.retention_history AS h
        LEFT JOIN queen.log_partitions AS p ON p.id = h.partition_id
        LEFT JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE h.executed_at >= v_window.r_from AND h.executed_at <= v_window.r_to
          AND h.retention_type NOT LIKE '\_\_%\_\_'
          AND COALESCE(q.tenant_id, '00000000-0000-0000-0000-000000000001') = v_tenant
          AND (v_queue IS NULL OR q.name = v_queue)
        GROUP BY 1, 2
    ), buckets AS (
        SELECT p.bucket, sum(p.by_age) AS by_age, sum(p.completed) AS completed, sum(p.evicted) AS evicted,
               sum(p.total) AS total, sum(p.events) AS events
        FROM points AS p
        GROUP BY p.bucket
    ), labels AS (
        SELECT CASE WHEN q.id IS NOT NULL THEN COALESCE(CASE v_by WHEN 'queue' THEN q.name WHEN 'task' THEN q.task ELSE q.namespace END, '') END AS key,
               count(DISTINCT q.id) AS queues, sum(p.by_age) AS by_age, sum(p.completed) AS completed,
               sum(p.evicted) AS evicted, sum(p.total) AS total, sum(p.events) AS events
        FROM points AS p
        LEFT JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE v_by IS NOT NULL
        GROUP BY 1
    )
    SELECT (SELECT COALESCE(jsonb_agg(jsonb_build_object('bucket', queen.iso_ms_v1(b.bucket))
                || queen.retention_figures_v1(b.by_age, b.completed, b.evicted, b.total, b.events) ORDER BY b.bucket), '[]') FROM buckets AS b),
           (SELECT queen.retention_figures_v1(sum(b.by_age), sum(b.completed), sum(b.evicted), sum(b.total), sum(b.events)) FROM buckets AS b),
           (SELECT COALESCE(jsonb_agg(jsonb_build_object('key', l.key, 'queues', l.queues)
                || queen.retention_figures_v1(l.by_age, l.completed, l.evicted, l.total, l.events)
                ORDER BY l.total DESC, l.key COLLATE "C"), '[]') FROM labels AS l)
    INTO v_series, v_totals, v_rows;
    RETURN jsonb_build_object('timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes, 'series', v_series, 'totals', v_totals)
        || CASE WHEN v_by IS NULL THEN '{}' ELSE jsonb_build_object('rows', v_rows) END;
END
$$;

-- How many queues have windows of retention that are switched off: a call of configure
-- that leaves the switch out does that, and nothing is deleted any more.
CREATE OR REPLACE FUNCTION queen.retention_switched_off_v1()
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT count(*) FROM queen.queues AS q
    WHERE NOT q.retention_enabled AND (q.retention_seconds > 0 OR q.completed_retention_seconds > 0)
$$;
