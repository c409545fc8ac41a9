-- Pop: claim a batch of a partition for a group, and the ways to find one.
--
-- Locks: log_consumers rows, FOR UPDATE SKIP LOCKED, never waited for; on first
-- contact a transaction advisory lock that is only tried. The insert of a new
-- cursor takes a key-share lock on its partition row, which a pusher's FOR NO
-- KEY UPDATE lets pass; only the deletion of the partition makes it wait. The
-- bulk seed inserts ascending by partition id, in the order deleters lock.
--
-- Re-applying is safe: functions whose row type is part of their signature are
-- dropped and created in one transaction, the others replaced.
--
-- A pop's reply is bounded in decoded bytes before anything is leased. The
-- bound is the setting queen.pop_max_bytes, 16 MiB when it is not set.

-- Decoded size of a segment, from the header of its zstd frame (RFC 8878,
-- 3.1.1.1). Only the first bytes are read: of a blob stored out of line that is
-- one chunk. A header that names no size counts as the stored length.
CREATE OR REPLACE FUNCTION queen.log_blob_size(p BYTEA)
RETURNS BIGINT
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    h        BYTEA := substring(p FROM 1 FOR 18);
    v_flags  INT;
    v_pos    INT := 5;
    v_bytes  INT;
    v_size   BIGINT := 0;
BEGIN
    IF octet_length(h) < 6 OR substring(h FROM 1 FOR 4) <> '\x28b52ffd'::bytea THEN
        RETURN octet_length(p);
    END IF;
    v_flags := get_byte(h, 4);
    v_bytes := (ARRAY[CASE WHEN v_flags & 32 <> 0 THEN 1 ELSE 0 END, 2, 4, 8])[(v_flags >> 6) + 1];
    IF v_flags & 32 = 0 THEN
        v_pos := v_pos + 1;
    END IF;
    v_pos := v_pos + (ARRAY[0, 1, 2, 4])[(v_flags & 3) + 1];
    IF v_bytes = 0 OR octet_length(h) < v_pos + v_bytes THEN
        RETURN octet_length(p);
    END IF;
    FOR i IN REVERSE v_bytes - 1..0 LOOP
        IF v_bytes = 8 AND i = 7 AND get_byte(h, v_pos + i) > 127 THEN
            RETURN 9223372036854775807;
        END IF;
        v_size := (v_size << 8) | get_byte(h, v_pos + i);
    END LOOP;
    RETURN CASE WHEN v_bytes = 2 THEN v_size + 256 ELSE v_size END;
END
$$;

CREATE OR REPLACE FUNCTION queen.log_pop_max_bytes()
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(NULLIF(current_setting('queen.pop_max_bytes', TRUE), '')::bigint, 16777216)
$$;

-- A point in time as clients write it: RFC 3339 or ISO 8601, with or without a
-- zone (then UTC). NULL for anything else. A plus sign that a query string has
-- turned into a blank is put back.
CREATE OR REPLACE FUNCTION queen.log_try_timestamp(p TEXT)
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql STABLE
SET TimeZone = 'UTC'
AS $$
BEGIN
    IF p !~ '^\s*\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([Zz]|[+ -]\d{2}(:?\d{2})?)?)?\s*$' THEN
        RETURN NULL;
    END IF;
    RETURN regexp_replace(btrim(p), '(\d{2}:\d{2}[^ ]*) (\d{2}(:?\d{2})?)$', '\1+\2')::timestamptz;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END
$$;

-- Cursor of a subscription that starts at p_at: just before the first retained
-- segment not older than that, else the end. One forward walk on the primary
-- key. p_last must have been read before, so that a push in between is seen.
CREATE OR REPLACE FUNCTION queen.log_seed_offset_v1(p_pid UUID, p_log_start BIGINT, p_last BIGINT, p_at TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(
        (SELECT s.base_offset - 1 FROM queen.log_segments AS s
         WHERE s.partition_id = p_pid AND s.base_offset >= p_log_start AND s.created_at >= p_at
         ORDER BY s.base_offset LIMIT 1),
        p_last)
$$;

-- The subscription a first wildcard or discovery pop registers. Queue mode and
-- everything that asks for the whole backlog store the epoch.
CREATE OR REPLACE FUNCTION queen.log_subscription_v1(
    p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT, OUT r_mode TEXT, OUT r_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_from TEXT := COALESCE(p_sub_from, '');
    v_new  BOOLEAN := COALESCE(p_sub_mode, '') IN ('new', 'new-only');
BEGIN
    r_mode := 'all';
    r_at := '1970-01-01T00:00:00Z';
    IF p_group = '__QUEUE_MODE__' THEN
        RETURN;
    END IF;
    IF v_from NOT IN ('', 'now') THEN
        r_at := queen.log_try_timestamp(v_from);
        r_mode := 'timestamp';
        v_new := r_at IS NULL;
    END IF;
    IF v_new OR v_from = 'now' THEN
        r_mode := 'new';
        r_at := clock_timestamp();
    END IF;
END
$$;

-- Where a group starts in a partition it has no cursor for: the durable record
-- first, then what the pop carries, then the whole backlog.
CREATE OR REPLACE FUNCTION queen.log_pop_seed_v1(
    p_pid UUID, p_queue_id UUID, p_group TEXT, p_log_start BIGINT, p_last BIGINT, p_sub_mode TEXT, p_sub_from TEXT)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_at   TIMESTAMPTZ;
    v_from TEXT := COALESCE(p_sub_from, '');
BEGIN
    IF p_group = '__QUEUE_MODE__' THEN
        RETURN -1;
    END IF;
    SELECT m.subscription_timestamp INTO v_at FROM queen.consumer_groups_metadata AS m
    WHERE m.queue_id = p_queue_id AND m.consumer_group = p_group AND m.partition_name = ''
      AND m.namespace = '' AND m.task = '';
    IF NOT FOUND AND v_from NOT IN ('', 'now') THEN
        v_at := queen.log_try_timestamp(v_from);
    END IF;
    IF v_at IS NOT NULL THEN
        RETURN queen.log_seed_offset_v1(p_pid, p_log_start, p_last, v_at);
    END IF;
    IF v_from = 'now' OR (v_from = '' AND COALESCE(p_sub_mode, '') IN ('new', 'new-only')) THEN
        RETURN p_last;
    END IF;
    RETURN -1;
END
$$;

-- The claim. Takes at most p_budget messages and p_bytes decoded bytes of one
-- partition; with p_force at least one message, whatever its size. Returns no
-- row when there is nothing to deliver or somebody else holds the batch.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_claim_v1(UUID, TEXT, INTEGER, BIGINT, BOOLEAN, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, BOOLEAN);
CREATE FUNCTION queen.log_pop_claim_v1(
    p_pid         UUID,
    p_group       TEXT,
    p_budget      INTEGER,
    p_bytes       BIGINT,
    p_force       BOOLEAN,
    p_lease       INTEGER,
    p_worker      TEXT,
    p_auto_ack    BOOLEAN,
    p_sub_mode    TEXT,
    p_sub_from    TEXT,
    p_skip_window BOOLEAN
)
RETURNS TABLE (r_base BIGINT, r_start_idx INTEGER, r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ,
               r_blob BYTEA, r_size BIGINT, r_attempt INTEGER)
LANGUAGE plpgsql
AS $$
DECLARE
    v_now       TIMESTAMPTZ := clock_timestamp();
    v_budget    INTEGER := GREATEST(COALESCE(p_budget, 1), 1);
    v_bytes     BIGINT := p_bytes;
    v_part      RECORD;
    v_cursor    RECORD;
    v_seg       RECORD;
    v_wanted    BIGINT;
    v_head      BIGINT;
    v_first     BIGINT;
    v_last      BIGINT;
    v_taken     INTEGER := 0;
    v_lease     INTEGER;
BEGIN
    SELECT p.last_offset, p.log_start, p.queue_id, COALESCE(q.delayed_processing, 0) AS delay,
           COALESCE(q.window_buffer, 0) AS window_buffer, q.lease_time
    INTO v_part
    FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE p.id = p_pid;
    IF NOT FOUND THEN
        RETURN;
    END IF;

    IF v_part.window_buffer > 0 AND NOT COALESCE(p_skip_window, FALSE) AND (
        SELECT s.created_at > v_now - make_interval(secs => v_part.window_buffer)
        FROM queen.log_segments AS s WHERE s.partition_id = p_pid ORDER BY s.base_offset DESC LIMIT 1
    ) THEN
        RETURN;
    END IF;

    FOR attempt IN 1..2 LOOP
        SELECT c.committed, c.attempt_offset, c.attempt_count INTO v_cursor
        FROM queen.log_consumers AS c
        WHERE c.partition_id = p_pid AND c.consumer_group = p_group
          AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
        FOR UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        IF attempt = 2 OR EXISTS (
            SELECT 1 FROM queen.log_consumers AS c WHERE c.partition_id = p_pid AND c.consumer_group = p_group
        ) OR NOT pg_try_advisory_xact_lock(hashtextextended(p_pid::text || '/' || p_group, 42)) THEN
            RETURN;
        END IF;
        -- A partition that is being deleted is passed over, not waited for.
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
        SELECT l.id, p_group, queen.log_pop_seed_v1(
            p_pid, v_part.queue_id, p_group, v_part.log_start, v_part.last_offset, p_sub_mode, p_sub_from)
        FROM (SELECT p.id FROM queen.log_partitions AS p WHERE p.id = p_pid FOR KEY SHARE SKIP LOCKED) AS l
        ON CONFLICT DO NOTHING;
    END LOOP;

    v_wanted := v_cursor.committed + 1;
    -- Head probe: the segment that may cover the wanted offset; from there the
    -- scan runs forward. A gap of retention starts it at the next segment.
    SELECT s.base_offset INTO v_head FROM queen.log_segments AS s
    WHERE s.partition_id = p_pid AND s.base_offset <= v_wanted AND s.end_offset >= v_wanted
      AND s.base_offset = (SELECT max(g.base_offset) FROM queen.log_segments AS g
                           WHERE g.partition_id = p_pid AND g.base_offset <= v_wanted);

    FOR v_seg IN
        SELECT s.base_offset, s.end_offset, s.created_at, s.blob
        FROM queen.log_segments AS s
        WHERE s.partition_id = p_pid AND s.base_offset >= COALESCE(v_head, v_wanted)
        ORDER BY s.base_offset
    LOOP
        -- A delay hides a suffix: nothing behind the first hidden segment shows.
        EXIT WHEN v_part.delay > 0 AND v_seg.created_at > v_now - make_interval(secs => v_part.delay);
        r_base := v_seg.base_offset;
        r_start_idx := GREATEST(v_wanted - v_seg.base_offset, 0);
        r_msg_count := v_seg.end_offset - v_seg.base_offset + 1;
        r_created_at := v_seg.created_at;
        r_blob := v_seg.blob;
        r_size := queen.log_blob_size(v_seg.blob);
        r_take := LEAST(r_msg_count - r_start_idx, v_budget - v_taken);
        IF r_size * r_take / r_msg_count > v_bytes THEN
            -- Frames count as equally large: SQL does not look inside.
            r_take := LEAST(r_take, v_bytes * r_msg_count / GREATEST(r_size, 1));
            IF r_take < 1 THEN
                EXIT WHEN v_taken > 0 OR NOT p_force;
                r_take := 1;
            END IF;
            v_bytes := 0;
        ELSE
            v_bytes := v_bytes - r_size * r_take / r_msg_count;
        END IF;
        r_size := r_size * r_take / r_msg_count;
        v_first := COALESCE(v_first, r_base + r_start_idx);
        v_last := r_base + r_start_idx + r_take - 1;
        v_taken := v_taken + r_take;
        r_attempt := CASE WHEN p_auto_ack OR v_cursor.attempt_offset IS DISTINCT FROM v_first THEN 1
                          ELSE v_cursor.attempt_count + 1 END;
        RETURN NEXT;
        EXIT WHEN v_taken >= v_budget OR v_bytes <= 0;
    END LOOP;

    IF v_taken = 0 THEN
        -- Everything was deleted by age: the cursor goes where the log is.
        IF v_part.last_offset > v_cursor.committed
           AND NOT EXISTS (SELECT 1 FROM queen.log_segments AS s WHERE s.partition_id = p_pid) THEN
            UPDATE queen.log_consumers AS c SET committed = v_part.last_offset
            WHERE c.partition_id = p_pid AND c.consumer_group = p_group;
        END IF;
        RETURN;
    END IF;

    IF p_auto_ack THEN
        UPDATE queen.log_consumers AS c
        SET committed = v_last, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL, batch_end = NULL,
            total_consumed = c.total_consumed + v_taken
        WHERE c.partition_id = p_pid AND c.consumer_group = p_group;
        RETURN;
    END IF;
    v_lease := CASE WHEN p_lease > 0 THEN p_lease WHEN v_part.lease_time > 0 THEN v_part.lease_time ELSE 60 END;
    UPDATE queen.log_consumers AS c
    SET worker_id = p_worker, lease_acquired_at = v_now, lease_expires_at = v_now + make_interval(secs => v_lease),
        batch_end = v_last, attempt_count = r_attempt, attempt_offset = v_first
    WHERE c.partition_id = p_pid AND c.consumer_group = p_group;
END
$$;
COMMIT;

BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, BOOLEAN, UUID);
CREATE FUNCTION queen.log_pop_v1(
    p_queue                TEXT,
    p_partition            TEXT,
    p_group                TEXT,
    p_budget               INTEGER,
    p_lease_seconds        INTEGER,
    p_worker               TEXT,
    p_auto_ack             BOOLEAN DEFAULT FALSE,
    p_sub_mode             TEXT DEFAULT 'all',
    p_sub_from             TEXT DEFAULT '',
    p_skip_window_debounce BOOLEAN DEFAULT FALSE,
    p_tenant               UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (r_base BIGINT, r_start_idx INTEGER, r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    SELECT c.r_base, c.r_start_idx, c.r_take, c.r_msg_count, c.r_created_at, c.r_blob
    FROM queen.log_pop_claim_v1(
        queen.log_partition_id_v1(p_tenant, p_queue, p_partition), p_group, p_budget, queen.log_pop_max_bytes(), TRUE,
        p_lease_seconds, p_worker, p_auto_ack, p_sub_mode, p_sub_from, p_skip_window_debounce) AS c;
END
$$;
COMMIT;

CREATE OR REPLACE FUNCTION queen.log_partition_id_v1(p_tenant UUID, p_queue TEXT, p_partition TEXT)
RETURNS UUID
LANGUAGE sql STABLE
AS $$
    SELECT p.id FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
    WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.name = p_partition
$$;

-- Claims from a list of partitions, in its order, until the message or byte
-- budget or the number of partitions is spent. One row per delivered slice.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_many_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN);
CREATE FUNCTION queen.log_pop_many_v1(
    p_pids        UUID[],
    p_group       TEXT,
    p_budget      INTEGER,
    p_lease       INTEGER,
    p_worker      TEXT,
    p_auto_ack    BOOLEAN,
    p_max         INTEGER,
    p_sub_mode    TEXT,
    p_sub_from    TEXT,
    p_skip_window BOOLEAN
)
RETURNS TABLE (r_ord INTEGER, r_pid UUID, r_base BIGINT, r_start_idx INTEGER, r_take INTEGER, r_msg_count INTEGER,
               r_created_at TIMESTAMPTZ, r_blob BYTEA, r_attempt INTEGER)
LANGUAGE plpgsql
AS $$
DECLARE
    v_budget INTEGER := GREATEST(COALESCE(p_budget, 1), 1);
    v_bytes  BIGINT := queen.log_pop_max_bytes();
    v_served INTEGER := 0;
    v_row    RECORD;
    v_took   BOOLEAN;
BEGIN
    FOR i IN 1..COALESCE(cardinality(p_pids), 0) LOOP
        EXIT WHEN v_budget <= 0 OR v_bytes <= 0 OR (p_max > 0 AND v_served >= p_max);
        v_took := FALSE;
        r_ord := i;
        r_pid := p_pids[i];
        FOR v_row IN
            SELECT * FROM queen.log_pop_claim_v1(r_pid, p_group, v_budget, v_bytes, v_served = 0, p_lease, p_worker,
                                                 p_auto_ack, p_sub_mode, p_sub_from, p_skip_window)
        LOOP
            r_base := v_row.r_base;
            r_start_idx := v_row.r_start_idx;
            r_take := v_row.r_take;
            r_msg_count := v_row.r_msg_count;
            r_created_at := v_row.r_created_at;
            r_blob := v_row.r_blob;
            r_attempt := v_row.r_attempt;
            v_budget := v_budget - v_row.r_take;
            v_bytes := v_bytes - v_row.r_size;
            v_took := TRUE;
            RETURN NEXT;
        END LOOP;
        v_served := v_served + v_took::int;
    END LOOP;
END
$$;
COMMIT;

-- The common answer of the binary pops: meta describes the slices, blobs holds
-- the segments they are cut from, in the same order.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_pack_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN);
CREATE FUNCTION queen.log_pop_pack_v1(
    p_pids        UUID[],
    p_group       TEXT,
    p_budget      INTEGER,
    p_lease       INTEGER,
    p_worker      TEXT,
    p_auto_ack    BOOLEAN,
    p_max         INTEGER,
    p_sub_mode    TEXT,
    p_sub_from    TEXT,
    p_skip_window BOOLEAN,
    OUT meta      JSONB,
    OUT blobs     BYTEA[]
)
LANGUAGE plpgsql
AS $$
BEGIN
    WITH slices AS MATERIALIZED (
        SELECT * FROM queen.log_pop_many_v1(p_pids, p_group, p_budget, p_lease, p_worker, p_auto_ack, p_max,
                                            p_sub_mode, p_sub_from, p_skip_window)
    ), partitions AS (
        SELECT s.r_ord, s.r_pid, s.r_attempt,
               jsonb_agg(jsonb_build_object('seq', s.r_base, 'startOff', s.r_start_idx, 'take', s.r_take, 'createdAt',
                   to_char(s.r_created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) ORDER BY s.r_base) AS segments
        FROM slices AS s
        GROUP BY s.r_ord, s.r_pid, s.r_attempt
    )
    SELECT jsonb_build_object('partitions', COALESCE((
               SELECT jsonb_agg(jsonb_build_object('partition', p.name, 'partitionId', p.id,
                                                   'deliveryAttempt', x.r_attempt, 'segments', x.segments) ORDER BY x.r_ord)
               FROM partitions AS x JOIN queen.log_partitions AS p ON p.id = x.r_pid), '[]'::jsonb)),
           COALESCE((SELECT array_agg(s.r_blob ORDER BY s.r_ord, s.r_base) FROM slices AS s), '{}')
    INTO meta, blobs;
END
$$;
COMMIT;

-- The same answer with the blobs inside the JSON, base64-encoded.
CREATE OR REPLACE FUNCTION queen.log_pop_inline_v1(p_meta JSONB, p_blobs BYTEA[])
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('partitions', COALESCE((
        SELECT jsonb_agg(p.value || jsonb_build_object('segments', p.segments) ORDER BY p.ord)
        FROM (
            SELECT part.ord, part.value, jsonb_agg(
                seg.value || jsonb_build_object('blob', encode(p_blobs[seg.n], 'base64')) ORDER BY seg.n) AS segments
            FROM jsonb_array_elements(p_meta -> 'partitions') WITH ORDINALITY AS part (value, ord)
            JOIN (SELECT s.value, pp.ord AS part_ord, row_number() OVER (ORDER BY pp.ord, s.ord)::int AS n
                  FROM jsonb_array_elements(p_meta -> 'partitions') WITH ORDINALITY AS pp (value, ord)
                  CROSS JOIN LATERAL jsonb_array_elements(pp.value -> 'segments') WITH ORDINALITY AS s (value, ord)
                 ) AS seg ON seg.part_ord = part.ord
            GROUP BY part.ord, part.value
        ) AS p), '[]'::jsonb))
$$;

-- One partition, addressed by name. The name and id in the answer are read in a
-- later command than the claim, whose snapshot is at least as new: a batch is
-- never delivered without its partition id.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_specific_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID);
CREATE FUNCTION queen.log_pop_specific_bin_v1(
    p_queue         TEXT,
    p_partition     TEXT,
    p_group         TEXT,
    p_budget        INTEGER,
    p_lease_seconds INTEGER,
    p_worker        TEXT,
    p_auto_ack      BOOLEAN,
    p_sub_mode      TEXT,
    p_sub_from      TEXT,
    p_tenant        UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql
AS $$
DECLARE
    v_pid UUID := queen.log_partition_id_v1(p_tenant, p_queue, p_partition);
BEGIN
    RETURN QUERY SELECT * FROM queen.log_pop_pack_v1(
        CASE WHEN v_pid IS NULL THEN '{}'::uuid[] ELSE ARRAY[v_pid] END, p_group, p_budget, p_lease_seconds, p_worker,
        p_auto_ack, 1, p_sub_mode, p_sub_from, FALSE);
END
$$;
COMMIT;

CREATE OR REPLACE FUNCTION queen.log_pop_specific_v1(
    p_queue         TEXT,
    p_partition     TEXT,
    p_group         TEXT,
    p_budget        INTEGER,
    p_lease_seconds INTEGER,
    p_worker        TEXT,
    p_auto_ack      BOOLEAN,
    p_sub_mode      TEXT,
    p_sub_from      TEXT,
    p_tenant        UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_segments JSONB;
    v_attempt  INTEGER;
BEGIN
    SELECT jsonb_agg(jsonb_build_object(
               'seq', c.r_base, 'startOff', c.r_start_idx, 'take', c.r_take, 'msgCount', c.r_msg_count,
               'createdAt', to_char(c.r_created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'blob', encode(c.r_blob, 'base64')) ORDER BY c.r_base), max(c.r_attempt)
    INTO v_segments, v_attempt
    FROM queen.log_pop_claim_v1(
        queen.log_partition_id_v1(p_tenant, p_queue, p_partition), p_group, p_budget, queen.log_pop_max_bytes(), TRUE,
        p_lease_seconds, p_worker, p_auto_ack, p_sub_mode, p_sub_from, FALSE) AS c;
    RETURN jsonb_build_object(
        'segments', COALESCE(v_segments, '[]'::jsonb),
        'partitionId', COALESCE(queen.log_partition_id_v1(p_tenant, p_queue, p_partition)::text, ''),
        'deliveryAttempt', v_attempt);
END
$$;

-- Registers a group on a queue, and on its first contact seeds the cursors of
-- all partitions in one statement. Exactly one concurrent caller inserts the
-- record; the others wait for its commit and find the cursors. p_at_tail: a
-- registration of mode new that happens now starts at the end of each lane; one
-- that happened earlier starts at its own time.
CREATE OR REPLACE FUNCTION queen.log_register_group_v1(
    p_tenant UUID, p_queue_id UUID, p_group TEXT, p_mode TEXT, p_at TIMESTAMPTZ, p_at_tail BOOLEAN)
RETURNS VOID
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO queen.consumer_groups_metadata (tenant_id, consumer_group, queue_id, subscription_mode, subscription_timestamp)
    SELECT p_tenant, p_group, q.id, p_mode, p_at
    FROM (SELECT x.id FROM queen.queues AS x WHERE x.id = p_queue_id FOR KEY SHARE) AS q
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN; -- registered already, or the queue was deleted meanwhile
    END IF;
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group,
           CASE WHEN p_mode = 'all' THEN GREATEST(p.log_start - 1, -1)
                WHEN p_mode = 'new' AND p_at_tail THEN p.last_offset
                ELSE queen.log_seed_offset_v1(p.id, p.log_start, p.last_offset, p_at) END
    FROM (SELECT x.* FROM queen.log_partitions AS x WHERE x.queue_id = p_queue_id ORDER BY x.id FOR KEY SHARE) AS p
    ORDER BY p.id
    ON CONFLICT DO NOTHING;
END
$$;

-- Partitions that probably have something to claim, in random order. Hints
-- only: the claim checks again under the row lock.
CREATE OR REPLACE FUNCTION queen.log_pop_candidates_v1(
    p_queue_ids UUID[], p_group TEXT, p_since TIMESTAMPTZ, p_max INTEGER)
RETURNS UUID[]
LANGUAGE sql VOLATILE
AS $$
    SELECT COALESCE(array_agg(x.id), '{}')
    FROM (
        SELECT p.id
        FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.queue_id = ANY (p_queue_ids)
          AND p.last_write_at >= p_since - interval '2 minutes'
          AND (c.partition_id IS NULL OR p.last_offset > c.committed)
          AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < clock_timestamp())
        ORDER BY random()
        LIMIT CASE WHEN COALESCE(p_max, 0) <= 0 OR p_max >= 128 THEN 512 ELSE LEAST(GREATEST(4 * p_max, 64), 512) END
    ) AS x
$$;

-- After an empty scan: moves the watermark only when nothing is pending even
-- with leases ignored, at most every 30 s. A backlog behind somebody's lease
-- must not fall out of the scan.
CREATE OR REPLACE FUNCTION queen.log_pop_empty_scan_v1(p_queue_ids UUID[], p_group TEXT, p_since TIMESTAMPTZ, p_now TIMESTAMPTZ)
RETURNS VOID
LANGUAGE plpgsql
AS $$
DECLARE
    v_pending BOOLEAN := EXISTS (
        SELECT 1 FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= p_since - interval '2 minutes'
          AND (c.partition_id IS NULL OR p.last_offset > c.committed));
BEGIN
    INSERT INTO queen.consumer_watermarks AS w (queue_id, consumer_group, last_empty_scan_at, updated_at)
    SELECT q.id, p_group, CASE WHEN v_pending THEN '1970-01-01T00:00:00Z' ELSE p_now END, p_now
    FROM (SELECT x.id FROM queen.queues AS x WHERE x.id = ANY (p_queue_ids) ORDER BY x.id FOR KEY SHARE) AS q
    ORDER BY q.id
    ON CONFLICT (queue_id, consumer_group) DO UPDATE
    SET last_empty_scan_at = CASE WHEN v_pending THEN w.last_empty_scan_at ELSE p_now END,
        updated_at = p_now;
END
$$;

-- A pop over the partitions of some queues: scan, claim, keep the watermark.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_queues_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT);
CREATE FUNCTION queen.log_pop_queues_v1(
    p_queue_ids     UUID[],
    p_group         TEXT,
    p_budget        INTEGER,
    p_lease_seconds INTEGER,
    p_worker        TEXT,
    p_auto_ack      BOOLEAN,
    p_max           INTEGER,
    p_sub_mode      TEXT,
    p_sub_from      TEXT,
    OUT meta        JSONB,
    OUT blobs       BYTEA[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_now      TIMESTAMPTZ := clock_timestamp();
    v_since    TIMESTAMPTZ;
    v_verified TIMESTAMPTZ;
BEGIN
    SELECT min(COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z')), min(COALESCE(w.updated_at, '-infinity'))
    INTO v_since, v_verified
    FROM unnest(p_queue_ids) AS q (id)
    LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group;

    SELECT x.meta, x.blobs INTO meta, blobs FROM queen.log_pop_pack_v1(
        queen.log_pop_candidates_v1(p_queue_ids, p_group, v_since, p_max), p_group, p_budget, p_lease_seconds, p_worker,
        p_auto_ack, p_max, p_sub_mode, p_sub_from, FALSE) AS x;

    IF blobs = '{}' AND v_verified <= v_now - interval '30 seconds' THEN
        PERFORM queen.log_pop_empty_scan_v1(p_queue_ids, p_group, v_since, v_now);
    END IF;
END
$$;
COMMIT;

BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_wildcard_bin_v1(TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID);
CREATE FUNCTION queen.log_pop_wildcard_bin_v1(
    p_queue          TEXT,
    p_group          TEXT,
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue UUID;
    v_sub   RECORD;
BEGIN
    FOR attempt IN 1..2 LOOP
        SELECT q.id INTO v_queue FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
        EXIT WHEN FOUND OR attempt = 2 OR p_queue = '';
        PERFORM queen.log_provision_v1(ARRAY[p_tenant], ARRAY[p_queue], '{}');
    END LOOP;
    IF v_queue IS NULL THEN
        RETURN QUERY SELECT '{"partitions": []}'::jsonb, '{}'::bytea[];
        RETURN;
    END IF;
    IF NOT EXISTS (
        SELECT 1 FROM queen.consumer_groups_metadata AS m
        WHERE m.queue_id = v_queue AND m.tenant_id = p_tenant AND m.consumer_group = p_group
          AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
    ) THEN
        v_sub := queen.log_subscription_v1(p_group, p_sub_mode, p_sub_from);
        PERFORM queen.log_register_group_v1(p_tenant, v_queue, p_group, v_sub.r_mode, v_sub.r_at, TRUE);
    END IF;
    RETURN QUERY SELECT x.meta, x.blobs FROM queen.log_pop_queues_v1(
        ARRAY[v_queue], p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from) AS x;
END
$$;
COMMIT;

CREATE OR REPLACE FUNCTION queen.log_pop_wildcard_wire_v1(
    p_queue          TEXT,
    p_group          TEXT,
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_pop RECORD;
BEGIN
    SELECT * INTO v_pop FROM queen.log_pop_wildcard_bin_v1(
        p_queue, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant);
    RETURN queen.log_pop_inline_v1(v_pop.meta, v_pop.blobs);
END
$$;

-- Discovery: the queues of a tenant that carry the labels. The registration
-- names the labels and no queue; a queue that appears later is entered by the
-- time of that registration, so that nothing pushed after it is missed.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_discover_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID);
CREATE FUNCTION queen.log_pop_discover_bin_v1(
    p_namespace      TEXT,
    p_task           TEXT,
    p_group          TEXT,
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql
AS $$
DECLARE
    v_namespace TEXT := COALESCE(p_namespace, '');
    v_task      TEXT := COALESCE(p_task, '');
    v_queues    UUID[];
    v_sub       RECORD;
    v_stored    RECORD;
    v_queue     UUID;
    v_now       BOOLEAN;
BEGIN
    v_sub := queen.log_subscription_v1(p_group, p_sub_mode, p_sub_from);
    INSERT INTO queen.consumer_groups_metadata (tenant_id, consumer_group, queue_id, namespace, task, subscription_mode, subscription_timestamp)
    SELECT p_tenant, p_group, NULL, v_namespace, v_task, v_sub.r_mode, v_sub.r_at
    WHERE NOT EXISTS (
        SELECT 1 FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id IS NULL
          AND m.partition_name = '' AND m.namespace = v_namespace AND m.task = v_task)
    ON CONFLICT DO NOTHING;
    v_now := FOUND;
    SELECT m.subscription_mode AS mode, m.subscription_timestamp AS at INTO v_stored
    FROM queen.consumer_groups_metadata AS m
    WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id IS NULL
      AND m.partition_name = '' AND m.namespace = v_namespace AND m.task = v_task;

    SELECT COALESCE(array_agg(q.id ORDER BY q.id), '{}') INTO v_queues
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND (v_namespace = '' OR q.namespace = v_namespace) AND (v_task = '' OR q.task = v_task);

    FOR v_queue IN
        SELECT q.id FROM unnest(v_queues) AS q (id)
        WHERE NOT EXISTS (
            SELECT 1 FROM queen.consumer_groups_metadata AS m
            WHERE m.queue_id = q.id AND m.tenant_id = p_tenant AND m.consumer_group = p_group
              AND m.partition_name = '' AND m.namespace = '' AND m.task = '')
        ORDER BY q.id
    LOOP
        PERFORM queen.log_register_group_v1(p_tenant, v_queue, p_group, v_stored.mode, v_stored.at, v_now);
    END LOOP;

    RETURN QUERY SELECT x.meta, x.blobs FROM queen.log_pop_queues_v1(
        v_queues, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from) AS x;
END
$$;
COMMIT;

CREATE OR REPLACE FUNCTION queen.log_pop_discover_wire_v1(
    p_namespace      TEXT,
    p_task           TEXT,
    p_group          TEXT,
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_pop RECORD;
BEGIN
    SELECT * INTO v_pop FROM queen.log_pop_discover_bin_v1(
        p_namespace, p_task, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant);
    RETURN queen.log_pop_inline_v1(v_pop.meta, v_pop.blobs);
END
$$;

-- Cheap probes for parked pops. They may say TRUE too often, never too rarely:
-- a group that is not registered must run the real pop, which registers it.
CREATE OR REPLACE FUNCTION queen.log_has_pending_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.last_offset > COALESCE(c.committed, -1))
$$;

CREATE OR REPLACE FUNCTION queen.log_partition_has_pending_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE((
        SELECT c.partition_id IS NULL OR p.last_offset > GREATEST(c.committed, p.log_start - 1)
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id AND p.name = p_partition
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND q.name = p_queue), TRUE)
$$;

CREATE OR REPLACE FUNCTION queen.log_discover_has_pending_v1(
    p_namespace TEXT, p_task TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT 1 FROM queen.queues AS q
        WHERE q.tenant_id = p_tenant AND (p_namespace = '' OR q.namespace = p_namespace) AND (p_task = '' OR q.task = p_task)
          AND (
            NOT EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS m
                        WHERE m.queue_id = q.id AND m.consumer_group = p_group AND m.partition_name = '')
            OR EXISTS (
                SELECT 1 FROM queen.log_partitions AS p
                LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                WHERE p.queue_id = q.id AND p.last_offset > GREATEST(COALESCE(c.committed, -1), p.log_start - 1))))
$$;

-- Claims from the caller's candidates and judges each one it comes to: took,
-- empty, or leased until a time. A candidate that gave nothing but has more than
-- its cursor is never called empty: it is looked at again after 250 ms.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID);
CREATE FUNCTION queen.log_pop_list_v1(
    p_queue          TEXT,
    p_group          TEXT,
    p_partitions     TEXT[],
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_skip_window    BOOLEAN DEFAULT FALSE,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (meta JSONB, blobs BYTEA[], states JSONB)
LANGUAGE plpgsql
AS $$
DECLARE
    v_budget INTEGER := GREATEST(COALESCE(p_budget, 1), 1);
    v_served INTEGER := 0;
    v_meta   JSONB := '[]';
    v_blobs  BYTEA[] := '{}';
    v_states JSONB := '[]';
    v_bytes  BIGINT := queen.log_pop_max_bytes();
    v_cand   RECORD;
    v_pop    RECORD;
    v_part   RECORD;
BEGIN
    FOR v_cand IN
        SELECT u.name, queen.log_partition_id_v1(p_tenant, p_queue, u.name) AS id
        FROM (SELECT x.name, min(x.ord) AS ord FROM unnest(p_partitions) WITH ORDINALITY AS x (name, ord) GROUP BY x.name) AS u
        WHERE EXISTS (SELECT 1 FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue)
        ORDER BY u.ord
    LOOP
        EXIT WHEN v_budget <= 0 OR v_bytes <= 0 OR (p_max_partitions > 0 AND v_served >= p_max_partitions);
        SELECT x.meta, x.blobs INTO v_pop FROM (SELECT
            jsonb_agg(jsonb_build_object('seq', c.r_base, 'startOff', c.r_start_idx, 'take', c.r_take, 'createdAt',
                to_char(c.r_created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) ORDER BY c.r_base) AS segments,
            array_agg(c.r_blob ORDER BY c.r_base) AS blobs, sum(c.r_take) AS taken, sum(c.r_size) AS size, max(c.r_attempt) AS attempt
            FROM queen.log_pop_claim_v1(v_cand.id, p_group, v_budget, v_bytes, v_served = 0, p_lease_seconds, p_worker,
                                        p_auto_ack, p_sub_mode, p_sub_from, p_skip_window) AS c) AS y
        CROSS JOIN LATERAL (SELECT to_jsonb(y) - 'blobs' AS meta, y.blobs) AS x;
        SELECT p.last_offset, c.committed, CASE WHEN c.worker_id IS NOT NULL THEN c.lease_expires_at END AS until INTO v_part
        FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.id = v_cand.id;
        IF v_pop.blobs IS NOT NULL THEN
            v_served := v_served + 1;
            v_budget := v_budget - (v_pop.meta ->> 'taken')::int;
            v_bytes := v_bytes - (v_pop.meta ->> 'size')::bigint;
            v_meta := v_meta || jsonb_build_array(jsonb_build_object(
                'partition', v_cand.name, 'partitionId', v_cand.id,
                'deliveryAttempt', v_pop.meta -> 'attempt', 'segments', v_pop.meta -> 'segments'));
            v_blobs := v_blobs || v_pop.blobs;
            v_states := v_states || jsonb_build_array(jsonb_build_object('p', v_cand.name, 's', 'took', 'lastOff', v_part.last_offset));
        ELSIF v_part.until > clock_timestamp() THEN
            v_states := v_states || jsonb_build_array(jsonb_build_object('p', v_cand.name, 's', 'leased', 'until',
                to_char(v_part.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
        ELSIF v_part.last_offset > COALESCE(v_part.committed, -1) THEN
            v_states := v_states || jsonb_build_array(jsonb_build_object('p', v_cand.name, 's', 'leased', 'until',
                to_char((clock_timestamp() + interval '250 milliseconds') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
        ELSE
            v_states := v_states || jsonb_build_array(jsonb_build_object('p', v_cand.name, 's', 'empty'));
        END IF;
    END LOOP;
    RETURN QUERY SELECT jsonb_build_object('partitions', v_meta), v_blobs, v_states;
END
$$;
COMMIT;

-- Probably pending partitions, leased ones included, by keyset in id order.
CREATE OR REPLACE FUNCTION queen.log_hotlist_reseed_v1(
    p_queue TEXT, p_group TEXT, p_after_id UUID, p_limit INTEGER, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (r_id UUID, r_name TEXT)
LANGUAGE sql STABLE
AS $$
    SELECT p.id, p.name
    FROM queen.queues AS q
    JOIN queen.log_partitions AS p ON p.queue_id = q.id
    LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
    WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.id > p_after_id AND p.last_offset > COALESCE(c.committed, -1)
    ORDER BY p.id
    LIMIT GREATEST(p_limit, 1)
$$;
