-- Statistics by watermark arithmetic: no message is counted. First the arithmetic,
-- in one place; then the reconciler, which keeps queen.stats; then the live readers.
--
-- Locks. The readers take none beyond those of a SELECT. The reconciler reads
-- without locks and then writes rows of queen.stats ascending by queue id, then
-- the rollups (018_stats). It waits for no row of a queue: a stats row that somebody holds,
-- which is a deletion of its queue, and a new queue that is being deleted are left
-- out (SKIP LOCKED). The KEY SHARE lock that the foreign key needs is taken before
-- a first stats row is inserted, so that a queue deleted meanwhile is a row less
-- and no error. A deletion waits for the rest of the refresh at most.
--
-- Transaction lock 737002 makes the reconciler one among all replicas. The request
-- of an operator, log_refresh_all_stats_v1, does not ask for it: beside a refresh
-- that is writing it leaves out the rows which that one writes.
--
-- Re-applying is safe: CREATE OR REPLACE only.
--
-- Cost, by the clock (PostgreSQL 15, two cores, otherwise idle, everything cached,
-- 100,000 partitions of ten segments, three groups each, least of twelve):
--
--                                                    refresh   longest statement
--   100 queues, all consumed                          285 ms              140 ms
--   the same, nothing consumed                        302 ms              148 ms
--   the same, one group half-way, ages spread         470 ms              230 ms
--   the same, watermarks tell nothing                 420 ms              207 ms
--   10,000 queues, all consumed                       593 ms              162 ms
--
-- Of the first line 280 ms are the two pages that read; the rows of a hundred queues
-- and the rollups take 2 ms each. Measuring 1,000,000 segments takes 102 steps of 14 ms.

-- Creation time of the segment that holds an offset, or of the next one when the
-- offset fell into a retention gap; NULL when there is none. Two bounded key
-- probes; the test of coverage stands outside the single-row pick. A single SELECT,
-- so that the planner inlines it where it stands in FROM.
CREATE OR REPLACE FUNCTION queen.log_pending_since_v1(p_pid UUID, p_wanted BIGINT)
RETURNS TABLE (r_at TIMESTAMPTZ)
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

-- The same as a value.
CREATE OR REPLACE FUNCTION queen.log_oldest_pending_at_v1(p_pid UUID, p_wanted BIGINT)
RETURNS TIMESTAMPTZ
LANGUAGE sql STABLE
AS $$
    SELECT o.r_at FROM queen.log_pending_since_v1(p_pid, p_wanted) AS o
$$;

-- The cursors of every partition that has any: the slowest one, and what live leases
-- hold. Named groups come first: a forgotten pop without a group must not pin what is
-- pending. Inlined like a view, so that the caller's condition on the partition
-- chooses what is read. For one partition it has to stand in a subquery with
-- OFFSET 0: otherwise it becomes a join with the figures of all.
CREATE OR REPLACE FUNCTION queen.log_cursor_figures_v1()
RETURNS TABLE (r_partition_id UUID, r_slowest BIGINT, r_leased NUMERIC)
LANGUAGE sql STABLE
AS $$
    SELECT k.partition_id,
           COALESCE(min(k.committed) FILTER (WHERE k.consumer_group <> '__QUEUE_MODE__'), min(k.committed)),
           sum(greatest(k.batch_end - k.committed, 0)) FILTER (WHERE k.lease_expires_at > now())
    FROM queen.log_consumers AS k
    GROUP BY k.partition_id
$$;

-- The arithmetic of one partition: the next offset its slowest cursor wants (NULL:
-- there is no cursor, so the first), what is retained, and what is pending.
CREATE OR REPLACE FUNCTION queen.log_lane_figures_v1(p_log_start BIGINT, p_last_offset BIGINT, p_slowest BIGINT)
RETURNS TABLE (r_wanted BIGINT, r_total BIGINT, r_pending BIGINT)
LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(COALESCE(p_slowest, -1) + 1, p_log_start),
           greatest(p_last_offset - p_log_start + 1, 0),
           greatest(p_last_offset - greatest(COALESCE(p_slowest, -1), p_log_start - 1), 0)
$$;

-- The arithmetic of completed messages, of a partition or of a queue.
CREATE OR REPLACE FUNCTION queen.log_completed_v1(p_total BIGINT, p_pending BIGINT, p_dead_letter BIGINT)
RETURNS BIGINT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(p_total - p_pending - p_dead_letter, 0)
$$;

-- The figures of every partition of one queue.
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
    SELECT p.id, p.name, p.created_at, w.r_wanted, w.r_total, w.r_pending,
           least(COALESCE(c.r_leased, 0), w.r_pending)::BIGINT,
           queen.log_completed_v1(w.r_total, w.r_pending, d.n), d.n
    FROM queen.log_partitions AS p
    LEFT JOIN LATERAL (
        SELECT k.r_slowest, k.r_leased FROM queen.log_cursor_figures_v1() AS k WHERE k.r_partition_id = p.id OFFSET 0
    ) AS c ON TRUE
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM queen.log_dlq AS x WHERE x.partition_id = p.id) AS d
    CROSS JOIN LATERAL queen.log_lane_figures_v1(p.log_start, p.last_offset, c.r_slowest) AS w
    WHERE p.queue_id = p_queue_id
$$;

-- The oldest of what is pending in some partitions, given as aligned arrays: the next
-- offset wanted, and a lower bound of its age. p_known is the oldest one that is known
-- without looking. The sixteen lowest bounds are looked up, then those that are still
-- below what was found, 1000 at most. A single SELECT, so that the planner inlines it.
CREATE OR REPLACE FUNCTION queen.log_oldest_of_v1(
    p_ids UUID[], p_wanted BIGINT[], p_bounds TIMESTAMPTZ[], p_known TIMESTAMPTZ)
RETURNS TABLE (r_at TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT least(p_known, w.oldest, o.oldest)
    FROM (
        SELECT min(t.r_at) AS oldest
        FROM (
            SELECT u.id, u.wanted
            FROM unnest(p_ids, p_wanted, p_bounds) AS u (id, wanted, bound)
            WHERE u.bound < COALESCE(p_known, 'infinity')
            ORDER BY u.bound
            LIMIT 16
        ) AS u
        CROSS JOIN LATERAL queen.log_pending_since_v1(u.id, u.wanted) AS t
    ) AS w
    CROSS JOIN LATERAL (
        SELECT min(t.r_at) AS oldest
        FROM (
            SELECT u.id, u.wanted
            FROM unnest(p_ids, p_wanted, p_bounds) AS u (id, wanted, bound)
            WHERE u.bound < COALESCE(least(p_known, w.oldest), 'infinity')
            ORDER BY u.bound
            LIMIT 1000
        ) AS u
        CROSS JOIN LATERAL queen.log_pending_since_v1(u.id, u.wanted) AS t
    ) AS o
$$;

-- Sums of one page of partitions, p_limit at most, ascending by id from p_first:
-- one row per queue that has any there. r_next is where the next page begins,
-- NULL on the last one. A partition is in one page and never in two: ids do not
-- change, whatever is pushed or deleted between the pages.
--
-- What is oldest. A partition of which nothing was consumed has been waiting since
-- its watermark oldest_live_at, and no segment is read. Where a part was
-- consumed the watermark is a lower bound only: see log_oldest_of_v1. A queue with more of them on a page, which keeps consumed messages in thousands of
-- partitions and lags in all of them, so may have a message that waits for longer
-- than its figure says: looking them all up took 0.5 s for 100,000 partitions. Without
-- a watermark (a database that was just upgraded) the segment is looked up.
--
-- Plans are made for each call: a page that is a large part of the tables is scanned and
-- summed up in a hash table, in half the time that walking their indexes takes,
-- and a small part is not. A nested loop over thousands of queues is never right.
CREATE OR REPLACE FUNCTION queen.log_stats_page_v1(p_first UUID, p_limit INTEGER)
RETURNS TABLE (
    r_queue       UUID,
    r_partitions  BIGINT,
    r_total       BIGINT,
    r_pending     BIGINT,
    r_leased      BIGINT,
    r_dead_letter BIGINT,
    r_oldest      TIMESTAMPTZ,
    r_next        UUID
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off
SET work_mem = '32MB'
SET max_parallel_workers_per_gather = 0
SET jit = off
AS $$
DECLARE
    v_ends UUID[];
    v_last UUID;
BEGIN
    -- The last one of this page and the first one of the next.
    SELECT array_agg(e.id ORDER BY e.id) INTO v_ends
    FROM (
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.id >= p_first
        ORDER BY p.id
        OFFSET p_limit - 1 LIMIT 2
    ) AS e;
    v_last := COALESCE(v_ends[1], 'ffffffff-ffff-ffff-ffff-ffffffffffff');

    RETURN QUERY
    SELECT s.queue_id, s.partitions, s.total::BIGINT, s.pending::BIGINT, COALESCE(s.leased, 0)::BIGINT,
           COALESCE(s.dead_letter, 0)::BIGINT, o.r_at, v_ends[2]
    FROM (
        SELECT l.queue_id, count(*) AS partitions, sum(l.total) AS total, sum(l.pending) AS pending,
               sum(l.leased) AS leased, sum(l.dead_letter) AS dead_letter,
               min(l.bound) FILTER (WHERE l.pending > 0 AND l.exact) AS oldest,
               array_agg(l.id) FILTER (WHERE l.pending > 0 AND NOT l.exact) AS ids,
               array_agg(l.wanted) FILTER (WHERE l.pending > 0 AND NOT l.exact) AS wanted,
               array_agg(l.bound) FILTER (WHERE l.pending > 0 AND NOT l.exact) AS bounds
        FROM (
            SELECT p.id, p.queue_id, COALESCE(p.oldest_live_at, '-infinity') AS bound,
                   c.r_leased AS leased, d.n AS dead_letter, f.r_wanted AS wanted, f.r_total AS total, f.r_pending AS pending,
                   p.oldest_live_at IS NOT NULL AND f.r_wanted = p.log_start AS exact
            FROM queen.log_partitions AS p
            LEFT JOIN (
                SELECT k.* FROM queen.log_cursor_figures_v1() AS k
                WHERE k.r_partition_id >= p_first AND k.r_partition_id <= v_last
            ) AS c ON c.r_partition_id = p.id
            LEFT JOIN (
                SELECT x.partition_id, count(*) AS n
                FROM queen.log_dlq AS x
                WHERE x.partition_id >= p_first AND x.partition_id <= v_last
                GROUP BY x.partition_id
            ) AS d ON d.partition_id = p.id
            CROSS JOIN LATERAL queen.log_lane_figures_v1(p.log_start, p.last_offset, c.r_slowest) AS f
            WHERE p.id >= p_first AND p.id <= v_last
        ) AS l
        GROUP BY l.queue_id
    ) AS s
    CROSS JOIN LATERAL queen.log_oldest_of_v1(s.ids, s.wanted, s.bounds, s.oldest) AS o;
END
$$;

-- The reconciled figures of one queue, no row before its first refresh. OFFSET 0 keeps
-- the look-up by the whole key from becoming a join.
CREATE OR REPLACE FUNCTION queen.queue_figures_v1(p_queue UUID)
RETURNS SETOF queen.stats
LANGUAGE sql STABLE
AS $$
    SELECT s.*
    FROM queen.stats AS s
    WHERE s.stat_type = 'queue' AND s.stat_key = p_queue::TEXT AND s.consumer_group = '__QUEUE_MODE__'
    OFFSET 0
$$;

-- Ids of all queues, ascending.
CREATE OR REPLACE FUNCTION queen.log_stats_queues_v1()
RETURNS UUID[]
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(array_agg(q.id ORDER BY q.id), '{}') FROM queen.queues AS q
$$;

-- Those of the given queues whose stats row may be written, locked until the end of
-- the transaction: the rows that exist and, where p_create, the queues that have
-- none yet. Nobody is waited for.
--
-- Rows are looked up one by one in subqueries that cannot become a join: a plan made
-- while the table was small, or was not analysed yet, found them by the kind of row
-- alone and compared every queue with every other (10,000 queues: 20 s against 0.2 s).
CREATE OR REPLACE FUNCTION queen.log_stats_hold_v1(p_queues UUID[], p_create BOOLEAN)
RETURNS UUID[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_old     UUID[];
    v_missing UUID[];
    v_new     UUID[];
BEGIN
    SELECT COALESCE(array_agg(h.queue_id), '{}') INTO v_old
    FROM unnest(p_queues) AS u (id)
    CROSS JOIN LATERAL (
        SELECT s.queue_id FROM queen.stats AS s
        WHERE s.stat_type = 'queue' AND s.stat_key = u.id::TEXT AND s.consumer_group = '__QUEUE_MODE__'
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS h;
    IF NOT p_create THEN
        RETURN v_old;
    END IF;
    v_missing := ARRAY(
        SELECT u.id FROM unnest(p_queues) AS u (id)
        WHERE (SELECT s.queue_id FROM queen.queue_figures_v1(u.id) AS s) IS NULL);
    SELECT COALESCE(array_agg(h.id), '{}') INTO v_new
    FROM (
        SELECT q.id FROM queen.queues AS q
        WHERE q.id = ANY (v_missing)
        ORDER BY q.id
        FOR KEY SHARE SKIP LOCKED
    ) AS h;
    RETURN v_old || v_new;
END
$$;

-- Writes the figures of some queues, given as aligned arrays of what all pages said
-- of them, and returns how many were written. The values of the last refresh become
-- the previous ones; processing is capped at pending and completed floored at 0
-- per queue, not per partition. The retained bytes are not touched.
CREATE OR REPLACE FUNCTION queen.log_stats_write_v1(
    p_queues      UUID[],
    p_partitions  BIGINT[],
    p_total       BIGINT[],
    p_pending     BIGINT[],
    p_leased      BIGINT[],
    p_dead_letter BIGINT[],
    p_oldest      TIMESTAMPTZ[]
)
RETURNS INTEGER
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_held UUID[] := queen.log_stats_hold_v1(p_queues, TRUE);
    v_rows INTEGER;
BEGIN
    INSERT INTO queen.stats AS t (
        stat_type, stat_key, tenant_id, queue_id, namespace, task, child_count, total_messages, pending_messages,
        processing_messages, completed_messages, dead_letter_messages, avg_lag_seconds, max_lag_seconds,
        avg_offset_lag, max_offset_lag, oldest_pending_at, newest_message_at, last_computed_at)
    SELECT 'queue', q.id::TEXT, q.tenant_id, q.id, q.namespace, q.task, f.partitions, f.total, f.pending,
           least(f.leased, f.pending), queen.log_completed_v1(f.total, f.pending, f.dead_letter), f.dead_letter, g.seconds, g.seconds,
           f.pending, f.pending, f.oldest, NULL, now()
    FROM unnest(p_queues, p_partitions, p_total, p_pending, p_leased, p_dead_letter, p_oldest)
        AS f (queue, partitions, total, pending, leased, dead_letter, oldest)
    CROSS JOIN LATERAL (SELECT n.* FROM queen.queues AS n WHERE n.id = f.queue OFFSET 0) AS q
    CROSS JOIN LATERAL (
        SELECT COALESCE(greatest(floor(EXTRACT(EPOCH FROM now() - f.oldest)), 0), 0)::DOUBLE PRECISION AS seconds
    ) AS g
    WHERE f.queue = ANY (v_held)
    ORDER BY q.id
    ON CONFLICT (stat_type, stat_key, consumer_group) DO UPDATE SET
        namespace = EXCLUDED.namespace,
        task = EXCLUDED.task,
        child_count = EXCLUDED.child_count,
        total_messages = EXCLUDED.total_messages,
        pending_messages = EXCLUDED.pending_messages,
        processing_messages = EXCLUDED.processing_messages,
        completed_messages = EXCLUDED.completed_messages,
        dead_letter_messages = EXCLUDED.dead_letter_messages,
        avg_lag_seconds = EXCLUDED.avg_lag_seconds,
        max_lag_seconds = EXCLUDED.max_lag_seconds,
        avg_offset_lag = EXCLUDED.avg_offset_lag,
        max_offset_lag = EXCLUDED.max_offset_lag,
        oldest_pending_at = EXCLUDED.oldest_pending_at,
        newest_message_at = NULL,
        prev_total = t.total_messages,
        prev_completed = t.completed_messages,
        prev_at = t.last_computed_at,
        last_computed_at = EXCLUDED.last_computed_at;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$$;

-- The clock of one lane of the reconciler, in system_state: the milliseconds since its
-- last turn began, and until the next one is due, 0 or less when it is; no row before
-- the first, and none when the clock was set back behind it. A turn is due p_every
-- after the start of the last one, and not before twenty times its duration after its
-- end, so that the work never takes more than a twentieth of the time.
CREATE OR REPLACE FUNCTION queen.log_stats_clock_v1(p_lane TEXT, p_every BIGINT)
RETURNS TABLE (r_since BIGINT, r_wait BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT a.since, greatest(p_every, 21 * (c.value ->> 'elapsedMs')::BIGINT) - a.since
    FROM queen.system_state AS c
    CROSS JOIN LATERAL (
        SELECT floor(1000 * EXTRACT(EPOCH FROM clock_timestamp() - c.updated_at))::BIGINT AS since
    ) AS a
    WHERE c.key = p_lane AND a.since >= 0
$$;

-- Notes that a turn of the lane began with this transaction.
CREATE OR REPLACE FUNCTION queen.log_stats_began_v1(p_lane TEXT)
RETURNS VOID
LANGUAGE sql
AS $$
    INSERT INTO queen.system_state (key, value, updated_at)
    VALUES (p_lane, jsonb_build_object('elapsedMs', ceil(1000 * EXTRACT(EPOCH FROM clock_timestamp() - now()))), now())
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, updated_at = EXCLUDED.updated_at
$$;

-- Opens a transaction of the reconciler: bounds what is left of it, so that a
-- replica that is stopped or unreachable loses the lock, and tries the lock.
CREATE OR REPLACE FUNCTION queen.log_stats_lock_v1()
RETURNS BOOLEAN
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('statement_timeout', '5s', TRUE),
        set_config('idle_in_transaction_session_timeout', '5s', TRUE);
    RETURN pg_try_advisory_xact_lock(737002);
END
$$;

-- Closes a refresh: the rollups, and what it did. segPartitions counts what the pages
-- have seen.
CREATE OR REPLACE FUNCTION queen.log_stats_finish_v1(p_queues BIGINT, p_partitions BIGINT)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_rows JSONB := queen.log_stats_rollup_v1(p_partitions);
BEGIN
    RETURN jsonb_build_object('engine', 'segments', 'queuesUpdated', p_queues, 'segPartitions', p_partitions,
        'namespaces', COALESCE(v_rows -> 'namespace', '0'), 'tasks', COALESCE(v_rows -> 'task', '0'), 'system', v_rows -> 'system',
        'refreshedAt', queen.iso_ms_v1(now()));
END
$$;

-- The whole refresh in one call, for an operator who does not want to wait for the
-- reconciler. It does not ask for the lock and does not move the clock.
CREATE OR REPLACE FUNCTION queen.log_refresh_all_stats_v1()
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c_page       CONSTANT INTEGER := 50000; -- partitions
    c_write      CONSTANT INTEGER := 500;   -- queues
    v_first      UUID := '00000000-0000-0000-0000-000000000000';
    -- Every queue has a row, also one without partitions.
    v_queues     UUID[] := queen.log_stats_queues_v1();
    v_partitions BIGINT[] := array_fill(0::BIGINT, ARRAY[cardinality(v_queues)]);
    v_total      BIGINT[] := v_partitions;
    v_pending    BIGINT[] := v_partitions;
    v_leased     BIGINT[] := v_partitions;
    v_dead       BIGINT[] := v_partitions;
    v_oldest     TIMESTAMPTZ[] := array_fill(NULL::TIMESTAMPTZ, ARRAY[cardinality(v_queues)]);
    v_chunk      RECORD;
    v_rows       BIGINT := 0;
    v_seen       BIGINT := 0;
BEGIN
    LOOP
        SELECT v_queues || array_agg(s.r_queue), v_partitions || array_agg(s.r_partitions), v_total || array_agg(s.r_total),
               v_pending || array_agg(s.r_pending), v_leased || array_agg(s.r_leased), v_dead || array_agg(s.r_dead_letter),
               v_oldest || array_agg(s.r_oldest), (array_agg(s.r_next))[1], v_seen + COALESCE(sum(s.r_partitions), 0)
        INTO v_queues, v_partitions, v_total, v_pending, v_leased, v_dead, v_oldest, v_first, v_seen
        FROM queen.log_stats_page_v1(v_first, c_page) AS s;
        EXIT WHEN v_first IS NULL;
    END LOOP;

    FOR v_chunk IN
        SELECT array_agg(m.queue ORDER BY m.queue) AS queues, array_agg(m.partitions ORDER BY m.queue) AS partitions,
               array_agg(m.total ORDER BY m.queue) AS total, array_agg(m.pending ORDER BY m.queue) AS pending,
               array_agg(m.leased ORDER BY m.queue) AS leased, array_agg(m.dead ORDER BY m.queue) AS dead,
               array_agg(m.oldest ORDER BY m.queue) AS oldest
        FROM (
            SELECT u.queue, sum(u.partitions)::BIGINT AS partitions, sum(u.total)::BIGINT AS total,
                   sum(u.pending)::BIGINT AS pending, sum(u.leased)::BIGINT AS leased, sum(u.dead)::BIGINT AS dead,
                   min(u.oldest) AS oldest, (row_number() OVER (ORDER BY u.queue) - 1) / c_write AS chunk
            FROM unnest(v_queues, v_partitions, v_total, v_pending, v_leased, v_dead, v_oldest)
                AS u (queue, partitions, total, pending, leased, dead, oldest)
            GROUP BY u.queue
        ) AS m
        GROUP BY m.chunk
        ORDER BY m.chunk
    LOOP
        v_rows := v_rows + queen.log_stats_write_v1(v_chunk.queues, v_chunk.partitions, v_chunk.total,
            v_chunk.pending, v_chunk.leased, v_chunk.dead, v_chunk.oldest);
    END LOOP;
    RETURN queen.log_stats_finish_v1(v_rows, v_seen);
END
$$;

-- One page of segments, p_limit at most, in the order of their key behind (p_partition,
-- p_base): how many of them each queue has, and their bytes as stored. Large blobs
-- are not read for that, their length stands in the row. r_partition and r_base
-- are the last key of the page, NULL when it reached the end.
CREATE OR REPLACE FUNCTION queen.log_stats_bytes_page_v1(p_partition UUID, p_base BIGINT, p_limit INTEGER)
RETURNS TABLE (r_queue UUID, r_segments BIGINT, r_bytes BIGINT, r_partition UUID, r_base BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT s.partition_id, s.base_offset, octet_length(s.blob) AS bytes
        FROM queen.log_segments AS s
        WHERE (s.partition_id, s.base_offset) > (p_partition, p_base)
        ORDER BY s.partition_id, s.base_offset
        LIMIT p_limit
    ),
    last AS (
        SELECT g.partition_id, g.base_offset
        FROM page AS g
        WHERE (SELECT count(*) FROM page) = p_limit
        ORDER BY g.partition_id DESC, g.base_offset DESC
        LIMIT 1
    )
    SELECT p.queue_id, sum(n.segments)::BIGINT, sum(n.bytes)::BIGINT, l.partition_id, l.base_offset
    FROM (
        SELECT g.partition_id, count(*) AS segments, sum(g.bytes) AS bytes
        FROM page AS g
        GROUP BY g.partition_id
    ) AS n
    JOIN queen.log_partitions AS p ON p.id = n.partition_id
    LEFT JOIN last AS l ON TRUE
    GROUP BY p.queue_id, l.partition_id, l.base_offset;
END
$$;

-- Writes the retained bytes and segments of some queues into the rows that a refresh
-- made, and nothing else; returns how many.
CREATE OR REPLACE FUNCTION queen.log_stats_bytes_write_v1(p_queues UUID[], p_segments BIGINT[], p_bytes BIGINT[])
RETURNS INTEGER
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_held UUID[] := queen.log_stats_hold_v1(p_queues, FALSE);
    v_rows INTEGER;
BEGIN
    -- The rows exist, so that none is inserted: the conflict finds them by their key.
    INSERT INTO queen.stats (stat_type, stat_key, segment_count, retained_bytes, retained_bytes_at)
    SELECT 'queue', f.queue::TEXT, f.segments, f.bytes, now()
    FROM unnest(p_queues, p_segments, p_bytes) AS f (queue, segments, bytes)
    WHERE f.queue = ANY (v_held)
    ON CONFLICT (stat_type, stat_key, consumer_group) DO UPDATE SET
        segment_count = EXCLUDED.segment_count,
        retained_bytes = EXCLUDED.retained_bytes,
        retained_bytes_at = EXCLUDED.retained_bytes_at;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
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

-- Live partitions and retained messages of the queues of a tenant; a queue without
-- partitions has no row.
CREATE OR REPLACE FUNCTION queen.log_queue_lanes_all_v1(p_tenant UUID)
RETURNS TABLE (r_queue UUID, r_partitions BIGINT, r_messages BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT p.queue_id, count(*), sum(greatest(p.last_offset - p.log_start + 1, 0))::BIGINT
    FROM queen.queues AS q
    JOIN queen.log_partitions AS p ON p.queue_id = q.id
    WHERE q.tenant_id = p_tenant
    GROUP BY p.queue_id
$$;

-- Live segments of the queues of a tenant, likewise. Every segment is counted once, by
-- the index alone: 0.2 s for a million of them.
CREATE OR REPLACE FUNCTION queen.log_queue_segments_all_v1(p_tenant UUID)
RETURNS TABLE (r_queue UUID, r_segments BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT p.queue_id, sum(s.n)::BIGINT
    FROM (SELECT g.partition_id, count(*) AS n FROM queen.log_segments AS g GROUP BY g.partition_id) AS s
    JOIN queen.log_partitions AS p ON p.id = s.partition_id
    JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE q.tenant_id = p_tenant
    GROUP BY p.queue_id
$$;

-- The same for every queue of a tenant. Segments are counted per partition
-- before the join: afterwards each would multiply its partition's messages.
CREATE OR REPLACE FUNCTION queen.log_queue_stats_all_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (queue_name TEXT, partitions BIGINT, segments BIGINT, messages BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT q.name::TEXT, COALESCE(l.r_partitions, 0), COALESCE(s.r_segments, 0), COALESCE(l.r_messages, 0)
    FROM queen.queues AS q
    LEFT JOIN queen.log_queue_lanes_all_v1(p_tenant) AS l ON l.r_queue = q.id
    LEFT JOIN queen.log_queue_segments_all_v1(p_tenant) AS s ON s.r_queue = q.id
    WHERE q.tenant_id = p_tenant
$$;

-- The queue list of a tenant, by name. Partitions and messages are live; pending,
-- processing and the retained bytes are the reconciler's last figures, 0 before its
-- first. Segments are live while the index of all of them takes no more than 16 MB, about
-- 300,000 of them, and the last measured figure above. With p_cached nothing is live.
-- Beside the queues stands what the tenant's keys and timers occupy, by the last usage
-- rollup. In PL/pgSQL, since that table comes with a later file.
--
-- Plans are made for each call: a tenant that has most of the partitions is summed up in
-- a hash table, and a small one by its indexes.
BEGIN;
DROP FUNCTION IF EXISTS queen.list_queues_v1(UUID);
CREATE OR REPLACE FUNCTION queen.list_queues_v1(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001',
    p_cached BOOLEAN DEFAULT FALSE
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
DECLARE
    c_live_bytes CONSTANT BIGINT := 16777216;
    v_segments   BOOLEAN := NOT p_cached AND pg_relation_size('queen.log_segments_pkey') <= c_live_bytes;
    v_queues     JSONB;
    v_usage      JSONB;
BEGIN
    WITH lanes AS MATERIALIZED (
        SELECT l.* FROM queen.log_queue_lanes_all_v1(p_tenant) AS l WHERE NOT p_cached
    ), segments AS MATERIALIZED (
        SELECT s.* FROM queen.log_queue_segments_all_v1(p_tenant) AS s WHERE v_segments
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id,
               'name', q.name,
               'namespace', COALESCE(q.namespace, ''),
               'task', COALESCE(q.task, ''),
               'createdAt', queen.iso_ms_v1(q.created_at),
               'partitions', f.partitions,
               'retainedBytes', COALESCE(s.retained_bytes, 0),
               'segments', jsonb_build_object('segments', f.segments, 'messages', f.messages),
               'messages', jsonb_build_object('total', f.messages,
                   'pending', COALESCE(s.pending_messages, 0), 'processing', COALESCE(s.processing_messages, 0))
           ) ORDER BY q.name COLLATE "C"), '[]')
    INTO v_queues
    FROM queen.queues AS q
    LEFT JOIN lanes AS l ON l.r_queue = q.id
    LEFT JOIN segments AS g ON g.r_queue = q.id
    LEFT JOIN LATERAL queen.queue_figures_v1(q.id) AS s ON TRUE
    CROSS JOIN LATERAL (
        SELECT COALESCE(CASE WHEN p_cached THEN s.child_count ELSE l.r_partitions END, 0) AS partitions,
               COALESCE(CASE WHEN p_cached THEN s.total_messages ELSE l.r_messages END, 0) AS messages,
               COALESCE(CASE WHEN v_segments THEN g.r_segments ELSE s.segment_count END, 0) AS segments
    ) AS f
    WHERE q.tenant_id = p_tenant;

    SELECT jsonb_build_object('kvRows', u.kv_rows, 'kvBytes', u.kv_bytes, 'timerBytes', u.timer_bytes)
    INTO v_usage
    FROM queen.kv_usage AS u
    WHERE u.tenant_id = p_tenant;
    RETURN COALESCE(v_usage, '{"kvRows": 0, "kvBytes": 0, "timerBytes": 0}') || jsonb_build_object('queues', v_queues);
END
$$;
COMMIT;

-- Six figures as a document. "failed" is null, not 0: nothing counts failures per
-- partition.
CREATE OR REPLACE FUNCTION queen.six_figures_v1(
    p_total BIGINT, p_pending BIGINT, p_processing BIGINT, p_completed BIGINT, p_dead_letter BIGINT
)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('total', p_total, 'pending', p_pending, 'processing', p_processing,
        'completed', p_completed, 'failed', NULL, 'deadLetter', p_dead_letter)
$$;

-- What the details of a queue show: its partitions by name, and the sums of all of them.
-- At most 10,000 partitions are listed, so that an answer stays within 5 MB; r_more
-- says that there are others. p_activity adds what the groups have done.
CREATE OR REPLACE FUNCTION queen.queue_partitions_v1(p_queue UUID, p_activity BOOLEAN)
RETURNS TABLE (r_partitions JSONB, r_totals JSONB, r_more BOOLEAN)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    c_shown CONSTANT INTEGER := 10000;
BEGIN
    RETURN QUERY
    WITH lanes AS MATERIALIZED (
        SELECT s.* FROM queen.log_partition_stats_v1(p_queue) AS s
    ), shown AS (
        SELECT l.*, queen.six_figures_v1(l.r_total, l.r_pending, l.r_processing, l.r_completed, l.r_dead_letter) AS stats
        FROM lanes AS l
        ORDER BY l.r_name COLLATE "C"
        LIMIT c_shown
    )
    SELECT (
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'id', s.r_id,
                   'name', s.r_name,
                   'createdAt', queen.iso_ms_v1(s.r_created_at),
                   'stats', s.stats,
                   'oldestMessage', queen.iso_ms_v1(o.r_at),
                   'newestMessage', (
                       SELECT queen.iso_ms_v1(g.created_at)
                       FROM queen.log_segments AS g
                       WHERE g.partition_id = s.r_id
                       ORDER BY g.base_offset DESC
                       LIMIT 1)
               ) || CASE WHEN p_activity THEN (
                   SELECT jsonb_build_object(
                       'messages', s.stats,
                       'cursor', jsonb_build_object('totalConsumed', COALESCE(sum(k.total_consumed), 0), 'batchesConsumed', 0),
                       'lastActivity', queen.iso_ms_v1(max(k.lease_acquired_at)))
                   FROM queen.log_consumers AS k
                   WHERE k.partition_id = s.r_id
               ) ELSE '{}' END ORDER BY s.r_name COLLATE "C"), '[]')
        FROM shown AS s
        LEFT JOIN LATERAL queen.log_pending_since_v1(s.r_id, s.r_wanted) AS o ON s.r_pending > 0
    ), queen.six_figures_v1(
        COALESCE(sum(l.r_total), 0)::BIGINT, COALESCE(sum(l.r_pending), 0)::BIGINT, COALESCE(sum(l.r_processing), 0)::BIGINT,
        COALESCE(sum(l.r_completed), 0)::BIGINT, COALESCE(sum(l.r_dead_letter), 0)::BIGINT
    ), count(*) > c_shown
    FROM lanes AS l;
END
$$;

-- One queue with its options and partitions, by watermark arithmetic.
-- partitionsTruncated is there only when it has more partitions than are listed.
CREATE OR REPLACE FUNCTION queen.get_queue_v2(
    p_queue_name TEXT,
    p_tenant     UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_queue    queen.queues;
    v_lanes    RECORD;
    v_segments JSONB;
    v_bytes    BIGINT;
BEGIN
    SELECT q.* INTO v_queue
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue_name;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;

    SELECT l.* INTO v_lanes FROM queen.queue_partitions_v1(v_queue.id, FALSE) AS l;
    SELECT jsonb_build_object('segments', m.segments, 'messages', m.messages) INTO v_segments
    FROM queen.log_queue_message_stats_v1(p_queue_name, p_tenant) AS m;
    SELECT s.retained_bytes INTO v_bytes FROM queen.queue_figures_v1(v_queue.id) AS s;

    RETURN jsonb_build_object(
        'id', v_queue.id,
        'name', v_queue.name,
        'namespace', COALESCE(v_queue.namespace, ''),
        'task', COALESCE(v_queue.task, ''),
        'createdAt', queen.iso_ms_v1(v_queue.created_at),
        'priority', COALESCE(v_queue.priority, 0),
        'options', queen.queue_options_v1(v_queue),
        'storage', 'segments',
        'partitions', v_lanes.r_partitions,
        'totals', v_lanes.r_totals,
        'retainedBytes', COALESCE(v_bytes, 0),
        'segments', v_segments
    ) || CASE WHEN v_lanes.r_more THEN '{"partitionsTruncated": true}' ELSE '{}' END::JSONB;
END
$$;

-- The same queue as an operator looks at it: six of its settings, and what the groups
-- have done to its partitions. encryptionActive is whether payloads are being encrypted,
-- which nobody does so far.
CREATE OR REPLACE FUNCTION queen.get_queue_detail_v2(
    p_queue_name TEXT,
    p_tenant     UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_queue queen.queues;
    v_lanes RECORD;
BEGIN
    SELECT q.* INTO v_queue
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue_name;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;
    SELECT l.* INTO v_lanes FROM queen.queue_partitions_v1(v_queue.id, TRUE) AS l;
    RETURN jsonb_build_object(
        'queue', jsonb_build_object(
            'id', v_queue.id,
            'name', v_queue.name,
            'namespace', COALESCE(v_queue.namespace, ''),
            'task', COALESCE(v_queue.task, ''),
            'priority', COALESCE(v_queue.priority, 0),
            'createdAt', queen.iso_ms_v1(v_queue.created_at),
            'encryptionActive', FALSE,
            'config', jsonb_build_object(
                'leaseTime', v_queue.lease_time,
                'retryLimit', v_queue.retry_limit,
                'retryDelay', v_queue.retry_delay,
                'ttl', v_queue.ttl,
                'maxQueueSize', v_queue.max_queue_size,
                'deadLetterQueue', v_queue.dead_letter_queue)),
        'partitions', v_lanes.r_partitions,
        'totals', jsonb_build_object('messages', v_lanes.r_totals)
    ) || CASE WHEN v_lanes.r_more THEN '{"partitionsTruncated": true}' ELSE '{}' END::JSONB;
END
$$;

-- How much of a queue waits: for its slowest group or, with p_group, for that one, before
-- which all of a partition lies that it has no cursor for. NULL for an unknown queue.
-- Nothing delivers last values only, so what is effective is all of it. Of the partitions
-- 10,000 are listed, as in the details.
CREATE OR REPLACE FUNCTION queen.log_queue_depth_v1(
    p_queue  TEXT,
    p_group  TEXT DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    c_shown CONSTANT INTEGER := 10000;
    v_queue UUID;
    v_sums  JSONB;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    WITH lanes AS MATERIALIZED (
        SELECT p.name, f.r_pending AS pending, least(COALESCE(c.leased, 0), f.r_pending)::BIGINT AS processing
        FROM queen.log_partitions AS p
        LEFT JOIN LATERAL (
            SELECT k.r_slowest AS slowest, k.r_leased AS leased
            FROM queen.log_cursor_figures_v1() AS k
            WHERE p_group IS NULL AND k.r_partition_id = p.id
            UNION ALL
            SELECT k.committed, CASE WHEN k.lease_expires_at > now() THEN greatest(k.batch_end - k.committed, 0) END
            FROM queen.log_consumers AS k
            WHERE k.partition_id = p.id AND k.consumer_group = p_group
        ) AS c ON TRUE
        CROSS JOIN LATERAL queen.log_lane_figures_v1(p.log_start, p.last_offset, c.slowest) AS f
        WHERE p.queue_id = v_queue
    ), shown AS (
        SELECT l.* FROM lanes AS l ORDER BY l.name COLLATE "C" LIMIT c_shown
    )
    SELECT jsonb_build_object(
               'pending', s.pending, 'processing', s.processing, 'ready', s.pending - s.processing,
               'partitionsPending', s.with_pending, 'partitionsReady', s.with_ready,
               'conflation', FALSE, 'effectivePending', s.pending, 'effectiveReady', s.pending - s.processing,
               'partitions', (
                   SELECT COALESCE(jsonb_agg(jsonb_build_object('partition', l.name, 'pending', l.pending,
                       'processing', l.processing, 'ready', l.pending - l.processing) ORDER BY l.name COLLATE "C"), '[]')
                   FROM shown AS l)
           ) || CASE WHEN s.partitions > c_shown THEN '{"partitionsTruncated": true}' ELSE '{}' END::JSONB
    INTO v_sums
    FROM (
        SELECT count(*) AS partitions, COALESCE(sum(l.pending), 0) AS pending, COALESCE(sum(l.processing), 0) AS processing,
               count(*) FILTER (WHERE l.pending > 0) AS with_pending,
               count(*) FILTER (WHERE l.pending > l.processing) AS with_ready
        FROM lanes AS l
    ) AS s;
    RETURN jsonb_build_object('queue', p_queue, 'group', p_group) || v_sums;
END
$$;

-- How many messages came in over time, by the creation of their segments. A segment
-- counts whole in the bucket it was created in; buckets without any are 0. Filter
-- keys, all optional: from (a day ago), to (now), interval (minute, hour, day; anything
-- else is hour), queue, namespace, task, _tenant. An empty text does not filter.
--
-- Every segment of a partition that was written within the window is looked at: the
-- figures of deleted messages, and of those beyond, are not there.
CREATE OR REPLACE FUNCTION queen.get_analytics_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET work_mem = '32MB'
SET jit = off
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_namespace TEXT := NULLIF(p_filters ->> 'namespace', '');
    v_task      TEXT := NULLIF(p_filters ->> 'task', '');
    v_from      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ, now() - INTERVAL '24 hours');
    v_to        TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ, now());
    v_interval  TEXT := CASE WHEN p_filters ->> 'interval' IN ('minute', 'day') THEN p_filters ->> 'interval' ELSE 'hour' END;
    v_points    JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object('timestamp', queen.iso_ms_v1(b.at AT TIME ZONE 'UTC'), 'messages', COALESCE(m.n, 0))
               ORDER BY b.at), '[]')
    INTO v_points
    FROM generate_series(date_trunc(v_interval, v_from AT TIME ZONE 'UTC'), date_trunc(v_interval, v_to AT TIME ZONE 'UTC'),
        ('1 ' || v_interval)::INTERVAL) AS b (at)
    LEFT JOIN (
        SELECT date_trunc(v_interval, g.created_at AT TIME ZONE 'UTC') AS at, sum(g.end_offset - g.base_offset + 1) AS n
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        JOIN queen.log_segments AS g ON g.partition_id = p.id
        WHERE q.tenant_id = v_tenant
          AND (v_queue IS NULL OR q.name = v_queue)
          AND (v_namespace IS NULL OR q.namespace = v_namespace)
          AND (v_task IS NULL OR q.task = v_task)
          -- last_write_at may be a second behind.
          AND p.last_write_at >= v_from - INTERVAL '2 seconds'
          AND g.created_at >= v_from AND g.created_at <= v_to
        GROUP BY 1
    ) AS m ON m.at = b.at;
    RETURN jsonb_build_object('dataPoints', v_points, 'interval', v_interval,
        'from', queen.iso_ms_v1(v_from), 'to', queen.iso_ms_v1(v_to));
END
$$;

-- Which queues have the most partitions, and how many of them are alive: written within
-- an hour, a day, a week. Filter keys, all optional: queue, namespace, task (an empty
-- text is a label like any other), limit (20, from 1 to 200), _tenant. pending is
-- the reconciler's last figure.
CREATE OR REPLACE FUNCTION queen.get_partition_liveness_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_limit  BIGINT := least(greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 20), 1), 200);
    v_rows   JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'queue', l.name,
               'namespace', l.namespace,
               'task', l.task,
               'partitions', l.partitions,
               'live1h', l.live_hour,
               'live24h', l.live_day,
               'live7d', l.live_week,
               'created24h', l.created_day,
               'oldestWriteAt', queen.iso_ms_v1(l.oldest),
               'newestWriteAt', queen.iso_ms_v1(l.newest),
               'pending', COALESCE(s.pending_messages, 0)
           ) ORDER BY l.partitions DESC, l.name COLLATE "C"), '[]')
    INTO v_rows
    FROM (
        SELECT q.id, q.name, COALESCE(q.namespace, '') AS namespace, COALESCE(q.task, '') AS task, count(p.id) AS partitions,
               count(*) FILTER (WHERE p.last_write_at >= now() - INTERVAL '1 hour') AS live_hour,
               count(*) FILTER (WHERE p.last_write_at >= now() - INTERVAL '24 hours') AS live_day,
               count(*) FILTER (WHERE p.last_write_at >= now() - INTERVAL '7 days') AS live_week,
               count(*) FILTER (WHERE p.created_at >= now() - INTERVAL '24 hours') AS created_day,
               min(p.last_write_at) AS oldest, max(p.last_write_at) AS newest
        FROM queen.queues AS q
        LEFT JOIN queen.log_partitions AS p ON p.queue_id = q.id
        WHERE q.tenant_id = v_tenant
          AND (NOT p_filters ? 'queue' OR q.name = p_filters ->> 'queue')
          AND (NOT p_filters ? 'namespace' OR COALESCE(q.namespace, '') = p_filters ->> 'namespace')
          AND (NOT p_filters ? 'task' OR COALESCE(q.task, '') = p_filters ->> 'task')
        GROUP BY q.id
        ORDER BY count(p.id) DESC, q.name COLLATE "C"
        LIMIT v_limit
    ) AS l
    LEFT JOIN LATERAL queen.queue_figures_v1(l.id) AS s ON TRUE;
    RETURN jsonb_build_object('capturedAt', queen.iso_ms_v1(now()), 'rows', v_rows);
END
$$;
