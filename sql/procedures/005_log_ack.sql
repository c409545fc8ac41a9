-- Ack: move a group's cursor, give a lease back, dead-letter the head, and do
-- pushes and acks in one transaction.
--
-- Locks: acks take one log_consumers row each, FOR UPDATE, in the order of
-- (partition_id, consumer_group COLLATE "C") where there are several, and never
-- a partition row. The transaction takes, in order: rows of queen.kv, rows of
-- queen.log_timers (024 and 025 say in which order), provisioning inserts,
-- log_partitions rows ascending by id FOR NO KEY UPDATE, then consumers. No lane is
-- searched while a row of it is locked, see log_ack_seek_v1.
--
-- Measured on PostgreSQL 15, one message in a transaction of its own: the lease of
-- log_pop_specific_bin_v1 and its positional ack write 454 bytes of WAL (740 with
-- an index of workers), the lease and its ack by hash 511 (800).
--
-- Re-applying is safe: create-only table and indexes, CREATE OR REPLACE with
-- unchanged signatures; where one has changed, the old one is dropped in the
-- transaction that creates the new one.

-- Dead letters are snapshots: they outlive the segment they were cut from, so
-- partition_id has no foreign key. Only an operator, a replay or the deletion of
-- the queue removes a row.
CREATE TABLE IF NOT EXISTS queen.log_dlq (
    id             UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    partition_id   UUID NOT NULL,
    consumer_group TEXT NOT NULL,
    "offset"       BIGINT NOT NULL,
    message_id     UUID,
    transaction_id TEXT,
    payload        JSONB,
    error          TEXT,
    retry_count    INTEGER,
    failed_at      TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE INDEX IF NOT EXISTS idx_log_dlq_partition_failed_at ON queen.log_dlq (partition_id, failed_at DESC);

-- Dead letters of many partitions in the order in which they are listed, and those of
-- single messages. They are written too rarely for two more indexes to cost anything.
CREATE INDEX IF NOT EXISTS idx_log_dlq_failed_at ON queen.log_dlq (failed_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS idx_log_dlq_offset ON queen.log_dlq (partition_id, "offset");

-- An index of the leases by worker would cost every pop and every ack its HOT
-- update; renewals find their rows in another way, see log_find_leases_v1. The one
-- that generation 1 had goes, under a lock that is taken only where there is one.
DO $$
BEGIN
    IF to_regclass('queen.idx_log_consumers_worker') IS NOT NULL THEN
        DROP INDEX IF EXISTS queen.idx_log_consumers_worker;
    END IF;
END
$$;

-- Why a worker may not touch a row, NULL when it may. Without a worker nothing
-- is checked. VOLATILE, since the clock is read after the row lock was waited for.
CREATE OR REPLACE FUNCTION queen.log_lease_fault_v1(p_worker TEXT, p_holder TEXT, p_expires TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN COALESCE(p_worker, '') <> ''
                 AND (p_holder IS DISTINCT FROM p_worker OR p_expires IS NULL OR p_expires < clock_timestamp())
                THEN 'invalid or expired lease' END
$$;

-- Why a positional ack may not act on a row, NULL when it may. Without an offset
-- it only gives the lease back. p_whole admits nothing but a batch of which no
-- part is committed: the hash form would call that part a no-op.
CREATE OR REPLACE FUNCTION queen.log_position_fault_v1(
    p_worker    TEXT,
    p_upto      BIGINT,
    p_whole     BOOLEAN,
    p_holder    TEXT,
    p_expires   TIMESTAMPTZ,
    p_batch_end BIGINT,
    p_first     BIGINT,
    p_committed BIGINT
)
RETURNS TEXT
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN COALESCE(p_worker, '') <> ''
                 AND (p_holder IS DISTINCT FROM p_worker OR p_expires IS NULL OR p_expires < clock_timestamp())
                THEN 'invalid or expired lease'
                WHEN p_upto IS NULL THEN NULL
                WHEN p_batch_end IS NULL THEN 'no leased batch'
                WHEN p_whole AND (p_committed < p_first) IS NOT TRUE THEN 'batch partly committed' END
$$;

-- A positional ack: commits a leased batch up to an offset, or (p_ok false or no
-- offset) only gives the lease back. The lease ends in either case, so callers
-- use it for whole batches.
--
-- Almost every call is good, and then is one UPDATE: it waits for a locked row and
-- judges the version it gets. Taking the lock first costs as much again (measured
-- with its transaction: 27 us and 175 bytes of WAL against 40 us and 231; 55 us and
-- 306 bytes while there was an index of workers). Only a refusal looks again, for
-- its reason.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_ack_at_v1(UUID, TEXT, TEXT, BIGINT, BOOLEAN, INTEGER);
CREATE OR REPLACE FUNCTION queen.log_ack_at_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_upto         BIGINT,
    p_ok           BOOLEAN DEFAULT TRUE,
    p_acked_count  INTEGER DEFAULT 0,
    p_whole        BOOLEAN DEFAULT FALSE
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c       queen.log_consumers%ROWTYPE;
    v_fault TEXT;
    v_upto  BIGINT := CASE WHEN COALESCE(p_ok, TRUE) THEN p_upto END;
    v_count INT := CASE WHEN v_upto IS NULL THEN 0 ELSE greatest(COALESCE(p_acked_count, 0), 0) END;
BEGIN
    LOOP
        -- Beyond the batch counts as its end; a cursor never moves back.
        UPDATE queen.log_consumers AS l
        SET committed = CASE WHEN v_upto IS NULL THEN l.committed ELSE greatest(l.committed, least(v_upto, l.batch_end)) END,
            worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
            batch_retry_count = CASE WHEN v_upto >= l.batch_end THEN 0 ELSE l.batch_retry_count END,
            attempt_offset = CASE WHEN v_upto >= l.batch_end THEN NULL ELSE l.attempt_offset END,
            attempt_count = CASE WHEN v_upto >= l.batch_end THEN 0 ELSE l.attempt_count END,
            total_consumed = l.total_consumed + v_count
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group
          AND queen.log_position_fault_v1(p_worker, v_upto, p_whole, l.worker_id, l.lease_expires_at, l.batch_end,
                  l.attempt_offset, l.committed) IS NULL;
        IF FOUND THEN
            RETURN jsonb_build_object('ok', TRUE, 'acked', v_count);
        END IF;

        SELECT * INTO c
        FROM queen.log_consumers AS l
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group
        FOR UPDATE;
        IF NOT FOUND THEN
            RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
        END IF;
        v_fault := queen.log_position_fault_v1(p_worker, v_upto, p_whole, c.worker_id, c.lease_expires_at, c.batch_end,
            c.attempt_offset, c.committed);
        -- Without one the row has changed since the statement began: now it cannot.
        IF v_fault IS NOT NULL THEN
            RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
        END IF;
    END LOOP;
END
$$;
COMMIT;

-- log_ack_at_v1 for a partition addressed by names.
CREATE OR REPLACE FUNCTION queen.log_ack_v1(
    p_queue       TEXT,
    p_partition   TEXT,
    p_group       TEXT,
    p_worker      TEXT,
    p_upto        BIGINT,
    p_ok          BOOLEAN DEFAULT TRUE,
    p_acked_count INTEGER DEFAULT 0,
    p_tenant      UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_pid UUID := queen.log_partition_id_v1(p_tenant, p_queue, p_partition);
BEGIN
    IF v_pid IS NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'partition not found');
    END IF;
    RETURN queen.log_ack_at_v1(v_pid, p_group, p_worker, p_upto, p_ok, p_acked_count);
END
$$;

-- Full-batch advances of many cursors in one transaction, answered in input
-- order. A second row for one cursor finds the lease gone and is rejected.
-- Without p_wait a row that somebody has locked is left alone and answered
-- "busy", so that one held cursor does not hold up the others.
--
-- One statement locks all rows in order and updates those that are good.
-- Measured, microseconds of the server's CPU for a call, its transaction included,
-- and bytes of WAL for a row:
--
--     rows in the call                      1     8    32   128   WAL
--     log_ack_at_v1 for each               65   200   690  2250   115
--     the same, skipping locked rows       70   250   760  3500   171
--     this, skipping locked rows          130   215   620  2200   171
--
-- One row is the business of log_ack_at_v1. The settings keep the plan a lookup by
-- primary key for each row under any statistics, and keep it from being made anew
-- with every call (400 us for one row).
BEGIN;
DROP FUNCTION IF EXISTS queen.log_ack_multi_v1(TEXT[], TEXT[], BIGINT[], TEXT[], INT[]);
CREATE OR REPLACE FUNCTION queen.log_ack_multi_v1(
    p_pids    TEXT[],
    p_groups  TEXT[],
    p_ends    BIGINT[],
    p_workers TEXT[],
    p_counts  INT[],
    p_whole   BOOLEAN DEFAULT FALSE,
    p_wait    BOOLEAN DEFAULT TRUE
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_n       INT := COALESCE(cardinality(p_pids), 0);
    v_pids    UUID[] := p_pids::UUID[];
    v_results JSONB;
BEGIN
    IF ROW (v_n, v_n, v_n, v_n) IS DISTINCT FROM ROW (
        COALESCE(cardinality(p_groups), 0), COALESCE(cardinality(p_ends), 0),
        COALESCE(cardinality(p_workers), 0), COALESCE(cardinality(p_counts), 0)) THEN
        RAISE EXCEPTION 'QACKM misaligned arrays: % partitions, % groups, % ends, % workers, % counts', v_n,
            cardinality(p_groups), cardinality(p_ends), cardinality(p_workers), cardinality(p_counts)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_n = 0 THEN
        RETURN '{"ok": true, "results": []}';
    END IF;
    IF p_wait THEN
        PERFORM FROM unnest(v_pids, p_groups) AS u (pid, grp)
        JOIN queen.log_consumers AS l ON l.partition_id = u.pid AND l.consumer_group = u.grp
        ORDER BY l.partition_id, l.consumer_group COLLATE "C"
        FOR UPDATE OF l;
    END IF;

    WITH held AS MATERIALIZED (
        SELECT u.ord, u.upto, u.worker, u.n, l.*
        FROM unnest(v_pids, p_groups, p_ends, p_workers, p_counts) WITH ORDINALITY AS u (pid, grp, upto, worker, n, ord)
        JOIN queen.log_consumers AS l ON l.partition_id = u.pid AND l.consumer_group = u.grp
        ORDER BY l.partition_id, l.consumer_group COLLATE "C", u.ord
        FOR UPDATE OF l SKIP LOCKED
    ), judged AS MATERIALIZED (
        SELECT h.*, queen.log_position_fault_v1(h.worker, h.upto, p_whole, h.worker_id, h.lease_expires_at, h.batch_end,
                        h.attempt_offset, h.committed) AS fault
        FROM held AS h
    ), good AS MATERIALIZED (
        SELECT DISTINCT ON (j.partition_id, j.consumer_group) j.*
        FROM judged AS j
        WHERE j.fault IS NULL
        ORDER BY j.partition_id, j.consumer_group, j.ord
    ), done AS (
        UPDATE queen.log_consumers AS l
        SET committed = CASE WHEN g.upto IS NULL THEN g.committed ELSE greatest(g.committed, least(g.upto, g.batch_end)) END,
            worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
            batch_retry_count = CASE WHEN g.upto >= g.batch_end THEN 0 ELSE g.batch_retry_count END,
            attempt_offset = CASE WHEN g.upto >= g.batch_end THEN NULL ELSE g.attempt_offset END,
            attempt_count = CASE WHEN g.upto >= g.batch_end THEN 0 ELSE g.attempt_count END,
            total_consumed = g.total_consumed + CASE WHEN g.upto IS NULL THEN 0 ELSE greatest(COALESCE(g.n, 0), 0) END
        FROM good AS g
        WHERE l.partition_id = g.partition_id AND l.consumer_group = g.consumer_group
        RETURNING g.ord, CASE WHEN g.upto IS NULL THEN 0 ELSE greatest(COALESCE(g.n, 0), 0) END AS acked
    ), verdicts AS (
        SELECT d.ord, TRUE AS ok, d.acked, NULL AS error FROM done AS d
        UNION ALL
        SELECT j.ord, FALSE, 0, COALESCE(j.fault,
            CASE WHEN COALESCE(j.worker, '') = '' THEN 'no leased batch' ELSE 'invalid or expired lease' END)
        FROM judged AS j
        WHERE j.ord NOT IN (SELECT g.ord FROM good AS g)
        UNION ALL
        SELECT u.ord, FALSE, 0, CASE WHEN NOT p_wait AND EXISTS (
                SELECT FROM queen.log_consumers AS l WHERE l.partition_id = u.pid AND l.consumer_group = u.grp)
            THEN 'busy' ELSE 'consumer not found' END
        FROM unnest(v_pids, p_groups) WITH ORDINALITY AS u (pid, grp, ord)
        WHERE u.ord NOT IN (SELECT j.ord FROM judged AS j)
    )
    SELECT jsonb_agg(jsonb_build_object('ok', v.ok, 'acked', v.acked, 'error', v.error) ORDER BY v.ord)
    INTO v_results
    FROM verdicts AS v;
    RETURN jsonb_build_object('ok', TRUE, 'results', v_results);
END
$$;
COMMIT;

-- Ends leased batches and leases each lane anew in the same update, to a consumer whose
-- next messages the caller has in memory: p_next is that consumer's lease id, p_until
-- the end of his batch, which lies in the one segment that p_bases and p_times name.
-- A row whose lease is not as the caller thinks, or whose next messages may not be
-- delivered as they are (retention took them, the segment is not the one that comes
-- next, the queue holds messages back, the group is not registered), is left as it is;
-- so is one that somebody has locked. No cursor is named twice.
--
-- handed are the places of the rows, lasts the newest offsets of their lanes. What is
-- left is for log_ack_multi_v1 and log_pop_multi_v1, which do the same in two statements.
--
-- The subqueries, OFFSET 0 and the settings make every plan look each row up by its key,
-- also one that a session has made, and keeps, while the tables were empty. A cursor is
-- locked last, so that nothing is locked that is refused.
CREATE OR REPLACE FUNCTION queen.log_handover_v1(
    p_pids    UUID[],
    p_groups  TEXT[],
    p_ends    BIGINT[],
    p_workers TEXT[],
    p_counts  INT[],
    p_next    TEXT[],
    p_until   BIGINT[],
    p_leases  INT[],
    p_bases   BIGINT[],
    p_times   TIMESTAMPTZ[],
    p_skip    BOOLEAN[],
    OUT handed INT[],
    OUT lasts  BIGINT[]
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now TIMESTAMPTZ := clock_timestamp();
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT u.ord::int AS ord, u.pid, u.grp, u.upto, u.worker, u.n, u.next, u.until, p.last_offset,
               CASE WHEN u.lease > 0 THEN u.lease WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END AS lease
        FROM unnest(p_pids, p_groups, p_ends, p_workers, p_counts, p_next, p_until, p_leases, p_bases, p_times, p_skip)
             WITH ORDINALITY AS u (pid, grp, upto, worker, n, next, until, lease, base, at, skip, ord)
        CROSS JOIN LATERAL (SELECT x.queue_id, x.last_offset FROM queen.log_partitions AS x WHERE x.id = u.pid OFFSET 0) AS p
        CROSS JOIN LATERAL (
            SELECT x.id, x.tenant_id, x.lease_time FROM queen.queues AS x
            WHERE x.id = p.queue_id AND COALESCE(x.delayed_processing, 0) <= 0 AND (u.skip OR COALESCE(x.window_buffer, 0) <= 0)
            OFFSET 0) AS q
        WHERE u.base <= u.upto + 1 AND u.until > u.upto
          AND EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS m
                      WHERE m.tenant_id = q.tenant_id AND m.consumer_group = u.grp AND m.queue_id = q.id
                        AND m.partition_name = '' AND m.namespace = '' AND m.task = '' OFFSET 0)
          AND EXISTS (SELECT 1 FROM queen.log_segments AS s
                      WHERE s.partition_id = u.pid AND s.base_offset = u.base AND s.created_at = u.at AND s.end_offset >= u.until OFFSET 0)
        ORDER BY u.pid, u.grp COLLATE "C"
    ), held AS MATERIALIZED (
        SELECT a.*
        FROM asked AS a
        CROSS JOIN LATERAL (
            SELECT FROM queen.log_consumers AS c
            WHERE c.partition_id = a.pid AND c.consumer_group = a.grp
              AND c.worker_id = a.worker AND c.lease_expires_at >= v_now AND c.batch_end = a.upto AND c.committed < c.attempt_offset
            FOR UPDATE SKIP LOCKED) AS c
    ), moved AS (
        UPDATE queen.log_consumers AS c
        SET committed = h.upto, batch_end = h.until, worker_id = h.next,
            lease_acquired_at = v_now, lease_expires_at = v_now + make_interval(secs => h.lease),
            batch_retry_count = 0, attempt_offset = h.upto + 1, attempt_count = 1,
            total_consumed = c.total_consumed + greatest(h.n, 0)
        FROM held AS h
        WHERE c.partition_id = h.pid AND c.consumer_group = h.grp
          AND c.partition_id = ANY (ARRAY(SELECT x.pid FROM held AS x))
    )
    SELECT array_agg(h.ord), array_agg(h.last_offset) INTO handed, lasts FROM held AS h;
END
$$;

-- For each hash the lowest offset in [p_low, p_high] at which the sidecar rows
-- with p_from <= base_offset <= p_to hold it; NULL where they do not.
--
-- One hash join whose built side is the submitted hashes: the planner takes an
-- unnest for ten rows and log_unnest_hashes for a thousand. The outer OFFSET 0 and
-- the settings keep it so for any statistics; the nested loop over that function
-- is unavoidable, and the price that enable_nestloop puts on it would start the
-- JIT compiler (measured: 240 ms for one hash). "|| ''" behind the inner OFFSET 0
-- fetches a blob stored out of line once; slicing the column itself fetches it
-- once per frame. Measured: 1000 hashes of a batch of 10 segments, 2.4 ms.
CREATE OR REPLACE FUNCTION queen.log_ack_match_v1(
    p_pid    UUID,
    p_from   BIGINT,
    p_to     BIGINT,
    p_low    BIGINT,
    p_high   BIGINT,
    p_hashes BYTEA[]
)
RETURNS BIGINT[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT array_agg(f.off ORDER BY i.ord)
        FROM unnest(p_hashes) WITH ORDINALITY AS i (h, ord)
        LEFT JOIN (
            SELECT w.h, min(e.off) AS off
            FROM (
                SELECT s.base_offset + x.idx AS off, x.h
                FROM (
                    SELECT t.base_offset, t.hashes || ''::BYTEA AS hashes
                    FROM queen.log_txns AS t
                    WHERE t.partition_id = p_pid AND t.base_offset BETWEEN p_from AND p_to
                    OFFSET 0
                ) AS s
                CROSS JOIN LATERAL queen.log_unnest_hashes(s.hashes) AS x
                WHERE s.base_offset + x.idx BETWEEN p_low AND p_high
                OFFSET 0
            ) AS e
            JOIN (SELECT DISTINCT u.h FROM unnest(p_hashes) AS u (h)) AS w ON w.h = e.h
            GROUP BY w.h
        ) AS f ON f.h = i.h
    );
END
$$;

-- The lowest offset from p_low up to p_high (without it, without end) of each
-- hash. A span with an end is a batch, and one page; one without is read upwards
-- in pages that double, until every hash is found. Ranges are disjoint and
-- ascending, so the first page that has a hash has its lowest offset.
CREATE OR REPLACE FUNCTION queen.log_ack_resolve_v1(p_pid UUID, p_low BIGINT, p_high BIGINT, p_hashes BYTEA[])
RETURNS BIGINT[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_high BIGINT := COALESCE(p_high, 9223372036854775807);
    v_from BIGINT;
    v_to   BIGINT;
    v_page INT := 64;
    v_part BIGINT[];
    v_offs BIGINT[] := array_fill(NULL::BIGINT, ARRAY[cardinality(p_hashes)]);
BEGIN
    -- The row that covers p_low may begin below it.
    SELECT t.base_offset INTO v_from
    FROM queen.log_txns AS t
    WHERE t.partition_id = p_pid AND t.base_offset <= p_low
    ORDER BY t.base_offset DESC
    LIMIT 1;
    v_from := COALESCE(v_from, p_low);
    IF p_high IS NOT NULL AND cardinality(p_hashes) = 1 THEN
        -- One hash needs no join, and no settings against a bad one.
        RETURN ARRAY[(
            SELECT min(s.base_offset + x.idx)
            FROM (
                SELECT t.base_offset, t.hashes || ''::BYTEA AS hashes
                FROM queen.log_txns AS t
                WHERE t.partition_id = p_pid AND t.base_offset BETWEEN v_from AND p_high
                OFFSET 0
            ) AS s
            CROSS JOIN LATERAL queen.log_unnest_hashes(s.hashes) AS x
            WHERE x.h = p_hashes[1] AND s.base_offset + x.idx BETWEEN p_low AND p_high
        )];
    END IF;
    IF p_high IS NOT NULL THEN
        RETURN queen.log_ack_match_v1(p_pid, v_from, p_high, p_low, p_high, p_hashes);
    END IF;

    LOOP
        SELECT max(g.base_offset) INTO v_to
        FROM (
            SELECT t.base_offset
            FROM queen.log_txns AS t
            WHERE t.partition_id = p_pid AND t.base_offset >= v_from
            ORDER BY t.base_offset
            LIMIT v_page
        ) AS g;
        EXIT WHEN v_to IS NULL;
        v_part := queen.log_ack_match_v1(p_pid, v_from, v_to, p_low, v_high, p_hashes);
        SELECT array_agg(COALESCE(u.off, u.part) ORDER BY u.ord) INTO v_offs
        FROM unnest(v_offs, v_part) WITH ORDINALITY AS u (off, part, ord);
        EXIT WHEN array_position(v_offs, NULL) IS NULL;
        v_from := v_to + 1;
        v_page := least(v_page * 2, 4096);
    END LOOP;
    RETURN v_offs;
END
$$;

-- Which hashes occur at or below the cursor; a NULL hash asks nothing. Read
-- downwards in the same way: what is acked twice was mostly acked just before.
CREATE OR REPLACE FUNCTION queen.log_ack_below_v1(p_pid UUID, p_committed BIGINT, p_hashes BYTEA[])
RETURNS BOOLEAN[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_wanted INT := cardinality(array_remove(p_hashes, NULL));
    v_from   BIGINT;
    v_to     BIGINT := p_committed;
    v_page   INT := 64;
    v_part   BIGINT[];
    v_found  BOOLEAN[] := array_fill(FALSE, ARRAY[cardinality(p_hashes)]);
BEGIN
    LOOP
        SELECT min(g.base_offset) INTO v_from
        FROM (
            SELECT t.base_offset
            FROM queen.log_txns AS t
            WHERE t.partition_id = p_pid AND t.base_offset <= v_to
            ORDER BY t.base_offset DESC
            LIMIT v_page
        ) AS g;
        EXIT WHEN v_from IS NULL;
        v_part := queen.log_ack_match_v1(p_pid, v_from, v_to, 0, p_committed, p_hashes);
        SELECT array_agg(u.found OR u.part IS NOT NULL ORDER BY u.ord) INTO v_found
        FROM unnest(v_found, v_part) WITH ORDINALITY AS u (found, part, ord);
        EXIT WHEN cardinality(array_positions(v_found, TRUE)) >= v_wanted;
        v_to := v_from - 1;
        v_page := least(v_page * 2, 4096);
    END LOOP;
    RETURN v_found;
END
$$;

-- Where the hashes of an ack are, without a lock: the cursor and the end of the
-- batch as they are now, and for each hash its lowest offset beyond the cursor and
-- within the batch, -1 when it occurs only at or below the cursor, NULL for
-- neither. An id that is not in the batch is searched through the whole lane
-- (200 to 500 ms for a million frames), too long to keep a cursor locked. For a
-- lease that would be refused nothing is searched; the answer has no cursor then.
CREATE OR REPLACE FUNCTION queen.log_ack_seek_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_hashes       BYTEA[],
    OUT o_committed BIGINT,
    OUT o_batch_end BIGINT,
    OUT o_offs      BIGINT[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    c       RECORD;
    v_below BOOLEAN[];
BEGIN
    -- Offsets below txns_start have lost their hashes.
    SELECT l.committed, l.batch_end, l.worker_id, l.lease_expires_at,
           greatest(l.committed + 1, COALESCE((SELECT p.txns_start FROM queen.log_partitions AS p WHERE p.id = l.partition_id), 0)) AS low
    INTO c
    FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    IF NOT FOUND OR queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at) IS NOT NULL
       OR COALESCE(cardinality(p_hashes), 0) = 0 THEN
        RETURN;
    END IF;
    o_committed := c.committed;
    o_batch_end := c.batch_end;
    o_offs := queen.log_ack_resolve_v1(p_partition_id, c.low, c.batch_end, p_hashes);
    IF array_position(o_offs, NULL) IS NOT NULL AND c.committed >= 0 THEN
        v_below := queen.log_ack_below_v1(p_partition_id, c.committed, (
            SELECT array_agg(CASE WHEN u.off IS NULL THEN u.h END ORDER BY u.ord)
            FROM unnest(p_hashes, o_offs) WITH ORDINALITY AS u (h, off, ord)));
        SELECT array_agg(CASE WHEN u.off IS NULL AND u.below THEN -1 ELSE u.off END ORDER BY u.ord) INTO o_offs
        FROM unnest(o_offs, v_below) WITH ORDINALITY AS u (off, below, ord);
    END IF;
END
$$;

-- Brings what log_ack_seek_v1 found up to a row that was locked since. It costs
-- what the cursor has moved meanwhile, and the batch that is leased now; only a
-- cursor that went back, or a lease that came to an end without one, is searched
-- anew.
CREATE OR REPLACE FUNCTION queen.log_ack_refresh_v1(
    p_partition_id UUID,
    p_committed    BIGINT,
    p_batch_end    BIGINT,
    p_hashes       BYTEA[],
    p_seen         BIGINT,
    p_offs         BIGINT[]
)
RETURNS BIGINT[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_low   BIGINT := COALESCE((SELECT p.txns_start FROM queen.log_partitions AS p WHERE p.id = p_partition_id), 0);
    v_offs  BIGINT[] := queen.log_ack_resolve_v1(p_partition_id, greatest(p_committed + 1, v_low), p_batch_end, p_hashes);
    v_below BOOLEAN[];
    v_moved BIGINT[];
BEGIN
    IF array_position(v_offs, NULL) IS NULL OR p_committed < 0 THEN
        RETURN v_offs;
    END IF;
    IF p_seen IS NULL OR p_committed < p_seen THEN
        v_below := queen.log_ack_below_v1(p_partition_id, p_committed, (
            SELECT array_agg(CASE WHEN u.off IS NULL THEN u.h END ORDER BY u.ord)
            FROM unnest(p_hashes, v_offs) WITH ORDINALITY AS u (h, off, ord)));
    ELSE
        -- What was below stays there; the rest may be in what was passed since.
        v_moved := queen.log_ack_resolve_v1(p_partition_id, p_seen + 1, p_committed, p_hashes);
        SELECT array_agg(u.was = -1 OR u.moved IS NOT NULL ORDER BY u.ord) INTO v_below
        FROM unnest(p_offs, v_moved) WITH ORDINALITY AS u (was, moved, ord);
    END IF;
    RETURN (SELECT array_agg(CASE WHEN u.off IS NULL AND u.below THEN -1 ELSE u.off END ORDER BY u.ord)
            FROM unnest(v_offs, v_below) WITH ORDINALITY AS u (off, below, ord));
END
$$;

-- The authoritative ack. An ack of an offset completes everything below it; the
-- lowest explicit signal (dlq before failed before retry at one offset) stops
-- the cursor below itself and decides what becomes of the lease. Signals act on
-- a leased batch only: without one they just stop the cursor.
CREATE OR REPLACE FUNCTION queen.log_ack_by_hash_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_hashes       BYTEA[],
    p_statuses     TEXT[]
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    s RECORD;
BEGIN
    s := queen.log_ack_seek_v1(p_partition_id, p_group, p_worker, p_hashes);
    RETURN queen.log_ack_decide_v1(p_partition_id, p_group, p_worker, p_hashes, p_statuses,
        s.o_committed, s.o_batch_end, s.o_offs);
END
$$;

-- log_ack_by_hash_v1 for completed messages, no two of which have the same hash; the
-- caller vouches for that. p_hashes are their hashes, 16 bytes each, one after the
-- other.
--
-- Mostly they are a batch that another broker has delivered, whole and in order.
-- Then they equal what the sidecar has of the span, byte for byte, and the ack is
-- one UPDATE as in log_ack_at_v1, which compares anew should the row have changed
-- meanwhile. Measured, microseconds of the server's CPU for a call, its transaction
-- included, for batches of 1, 8 and 100 messages in 1, 2 and 10 segments:
--
--     log_ack_by_hash_v1       150   280   450
--     this, a whole batch       45    95   100
--     log_ack_at_v1             15    30    60
CREATE OR REPLACE FUNCTION queen.log_ack_completed_v1(p_partition_id UUID, p_group TEXT, p_worker TEXT, p_hashes BYTEA)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_n   BIGINT := octet_length(p_hashes) / 16;
    v_off BIGINT;
BEGIN
    UPDATE queen.log_consumers AS l
    SET committed = l.batch_end, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL, batch_retry_count = 0,
        attempt_offset = NULL, attempt_count = 0, total_consumed = l.total_consumed + v_n
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group
      AND queen.log_lease_fault_v1(p_worker, l.worker_id, l.lease_expires_at) IS NULL
      -- A sidecar row that is missing makes the right side shorter than the span.
      AND l.batch_end - l.committed = v_n
      AND p_hashes = (
          SELECT string_agg(s.part, ''::BYTEA)
          FROM (
              SELECT substr(t.hashes, 1 + 16 * greatest(l.committed + 1 - t.base_offset, 0)::INT,
                         16 * (least(t.end_offset, l.batch_end) - greatest(t.base_offset, l.committed + 1) + 1)::INT) AS part
              FROM queen.log_txns AS t
              WHERE t.partition_id = l.partition_id AND t.base_offset <= l.batch_end AND t.end_offset > l.committed
                AND t.base_offset >= (
                    SELECT max(f.base_offset)
                    FROM queen.log_txns AS f
                    WHERE f.partition_id = l.partition_id AND f.base_offset <= l.committed + 1)
              ORDER BY t.base_offset
          ) AS s)
    RETURNING l.committed INTO v_off;
    IF FOUND THEN
        RETURN jsonb_build_object('ok', TRUE, 'acked', v_n, 'released', TRUE, 'off', v_off);
    END IF;
    RETURN queen.log_ack_by_hash_v1(p_partition_id, p_group, p_worker,
        ARRAY(SELECT x.h FROM queen.log_unnest_hashes(p_hashes) AS x ORDER BY x.idx), NULL);
END
$$;

-- log_ack_by_hash_v1 with what log_ack_seek_v1 has found.
CREATE OR REPLACE FUNCTION queen.log_ack_decide_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_hashes       BYTEA[],
    p_statuses     TEXT[],
    p_seen         BIGINT,
    p_seen_end     BIGINT,
    p_offs         BIGINT[]
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c         queen.log_consumers%ROWTYPE;
    v_n       INT := COALESCE(cardinality(p_hashes), 0);
    v_fault   TEXT;
    v_kinds   TEXT[];
    v_offs    BIGINT[] := p_offs;
    v_signal  TEXT;
    v_poison  BIGINT;
    v_limit   INT;
    v_letters BOOLEAN;
    v_act     TEXT := 'advance';
    v_end     BOOLEAN;
    v_new     BIGINT;
    v_delta   BIGINT;
    v_lists   JSONB;
BEGIN
    IF p_statuses IS NOT NULL AND cardinality(p_statuses) <> v_n THEN
        RAISE EXCEPTION 'QACK misaligned arrays: % hashes, % statuses', v_n, cardinality(p_statuses)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO c
    FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    v_fault := queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at);
    IF v_fault IS NOT NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
    END IF;
    IF v_n > 0 AND (p_seen, p_seen_end) IS DISTINCT FROM (c.committed, c.batch_end) THEN
        v_offs := queen.log_ack_refresh_v1(p_partition_id, c.committed, c.batch_end, p_hashes, p_seen, p_offs);
    END IF;

    IF v_n > 0 AND array_position(v_offs, NULL) IS NULL AND array_position(v_offs, -1) IS NULL
       AND (p_statuses IS NULL OR p_statuses <@ ARRAY['', 'completed', 'success', 'acked', 'ok']) THEN
        -- Nothing but good news of what is in the batch, as almost always: a third of
        -- the work of this procedure is saved.
        v_new := v_offs[1];
        IF v_n > 1 THEN
            SELECT max(u.off) INTO v_new FROM unnest(v_offs) AS u (off);
        END IF;
        v_lists := '{"noopHashes": [], "staleHashes": [], "unresolvedHashes": []}';
    ELSE
        -- What was said about them: ok, one of the signals, or nothing known.
        SELECT array_agg(CASE
                   WHEN COALESCE(u.status, '') IN ('', 'completed', 'success', 'acked', 'ok') THEN 'ok'
                   WHEN u.status IN ('failed', 'dlq', 'retry') THEN u.status
               END ORDER BY u.ord)
        INTO v_kinds
        FROM unnest(p_hashes, p_statuses) WITH ORDINALITY AS u (h, status, ord);

        SELECT u.kind, u.off INTO v_signal, v_poison
        FROM unnest(v_kinds, v_offs) AS u (kind, off)
        WHERE u.off >= 0 AND u.kind <> 'ok'
        ORDER BY u.off, array_position(ARRAY['dlq', 'failed', 'retry'], u.kind)
        LIMIT 1;

        SELECT COALESCE(max(u.off) FILTER (WHERE u.kind = 'ok' AND u.off >= 0 AND (v_poison IS NULL OR u.off < v_poison)), c.committed),
               jsonb_build_object(
                   'noopHashes', COALESCE(jsonb_agg(encode(u.h, 'hex') ORDER BY u.ord)
                       FILTER (WHERE u.off = -1 AND u.kind = 'ok'), '[]'),
                   'staleHashes', COALESCE(jsonb_agg(encode(u.h, 'hex') ORDER BY u.ord)
                       FILTER (WHERE u.off = -1 AND u.kind <> 'ok'), '[]'),
                   'unresolvedHashes', COALESCE(jsonb_agg(encode(u.h, 'hex') ORDER BY u.ord)
                       FILTER (WHERE u.off IS NULL), '[]'))
        INTO v_new, v_lists
        FROM unnest(p_hashes, v_kinds, v_offs) WITH ORDINALITY AS u (h, kind, off, ord);
    END IF;
    v_delta := greatest(v_new - c.committed, 0);

    -- What that does to the batch.
    IF c.batch_end IS NOT NULL THEN
        IF v_signal = 'failed' THEN
            SELECT q.retry_limit, COALESCE(q.dead_letter_queue, TRUE) OR COALESCE(q.dlq_after_max_retries, TRUE)
            INTO v_limit, v_letters
            FROM queen.log_partitions AS p
            JOIN queen.queues AS q ON q.id = p.queue_id
            WHERE p.id = p_partition_id;
        END IF;
        v_act := CASE
            WHEN v_signal IS NULL AND v_new >= c.batch_end THEN 'complete'
            WHEN v_signal IS NULL THEN 'advance'
            WHEN v_signal = 'retry' THEN 'release'
            WHEN v_signal = 'dlq' THEN 'letter'
            WHEN c.batch_retry_count < COALESCE(v_limit, 3) THEN 'charge'
            WHEN COALESCE(v_letters, TRUE) THEN 'letter'
            ELSE 'drop'
        END;
    END IF;
    v_end := v_act IN ('complete', 'release', 'charge', 'drop');

    IF v_act <> 'advance' OR v_delta > 0 THEN
        UPDATE queen.log_consumers AS l
        SET committed = CASE WHEN v_act = 'drop' THEN v_poison ELSE v_new END,
            total_consumed = c.total_consumed + v_delta + CASE WHEN v_act = 'drop' THEN 1 ELSE 0 END,
            worker_id = CASE WHEN NOT v_end THEN c.worker_id END,
            batch_end = CASE WHEN NOT v_end THEN c.batch_end END,
            -- The lease outlives the hand-off: an ack that names no lease may find
            -- one that has run out and is not claimed again yet.
            lease_expires_at = CASE
                WHEN v_act = 'letter' THEN greatest(c.lease_expires_at, clock_timestamp() + INTERVAL '10 seconds')
                WHEN NOT v_end THEN c.lease_expires_at END,
            batch_retry_count = CASE
                WHEN v_act = 'charge' THEN c.batch_retry_count + 1
                WHEN v_act IN ('complete', 'drop') THEN 0
                ELSE c.batch_retry_count END,
            attempt_offset = CASE WHEN v_act <> 'complete' THEN c.attempt_offset END,
            attempt_count = CASE WHEN v_act <> 'complete' THEN c.attempt_count ELSE 0 END
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    END IF;

    RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'released', v_end) || CASE v_act
        WHEN 'letter' THEN jsonb_build_object('dlq', TRUE, 'off', v_poison,
            'partitionId', p_partition_id, 'group', p_group, 'worker', c.worker_id)
        WHEN 'drop' THEN jsonb_build_object('dropped', TRUE, 'off', v_poison)
        ELSE jsonb_build_object('off', v_new) END;
END
$$;

-- The cursors on which workers hold live leases, by one pass over all cursors:
-- 50 to 60 ms of CPU for a million (180 MB). There is no index of workers: with it a lease and its ack
-- cost 800 bytes of WAL, without it 510, and two index entries each (they are no
-- HOT updates then), while few leases are ever renewed. A broker knows the cursors
-- of the leases it has given out, and asks for others once in the life of a
-- lease, all that it is asked for at the time together.
CREATE OR REPLACE FUNCTION queen.log_find_leases_v1(p_workers TEXT[])
RETURNS TABLE (worker_id TEXT, partition_id UUID, consumer_group TEXT)
LANGUAGE sql VOLATILE
AS $$
    SELECT c.worker_id, c.partition_id, c.consumer_group
    FROM queen.log_consumers AS c
    WHERE c.worker_id = ANY (p_workers) AND c.worker_id <> '' AND c.lease_expires_at > statement_timestamp()
$$;

-- Renews the live leases of a worker on the cursors at which they can be. Never
-- shortens one, never revives one.
CREATE OR REPLACE FUNCTION queen.log_renew_lanes_v1(p_worker TEXT, p_seconds INTEGER, p_pids UUID[], p_groups TEXT[])
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_renewed INT;
    v_expires TIMESTAMPTZ;
BEGIN
    WITH held AS (
        SELECT c.partition_id, c.consumer_group
        FROM unnest(p_pids, p_groups) AS u (pid, grp)
        JOIN queen.log_consumers AS c ON c.partition_id = u.pid AND c.consumer_group = u.grp
        WHERE c.worker_id = p_worker AND p_worker <> '' AND c.lease_expires_at > v_now
        ORDER BY c.partition_id, c.consumer_group COLLATE "C"
        FOR UPDATE OF c
    ), renewed AS (
        UPDATE queen.log_consumers AS c
        SET lease_expires_at = greatest(c.lease_expires_at,
                v_now + make_interval(secs => greatest(COALESCE(p_seconds, 60), 1)))
        FROM held AS h
        WHERE c.partition_id = h.partition_id AND c.consumer_group = h.consumer_group
        RETURNING c.lease_expires_at
    )
    SELECT count(*), min(r.lease_expires_at) INTO v_renewed, v_expires FROM renewed AS r;
    RETURN jsonb_build_object('renewed', v_renewed, 'expiresAt', queen.iso_us_v1(v_expires));
END
$$;

-- Renews every live lease of a worker, wherever it is.
CREATE OR REPLACE FUNCTION queen.log_renew_lease_v1(p_worker TEXT, p_seconds INTEGER)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT queen.log_renew_lanes_v1(p_worker, p_seconds, array_agg(f.partition_id), array_agg(f.consumer_group))
    FROM queen.log_find_leases_v1(ARRAY[p_worker]) AS f
$$;

-- Where the cursor of a group is; NULL when it has none.
CREATE OR REPLACE FUNCTION queen.log_cursor_v1(p_partition_id UUID, p_group TEXT)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT c.committed FROM queen.log_consumers AS c WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group
$$;

-- Second half of a dead-letter hand-off: files the snapshot, steps over the
-- message, gives the lease back. Called again it finds no lease, or without a
-- worker the message passed and no batch leased, and does nothing.
CREATE OR REPLACE FUNCTION queen.log_dlq_head_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_off          BIGINT,
    p_message_id   UUID,
    p_txn          TEXT,
    p_payload      JSONB,
    p_error        TEXT
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c       queen.log_consumers%ROWTYPE;
    v_fault TEXT;
    v_id    UUID;
BEGIN
    SELECT * INTO c
    FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    v_fault := queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at);
    IF v_fault IS NULL AND COALESCE(p_worker, '') = '' AND c.committed >= p_off THEN
        v_fault := 'already committed: the cursor moved past this message before this ack';
    END IF;
    IF v_fault IS NOT NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
    END IF;
    INSERT INTO queen.log_dlq
        (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count)
    VALUES (p_partition_id, p_group, p_off, p_message_id, p_txn, p_payload, p_error, c.batch_retry_count)
    RETURNING id INTO v_id;
    UPDATE queen.log_consumers AS l
    SET committed = greatest(c.committed, p_off), worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
        attempt_offset = NULL, attempt_count = 0, batch_retry_count = 0, total_consumed = c.total_consumed + 1
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    RETURN jsonb_build_object('ok', TRUE, 'id', v_id);
END
$$;

-- Pushes and acks, and what rides with them (kv, timers), all or nothing. Every
-- refusal raises: QDUP with the class of a unique violation for a stored transaction
-- id, QTXN with SQLSTATE QT001 for an ack, 22023 for a malformed request, 40001 when a
-- queue was deleted meanwhile, and what the procedures of the riders raise, 23514 for
-- a precondition among it; nothing is caught here. Riders are answered only where
-- they are given.
--
-- A push may carry a mark: "verified" with the "partitionId" and the "window" it
-- was made for; without them it makes no statement. -2 needs neither.
CREATE OR REPLACE FUNCTION queen.log_transaction_wire_v1(p JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_lanes   UUID[];
    v_locked  BIGINT;
    v_tenant  UUID := COALESCE((p ->> '_tenant')::UUID, '00000000-0000-0000-0000-000000000001');
    v_pushes  JSONB := COALESCE(NULLIF(p -> 'pushes', 'null'), '[]');
    v_acks    JSONB := COALESCE(NULLIF(p -> 'acks', 'null'), '[]');
    v_done    JSONB[] := '{}';
    v_acked   JSONB[] := '{}';
    v_found   JSONB[] := '{}';
    v_verdict JSONB;
    v_riders  JSONB := '{}';
    r         RECORD;
BEGIN
    SELECT a.ack ->> 'partitionId' AS pid INTO r
    FROM jsonb_array_elements(v_acks) AS a (ack)
    WHERE NOT EXISTS (
        SELECT FROM queen.log_partitions AS l
        JOIN queen.queues AS q ON q.id = l.queue_id
        WHERE l.id = (a.ack ->> 'partitionId')::UUID AND q.tenant_id = v_tenant)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'QTXN ack references partition % that does not exist or is not owned by the tenant; transaction rolled back', r.pid
            USING ERRCODE = 'QT001';
    END IF;
    FOR r IN SELECT k.key, p -> k.key AS rider FROM unnest(ARRAY['kv', 'timers']) AS k (key) LOOP
        IF jsonb_typeof(r.rider) NOT IN ('array', 'null') THEN
            RAISE EXCEPTION 'QTXN % must be an array or null, not %; transaction rolled back', r.key, jsonb_typeof(r.rider)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;

    -- The search for acked ids comes before any lock.
    FOR r IN
        SELECT a.ack, COALESCE(a.ack ->> 'group', '__QUEUE_MODE__') AS grp
        FROM jsonb_array_elements(v_acks) WITH ORDINALITY AS a (ack, ord)
        ORDER BY a.ord
    LOOP
        v_found := v_found || queen.log_transaction_seek_v1(r.grp, r.ack);
    END LOOP;

    -- Riders come before every lock of the log; one instant serves both.
    IF jsonb_array_length(NULLIF(p -> 'kv', 'null')) > 0 THEN
        v_riders := jsonb_build_object('kv', queen.kv_apply_v1(p -> 'kv', v_tenant, now(), TRUE));
    END IF;
    IF jsonb_array_length(NULLIF(p -> 'timers', 'null')) > 0 THEN
        v_riders := v_riders || jsonb_build_object('timers', queen.log_timers_apply_v1(p -> 'timers', v_tenant, p ->> '_producerSub', now()));
    END IF;

    -- Lanes: created where missing, then locked together.
    IF EXISTS (
        SELECT FROM jsonb_array_elements(v_pushes) AS u (push)
        WHERE queen.log_partition_id_v1(v_tenant, u.push ->> 'queue', u.push ->> 'partition') IS NULL
    ) THEN
        PERFORM queen.log_provision_v1(
            array_agg(v_tenant), array_agg(u.push ->> 'queue'), array_agg(u.push ->> 'partition'))
        FROM jsonb_array_elements(v_pushes) AS u (push);
    END IF;
    SELECT array_agg(DISTINCT l.id) INTO v_lanes
    FROM jsonb_array_elements(v_pushes) AS u (push)
    CROSS JOIN LATERAL queen.log_partition_id_v1(v_tenant, u.push ->> 'queue', u.push ->> 'partition') AS l (id)
    WHERE l.id IS NOT NULL;
    PERFORM FROM queen.log_partitions AS l WHERE l.id = ANY (v_lanes) ORDER BY l.id FOR NO KEY UPDATE;
    GET DIAGNOSTICS v_locked = ROW_COUNT;
    IF v_locked < cardinality(v_lanes) THEN
        -- A lane was deleted meanwhile: the next try finds or creates another one.
        RAISE EXCEPTION 'QTXN locked % of % lanes; transaction rolled back', v_locked, cardinality(v_lanes)
            USING ERRCODE = '40001';
    END IF;

    FOR r IN
        SELECT u.push, u.push ->> 'queue' AS queue, u.push ->> 'partition' AS partition,
               l.id, q.dedup_window_seconds AS secs, COALESCE((u.push ->> 'verified')::BIGINT, -1) AS verified
        FROM jsonb_array_elements(v_pushes) WITH ORDINALITY AS u (push, ord)
        JOIN queen.queues AS q ON q.tenant_id = v_tenant AND q.name = u.push ->> 'queue'
        -- Only what is locked: a lane that appears now would be locked out of order.
        JOIN queen.log_partitions AS l ON l.queue_id = q.id AND l.name = u.push ->> 'partition' AND l.id = ANY (v_lanes)
        ORDER BY u.ord
    LOOP
        v_verdict := queen.log_push_one_v1(
            r.queue, r.partition, (r.push ->> 'count')::INT, decode(r.push ->> 'hashesHex', 'hex'),
            CASE WHEN r.verified = -2
                   OR (r.push ->> 'partitionId')::UUID = r.id AND r.secs <= (r.push ->> 'window')::INT
                 THEN r.verified ELSE -1 END,
            decode(r.push ->> 'blobB64', 'base64'), r.id, r.secs, v_tenant);
        IF v_verdict ->> 'status' <> 'queued' THEN
            RAISE EXCEPTION 'QDUP duplicate messages in queue "%" partition "%"; transaction rolled back', r.queue, r.partition
                USING ERRCODE = 'unique_violation';
        END IF;
        v_done := v_done || v_verdict;
    END LOOP;
    IF cardinality(v_done) <> jsonb_array_length(v_pushes) THEN
        -- With proper names only a concurrent deletion can cause this.
        RAISE EXCEPTION 'QTXN resolved % of % pushes; transaction rolled back',
            cardinality(v_done), jsonb_array_length(v_pushes)
            USING ERRCODE = CASE WHEN EXISTS (
                SELECT FROM jsonb_array_elements(v_pushes) AS u (push)
                WHERE COALESCE(u.push ->> 'queue', '') = '' OR u.push ->> 'partition' IS NULL
            ) THEN 'invalid_parameter_value' ELSE 'serialization_failure' END;
    END IF;

    FOR r IN
        SELECT a.ack, a.ord, (a.ack ->> 'partitionId')::UUID AS pid, g.name AS grp
        FROM jsonb_array_elements(v_acks) WITH ORDINALITY AS a (ack, ord)
        CROSS JOIN LATERAL (SELECT COALESCE(a.ack ->> 'group', '__QUEUE_MODE__') AS name) AS g
        ORDER BY (a.ack ->> 'partitionId')::UUID, g.name COLLATE "C", a.ord
    LOOP
        -- Without a batch an ack may name what was pushed just now.
        v_acked := v_acked || (queen.log_transaction_ack_v1(r.pid, r.grp, r.ack,
                CASE WHEN v_found[r.ord] ->> 'batchEnd' IS NULL AND r.pid = ANY (v_lanes) THEN '{}' ELSE v_found[r.ord] END)
            || jsonb_build_object('index', r.ord - 1));
    END LOOP;
    RETURN v_riders || jsonb_build_object('ok', TRUE, 'pushes', to_jsonb(v_done), 'acks', to_jsonb(v_acked));
END
$$;

-- What log_ack_seek_v1 finds for an ack of a transaction.
CREATE OR REPLACE FUNCTION queen.log_transaction_seek_v1(p_group TEXT, p_ack JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    s RECORD;
BEGIN
    IF jsonb_typeof(p_ack -> 'acks') IS DISTINCT FROM 'array' THEN
        RETURN '{}';
    END IF;
    s := queen.log_ack_seek_v1((p_ack ->> 'partitionId')::UUID, p_group, p_ack ->> 'worker', (
        SELECT array_agg(decode(h.item ->> 'h', 'hex') ORDER BY h.ord)
        FROM jsonb_array_elements(p_ack -> 'acks') WITH ORDINALITY AS h (item, ord)));
    RETURN jsonb_build_object('committed', s.o_committed, 'batchEnd', s.o_batch_end, 'offs', s.o_offs::TEXT);
END
$$;

-- One ack of a transaction; raises instead of answering no. "worker" is a lease
-- that must be live on the row. "workers" are leases of which the row's holder
-- must be one and live, for requests that do not say which lease is whose; with
-- an empty list, and without either, nothing is checked. p_found is the answer of
-- log_transaction_seek_v1.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_transaction_ack_v1(UUID, UUID, TEXT, JSONB);
CREATE OR REPLACE FUNCTION queen.log_transaction_ack_v1(p_pid UUID, p_group TEXT, p_ack JSONB, p_found JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_worker  TEXT := p_ack ->> 'worker';
    v_holder  TEXT;
    v_verdict JSONB;
BEGIN
    IF COALESCE(v_worker, '') = '' AND jsonb_typeof(p_ack -> 'workers') = 'array' AND p_ack -> 'workers' <> '[]' THEN
        -- Under the lock the holder stays who it is; the ack checks its expiry.
        SELECT c.worker_id INTO v_holder
        FROM queen.log_consumers AS c
        WHERE c.partition_id = p_pid AND c.consumer_group = p_group
        FOR UPDATE;
        IF FOUND AND (COALESCE(v_holder, '') = '' OR NOT p_ack -> 'workers' ? v_holder) THEN
            v_verdict := '{"ok": false, "error": "invalid or expired lease"}';
        END IF;
        v_worker := v_holder;
    END IF;

    IF v_verdict IS NOT NULL THEN
        NULL;
    ELSIF jsonb_typeof(p_ack -> 'acks') = 'array' THEN
        SELECT queen.log_ack_decide_v1(p_pid, p_group, v_worker,
                   array_agg(decode(h.item ->> 'h', 'hex') ORDER BY h.ord),
                   array_agg(COALESCE(h.item ->> 'status',
                       CASE WHEN h.item -> 'ok' = 'false' THEN 'failed' ELSE 'completed' END) ORDER BY h.ord),
                   (p_found ->> 'committed')::BIGINT, (p_found ->> 'batchEnd')::BIGINT, (p_found ->> 'offs')::BIGINT[])
        INTO v_verdict
        FROM jsonb_array_elements(p_ack -> 'acks') WITH ORDINALITY AS h (item, ord);
    ELSE
        -- The tenant owns the lane: that was seen above, and ids are not used again.
        v_verdict := queen.log_ack_at_v1(p_pid, p_group, v_worker, (p_ack ->> 'uptoOff')::BIGINT,
            COALESCE((p_ack ->> 'ok')::BOOLEAN, TRUE), COALESCE((p_ack ->> 'count')::INT, 0),
            COALESCE((p_ack ->> 'whole')::BOOLEAN, FALSE));
    END IF;

    IF (v_verdict ->> 'ok')::BOOLEAN IS NOT TRUE THEN
        RAISE EXCEPTION 'QTXN ack failed: %; transaction rolled back', COALESCE(v_verdict ->> 'error', 'partition not found')
            USING ERRCODE = 'QT001';
    END IF;
    IF v_verdict -> 'unresolvedHashes' <> '[]' THEN
        RAISE EXCEPTION 'QTXN ack references unknown transactionId; transaction rolled back'
            USING ERRCODE = 'QT001', DETAIL = (v_verdict -> 'unresolvedHashes')::TEXT;
    END IF;
    RETURN v_verdict;
END
$$;
COMMIT;
