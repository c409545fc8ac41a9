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
-- Re-applying is safe under traffic: CREATE OR REPLACE, and where a signature
-- grew a drop and a creation in one transaction. A call in flight ends with the
-- body it began with.
--
-- Plans. The functions pin plan_cache_mode and enable_seqscan: with array
-- arguments PostgreSQL prefers a custom plan for ever (planning costs more
-- than the work), and a generic plan made while the tables are small would
-- scan them until the next ANALYZE.
--
-- A bundle works on all its lanes at once: one lock statement, one update, two
-- inserts. Measured against one allocator call per segment (PostgreSQL 15, two
-- cores, fsync off, 10 frames per segment, one caller, least of several runs,
-- processor microseconds of the server per segment, commit included; "known": the
-- caller names the lane ids, so that names are checked and not resolved):
--
--   lanes   bare writes   one call each   set-based   set-based, known
--       1            29              57         115                 94
--       8            28              51          54                 48
--      32            29              54          45                 41
--     128            28              51          41                 37
--
-- Bare writes are the update and the two inserts in a loop. Of the set-based form
-- at one lane about 70 us were the start of its large statements (142 before);
-- a single lane therefore takes plain ones.

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

-- The functions below call each other by their new signatures: one transaction.
BEGIN;

-- The dedup probe of the lanes whose p_from is not NULL: which incoming frames
-- have a stored twin above p_from and not older than p_since, and the smallest
-- offset of each. One row per lane with twins. Below p_from only the sidecar rows
-- that p_suspect_ords (position of the lane) and p_suspect_bases name are read.
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
DROP FUNCTION IF EXISTS queen.log_push_probe_v1(UUID[], BYTEA[], BIGINT[], BIGINT[], TIMESTAMPTZ[]);
CREATE OR REPLACE FUNCTION queen.log_push_probe_v1(
    p_pids          UUID[],
    p_hashes        BYTEA[],
    p_from          BIGINT[],
    p_floor         BIGINT[],
    p_since         TIMESTAMPTZ[],
    p_suspect_ords  INT[],
    p_suspect_bases BIGINT[]
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
            SELECT s.ord, s.base_offset + x.idx AS off, x.h
            FROM (
                SELECT u.ord, w.base_offset, w.hashes
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
                ) AS w
                WHERE u.from_off IS NOT NULL
                UNION ALL
                SELECT u.ord, w.base_offset, w.hashes
                FROM unnest(p_suspect_ords, p_suspect_bases) AS u (ord, base)
                CROSS JOIN LATERAL (
                    SELECT t.base_offset, t.hashes || ''::BYTEA AS hashes
                    FROM queen.log_txns AS t
                    WHERE t.partition_id = p_pids[u.ord]
                      AND t.base_offset = u.base
                      AND t.base_offset >= p_floor[u.ord]
                      AND t.end_offset <= p_from[u.ord]
                      AND t.created_at >= p_since[u.ord]
                    OFFSET 0
                ) AS w
            ) AS s
            CROSS JOIN LATERAL queen.log_unnest_hashes(s.hashes) AS x
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
-- (p_mark_pids); otherwise it is -1, which makes no statement and is always
-- right. -2 says that every transaction id was minted for this request and skips
-- the probe. Where a mark counts, rows below it that may hold a twin all the same
-- are named by p_suspect_ords and p_suspect_bases.
--
-- p_wait_ms says what becomes of a lane that another transaction holds: NULL
-- waits for it, 0 answers 'busy' for that lane and writes the others, more waits
-- that long and then raises lock_not_available. p_queues, p_partitions and
-- p_tenants, where given, have to be the names of the lanes: an id from a
-- caller's memory must not lead to another lane.
--
-- The stamp is taken when all locks are held and never lies before the lane's
-- last_write_at or its newest sidecar row, so a clock that steps back cannot
-- make created_at decrease (last_write_at alone is up to a second late).
--
-- A lane without segments, or without sidecar rows, gets the stamp as watermark of its
-- oldest. Elsewhere the watermark is left alone: as an indexed column it would cost
-- the update its HOT, and NULL beside older rows is for the walk of 006 to set right.
DROP FUNCTION IF EXISTS queen.log_push_lanes_v1(UUID[], INT[], BYTEA[], BIGINT[], BYTEA[], INT[], UUID[], INT[]);
CREATE OR REPLACE FUNCTION queen.log_push_lanes_v1(
    p_pids          UUID[],
    p_msg_counts    INT[],
    p_hashes        BYTEA[],
    p_verified      BIGINT[],
    p_blobs         BYTEA[],
    p_windows       INT[],
    p_mark_pids     UUID[],
    p_mark_windows  INT[],
    p_suspect_ords  INT[] DEFAULT NULL,
    p_suspect_bases BIGINT[] DEFAULT NULL,
    p_wait_ms       INT DEFAULT NULL,
    p_queues        TEXT[] DEFAULT NULL,
    p_partitions    TEXT[] DEFAULT NULL,
    p_tenants       UUID[] DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_n        INT := cardinality(p_pids);
    -- The lanes that are held, ascending by id: v_ords are their places.
    v_ords     BIGINT[];
    v_last     BIGINT[];
    v_floor    BIGINT[];
    v_written  TIMESTAMPTZ[];
    v_window   INT[];
    v_floors   BIGINT[];
    v_from     BIGINT[];
    v_since    TIMESTAMPTZ[];
    v_found    INT;
    v_there    INT;
    v_probe    BOOLEAN;
    v_probes   INT;
    v_now      TIMESTAMPTZ;
    v_lane     RECORD;
    v_secs     INT;
    v_start    BIGINT;
    v_skip_ords BIGINT[] := '{}';
    v_skipped  JSONB[] := '{}';
    v_dup_ords BIGINT[] := '{}';
    v_dups     JSONB[] := '{}';
    v_out      JSONB;
BEGIN
    IF p_wait_ms > 0 THEN
        PERFORM set_config('lock_timeout', p_wait_ms::TEXT, TRUE);
    END IF;

    -- One lane, the most frequent bundle: plain statements cost less than half of
    -- what the set-based ones cost to start.
    IF v_n = 1 THEN
        IF p_wait_ms = 0 THEN
            SELECT p.last_offset, p.txns_start, p.last_write_at, p.queue_id, p.name INTO v_lane
            FROM queen.log_partitions AS p WHERE p.id = p_pids[1] FOR NO KEY UPDATE SKIP LOCKED;
        ELSE
            SELECT p.last_offset, p.txns_start, p.last_write_at, p.queue_id, p.name INTO v_lane
            FROM queen.log_partitions AS p WHERE p.id = p_pids[1] FOR NO KEY UPDATE;
        END IF;
        IF NOT FOUND AND p_wait_ms = 0 AND EXISTS (SELECT 1 FROM queen.log_partitions AS p WHERE p.id = p_pids[1]) THEN
            RETURN jsonb_build_array(jsonb_build_object('status', 'busy', 'partitionId', p_pids[1]));
        END IF;
        v_now := clock_timestamp();
        SELECT COALESCE(p_windows[1], q.dedup_window_seconds) INTO v_secs
        FROM queen.queues AS q
        WHERE q.id = v_lane.queue_id
          AND (p_partitions IS NULL OR (v_lane.name = p_partitions[1] AND q.name = p_queues[1] AND q.tenant_id = p_tenants[1]));
        IF NOT FOUND THEN
            RAISE EXCEPTION 'QPUSH partition % vanished mid-push', p_pids[1] USING ERRCODE = 'serialization_failure';
        END IF;
        v_start := v_lane.txns_start - 1;
        IF p_mark_pids[1] = p_pids[1] AND p_verified[1] <= v_lane.last_offset AND v_secs <= p_mark_windows[1] THEN
            v_start := greatest(v_start, p_verified[1]);
        END IF;
        IF v_secs > 0 AND p_verified[1] IS DISTINCT FROM -2
           AND (v_lane.last_offset > v_start OR p_suspect_ords IS NOT NULL) THEN
            SELECT d.r_dups INTO v_out
            FROM queen.log_push_probe_v1(p_pids, p_hashes, ARRAY[v_start], ARRAY[v_lane.txns_start],
                ARRAY[greatest(v_now, v_lane.last_write_at) - make_interval(secs => v_secs)],
                p_suspect_ords, p_suspect_bases) AS d;
            IF FOUND THEN
                RETURN jsonb_build_array(jsonb_build_object('status', 'duplicate', 'partitionId', p_pids[1], 'dups', v_out));
            END IF;
        END IF;
        v_now := greatest(v_now, v_lane.last_write_at, (
            SELECT t.created_at FROM queen.log_txns AS t
            WHERE t.partition_id = p_pids[1] AND t.base_offset >= v_lane.txns_start
            ORDER BY t.base_offset DESC LIMIT 1));
        UPDATE queen.log_partitions AS p
        SET last_offset = v_lane.last_offset + p_msg_counts[1],
            oldest_live_at = CASE WHEN p.log_start > v_lane.last_offset THEN v_now ELSE p.oldest_live_at END,
            oldest_txn_at = CASE WHEN p.txns_start > v_lane.last_offset THEN v_now ELSE p.oldest_txn_at END,
            last_write_at = CASE WHEN v_now > p.last_write_at + INTERVAL '1 second' THEN v_now ELSE p.last_write_at END
        WHERE p.id = p_pids[1];
        INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
        VALUES (p_pids[1], v_lane.last_offset + 1, v_lane.last_offset + p_msg_counts[1], v_now, p_blobs[1]);
        INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
        VALUES (p_pids[1], v_lane.last_offset + 1, v_lane.last_offset + p_msg_counts[1], v_now, p_hashes[1]);
        RETURN jsonb_build_array(jsonb_build_object('status', 'queued', 'partitionId', p_pids[1],
            'baseOffset', v_lane.last_offset + 1, 'createdAt', queen.iso_us_v1(v_now)));
    END IF;

    -- What the lock returns is the newest version of each row. Lanes that are not
    -- held, or not there, are missing.
    IF p_wait_ms = 0 THEN
        SELECT count(*), array_agg(l.ord), array_agg(l.last_offset), array_agg(l.txns_start), array_agg(l.last_write_at),
               array_agg(COALESCE(l.secs, l.dedup_window_seconds)), COALESCE(bool_or(l.probed), FALSE)
        INTO v_found, v_ords, v_last, v_floor, v_written, v_window, v_probe
        FROM (
            SELECT u.ord, u.secs, p.last_offset, p.txns_start, p.last_write_at, q.dedup_window_seconds, u.verified IS DISTINCT FROM -2 AS probed
            FROM unnest(p_pids, p_verified, p_windows, p_queues, p_partitions, p_tenants)
                 WITH ORDINALITY AS u (pid, verified, secs, queue, partition, tenant, ord)
            JOIN queen.log_partitions AS p ON p.id = u.pid
            CROSS JOIN LATERAL (SELECT x.name, x.tenant_id, x.dedup_window_seconds FROM queen.queues AS x WHERE x.id = p.queue_id OFFSET 0) AS q
            WHERE p.id = ANY (p_pids) -- so that no plan reads a whole queue
              AND (p_partitions IS NULL OR (p.name = u.partition AND q.name = u.queue AND q.tenant_id = u.tenant))
            ORDER BY p.id
            FOR NO KEY UPDATE OF p SKIP LOCKED
        ) AS l;
    ELSE
        SELECT count(*), array_agg(l.ord), array_agg(l.last_offset), array_agg(l.txns_start), array_agg(l.last_write_at),
               array_agg(COALESCE(l.secs, l.dedup_window_seconds)), COALESCE(bool_or(l.probed), FALSE)
        INTO v_found, v_ords, v_last, v_floor, v_written, v_window, v_probe
        FROM (
            SELECT u.ord, u.secs, p.last_offset, p.txns_start, p.last_write_at, q.dedup_window_seconds, u.verified IS DISTINCT FROM -2 AS probed
            FROM unnest(p_pids, p_verified, p_windows, p_queues, p_partitions, p_tenants)
                 WITH ORDINALITY AS u (pid, verified, secs, queue, partition, tenant, ord)
            JOIN queen.log_partitions AS p ON p.id = u.pid
            CROSS JOIN LATERAL (SELECT x.name, x.tenant_id, x.dedup_window_seconds FROM queen.queues AS x WHERE x.id = p.queue_id OFFSET 0) AS q
            WHERE p.id = ANY (p_pids) -- so that no plan reads a whole queue
              AND (p_partitions IS NULL OR (p.name = u.partition AND q.name = u.queue AND q.tenant_id = u.tenant))
            ORDER BY p.id
            FOR NO KEY UPDATE OF p
        ) AS l;
    END IF;
    v_now := clock_timestamp();

    IF v_found < v_n THEN
        SELECT COALESCE(array_agg(u.ord), '{}'), count(p.id) INTO v_skip_ords, v_there
        FROM unnest(p_pids) WITH ORDINALITY AS u (pid, ord)
        LEFT JOIN (queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id)
            ON p.id = u.pid
            AND (p_partitions IS NULL OR (p.name = p_partitions[u.ord::INT] AND q.name = p_queues[u.ord::INT] AND q.tenant_id = p_tenants[u.ord::INT]))
        WHERE v_ords IS NULL OR u.ord <> ALL (v_ords);
        -- 40001: nothing was written, and a second attempt provisions the lane anew.
        IF v_there < v_n - v_found OR p_wait_ms IS DISTINCT FROM 0 THEN
            RAISE EXCEPTION 'QPUSH partition % vanished mid-push', (
                SELECT u.pid FROM unnest(p_pids) AS u (pid)
                WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions AS p WHERE p.id = u.pid) LIMIT 1
            ) USING ERRCODE = 'serialization_failure';
        END IF;
        SELECT array_agg(jsonb_build_object('status', 'busy', 'partitionId', p_pids[o::INT])) INTO v_skipped
        FROM unnest(v_skip_ords) AS o;
        IF v_found = 0 THEN
            RETURN to_jsonb(v_skipped);
        END IF;
    END IF;

    IF v_probe THEN
        -- Aligned with the bundle again: NULL where nothing is to be probed.
        SELECT count(f.from_off), array_agg(f.from_off ORDER BY u.ord), array_agg(l.floor_off ORDER BY u.ord),
               array_agg(greatest(v_now, l.written) - make_interval(secs => l.secs) ORDER BY u.ord)
        INTO v_probes, v_from, v_floors, v_since
        FROM unnest(p_pids, p_verified, p_mark_pids, p_mark_windows) WITH ORDINALITY AS u (pid, verified, mark_pid, mark_secs, ord)
        LEFT JOIN unnest(v_ords, v_last, v_floor, v_written, v_window) AS l (ord, last, floor_off, written, secs) ON l.ord = u.ord
        CROSS JOIN LATERAL (
            SELECT greatest(l.floor_off - 1, CASE
                WHEN u.mark_pid = u.pid AND u.verified <= l.last AND l.secs <= u.mark_secs THEN u.verified
                ELSE -1 END) AS from_off
        ) AS m
        CROSS JOIN LATERAL (
            SELECT CASE WHEN l.secs > 0 AND u.verified IS DISTINCT FROM -2
                    AND (l.last > m.from_off OR u.ord = ANY (p_suspect_ords))
                THEN m.from_off END AS from_off
        ) AS f;
        IF v_probes > 0 THEN
            SELECT COALESCE(array_agg(d.r_ord), '{}'),
                   COALESCE(array_agg(jsonb_build_object('status', 'duplicate', 'partitionId', p_pids[d.r_ord::INT], 'dups', d.r_dups)), '{}')
            INTO v_dup_ords, v_dups
            FROM queen.log_push_probe_v1(p_pids, p_hashes, v_from, v_floors, v_since, p_suspect_ords, p_suspect_bases) AS d;
            v_skip_ords := v_skip_ords || v_dup_ords;
            v_skipped := v_skipped || v_dups;
        END IF;
    END IF;

    -- Blobs and hashes are picked by position: a function scan would copy them,
    -- and spill to disk above work_mem.
    WITH lane AS MATERIALIZED (
        SELECT u.ord, p_pids[u.ord::INT] AS pid, u.last + 1 AS base, u.last + p_msg_counts[u.ord::INT] AS tip, u.written,
               greatest(v_now, u.written, s.created_at) AS stamp
        FROM unnest(v_ords, v_last, v_floor, v_written) AS u (ord, last, floor_off, written)
        LEFT JOIN LATERAL (
            SELECT t.created_at
            FROM queen.log_txns AS t
            WHERE t.partition_id = p_pids[u.ord::INT] AND t.base_offset >= u.floor_off
            ORDER BY t.base_offset DESC
            LIMIT 1
        ) AS s ON TRUE
        WHERE u.ord <> ALL (v_skip_ords)
    ), moved AS (
        UPDATE queen.log_partitions AS p
        SET last_offset = l.tip,
            oldest_live_at = CASE WHEN p.log_start >= l.base THEN l.stamp ELSE p.oldest_live_at END,
            oldest_txn_at = CASE WHEN p.txns_start >= l.base THEN l.stamp ELSE p.oldest_txn_at END,
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
        SELECT d.ord, d.verdict FROM unnest(v_skip_ords, v_skipped) AS d (ord, verdict)
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
-- duplicate or busy verdict concerns its own segment only, a raise ends the
-- bundle.
--
-- p_pids are the lane ids as far as the caller knows them, NULL where it does
-- not, and p_windows the dedup windows for which the marks were built. When all
-- are known the names are not resolved, only checked; a lane that was deleted (and
-- perhaps made anew) since then raises serialization_failure, and the caller
-- repeats without ids: resolving and provisioning come before the locks, never
-- after. A mark without its id, or of another id, is -1.
-- p_suspect_segs (position of the segment, from 1) and p_suspect_bases name
-- sidecar rows to read beside the range above the mark. p_wait_ms: what to do
-- about a lane that is held, as in log_push_lanes_v1.
--
-- The same lane may occur several times: its segments are allocated in input
-- order, and the later ones are probed against the earlier ones (unless -2
-- says that their ids were minted). Such a bundle waits for its locks.
DROP FUNCTION IF EXISTS queen.log_push_multi_v1(TEXT[], TEXT[], INT[], BYTEA[], BIGINT[], BYTEA[], UUID[], UUID[], INT[]);
CREATE OR REPLACE FUNCTION queen.log_push_multi_v1(
    p_queues        TEXT[],
    p_partitions    TEXT[],
    p_msg_counts    INT[],
    p_hashes        BYTEA[],
    p_verified      BIGINT[],
    p_blobs         BYTEA[],
    p_tenants       UUID[] DEFAULT NULL,
    p_pids          UUID[] DEFAULT NULL,
    p_windows       INT[] DEFAULT NULL,
    p_suspect_segs  INT[] DEFAULT NULL,
    p_suspect_bases BIGINT[] DEFAULT NULL,
    p_wait_ms       INT DEFAULT NULL
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
       OR cardinality(p_pids) <> v_n OR cardinality(p_windows) <> v_n
       OR cardinality(p_suspect_segs) IS DISTINCT FROM cardinality(p_suspect_bases) THEN
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
    IF v_n = 1 THEN
        v_lanes := CASE WHEN p_pids[1] IS NOT NULL THEN 1 ELSE 0 END;
        v_bad := p_msg_counts[1] IS NULL OR p_msg_counts[1] < 1 OR octet_length(p_hashes[1]) IS DISTINCT FROM 16 * p_msg_counts[1]::BIGINT;
    ELSE
        SELECT count(DISTINCT u.pid), bool_or(u.n IS NULL OR u.n < 1 OR octet_length(p_hashes[u.ord::INT]) IS DISTINCT FROM 16 * u.n::BIGINT)
        INTO v_lanes, v_bad
        FROM unnest(p_pids, p_msg_counts) WITH ORDINALITY AS u (pid, n, ord);
    END IF;
    IF v_bad THEN
        RAISE EXCEPTION 'QPUSH bad segment: a count below 1 or hashes of another length'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF v_lanes = v_n THEN
        RETURN queen.log_push_lanes_v1(p_pids, p_msg_counts, p_hashes, p_verified, p_blobs, NULL, p_pids, p_windows,
            p_suspect_segs, p_suspect_bases, p_wait_ms, p_queues, p_partitions, v_tenants);
    END IF;

    FOR v_try IN 1..2 LOOP
        SELECT array_agg(p.id ORDER BY u.ord), count(p.id), count(DISTINCT p.id)
        INTO v_pids, v_found, v_lanes
        FROM unnest(v_tenants, p_queues, p_partitions) WITH ORDINALITY AS u (tenant, queue, partition, ord)
        LEFT JOIN queen.queues AS q ON q.tenant_id = u.tenant AND q.name = u.queue
        LEFT JOIN LATERAL queen.log_partition_named_v1(q.id, u.partition) AS p ON TRUE;
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
        RETURN queen.log_push_lanes_v1(v_pids, p_msg_counts, p_hashes, p_verified, p_blobs, NULL, p_pids, p_windows,
            p_suspect_segs, p_suspect_bases, p_wait_ms);
    END IF;

    -- Lanes that occur again go in rounds. The first round holds every lane
    -- once, so it takes all the locks, in order. Suspects are named by position,
    -- which a round changes: with any, no mark counts.
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
                   array_agg(p_blobs[a] ORDER BY a), NULL,
                   array_agg(CASE WHEN p_suspect_segs IS NULL THEN p_pids[a] END ORDER BY a),
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

COMMIT;

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
