-- What retention has deleted, over time.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE
-- only.

-- Messages deleted by each rule, in buckets, oldest first, and over the window.
-- Filter keys, all optional: from (an hour ago), to (now), both inclusive; queue;
-- _tenant. An empty text does not filter. Only buckets in which something was
-- deleted are listed.
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
    v_from    TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ, now() - INTERVAL '1 hour');
    v_to      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ, now());
    v_minutes INTEGER := queen.metrics_bucket_minutes_v1(v_from, v_to);
    v_series  JSONB;
    v_totals  JSONB;
BEGIN
    WITH points AS (
        SELECT date_bin(make_interval(mins => v_minutes), h.executed_at, TIMESTAMPTZ '1970-01-01T00:00:00Z') AS bucket,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'retention'), 0) AS by_age,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'completed_retention'), 0) AS completed,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'max_wait_time_eviction'), 0) AS evicted,
               sum(h.messages_deleted) AS total,
               count(*) AS events
        FROM queen.retention_history AS h
        LEFT JOIN queen.log_partitions AS p ON p.id = h.partition_id
        LEFT JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE h.executed_at >= v_from AND h.executed_at <= v_to
          AND h.retention_type NOT LIKE '\_\_%\_\_'
          AND COALESCE(q.tenant_id, '00000000-0000-0000-0000-000000000001') = v_tenant
          AND (v_queue IS NULL OR q.name = v_queue)
        GROUP BY 1
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_ms_v1(s.bucket),
               'retentionMsgs', s.by_age,
               'completedRetentionMsgs', s.completed,
               'evictionMsgs', s.evicted,
               'totalMsgs', s.total,
               'eventCount', s.events) ORDER BY s.bucket), '[]'),
           jsonb_build_object(
               'retentionMsgs', COALESCE(sum(s.by_age), 0),
               'completedRetentionMsgs', COALESCE(sum(s.completed), 0),
               'evictionMsgs', COALESCE(sum(s.evicted), 0),
               'totalMsgs', COALESCE(sum(s.total), 0),
               'eventCount', COALESCE(sum(s.events), 0))
    INTO v_series, v_totals
    FROM points AS s;
    RETURN jsonb_build_object(
        'timeRange', jsonb_build_object('from', queen.iso_ms_v1(v_from), 'to', queen.iso_ms_v1(v_to)),
        'bucketMinutes', v_minutes,
        'series', v_series,
        'totals', v_totals);
END
$$;
