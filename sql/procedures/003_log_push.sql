-- Push: provisioning, the allocator, and the segment lookup.
--
-- queen.log_push_lanes_v1 is the only place where an offset is assigned. It
-- works on a set of distinct lanes (partitions); log_push_one_v1 calls it with
-- one, log_push_multi_v1 with a bundle.
--
-- Locks, in this order: queue rows KEY SHARE and provisioning inserts, each
-- ordered by its unique key, and only when something is missing; then all
-- partition rows FOR NO KEY UPDATE, ascending by id, in one statement. A plain
-- FOR UPDATE would block the key-share lock of a first-contact cursor.
-- Segments and sidecar rows are leaves.
--
-- Re-applying is safe under traffic: CREATE OR REPLACE only, no row type
-- changes. A call in flight ends with the body it began with.
--
-- Plans. The functions pin plan_cache_mode and enable_seqscan: with array
-- arguments PostgreSQL prefers a custom plan for ever (planning costs more
-- than the work), and a generic plan made while the tables are small would
-- scan them until the next ANALYZE.
--
-- Set-based core against one allocator call per segment (PostgreSQL 15, two
-- cores, fsync off, 100 frames and 6 kB of blob per segment, one caller,
-- median of 5 runs, microseconds per bundle, commit included):
--
--   lanes   per segment   set-based
--       1           229         290
--       8           675         735
--      64          4436        3512
--
-- The set-based form is kept: bundles grow exactly when the server is busy, and
-- the 60 us it loses on a single lane are small beside a durable commit. Of
-- either column about 70 us per segment are the three row writes themselves.

-- The form of every timestamp of the engine: UTC, microseconds, trailing Z.
CREATE OR REPLACE FUNCTION queen.iso_us_v1(p_at TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- The form of every timestamp of the admin surface: the same in milliseconds.
CREATE OR REPLACE FUNCTION queen.iso_ms_v1(p_at TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- Creates the queue and partition rows that are missing. Labels come from the
-- dotted name. Empty queue names are skipped: the caller finds them unresolved.
-- A queue that is being deleted is waited for and created anew; one deleted
-- between the two statements leaves its partitions unresolved (the KEY SHARE
-- lock sees that, where the foreign key alone would raise).
CREATE OR REPLACE FUNCTION queen.log_provision_v1(
    p_tenants    UUID[],
    p_queues     TEXT[],
    p_partitions TEXT[]
)
RETURNS VOID
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO queen.queues (tenant_id, name, namespace, task)
    SELECT d.tenant, d.name, split_part(d.name, '.', 1), split_part(d.name, '.', 2)
    FROM (
        SELECT DISTINCT u.tenant, u.name
        FROM unnest(p_tenants, p_queues) AS u (tenant, name)
        WHERE u.name <> '' AND u.tenant IS NOT NULL
    ) AS d
    ORDER BY d.tenant, d.name COLLATE "C"
    ON CONFLICT (tenant_id, name) DO NOTHING;

    INSERT INTO queen.log_partitions (queue_id, name)
    SELECT k.queue_id, k.name
    FROM (
        SELECT q.id AS queue_id, d.name
        FROM (
            SELECT DISTINCT u.tenant, u.queue, u.name
            FROM unnest(p_tenants, p_queues, p_partitions) AS u (tenant, queue, name)
            WHERE u.name IS NOT NULL
        ) AS d
        JOIN queen.queues AS q ON q.tenant_id = d.tenant AND q.name = d.queue
        ORDER BY q.tenant_id, q.name COLLATE "C"
        FOR KEY SHARE OF q
    ) AS k
    ORDER BY k.queue_id, k.name COLLATE "C"
    ON CONFLICT (queue_id, name) DO NOTHING;
END
$$;

-- The dedup probe of the lanes whose p_from is not NULL: which incoming frames
-- have a stored twin above p_from and not older than p_since, and the smallest
-- offset of each. One row per lane with twins.
--
-- The frames of the window meet the incoming ones in a hash table of the
-- incoming ones, at most a bundle. Two things keep it so, whatever the planner
-- believes of the tables when it makes the plan: the outer OFFSET 0 explodes the
-- frames before the join (planned while the sidecar was small, the rows were
-- joined to the incoming frames first, a nested loop over the window); and the
-- incoming hashes come as an array, which counts for ten rows where
-- log_unnest_hashes counts for a thousand.
--
-- "|| ''" behind the inner OFFSET 0 fetches a TOASTed blob once; slicing the
-- column itself fetches it once per frame (measured: 200 segments of 1000
-- frames, 38 ms against 457 ms). A whole window of 20000 segments of 100 frames
-- takes 0.45 s: no caller should leave that to the probe.
CREATE OR REPLACE FUNCTION queen.log_push_probe_v1(
    p_pids   UUID[],
    p_hashes BYTEA[],
    p_from   BIGINT[],
    p_floor  BIGINT[],
    p_since  TIMESTAMPTZ[]
)
RETURNS TABLE (r_ord BIGINT, r_dups JSONB)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_mergejoin = off
SET enable_memoize = off
SET max_parallel_workers_per_gather = 0
SET jit = off
AS $$
DECLARE
    v_ords BIGINT[];
    v_idxs INT[];
    v_hs   BYTEA[];
BEGIN
    SELECT array_agg(u.ord), array_agg(x.idx), array_agg(x.h)
    INTO v_ords, v_idxs, v_hs
    FROM unnest(p_hashes, p_from) WITH ORDINALITY AS u (hashes, from_off, ord)
    CROSS JOIN LATERAL queen.log_unnest_hashes(u.hashes) AS x
    WHERE u.from_off IS NOT NULL;

    RETURN QUERY
    SELECT d.ord, jsonb_agg(jsonb_build_object('i', d.idx, 'off', d.off) ORDER BY d.idx)
    FROM (
        SELECT i.ord, i.idx, min(f.off) AS off
        FROM (
            SELECT u.ord, s.base_offset + x.idx AS off, x.h
            FROM unnest(p_pids, p_from, p_floor, p_since)
                 WITH ORDINALITY AS u (pid, from_off, floor_off, since, ord)
            -- The row that covers from_off may reach beyond it: start there.
            LEFT JOIN LATERAL (
                SELECT t.base_offset
                FROM queen.log_txns AS t
                WHERE t.partition_id = u.pid AND t.base_offset >= u.floor_off AND t.base_offset <= u.from_off
                ORDER BY t.base_offset DESC
                LIMIT 1
            ) AS b ON TRUE
            CROSS JOIN LATERAL (
                SELECT t.base_offset, t.hashes || ''::BYTEA AS hashes
                FROM queen.log_txns AS t
                WHERE t.partition_id = u.pid
                  AND t.base_offset >= COALESCE(b.base_offset, u.floor_off)
                  AND t.end_offset > u.from_off
                  AND t.created_at >= u.since
                OFFSET 0
            ) AS s
            CROSS JOIN LATERAL queen.log_unnest_hashes(s.hashes) AS x
            WHERE u.from_off IS NOT NULL
            OFFSET 0
        ) AS f
        JOIN unnest(v_ords, v_idxs, v_hs) AS i (ord, idx, h) ON i.ord = f.ord AND i.h = f.h
        GROUP BY i.ord, i.idx
    ) AS d
    GROUP BY d.ord;
END
$$;

-- The allocator. Arrays are aligned by position; the lanes must be distinct.
-- p_windows overrides the queue's dedup window where it is not NULL.
--
-- A mark (p_verified >= 0) counts only for the lane id it was made for
-- (p_mark_pids), up to that lane's last_offset, and for a window not larger
-- than the one it was made for (p_mark_windows); otherwise it is -1, which
-- makes no statement and is always right. -2 says that every transaction id
-- was minted for this request and skips the probe.
--
-- The stamp is taken when all locks are held and never lies before the lane's
-- last_write_at or its newest sidecar row, so a clock that steps back cannot
-- make created_at decrease (last_write_at alone is up to a second late).
CREATE OR REPLACE FUNCTION queen.log_push_lanes_v1(
    p_pids         UUID[],
    p_msg_counts   INT[],
    p_hashes       BYTEA[],
    p_verified     BIGINT[],
    p_blobs        BYTEA[],
    p_windows      INT[],
    p_mark_pids    UUID[],
    p_mark_windows INT[]
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_last     BIGINT[];
    v_floor    BIGINT[];
    v_written  TIMESTAMPTZ[];
    v_window   INT[];
    v_from     BIGINT[];
    v_since    TIMESTAMPTZ[];
    v_locked   INT;
    v_probes   INT;
    v_now      TIMESTAMPTZ;
    v_dup_ords BIGINT[] := '{}';
    v_dups     JSONB[] := '{}';
    v_out      JSONB;
BEGIN
    SELECT count(*), count(f.from_off),
           array_agg(l.last_offset ORDER BY u.ord), array_agg(l.txns_start ORDER BY u.ord),
           array_agg(l.last_write_at ORDER BY u.ord), array_agg(w.secs ORDER BY u.ord),
           array_agg(f.from_off ORDER BY u.ord)
    INTO v_locked, v_probes, v_last, v_floor, v_written, v_window, v_from
    FROM unnest(p_pids, p_verified, p_windows, p_mark_pids, p_mark_windows)
         WITH ORDINALITY AS u (pid, verified, secs, mark_pid, mark_secs, ord)
    JOIN (
        SELECT p.id, p.last_offset, p.txns_start, p.last_write_at, q.dedup_window_seconds
        FROM queen.log_partitions AS p
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE p.id = ANY (p_pids)
        ORDER BY p.id
        FOR NO KEY UPDATE OF p
    ) AS l ON l.id = u.pid
    CROSS JOIN LATERAL (SELECT COALESCE(u.secs, l.dedup_window_seconds) AS secs) AS w
    CROSS JOIN LATERAL (
        SELECT greatest(l.txns_start - 1, CASE
            WHEN u.mark_pid = u.pid AND u.verified <= l.last_offset AND w.secs <= u.mark_secs THEN u.verified
            ELSE -1 END) AS from_off
    ) AS m
    CROSS JOIN LATERAL (
        SELECT CASE WHEN w.secs > 0 AND u.verified IS DISTINCT FROM -2 AND l.last_offset > m.from_off
            THEN m.from_off END AS from_off
    ) AS f;

    -- 40001: nothing was written, and a second attempt provisions the lane anew.
    IF v_locked <> cardinality(p_pids) THEN
        RAISE EXCEPTION 'QPUSH partition % vanished mid-push', (
            SELECT u.pid FROM unnest(p_pids) AS u (pid)
            WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions AS p WHERE p.id = u.pid) LIMIT 1
        ) USING ERRCODE = 'serialization_failure';
    END IF;
    v_now := clock_timestamp();

    IF v_probes > 0 THEN
        SELECT array_agg(greatest(v_now, u.written) - make_interval(secs => u.secs) ORDER BY u.ord)
        INTO v_since
        FROM unnest(v_written, v_window) WITH ORDINALITY AS u (written, secs, ord);
        SELECT COALESCE(array_agg(d.r_ord), '{}'), COALESCE(array_agg(d.r_dups), '{}')
        INTO v_dup_ords, v_dups
        FROM queen.log_push_probe_v1(p_pids, p_hashes, v_from, v_floor, v_since) AS d;
    END IF;

    -- Blobs and hashes are subscripted, not unnested: a function scan would
    -- copy them, and spill to disk above work_mem.
    WITH lane AS MATERIALIZED (
        SELECT u.ord, u.pid, u.last + 1 AS base, u.last + u.n AS tip, u.written,
               greatest(v_now, u.written, s.created_at) AS stamp
        FROM unnest(p_pids, p_msg_counts, v_last, v_floor, v_written)
             WITH ORDINALITY AS u (pid, n, last, floor_off, written, ord)
        LEFT JOIN LATERAL (
            SELECT t.created_at
            FROM queen.log_txns AS t
            WHERE t.partition_id = u.pid AND t.base_offset >= u.floor_off
            ORDER BY t.base_offset DESC
            LIMIT 1
        ) AS s ON TRUE
        WHERE u.ord <> ALL (v_dup_ords)
    ), moved AS (
        UPDATE queen.log_partitions AS p
        SET last_offset = l.tip,
            last_write_at = CASE WHEN l.stamp > l.written + INTERVAL '1 second' THEN l.stamp ELSE p.last_write_at END
        FROM lane AS l
        WHERE p.id = l.pid
    ), stored AS (
        INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
        SELECT l.pid, l.base, l.tip, l.stamp, p_blobs[l.ord::INT] FROM lane AS l
    ), hashed AS (
        INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
        SELECT l.pid, l.base, l.tip, l.stamp, p_hashes[l.ord::INT] FROM lane AS l
    )
    SELECT jsonb_agg(v.verdict ORDER BY v.ord)
    INTO v_out
    FROM (
        SELECT l.ord, jsonb_build_object('status', 'queued', 'partitionId', l.pid,
                   'baseOffset', l.base, 'createdAt', queen.iso_us_v1(l.stamp)) AS verdict
        FROM lane AS l
        UNION ALL
        SELECT d.ord, jsonb_build_object('status', 'duplicate', 'partitionId', p_pids[d.ord::INT], 'dups', d.dups)
        FROM unnest(v_dup_ords, v_dups) AS d (ord, dups)
    ) AS v;
    RETURN v_out;
END
$$;

-- One segment. p_pid and p_window, where given, replace what the names say;
-- p_verified belongs to p_pid and counts only with it.
CREATE OR REPLACE FUNCTION queen.log_push_one_v1(
    p_queue     TEXT,
    p_partition TEXT,
    p_msg_count INT,
    p_hashes    BYTEA,
    p_verified  BIGINT,
    p_blob      BYTEA,
    p_pid       UUID DEFAULT NULL,
    p_window    INT DEFAULT NULL,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_pid UUID := p_pid;
BEGIN
    IF p_msg_count IS NULL OR p_msg_count < 1
       OR octet_length(p_hashes) IS DISTINCT FROM 16 * p_msg_count::BIGINT THEN
        RAISE EXCEPTION 'QPUSH bad segment: % messages, % bytes of hashes', p_msg_count, octet_length(p_hashes)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    FOR v_try IN 1..2 LOOP
        EXIT WHEN v_pid IS NOT NULL;
        IF v_try = 2 THEN
            PERFORM queen.log_provision_v1(ARRAY[p_tenant], ARRAY[p_queue], ARRAY[p_partition]);
        END IF;
        SELECT p.id INTO v_pid
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.name = p_partition;
    END LOOP;
    IF v_pid IS NULL THEN
        -- With proper names only a concurrent deletion can cause this.
        RAISE EXCEPTION 'QPUSH unknown queue/partition: % / %', p_queue, p_partition
            USING ERRCODE = CASE WHEN p_queue <> '' AND p_partition IS NOT NULL AND p_tenant IS NOT NULL
                THEN 'serialization_failure' ELSE 'invalid_parameter_value' END;
    END IF;

    RETURN queen.log_push_lanes_v1(ARRAY[v_pid], ARRAY[p_msg_count], ARRAY[p_hashes], ARRAY[p_verified],
        ARRAY[p_blob], ARRAY[p_window], ARRAY[p_pid], ARRAY[2147483647]) -> 0;
END
$$;

-- A bundle of segments in one transaction; the result is in input order. A
-- duplicate verdict concerns its own segment only, a raise ends the bundle.
--
-- p_pids and p_windows say which lane id and which dedup window the mark of
-- each segment was built for. Lanes are always found by name; a mark without
-- its id, or of another id, is -1.
--
-- The same lane may occur several times: its segments are allocated in input
-- order, and the later ones are probed against the earlier ones (unless -2
-- says that their ids were minted).
CREATE OR REPLACE FUNCTION queen.log_push_multi_v1(
    p_queues     TEXT[],
    p_partitions TEXT[],
    p_msg_counts INT[],
    p_hashes     BYTEA[],
    p_verified   BIGINT[],
    p_blobs      BYTEA[],
    p_tenants    UUID[] DEFAULT NULL,
    p_pids       UUID[] DEFAULT NULL,
    p_windows    INT[] DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_n       INT := COALESCE(cardinality(p_queues), 0);
    v_tenants UUID[] := p_tenants;
    v_pids    UUID[];
    v_found   INT;
    v_lanes   INT;
    v_bad     BOOLEAN;
    v_at      INT[];
    v_part    JSONB;
    v_out     JSONB[];
BEGIN
    IF ROW (v_n, v_n, v_n, v_n, v_n) IS DISTINCT FROM ROW (
        COALESCE(cardinality(p_partitions), 0), COALESCE(cardinality(p_msg_counts), 0),
        COALESCE(cardinality(p_hashes), 0), COALESCE(cardinality(p_verified), 0), COALESCE(cardinality(p_blobs), 0))
       OR cardinality(p_pids) <> v_n OR cardinality(p_windows) <> v_n THEN
        RAISE EXCEPTION 'QMULTI misaligned arrays' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF cardinality(p_tenants) <> v_n THEN
        RAISE EXCEPTION 'QMULTI misaligned tenants' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_n = 0 THEN
        RETURN '[]';
    END IF;
    IF v_tenants IS NULL THEN
        v_tenants := array_fill('00000000-0000-0000-0000-000000000001'::UUID, ARRAY[v_n]);
    END IF;

    FOR v_try IN 1..2 LOOP
        SELECT array_agg(p.id ORDER BY u.ord), count(p.id), count(DISTINCT p.id),
               bool_or(u.n IS NULL OR u.n < 1 OR octet_length(p_hashes[u.ord::INT]) IS DISTINCT FROM 16 * u.n::BIGINT)
        INTO v_pids, v_found, v_lanes, v_bad
        FROM unnest(v_tenants, p_queues, p_partitions, p_msg_counts)
             WITH ORDINALITY AS u (tenant, queue, partition, n, ord)
        LEFT JOIN queen.queues AS q ON q.tenant_id = u.tenant AND q.name = u.queue
        LEFT JOIN queen.log_partitions AS p ON p.queue_id = q.id AND p.name = u.partition;
        IF v_bad THEN
            RAISE EXCEPTION 'QPUSH bad segment: a count below 1 or hashes of another length'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        EXIT WHEN v_found = v_n;
        IF v_try = 1 THEN
            PERFORM queen.log_provision_v1(v_tenants, p_queues, p_partitions);
        END IF;
    END LOOP;
    IF v_found < v_n THEN
        -- With proper names only a concurrent deletion can cause this.
        RAISE EXCEPTION 'QMULTI resolved % of % segments', v_found, v_n
            USING ERRCODE = CASE WHEN '' = ANY (p_queues)
                    OR array_position(p_queues, NULL) IS NOT NULL OR array_position(p_partitions, NULL) IS NOT NULL
                    OR array_position(v_tenants, NULL) IS NOT NULL
                THEN 'invalid_parameter_value' ELSE 'serialization_failure' END;
    END IF;

    IF v_lanes = v_n THEN
        RETURN queen.log_push_lanes_v1(v_pids, p_msg_counts, p_hashes, p_verified, p_blobs, NULL, p_pids, p_windows);
    END IF;

    -- Lanes that occur again go in rounds. The first round holds every lane
    -- once, so it takes all the locks, in order.
    v_out := array_fill(NULL::JSONB, ARRAY[v_n]);
    FOR v_at IN
        SELECT array_agg(k.ord ORDER BY k.ord)
        FROM (
            SELECT u.ord::INT AS ord, row_number() OVER (PARTITION BY u.pid ORDER BY u.ord) AS round
            FROM unnest(v_pids) WITH ORDINALITY AS u (pid, ord)
        ) AS k
        GROUP BY k.round
        ORDER BY k.round
    LOOP
        SELECT queen.log_push_lanes_v1(array_agg(v_pids[a] ORDER BY a), array_agg(p_msg_counts[a] ORDER BY a),
                   array_agg(p_hashes[a] ORDER BY a), array_agg(p_verified[a] ORDER BY a),
                   array_agg(p_blobs[a] ORDER BY a), NULL, array_agg(p_pids[a] ORDER BY a),
                   array_agg(p_windows[a] ORDER BY a))
        INTO v_part
        FROM unnest(v_at) AS a;
        FOR v_i IN 1..cardinality(v_at) LOOP
            v_out[v_at[v_i]] := v_part -> (v_i - 1);
        END LOOP;
    END LOOP;
    RETURN to_jsonb(v_out);
END
$$;

-- The segment that covers an offset; no row when retention removed it. The
-- test of coverage stands outside the single-row pick: inside, a miss would
-- walk down to the head of the partition.
CREATE OR REPLACE FUNCTION queen.log_segment_at_v1(p_pid UUID, p_off BIGINT)
RETURNS TABLE (r_base BIGINT, r_end BIGINT, r_created TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE sql STABLE
AS $$
    SELECT s.base_offset, s.end_offset, s.created_at, s.blob
    FROM (
        SELECT g.base_offset, g.end_offset, g.created_at, g.blob
        FROM queen.log_segments AS g
        WHERE g.partition_id = p_pid AND g.base_offset <= p_off
        ORDER BY g.base_offset DESC
        LIMIT 1
    ) AS s
    WHERE s.end_offset >= p_off
$$;

-- Dedup reads
--
-- What a broker reads to remember the dedup window of a lane. No lock is taken:
-- the rows of a lane become visible in offset order, because every writer holds
-- the lane from its allocation to its commit, so a reader that saw a row has
-- seen, or could have seen, all rows before it. Rows never change, and are only
-- ever removed from the front.

-- The first offset at or above p_floor whose sidecar row is not older than
-- p_since, p_last + 1 when there is none. created_at does not decrease with the
-- offset, so it is bisected for: a lane may keep a day of rows for its acks
-- beside a window of a minute, and reading those through took seconds.
CREATE OR REPLACE FUNCTION queen.log_sidecar_start_v1(
    p_pid   UUID,
    p_floor BIGINT,
    p_last  BIGINT,
    p_since TIMESTAMPTZ
)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_low  BIGINT := p_floor;    -- rows that begin below are too old
    v_high BIGINT := p_last + 1; -- rows that begin here or above are not
    v_mid  BIGINT;
    v_base BIGINT;
    v_at   TIMESTAMPTZ;
BEGIN
    WHILE v_low < v_high LOOP
        v_mid := v_low + (v_high - v_low) / 2;
        SELECT t.base_offset, t.created_at
        INTO v_base, v_at
        FROM queen.log_txns AS t
        WHERE t.partition_id = p_pid AND t.base_offset >= v_low AND t.base_offset <= v_mid
        ORDER BY t.base_offset DESC
        LIMIT 1;
        IF v_at >= p_since THEN
            v_high := v_base;
        ELSE
            v_low := v_mid + 1;
        END IF;
    END LOOP;
    RETURN v_high;
END
$$;

-- A lane by name: the window of its queue, its id, its last offset, and where
-- the window and p_slack seconds more begin in its sidecar. No row for an unknown
-- queue; the lane's columns are NULL while it does not exist. A caller that
-- knows the lane by the id p_known, and for a window of p_window seconds or
-- more, is not told the start again, nor is anyone with a window of 0.
CREATE OR REPLACE FUNCTION queen.log_lane_v1(
    p_tenant    UUID,
    p_queue     TEXT,
    p_partition TEXT,
    p_slack     INT,
    p_known     UUID DEFAULT NULL,
    p_window    INT DEFAULT NULL
)
RETURNS TABLE (r_window INT, r_pid UUID, r_last BIGINT, r_start BIGINT)
LANGUAGE sql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
    SELECT q.dedup_window_seconds, p.id, p.last_offset,
           CASE
               WHEN q.dedup_window_seconds <= 0 THEN NULL
               WHEN p.id = p_known AND q.dedup_window_seconds <= p_window THEN NULL
               WHEN p.id IS NOT NULL THEN queen.log_sidecar_start_v1(p.id, p.txns_start, p.last_offset,
                   clock_timestamp() - make_interval(secs => q.dedup_window_seconds::FLOAT8 + p_slack))
           END
    FROM queen.queues AS q
    LEFT JOIN queen.log_partitions AS p ON p.queue_id = q.id AND p.name = p_partition
    WHERE q.tenant_id = p_tenant AND q.name = p_queue
$$;

-- One page of a lane's sidecar: the rows behind p_after, ascending, that begin
-- within p_max offsets from the first of them. An offset is a frame, so p_max
-- bounds the bytes too, up to the length of the last row. The hashes of all rows
-- come as one value, and are compared by the caller: 2.4 million frames in rows of
-- 100 took 0.2 s to read and 0.5 s to match here; in rows of 1000, 11 s. One row is
-- answered, all NULL when nothing lies behind p_after.
CREATE OR REPLACE FUNCTION queen.log_sidecar_page_v1(p_pid UUID, p_after BIGINT, p_max INT)
RETURNS TABLE (r_bases BIGINT[], r_ends BIGINT[], r_newest TIMESTAMPTZ, r_hashes BYTEA)
LANGUAGE sql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET max_parallel_workers_per_gather = 0
AS $$
    SELECT array_agg(s.base_offset), array_agg(s.end_offset), max(s.created_at), string_agg(s.hashes, ''::BYTEA)
    FROM (
        SELECT t.base_offset, t.end_offset, t.created_at, t.hashes
        FROM queen.log_txns AS t
        WHERE t.partition_id = p_pid AND t.base_offset > p_after
          AND t.base_offset < p_max + (
              SELECT f.base_offset
              FROM queen.log_txns AS f
              WHERE f.partition_id = p_pid AND f.base_offset > p_after
              ORDER BY f.base_offset
              LIMIT 1)
        ORDER BY t.base_offset
    ) AS s
$$;

-- The sidecar rows of a lane that begin at the given offsets, in that form. What
-- does not exist is left out.
CREATE OR REPLACE FUNCTION queen.log_sidecar_rows_v1(p_pid UUID, p_bases BIGINT[])
RETURNS TABLE (r_bases BIGINT[], r_ends BIGINT[], r_newest TIMESTAMPTZ, r_hashes BYTEA)
LANGUAGE sql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET max_parallel_workers_per_gather = 0
AS $$
    SELECT array_agg(s.base_offset), array_agg(s.end_offset), max(s.created_at), string_agg(s.hashes, ''::BYTEA)
    FROM (
        SELECT t.base_offset, t.end_offset, t.created_at, t.hashes
        FROM (SELECT DISTINCT u.base FROM unnest(p_bases) AS u (base)) AS b
        JOIN queen.log_txns AS t ON t.partition_id = p_pid AND t.base_offset = b.base
        ORDER BY t.base_offset
    ) AS s
$$;
