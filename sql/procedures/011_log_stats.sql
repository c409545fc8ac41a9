-- Live numbers of queues by watermark arithmetic: no message is counted.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE
-- only.

-- Creation time of the segment that holds an offset, or of the next one when the
-- offset fell into a retention gap; NULL when there is none. Two bounded key
-- probes; the test of coverage stands outside the single-row pick.
CREATE OR REPLACE FUNCTION queen.log_oldest_pending_at_v1(p_pid UUID, p_wanted BIGINT)
RETURNS TIMESTAMPTZ
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(
        (SELECT h.created_at
         FROM (
             SELECT s.end_offset, s.created_at
             FROM queen.log_segments AS s
             WHERE s.partition_id = p_pid AND s.base_offset <= p_wanted
             ORDER BY s.base_offset DESC
             LIMIT 1
         ) AS h
         WHERE h.end_offset >= p_wanted),
        (SELECT s.created_at
         FROM queen.log_segments AS s
         WHERE s.partition_id = p_pid AND s.base_offset > p_wanted
         ORDER BY s.base_offset
         LIMIT 1))
$$;

-- The figures of every partition of one queue. The pending ones count from the
-- slowest named group, else from the queue-mode cursor, else from the start: a
-- forgotten pop without a group must not pin them.
CREATE OR REPLACE FUNCTION queen.log_partition_stats_v1(p_queue_id UUID)
RETURNS TABLE (
    r_id          UUID,
    r_name        TEXT,
    r_created_at  TIMESTAMPTZ,
    r_wanted      BIGINT,
    r_total       BIGINT,
    r_pending     BIGINT,
    r_processing  BIGINT,
    r_completed   BIGINT,
    r_dead_letter BIGINT
)
LANGUAGE sql STABLE
AS $$
    SELECT p.id, p.name, p.created_at, w.wanted, w.total, w.pending,
           least(COALESCE(c.leased, 0), w.pending)::BIGINT,
           greatest(w.total - w.pending - d.n, 0), d.n
    FROM queen.log_partitions AS p
    LEFT JOIN LATERAL (
        SELECT COALESCE(min(k.committed) FILTER (WHERE k.consumer_group <> '__QUEUE_MODE__'), min(k.committed)) AS worst,
               sum(greatest(k.batch_end - k.committed, 0)) FILTER (WHERE k.lease_expires_at > now()) AS leased
        FROM queen.log_consumers AS k
        WHERE k.partition_id = p.id
    ) AS c ON TRUE
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM queen.log_dlq AS x WHERE x.partition_id = p.id) AS d
    CROSS JOIN LATERAL (
        SELECT greatest(COALESCE(c.worst, -1), p.log_start - 1) + 1 AS wanted,
               greatest(p.last_offset - p.log_start + 1, 0) AS total,
               greatest(p.last_offset - greatest(COALESCE(c.worst, -1), p.log_start - 1), 0) AS pending
    ) AS w
    WHERE p.queue_id = p_queue_id
$$;

-- Segment rows and retained messages of one queue; zeros for an unknown one.
CREATE OR REPLACE FUNCTION queen.log_queue_message_stats_v1(
    p_queue  TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (segments BIGINT, messages BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(sum(s.n), 0)::BIGINT, COALESCE(sum(greatest(p.last_offset - p.log_start + 1, 0)), 0)::BIGINT
    FROM queen.queues AS q
    JOIN queen.log_partitions AS p ON p.queue_id = q.id
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM queen.log_segments AS g WHERE g.partition_id = p.id) AS s
    WHERE q.tenant_id = p_tenant AND q.name = p_queue
$$;

-- The same for every queue of a tenant. Segments are counted per partition
-- before the join: afterwards each would multiply its partition's messages.
CREATE OR REPLACE FUNCTION queen.log_queue_stats_all_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (queue_name TEXT, partitions BIGINT, segments BIGINT, messages BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT q.name::TEXT, count(p.id), COALESCE(sum(s.n), 0)::BIGINT,
           COALESCE(sum(greatest(p.last_offset - p.log_start + 1, 0)), 0)::BIGINT
    FROM queen.queues AS q
    LEFT JOIN queen.log_partitions AS p ON p.queue_id = q.id
    LEFT JOIN LATERAL (SELECT count(*) AS n FROM queen.log_segments AS g WHERE g.partition_id = p.id) AS s ON TRUE
    WHERE q.tenant_id = p_tenant
    GROUP BY q.id, q.name
$$;

-- The queue list of a tenant, by name. Counts are live; pending, processing and
-- the retained bytes are the reconciler's last figures, 0 before its first.
CREATE OR REPLACE FUNCTION queen.list_queues_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id,
               'name', q.name,
               'namespace', COALESCE(q.namespace, ''),
               'task', COALESCE(q.task, ''),
               'createdAt', queen.iso_ms_v1(q.created_at),
               'partitions', l.partitions,
               'retainedBytes', COALESCE(s.retained_bytes, 0),
               'segments', jsonb_build_object('segments', l.segments, 'messages', l.messages),
               'messages', jsonb_build_object('total', l.messages,
                   'pending', COALESCE(s.pending_messages, 0), 'processing', COALESCE(s.processing_messages, 0))
           ) ORDER BY q.name COLLATE "C"), '[]'))
    FROM queen.queues AS q
    JOIN queen.log_queue_stats_all_v1(p_tenant) AS l ON l.queue_name = q.name
    LEFT JOIN queen.stats AS s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT
        AND s.consumer_group = '__QUEUE_MODE__'
    WHERE q.tenant_id = p_tenant
$$;

-- One queue with its options and partitions, by watermark arithmetic. "failed"
-- is null, not 0: nothing counts failures per partition.
CREATE OR REPLACE FUNCTION queen.get_queue_v2(
    p_queue_name TEXT,
    p_tenant     UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_queue      queen.queues;
    v_partitions JSONB;
    v_totals     JSONB;
    v_segments   JSONB;
    v_bytes      BIGINT;
BEGIN
    SELECT q.* INTO v_queue
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue_name;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;

    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'id', s.r_id,
               'name', s.r_name,
               'createdAt', queen.iso_ms_v1(s.r_created_at),
               'stats', jsonb_build_object('total', s.r_total, 'pending', s.r_pending,
                   'processing', s.r_processing, 'completed', s.r_completed,
                   'failed', NULL, 'deadLetter', s.r_dead_letter),
               'oldestMessage', CASE WHEN s.r_pending > 0
                   THEN queen.iso_ms_v1(queen.log_oldest_pending_at_v1(s.r_id, s.r_wanted)) END,
               'newestMessage', (
                   SELECT queen.iso_ms_v1(g.created_at)
                   FROM queen.log_segments AS g
                   WHERE g.partition_id = s.r_id
                   ORDER BY g.base_offset DESC
                   LIMIT 1)
           ) ORDER BY s.r_name COLLATE "C"), '[]'),
           jsonb_build_object('total', COALESCE(sum(s.r_total), 0), 'pending', COALESCE(sum(s.r_pending), 0),
               'processing', COALESCE(sum(s.r_processing), 0), 'completed', COALESCE(sum(s.r_completed), 0),
               'failed', NULL, 'deadLetter', COALESCE(sum(s.r_dead_letter), 0))
    INTO v_partitions, v_totals
    FROM queen.log_partition_stats_v1(v_queue.id) AS s;

    SELECT jsonb_build_object('segments', m.segments, 'messages', m.messages) INTO v_segments
    FROM queen.log_queue_message_stats_v1(p_queue_name, p_tenant) AS m;
    SELECT s.retained_bytes INTO v_bytes
    FROM queen.stats AS s
    WHERE s.stat_type = 'queue' AND s.stat_key = v_queue.id::TEXT AND s.consumer_group = '__QUEUE_MODE__';

    RETURN jsonb_build_object(
        'id', v_queue.id,
        'name', v_queue.name,
        'namespace', COALESCE(v_queue.namespace, ''),
        'task', COALESCE(v_queue.task, ''),
        'createdAt', queen.iso_ms_v1(v_queue.created_at),
        'priority', COALESCE(v_queue.priority, 0),
        'options', queen.queue_options_v1(v_queue),
        'storage', 'segments',
        'partitions', v_partitions,
        'totals', v_totals,
        'retainedBytes', COALESCE(v_bytes, 0),
        'segments', v_segments);
END
$$;
