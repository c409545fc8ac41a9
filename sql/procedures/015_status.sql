-- The state of the whole installation on one page.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE only. In
-- PL/pgSQL: the tables of what processes count come with 019.

-- What goes through, what is there, who works and what went wrong. Filter keys, all
-- optional: from (an hour ago), to (now), queue, namespace, task, _tenant. They choose the
-- points of throughput; everything else is of the whole installation. The figures of
-- queues and messages are reconciled ones, as old as statsAge says.
--
-- leases.active counts the cursors, so it is null where their table has more than 64 MB,
-- some half a million of them: then it took longer than all the rest together.
CREATE OR REPLACE FUNCTION queen.get_status_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    c_count_bytes CONSTANT BIGINT := 67108864;
    v_points  JSONB := queen.throughput_points_v1(p_filters);
    v_gauges  JSONB;
    v_window  RECORD;
    v_now     RECORD;
    v_queues  RECORD;
    v_life    RECORD;
    v_leases  BIGINT;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    -- The processes beside the work: gauges of brokers, averaged over replicas and time.
    SELECT COALESCE(jsonb_object_agg(queen.iso_ms_v1(g.bucket), g.figures), '{}') INTO v_gauges
    FROM (
        SELECT queen.metrics_bucket_v1(m.captured_at, v_window.r_minutes) AS bucket, jsonb_build_object(
                   'cpuUserUs', round(avg((m.metrics -> 'cpu' ->> 'user_us')::NUMERIC), 2),
                   'cpuSystemUs', round(avg((m.metrics -> 'cpu' ->> 'system_us')::NUMERIC), 2),
                   'rssBytes', round(avg((m.metrics -> 'memory' ->> 'rss_bytes')::NUMERIC)),
                   'poolSize', round(avg((m.metrics -> 'database' ->> 'pool_size')::NUMERIC), 2),
                   'poolIdle', round(avg((m.metrics -> 'database' ->> 'pool_idle')::NUMERIC), 2),
                   'poolActive', round(avg((m.metrics -> 'database' ->> 'pool_active')::NUMERIC), 2)) AS figures
        FROM queen.system_metrics AS m
        WHERE m.service = 'broker' AND m.captured_at >= v_window.r_from AND m.captured_at <= v_window.r_to
        GROUP BY bucket
    ) AS g;
    SELECT COALESCE(jsonb_agg(p.point || COALESCE(v_gauges -> (p.point ->> 'timestamp'),
               '{"cpuUserUs": null, "cpuSystemUs": null, "rssBytes": null, "poolSize": null, "poolIdle": null, "poolActive": null}') ORDER BY p.n), '[]')
    INTO v_points
    FROM jsonb_array_elements(v_points) WITH ORDINALITY AS p (point, n);

    SELECT COALESCE(sum(s.child_count), 0) AS partitions, COALESCE(sum(s.total_messages), 0) AS total,
           COALESCE(sum(s.pending_messages), 0) AS pending, COALESCE(sum(s.processing_messages), 0) AS processing,
           COALESCE(sum(s.completed_messages), 0) AS completed, COALESCE(sum(s.dead_letter_messages), 0) AS dead_letter,
           COALESCE(sum(s.retained_bytes), 0) AS bytes
    INTO v_now
    FROM queen.stats AS s
    WHERE s.stat_type = 'system' AND s.stat_key = 'global' AND s.consumer_group = '__QUEUE_MODE__';
    SELECT count(*) AS total, count(*) FILTER (WHERE s.pending_messages > 0) AS pending,
           count(*) FILTER (WHERE s.dead_letter_messages > 0) AS with_dead
    INTO v_queues
    FROM queen.queues AS q
    LEFT JOIN LATERAL queen.queue_figures_v1(q.id) AS s ON TRUE;
    SELECT COALESCE(max(s.db_errors), 0) AS db_errors, COALESCE(max(s.ack_failed), 0) AS ack_failed INTO v_life
    FROM queen.worker_metrics_summary AS s;
    IF pg_relation_size('queen.log_consumers') <= c_count_bytes THEN
        SELECT count(*) INTO v_leases FROM queen.log_consumers AS k WHERE k.lease_expires_at > now();
    END IF;

    RETURN jsonb_build_object(
        'timeRange', v_window.r_range,
        'bucketMinutes', v_window.r_minutes,
        'pointCount', jsonb_array_length(v_points),
        'throughput', v_points,
        'queues', jsonb_build_object('total', v_queues.total, 'withPending', v_queues.pending, 'partitions', v_now.partitions),
        'messages', jsonb_build_object('total', v_now.total, 'pending', v_now.pending, 'processing', v_now.processing,
            'completed', v_now.completed, 'failed', NULL, 'deadLetter', v_now.dead_letter, 'retainedBytes', v_now.bytes),
        'leases', jsonb_build_object('active', v_leases, 'messages', v_now.processing),
        'deadLetterQueue', jsonb_build_object('total', v_now.dead_letter, 'queues', v_queues.with_dead),
        'workers', queen.worker_list_v1(now() - INTERVAL '2 minutes', now()),
        'errors', jsonb_build_object('dbErrors', v_life.db_errors, 'ackFailed', v_life.ack_failed),
        'statsAge', queen.stats_age_v1());
END
$$;
