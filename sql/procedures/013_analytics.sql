-- Queue deletion, and the readers of the management plane that add up figures of many
-- queues. The tables of what processes count come with 019: readers are in PL/pgSQL.
--
-- Locks: the readers take none beyond those of a SELECT. The deletion takes, in this
-- order: the queue row, then all its lanes ascending by id, then
-- all their cursors ascending by (partition_id, consumer_group), each in one
-- statement and FOR UPDATE because the rows are going to be removed. With the
-- queue row held no lane can be added (a new one needs its key), so the second
-- statement sees them all; with the lanes held no pusher can write.
-- Re-applying is safe: CREATE OR REPLACE only.

-- Deletes a queue and everything that belongs to it. The sidecar and the dead
-- letters have no foreign key, so they go explicitly; the cascade takes lanes,
-- segments, cursors, watermarks, subscriptions, metrics and stats. Traces and
-- the retention history stay.
--
-- A push that was waiting for one of the lanes finds it gone and raises 40001,
-- having written nothing; its next attempt creates the queue anew.
CREATE OR REPLACE FUNCTION queen.delete_queue_v1(
    p_queue  TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue UUID;
    v_lanes UUID[];
BEGIN
    SELECT q.id INTO v_queue
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', FALSE, 'queue', p_queue, 'existed', FALSE,
            'message', 'Queue not found, nothing was deleted');
    END IF;

    SELECT COALESCE(array_agg(l.id), '{}') INTO v_lanes
    FROM (
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.queue_id = v_queue
        ORDER BY p.id
        FOR UPDATE
    ) AS l;
    PERFORM 1
    FROM queen.log_consumers AS c
    WHERE c.partition_id = ANY (v_lanes)
    ORDER BY c.partition_id, c.consumer_group COLLATE "C"
    FOR UPDATE;

    DELETE FROM queen.log_txns AS t WHERE t.partition_id = ANY (v_lanes);
    DELETE FROM queen.log_dlq AS d WHERE d.partition_id = ANY (v_lanes);
    DELETE FROM queen.queues AS q WHERE q.id = v_queue;
    RETURN jsonb_build_object('deleted', TRUE, 'queue', p_queue, 'existed', TRUE);
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

-- The point of a series that an instant belongs to.
CREATE OR REPLACE FUNCTION queen.metrics_bucket_v1(p_at TIMESTAMPTZ, p_minutes INTEGER)
RETURNS TIMESTAMPTZ
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT date_bin(make_interval(mins => p_minutes), p_at, TIMESTAMPTZ '1970-01-01T00:00:00Z')
$$;

-- The window that the filter keys from (an hour ago) and to (now) name, both inclusive;
-- the width of its points, and the window as answers tell it.
CREATE OR REPLACE FUNCTION queen.metrics_window_v1(p_filters JSONB)
RETURNS TABLE (r_from TIMESTAMPTZ, r_to TIMESTAMPTZ, r_minutes INTEGER, r_range JSONB)
LANGUAGE sql STABLE
AS $$
    SELECT w.since, w.until, queen.metrics_bucket_minutes_v1(w.since, w.until),
           jsonb_build_object('from', queen.iso_ms_v1(w.since), 'to', queen.iso_ms_v1(w.until))
    FROM (
        SELECT COALESCE(NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ, now() - INTERVAL '1 hour') AS since,
               COALESCE(NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ, now()) AS until
    ) AS w
$$;

-- How many minutes of a point have passed: what the gauges of its minutes, which have
-- no row where they are 0, are divided by.
CREATE OR REPLACE FUNCTION queen.metrics_minutes_passed_v1(p_bucket TIMESTAMPTZ, p_minutes INTEGER)
RETURNS NUMERIC
LANGUAGE sql STABLE
AS $$
    SELECT greatest(least(p_minutes, ceil(extract(epoch FROM now() - p_bucket) / 60)), 1)
$$;

-- The first minute of queue_lag_metrics that a window takes in: the one it begins in.
CREATE OR REPLACE FUNCTION queen.metrics_first_minute_v1(p_from TIMESTAMPTZ)
RETURNS TIMESTAMPTZ
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT queen.metrics_bucket_v1(p_from, 1)
$$;

-- What the replicas have counted of the queues of a tenant, in points of p_minutes.
-- p_queue, p_namespace and p_task filter where they are not NULL. The lag is NULL where
-- nothing was popped; r_parked is the mean number of pops that waited. Points are
-- gathered in a hash table: how many there are is guessed six times too high, and sorting
-- the rows of a week took as long as all the rest.
CREATE OR REPLACE FUNCTION queen.queue_points_v1(
    p_tenant UUID, p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_minutes INTEGER,
    p_queue TEXT DEFAULT NULL, p_namespace TEXT DEFAULT NULL, p_task TEXT DEFAULT NULL
)
RETURNS TABLE (
    r_bucket             TIMESTAMPTZ,
    r_queue_id           UUID,
    r_push_requests      BIGINT,
    r_push_messages      BIGINT,
    r_pop_requests       BIGINT,
    r_pop_messages       BIGINT,
    r_pop_empty          BIGINT,
    r_ack_requests       BIGINT,
    r_ack_success        BIGINT,
    r_ack_failed         BIGINT,
    r_transactions       BIGINT,
    r_partitions_created BIGINT,
    r_partitions_deleted BIGINT,
    r_partition_count    BIGINT,
    r_lag_sum            DOUBLE PRECISION, -- of the lags of all popped messages
    r_max_lag_ms         DOUBLE PRECISION,
    r_parked             NUMERIC
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_sort = off
SET work_mem = '32MB'
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT queen.metrics_bucket_v1(m.bucket_time, p_minutes) AS bucket, m.queue_id,
           sum(m.push_requests)::BIGINT, sum(m.push_messages)::BIGINT, sum(m.pop_requests)::BIGINT, sum(m.pop_messages)::BIGINT,
           sum(m.pop_empty)::BIGINT, sum(m.ack_requests)::BIGINT, sum(m.ack_success)::BIGINT, sum(m.ack_failed)::BIGINT,
           sum(m.transactions)::BIGINT, sum(m.partitions_created)::BIGINT, sum(m.partitions_deleted)::BIGINT,
           max(m.partition_count), sum(m.avg_lag_ms * m.pop_messages), max(m.max_lag_ms),
           round(sum(m.parked_count)::NUMERIC
               / queen.metrics_minutes_passed_v1(queen.metrics_bucket_v1(m.bucket_time, p_minutes), p_minutes), 2)
    FROM queen.queues AS q
    JOIN queen.queue_lag_metrics AS m ON m.queue_id = q.id
    WHERE q.tenant_id = p_tenant
      AND (p_queue IS NULL OR q.name = p_queue)
      AND (p_namespace IS NULL OR COALESCE(q.namespace, '') = p_namespace)
      AND (p_task IS NULL OR COALESCE(q.task, '') = p_task)
      AND m.bucket_time >= queen.metrics_first_minute_v1(p_from) AND m.bucket_time <= p_to
    GROUP BY bucket, m.queue_id;
END
$$;

-- The age of messages at their delivery, per queue and point: a bare array, newest
-- first, then by name. Filter keys, all optional: from, to, queue, _tenant.
CREATE OR REPLACE FUNCTION queen.get_queue_lag_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_window RECORD;
    v_points JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'queueName', q.name,
               'popCount', s.r_pop_messages,
               'avgLagMs', round((s.r_lag_sum / NULLIF(s.r_pop_messages, 0))::NUMERIC, 2),
               'maxLagMs', round(s.r_max_lag_ms::NUMERIC, 2),
               'bucketMinutes', v_window.r_minutes,
               'bucketTime', queen.iso_ms_v1(s.r_bucket)
           ) ORDER BY s.r_bucket DESC, q.name COLLATE "C"), '[]')
    INTO v_points
    FROM queen.queue_points_v1(v_tenant, v_window.r_from, v_window.r_to, v_window.r_minutes, NULLIF(p_filters ->> 'queue', '')) AS s
    JOIN queen.queues AS q ON q.id = s.r_queue_id;
    RETURN v_points;
END
$$;

-- What was done with each queue over time, oldest first, then by name. Filter keys, all
-- optional: from, to, queue, _tenant.
CREATE OR REPLACE FUNCTION queen.get_queue_ops_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_window RECORD;
    v_series JSONB;
    v_queues JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_ms_v1(s.r_bucket),
               'queueName', q.name,
               'pushRequests', s.r_push_requests,
               'pushMessages', s.r_push_messages,
               'popMessages', s.r_pop_messages,
               'popEmpty', s.r_pop_empty,
               'ackRequests', s.r_ack_requests,
               'ackSuccess', s.r_ack_success,
               'ackFailed', s.r_ack_failed,
               'transactions', s.r_transactions,
               'partitionsCreated', s.r_partitions_created,
               'partitionsDeleted', s.r_partitions_deleted,
               'partitionCount', s.r_partition_count,
               'avgLagMs', round((s.r_lag_sum / NULLIF(s.r_pop_messages, 0))::NUMERIC, 2),
               'maxLagMs', round(s.r_max_lag_ms::NUMERIC, 2),
               'pushPerSecond', round(s.r_push_messages / (v_window.r_minutes * 60.0), 3),
               'popPerSecond', round(s.r_pop_messages / (v_window.r_minutes * 60.0), 3),
               'ackPerSecond', round(s.r_ack_success / (v_window.r_minutes * 60.0), 3),
               'emptyPerSecond', round(s.r_pop_empty / (v_window.r_minutes * 60.0), 3),
               'parkedCount', s.r_parked
           ) ORDER BY s.r_bucket, q.name COLLATE "C"), '[]'),
           COALESCE(jsonb_agg(DISTINCT q.name), '[]')
    INTO v_series, v_queues
    FROM queen.queue_points_v1(v_tenant, v_window.r_from, v_window.r_to, v_window.r_minutes, NULLIF(p_filters ->> 'queue', '')) AS s
    JOIN queen.queues AS q ON q.id = s.r_queue_id;
    RETURN jsonb_build_object('timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes,
        'series', v_series, 'queues', v_queues);
END
$$;

-- Where the pops of each queue wait, by replica, oldest first. Queues that nobody
-- waited for are not there. Filter keys, all optional: from, to, queue, _tenant.
CREATE OR REPLACE FUNCTION queen.get_queue_parked_replicas_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant   UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue    TEXT := NULLIF(p_filters ->> 'queue', '');
    v_window   RECORD;
    v_series   JSONB;
    v_replicas JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    WITH points AS (
        SELECT queen.metrics_bucket_v1(r.bucket_time, v_window.r_minutes) AS bucket, q.name, r.hostname, r.worker_id,
               sum(r.parked_count) AS parked
        FROM queen.queues AS q
        JOIN queen.queue_parked_replica AS r ON r.queue_id = q.id
        WHERE q.tenant_id = v_tenant
          AND (v_queue IS NULL OR q.name = v_queue)
          AND r.bucket_time >= queen.metrics_first_minute_v1(v_window.r_from) AND r.bucket_time <= v_window.r_to
        GROUP BY bucket, q.name, r.hostname, r.worker_id
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_ms_v1(s.bucket),
               'queueName', s.name,
               'hostname', s.hostname,
               'workerId', s.worker_id,
               'parkedCount', round(s.parked::NUMERIC / queen.metrics_minutes_passed_v1(s.bucket, v_window.r_minutes), 2)
           ) ORDER BY s.bucket, s.name COLLATE "C", s.hostname COLLATE "C", s.worker_id), '[]'),
           COALESCE(jsonb_agg(DISTINCT jsonb_build_object('hostname', s.hostname, 'workerId', s.worker_id)), '[]')
    INTO v_series, v_replicas
    FROM points AS s;
    RETURN jsonb_build_object('timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes,
        'series', v_series, 'replicas', v_replicas);
END
$$;

-- The body of a row of a workload. p_points are its points by the number of their bucket,
-- from 1 to p_buckets; the arrays hold null where there is none.
CREATE OR REPLACE FUNCTION queen.workload_document_v1(p_window JSONB, p_points JSONB, p_buckets INTEGER, p_now JSONB)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('window', p_window, 'series', (
        SELECT jsonb_object_agg(k.key, COALESCE(v.list, '[]'))
        FROM unnest(ARRAY['push', 'pop', 'popEmpty', 'ackFailed', 'parked', 'avgLagMs', 'maxLagMs']) AS k (key)
        CROSS JOIN LATERAL (
            SELECT jsonb_agg(COALESCE(p_points -> b.n::TEXT -> k.key, 'null') ORDER BY b.n) AS list
            FROM generate_series(1, p_buckets) AS b (n)
        ) AS v
    ), 'now', p_now)
$$;

-- What the queues of a tenant do, by one of their labels: p_filters may hold from, to,
-- groupBy (namespace; task; queue), namespace, task, queue, _tenant. "tenant" is all
-- of it, whatever the names say. window adds up the time, series has a value for each of
-- the buckets, and now is the state: reconciled figures, and groups as they are.
-- What is conflated is 0: nothing delivers last values only.
CREATE OR REPLACE FUNCTION queen.get_workload_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_by     TEXT := COALESCE(NULLIF(p_filters ->> 'groupBy', ''), 'namespace');
    v_window RECORD;
    v_answer JSONB;
BEGIN
    SELECT w.* INTO v_window FROM queen.metrics_window_v1(p_filters) AS w;
    WITH buckets AS MATERIALIZED (
        SELECT b.at, (row_number() OVER (ORDER BY b.at))::INTEGER AS n
        FROM generate_series(queen.metrics_bucket_v1(v_window.r_from, v_window.r_minutes),
            queen.metrics_bucket_v1(v_window.r_to, v_window.r_minutes), make_interval(mins => v_window.r_minutes)) AS b (at)
    ), queues AS MATERIALIZED (
        SELECT q.id, q.name, COALESCE(q.namespace, '') AS namespace, COALESCE(q.task, '') AS task,
               COALESCE(s.pending_messages, 0) AS pending, COALESCE(s.processing_messages, 0) AS processing,
               COALESCE(s.dead_letter_messages, 0) AS dead_letter, COALESCE(s.retained_bytes, 0) AS bytes,
               COALESCE(s.child_count, 0) AS partitions,
               EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS g WHERE g.queue_id = q.id) AS has_group,
               (NULLIF(p_filters ->> 'namespace', '') IS NULL OR COALESCE(q.namespace, '') = p_filters ->> 'namespace')
                   AND (NULLIF(p_filters ->> 'task', '') IS NULL OR COALESCE(q.task, '') = p_filters ->> 'task')
                   AND (NULLIF(p_filters ->> 'queue', '') IS NULL OR q.name = p_filters ->> 'queue') AS chosen
        FROM queen.queues AS q
        LEFT JOIN LATERAL queen.queue_figures_v1(q.id) AS s ON TRUE
        WHERE q.tenant_id = v_tenant
    ), points AS MATERIALIZED (
        SELECT p.* FROM queen.queue_points_v1(v_tenant, v_window.r_from, v_window.r_to, v_window.r_minutes) AS p
    ), members AS MATERIALIZED (
        SELECT r.kind, r.key, q.*
        FROM queues AS q
        CROSS JOIN LATERAL (VALUES
            ('row', CASE v_by WHEN 'queue' THEN q.name WHEN 'task' THEN q.task ELSE q.namespace END, q.chosen),
            ('tenant', '', TRUE)
        ) AS r (kind, key, counts)
        WHERE r.counts
    ), sums AS MATERIALIZED (
        SELECT m.kind, m.key, p.r_bucket,
               sum(p.r_push_requests) AS push_requests, sum(p.r_push_messages) AS push_messages,
               sum(p.r_pop_messages) AS pop_messages, sum(p.r_pop_empty) AS pop_empty, sum(p.r_ack_requests) AS ack_requests,
               sum(p.r_ack_success) AS ack_success, sum(p.r_ack_failed) AS ack_failed, sum(p.r_transactions) AS transactions,
               sum(p.r_partitions_created) AS created, sum(p.r_partitions_deleted) AS deleted, sum(p.r_parked) AS parked,
               sum(p.r_lag_sum) AS lag_sum, max(p.r_max_lag_ms) AS max_lag
        FROM members AS m
        JOIN points AS p ON p.r_queue_id = m.id
        GROUP BY m.kind, m.key, p.r_bucket
    ), series AS (
        SELECT s.kind, s.key, jsonb_object_agg(b.n, jsonb_build_object(
                   'push', s.push_messages, 'pop', s.pop_messages, 'popEmpty', s.pop_empty, 'ackFailed', s.ack_failed,
                   'parked', s.parked, 'avgLagMs', round((s.lag_sum / NULLIF(s.pop_messages, 0))::NUMERIC, 2),
                   'maxLagMs', round(s.max_lag::NUMERIC, 2))) AS points
        FROM sums AS s
        JOIN buckets AS b ON b.at = s.r_bucket
        GROUP BY s.kind, s.key
    ), windows AS (
        SELECT s.kind, s.key, sum(s.push_messages) AS push_messages, sum(s.push_requests) AS push_requests,
               sum(s.pop_messages) AS pop_messages, sum(s.pop_empty) AS pop_empty, sum(s.ack_requests) AS ack_requests,
               sum(s.ack_success) AS ack_success, sum(s.ack_failed) AS ack_failed, sum(s.transactions) AS transactions,
               sum(s.created) AS created, sum(s.deleted) AS deleted, sum(s.parked) AS parked,
               sum(s.lag_sum) AS lag_sum, max(s.max_lag) AS max_lag
        FROM sums AS s
        GROUP BY s.kind, s.key
    ), touched AS (
        SELECT p.r_queue_id AS id, bool_or(p.r_push_messages + p.r_pop_messages > 0) AS active
        FROM points AS p
        GROUP BY p.r_queue_id
    ), groups AS (
        SELECT m.kind, m.key, count(DISTINCT g.consumer_group) AS groups
        FROM members AS m
        JOIN queen.consumer_groups_metadata AS g ON g.queue_id = m.id
        GROUP BY m.kind, m.key
    ), states AS (
        SELECT m.kind, m.key, count(*) AS queues, min(m.namespace) AS namespace, min(m.task) AS task,
               jsonb_build_object(
                   'pending', sum(m.pending), 'processing', sum(m.processing), 'deadLetter', sum(m.dead_letter),
                   'retainedBytes', sum(m.bytes), 'partitions', sum(m.partitions),
                   'groups', COALESCE(max(g.groups), 0),
                   'queuesWithoutGroup', count(*) FILTER (WHERE NOT m.has_group),
                   'pendingWithoutGroup', COALESCE(sum(m.pending) FILTER (WHERE NOT m.has_group), 0),
                   'queuesTouched', count(t.id), 'queuesActive', count(*) FILTER (WHERE t.active)) AS now
        FROM members AS m
        LEFT JOIN touched AS t ON t.id = m.id
        LEFT JOIN groups AS g ON g.kind = m.kind AND g.key = m.key
        GROUP BY m.kind, m.key
    ), documents AS (
        SELECT s.kind, s.key, COALESCE(w.push_messages, 0) AS pushed, jsonb_build_object('queues', s.queues)
               || CASE WHEN s.kind = 'row' AND v_by = 'queue' THEN jsonb_build_object('namespace', s.namespace, 'task', s.task) ELSE '{}' END
               || queen.workload_document_v1(jsonb_build_object(
                   'pushMessages', COALESCE(w.push_messages, 0), 'pushRequests', COALESCE(w.push_requests, 0),
                   'popMessages', COALESCE(w.pop_messages, 0), 'popEmpty', COALESCE(w.pop_empty, 0),
                   'ackRequests', COALESCE(w.ack_requests, 0), 'ackSuccess', COALESCE(w.ack_success, 0),
                   'ackFailed', COALESCE(w.ack_failed, 0), 'transactions', COALESCE(w.transactions, 0), 'conflated', 0,
                   'partitionsCreated', COALESCE(w.created, 0), 'partitionsDeleted', COALESCE(w.deleted, 0),
                   'parkedAvg', round(COALESCE(w.parked, 0) / (SELECT count(*) FROM buckets), 2),
                   'avgLagMs', round((w.lag_sum / NULLIF(w.pop_messages, 0)::DOUBLE PRECISION)::NUMERIC, 2),
                   'maxLagMs', round(w.max_lag::NUMERIC, 2)
               ), COALESCE(e.points, '{}'), (SELECT count(*) FROM buckets)::INTEGER, s.now) AS document
        FROM states AS s
        LEFT JOIN windows AS w ON w.kind = s.kind AND w.key = s.key
        LEFT JOIN series AS e ON e.kind = s.kind AND e.key = s.key
    )
    SELECT jsonb_build_object(
               'timeRange', v_window.r_range, 'bucketMinutes', v_window.r_minutes, 'groupBy', v_by,
               'buckets', (SELECT jsonb_agg(queen.iso_ms_v1(b.at) ORDER BY b.at) FROM buckets AS b),
               'rows', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('key', d.key) || d.document ORDER BY d.pushed DESC, d.key COLLATE "C"), '[]')
                   FROM documents AS d WHERE d.kind = 'row'),
               'tenant', (SELECT d.document FROM documents AS d WHERE d.kind = 'tenant'))
    INTO v_answer;
    RETURN v_answer;
END
$$;

-- The text of an error without what differs from one message to the next.
CREATE OR REPLACE FUNCTION queen.dlq_signature_v1(p_error TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT left(btrim(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(COALESCE(p_error, ''), 4096),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\m(?:0x)?(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{16,}\M', '<id>', 'g'),
        '\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?)?', '<date>', 'g'),
        '\d+', '<n>', 'g'),
        '\s+', ' ', 'g')), 120)
$$;

-- What the dead letters of one queue have in common, from the newest of them. Filter
-- keys: queue, limit (200, from 1 to 1000: how many are looked at), _tenant. rowsNow counts
-- all of them; the rest is of the sample. The eight most frequent texts are listed.
CREATE OR REPLACE FUNCTION queen.get_dlq_signatures_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_limit  BIGINT := least(greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 200), 1), 1000);
    v_answer JSONB;
BEGIN
    WITH letters AS MATERIALIZED (
        SELECT d.id, d.failed_at
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        JOIN queen.log_dlq AS d ON d.partition_id = p.id
        WHERE q.tenant_id = v_tenant AND q.name = p_filters ->> 'queue'
    ), sample AS MATERIALIZED (
        SELECT d.consumer_group, d.retry_count, d.failed_at, pg_column_size(d.payload) AS bytes, queen.dlq_signature_v1(d.error) AS text
        FROM (SELECT l.id FROM letters AS l ORDER BY l.failed_at DESC, l.id DESC LIMIT v_limit) AS l
        JOIN queen.log_dlq AS d ON d.id = l.id
    )
    SELECT jsonb_build_object(
               'queue', p_filters ->> 'queue',
               'rowsNow', (SELECT count(*) FROM letters),
               'sample', count(*),
               'oldest', queen.iso_ms_v1(min(s.failed_at)),
               'newest', queen.iso_ms_v1(max(s.failed_at)),
               'avgBytes', round(avg(s.bytes)),
               'retryCounts', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('retryCount', r.retry_count, 'n', r.n) ORDER BY r.n DESC, r.retry_count), '[]')
                   FROM (SELECT x.retry_count, count(*) AS n FROM sample AS x GROUP BY x.retry_count) AS r),
               'groups', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('group', r.consumer_group, 'n', r.n) ORDER BY r.n DESC, r.consumer_group COLLATE "C"), '[]')
                   FROM (SELECT x.consumer_group, count(*) AS n FROM sample AS x GROUP BY x.consumer_group) AS r),
               'signatures', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('text', r.text, 'n', r.n,
                       'share', round(r.n::NUMERIC / (SELECT count(*) FROM sample), 4)) ORDER BY r.n DESC, r.text COLLATE "C"), '[]')
                   FROM (SELECT x.text, count(*) AS n FROM sample AS x GROUP BY x.text ORDER BY n DESC, x.text COLLATE "C" LIMIT 8) AS r),
               'byDay', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('day', r.day, 'n', r.n) ORDER BY r.day), '[]')
                   FROM (SELECT to_char(x.failed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, count(*) AS n FROM sample AS x GROUP BY 1) AS r))
    INTO v_answer
    FROM sample AS s;
    RETURN v_answer;
END
$$;

-- Before which instant everything that was written can be seen: five seconds before the
-- oldest transaction of this database began, or now. Where sessions of other roles hide
-- when theirs began, p_floor_ms before now, and r_degraded says so. It is a statement
-- of its own, before one that reads a table: what it promises is for later snapshots.
CREATE OR REPLACE FUNCTION queen.log_safe_time_v1(p_floor_ms BIGINT)
RETURNS TABLE (r_at TIMESTAMPTZ, r_degraded BOOLEAN)
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN s.hidden
               THEN least(s.oldest - INTERVAL '5 seconds', s.at - p_floor_ms * INTERVAL '1 millisecond')
               ELSE s.oldest - INTERVAL '5 seconds' END, s.hidden
    FROM (
        SELECT c.at, least(c.at, min(a.xact_start), (SELECT min(x.prepared) FROM pg_catalog.pg_prepared_xacts AS x WHERE x.database = current_database())) AS oldest,
               COALESCE(bool_or(a.query = '<insufficient privilege>'), FALSE) AS hidden
        FROM (SELECT clock_timestamp() AS at) AS c
        LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.datname = current_database() AND a.pid <> pg_backend_pid()
        GROUP BY c.at
    ) AS s
$$;

-- Cursors of log_partitions_changed_v1: the kind of sweep (by name, or by write), the
-- last write in microseconds, and the name in hexadecimal. NULL for what is none.
CREATE OR REPLACE FUNCTION queen.changed_cursor_v1(p_since TIMESTAMPTZ, p_written TIMESTAMPTZ, p_name TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_since IS NULL THEN 'n.' ELSE 'w.' || (extract(epoch FROM p_written) * 1000000)::BIGINT || '.' END
        || encode(convert_to(p_name, 'UTF8'), 'hex')
$$;

CREATE OR REPLACE FUNCTION queen.changed_cursor_parts_v1(p_cursor TEXT)
RETURNS TABLE (r_by_write BOOLEAN, r_written TIMESTAMPTZ, r_name TEXT)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF p_cursor !~ '^(n|w\.[0-9]{1,17})\.([0-9a-f]{2})*$' THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT p_cursor ~ '^w', TIMESTAMPTZ '1970-01-01T00:00:00Z' + (substring(p_cursor FROM '^w\.([0-9]+)\.'))::BIGINT * INTERVAL '1 microsecond',
           convert_from(decode(substring(p_cursor FROM '([0-9a-f]*)$'), 'hex'), 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character OR datetime_field_overflow OR interval_field_overflow THEN
    RETURN; -- forged
END
$$;

-- One entry of log_partitions_changed_v1.
CREATE OR REPLACE FUNCTION queen.log_partitions_changed_entry_v1(p_tenant UUID, p_queue TEXT, p_since TIMESTAMPTZ, p_after TEXT, p_limit INTEGER)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_queue UUID;
    v_after RECORD;
    v_rows  JSONB;
    v_next  TEXT;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('queue', p_queue, 'error', 'UNKNOWN_TOPIC_OR_PARTITION');
    END IF;
    SELECT c.* INTO v_after FROM (SELECT 1) AS one LEFT JOIN queen.changed_cursor_parts_v1(p_after) AS c ON TRUE;
    IF p_after IS NOT NULL AND v_after.r_by_write IS DISTINCT FROM (p_since IS NOT NULL) THEN
        RETURN jsonb_build_object('queue', p_queue, 'error', 'BAD_CURSOR');
    END IF;
    IF p_since IS NULL THEN
        SELECT COALESCE(jsonb_agg(queen.changed_partition_v1(l) ORDER BY l.name), '[]'),
               CASE WHEN count(*) = p_limit THEN queen.changed_cursor_v1(p_since, NULL, max(l.name)) END
        INTO v_rows, v_next
        FROM (
            SELECT p.* FROM queen.log_partitions AS p
            WHERE p.queue_id = v_queue AND (p_after IS NULL OR p.name > v_after.r_name)
            ORDER BY p.name
            LIMIT p_limit
        ) AS l;
    ELSE
        SELECT COALESCE(jsonb_agg(queen.changed_partition_v1(l) ORDER BY l.last_write_at, l.name), '[]'),
               CASE WHEN count(*) = p_limit
                   THEN (array_agg(queen.changed_cursor_v1(p_since, l.last_write_at, l.name) ORDER BY l.last_write_at DESC, l.name DESC))[1] END
        INTO v_rows, v_next
        FROM (
            SELECT p.* FROM queen.log_partitions AS p
            WHERE p.queue_id = v_queue AND p.last_write_at >= greatest(p_since, v_after.r_written)
              AND (p_after IS NULL OR (p.last_write_at, p.name) > (v_after.r_written, v_after.r_name))
            ORDER BY p.last_write_at, p.name
            LIMIT p_limit
        ) AS l;
    END IF;
    RETURN jsonb_build_object('queue', p_queue, 'partitions', v_rows, 'next', v_next);
END
$$;

-- A partition as the sweep shows it.
CREATE OR REPLACE FUNCTION queen.changed_partition_v1(p_lane queen.log_partitions)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('name', p_lane.name, 'lastOffset', p_lane.last_offset, 'logStart', p_lane.log_start,
        'lastWriteAt', queen.iso_us_v1(p_lane.last_write_at))
$$;

-- The partitions of some queues that were written since an instant, or all of them, page
-- by page. p_entries holds objects of queue, since, after and limit; only the first and the
-- last are always there. p_safe_time and p_degraded are what log_safe_time_v1 said before.
-- An entry that cannot be answered carries an error instead of partitions.
CREATE OR REPLACE FUNCTION queen.log_partitions_changed_v1(
    p_entries   JSONB,
    p_safe_time TIMESTAMPTZ,
    p_degraded  BOOLEAN,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'safeTime', queen.iso_us_v1(p_safe_time),
        'safeTimeDegraded', p_degraded,
        'entries', COALESCE(jsonb_agg(queen.log_partitions_changed_entry_v1(p_tenant, e.entry ->> 'queue',
            (e.entry ->> 'since')::TIMESTAMPTZ, e.entry ->> 'after', (e.entry ->> 'limit')::INTEGER) ORDER BY e.n), '[]'))
    FROM jsonb_array_elements(p_entries) WITH ORDINALITY AS e (entry, n)
$$;
