-- Maintenance: what retention, eviction and cleanup delete, in bounded steps that
-- commit by themselves, and how the work is found.
--
-- Policy lives with the caller: a step is given cutoffs, and one that is NULL
-- switches its rule off.
--
-- Locks. A step takes exactly one lane (partition) row, FOR NO KEY UPDATE, so that
-- it cannot deadlock with those who lock several. The cleanup and the watermark walk
-- take many: ascending by id, in one statement, SKIP LOCKED, before everything
-- else; the cleanup FOR UPDATE, because the rows go, and then their cursors
-- ascending by (partition_id, consumer_group), SKIP LOCKED too. Segments, sidecar
-- rows and history are leaves. The plan, the pages and the forecasts lock nothing.
--
-- Re-applying is safe: CREATE OR REPLACE, and an index that is created only once.
--
-- Watermarks. log_partitions.oldest_live_at and oldest_txn_at are the created_at of
-- the first segment and of the first sidecar row, NULL where there is none. A push
-- sets one when it fills an empty lane, a step when it deletes, both under the
-- lane's lock. The work is found by them alone: what is not due costs one index
-- probe per queue and kind, whatever it holds.
--
-- Plans. The plpgsql functions pin theirs to index scans in key order: made on a
-- small table, a plan would scan or sort, and keep doing so on a lane of a million
-- segments. log_retention_reach_v1 and log_retention_decide_v1 are pinned by the
-- functions that call them: settings of their own cost a step of one segment 100 us.
--
-- Measured (PostgreSQL 15, two busy cores, fsync off, segments of 6 kB, processor
-- time of the server): a step of 1000 segments 8.4 us a segment, against 7.8 us for a
-- plain ranged DELETE of the same rows, 285 bytes of WAL each; of 100 segments 11 us;
-- of one 165 us. The plan over 1,000,000 lanes with segments and nothing due: 1.4 ms
-- for 200 queues, no lane and no segment read. A page of 1000 held lanes: 8 ms. A
-- cleanup step without a candidate: 0.2 ms; with 1000 vetoed ones: 18 ms.

-- What the analytics and the age purge read.
CREATE INDEX IF NOT EXISTS idx_retention_history_executed_at ON queen.retention_history (executed_at DESC);

-- The smallest base at or above p_from of a segment that is not older than the
-- cutoff: the first one on the way up, because created_at does not decrease. With
-- stale ones only, one above the highest end; without any, p_from.
CREATE OR REPLACE FUNCTION queen.log_retention_boundary_v1(
    p_partition_id UUID,
    p_from         BIGINT,
    p_cutoff       TIMESTAMPTZ
)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_bound BIGINT;
BEGIN
    SELECT s.base_offset INTO v_bound
    FROM queen.log_segments AS s
    WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from AND s.created_at >= p_cutoff
    ORDER BY s.base_offset
    LIMIT 1;
    IF v_bound IS NULL THEN
        SELECT s.end_offset + 1 INTO v_bound
        FROM queen.log_segments AS s
        WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from
        ORDER BY s.base_offset DESC
        LIMIT 1;
    END IF;
    RETURN COALESCE(v_bound, p_from);
END
$$;

-- The same for a step of p_rows segments: it looks at one more than those, and is
-- the base of that one when nothing fresh came before. A stale backlog is so walked
-- through once, not once for every step.
CREATE OR REPLACE FUNCTION queen.log_retention_reach_v1(
    p_partition_id UUID,
    p_from         BIGINT,
    p_cutoff       TIMESTAMPTZ,
    p_rows         INT
)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_bound BIGINT;
BEGIN
    SELECT w.base_offset INTO v_bound
    FROM (
        SELECT s.base_offset, s.created_at
        FROM queen.log_segments AS s
        WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from
        ORDER BY s.base_offset
        LIMIT p_rows::BIGINT + 1
    ) AS w
    WHERE w.created_at >= p_cutoff
    ORDER BY w.base_offset
    LIMIT 1;
    IF v_bound IS NULL THEN
        SELECT s.base_offset INTO v_bound
        FROM queen.log_segments AS s
        WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from
        ORDER BY s.base_offset
        OFFSET p_rows
        LIMIT 1;
    END IF;
    IF v_bound IS NULL THEN
        SELECT s.end_offset + 1 INTO v_bound
        FROM queen.log_segments AS s
        WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from
        ORDER BY s.base_offset DESC
        LIMIT 1;
    END IF;
    RETURN COALESCE(v_bound, p_from);
END
$$;

-- The groups that read a queue, by a record of their own or else by one for labels
-- that cover it, and from when on they want its messages. A record alone makes no
-- reader: the group has to have a cursor on one of the hundred lanes that were left
-- alone for longest, which every group knows that ever read the queue. So a group
-- whose cursors were deleted holds nothing, whatever became of its record.
CREATE OR REPLACE FUNCTION queen.log_queue_groups_v1(p_queue_id UUID)
RETURNS TABLE (r_group TEXT, r_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_queue RECORD;
BEGIN
    SELECT q.tenant_id, q.namespace, q.task INTO v_queue FROM queen.queues AS q WHERE q.id = p_queue_id;
    RETURN QUERY
    SELECT DISTINCT ON (g.consumer_group) g.consumer_group,
           CASE WHEN g.consumer_group = '__QUEUE_MODE__' THEN '-infinity' ELSE g.subscription_timestamp END
    FROM (
        SELECT m.consumer_group, m.subscription_timestamp, TRUE AS own
        FROM queen.consumer_groups_metadata AS m
        WHERE m.queue_id = p_queue_id AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
        UNION ALL
        SELECT m.consumer_group, m.subscription_timestamp, FALSE
        FROM queen.consumer_groups_metadata AS m
        WHERE m.queue_id IS NULL AND m.tenant_id = v_queue.tenant_id AND m.partition_name = ''
          AND m.namespace IN ('', v_queue.namespace) AND m.task IN ('', v_queue.task)
    ) AS g
    WHERE EXISTS (
        SELECT 1
        FROM (
            SELECT p.id FROM queen.log_partitions AS p
            WHERE p.queue_id = p_queue_id
            ORDER BY p.last_write_at
            LIMIT 100
        ) AS l
        JOIN queen.log_consumers AS c ON c.partition_id = l.id AND c.consumer_group = g.consumer_group)
    ORDER BY g.consumer_group, g.own DESC, g.subscription_timestamp;
END
$$;

-- Up to which offset the groups of a lane have read: one above the lowest cursor.
-- NULL where no group ever read. A group that reads the queue and has no cursor here,
-- because it was away since the lane appeared, has read nothing of what its
-- subscription covers.
CREATE OR REPLACE FUNCTION queen.log_consumed_v1(p_pid UUID, p_from BIGINT)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_cap   BIGINT;
    v_away  BIGINT;
BEGIN
    SELECT min(c.committed) + 1 INTO v_cap FROM queen.log_consumers AS c WHERE c.partition_id = p_pid;
    IF v_cap > p_from THEN
        SELECT min(queen.log_seed_offset_v1(p.id, p.log_start, p.last_offset, g.r_at)) + 1 INTO v_away
        FROM queen.log_partitions AS p
        CROSS JOIN LATERAL queen.log_queue_groups_v1(p.queue_id) AS g
        WHERE p.id = p_pid
          AND NOT EXISTS (SELECT 1 FROM queen.log_consumers AS c WHERE c.partition_id = p.id AND c.consumer_group = g.r_group);
    END IF;
    RETURN least(v_cap, v_away);
END
$$;

-- Up to where the two rules let go of a lane, and which of them moved it there:
-- the further one wins. Rule 1 is age alone; rule 2 is age, but never beyond what
-- the slowest group has committed (r_cap), and nothing where no group ever read.
-- p_rows bounds the walk for a step; NULL does not.
CREATE OR REPLACE FUNCTION queen.log_retention_decide_v1(
    p_pid              UUID,
    p_from             BIGINT,
    p_all_cutoff       TIMESTAMPTZ,
    p_completed_cutoff TIMESTAMPTZ,
    p_rows             INT,
    OUT r_bound        BIGINT,
    OUT r_cap          BIGINT,
    OUT r_rule         TEXT
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_bound BIGINT;
BEGIN
    r_bound := p_from;
    r_rule := 'retention';
    IF p_all_cutoff IS NOT NULL THEN
        r_bound := greatest(r_bound, CASE WHEN p_rows IS NULL
            THEN queen.log_retention_boundary_v1(p_pid, p_from, p_all_cutoff)
            ELSE queen.log_retention_reach_v1(p_pid, p_from, p_all_cutoff, p_rows) END);
    END IF;
    IF p_completed_cutoff IS NULL THEN
        RETURN;
    END IF;
    r_cap := queen.log_consumed_v1(p_pid, r_bound);
    IF r_cap > r_bound THEN
        v_bound := least(r_cap, CASE WHEN p_rows IS NULL
            THEN queen.log_retention_boundary_v1(p_pid, p_from, p_completed_cutoff)
            ELSE queen.log_retention_reach_v1(p_pid, p_from, p_completed_cutoff, p_rows) END);
        IF v_bound > r_bound THEN
            r_bound := v_bound;
            r_rule := 'completed_retention';
        END IF;
    END IF;
END
$$;

-- One bounded step of retention on one lane: the rules 1 and 2, whole segments
-- only, p_max_rows of them at most and 32 MiB of blobs (one segment at least, so
-- that a push waits about as long for a lane of large segments as of small ones).
--
-- The segments to go are picked from the bottom and deleted as one range: bases and
-- ends of disjoint ranges have the same order, so the range holds just those. The
-- mark then stands above the last of them, never at a cap inside a segment: it is
-- the base of the first live segment. The history row, the delete and the marks are
-- one transaction. A call that deletes nothing still sets right a watermark that
-- was wrong.
CREATE OR REPLACE FUNCTION queen.log_retention_step_v1(
    p_pid              UUID,
    p_all_cutoff       TIMESTAMPTZ,
    p_completed_cutoff TIMESTAMPTZ,
    p_max_rows         INT,
    p_history_type     TEXT DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_rows    INT := greatest(COALESCE(p_max_rows, 1), 1);
    v_from    BIGINT;
    v_oldest  TIMESTAMPTZ;
    v_mark    BIGINT;
    v_rule    RECORD;
    v_top     BIGINT;
    v_end     BIGINT;
    v_frames  BIGINT := 0;
    v_bytes   BIGINT := 0;
    v_deleted BIGINT := 0;
    v_next    RECORD;
BEGIN
    SELECT p.log_start, p.oldest_live_at INTO v_from, v_oldest
    FROM queen.log_partitions AS p
    WHERE p.id = p_pid
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', 0, 'new_log_start', NULL, 'done', TRUE, 'messages', 0, 'bytes', 0);
    END IF;
    v_mark := v_from;

    SELECT d.r_bound, d.r_cap, d.r_rule INTO v_rule
    FROM queen.log_retention_decide_v1(p_pid, v_from, p_all_cutoff, p_completed_cutoff, v_rows) AS d;
    IF v_rule.r_bound > v_from THEN
        -- The length of a blob is read from its row: out of line it stays there.
        SELECT max(c.base_offset), max(c.end_offset), sum(c.end_offset - c.base_offset + 1), sum(c.size)
        INTO v_top, v_end, v_frames, v_bytes
        FROM (
            SELECT w.base_offset, w.end_offset, w.size,
                   sum(w.size) OVER (ORDER BY w.base_offset ROWS UNBOUNDED PRECEDING) - w.size AS before
            FROM (
                SELECT s.base_offset, s.end_offset, octet_length(s.blob) AS size
                FROM queen.log_segments AS s
                WHERE s.partition_id = p_pid AND s.base_offset >= v_from
                  AND s.base_offset < v_rule.r_bound AND s.end_offset < v_rule.r_bound
                ORDER BY s.base_offset
                LIMIT v_rows
            ) AS w
        ) AS c
        WHERE c.before < 33554432;
    END IF;
    IF v_top IS NOT NULL THEN
        DELETE FROM queen.log_segments AS s
        WHERE s.partition_id = p_pid AND s.base_offset >= v_from AND s.base_offset <= v_top;
        GET DIAGNOSTICS v_deleted = ROW_COUNT;
        v_mark := greatest(v_from, v_end + 1);
        INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type)
        VALUES (p_pid, v_frames, COALESCE(p_history_type, v_rule.r_rule));
    END IF;

    SELECT s.end_offset, s.created_at INTO v_next
    FROM queen.log_segments AS s
    WHERE s.partition_id = p_pid AND s.base_offset >= v_mark
    ORDER BY s.base_offset
    LIMIT 1;
    IF v_mark > v_from OR v_next.created_at IS DISTINCT FROM v_oldest THEN
        UPDATE queen.log_partitions AS p
        SET log_start = greatest(p.log_start, v_mark), oldest_live_at = v_next.created_at
        WHERE p.id = p_pid;
    END IF;
    -- Not done as long as the next call would delete the segment that is now first.
    RETURN jsonb_build_object('deleted', v_deleted, 'new_log_start', v_mark,
        'done', v_deleted = 0 OR NOT COALESCE(v_next.created_at < p_all_cutoff, FALSE)
            AND NOT COALESCE(v_next.created_at < p_completed_cutoff AND v_next.end_offset < v_rule.r_cap, FALSE),
        'messages', COALESCE(v_frames, 0), 'bytes', COALESCE(v_bytes, 0));
END
$$;

-- The same step over the sidecar: one cutoff, no cap, no history. The push probe
-- reads txns_start under the lane's lock, so it moves under that lock.
CREATE OR REPLACE FUNCTION queen.log_txns_purge_step_v1(
    p_pid      UUID,
    p_cutoff   TIMESTAMPTZ,
    p_max_rows INT
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_rows    INT := greatest(COALESCE(p_max_rows, 1), 1);
    v_from    BIGINT;
    v_oldest  TIMESTAMPTZ;
    v_mark    BIGINT;
    v_fresh   BIGINT;
    v_top     BIGINT;
    v_end     BIGINT;
    v_frames  BIGINT := 0;
    v_bytes   BIGINT := 0;
    v_deleted BIGINT := 0;
    v_next    TIMESTAMPTZ;
BEGIN
    SELECT p.txns_start, p.oldest_txn_at INTO v_from, v_oldest
    FROM queen.log_partitions AS p
    WHERE p.id = p_pid
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', 0, 'new_txns_start', NULL, 'done', TRUE, 'messages', 0, 'bytes', 0);
    END IF;
    v_mark := v_from;

    -- The first row to stay, if it is among the next ones.
    SELECT w.base_offset INTO v_fresh
    FROM (
        SELECT t.base_offset, t.created_at
        FROM queen.log_txns AS t
        WHERE t.partition_id = p_pid AND t.base_offset >= v_from
        ORDER BY t.base_offset
        LIMIT v_rows
    ) AS w
    WHERE p_cutoff IS NULL OR w.created_at >= p_cutoff
    ORDER BY w.base_offset
    LIMIT 1;
    SELECT max(w.base_offset), max(w.end_offset), sum(w.end_offset - w.base_offset + 1), sum(w.size)
    INTO v_top, v_end, v_frames, v_bytes
    FROM (
        SELECT t.base_offset, t.end_offset, octet_length(t.hashes) AS size
        FROM queen.log_txns AS t
        WHERE t.partition_id = p_pid AND t.base_offset >= v_from
          AND t.base_offset < COALESCE(v_fresh, 9223372036854775807)
        ORDER BY t.base_offset
        LIMIT v_rows
    ) AS w;
    IF v_top IS NOT NULL THEN
        DELETE FROM queen.log_txns AS t
        WHERE t.partition_id = p_pid AND t.base_offset >= v_from AND t.base_offset <= v_top;
        GET DIAGNOSTICS v_deleted = ROW_COUNT;
        v_mark := greatest(v_from, v_end + 1);
    END IF;

    SELECT t.created_at INTO v_next
    FROM queen.log_txns AS t
    WHERE t.partition_id = p_pid AND t.base_offset >= v_mark
    ORDER BY t.base_offset
    LIMIT 1;
    IF v_mark > v_from OR v_next IS DISTINCT FROM v_oldest THEN
        UPDATE queen.log_partitions AS p
        SET txns_start = greatest(p.txns_start, v_mark), oldest_txn_at = v_next
        WHERE p.id = p_pid;
    END IF;
    RETURN jsonb_build_object('deleted', v_deleted, 'new_txns_start', v_mark,
        'done', v_deleted = 0 OR NOT COALESCE(v_next < p_cutoff, FALSE),
        'messages', COALESCE(v_frames, 0), 'bytes', COALESCE(v_bytes, 0));
END
$$;

-- maxWaitTimeSeconds: age alone, for every group, leases in flight included, and
-- whatever retention_enabled says. Data loss by design; nothing is dead-lettered.
CREATE OR REPLACE FUNCTION queen.log_evict_max_wait_step_v1(
    p_pid      UUID,
    p_cutoff   TIMESTAMPTZ,
    p_max_rows INT
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN queen.log_retention_step_v1(p_pid, p_cutoff, NULL, p_max_rows, 'max_wait_time_eviction');
END
$$;

-- Whether a partition is empty and nobody has used it since the cutoff; NULL for
-- one that does not exist. Dead letters and streams state have no foreign key: they
-- would stay behind, out of reach. A lease that has expired is no veto, since on an
-- empty partition no pop will ever clear it; one that expired after the cutoff is
-- activity. Traces are no veto: nothing purges them, and they answer without the
-- partition.
CREATE OR REPLACE FUNCTION queen.log_partition_dead_v1(p_pid UUID, p_cutoff TIMESTAMPTZ)
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT p.created_at < p_cutoff AND p.last_write_at < p_cutoff
       AND NOT EXISTS (SELECT 1 FROM queen.log_segments AS s WHERE s.partition_id = p.id)
       AND NOT EXISTS (SELECT 1 FROM queen.log_dlq AS d WHERE d.partition_id = p.id)
       AND NOT EXISTS (SELECT 1 FROM queen_streams.state AS x WHERE x.partition_id = p.id)
       AND NOT EXISTS (
           SELECT 1 FROM queen.log_consumers AS c
           WHERE c.partition_id = p.id
             AND (c.batch_end IS NOT NULL AND COALESCE(c.lease_expires_at > now(), TRUE)
                  OR c.lease_expires_at >= p_cutoff OR c.lease_acquired_at >= p_cutoff OR c.created_at >= p_cutoff))
    FROM queen.log_partitions AS p
    WHERE p.id = p_pid
$$;

-- A page of the candidates of the cleanup, in the order of (last_write_at, id): those
-- of them that are dead, and where the page ended.
CREATE OR REPLACE FUNCTION queen.log_cleanup_page_v1(
    p_cutoff       TIMESTAMPTZ,
    p_after_at     TIMESTAMPTZ,
    p_after_id     UUID,
    p_limit        INT,
    OUT r_dead     UUID[],
    OUT r_examined INT,
    OUT r_last_at  TIMESTAMPTZ,
    OUT r_last_id  UUID
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
BEGIN
    SELECT COALESCE(array_agg(c.id) FILTER (WHERE queen.log_partition_dead_v1(c.id, p_cutoff)), '{}'), count(*),
           max(c.last_write_at), (array_agg(c.id ORDER BY c.last_write_at DESC, c.id DESC))[1]
    INTO r_dead, r_examined, r_last_at, r_last_id
    FROM (
        SELECT p.id, p.last_write_at
        FROM queen.log_partitions AS p
        WHERE p.oldest_live_at IS NULL AND p.last_write_at < p_cutoff AND (p.last_write_at, p.id) > (p_after_at, p_after_id)
        ORDER BY p.last_write_at, p.id
        LIMIT p_limit
    ) AS c;
END
$$;

-- Deletes up to p_max_rows dead partitions with their cursors and sidecar, in one
-- transaction. Candidates come in the order of (last_write_at, id). With a position
-- in it (p_after_at, p_after_id) the call looks at p_max_rows of them and answers
-- where it stopped, so that many vetoed ones cost no statement more than a page;
-- without one it looks until it has found enough.
--
-- Whatever somebody holds is passed by: a partition, because a pusher is at it, and
-- a cursor, because a pop or an ack is. The test is made again under the locks, and
-- that one decides: EvalPlanQual rechecks the columns of the row and none of the NOT
-- EXISTS. A push that had resolved the id raises afterwards and stores nothing.
--
-- A sidecar goes by the purge step, 20,000 rows a call altogether; a partition that
-- still has rows then stays for the next call.
CREATE OR REPLACE FUNCTION queen.log_partition_cleanup_step_v1(
    p_cutoff   TIMESTAMPTZ,
    p_max_rows INT DEFAULT 1000,
    p_after_at TIMESTAMPTZ DEFAULT NULL,
    p_after_id UUID DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_rows     INT := greatest(COALESCE(p_max_rows, 1000), 1);
    v_at       TIMESTAMPTZ := COALESCE(p_after_at, '-infinity');
    v_id       UUID := COALESCE(p_after_id, '00000000-0000-0000-0000-000000000000');
    v_examined BIGINT := 0;
    v_dead     UUID[] := '{}';
    v_page     RECORD;
    v_lanes    UUID[];
    v_cursors  UUID[];
    v_lane     UUID;
    v_budget   BIGINT := 20000;
    v_purged   JSONB;
    v_deleted  BIGINT := 0;
BEGIN
    LOOP
        SELECT c.* INTO v_page FROM queen.log_cleanup_page_v1(p_cutoff, v_at, v_id, v_rows) AS c;
        v_examined := v_examined + v_page.r_examined;
        v_dead := v_dead || v_page.r_dead;
        v_at := COALESCE(v_page.r_last_at, v_at);
        v_id := COALESCE(v_page.r_last_id, v_id);
        EXIT WHEN v_page.r_examined < v_rows OR p_after_at IS NOT NULL OR cardinality(v_dead) >= v_rows;
    END LOOP;
    v_dead := v_dead[1:v_rows];

    SELECT COALESCE(array_agg(l.id), '{}') INTO v_lanes
    FROM (
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.id = ANY (v_dead)
        ORDER BY p.id
        FOR UPDATE SKIP LOCKED
    ) AS l;
    SELECT COALESCE(array_agg(l.partition_id), '{}') INTO v_cursors
    FROM (
        SELECT c.partition_id FROM queen.log_consumers AS c
        WHERE c.partition_id = ANY (v_lanes)
        ORDER BY c.partition_id, c.consumer_group COLLATE "C"
        FOR UPDATE SKIP LOCKED
    ) AS l;
    SELECT COALESCE(array_agg(u.id), '{}') INTO v_lanes
    FROM unnest(v_lanes) AS u (id)
    LEFT JOIN (SELECT k.id, count(*) AS n FROM unnest(v_cursors) AS k (id) GROUP BY k.id) AS held ON held.id = u.id
    WHERE queen.log_partition_dead_v1(u.id, p_cutoff)
      AND COALESCE(held.n, 0) = (SELECT count(*) FROM queen.log_consumers AS c WHERE c.partition_id = u.id);

    FOR v_lane IN
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.id = ANY (v_lanes) AND p.oldest_txn_at IS NOT NULL
        ORDER BY p.id
    LOOP
        IF v_budget > 0 THEN
            v_purged := queen.log_txns_purge_step_v1(v_lane, 'infinity', v_budget::INT);
            v_budget := v_budget - (v_purged ->> 'deleted')::BIGINT;
            CONTINUE WHEN (v_purged ->> 'done')::BOOLEAN;
        END IF;
        v_lanes := array_remove(v_lanes, v_lane);
    END LOOP;

    DELETE FROM queen.log_txns AS t WHERE t.partition_id = ANY (v_lanes);
    INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type)
    SELECT u.id, 0, '__partition_deleted__' FROM unnest(v_lanes) AS u (id);
    DELETE FROM queen.log_partitions AS p WHERE p.id = ANY (v_lanes);
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN jsonb_build_object('deleted', v_deleted, 'done', v_page.r_examined < v_rows AND cardinality(v_dead) < v_rows,
        'examined', v_examined, 'last_at', CASE WHEN v_examined > 0 THEN v_at END, 'last_id', CASE WHEN v_examined > 0 THEN v_id END);
END
$$;

-- The work list: a row for each queue that has something due, with the cutoffs of
-- its policy from one now(). Two index probes per queue; no lane and no segment is
-- read beyond those. The sidecar always has a cutoff: the dedup probe and a late ack
-- need its rows for 15 minutes at least. r_overdue is by how many seconds the oldest
-- segment has outlived the first rule that lets it go, NULL when none does.
CREATE OR REPLACE FUNCTION queen.log_retention_plan_v1()
RETURNS TABLE (
    r_queue_id         UUID,
    r_queue            TEXT,
    r_all_cutoff       TIMESTAMPTZ,
    r_completed_cutoff TIMESTAMPTZ,
    r_txns_cutoff      TIMESTAMPTZ,
    r_max_wait_cutoff  TIMESTAMPTZ,
    r_live_due         BOOLEAN,
    r_txns_due         BOOLEAN,
    r_evict_due        BOOLEAN,
    r_overdue          DOUBLE PRECISION
)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
    SELECT d.id, d.name, d.all_cutoff, d.completed_cutoff, d.txns_cutoff, d.max_wait_cutoff,
           d.live_due, d.txns_due, d.evict_due,
           CASE WHEN (d.live_due OR d.evict_due) AND isfinite(d.live_at)
               THEN EXTRACT(EPOCH FROM greatest(d.all_cutoff, d.completed_cutoff, d.max_wait_cutoff) - d.live_at)::DOUBLE PRECISION END
    FROM (
        SELECT q.id, q.name, c.*, live.at AS live_at,
               COALESCE(live.at < greatest(c.all_cutoff, c.completed_cutoff), FALSE) AS live_due,
               COALESCE(txn.at < c.txns_cutoff, FALSE) AS txns_due,
               COALESCE(live.at < c.max_wait_cutoff, FALSE) AS evict_due
        FROM queen.queues AS q
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q.retention_enabled AND q.retention_seconds > 0
                       THEN now() - make_interval(secs => q.retention_seconds) END AS all_cutoff,
                   CASE WHEN q.retention_enabled AND q.completed_retention_seconds > 0
                       THEN now() - make_interval(secs => q.completed_retention_seconds) END AS completed_cutoff,
                   now() - make_interval(secs => greatest(q.dedup_window_seconds, q.completed_retention_seconds, 900)) AS txns_cutoff,
                   CASE WHEN q.max_wait_time_seconds > 0
                       THEN now() - make_interval(secs => q.max_wait_time_seconds) END AS max_wait_cutoff
        ) AS c
        LEFT JOIN LATERAL (
            SELECT p.oldest_live_at AS at
            FROM queen.log_partitions AS p
            WHERE p.queue_id = q.id AND p.oldest_live_at IS NOT NULL
              AND COALESCE(c.all_cutoff, c.completed_cutoff, c.max_wait_cutoff) IS NOT NULL
            ORDER BY p.oldest_live_at
            LIMIT 1
        ) AS live ON TRUE
        LEFT JOIN LATERAL (
            SELECT p.oldest_txn_at AS at
            FROM queen.log_partitions AS p
            WHERE p.queue_id = q.id AND p.oldest_txn_at IS NOT NULL
            ORDER BY p.oldest_txn_at
            LIMIT 1
        ) AS txn ON TRUE
    ) AS d
    WHERE d.live_due OR d.txns_due OR d.evict_due
    ORDER BY d.id
$$;

-- A page of the lanes of a queue whose oldest segment is past a cutoff, behind one
-- place in the order of (oldest_live_at, id) and up to another (NULL: to the
-- cutoff). r_due are those on which a step may find something, ascending by id; the
-- others are held: rule 1 does not reach them, and no group has read, or one stands
-- before the first segment, or reads the queue and was not here yet. That is decided
-- without a look at a segment. Eviction
-- asks with its cutoff as p_all_cutoff and no other. A watermark of -infinity, which
-- only a hand can have written, stands for the year 1: callers can count from there.
CREATE OR REPLACE FUNCTION queen.log_retention_page_v1(
    p_queue_id         UUID,
    p_all_cutoff       TIMESTAMPTZ,
    p_completed_cutoff TIMESTAMPTZ,
    p_after_at         TIMESTAMPTZ,
    p_after_id         UUID,
    p_until_at         TIMESTAMPTZ,
    p_until_id         UUID,
    p_limit            INT,
    OUT r_due          UUID[],
    OUT r_examined     INT,
    OUT r_last_at      TIMESTAMPTZ,
    OUT r_last_id      UUID
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_after  TIMESTAMPTZ := CASE WHEN p_after_at > '0001-01-01T00:00:00Z' THEN p_after_at ELSE '-infinity' END;
    v_groups TEXT[] := '{}';
    v_since  TIMESTAMPTZ[] := '{}';
BEGIN
    IF p_completed_cutoff IS NOT NULL THEN
        SELECT COALESCE(array_agg(g.r_group), '{}'), COALESCE(array_agg(g.r_at), '{}') INTO v_groups, v_since
        FROM queen.log_queue_groups_v1(p_queue_id) AS g;
    END IF;
    SELECT COALESCE(array_agg(l.id ORDER BY l.id) FILTER (WHERE l.due), '{}'), count(*),
           CASE WHEN count(*) > 0 THEN greatest(max(l.at), '0001-01-01T00:00:00Z') END, (array_agg(l.id ORDER BY l.at DESC, l.id DESC))[1]
    INTO r_due, r_examined, r_last_at, r_last_id
    FROM (
        SELECT p.id, p.at, COALESCE(p.at < p_all_cutoff, FALSE) OR COALESCE(c.slowest >= p.log_start, FALSE) AND (
                   c.known = cardinality(v_groups) OR NOT EXISTS (
                       SELECT 1 FROM unnest(v_groups, v_since) AS g (name, since)
                       WHERE g.since <= p.at AND NOT EXISTS (
                           SELECT 1 FROM queen.log_consumers AS k WHERE k.partition_id = p.id AND k.consumer_group = g.name))) AS due
        FROM (
            SELECT x.id, x.oldest_live_at AS at, x.log_start
            FROM queen.log_partitions AS x
            WHERE x.queue_id = p_queue_id
              AND x.oldest_live_at < greatest(p_all_cutoff, p_completed_cutoff)
              AND (x.oldest_live_at, x.id) > (v_after, p_after_id)
              AND (x.oldest_live_at, x.id) <= (COALESCE(p_until_at, 'infinity'), COALESCE(p_until_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
            ORDER BY x.oldest_live_at, x.id
            LIMIT p_limit
        ) AS p
        LEFT JOIN LATERAL (
            SELECT min(k.committed) AS slowest, count(*) FILTER (WHERE k.consumer_group = ANY (v_groups)) AS known
            FROM queen.log_consumers AS k
            WHERE k.partition_id = p.id AND NOT COALESCE(p.at < p_all_cutoff, FALSE)
        ) AS c ON TRUE
    ) AS l;
END
$$;

-- The same for the sidecar; nothing holds its rows.
CREATE OR REPLACE FUNCTION queen.log_txns_page_v1(
    p_queue_id     UUID,
    p_cutoff       TIMESTAMPTZ,
    p_after_at     TIMESTAMPTZ,
    p_after_id     UUID,
    p_limit        INT,
    OUT r_due      UUID[],
    OUT r_examined INT,
    OUT r_last_at  TIMESTAMPTZ,
    OUT r_last_id  UUID
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_after TIMESTAMPTZ := CASE WHEN p_after_at > '0001-01-01T00:00:00Z' THEN p_after_at ELSE '-infinity' END;
BEGIN
    SELECT COALESCE(array_agg(l.id ORDER BY l.id), '{}'), count(*),
           CASE WHEN count(*) > 0 THEN greatest(max(l.at), '0001-01-01T00:00:00Z') END, (array_agg(l.id ORDER BY l.at DESC, l.id DESC))[1]
    INTO r_due, r_examined, r_last_at, r_last_id
    FROM (
        SELECT x.id, x.oldest_txn_at AS at
        FROM queen.log_partitions AS x
        WHERE x.queue_id = p_queue_id AND x.oldest_txn_at < p_cutoff
          AND (x.oldest_txn_at, x.id) > (v_after, p_after_id)
        ORDER BY x.oldest_txn_at, x.id
        LIMIT p_limit
    ) AS l;
END
$$;

-- In how many seconds the next segment will have waited too long, 0 when one
-- has; NULL when no queue with a maximum holds any.
CREATE OR REPLACE FUNCTION queen.log_next_eviction_v1()
RETURNS DOUBLE PRECISION
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
    SELECT greatest(0, EXTRACT(EPOCH FROM min(greatest(live.at, '0001-01-01T00:00:00Z') + make_interval(secs => q.max_wait_time_seconds)) - now()))::DOUBLE PRECISION
    FROM queen.queues AS q
    CROSS JOIN LATERAL (
        SELECT p.oldest_live_at AS at
        FROM queen.log_partitions AS p
        WHERE p.queue_id = q.id AND p.oldest_live_at IS NOT NULL
        ORDER BY p.oldest_live_at
        LIMIT 1
    ) AS live
    WHERE q.max_wait_time_seconds > 0
    HAVING count(*) > 0
$$;

-- What a retention step would delete of a lane if it were not bounded. No lock: by
-- the time it is read it may be more or less.
CREATE OR REPLACE FUNCTION queen.log_retention_forecast_v1(
    p_pid              UUID,
    p_all_cutoff       TIMESTAMPTZ,
    p_completed_cutoff TIMESTAMPTZ,
    OUT r_segments     BIGINT,
    OUT r_messages     BIGINT,
    OUT r_bytes        BIGINT,
    OUT r_rule         TEXT
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_from BIGINT;
    v_rule RECORD;
BEGIN
    SELECT p.log_start INTO v_from FROM queen.log_partitions AS p WHERE p.id = p_pid;
    SELECT d.r_bound, d.r_rule INTO v_rule
    FROM queen.log_retention_decide_v1(p_pid, v_from, p_all_cutoff, p_completed_cutoff, NULL) AS d;
    SELECT count(*), COALESCE(sum(s.end_offset - s.base_offset + 1), 0), COALESCE(sum(octet_length(s.blob)), 0)
    INTO r_segments, r_messages, r_bytes
    FROM queen.log_segments AS s
    WHERE s.partition_id = p_pid AND s.base_offset >= v_from
      AND s.base_offset < v_rule.r_bound AND s.end_offset < v_rule.r_bound;
    r_rule := CASE WHEN r_segments > 0 THEN v_rule.r_rule END;
END
$$;

-- How many sidecar rows of a lane a purge would delete if it were not bounded. The
-- cutoff is bisected for, and the rows before it are counted in the index.
CREATE OR REPLACE FUNCTION queen.log_txns_forecast_v1(p_pid UUID, p_cutoff TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT count(*)
    FROM queen.log_partitions AS p
    CROSS JOIN LATERAL (SELECT queen.log_sidecar_start_v1(p.id, p.txns_start, p.last_offset, p_cutoff) AS base OFFSET 0) AS s
    JOIN queen.log_txns AS t ON t.partition_id = p.id AND t.base_offset >= p.txns_start AND t.base_offset < s.base
    WHERE p.id = p_pid
$$;

-- One step of the safety walk: the next p_limit lanes by id are compared with what
-- their offsets say (a lane is empty exactly when its mark stands above
-- last_offset), a deep one also with their first segment and first sidecar row.
-- What is wrong is set right under the locks, 100 lanes a call (7 ms), behind which
-- the next call goes on; a lane that somebody holds is left for the next round. The
-- marks move too, only forward, over rows that no longer exist.
-- Databases of before the watermarks get theirs here: until then a lane is NULL
-- beside offsets that say it is not empty.
CREATE OR REPLACE FUNCTION queen.log_watermark_walk_step_v1(
    p_after UUID,
    p_limit INT,
    p_deep  BOOLEAN DEFAULT FALSE
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    c_repairs  CONSTANT INT := 100;
    v_limit    INT := greatest(COALESCE(p_limit, 1), 1);
    v_page     RECORD;
    v_last     UUID;
    v_wrong    UUID[];
    v_held     UUID[];
    v_repaired BIGINT := 0;
BEGIN
    SELECT count(*) AS n, (array_agg(l.id ORDER BY l.id DESC))[1] AS last,
           COALESCE(array_agg(l.id ORDER BY l.id) FILTER (WHERE l.wrong), '{}') AS wrong
    INTO v_page
    FROM (
        SELECT p.id,
               (p.oldest_live_at IS NULL) <> (p.log_start > p.last_offset)
               OR (p.oldest_txn_at IS NULL) <> (p.txns_start > p.last_offset)
               OR p_deep AND (live.created_at IS DISTINCT FROM p.oldest_live_at OR live.base_offset > p.log_start
                   OR txn.created_at IS DISTINCT FROM p.oldest_txn_at OR txn.base_offset > p.txns_start) AS wrong
        FROM (
            SELECT x.id, x.last_offset, x.log_start, x.txns_start, x.oldest_live_at, x.oldest_txn_at
            FROM queen.log_partitions AS x
            WHERE x.id > p_after
            ORDER BY x.id
            LIMIT v_limit
        ) AS p
        LEFT JOIN LATERAL (
            SELECT s.base_offset, s.created_at FROM queen.log_segments AS s
            WHERE p_deep AND s.partition_id = p.id AND s.base_offset >= p.log_start
            ORDER BY s.base_offset
            LIMIT 1
        ) AS live ON TRUE
        LEFT JOIN LATERAL (
            SELECT t.base_offset, t.created_at FROM queen.log_txns AS t
            WHERE p_deep AND t.partition_id = p.id AND t.base_offset >= p.txns_start
            ORDER BY t.base_offset
            LIMIT 1
        ) AS txn ON TRUE
    ) AS l;

    v_wrong := v_page.wrong[1:c_repairs];
    v_last := CASE WHEN cardinality(v_page.wrong) > c_repairs THEN v_wrong[c_repairs] ELSE v_page.last END;
    IF cardinality(v_wrong) > 0 THEN
        SELECT COALESCE(array_agg(l.id), '{}') INTO v_held
        FROM (
            SELECT p.id FROM queen.log_partitions AS p
            WHERE p.id = ANY (v_wrong)
            ORDER BY p.id
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS l;
        UPDATE queen.log_partitions AS p
        SET log_start = f.log_start, oldest_live_at = f.live_at, txns_start = f.txns_start, oldest_txn_at = f.txn_at
        FROM (
            SELECT o.id,
                   greatest(o.log_start, COALESCE(live.base_offset, o.last_offset + 1)) AS log_start, live.created_at AS live_at,
                   greatest(o.txns_start, COALESCE(txn.base_offset, o.last_offset + 1)) AS txns_start, txn.created_at AS txn_at
            FROM queen.log_partitions AS o
            LEFT JOIN LATERAL (
                SELECT s.base_offset, s.created_at FROM queen.log_segments AS s
                WHERE s.partition_id = o.id AND s.base_offset >= o.log_start
                ORDER BY s.base_offset
                LIMIT 1
            ) AS live ON TRUE
            LEFT JOIN LATERAL (
                SELECT t.base_offset, t.created_at FROM queen.log_txns AS t
                WHERE t.partition_id = o.id AND t.base_offset >= o.txns_start
                ORDER BY t.base_offset
                LIMIT 1
            ) AS txn ON TRUE
            WHERE o.id = ANY (v_held)
        ) AS f
        WHERE p.id = f.id
          AND (p.log_start, p.oldest_live_at, p.txns_start, p.oldest_txn_at)
              IS DISTINCT FROM (f.log_start, f.live_at, f.txns_start, f.txn_at);
        GET DIAGNOSTICS v_repaired = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('last', v_last, 'examined', v_page.n, 'repaired', v_repaired,
        'skipped', cardinality(v_wrong) - COALESCE(cardinality(v_held), 0),
        'end', v_page.n < v_limit AND v_last IS NOT DISTINCT FROM v_page.last);
END
$$;

-- A clock of database time that all maintainers share, since the leader's lock
-- moves: true, and wound up again, when the last true is p_every seconds past. A
-- clock that stands in the future, because the server's stepped back, is due; the time
-- is read when the row is held, or of two who ask at once the slower would see that.
CREATE OR REPLACE FUNCTION queen.maintenance_clock_due_v1(p_name TEXT, p_every DOUBLE PRECISION)
RETURNS BOOLEAN
LANGUAGE sql
AS $$
    WITH wound AS (
        INSERT INTO queen.system_state AS s (key, value, updated_at)
        VALUES ('maintenance_clock:' || p_name, to_jsonb(clock_timestamp()), clock_timestamp())
        ON CONFLICT (key) DO UPDATE SET value = to_jsonb(clock_timestamp()), updated_at = clock_timestamp()
        WHERE s.updated_at <= clock_timestamp() - make_interval(secs => p_every) OR s.updated_at > clock_timestamp()
        RETURNING TRUE
    )
    SELECT EXISTS (SELECT 1 FROM wound)
$$;
