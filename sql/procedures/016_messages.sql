-- Messages and dead letters one by one: the rows of a listing, the lookup of a
-- message, and what is done to dead letters.
--
-- Payloads are in the segments, which only a broker can read; here is everything
-- about a message but its content.
--
-- Locks: the readers take none beyond those of a SELECT. log_dlq_replay_v1 takes, in
-- this order, provisioning inserts, the destination lane FOR NO KEY UPDATE, and the
-- dead letter, a leaf. The other way round it would deadlock with delete_queue_v1,
-- which has the lanes when it deletes the letters. The deletions of dead letters take
-- nothing but these, ascending by id.
-- Re-applying is safe: CREATE OR REPLACE only.

-- 1. The listing ---------------------------------------------------------------
--
-- No index has the messages of all lanes in the order of time: it would cost every
-- push. What there is: the lanes in the order of their last writes, and the rows of
-- a lane in the order of its offsets, which is that of time. A page is a merge of
-- the lanes, of which no more are opened than can have something on it: created_at
-- of a row is at most a second after last_write_at of its lane.

-- How far the groups of a lane are: the offset up to which its messages are completed
-- (all named groups have passed it, or the queue mode where no group is named),
-- whether a lease is live, and the cursors there are.
CREATE OR REPLACE FUNCTION queen.log_lane_progress_v1(p_pid UUID)
RETURNS TABLE (r_done BIGINT, r_leased BOOLEAN, r_named BIGINT, r_queue_mode BOOLEAN, r_lease TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(min(c.committed) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'), max(c.committed), -1),
           COALESCE(bool_or(c.lease_expires_at > now()), FALSE),
           count(*) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'),
           COALESCE(bool_or(c.consumer_group = '__QUEUE_MODE__'), FALSE),
           max(c.lease_expires_at) FILTER (WHERE c.consumer_group = '__QUEUE_MODE__' AND c.lease_expires_at > now())
    FROM queen.log_consumers AS c
    WHERE c.partition_id = p_pid
$$;

-- The offsets of a lane between which a message of p_status may be, any for NULL; no row
-- when there is none.
CREATE OR REPLACE FUNCTION queen.log_browse_span_v1(p_pid UUID, p_floor BIGINT, p_last BIGINT, p_status TEXT)
RETURNS TABLE (r_high BIGINT, r_low BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_status = 'completed' THEN least(g.r_done, p_last) ELSE p_last END,
           CASE WHEN p_status IN ('pending', 'processing') THEN greatest(g.r_done + 1, p_floor) ELSE p_floor END
    FROM (SELECT) AS x
    LEFT JOIN LATERAL queen.log_lane_progress_v1(p_pid) AS g ON p_status IS NOT NULL
    WHERE CASE p_status
        WHEN 'completed' THEN g.r_done >= p_floor
        WHEN 'pending' THEN g.r_done < p_last AND NOT g.r_leased
        WHEN 'processing' THEN g.r_done < p_last AND g.r_leased
        ELSE p_last >= p_floor END
$$;

-- The p_lanes lanes of some queues that were written last, if at p_since or later, and
-- their spans; r_floor is where the rows of a lane begin.
--
-- A few lanes of each queue tell first since when there certainly are enough of them:
-- not all lanes of hundreds of queues are read. Where a status is so rare that no queue
-- has those few, they are all there are.
CREATE OR REPLACE FUNCTION queen.log_browse_lanes_v1(
    p_queues    UUID[],
    p_partition TEXT,
    p_since     TIMESTAMPTZ,
    p_status    TEXT,
    p_lanes     BIGINT
)
RETURNS TABLE (r_pid UUID, r_written TIMESTAMPTZ, r_high BIGINT, r_low BIGINT, r_floor BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    v_since   TIMESTAMPTZ := p_since - INTERVAL '1 second';
    -- The first lanes of each queue, v_few at most, and how many the most that one has.
    v_few     BIGINT := 4 * p_lanes / greatest(cardinality(p_queues), 1) + 1;
    v_most    BIGINT;
    v_pids    UUID[];
    v_written TIMESTAMPTZ[];
    v_highs   BIGINT[];
    v_lows    BIGINT[];
    v_floors  BIGINT[];
BEGIN
    IF p_partition IS NOT NULL THEN
        RETURN QUERY
        SELECT p.id, p.last_write_at, s.r_high, s.r_low, p.txns_start
        FROM unnest(p_queues) AS q (id)
        CROSS JOIN LATERAL queen.log_partition_named_v1(q.id, p_partition) AS p
        CROSS JOIN LATERAL queen.log_browse_span_v1(p.id, p.txns_start, p.last_offset, p_status) AS s
        WHERE p.last_write_at >= v_since
        ORDER BY p.last_write_at DESC, p.id DESC
        LIMIT p_lanes;
        RETURN;
    END IF;

    SELECT array_agg(f.id), array_agg(f.last_write_at), array_agg(f.r_high), array_agg(f.r_low), array_agg(f.txns_start), max(f.n)
    INTO v_pids, v_written, v_highs, v_lows, v_floors, v_most
    FROM (
        SELECT l.*, row_number() OVER (PARTITION BY u.id) AS n
        FROM unnest(p_queues) AS u (id)
        CROSS JOIN LATERAL (
            SELECT p.id, p.last_write_at, p.txns_start, s.r_high, s.r_low
            FROM queen.log_partitions AS p
            CROSS JOIN LATERAL queen.log_browse_span_v1(p.id, p.txns_start, p.last_offset, p_status) AS s
            WHERE p.queue_id = u.id AND p.last_write_at >= v_since
            ORDER BY p.last_write_at DESC, p.id DESC
            LIMIT v_few
        ) AS l
    ) AS f;
    IF COALESCE(v_most, 0) < v_few THEN
        RETURN QUERY
        SELECT u.* FROM unnest(v_pids, v_written, v_highs, v_lows, v_floors) AS u (pid, written, high, low, floor_off)
        ORDER BY u.written DESC, u.pid DESC
        LIMIT p_lanes;
        RETURN;
    END IF;
    SELECT COALESCE(min(k.written), v_since) INTO v_since
    FROM (SELECT u.written FROM unnest(v_written) AS u (written) ORDER BY u.written DESC OFFSET p_lanes - 1 LIMIT 1) AS k;

    RETURN QUERY
    SELECT l.id, l.last_write_at, l.r_high, l.r_low, l.txns_start
    FROM unnest(p_queues) AS q (id)
    CROSS JOIN LATERAL (
        SELECT p.id, p.last_write_at, p.txns_start, s.r_high, s.r_low
        FROM queen.log_partitions AS p
        CROSS JOIN LATERAL queen.log_browse_span_v1(p.id, p.txns_start, p.last_offset, p_status) AS s
        WHERE p.queue_id = q.id AND p.last_write_at >= v_since
        ORDER BY p.last_write_at DESC, p.id DESC
        LIMIT p_lanes
    ) AS l
    ORDER BY l.last_write_at DESC, l.id DESC
    LIMIT p_lanes;
END
$$;

-- The newest sidecar rows of some lanes, as many as the first p_want messages in the
-- order of (created_at, offset), newest first, can be in: read in rounds, of which
-- each goes on only in lanes that can still have one of them. r_low and r_high are the
-- offsets of the row that are asked for.
CREATE OR REPLACE FUNCTION queen.log_browse_rows_v1(
    p_pids   UUID[],
    p_highs  BIGINT[],
    p_lows   BIGINT[],
    p_floors BIGINT[],
    p_since  TIMESTAMPTZ,
    p_want   BIGINT
)
RETURNS TABLE (r_pid UUID, r_base BIGINT, r_low BIGINT, r_high BIGINT, r_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    -- The lanes that are read on, each from v_next downwards.
    v_lanes  UUID[] := p_pids;
    v_next   BIGINT[] := p_highs;
    v_lows   BIGINT[] := p_lows;
    v_floors BIGINT[] := p_floors;
    v_take   BIGINT := greatest(1, least(64, p_want / greatest(cardinality(p_pids), 1)));
    -- The rows of one round, and all that count.
    v_ords   INT[];
    v_bases  BIGINT[];
    v_ends   BIGINT[];
    v_ats    TIMESTAMPTZ[];
    a_pids   UUID[] := '{}';
    a_bases  BIGINT[] := '{}';
    a_lows   BIGINT[] := '{}';
    a_highs  BIGINT[] := '{}';
    a_ats    TIMESTAMPTZ[] := '{}';
    b_pids   UUID[];
    b_bases  BIGINT[];
    b_lows   BIGINT[];
    b_highs  BIGINT[];
    b_ats    TIMESTAMPTZ[];
    -- The message p_want comes not before this place.
    v_at     TIMESTAMPTZ;
    v_off    BIGINT;
BEGIN
    WHILE cardinality(v_lanes) > 0 LOOP
        SELECT array_agg(u.ord::INT), array_agg(t.base_offset), array_agg(t.end_offset), array_agg(t.created_at)
        INTO v_ords, v_bases, v_ends, v_ats
        FROM unnest(v_lanes, v_next, v_floors) WITH ORDINALITY AS u (pid, next, floor_off, ord)
        CROSS JOIN LATERAL (
            SELECT x.base_offset, x.end_offset, x.created_at
            FROM queen.log_txns AS x
            WHERE x.partition_id = u.pid AND x.base_offset <= u.next AND x.base_offset >= u.floor_off
            ORDER BY x.base_offset DESC
            LIMIT v_take
        ) AS t;

        SELECT array_agg(v_lanes[u.ord]), array_agg(u.base), array_agg(greatest(u.base, v_lows[u.ord])),
               array_agg(least(u.tip, v_next[u.ord])), array_agg(u.at)
        INTO b_pids, b_bases, b_lows, b_highs, b_ats
        FROM unnest(v_ords, v_bases, v_ends, v_ats) AS u (ord, base, tip, at)
        WHERE u.at >= p_since AND least(u.tip, v_next[u.ord]) >= v_lows[u.ord];
        a_pids := a_pids || b_pids;
        a_bases := a_bases || b_bases;
        a_lows := a_lows || b_lows;
        a_highs := a_highs || b_highs;
        a_ats := a_ats || b_ats;

        SELECT s.at, s.low INTO v_at, v_off
        FROM (
            SELECT u.at, u.low, sum(u.high - u.low + 1) OVER (ORDER BY u.at DESC, u.low DESC, u.pid DESC) AS total
            FROM unnest(a_pids, a_lows, a_highs, a_ats) AS u (pid, low, high, at)
        ) AS s
        WHERE s.total >= p_want
        ORDER BY s.at DESC, s.low DESC
        LIMIT 1;

        SELECT array_agg(v_lanes[m.ord]), array_agg(m.base - 1), array_agg(v_lows[m.ord]), array_agg(v_floors[m.ord])
        INTO v_lanes, v_next, v_lows, v_floors
        FROM (
            SELECT u.ord, min(u.base) AS base, min(u.at) AS at, count(*) AS n
            FROM unnest(v_ords, v_bases, v_ats) AS u (ord, base, at)
            GROUP BY u.ord
        ) AS m
        WHERE m.n = v_take AND m.base > v_lows[m.ord] AND m.at >= p_since
          AND (v_at IS NULL OR (m.at, m.base - 1) >= (v_at, v_off));
        v_take := least(v_take * 4, 256);
    END LOOP;
    RETURN QUERY
    SELECT u.pid, u.base, u.low, u.high, u.at
    FROM unnest(a_pids, a_bases, a_lows, a_highs, a_ats) AS u (pid, base, low, high, at)
    WHERE v_at IS NULL OR (u.at, u.high) >= (v_at, v_off);
END
$$;

-- The rows of dead-lettered messages that were created between p_since and p_until, in
-- the form of log_browse_rows_v1. A message that was created at p_since or later has
-- failed later still. p_most bounds the letters that are looked at.
CREATE OR REPLACE FUNCTION queen.log_browse_dead_v1(
    p_queues    UUID[],
    p_partition TEXT,
    p_since     TIMESTAMPTZ,
    p_until     TIMESTAMPTZ,
    p_most      BIGINT
)
RETURNS TABLE (r_pid UUID, r_base BIGINT, r_low BIGINT, r_high BIGINT, r_at TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT d.partition_id, t.base_offset, d.off, d.off, t.created_at
    FROM (
        SELECT DISTINCT x.partition_id, x."offset" AS off
        FROM (
            SELECT l.partition_id, l."offset"
            FROM queen.log_dlq AS l
            JOIN queen.log_partitions AS p ON p.id = l.partition_id
            WHERE l.failed_at >= p_since AND l."offset" >= 0
              AND p.queue_id = ANY (p_queues) AND (p_partition IS NULL OR p.name = p_partition)
            ORDER BY l.failed_at DESC
            LIMIT p_most
        ) AS x
    ) AS d
    CROSS JOIN LATERAL (
        SELECT x.base_offset, x.end_offset, x.created_at
        FROM queen.log_txns AS x
        WHERE x.partition_id = d.partition_id AND x.base_offset <= d.off
        ORDER BY x.base_offset DESC
        LIMIT 1
    ) AS t
    WHERE t.end_offset >= d.off AND t.created_at >= p_since AND t.created_at < p_until
$$;

-- The last offset of a lane before p_until, and after a mark (p_at, p_off, p_pid) in the
-- order of a listing.
CREATE OR REPLACE FUNCTION queen.log_browse_high_v1(
    p_pid   UUID,
    p_floor BIGINT,
    p_high  BIGINT,
    p_until TIMESTAMPTZ,
    p_at    TIMESTAMPTZ,
    p_off   BIGINT,
    p_mark  UUID
)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_high BIGINT := queen.log_sidecar_start_v1(p_pid, p_floor, p_high, p_until) - 1;
    v_same BIGINT;
BEGIN
    IF p_at IS NULL OR v_high < p_floor THEN
        RETURN v_high;
    END IF;
    v_high := least(v_high, queen.log_sidecar_start_v1(p_pid, p_floor, v_high, p_at + INTERVAL '1 microsecond') - 1);
    -- Of the messages of the same instant those with lower offsets follow.
    v_same := queen.log_sidecar_start_v1(p_pid, p_floor, v_high, p_at);
    IF v_same > v_high THEN
        RETURN v_high;
    END IF;
    RETURN greatest(least(v_high, CASE WHEN p_pid < p_mark THEN p_off ELSE p_off - 1 END), v_same - 1);
END
$$;

-- The rows of a page of list_messages_v1: as many as its first p_want messages are in,
-- and of each no more than these.
CREATE OR REPLACE FUNCTION queen.log_browse_v1(
    p_queues    UUID[],
    p_partition TEXT,
    p_status    TEXT,
    p_since     TIMESTAMPTZ,
    p_until     TIMESTAMPTZ,
    p_at        TIMESTAMPTZ,
    p_off       BIGINT,
    p_mark      UUID,
    p_want      BIGINT
)
RETURNS TABLE (r_pid UUID, r_base BIGINT, r_low BIGINT, r_high BIGINT, r_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    -- No more lanes are looked at. Where more of them were written in the same second,
    -- they come in the order of their last writes, which are known to the second.
    c_most    CONSTANT BIGINT := 16384;
    v_refusal CONSTANT TEXT := format('more than %s partitions were written since the end of this time: name a queue or a partition', c_most);
    v_until   TIMESTAMPTZ := least(p_until, p_at + INTERVAL '1 microsecond');
    v_n       BIGINT := 64;
    v_want    BIGINT;
    v_lanes   UUID[];
    v_written TIMESTAMPTZ[];
    v_highs   BIGINT[];
    v_lows    BIGINT[];
    v_floors  BIGINT[];
    v_found   BIGINT;
    v_kth     TIMESTAMPTZ;
    v_oldest  TIMESTAMPTZ;
    v_need    BIGINT;
    a_pids    UUID[];
    a_bases   BIGINT[];
    a_lows    BIGINT[];
    a_highs   BIGINT[];
    a_ats     TIMESTAMPTZ[];
BEGIN
    -- What was written since then has to be searched for what was there before.
    IF p_partition IS NULL AND c_most < (
        SELECT count(*)
        FROM (
            SELECT FROM unnest(p_queues) AS q (id)
            JOIN queen.log_partitions AS p ON p.queue_id = q.id
            WHERE p.last_write_at >= v_until
            LIMIT c_most + 1
        ) AS x
    ) THEN
        RAISE EXCEPTION USING MESSAGE = v_refusal, ERRCODE = 'QB001';
    END IF;
    LOOP
        SELECT array_agg(l.r_pid), array_agg(l.r_written), array_agg(l.r_low), array_agg(l.r_floor), count(*),
               array_agg(CASE WHEN l.r_written + INTERVAL '1 second' < v_until THEN l.r_high
                   ELSE queen.log_browse_high_v1(l.r_pid, l.r_floor, l.r_high, p_until, p_at, p_off, p_mark) END)
        INTO v_lanes, v_written, v_lows, v_floors, v_found, v_highs
        FROM queen.log_browse_lanes_v1(p_queues, p_partition, p_since, p_status, v_n) AS l;

        -- Dead letters take places that the rows are counted for.
        v_want := p_want;
        IF p_status IS NOT NULL THEN
            v_want := v_want + (SELECT count(*) FROM queen.log_dlq AS d WHERE d.partition_id = ANY (v_lanes) AND d."offset" >= 0);
        END IF;
        SELECT array_agg(r.r_pid), array_agg(r.r_base), array_agg(r.r_low), array_agg(r.r_high), array_agg(r.r_at)
        INTO a_pids, a_bases, a_lows, a_highs, a_ats
        FROM queen.log_browse_rows_v1(v_lanes, v_highs, v_lows, v_floors, p_since, v_want) AS r;
        EXIT WHEN v_found < v_n;

        SELECT s.at INTO v_kth
        FROM (
            SELECT u.at, sum(u.high - u.low + 1) OVER (ORDER BY u.at DESC, u.low DESC, u.pid DESC) AS total
            FROM unnest(a_pids, a_lows, a_highs, a_ats) AS u (pid, low, high, at)
        ) AS s
        WHERE s.total >= v_want
        ORDER BY s.at DESC
        LIMIT 1;
        v_oldest := (SELECT min(u.at) FROM unnest(v_written) AS u (at));
        EXIT WHEN v_kth > v_oldest + INTERVAL '1 second';
        -- The lanes that can have something on the page, as far as is known now.
        v_need := (
            SELECT count(*)
            FROM (
                SELECT FROM unnest(p_queues) AS q (id)
                JOIN queen.log_partitions AS p ON p.queue_id = q.id
                WHERE p.last_write_at >= v_kth - INTERVAL '1 second'
                LIMIT c_most + 1
            ) AS x);
        EXIT WHEN v_need > c_most AND v_kth >= v_oldest;
        IF v_n > c_most THEN
            RAISE EXCEPTION USING MESSAGE = v_refusal, ERRCODE = 'QB001';
        END IF;
        v_n := least(v_n * 4, c_most + 1, CASE WHEN v_need BETWEEN v_n AND c_most THEN v_need + 1 END);
    END LOOP;
    RETURN QUERY
    SELECT u.pid, u.base, greatest(u.low, u.high - v_want + 1), u.high, u.at
    FROM unnest(a_pids, a_bases, a_lows, a_highs, a_ats) AS u (pid, base, low, high, at);
END
$$;

-- 2. One message -----------------------------------------------------------------

-- What has become of a message.
CREATE OR REPLACE FUNCTION queen.log_message_status_v1(p_dead BOOLEAN, p_done BIGINT, p_leased BOOLEAN, p_off BIGINT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_dead THEN 'dead_letter' WHEN p_done >= p_off THEN 'completed' WHEN p_leased THEN 'processing' ELSE 'pending' END
$$;

-- Who consumes some lanes: groups, or consumers that name none.
CREATE OR REPLACE FUNCTION queen.log_mode_v1(p_pids UUID[])
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('hasQueueMode', m.plain, 'busGroupsCount', m.named,
        'type', CASE WHEN m.plain AND m.named > 0 THEN 'hybrid' WHEN m.plain THEN 'queue' WHEN m.named > 0 THEN 'bus' ELSE 'none' END)
    FROM (
        SELECT COALESCE(bool_or(c.consumer_group = '__QUEUE_MODE__'), FALSE) AS plain,
               count(DISTINCT c.consumer_group) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__') AS named
        FROM queen.log_consumers AS c
        WHERE c.partition_id = ANY (p_pids)
    ) AS m
$$;

-- The highest offset of a lane, from p_low to p_high, of a message whose transaction
-- id has that hash; NULL when the sidecar has none. Read downwards in growing pages:
-- what is asked for was mostly pushed lately. "position" finds the few rows to slice;
-- a match across two hashes is sliced for nothing.
CREATE OR REPLACE FUNCTION queen.log_hash_find_v1(p_pid UUID, p_hash BYTEA, p_low BIGINT, p_high BIGINT)
RETURNS BIGINT
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_from BIGINT;
    v_to   BIGINT := p_high;
    v_page INT := 64;
    v_off  BIGINT;
BEGIN
    LOOP
        SELECT min(g.base_offset) INTO v_from
        FROM (
            SELECT t.base_offset
            FROM queen.log_txns AS t
            WHERE t.partition_id = p_pid AND t.base_offset BETWEEN p_low AND v_to
            ORDER BY t.base_offset DESC
            LIMIT v_page
        ) AS g;
        IF v_from IS NULL THEN
            RETURN NULL;
        END IF;
        SELECT max(s.base_offset + x.idx) INTO v_off
        FROM (
            SELECT t.base_offset, t.hashes
            FROM queen.log_txns AS t
            WHERE t.partition_id = p_pid AND t.base_offset BETWEEN v_from AND v_to AND position(p_hash IN t.hashes) > 0
            OFFSET 0
        ) AS s
        CROSS JOIN LATERAL queen.log_unnest_hashes(s.hashes) AS x
        WHERE x.h = p_hash;
        IF v_off IS NOT NULL THEN
            RETURN v_off;
        END IF;
        v_to := v_from - 1;
        v_page := least(v_page * 2, 4096);
    END LOOP;
END
$$;

-- Where the newest message with a hash is in a lane of a tenant; r_off is NULL when
-- the sidecar does not know it. Segments that begin below r_floor have no sidecar
-- rows any more. No row for a lane that the tenant does not have.
CREATE OR REPLACE FUNCTION queen.log_message_find_v1(
    p_pid    UUID,
    p_hash   BYTEA,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (r_off BIGINT, r_floor BIGINT)
LANGUAGE sql
AS $$
    SELECT queen.log_hash_find_v1(p.id, p_hash, p.txns_start, p.last_offset), p.txns_start
    FROM queen.log_partitions AS p
    JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE p.id = p_pid AND q.tenant_id = p_tenant
$$;

-- Segments of a lane that begin below an offset, newest first: at most p_rows, and no
-- more bytes than p_bytes beyond the first.
CREATE OR REPLACE FUNCTION queen.log_segments_below_v1(p_pid UUID, p_below BIGINT, p_rows INT, p_bytes BIGINT)
RETURNS TABLE (r_base BIGINT, r_end BIGINT, r_created TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE sql STABLE
AS $$
    SELECT x.base_offset, x.end_offset, x.created_at, x.blob
    FROM (
        SELECT s.*, row_number() OVER w AS n, sum(octet_length(s.blob)) OVER w AS bytes
        FROM (
            SELECT g.base_offset, g.end_offset, g.created_at, g.blob
            FROM queen.log_segments AS g
            WHERE g.partition_id = p_pid AND g.base_offset < p_below
            ORDER BY g.base_offset DESC
            LIMIT p_rows
        ) AS s
        WINDOW w AS (ORDER BY s.base_offset DESC)
    ) AS x
    WHERE x.n = 1 OR x.bytes <= p_bytes
    ORDER BY x.base_offset DESC
$$;

-- The segments that begin at given places, at most p_bytes of them beyond the first;
-- r_ord is the place in the input. What retention has removed is not there.
CREATE OR REPLACE FUNCTION queen.log_segments_at_v1(p_pids UUID[], p_bases BIGINT[], p_bytes BIGINT)
RETURNS TABLE (r_ord INT, r_base BIGINT, r_end BIGINT, r_created TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE sql STABLE
AS $$
    SELECT x.ord, x.base_offset, x.end_offset, x.created_at, x.blob
    FROM (
        SELECT u.ord::INT AS ord, s.*, row_number() OVER w AS n, sum(octet_length(s.blob)) OVER w AS bytes
        FROM unnest(p_pids, p_bases) WITH ORDINALITY AS u (pid, base, ord)
        CROSS JOIN LATERAL (
            SELECT g.base_offset, g.end_offset, g.created_at, g.blob
            FROM queen.log_segments AS g
            WHERE g.partition_id = u.pid AND g.base_offset = u.base
            OFFSET 0
        ) AS s
        WINDOW w AS (ORDER BY u.ord)
    ) AS x
    WHERE x.n = 1 OR x.bytes <= p_bytes
$$;

-- What is known of a message beside its content; the error of the newest dead letter,
-- where there is one. NULL for a lane that the tenant does not have.
CREATE OR REPLACE FUNCTION queen.log_message_state_v1(
    p_pid    UUID,
    p_off    BIGINT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'partitionId', p.id, 'queue', q.name, 'partition', p.name, 'queuePath', q.name || '/' || p.name,
        'namespace', COALESCE(NULLIF(q.namespace, ''), split_part(q.name, '.', 1)),
        'task', COALESCE(NULLIF(q.task, ''), split_part(q.name, '.', 2)),
        'status', queen.log_message_status_v1(d.id IS NOT NULL, g.r_done, g.r_leased, p_off),
        'errorMessage', d.error,
        'retryCount', CASE WHEN d.id IS NULL THEN 0 ELSE COALESCE(d.retry_count, q.retry_limit, 3) END,
        'leaseExpiresAt', queen.iso_ms_v1(g.r_lease),
        'consumerGroups', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('name', c.consumer_group, 'group', c.consumer_group, 'consumed', c.committed >= p_off,
                       'leaseExpiresAt', queen.iso_ms_v1(CASE WHEN c.lease_expires_at > now() THEN c.lease_expires_at END))
                   ORDER BY c.consumer_group COLLATE "C")
            FROM queen.log_consumers AS c WHERE c.partition_id = p.id), '[]'),
        'mode', queen.log_mode_v1(ARRAY[p.id]),
        'queueConfig', jsonb_build_object('leaseTime', q.lease_time, 'retryLimit', q.retry_limit, 'priority', q.priority,
            'ttl', q.ttl, 'retryDelay', q.retry_delay))
    FROM queen.log_partitions AS p
    JOIN queen.queues AS q ON q.id = p.queue_id
    CROSS JOIN LATERAL queen.log_lane_progress_v1(p.id) AS g
    LEFT JOIN LATERAL (
        SELECT x.id, x.error, x.retry_count FROM queen.log_dlq AS x
        WHERE x.partition_id = p.id AND x."offset" = p_off
        ORDER BY x.failed_at DESC, x.id DESC
        LIMIT 1
    ) AS d ON TRUE
    WHERE p.id = p_pid AND q.tenant_id = p_tenant
$$;

-- 3. Dead letters ------------------------------------------------------------------

-- A dead letter of a tenant: the one of that id, or the newest at an address. One of
-- a timer comes last: it cannot be replayed, so another one at the address is meant.
CREATE OR REPLACE FUNCTION queen.log_dlq_find_v1(
    p_id     UUID,
    p_pid    UUID,
    p_txn    TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (r_id UUID, r_queue TEXT, r_partition TEXT, r_group TEXT, r_txn TEXT, r_payload TEXT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT d.id, q.name::TEXT, p.name, d.consumer_group, COALESCE(d.transaction_id, ''), COALESCE(d.payload::TEXT, 'null')
    FROM queen.log_dlq AS d
    JOIN queen.log_partitions AS p ON p.id = d.partition_id
    JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE q.tenant_id = p_tenant
      AND (p_id IS NULL OR d.id = p_id)
      AND (p_id IS NOT NULL OR d.partition_id = p_pid AND d.transaction_id = p_txn)
    ORDER BY d.consumer_group = '__timer__', d.failed_at DESC, d.id DESC
    LIMIT 1;
END
$$;

-- Moves a dead letter to the end of a lane, which is created where it is missing, as
-- the one message of a segment. result is moved, with the offset; duplicate, when the
-- dedup window of the lane holds that transaction id already: nothing is written then,
-- and the letter stays; or gone.
--
-- The window is searched before the lane is locked, so that the lock is held only for
-- what was written meanwhile. The lane comes before the letter, see above.
CREATE OR REPLACE FUNCTION queen.log_dlq_replay_v1(
    p_id        UUID,
    p_queue     TEXT,
    p_partition TEXT,
    p_hash      BYTEA,
    p_blob      BYTEA,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_pid     UUID := queen.log_partition_id_v1(p_tenant, p_queue, p_partition);
    v_lane    RECORD;
    v_twin    BIGINT;
    v_verdict JSONB;
BEGIN
    IF NOT EXISTS (
        SELECT FROM queen.log_dlq AS d
        JOIN queen.log_partitions AS p ON p.id = d.partition_id
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE d.id = p_id AND q.tenant_id = p_tenant AND d.consumer_group <> '__timer__'
    ) THEN
        RETURN jsonb_build_object('result', 'gone');
    END IF;
    IF v_pid IS NULL THEN
        PERFORM queen.log_provision_v1(ARRAY[p_tenant], ARRAY[p_queue], ARRAY[p_partition]);
        v_pid := queen.log_partition_id_v1(p_tenant, p_queue, p_partition);
    END IF;

    SELECT p.last_offset, p.txns_start, q.dedup_window_seconds AS secs INTO v_lane
    FROM queen.log_partitions AS p
    JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE p.id = v_pid;
    IF v_lane.secs > 0 THEN
        v_twin := queen.log_hash_find_v1(v_pid, p_hash, queen.log_sidecar_start_v1(
            v_pid, v_lane.txns_start, v_lane.last_offset, clock_timestamp() - make_interval(secs => v_lane.secs)), v_lane.last_offset);
        IF v_twin IS NOT NULL THEN
            -- Somebody may have moved it there since it was looked for.
            IF NOT EXISTS (SELECT FROM queen.log_dlq AS d WHERE d.id = p_id) THEN
                RETURN jsonb_build_object('result', 'gone');
            END IF;
            RETURN jsonb_build_object('result', 'duplicate', 'offset', v_twin);
        END IF;
    END IF;

    PERFORM FROM queen.log_partitions AS p WHERE p.id = v_pid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'QDLQ partition % of queue % vanished', p_partition, p_queue USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM FROM queen.log_dlq AS d WHERE d.id = p_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('result', 'gone');
    END IF;
    v_verdict := queen.log_push_lanes_v1(ARRAY[v_pid], ARRAY[1], ARRAY[p_hash], ARRAY[v_lane.last_offset], ARRAY[p_blob],
        NULL, ARRAY[v_pid], ARRAY[v_lane.secs]) -> 0;
    IF v_verdict ->> 'status' = 'duplicate' THEN
        RETURN jsonb_build_object('result', 'duplicate', 'offset', v_verdict #> '{dups,0,off}');
    END IF;
    DELETE FROM queen.log_dlq AS d WHERE d.id = p_id;
    RETURN jsonb_build_object('result', 'moved', 'offset', v_verdict -> 'baseOffset');
END
$$;

-- Deletes the dead letters at an address, those of all groups, and counts them.
CREATE OR REPLACE FUNCTION queen.log_dlq_delete_v1(
    p_pid    UUID,
    p_txn    TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS BIGINT
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids UUID[];
    v_n   BIGINT;
BEGIN
    SELECT array_agg(x.id) INTO v_ids
    FROM (
        SELECT d.id
        FROM queen.log_dlq AS d
        WHERE d.partition_id = p_pid AND d.transaction_id = p_txn
          AND EXISTS (
              SELECT FROM queen.log_partitions AS p
              JOIN queen.queues AS q ON q.id = p.queue_id
              WHERE p.id = d.partition_id AND q.tenant_id = p_tenant)
        ORDER BY d.id
        FOR UPDATE
    ) AS x;
    DELETE FROM queen.log_dlq AS d WHERE d.id = ANY (v_ids);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$$;

-- Deletes up to p_rows dead letters of one queue and counts them. Filter keys as of
-- get_dlq_messages_v1: queue, consumerGroup, partition, from, to, _tenant. Letters that
-- somebody else holds are left for a later call.
CREATE OR REPLACE FUNCTION queen.log_dlq_purge_step_v1(p_filters JSONB, p_rows INT)
RETURNS BIGINT
LANGUAGE plpgsql
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := p_filters ->> 'queue';
    v_group     TEXT := NULLIF(p_filters ->> 'consumerGroup', '');
    v_partition TEXT := NULLIF(p_filters ->> 'partition', '');
    v_since     TIMESTAMPTZ := NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ;
    v_until     TIMESTAMPTZ := NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ;
    v_ids       UUID[];
    v_n         BIGINT;
BEGIN
    SELECT array_agg(x.id) INTO v_ids
    FROM (
        SELECT d.id
        FROM queen.log_dlq AS d
        JOIN queen.log_partitions AS p ON p.id = d.partition_id
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE q.tenant_id = v_tenant AND q.name = v_queue
          AND (v_partition IS NULL OR p.name = v_partition)
          AND (v_group IS NULL OR d.consumer_group = v_group)
          AND (v_since IS NULL OR d.failed_at >= v_since)
          AND (v_until IS NULL OR d.failed_at <= v_until)
        ORDER BY d.id
        LIMIT p_rows
        FOR UPDATE OF d SKIP LOCKED
    ) AS x;
    DELETE FROM queen.log_dlq AS d WHERE d.id = ANY (v_ids);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$$;
