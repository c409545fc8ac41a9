-- Management of the log: consumer groups; the listings of dead letters and messages;
-- the record of traces.
--
-- Locks. The readers take none beyond those of a SELECT. What moves or removes
-- cursors takes, in this order, each set ascending in one statement:
--   the queue row                     FOR KEY SHARE: a deletion is before or after
--   registration of the group         transaction advisory lock on <queue id>/<group>,
--                                     seed 43: no pop makes cursors of it meanwhile
--   log_partitions rows               FOR KEY SHARE: cleanup is before or after
--   log_consumers rows                by partition id
--   the consumer_watermarks row       last: an empty scan, which took its row or the
--                                     advisory lock before it looked, is waited for
--                                     and then undone
-- Only the functions that take a whole queue in one transaction hold many rows for
-- long; the broker goes by steps of some thousand lanes, each a transaction of its
-- own. A lane is moved or not, whatever happens to the others.
--
-- Re-applying is safe: CREATE OR REPLACE, and pairs of DROP and CREATE in one
-- transaction.

-- 1. Consumer groups ----------------------------------------------------------

-- Begins a change of the cursors of a group in a queue: takes the locks that stand
-- before those of the lanes. NULL for an unknown queue.
CREATE OR REPLACE FUNCTION queen.log_group_hold_v1(p_group TEXT, p_queue TEXT, p_tenant UUID)
RETURNS UUID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue FOR KEY SHARE;
    IF FOUND THEN
        PERFORM pg_advisory_xact_lock(queen.log_registration_key_v1(v_queue, p_group));
    END IF;
    RETURN v_queue;
END
$$;

-- Moves the cursors of a group in some lanes, whose rows the caller holds, given
-- ascending by id with what they say: to the end, or just before the first segment
-- not older than p_timestamp. The lease ends, and the next delivery is a first one.
-- A seek to the end never takes back what was committed meanwhile.
CREATE OR REPLACE FUNCTION queen.log_seek_set_v1(
    p_pids UUID[], p_lasts BIGINT[], p_starts BIGINT[], p_group TEXT, p_to_end BOOLEAN, p_timestamp TIMESTAMPTZ)
RETURNS VOID
LANGUAGE sql VOLATILE
SET jit = off
AS $$
    INSERT INTO queen.log_consumers AS c (partition_id, consumer_group, committed)
    SELECT l.pid, p_group,
           CASE WHEN p_to_end THEN l.last ELSE queen.log_seed_offset_v1(l.pid, l.start, l.last, p_timestamp) END
    FROM unnest(p_pids, p_lasts, p_starts) WITH ORDINALITY AS l (pid, last, start, ord)
    ORDER BY l.ord
    ON CONFLICT (partition_id, consumer_group) DO UPDATE
    SET committed = CASE WHEN p_to_end THEN greatest(c.committed, excluded.committed) ELSE excluded.committed END,
        batch_end = NULL, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL,
        batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0
$$;

-- The same for one lane.
CREATE OR REPLACE FUNCTION queen.log_seek_one_v1(
    p_partition_id UUID,
    p_last_offset  BIGINT,
    p_log_start    BIGINT,
    p_group        TEXT,
    p_to_end       BOOLEAN,
    p_timestamp    TIMESTAMPTZ
)
RETURNS VOID
LANGUAGE sql VOLATILE
AS $$
    SELECT queen.log_seek_set_v1(ARRAY[p_partition_id], ARRAY[p_last_offset], ARRAY[p_log_start], p_group, p_to_end, p_timestamp)
$$;

-- What a seek may not be: NULL when it says where to.
CREATE OR REPLACE FUNCTION queen.log_seek_fault_v1(p_to_end BOOLEAN, p_timestamp TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN NOT COALESCE(p_to_end, FALSE) AND p_timestamp IS NULL
                THEN '{"success": false, "error": "Must specify either toEnd=true or a timestamp"}'::JSONB END
$$;

-- One step of a seek over a queue: at most p_limit lanes with ids above p_after. r_after
-- is where the next step goes on, NULL after the last one; r_done counts the lanes of
-- all steps, of which p_done were moved by those before; r_answer is what is to be
-- answered if this was the last one.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_seek_step_v1(TEXT, TEXT, BOOLEAN, TIMESTAMPTZ, UUID, UUID, INTEGER, BIGINT);
CREATE FUNCTION queen.log_seek_step_v1(
    p_group      TEXT,
    p_queue      TEXT,
    p_to_end     BOOLEAN,
    p_timestamp  TIMESTAMPTZ,
    p_tenant     UUID,
    p_after      UUID,
    p_limit      INTEGER,
    p_done       BIGINT,
    OUT r_after  UUID,
    OUT r_done   BIGINT,
    OUT r_answer JSONB
)
LANGUAGE plpgsql VOLATILE
SET jit = off
AS $$
DECLARE
    v_to_end BOOLEAN := COALESCE(p_to_end, FALSE);
    v_queue  UUID;
    v_pids   UUID[];
    v_lasts  BIGINT[];
    v_starts BIGINT[];
    v_n      INTEGER;
BEGIN
    r_done := p_done;
    r_answer := queen.log_seek_fault_v1(p_to_end, p_timestamp);
    IF r_answer IS NOT NULL THEN
        RETURN;
    END IF;
    v_queue := queen.log_group_hold_v1(p_group, p_queue, p_tenant);
    SELECT array_agg(l.id ORDER BY l.id), array_agg(l.last_offset ORDER BY l.id), array_agg(l.log_start ORDER BY l.id), count(*)
    INTO v_pids, v_lasts, v_starts, v_n
    FROM (
        SELECT p.id, p.last_offset, p.log_start FROM queen.log_partitions AS p
        WHERE p.queue_id = v_queue AND p.id > p_after
        ORDER BY p.id
        LIMIT p_limit
        FOR KEY SHARE
    ) AS l;
    PERFORM queen.log_seek_set_v1(v_pids, v_lasts, v_starts, p_group, v_to_end, p_timestamp);
    DELETE FROM queen.consumer_watermarks AS w WHERE w.queue_id = v_queue AND w.consumer_group = p_group;

    r_done := p_done + v_n;
    IF v_n >= p_limit THEN
        r_after := v_pids[v_n];
    END IF;
    r_answer := CASE WHEN r_done = 0
        THEN jsonb_build_object('success', FALSE, 'error', 'Queue not found or has no partitions',
                 'consumerGroup', p_group, 'queueName', p_queue, 'partitionsUpdated', 0)
        ELSE jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'seekToEnd', v_to_end,
                 'targetTimestamp', CASE WHEN NOT v_to_end THEN queen.iso_ms_v1(p_timestamp) END, 'partitionsUpdated', r_done) END;
END
$$;
COMMIT;

-- A seek over a queue in one transaction.
CREATE OR REPLACE FUNCTION queen.log_seek_consumer_group_v1(
    p_group     TEXT,
    p_queue     TEXT,
    p_to_end    BOOLEAN DEFAULT FALSE,
    p_timestamp TIMESTAMPTZ DEFAULT NULL,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT s.r_answer
    FROM queen.log_seek_step_v1(p_group, p_queue, p_to_end, p_timestamp, p_tenant,
                                '00000000-0000-0000-0000-000000000000', 2147483647, 0) AS s
$$;

CREATE OR REPLACE FUNCTION queen.log_seek_partition_v1(
    p_group     TEXT,
    p_queue     TEXT,
    p_partition TEXT,
    p_to_end    BOOLEAN DEFAULT FALSE,
    p_timestamp TIMESTAMPTZ DEFAULT NULL,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_to_end BOOLEAN := COALESCE(p_to_end, FALSE);
    v_fault  JSONB := queen.log_seek_fault_v1(p_to_end, p_timestamp);
    v_queue  UUID;
    v_lane   RECORD;
BEGIN
    IF v_fault IS NOT NULL THEN
        RETURN v_fault;
    END IF;
    v_queue := queen.log_group_hold_v1(p_group, p_queue, p_tenant);
    SELECT p.id, p.last_offset, p.log_start INTO v_lane
    FROM queen.log_partitions AS p
    WHERE p.queue_id = v_queue AND p.name = p_partition
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Partition not found');
    END IF;
    PERFORM queen.log_seek_one_v1(v_lane.id, v_lane.last_offset, v_lane.log_start, p_group, v_to_end, p_timestamp);
    DELETE FROM queen.consumer_watermarks AS w WHERE w.queue_id = v_queue AND w.consumer_group = p_group;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionName', p_partition,
        'seekToEnd', v_to_end, 'targetTimestamp', CASE WHEN NOT v_to_end THEN queen.iso_ms_v1(p_timestamp) END, 'updated', TRUE);
END
$$;

-- One step of the deletion of a group, in one queue or, with p_queue NULL, of its
-- registrations for namespaces and tasks. The registration goes before the cursors
-- and only in the first step: whoever registers the group anew meanwhile keeps that
-- record, and by it the lanes whose new cursors go are seeded again, with the same
-- result. r_after, r_done and r_answer are as in a seek.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_delete_group_step_v1(TEXT, TEXT, BOOLEAN, UUID, UUID, INTEGER, BIGINT);
CREATE FUNCTION queen.log_delete_group_step_v1(
    p_group           TEXT,
    p_queue           TEXT,
    p_delete_metadata BOOLEAN,
    p_tenant          UUID,
    p_after           UUID,
    p_limit           INTEGER,
    p_done            BIGINT,
    OUT r_after       UUID,
    OUT r_done        BIGINT,
    OUT r_answer      JSONB
)
LANGUAGE plpgsql VOLATILE
SET jit = off
AS $$
DECLARE
    v_queue UUID := queen.log_group_hold_v1(p_group, p_queue, p_tenant);
    v_pids  UUID[];
BEGIN
    IF p_delete_metadata AND p_after = '00000000-0000-0000-0000-000000000000' AND (p_queue IS NULL OR v_queue IS NOT NULL) THEN
        DELETE FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id IS NOT DISTINCT FROM v_queue;
    END IF;
    v_pids := ARRAY(
        SELECT c.partition_id
        FROM queen.log_partitions AS p
        JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.queue_id = v_queue AND p.id > p_after
        ORDER BY c.partition_id
        LIMIT p_limit
        FOR UPDATE OF c);
    DELETE FROM queen.log_consumers AS c WHERE c.partition_id = ANY (v_pids) AND c.consumer_group = p_group;
    DELETE FROM queen.consumer_watermarks AS w WHERE w.queue_id = v_queue AND w.consumer_group = p_group;

    r_done := p_done + cardinality(v_pids);
    IF cardinality(v_pids) >= p_limit THEN
        r_after := v_pids[p_limit];
    END IF;
    r_answer := jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'deletedPartitions', r_done,
        'metadataDeleted', COALESCE(p_delete_metadata, FALSE));
END
$$;
COMMIT;

-- The queues that a group has anything of, by name.
CREATE OR REPLACE FUNCTION queen.log_group_queues_v1(
    p_group  TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (r_queue TEXT)
LANGUAGE sql STABLE
AS $$
    SELECT q.name::TEXT
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND (
        EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS m WHERE m.queue_id = q.id AND m.consumer_group = p_group)
        OR EXISTS (SELECT 1 FROM queen.consumer_watermarks AS w WHERE w.queue_id = q.id AND w.consumer_group = p_group)
        OR EXISTS (SELECT 1 FROM queen.log_partitions AS p
                   JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                   WHERE p.queue_id = q.id))
    ORDER BY q.name COLLATE "C"
$$;

-- The deletion of a group in one transaction. All queues, registrations and cursors
-- are locked before anything is removed, each set in its order.
CREATE OR REPLACE FUNCTION queen.log_delete_consumer_group_v1(
    p_group           TEXT,
    p_delete_metadata BOOLEAN DEFAULT TRUE,
    p_tenant          UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queues TEXT[];
    v_queue  TEXT;
    v_step   RECORD;
BEGIN
    SELECT COALESCE(array_agg(l.name ORDER BY l.id), '{}') INTO v_queues
    FROM (
        SELECT q.id, q.name::TEXT AS name FROM queen.queues AS q
        WHERE q.tenant_id = p_tenant AND q.name IN (SELECT g.r_queue FROM queen.log_group_queues_v1(p_group, p_tenant) AS g)
        ORDER BY q.id
        FOR KEY SHARE
    ) AS l;
    FOREACH v_queue IN ARRAY v_queues LOOP
        PERFORM queen.log_group_hold_v1(p_group, v_queue, p_tenant);
    END LOOP;
    PERFORM 1
    FROM queen.queues AS q
    JOIN queen.log_partitions AS p ON p.queue_id = q.id
    JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
    WHERE q.tenant_id = p_tenant AND q.name = ANY (v_queues)
    ORDER BY c.partition_id
    FOR UPDATE OF c;

    SELECT * INTO v_step FROM queen.log_delete_group_step_v1(
        p_group, NULL, p_delete_metadata, p_tenant, '00000000-0000-0000-0000-000000000000', 2147483647, 0);
    FOREACH v_queue IN ARRAY v_queues LOOP
        SELECT * INTO v_step FROM queen.log_delete_group_step_v1(
            p_group, v_queue, p_delete_metadata, p_tenant, '00000000-0000-0000-0000-000000000000', 2147483647, v_step.r_done);
    END LOOP;
    RETURN v_step.r_answer;
END
$$;

-- What one cursor has before it: the next offset it wants, and how many messages.
CREATE OR REPLACE FUNCTION queen.log_cursor_lag_v1(p_log_start BIGINT, p_last_offset BIGINT, p_committed BIGINT)
RETURNS TABLE (r_wanted BIGINT, r_lag BIGINT)
LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(p_committed + 1, p_log_start), greatest(p_last_offset - greatest(p_committed, p_log_start - 1), 0)
$$;

-- Whole seconds since an instant, 0 for none and for one that is to come.
CREATE OR REPLACE FUNCTION queen.seconds_since_v1(p_at TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT greatest(COALESCE(floor(EXTRACT(EPOCH FROM now() - p_at)), 0), 0)::BIGINT
$$;

-- The cursors of a tenant whose next message came at p_before at the latest, with the
-- time of it. Where nothing was consumed that is the watermark of the partition; else
-- the segment is looked up, unless the watermark tells that there is none so old.
CREATE OR REPLACE FUNCTION queen.log_lagging_cursors_v1(p_tenant UUID, p_before TIMESTAMPTZ)
RETURNS TABLE (
    r_group        TEXT,
    r_queue        TEXT,
    r_partition    TEXT,
    r_partition_id UUID,
    r_worker       TEXT,
    r_lag          BIGINT,
    r_since        TIMESTAMPTZ
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT l.consumer_group, l.queue::TEXT, l.name, l.id, l.worker_id, l.lag, COALESCE(l.since, s.r_at)
    FROM (
        SELECT c.consumer_group, q.name AS queue, p.name, p.id, c.worker_id, f.r_wanted AS wanted, f.r_lag AS lag,
               CASE WHEN f.r_wanted = p.log_start THEN p.oldest_live_at END AS since
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        JOIN queen.log_consumers AS c ON c.partition_id = p.id
        CROSS JOIN LATERAL queen.log_cursor_lag_v1(p.log_start, p.last_offset, c.committed) AS f
        WHERE q.tenant_id = p_tenant AND f.r_lag > 0 AND (p.oldest_live_at IS NULL OR p.oldest_live_at <= p_before)
        OFFSET 0
    ) AS l
    LEFT JOIN LATERAL (
        SELECT t.r_at FROM queen.log_pending_since_v1(l.id, l.wanted) AS t WHERE l.since IS NULL
    ) AS s ON TRUE
    WHERE COALESCE(l.since, s.r_at) <= p_before;
END
$$;

-- The groups of a tenant: an array with one element for each group and queue. The
-- oldest message of each is found as the statistics find it. Cursors are summed up in
-- a hash table: to sort them takes twice as long.
CREATE OR REPLACE FUNCTION queen.get_consumer_groups_v4(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_sort = off
SET work_mem = '32MB'
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'name', g.consumer_group,
                   'topics', jsonb_build_array(q.name),
                   'queueName', q.name,
                   'members', g.cursors,
                   'partitionCursors', g.cursors,
                   'partitionsWithLag', g.lagging,
                   'totalLag', g.lag,
                   'maxTimeLag', s.seconds,
                   'state', CASE WHEN s.seconds > 300 THEN 'Lagging' WHEN g.consumed THEN 'Stable' ELSE 'Dead' END,
                   'storage', 'segments',
                   'subscriptionMode', m.subscription_mode,
                   'subscriptionTimestamp', queen.iso_ms_v1(m.subscription_timestamp),
                   'subscriptionCreatedAt', queen.iso_ms_v1(m.created_at),
                   'conflation', FALSE
               ) ORDER BY g.consumer_group COLLATE "C", q.name COLLATE "C"), '[]')
        FROM (
            SELECT l.consumer_group, l.queue_id, count(*) AS cursors, count(*) FILTER (WHERE l.lag > 0) AS lagging,
                   sum(l.lag) AS lag, bool_or(l.total_consumed > 0) AS consumed,
                   min(l.bound) FILTER (WHERE l.lag > 0 AND l.exact) AS oldest,
                   array_agg(l.id) FILTER (WHERE l.lag > 0 AND NOT l.exact) AS ids,
                   array_agg(l.wanted) FILTER (WHERE l.lag > 0 AND NOT l.exact) AS wanted,
                   array_agg(l.bound) FILTER (WHERE l.lag > 0 AND NOT l.exact) AS bounds
            FROM (
                SELECT c.consumer_group, c.total_consumed, p.id, p.queue_id, f.r_wanted AS wanted, f.r_lag AS lag,
                       COALESCE(p.oldest_live_at, '-infinity') AS bound,
                       p.oldest_live_at IS NOT NULL AND f.r_wanted = p.log_start AS exact
                FROM queen.queues AS n
                JOIN queen.log_partitions AS p ON p.queue_id = n.id
                JOIN queen.log_consumers AS c ON c.partition_id = p.id
                CROSS JOIN LATERAL queen.log_cursor_lag_v1(p.log_start, p.last_offset, c.committed) AS f
                WHERE n.tenant_id = p_tenant
            ) AS l
            GROUP BY l.consumer_group, l.queue_id
        ) AS g
        JOIN queen.queues AS q ON q.id = g.queue_id
        CROSS JOIN LATERAL queen.log_oldest_of_v1(g.ids, g.wanted, g.bounds, g.oldest) AS o
        CROSS JOIN LATERAL (SELECT queen.seconds_since_v1(o.r_at) AS seconds) AS s
        LEFT JOIN queen.consumer_groups_metadata AS m
            ON m.tenant_id = p_tenant AND m.consumer_group = g.consumer_group AND m.queue_id = g.queue_id
           AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
    );
END
$$;

-- The cursors of a tenant whose oldest message has been waiting for longer than
-- p_min_lag_seconds, the longest first: p_limit at most, NULL for all.
CREATE OR REPLACE FUNCTION queen.log_lagging_list_v1(p_min_lag_seconds INTEGER, p_tenant UUID, p_limit INTEGER)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'consumer_group', l.r_group,
                   'queue_name', l.r_queue,
                   'partition_name', l.r_partition,
                   'partition_id', l.r_partition_id,
                   'worker_id', l.r_worker,
                   'offset_lag', l.r_lag,
                   'time_lag_seconds', l.seconds,
                   'lag_hours', round(l.seconds / 3600.0, 2),
                   'oldest_unconsumed_at', queen.iso_ms_v1(l.r_since),
                   'last_consumed_at', NULL
               ) ORDER BY l.r_since, l.r_group COLLATE "C", l.r_partition_id), '[]')
        FROM (
            SELECT c.*, queen.seconds_since_v1(c.r_since) AS seconds
            FROM queen.log_lagging_cursors_v1(p_tenant, now() - make_interval(secs => 1 + p_min_lag_seconds::FLOAT8)) AS c
            ORDER BY c.r_since, c.r_group COLLATE "C", c.r_partition_id
            LIMIT p_limit
        ) AS l
    );
END
$$;

CREATE OR REPLACE FUNCTION queen.get_lagging_partitions_v1(
    p_min_lag_seconds INTEGER DEFAULT 0,
    p_tenant          UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT queen.log_lagging_list_v1(COALESCE(p_min_lag_seconds, 0), p_tenant, NULL)
$$;

-- The cursors of one group, under the names of their queues: in the order of queue
-- and partition, p_limit of them at most (NULL: all), of one queue where p_queue says
-- so, and there only those of the partitions after p_after.
CREATE OR REPLACE FUNCTION queen.log_group_details_v1(p_group TEXT, p_tenant UUID, p_queue TEXT, p_after TEXT, p_limit INTEGER)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT COALESCE(jsonb_object_agg(d.queue, jsonb_build_object('conflation', FALSE, 'partitions', d.partitions)), '{}')
        FROM (
            SELECT l.queue, jsonb_agg(jsonb_build_object(
                       'partition', l.name,
                       'workerId', l.worker_id,
                       'lastConsumedAt', NULL,
                       'totalConsumed', l.total_consumed,
                       'offsetLag', l.lag,
                       'timeLagSeconds', queen.seconds_since_v1(s.r_at),
                       'leaseActive', COALESCE(l.lease_expires_at > now(), FALSE)
                   ) ORDER BY l.name) AS partitions
            FROM (
                SELECT q.name AS queue, p.id, p.name, c.worker_id, c.total_consumed, c.lease_expires_at, f.r_wanted AS wanted, f.r_lag AS lag
                FROM queen.queues AS q
                JOIN queen.log_partitions AS p ON p.queue_id = q.id
                JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                CROSS JOIN LATERAL queen.log_cursor_lag_v1(p.log_start, p.last_offset, c.committed) AS f
                WHERE q.tenant_id = p_tenant AND (p_queue IS NULL OR q.name = p_queue) AND (p_after IS NULL OR p.name > p_after)
                ORDER BY q.name, p.name
                LIMIT p_limit
            ) AS l
            LEFT JOIN LATERAL (
                SELECT t.r_at FROM queen.log_pending_since_v1(l.id, l.wanted) AS t WHERE l.lag > 0
            ) AS s ON TRUE
            GROUP BY l.queue
        ) AS d
    );
END
$$;

CREATE OR REPLACE FUNCTION queen.get_consumer_group_details_v1(
    p_consumer_group TEXT,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT queen.log_group_details_v1(p_consumer_group, p_tenant, NULL, NULL, NULL)
$$;

-- 2. Pages --------------------------------------------------------------------
--
-- Beside an offset a page may begin after a mark, the "next" of an earlier page: the
-- sort key of its last row. A page then begins where that one ended, whatever was
-- written or deleted meanwhile. "next" is there only when more follows.

-- How many bytes the rows of a page may take together, where a row may be large. The
-- first one is shown whatever it takes.
CREATE OR REPLACE FUNCTION queen.page_bytes_v1()
RETURNS BIGINT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT 8388608::BIGINT
$$;

-- A page of the rows of which one more than the limit was read.
CREATE OR REPLACE FUNCTION queen.page_v1(p_key TEXT, p_rows JSONB[], p_marks TEXT[], p_limit BIGINT)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object(p_key, COALESCE(to_jsonb(p_rows[:p_limit::INT]), '[]'))
        || CASE WHEN cardinality(p_rows) > p_limit AND p_limit > 0 THEN jsonb_build_object('next', p_marks[p_limit::INT]) ELSE '{}' END
$$;

-- The mark of a row: its instant, and what tells it from others of that instant.
CREATE OR REPLACE FUNCTION queen.page_mark_v1(p_at TIMESTAMPTZ, p_rest TEXT)
RETURNS TEXT
LANGUAGE sql STABLE
AS $$
    SELECT (extract(EPOCH FROM p_at) * 1000000)::BIGINT || '.' || p_rest
$$;

-- The instant of a mark whose rest matches p_rest, in which UUID stands for one; NULL
-- without a mark. What is none raises QB001, as everything does that a reader refuses.
CREATE OR REPLACE FUNCTION queen.page_mark_at_v1(p_mark TEXT, p_rest TEXT)
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF p_mark !~ ('^[0-9]{1,16}\.' || replace(p_rest, 'UUID', '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}') || '$') THEN
        RAISE EXCEPTION 'after must be the "next" of an earlier page' USING ERRCODE = 'QB001';
    END IF;
    RETURN 'epoch'::TIMESTAMPTZ + split_part(p_mark, '.', 1)::BIGINT * INTERVAL '1 microsecond';
END
$$;

-- The rest of a mark.
CREATE OR REPLACE FUNCTION queen.page_mark_rest_v1(p_mark TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT substr(p_mark, strpos(p_mark, '.') + 1)
$$;

-- 3. Dead letters, messages and traces ----------------------------------------

-- Dead letters of one tenant, newest first. Filter keys, all optional: queue,
-- consumerGroup, partition (exact), from, to (failed_at, inclusive), limit
-- (100), offset (0), after (a mark), _tenant. An empty text does not filter. A page
-- ends early when its rows exceed page_bytes_v1.
CREATE OR REPLACE FUNCTION queen.get_dlq_messages_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_group     TEXT := NULLIF(p_filters ->> 'consumerGroup', '');
    v_partition TEXT := NULLIF(p_filters ->> 'partition', '');
    v_since     TIMESTAMPTZ := NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ;
    v_until     TIMESTAMPTZ := NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ;
    v_limit     BIGINT := greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 100), 0);
    v_offset    BIGINT := greatest(COALESCE((p_filters ->> 'offset')::BIGINT, 0), 0);
    v_after     TEXT := NULLIF(p_filters ->> 'after', '');
    v_mark_at   TIMESTAMPTZ := queen.page_mark_at_v1(v_after, 'UUID');
    v_mark_id   UUID := queen.page_mark_rest_v1(v_after);
    v_bytes     BIGINT := queen.page_bytes_v1();
    v_size      BIGINT := 0;
    v_ids       UUID[];
    v_marks     TEXT[];
    v_fits      BIGINT;
    v_letter    RECORD;
    v_row       JSONB;
    v_rows      JSONB[];
BEGIN
    -- Which rows, and how many of them may fit, without reading a payload.
    SELECT array_agg(x.id ORDER BY x.failed_at DESC, x.id DESC),
           array_agg(queen.page_mark_v1(x.failed_at, x.id::TEXT) ORDER BY x.failed_at DESC, x.id DESC),
           count(*) FILTER (WHERE x.n = 1 OR x.sum <= v_bytes)
    INTO v_ids, v_marks, v_fits
    FROM (
        SELECT m.id, m.failed_at, row_number() OVER w AS n, sum(m.size) OVER w AS sum
        FROM (
            SELECT d.id, d.failed_at, COALESCE(pg_column_size(d.payload), 0) AS size
            FROM queen.queues AS q
            JOIN queen.log_partitions AS p ON p.queue_id = q.id
            JOIN queen.log_dlq AS d ON d.partition_id = p.id
            WHERE q.tenant_id = v_tenant
              AND (v_queue IS NULL OR q.name = v_queue)
              AND (v_partition IS NULL OR p.name = v_partition)
              AND (v_group IS NULL OR d.consumer_group = v_group)
              AND (v_since IS NULL OR d.failed_at >= v_since)
              AND (v_until IS NULL OR d.failed_at <= v_until)
              AND (v_after IS NULL OR (d.failed_at, d.id) < (v_mark_at, v_mark_id))
            ORDER BY d.failed_at DESC, d.id DESC
            LIMIT v_limit + 1 OFFSET v_offset
        ) AS m
        WINDOW w AS (ORDER BY m.failed_at DESC, m.id DESC)
    ) AS x;
    v_fits := least(v_fits, v_limit);

    -- Stored payloads are compressed: what a row takes shows when it is unpacked, one at
    -- a time until the page is full.
    FOR v_letter IN
        SELECT d.id, d.transaction_id, d.partition_id, q.name AS queue, p.name AS lane, d.consumer_group, d.error,
               COALESCE(d.retry_count, q.retry_limit, 3) AS retries, d.payload, d.failed_at
        FROM unnest(v_ids[:v_fits::INT]) WITH ORDINALITY AS u (id, ord)
        JOIN queen.log_dlq AS d ON d.id = u.id
        JOIN queen.log_partitions AS p ON p.id = d.partition_id
        JOIN queen.queues AS q ON q.id = p.queue_id
        ORDER BY u.ord
    LOOP
        v_row := jsonb_build_object(
            'id', v_letter.id,
            'transactionId', v_letter.transaction_id,
            'partitionId', v_letter.partition_id,
            'queue', v_letter.queue,
            'partition', v_letter.lane,
            'consumerGroup', v_letter.consumer_group,
            'errorMessage', v_letter.error,
            'retryCount', v_letter.retries,
            'data', v_letter.payload,
            'producerSub', NULL,
            'createdAt', queen.iso_ms_v1(v_letter.failed_at),
            'failedAt', queen.iso_ms_v1(v_letter.failed_at));
        v_size := v_size + pg_column_size(v_row);
        EXIT WHEN v_size > v_bytes AND v_rows IS NOT NULL;
        v_rows := v_rows || v_row;
    END LOOP;
    v_fits := COALESCE(cardinality(v_rows), 0);
    -- The row that was read in excess says whether there is a next page.
    IF cardinality(v_ids) > v_fits THEN
        v_rows := v_rows || 'null'::JSONB;
    END IF;
    RETURN queen.page_v1('messages', v_rows, v_marks, v_fits) || jsonb_build_object(
        'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset),
        'total', COALESCE(v_fits, 0));
END
$$;

-- Messages of one tenant, newest first: by created_at, then by offset. Filter keys, all
-- optional: queue, partition, namespace, task (exact), status, from (an hour ago,
-- inclusive), to (now; the whole of its minute), limit (200), offset (0), after (a
-- mark), _tenant. An empty text does not filter. The broker adds what is in the
-- segments. A message whose sidecar row is purged is not listed.
CREATE OR REPLACE FUNCTION queen.list_messages_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_partition TEXT := NULLIF(p_filters ->> 'partition', '');
    v_namespace TEXT := NULLIF(p_filters ->> 'namespace', '');
    v_task      TEXT := NULLIF(p_filters ->> 'task', '');
    v_status    TEXT := NULLIF(p_filters ->> 'status', '');
    v_since     TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ, now() - INTERVAL '1 hour');
    v_until     TIMESTAMPTZ := date_trunc('minute', COALESCE(NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ, now())) + INTERVAL '1 minute';
    v_limit     BIGINT := greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 200), 0);
    v_offset    BIGINT := greatest(COALESCE((p_filters ->> 'offset')::BIGINT, 0), 0);
    v_after     TEXT := NULLIF(p_filters ->> 'after', '');
    v_mark_at   TIMESTAMPTZ := queen.page_mark_at_v1(v_after, '[0-9]{1,18}\.UUID');
    v_mark      TEXT := queen.page_mark_rest_v1(v_after);
    v_mark_off  BIGINT := split_part(v_mark, '.', 1);
    v_mark_pid  UUID := split_part(v_mark, '.', 2);
    v_want      BIGINT := v_offset + v_limit + 1;
    v_queues    UUID[];
    v_lanes     UUID[];
    v_rows      JSONB[];
    v_marks     TEXT[];
BEGIN
    SELECT array_agg(q.id) INTO v_queues
    FROM queen.queues AS q
    WHERE q.tenant_id = v_tenant
      AND (v_queue IS NULL OR q.name = v_queue)
      AND (v_namespace IS NULL OR q.namespace = v_namespace)
      AND (v_task IS NULL OR q.task = v_task);

    WITH found AS (
        SELECT * FROM queen.log_browse_v1(v_queues, v_partition, v_status, v_since, v_until, v_mark_at, v_mark_off, v_mark_pid, v_want)
        WHERE v_status IS DISTINCT FROM 'dead_letter'
        UNION ALL
        SELECT * FROM queen.log_browse_dead_v1(v_queues, v_partition, v_since, v_until, 65536)
        WHERE v_status = 'dead_letter'
          AND (v_after IS NULL OR (r_at, r_high, r_pid) < (v_mark_at, v_mark_off, v_mark_pid))
    ), page AS MATERIALIZED (
        SELECT f.r_pid AS pid, f.r_base AS base, o.off, f.r_at AS at
        FROM found AS f
        CROSS JOIN LATERAL generate_series(f.r_low, f.r_high) AS o (off)
        WHERE v_status IS NULL OR v_status = 'dead_letter' OR NOT EXISTS (
            SELECT FROM queen.log_dlq AS d WHERE d.partition_id = f.r_pid AND d."offset" = o.off)
        ORDER BY f.r_at DESC, o.off DESC, f.r_pid DESC
        LIMIT v_limit + 1 OFFSET v_offset
    ), lanes AS MATERIALIZED (
        SELECT p.id, q.name AS queue, p.name AS lane, q.namespace, q.task, q.priority, g.*
        FROM (SELECT DISTINCT x.pid FROM page AS x) AS x
        JOIN queen.log_partitions AS p ON p.id = x.pid
        JOIN queen.queues AS q ON q.id = p.queue_id
        CROSS JOIN LATERAL queen.log_lane_progress_v1(p.id) AS g
    ), entries AS (
        SELECT m.pid, m.base, m.off, m.at, l.*, encode(substring(t.hashes FROM (m.off - m.base)::INT * 16 + 1 FOR 16), 'hex') AS hash,
               queen.log_message_status_v1(EXISTS (
                   SELECT FROM queen.log_dlq AS d WHERE d.partition_id = m.pid AND d."offset" = m.off
               ), l.r_done, l.r_leased, m.off) AS status,
               (SELECT count(*) FROM queen.log_consumers AS c
                WHERE c.partition_id = m.pid AND c.consumer_group <> '__QUEUE_MODE__' AND c.committed >= m.off) AS consumed
        FROM page AS m
        JOIN lanes AS l ON l.id = m.pid
        JOIN queen.log_txns AS t ON t.partition_id = m.pid AND t.base_offset = m.base
    )
    SELECT array_agg(jsonb_build_object(
               'id', NULL, 'transactionId', NULL, 'txnHash', e.hash, 'partitionId', e.pid,
               'queuePath', e.queue || '/' || e.lane, 'queue', e.queue, 'partition', e.lane,
               'namespace', COALESCE(e.namespace, ''), 'task', COALESCE(e.task, ''), 'queuePriority', COALESCE(e.priority, 0),
               'status', e.status, 'queueStatus', e.status,
               'busStatus', jsonb_build_object('consumedBy', e.consumed, 'totalGroups', e.r_named),
               'traceId', NULL, 'producerSub', NULL, 'payloadAvailable', FALSE,
               'segment', jsonb_build_object('seq', e.base, 'frameIdx', e.off - e.base),
               'createdAt', queen.iso_ms_v1(e.at), 'leaseExpiresAt', queen.iso_ms_v1(e.r_lease)
           ) ORDER BY e.at DESC, e.off DESC, e.pid DESC),
           array_agg(queen.page_mark_v1(e.at, e.off || '.' || e.pid) ORDER BY e.at DESC, e.off DESC, e.pid DESC),
           array_agg(DISTINCT e.pid)
    INTO v_rows, v_marks, v_lanes
    FROM entries AS e;
    RETURN queen.page_v1('messages', v_rows, v_marks, v_limit) || jsonb_build_object(
        'mode', queen.log_mode_v1(v_lanes), 'total', least(COALESCE(cardinality(v_rows), 0), v_limit));
END
$$;

-- Records what a consumer has to tell about a message, which need not exist. Keys:
-- transactionId, partitionId, consumerGroup (__QUEUE_MODE__), eventType (info), data
-- ({}), workerId, traceNames (texts; a name that is repeated counts once), _tenant. A
-- partition of another tenant is refused.
CREATE OR REPLACE FUNCTION queen.record_trace_v1(p_data JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_partition UUID := (p_data ->> 'partitionId')::UUID;
    v_id        UUID;
BEGIN
    IF p_data ->> '_tenant' IS NOT NULL AND EXISTS (
        SELECT FROM queen.log_partitions AS p
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE p.id = v_partition AND q.tenant_id <> (p_data ->> '_tenant')::UUID
    ) THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Message not found');
    END IF;
    INSERT INTO queen.message_traces (partition_id, transaction_id, consumer_group, event_type, data, worker_id)
    VALUES (v_partition, p_data ->> 'transactionId', COALESCE(p_data ->> 'consumerGroup', '__QUEUE_MODE__'),
        COALESCE(p_data ->> 'eventType', 'info'), COALESCE(p_data -> 'data', '{}'), p_data ->> 'workerId')
    RETURNING id INTO v_id;
    INSERT INTO queen.message_trace_names (trace_id, trace_name)
    SELECT v_id, n.name
    FROM jsonb_array_elements_text(CASE jsonb_typeof(p_data -> 'traceNames') WHEN 'array' THEN p_data -> 'traceNames' ELSE '[]' END) AS n (name)
    ON CONFLICT DO NOTHING;
    RETURN jsonb_build_object('success', TRUE, 'traceId', v_id);
END
$$;
