-- Pop: claim batches of partitions (lanes) for a consumer group.
--
-- Sections: 1 helpers, 2 subscriptions, 3 the claim, 4 one partition,
-- 5 wildcard and discovery, 6 probes, 7 the hot list.
--
-- queen.log_pop_lanes_v1 is where a batch is claimed. It works on an ordered set of
-- lanes; log_pop_v1 calls it with one. queen.log_pop_span_v1 and
-- queen.log_pop_multi_v1 do the same for lanes that hold nothing back; a rule that
-- changes there changes here too, and tests hold them to the same answers.
--
-- Locks. A pop never waits for another transaction, so that it can visit lanes
-- in any order:
--   log_consumers rows                FOR UPDATE SKIP LOCKED
--   log_partitions, queues rows       FOR KEY SHARE SKIP LOCKED, ascending by id,
--                                     before the foreign key of a new row takes
--                                     the same lock; a pusher's FOR NO KEY UPDATE
--                                     lets it pass, a deleter's FOR UPDATE does not
--   first contact of a lane           tried transaction advisory lock on
--                                     <partition id>/<group>, seed 42
--   first contact of a queue          tried transaction advisory lock on
--                                     <queue id>/<group>, seed 43: exclusive for
--                                     the one that registers and seeds, shared for
--                                     a first contact of one lane. So the insert of
--                                     a cursor never meets the uncommitted one of a
--                                     bulk seed, on which it would have to wait
--   consumer_watermarks rows          FOR UPDATE SKIP LOCKED
-- Two inserts may wait for a moment, holding nothing: the provisioning of a queue
-- that a push creates at the same time, and log_seed_group_v1, which is no pop.
--
-- Re-applying is safe under traffic: functions whose row type is part of their
-- signature are dropped and created in one transaction, the others replaced, and
-- whatever is called comes before its callers.
--
-- Scalar functions that read tables are plpgsql, which keeps their plans: one in
-- SQL that cannot be inlined is planned again by every statement that calls it
-- (measured: a pop of one lane 0.5 ms with two of them, 0.25 ms without).
--
-- A join may not rest on statistics: plans are made while tables are nearly empty,
-- and live until the first ANALYZE of a table that grows. Names are found by
-- log_partition_named_v1; an update of cursors names the partitions once more as an
-- array, or all cursors of the group may be read for it (measured: 64 of 6,400, 20
-- against 1 ms).
--
-- A reply is bounded in decoded bytes before anything is leased: by the setting
-- queen.pop_max_bytes (a caller sets it for its transaction), else 16 MiB.

-- 1. Helpers ------------------------------------------------------------------

-- Decoded size of a segment, from the header of its zstd frame (RFC 8878,
-- 3.1.1.1). Only the first bytes are read: of a blob stored out of line that is
-- one chunk. A header that names no size counts as the stored length.
CREATE OR REPLACE FUNCTION queen.log_blob_size(p BYTEA)
RETURNS BIGINT
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    v_head  BYTEA := substring(p FROM 1 FOR 18);
    v_flags INTEGER;
    v_at    INTEGER;
    v_bytes INTEGER;
    v_size  BIGINT := 0;
BEGIN
    IF octet_length(v_head) < 6 OR substring(v_head FROM 1 FOR 4) <> '\x28b52ffd'::bytea THEN
        RETURN octet_length(p);
    END IF;
    v_flags := get_byte(v_head, 4);
    -- Bits 7-6: width of the size field; bit 5: single segment, which leaves the
    -- window byte out and gives a zero width one byte; bits 1-0: dictionary id.
    v_bytes := (ARRAY[v_flags >> 5 & 1, 2, 4, 8])[(v_flags >> 6) + 1];
    v_at := 6 - (v_flags >> 5 & 1) + (ARRAY[0, 1, 2, 4])[(v_flags & 3) + 1];
    IF v_bytes = 0 OR octet_length(v_head) < v_at + v_bytes THEN
        RETURN octet_length(p);
    END IF;
    IF v_bytes = 8 AND get_byte(v_head, v_at + 7) > 127 THEN
        RETURN 9223372036854775807; -- beyond BIGINT, and beyond anything storable
    END IF;
    FOR i IN REVERSE v_bytes - 1..0 LOOP
        v_size := v_size << 8 | get_byte(v_head, v_at + i);
    END LOOP;
    RETURN v_size + CASE v_bytes WHEN 2 THEN 256 ELSE 0 END;
END
$$;

-- The byte bound of one reply. Capped at 2 GiB - 1, so that products of two such
-- numbers fit a BIGINT. Anything that is no positive number means the default.
CREATE OR REPLACE FUNCTION queen.log_pop_max_bytes()
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN current_setting('queen.pop_max_bytes', TRUE) ~ '^0*[1-9][0-9]{0,17}$'
                THEN LEAST(current_setting('queen.pop_max_bytes', TRUE)::bigint, 2147483647)
                ELSE 16777216 END
$$;

-- A point in time as clients write it: RFC 3339 or ISO 8601, with or without a
-- zone (then UTC). NULL for anything else; other spellings that PostgreSQL knows
-- ("yesterday") are no timestamps on the wire. A plus sign that a query string
-- has turned into a blank is put back.
CREATE OR REPLACE FUNCTION queen.try_timestamptz(p TEXT)
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql STABLE STRICT
SET TimeZone = 'UTC'
AS $$
BEGIN
    IF p !~ '^\s*\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*([Zz]|[+ -]\d{2}(:?\d{2})?)?)?\s*$' THEN
        RETURN NULL;
    END IF;
    RETURN regexp_replace(btrim(p), '(\d{2}:\d{2}\S*) (\d{2}(:?\d{2})?)$', '\1+\2')::timestamptz;
EXCEPTION WHEN data_exception THEN
    RETURN NULL; -- right form, impossible date
END
$$;

CREATE OR REPLACE FUNCTION queen.log_partition_id_v1(p_tenant UUID, p_queue TEXT, p_partition TEXT)
RETURNS UUID
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (SELECT p.id FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
            WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.name = p_partition);
END
$$;

-- 2. Subscriptions ------------------------------------------------------------

CREATE OR REPLACE FUNCTION queen.log_registration_key_v1(p_queue_id UUID, p_group TEXT)
RETURNS BIGINT
LANGUAGE sql IMMUTABLE
AS $$
    SELECT hashtextextended(p_queue_id::text || '/' || p_group, 43)
$$;

-- The subscription that a first wildcard or discovery pop registers. Queue mode,
-- and whatever asks for the whole backlog, stores the epoch.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_subscription_v1(TEXT, TEXT, TEXT);
CREATE FUNCTION queen.log_subscription_v1(
    p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT, OUT r_mode TEXT, OUT r_at TIMESTAMPTZ)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_from TEXT := COALESCE(p_sub_from, '');
BEGIN
    r_mode := 'all';
    r_at := '1970-01-01T00:00:00Z';
    IF p_group = '__QUEUE_MODE__' THEN
        RETURN;
    END IF;
    IF v_from NOT IN ('', 'now') THEN
        r_mode := 'timestamp';
        r_at := queen.try_timestamptz(v_from);
    END IF;
    IF r_at IS NULL OR v_from = 'now' OR v_from = '' AND p_sub_mode IN ('new', 'new-only') THEN
        r_mode := 'new';
        r_at := clock_timestamp();
    END IF;
END
$$;
COMMIT;

-- The durable subscription of a group to a queue: its own record, else that of a
-- namespace or task registration which covers the queue, the earliest of them.
-- The latter decides for a queue that appeared after the registration. No row
-- when there is none; r_own tells the first kind.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_subscription_record_v1(UUID, TEXT);
CREATE FUNCTION queen.log_subscription_record_v1(p_queue_id UUID, p_group TEXT)
RETURNS TABLE (r_own BOOLEAN, r_mode TEXT, r_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_queue RECORD;
BEGIN
    SELECT q.tenant_id, q.namespace, q.task INTO v_queue FROM queen.queues AS q WHERE q.id = p_queue_id;
    RETURN QUERY
    SELECT TRUE, m.subscription_mode, m.subscription_timestamp
    FROM queen.consumer_groups_metadata AS m
    WHERE m.tenant_id = v_queue.tenant_id AND m.consumer_group = p_group AND m.queue_id = p_queue_id
      AND m.partition_name = '' AND m.namespace = '' AND m.task = '';
    IF NOT FOUND THEN
        RETURN QUERY
        SELECT FALSE, m.subscription_mode, m.subscription_timestamp
        FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = v_queue.tenant_id AND m.consumer_group = p_group AND m.queue_id IS NULL
          AND m.partition_name = '' AND m.namespace IN ('', v_queue.namespace) AND m.task IN ('', v_queue.task)
        ORDER BY m.subscription_timestamp
        LIMIT 1;
    END IF;
END
$$;
COMMIT;

-- Whether a group has a record of its own for a queue: it was registered there.
CREATE OR REPLACE FUNCTION queen.log_group_known_v1(p_tenant UUID, p_queue_id UUID, p_group TEXT)
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = p_queue_id
          AND m.partition_name = '' AND m.namespace = '' AND m.task = '');
END
$$;

-- Whether a group has a registration for exactly these labels.
CREATE OR REPLACE FUNCTION queen.log_discovery_known_v1(p_tenant UUID, p_group TEXT, p_namespace TEXT, p_task TEXT)
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id IS NULL
          AND m.partition_name = '' AND m.namespace = p_namespace AND m.task = p_task);
END
$$;

-- Cursor of a subscription that starts at p_at: just before the first retained
-- segment not older than that, else the end. One forward walk on the primary key
-- from log_start, no sort; the look at the newest segment first spares the walk
-- over a backlog that is older as a whole.
CREATE OR REPLACE FUNCTION queen.log_seed_offset_v1(p_pid UUID, p_log_start BIGINT, p_last BIGINT, p_at TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
AS $$
BEGIN
    IF (SELECT s.created_at >= p_at FROM queen.log_segments AS s
        WHERE s.partition_id = p_pid ORDER BY s.base_offset DESC LIMIT 1) THEN
        RETURN (SELECT s.base_offset - 1 FROM queen.log_segments AS s
                WHERE s.partition_id = p_pid AND s.base_offset >= p_log_start AND s.created_at >= p_at
                ORDER BY s.base_offset LIMIT 1);
    END IF;
    RETURN p_last;
END
$$;

-- Where a group starts in a lane it has no cursor for: the durable record first,
-- then what the pop carries, then the whole backlog. A timestamp that cannot be
-- read is ignored here; the mode decides. STABLE, so that the lane and its
-- segments are read under the snapshot of the calling statement.
CREATE OR REPLACE FUNCTION queen.log_pop_seed_v1(
    p_pid UUID, p_queue_id UUID, p_group TEXT, p_log_start BIGINT, p_last BIGINT, p_sub_mode TEXT, p_sub_from TEXT)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_at TIMESTAMPTZ;
BEGIN
    IF p_group = '__QUEUE_MODE__' THEN
        RETURN -1;
    END IF;
    SELECT r.r_at INTO v_at FROM queen.log_subscription_record_v1(p_queue_id, p_group) AS r;
    IF NOT FOUND THEN
        v_at := queen.try_timestamptz(p_sub_from);
    END IF;
    RETURN CASE
        WHEN v_at IS NOT NULL THEN queen.log_seed_offset_v1(p_pid, p_log_start, p_last, v_at)
        WHEN p_sub_from = 'now' OR p_sub_mode IN ('new', 'new-only') THEN p_last
        ELSE -1 END;
END
$$;

-- Seeds the cursors of at most p_limit lanes of a queue with ids above p_after,
-- ascending, in one statement. Returns the last id when there may be more. Lanes
-- that are being deleted are passed over; a lane left out for any reason is
-- seeded from the record at its first contact, with the same result. p_tail: the
-- registration of mode new happens now, so its cursors stand at the ends.
CREATE OR REPLACE FUNCTION queen.log_seed_page_v1(
    p_queue_id UUID, p_group TEXT, p_mode TEXT, p_at TIMESTAMPTZ, p_tail BOOLEAN, p_after UUID, p_limit INTEGER)
RETURNS UUID
LANGUAGE sql VOLATILE
SET jit = off
AS $$
    WITH page AS MATERIALIZED (
        SELECT p.id, p.log_start, p.last_offset
        FROM queen.log_partitions AS p
        WHERE p.queue_id = p_queue_id AND p.id > p_after
        ORDER BY p.id
        LIMIT p_limit
        FOR KEY SHARE SKIP LOCKED
    ), seeded AS (
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
        SELECT l.id, p_group,
               CASE WHEN p_mode = 'all' AND p_at <= '1970-01-01T00:00:00Z' THEN GREATEST(l.log_start - 1, -1)
                    WHEN p_tail THEN l.last_offset
                    ELSE queen.log_seed_offset_v1(l.id, l.log_start, l.last_offset, p_at) END
        FROM page AS l
        ORDER BY l.id
        ON CONFLICT DO NOTHING
    )
    SELECT l.id FROM page AS l
    WHERE (SELECT count(*) FROM page) >= p_limit
    ORDER BY l.id DESC
    LIMIT 1
$$;

-- Registers a group on a queue and, on its first contact, seeds the cursors of
-- its lanes: of the first 100000 at once, so that the pop keeps its deadline.
-- r_after is the id after which log_seed_group_v1 has to go on, else NULL; r_gone
-- tells that the queue is being deleted, and nothing can be claimed from it.
--
-- Exactly one concurrent caller registers. The others do not wait: they go on
-- with the lanes that have cursors, and cannot make any before it has committed,
-- so nothing is delivered from a position that the record does not give. The
-- record is looked up after the lock, in a statement that sees the commit of the
-- previous holder.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_register_group_v1(UUID, UUID, TEXT, TEXT, TEXT, BOOLEAN);
CREATE FUNCTION queen.log_register_group_v1(
    p_tenant UUID, p_queue_id UUID, p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT, p_tail BOOLEAN,
    OUT r_after UUID, OUT r_gone BOOLEAN)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_stored RECORD;
    v_mode   TEXT;
    v_at     TIMESTAMPTZ;
    v_tail   BOOLEAN := p_tail;
BEGIN
    PERFORM 1 FROM queen.queues AS q WHERE q.id = p_queue_id FOR KEY SHARE SKIP LOCKED;
    r_gone := NOT FOUND;
    IF r_gone OR NOT pg_try_advisory_xact_lock(queen.log_registration_key_v1(p_queue_id, p_group)) THEN
        RETURN;
    END IF;
    SELECT * INTO v_stored FROM queen.log_subscription_record_v1(p_queue_id, p_group);
    IF v_stored.r_own THEN
        RETURN;
    END IF;
    v_mode := v_stored.r_mode;
    v_at := v_stored.r_at;
    IF v_mode IS NULL THEN
        SELECT s.r_mode, s.r_at INTO v_mode, v_at FROM queen.log_subscription_v1(p_group, p_sub_mode, p_sub_from) AS s;
        v_tail := TRUE;
    END IF;
    INSERT INTO queen.consumer_groups_metadata (tenant_id, consumer_group, queue_id, subscription_mode, subscription_timestamp)
    VALUES (p_tenant, p_group, p_queue_id, v_mode, v_at)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        r_after := queen.log_seed_page_v1(p_queue_id, p_group, v_mode, v_at, v_mode = 'new' AND v_tail,
                                          '00000000-0000-0000-0000-000000000000', 100000);
    END IF;
END
$$;
COMMIT;

-- Goes on with the seeding of a queue of very many lanes, one page per call, by
-- the time of the record. Waits for other first contacts of the group: the
-- caller holds nothing.
CREATE OR REPLACE FUNCTION queen.log_seed_group_v1(
    p_queue TEXT, p_group TEXT, p_after UUID, p_limit INTEGER,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS UUID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID := (SELECT q.id FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_sub   RECORD;
BEGIN
    PERFORM pg_advisory_xact_lock(queen.log_registration_key_v1(v_queue, p_group));
    SELECT * INTO v_sub FROM queen.log_subscription_record_v1(v_queue, p_group);
    RETURN queen.log_seed_page_v1(v_queue, p_group, v_sub.r_mode, v_sub.r_at, FALSE, p_after, GREATEST(p_limit, 1));
END
$$;

-- First contact of a group with some lanes: makes the cursors it can without
-- waiting. The seed is computed in a statement after the locks, so it knows a
-- record whose transaction held them.
CREATE OR REPLACE FUNCTION queen.log_first_contact_v1(p_pids UUID[], p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_free UUID[];
BEGIN
    SELECT array_agg(l.id) INTO v_free
    FROM (
        SELECT p.id, p.queue_id FROM queen.log_partitions AS p
        WHERE p.id = ANY (p_pids)
        ORDER BY p.id
        FOR KEY SHARE SKIP LOCKED
    ) AS l
    WHERE pg_try_advisory_xact_lock_shared(queen.log_registration_key_v1(l.queue_id, p_group))
      AND pg_try_advisory_xact_lock(hashtextextended(l.id::text || '/' || p_group, 42));
    IF v_free IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group,
           queen.log_pop_seed_v1(p.id, p.queue_id, p_group, p.log_start, p.last_offset, p_sub_mode, p_sub_from)
    FROM queen.log_partitions AS p
    WHERE p.id = ANY (v_free)
    ORDER BY p.id
    ON CONFLICT DO NOTHING;
END
$$;

-- 3. The claim ----------------------------------------------------------------

-- The candidates worth a row lock, read without one: those with no cursor yet,
-- and those that are lease-free and have an offset beyond the cursor, unless the
-- window buffer or the delay hides what there is. r_pending is an upper bound of
-- what a batch could take; r_visible the newest creation time that may show.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_ready_v1(UUID[], TEXT, TIMESTAMPTZ, BOOLEAN);
CREATE FUNCTION queen.log_pop_ready_v1(p_pids UUID[], p_group TEXT, p_now TIMESTAMPTZ, p_skip_window BOOLEAN)
RETURNS TABLE (r_ord INTEGER, r_pid UUID, r_name TEXT, r_last BIGINT, r_pending BIGINT, r_visible TIMESTAMPTZ,
               r_lease INTEGER, r_fresh BOOLEAN)
LANGUAGE sql STABLE
AS $$
    SELECT x.ord::int, p.id, p.name, p.last_offset,
           GREATEST(p.last_offset - GREATEST(COALESCE(c.committed, -1), p.log_start - 1), 1),
           CASE WHEN q.delayed_processing > 0 THEN p_now - make_interval(secs => q.delayed_processing) ELSE 'infinity' END,
           CASE WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END,
           c.partition_id IS NULL
    FROM unnest(p_pids) WITH ORDINALITY AS x (pid, ord)
    JOIN queen.log_partitions AS p ON p.id = x.pid
    JOIN queen.queues AS q ON q.id = p.queue_id
    LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
    WHERE (c.partition_id IS NULL
           OR p.last_offset > c.committed
              AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < p_now))
      AND (p_skip_window OR COALESCE(q.window_buffer, 0) <= 0 OR NOT COALESCE((
               SELECT s.created_at > p_now - make_interval(secs => q.window_buffer)
               FROM queen.log_segments AS s WHERE s.partition_id = p.id ORDER BY s.base_offset DESC LIMIT 1), FALSE))
      AND (c.partition_id IS NULL OR COALESCE(q.delayed_processing, 0) <= 0 OR NOT COALESCE((
               SELECT s.created_at > p_now - make_interval(secs => q.delayed_processing)
               FROM queen.log_segments AS s
               WHERE s.partition_id = p.id AND s.base_offset >= COALESCE((
                   SELECT h.base_offset FROM (
                       SELECT g.base_offset, g.end_offset FROM queen.log_segments AS g
                       WHERE g.partition_id = p.id AND g.base_offset <= c.committed + 1
                       ORDER BY g.base_offset DESC LIMIT 1) AS h
                   WHERE h.end_offset > c.committed), c.committed + 1)
               ORDER BY s.base_offset LIMIT 1), FALSE))
    ORDER BY x.ord
$$;
COMMIT;

-- Claims from lanes in the given order until the message budget, the byte budget
-- or the number of lanes is spent. Locks only what the budget can pay for; a lane
-- somebody else holds is replaced by the next one.
--
-- r_kind: 'slice' is a part of a segment to deliver, ascending by (r_ord, r_base);
-- 'took' says once per served lane what its last_offset was when it was leased.
-- With p_judge, every other lane that was come to gets 'locked' (ready, but held
-- by another transaction) or 'idle'; lanes after the end of a budget get nothing.
--
-- A delay hides a suffix: a lane's scan ends at its first hidden segment. Frames
-- of one segment count as equally large, since SQL does not look inside. The
-- first message of a reply is delivered whatever its size.
--
-- Plans: every join is a walk over a few keys, whatever the statistics say, and
-- array arguments would be planned anew on each call.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_lanes_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, BOOLEAN);
CREATE FUNCTION queen.log_pop_lanes_v1(
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
    p_judge       BOOLEAN
)
RETURNS TABLE (r_kind TEXT, r_ord INTEGER, r_pid UUID, r_name TEXT, r_last_offset BIGINT, r_attempt INTEGER,
               r_base BIGINT, r_start_idx INTEGER, r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now    TIMESTAMPTZ := clock_timestamp();
    v_left   INTEGER := GREATEST(COALESCE(p_budget, 1), 1);
    v_bytes  BIGINT := queen.log_pop_max_bytes();
    v_max    INTEGER := CASE WHEN p_max > 0 THEN p_max ELSE 2147483647 END;
    v_served UUID[] := '{}';
    v_held   UUID[] := '{}'; -- lanes whose cursor this call locked
    v_judged INTEGER := COALESCE(cardinality(p_pids), 0);
    -- The ready candidates; v_at is the next one to come to.
    c_ord INTEGER[]; c_pid UUID[]; c_name TEXT[]; c_last BIGINT[]; c_pending BIGINT[]; c_visible TIMESTAMPTZ[];
    c_lease INTEGER[]; c_fresh BOOLEAN[];
    v_at     INTEGER := 1;
    v_to     INTEGER;
    v_want   INTEGER;
    v_sum    BIGINT;
    -- The lanes locked in this round: l_at is the position among the candidates.
    l_at INTEGER[]; l_pid UUID[]; l_wanted BIGINT[]; l_from BIGINT[]; l_attempt INTEGER[]; l_first BIGINT[]; l_end BIGINT[]; l_took INTEGER[];
    v_locked INTEGER;
    v_lane   INTEGER;
    v_k      INTEGER;
    v_seen   INTEGER[];
    v_hidden BOOLEAN;
    v_prev   BIGINT;
    v_end    BIGINT;
    v_size   BIGINT;
    v_cost   BIGINT;
    v_cut    BOOLEAN;
BEGIN
    SELECT array_agg(x.r_ord), array_agg(x.r_pid), array_agg(x.r_name), array_agg(x.r_last), array_agg(x.r_pending),
           array_agg(x.r_visible), array_agg(CASE WHEN p_lease > 0 THEN p_lease ELSE x.r_lease END), array_agg(x.r_fresh)
    INTO c_ord, c_pid, c_name, c_last, c_pending, c_visible, c_lease, c_fresh
    FROM queen.log_pop_ready_v1(p_pids, p_group, v_now, COALESCE(p_skip_window, FALSE)) AS x;

    WHILE v_at <= COALESCE(cardinality(c_pid), 0) AND v_left > 0 AND v_bytes > 0 AND cardinality(v_served) < v_max LOOP
        -- As many lanes as the budget needs, if all of them can be locked ...
        v_want := 0;
        v_sum := 0;
        WHILE v_at + v_want <= cardinality(c_pid) AND v_sum < v_left AND v_want < LEAST(v_max - cardinality(v_served), v_left) LOOP
            v_sum := v_sum + c_pending[v_at + v_want];
            v_want := v_want + 1;
        END LOOP;
        IF TRUE = ANY (c_fresh[v_at:v_at + v_want - 1]) THEN
            PERFORM queen.log_first_contact_v1(
                ARRAY(SELECT x.pid FROM unnest(c_pid[v_at:v_at + v_want - 1], c_fresh[v_at:v_at + v_want - 1]) AS x (pid, fresh)
                      WHERE x.fresh),
                p_group, p_sub_mode, p_sub_from);
        END IF;
        -- ... and those that may stand in: the ones after them that have a cursor.
        v_to := v_at + v_want - 1;
        WHILE v_to < cardinality(c_pid) AND NOT c_fresh[v_to + 1] LOOP
            v_to := v_to + 1;
        END LOOP;

        SELECT array_agg(x.at), array_agg(x.partition_id), array_agg(x.committed + 1), array_agg(x.attempt_offset), array_agg(x.attempt_count)
        INTO l_at, l_pid, l_wanted, l_from, l_attempt
        FROM (
            SELECT v_at - 1 + u.ord::int AS at, c.partition_id, c.committed, c.attempt_offset, c.attempt_count
            FROM unnest(c_pid[v_at:v_to]) WITH ORDINALITY AS u (pid, ord)
            JOIN queen.log_consumers AS c ON c.partition_id = u.pid AND c.consumer_group = p_group
            WHERE c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now
            ORDER BY u.ord
            LIMIT v_want
            FOR UPDATE OF c SKIP LOCKED
        ) AS x;
        v_locked := COALESCE(cardinality(l_pid), 0);
        v_at := 1 + CASE WHEN v_locked < v_want THEN v_to ELSE l_at[v_locked] END;
        CONTINUE WHEN v_locked = 0;
        v_held := v_held || l_pid;

        v_lane := 0;
        v_cut := FALSE;
        v_seen := '{}';
        l_first := array_fill(NULL::bigint, ARRAY[v_locked]);
        l_end := l_first;
        l_took := array_fill(0, ARRAY[v_locked]);
        -- A nested loop over lanes (in order as they are, WITH ORDINALITY), then a
        -- range of the primary key: nothing is sorted, and reading stops with the
        -- budget.
        FOR v_k, r_base, v_end, r_created_at, r_blob IN
            SELECT l.k::int, s.base_offset, s.end_offset, s.created_at, s.blob
            FROM unnest(l_pid, l_wanted) WITH ORDINALITY AS l (pid, wanted, k)
            CROSS JOIN LATERAL (
                -- Head probe: the segment that covers the wanted offset. Without one
                -- (a gap, or nothing yet) the range starts at the wanted offset.
                SELECT COALESCE((
                    SELECT h.base_offset FROM (
                        SELECT g.base_offset, g.end_offset FROM queen.log_segments AS g
                        WHERE g.partition_id = l.pid AND g.base_offset <= l.wanted
                        ORDER BY g.base_offset DESC LIMIT 1) AS h
                    WHERE h.end_offset >= l.wanted), l.wanted) AS base
            ) AS f
            CROSS JOIN LATERAL (
                SELECT g.base_offset, g.end_offset, g.created_at, g.blob
                FROM queen.log_segments AS g
                WHERE g.partition_id = l.pid AND g.base_offset >= f.base
                ORDER BY g.base_offset
                LIMIT v_left
            ) AS s
            ORDER BY l.k
        LOOP
            IF v_k <> v_lane THEN
                v_seen := v_seen || v_k;
                v_prev := -1;
                v_hidden := FALSE;
            END IF;
            IF v_k < v_lane OR r_base <= v_prev THEN
                RAISE EXCEPTION 'QPOP segments out of order'; -- no plan does this; were there one, order would be lost
            END IF;
            v_lane := v_k;
            v_prev := r_base;
            v_hidden := v_hidden OR r_created_at > c_visible[l_at[v_k]];
            CONTINUE WHEN v_hidden;

            r_start_idx := GREATEST(l_wanted[v_k] - r_base, 0);
            r_msg_count := v_end - r_base + 1;
            r_take := LEAST(r_msg_count - r_start_idx, v_left);
            v_size := LEAST(queen.log_blob_size(r_blob), 2147483647);
            v_cost := v_size * r_take / r_msg_count;
            IF v_cost > v_bytes THEN
                r_take := LEAST(r_take, v_bytes * r_msg_count / v_size);
                v_cost := v_bytes;
                v_cut := r_take < 1 AND (cardinality(v_served) > 0 OR 0 < ANY (l_took));
                r_take := GREATEST(r_take, 1);
            END IF;
            v_bytes := v_bytes - v_cost;
            EXIT WHEN v_cut;

            r_kind := 'slice';
            r_ord := c_ord[l_at[v_k]];
            r_pid := l_pid[v_k];
            r_name := c_name[l_at[v_k]];
            l_first[v_k] := COALESCE(l_first[v_k], r_base + r_start_idx);
            l_end[v_k] := r_base + r_start_idx + r_take - 1;
            l_took[v_k] := l_took[v_k] + r_take;
            v_left := v_left - r_take;
            r_attempt := CASE WHEN p_auto_ack OR l_from[v_k] IS DISTINCT FROM l_first[v_k] THEN 1 ELSE l_attempt[v_k] + 1 END;
            v_judged := r_ord;
            RETURN NEXT;
            v_cut := v_left <= 0 OR v_bytes <= 0;
            EXIT WHEN v_cut;
        END LOOP;

        IF 0 = ALL (l_took) THEN
            NULL; -- every segment was hidden, or there was none
        ELSIF p_auto_ack THEN
            RETURN QUERY
            UPDATE queen.log_consumers AS c
            SET committed = t.upto, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL,
                total_consumed = c.total_consumed + t.took
            FROM unnest(l_pid, l_at, l_first, l_end, l_took) AS t (pid, at, start, upto, took)
            JOIN queen.log_partitions AS p ON p.id = t.pid
            WHERE t.took > 0 AND c.partition_id = t.pid AND c.consumer_group = p_group
            RETURNING 'took', c_ord[t.at], t.pid, p.name, p.last_offset, 1,
                      NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::timestamptz, NULL::bytea;
        ELSE
            RETURN QUERY
            UPDATE queen.log_consumers AS c
            SET worker_id = p_worker, lease_acquired_at = v_now, batch_end = t.upto,
                lease_expires_at = v_now + make_interval(secs => c_lease[t.at]),
                attempt_count = CASE WHEN c.attempt_offset = t.start THEN c.attempt_count + 1 ELSE 1 END,
                attempt_offset = t.start
            FROM unnest(l_pid, l_at, l_first, l_end, l_took) AS t (pid, at, start, upto, took)
            JOIN queen.log_partitions AS p ON p.id = t.pid
            WHERE t.took > 0 AND c.partition_id = t.pid AND c.consumer_group = p_group
            RETURNING 'took', c_ord[t.at], t.pid, p.name, p.last_offset, c.attempt_count,
                      NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::timestamptz, NULL::bytea;
        END IF;
        v_served := v_served || ARRAY(SELECT t.pid FROM unnest(l_pid, l_took) AS t (pid, took) WHERE t.took > 0);

        -- Lanes that retention emptied: the cursor goes where the log is. Not for
        -- lanes the scan did not come to, nor for those whose segments are hidden.
        v_to := CASE WHEN v_cut THEN v_lane ELSE v_locked END;
        IF cardinality(v_seen) < v_to THEN
            UPDATE queen.log_consumers AS c
            SET committed = t.last
            FROM (SELECT l_pid[g.k] AS pid, c_last[l_at[g.k]] AS last FROM generate_series(1, v_to) AS g (k)
                  WHERE g.k <> ALL (v_seen)) AS t
            WHERE c.partition_id = t.pid AND c.consumer_group = p_group AND c.committed < t.last
              AND NOT EXISTS (SELECT 1 FROM queen.log_segments AS s WHERE s.partition_id = t.pid);
        END IF;
    END LOOP;

    IF v_left > 0 AND v_bytes > 0 AND cardinality(v_served) < v_max THEN
        v_judged := COALESCE(cardinality(p_pids), 0); -- nothing ran out: all were come to
    END IF;
    IF p_judge THEN
        RETURN QUERY
        SELECT CASE WHEN u.pid = ANY (c_pid) AND u.pid <> ALL (v_held) THEN 'locked' ELSE 'idle' END, u.ord::int, u.pid,
               NULL::text, NULL::bigint, NULL::int, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::timestamptz, NULL::bytea
        FROM unnest(p_pids) WITH ORDINALITY AS u (pid, ord)
        WHERE u.ord <= v_judged AND (u.pid IS NULL OR u.pid <> ALL (v_served));
    END IF;
END
$$;
COMMIT;

-- 4. One partition ------------------------------------------------------------

-- The claim of one partition, by names; creates neither queue nor partition.
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
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN QUERY
    SELECT c.r_base, c.r_start_idx, c.r_take, c.r_msg_count, c.r_created_at, c.r_blob
    FROM queen.log_pop_lanes_v1(
        ARRAY[queen.log_partition_id_v1(p_tenant, p_queue, p_partition)], p_group, p_budget, p_lease_seconds, p_worker,
        p_auto_ack, 1, p_sub_mode, p_sub_from, p_skip_window_debounce, FALSE) AS c
    WHERE c.r_kind = 'slice'
    ORDER BY c.r_base;
END
$$;
COMMIT;

-- A claim as the binary pops answer it. meta describes the slices: partitions, in
-- serve order, each with its name, id, deliveryAttempt and segments (seq is the
-- base offset). blobs holds the stored segments they are cut from, in
-- the same order; in the place of one that the caller says it holds (p_known_*,
-- by partition, base offset and creation time) it holds NULL. Nothing else of it
-- is read then but its first chunk. The arrays judge the lanes by position, for
-- the hot list.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_pack_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, BOOLEAN);
DROP FUNCTION IF EXISTS queen.log_pop_pack_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, BOOLEAN,
                                              UUID[], BIGINT[], TIMESTAMPTZ[]);
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
    p_judge       BOOLEAN,
    p_known_pids  UUID[],
    p_known_bases BIGINT[],
    p_known_times TIMESTAMPTZ[],
    OUT meta      JSONB,
    OUT blobs     BYTEA[],
    OUT took      INTEGER[],
    OUT took_last BIGINT[],
    OUT rest      INTEGER[],
    OUT rest_held BOOLEAN[]
)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
BEGIN
    WITH claim AS MATERIALIZED (
        SELECT * FROM queen.log_pop_lanes_v1(p_pids, p_group, p_budget, p_lease, p_worker, p_auto_ack, p_max,
                                             p_sub_mode, p_sub_from, p_skip_window, p_judge)
    ), lanes AS (
        SELECT c.r_ord, jsonb_build_object(
                   'partition', c.r_name, 'partitionId', c.r_pid, 'deliveryAttempt', c.r_attempt,
                   'segments', jsonb_agg(jsonb_build_object(
                       'seq', c.r_base, 'startOff', c.r_start_idx, 'take', c.r_take, 'msgCount', c.r_msg_count,
                       'createdAt', queen.iso_us_v1(c.r_created_at)) ORDER BY c.r_base)) AS lane
        FROM claim AS c WHERE c.r_kind = 'slice'
        GROUP BY c.r_ord, c.r_name, c.r_pid, c.r_attempt
    )
    SELECT jsonb_build_object('partitions', COALESCE((SELECT jsonb_agg(l.lane ORDER BY l.r_ord) FROM lanes AS l), '[]')),
           COALESCE((
               SELECT array_agg(CASE WHEN p_known_pids IS NULL OR NOT EXISTS (
                                    SELECT 1 FROM unnest(p_known_pids, p_known_bases, p_known_times) AS k (pid, base, at)
                                    WHERE k.pid = c.r_pid AND k.base = c.r_base AND k.at = c.r_created_at)
                                THEN c.r_blob END ORDER BY c.r_ord, c.r_base)
               FROM claim AS c WHERE c.r_kind = 'slice'), '{}'),
           array_agg(c.r_ord) FILTER (WHERE c.r_kind = 'took'), array_agg(c.r_last_offset) FILTER (WHERE c.r_kind = 'took'),
           array_agg(c.r_ord) FILTER (WHERE c.r_kind IN ('idle', 'locked')),
           array_agg(c.r_kind = 'locked') FILTER (WHERE c.r_kind IN ('idle', 'locked'))
    INTO meta, blobs, took, took_last, rest, rest_held
    FROM claim AS c;
END
$$;
COMMIT;

-- The same answer as one document, each segment with its blob in base64, on one
-- line: encode() breaks lines as MIME does.
CREATE OR REPLACE FUNCTION queen.log_pop_inline_v1(p_meta JSONB, p_blobs BYTEA[])
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object('partitions', COALESCE(jsonb_agg(x.lane ORDER BY x.lane_ord), '[]'))
    FROM (
        SELECT n.lane_ord, n.lane || jsonb_build_object('segments', jsonb_agg(
                   n.segment || jsonb_build_object('blob', replace(encode(p_blobs[n.i], 'base64'), E'\n', '')) ORDER BY n.i)) AS lane
        FROM (
            SELECT l.ord AS lane_ord, l.value - 'segments' AS lane, s.value AS segment,
                   row_number() OVER (ORDER BY l.ord, s.ord)::int AS i
            FROM jsonb_array_elements(p_meta -> 'partitions') WITH ORDINALITY AS l (value, ord)
            CROSS JOIN LATERAL jsonb_array_elements(l.value -> 'segments') WITH ORDINALITY AS s (value, ord)
        ) AS n
        GROUP BY n.lane_ord, n.lane
    ) AS x
$$;

BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_specific_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID);
DROP FUNCTION IF EXISTS queen.log_pop_specific_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID,
                                                      UUID[], BIGINT[], TIMESTAMPTZ[]);
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
    p_tenant        UUID DEFAULT '00000000-0000-0000-0000-000000000001',
    p_known_pids    UUID[] DEFAULT NULL,
    p_known_bases   BIGINT[] DEFAULT NULL,
    p_known_times   TIMESTAMPTZ[] DEFAULT NULL
)
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN QUERY SELECT x.meta, x.blobs FROM queen.log_pop_pack_v1(
        ARRAY[queen.log_partition_id_v1(p_tenant, p_queue, p_partition)], p_group, p_budget, p_lease_seconds, p_worker,
        p_auto_ack, 1, p_sub_mode, p_sub_from, FALSE, FALSE, p_known_pids, p_known_bases, p_known_times) AS x;
END
$$;
COMMIT;

-- The partition id of an answer that carries messages is that of the claim. That
-- of an empty one is looked up in a later command, whose snapshot is at least as
-- new: no message is ever delivered with an empty id.
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
    v_lane JSONB;
BEGIN
    SELECT queen.log_pop_inline_v1(x.meta, x.blobs) -> 'partitions' -> 0 INTO v_lane
    FROM queen.log_pop_specific_bin_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack,
                                       p_sub_mode, p_sub_from, p_tenant) AS x;
    RETURN jsonb_build_object(
        'segments', COALESCE(v_lane -> 'segments', '[]'),
        'partitionId', COALESCE(v_lane ->> 'partitionId', queen.log_partition_id_v1(p_tenant, p_queue, p_partition)::text, ''),
        'deliveryAttempt', COALESCE(v_lane -> 'deliveryAttempt', '1'));
END
$$;

-- 5. Wildcard and discovery ---------------------------------------------------

-- Keeps the empty-scan watermark of some queues after a scan at p_now found
-- nothing to claim: moves it only when nothing is pending even with leases
-- ignored, since a backlog behind somebody's lease must not fall out of the scan.
-- Otherwise only notes that this was verified. p_create: also for queues without
-- a row, which then starts at the epoch. A row somebody else holds is left alone.
--
-- What is going to be written is locked before the look: a cursor that goes back
-- takes the same locks, so it is seen here, or undoes there what was written. The
-- watermark that the scan went by, p_since, may have been taken back since then.
CREATE OR REPLACE FUNCTION queen.log_pop_empty_scan_v1(
    p_queue_ids UUID[], p_group TEXT, p_since TIMESTAMPTZ, p_now TIMESTAMPTZ, p_create BOOLEAN)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
SET jit = off
AS $$
DECLARE
    v_old     UUID[];
    v_new     UUID[];
    v_since   TIMESTAMPTZ;
    v_scanned TIMESTAMPTZ;
BEGIN
    v_old := ARRAY(
        SELECT w.queue_id FROM queen.consumer_watermarks AS w
        WHERE w.queue_id = ANY (p_queue_ids) AND w.consumer_group = p_group
        ORDER BY w.queue_id FOR UPDATE SKIP LOCKED);
    v_new := ARRAY(
        SELECT l.id
        FROM (SELECT q.id FROM queen.queues AS q
              WHERE q.id = ANY (p_queue_ids) AND NOT EXISTS (
                  SELECT 1 FROM queen.consumer_watermarks AS w WHERE w.queue_id = q.id AND w.consumer_group = p_group)
              ORDER BY q.id FOR KEY SHARE OF q SKIP LOCKED) AS l
        WHERE pg_try_advisory_xact_lock(queen.log_registration_key_v1(l.id, p_group)));
    IF v_old = '{}' AND v_new = '{}' THEN
        RETURN;
    END IF;
    SELECT least(p_since, min(COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z'))) INTO v_since
    FROM unnest(p_queue_ids) AS q (id)
    LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group;
    v_scanned := CASE WHEN EXISTS (
        SELECT 1 FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= v_since - interval '2 minutes'
          AND (c.partition_id IS NULL OR p.last_offset > c.committed)
    ) THEN '1970-01-01T00:00:00Z' ELSE p_now END;
    UPDATE queen.consumer_watermarks AS w
    SET last_empty_scan_at = GREATEST(w.last_empty_scan_at, v_scanned), updated_at = p_now
    WHERE w.queue_id = ANY (v_old) AND w.consumer_group = p_group;
    IF p_create OR v_scanned = p_now THEN
        INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at)
        SELECT l.id, p_group, v_scanned, p_now
        FROM unnest(v_new) AS l (id)
        ORDER BY l.id
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- A pop over all lanes of some queues. Candidates are lanes written since the
-- watermark, less two minutes for the coarse last_write_at and for pushes that
-- commit late; random, so that competing consumers spread; hints only, the claim
-- decides. p_create goes to the watermark.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_queues_v1(UUID[], TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN);
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
    p_create        BOOLEAN,
    OUT meta        JSONB,
    OUT blobs       BYTEA[]
)
LANGUAGE plpgsql VOLATILE
SET jit = off
AS $$
DECLARE
    v_now        TIMESTAMPTZ := clock_timestamp();
    v_since      TIMESTAMPTZ;
    v_verified   TIMESTAMPTZ;
    v_candidates UUID[];
BEGIN
    SELECT min(COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z')), min(COALESCE(w.updated_at, '-infinity'))
    INTO v_since, v_verified
    FROM unnest(p_queue_ids) AS q (id)
    LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group;

    v_candidates := ARRAY(
        SELECT p.id
        FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE p.queue_id = ANY (p_queue_ids)
          AND p.last_write_at >= v_since - interval '2 minutes'
          AND (c.partition_id IS NULL OR p.last_offset > c.committed)
          AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
        ORDER BY random()
        LIMIT CASE WHEN COALESCE(p_max, 0) <= 0 OR p_max >= 128 THEN 512 ELSE GREATEST(4 * p_max, 64) END);

    SELECT x.meta, x.blobs INTO meta, blobs FROM queen.log_pop_pack_v1(
        v_candidates, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max, p_sub_mode, p_sub_from, FALSE, FALSE,
        NULL, NULL, NULL) AS x;

    IF blobs = '{}' AND v_verified <= v_now - interval '30 seconds' THEN
        PERFORM queen.log_pop_empty_scan_v1(p_queue_ids, p_group, v_since, v_now, p_create);
    END IF;
END
$$;
COMMIT;

-- Creates the queue when it is unknown and registers the group on first contact.
-- When a queue has too many lanes to seed at once, meta carries seedAfter: the
-- caller goes on with log_seed_group_v1.
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
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID := (SELECT q.id FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_after UUID;
    v_gone  BOOLEAN := FALSE;
BEGIN
    IF v_queue IS NULL AND p_queue <> '' THEN
        PERFORM queen.log_provision_v1(ARRAY[p_tenant], ARRAY[p_queue], '{}');
        v_queue := (SELECT q.id FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    END IF;
    IF NOT queen.log_group_known_v1(p_tenant, v_queue, p_group) THEN
        SELECT r.r_after, r.r_gone INTO v_after, v_gone
        FROM queen.log_register_group_v1(p_tenant, v_queue, p_group, p_sub_mode, p_sub_from, FALSE) AS r;
    END IF;
    IF v_gone THEN -- or there never was one
        RETURN QUERY SELECT '{"partitions": []}'::jsonb, '{}'::bytea[];
        RETURN;
    END IF;
    RETURN QUERY
    SELECT CASE WHEN v_after IS NULL THEN x.meta ELSE x.meta || jsonb_build_object('seedAfter', v_after) END, x.blobs
    FROM queen.log_pop_queues_v1(ARRAY[v_queue], p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack,
                                 p_max_partitions, p_sub_mode, p_sub_from, TRUE) AS x;
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
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT queen.log_pop_inline_v1(x.meta, x.blobs) FROM queen.log_pop_wildcard_bin_v1(
        p_queue, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant) AS x);
END
$$;

-- Discovery: the queues of a tenant that carry the labels. Its registration names
-- the labels and no queue, and its time decides where the group starts in a queue
-- that appears later: nothing pushed after it is missed. A pop that meets the
-- registration of another one in flight delivers nothing this time.
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
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_namespace TEXT := COALESCE(p_namespace, '');
    v_task      TEXT := COALESCE(p_task, '');
    v_tail      BOOLEAN := FALSE;
    v_queues    UUID[];
    v_queue     UUID;
BEGIN
    IF NOT queen.log_discovery_known_v1(p_tenant, p_group, v_namespace, v_task) THEN
        IF NOT pg_try_advisory_xact_lock(hashtextextended(
            p_tenant::text || '/' || p_group || '/' || v_namespace || '/' || v_task, 43)) THEN
            RETURN QUERY SELECT '{"partitions": []}'::jsonb, '{}'::bytea[];
            RETURN;
        END IF;
        INSERT INTO queen.consumer_groups_metadata
            (tenant_id, consumer_group, queue_id, namespace, task, subscription_mode, subscription_timestamp)
        SELECT p_tenant, p_group, NULL, v_namespace, v_task, s.r_mode, s.r_at
        FROM queen.log_subscription_v1(p_group, p_sub_mode, p_sub_from) AS s
        ON CONFLICT DO NOTHING;
        v_tail := FOUND;
    END IF;

    v_queues := ARRAY(
        SELECT q.id FROM queen.queues AS q
        WHERE q.tenant_id = p_tenant AND (v_namespace = '' OR q.namespace = v_namespace) AND (v_task = '' OR q.task = v_task)
        ORDER BY q.id);
    FOR v_queue IN
        SELECT q.id FROM unnest(v_queues) AS q (id)
        WHERE NOT queen.log_group_known_v1(p_tenant, q.id, p_group)
        ORDER BY q.id
    LOOP
        IF (SELECT r.r_gone FROM queen.log_register_group_v1(p_tenant, v_queue, p_group, p_sub_mode, p_sub_from, v_tail) AS r) THEN
            v_queues := array_remove(v_queues, v_queue);
        END IF;
    END LOOP;

    RETURN QUERY SELECT x.meta, x.blobs FROM queen.log_pop_queues_v1(
        v_queues, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, FALSE) AS x;
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
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT queen.log_pop_inline_v1(x.meta, x.blobs) FROM queen.log_pop_discover_bin_v1(
        p_namespace, p_task, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from,
        p_tenant) AS x);
END
$$;

-- 6. Probes for parked pops ---------------------------------------------------
--
-- They may say TRUE too often, never too rarely. Lanes below the watermark have
-- nothing pending by its definition, and the pop would not look at them either.

CREATE OR REPLACE FUNCTION queen.log_has_pending_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
SET jit = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM queen.queues AS q
        LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group
        JOIN queen.log_partitions AS p
          ON p.queue_id = q.id AND p.last_write_at >= COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z') - interval '2 minutes'
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.last_offset > COALESCE(c.committed, -1));
END
$$;

-- How many messages, up to p_limit, one pop over at most p_max_partitions lanes
-- (0 or less: all) could take now: the fullest lanes that nobody leases. An
-- estimate, for a pop that waits until its batch is worth claiming: neither
-- delays nor gaps of retention are looked at.
CREATE OR REPLACE FUNCTION queen.log_pop_estimate_v1(
    p_queue TEXT, p_group TEXT, p_max_partitions INTEGER, p_limit BIGINT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT LEAST(COALESCE(sum(x.pending), 0), p_limit)
        FROM (
            SELECT p.last_offset - GREATEST(COALESCE(c.committed, -1), p.log_start - 1) AS pending
            FROM queen.queues AS q
            LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group
            JOIN queen.log_partitions AS p
              ON p.queue_id = q.id AND p.last_write_at >= COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z') - interval '2 minutes'
            LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
            WHERE q.tenant_id = p_tenant AND q.name = p_queue
              AND p.last_offset > GREATEST(COALESCE(c.committed, -1), p.log_start - 1)
              AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < clock_timestamp())
            ORDER BY pending DESC
            LIMIT NULLIF(GREATEST(p_max_partitions, 0), 0)
        ) AS x);
END
$$;

-- TRUE for an unknown partition and on first contact: the real pop has to take
-- the seed now.
CREATE OR REPLACE FUNCTION queen.log_partition_has_pending_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
SET jit = off
AS $$
BEGIN
    RETURN COALESCE((
        SELECT c.partition_id IS NULL OR p.last_offset > GREATEST(c.committed, p.log_start - 1)
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id AND p.name = p_partition
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND q.name = p_queue), TRUE);
END
$$;

-- log_partition_has_pending_v1 for many lanes and groups: the positions for which
-- it is true.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_lanes_pending_v1(UUID[], TEXT[], TEXT[], TEXT[]);
CREATE FUNCTION queen.log_lanes_pending_v1(p_tenants UUID[], p_queues TEXT[], p_partitions TEXT[], p_groups TEXT[])
RETURNS TABLE (r_ord INTEGER)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT u.ord::int
    FROM unnest(p_tenants, p_queues, p_partitions, p_groups) WITH ORDINALITY AS u (tenant, queue, name, grp, ord)
    LEFT JOIN queen.queues AS q ON q.tenant_id = u.tenant AND q.name = u.queue
    LEFT JOIN LATERAL queen.log_partition_named_v1(q.id, u.name) AS p ON TRUE
    LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = u.grp
    WHERE c.partition_id IS NULL OR p.last_offset > GREATEST(c.committed, p.log_start - 1);
END
$$;
COMMIT;

-- TRUE also while a named group is not registered for the labels, or for one of
-- the queues: the real pop registers it.
CREATE OR REPLACE FUNCTION queen.log_discover_has_pending_v1(
    p_namespace TEXT, p_task TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
SET jit = off
AS $$
BEGIN
    RETURN p_group <> '__QUEUE_MODE__'
           AND NOT queen.log_discovery_known_v1(p_tenant, p_group, COALESCE(p_namespace, ''), COALESCE(p_task, ''))
        OR EXISTS (
            SELECT 1 FROM queen.queues AS q
            LEFT JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group
            WHERE q.tenant_id = p_tenant AND (COALESCE(p_namespace, '') IN ('', q.namespace)) AND (COALESCE(p_task, '') IN ('', q.task))
              AND (p_group <> '__QUEUE_MODE__' AND NOT queen.log_group_known_v1(p_tenant, q.id, p_group)
                   OR EXISTS (
                       SELECT 1 FROM queen.log_partitions AS p
                       LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                       WHERE p.queue_id = q.id
                         AND p.last_write_at >= COALESCE(w.last_empty_scan_at, '1970-01-01T00:00:00Z') - interval '2 minutes'
                         AND p.last_offset > GREATEST(COALESCE(c.committed, -1), p.log_start - 1))));
END
$$;

-- 7. The hot list -------------------------------------------------------------

-- Claims from one lane for each of several pops of a group, which share a
-- transaction: the claims are parallel arrays, and no lane is named twice. It does
-- what queen.log_pop_lanes_v1 does for lanes that hold nothing back and whose
-- cursors exist and are free; the others are left alone and get no row. lane_at and
-- seg_at are positions among the claims, the slices of a claim ascend, and blobs
-- holds NULL for what the caller says it holds.
--
-- One statement, because executor start-up is most of what a small pop costs
-- (measured in a loop on one session with fsync off, each round with its commits;
-- pops of one message, 1, 8 and 32 lanes: 265, 556 and 1425 us in one call, 248,
-- 1284 and 6905 us with one call of plain statements for each lane).
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_multi_v1(UUID, TEXT, TEXT, TEXT[], INTEGER[], INTEGER[], TEXT[], BIGINT[], BOOLEAN[], BOOLEAN,
                                               UUID[], BIGINT[], TIMESTAMPTZ[]);
CREATE FUNCTION queen.log_pop_multi_v1(
    p_tenant      UUID,
    p_queue       TEXT,
    p_group       TEXT,
    p_partitions  TEXT[],
    p_budgets     INTEGER[],
    p_leases      INTEGER[],
    p_workers     TEXT[],
    p_max_bytes   BIGINT[],
    p_skip_window BOOLEAN[],
    p_auto_ack    BOOLEAN,
    p_known_pids  UUID[],
    p_known_bases BIGINT[],
    p_known_times TIMESTAMPTZ[],
    OUT lane_at   INTEGER[],
    OUT lane_pid  UUID[],
    OUT lane_try  INTEGER[],
    OUT lane_last BIGINT[],
    OUT seg_at    INTEGER[],
    OUT seg_base  BIGINT[],
    OUT seg_start INTEGER[],
    OUT seg_take  INTEGER[],
    OUT seg_count INTEGER[],
    OUT seg_time  TEXT[],
    OUT blobs     BYTEA[]
)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_now TIMESTAMPTZ := clock_timestamp();
BEGIN
    WITH lane AS MATERIALIZED (
        SELECT u.at::int AS at, p.id, p.last_offset, c.committed + 1 AS wanted, c.attempt_offset, c.attempt_count,
               GREATEST(u.budget, 1) AS budget, u.bytes, u.worker,
               CASE WHEN u.lease > 0 THEN u.lease WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END AS lease
        FROM queen.queues AS q
        CROSS JOIN unnest(p_partitions, p_budgets, p_leases, p_workers, p_max_bytes, p_skip_window)
            WITH ORDINALITY AS u (name, budget, lease, worker, bytes, skip, at)
        CROSS JOIN LATERAL queen.log_partition_named_v1(q.id, u.name) AS p
        JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
        WHERE q.tenant_id = p_tenant AND q.name = p_queue
          AND COALESCE(q.delayed_processing, 0) <= 0 AND (u.skip OR COALESCE(q.window_buffer, 0) <= 0)
          AND EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS m
                      WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = q.id
                        AND m.partition_name = '' AND m.namespace = '' AND m.task = '')
          AND p.last_offset > c.committed
          AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
        FOR UPDATE OF c SKIP LOCKED
    ), counted AS (
        SELECT l.at, l.id, l.bytes, s.base_offset, s.created_at, s.blob, substring(s.blob FROM 1 FOR 9) AS head,
               s.end_offset - s.base_offset + 1 AS count, GREATEST(l.wanted - s.base_offset, 0) AS start,
               LEAST(s.n, l.budget - s.before) AS take
        FROM lane AS l
        CROSS JOIN LATERAL (
            SELECT g.base_offset, g.end_offset, g.created_at, g.blob, g.n, sum(g.n) OVER (ORDER BY g.base_offset)::bigint - g.n AS before
            FROM (
                SELECT x.base_offset, x.end_offset, x.created_at, x.blob, x.end_offset - GREATEST(x.base_offset, l.wanted) + 1 AS n
                FROM queen.log_segments AS x
                WHERE x.partition_id = l.id AND x.base_offset >= COALESCE((
                    SELECT h.base_offset FROM (
                        SELECT y.base_offset, y.end_offset FROM queen.log_segments AS y
                        WHERE y.partition_id = l.id AND y.base_offset <= l.wanted
                        ORDER BY y.base_offset DESC LIMIT 1) AS h
                    WHERE h.end_offset >= l.wanted), l.wanted)
                ORDER BY x.base_offset
                LIMIT l.budget
            ) AS g
        ) AS s
        WHERE s.before < l.budget
    ), weighed AS (
        SELECT w.*, sum(w.size * w.take / w.count) OVER (PARTITION BY w.at ORDER BY w.base_offset)::bigint - w.size * w.take / w.count AS spent
        FROM (
            -- The headers that the packer writes are read here; log_blob_size knows all.
            SELECT c.*, CASE
                   WHEN octet_length(c.head) < 9 OR substring(c.head FROM 1 FOR 4) <> '\x28b52ffd'::bytea THEN queen.log_blob_size(c.blob)
                   WHEN get_byte(c.head, 4) = 32 THEN get_byte(c.head, 5)
                   WHEN get_byte(c.head, 4) = 96 THEN 256 + get_byte(c.head, 5) + 256 * get_byte(c.head, 6)
                   ELSE LEAST(queen.log_blob_size(c.blob), 2147483647) END AS size
            FROM counted AS c
        ) AS w
    ), slice AS MATERIALIZED (
        SELECT w.at, w.id, w.base_offset, w.created_at, w.blob, w.count::int AS count, w.start::int AS start,
               GREATEST(CASE WHEN w.size * w.take / w.count > w.bytes - w.spent
                             THEN LEAST(w.take, (w.bytes - w.spent) * w.count / GREATEST(w.size, 1)) ELSE w.take END, 1)::int AS take
        FROM weighed AS w
        WHERE w.spent = 0 OR w.spent < w.bytes
          AND (w.size * w.take / w.count <= w.bytes - w.spent OR (w.bytes - w.spent) * w.count >= w.size)
    ), batch AS MATERIALIZED (
        SELECT l.at, l.id, l.last_offset, l.worker, l.lease, b.first, b.until, b.took,
               CASE WHEN NOT p_auto_ack AND l.attempt_offset = b.first THEN l.attempt_count + 1 ELSE 1 END AS try
        FROM (SELECT s.at, min(s.base_offset + s.start) AS first, max(s.base_offset + s.start + s.take) - 1 AS until, sum(s.take) AS took
              FROM slice AS s GROUP BY s.at) AS b
        JOIN lane AS l ON l.at = b.at
    ), claim AS (
        UPDATE queen.log_consumers AS c
        SET committed = CASE WHEN p_auto_ack THEN b.until ELSE c.committed END,
            batch_end = CASE WHEN p_auto_ack THEN NULL ELSE b.until END,
            worker_id = CASE WHEN p_auto_ack THEN NULL ELSE b.worker END,
            lease_acquired_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now END,
            lease_expires_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now + make_interval(secs => b.lease) END,
            attempt_count = CASE WHEN p_auto_ack THEN c.attempt_count ELSE b.try END,
            attempt_offset = CASE WHEN p_auto_ack THEN c.attempt_offset ELSE b.first END,
            total_consumed = c.total_consumed + CASE WHEN p_auto_ack THEN b.took ELSE 0 END
        FROM batch AS b
        WHERE c.partition_id = b.id AND c.partition_id = ANY (ARRAY(SELECT x.id FROM batch AS x)) AND c.consumer_group = p_group
    )
    SELECT b.at, b.id, b.try, b.last, s.at, s.base, s.start, s.take, s.count, s.time, s.blobs
    INTO lane_at, lane_pid, lane_try, lane_last, seg_at, seg_base, seg_start, seg_take, seg_count, seg_time, blobs
    FROM (SELECT array_agg(b.at) AS at, array_agg(b.id) AS id, array_agg(b.try) AS try, array_agg(b.last_offset) AS last FROM batch AS b) AS b,
         (SELECT array_agg(s.at) AS at, array_agg(s.base_offset) AS base, array_agg(s.start) AS start, array_agg(s.take) AS take,
                 array_agg(s.count) AS count, array_agg(queen.iso_us_v1(s.created_at)) AS time,
                 array_agg(CASE WHEN p_known_pids IS NULL OR NOT EXISTS (
                                    SELECT 1 FROM unnest(p_known_pids, p_known_bases, p_known_times) AS k (pid, base, at)
                                    WHERE k.pid = s.id AND k.base = s.base_offset AND k.at = s.created_at)
                                THEN s.blob END) AS blobs
          FROM slice AS s) AS s;
END
$$;
COMMIT;

-- Claims from the caller's candidates and judges each one it comes to: took (with
-- lastOff), empty, or leased until a time. A candidate that gave nothing but has
-- offsets beyond its cursor is never called empty: a concurrent auto-acking pop
-- leaves no lease to see. It is looked at again after 250 ms, or sooner when
-- locked says that another transaction merely held its row. unseeded marks every
-- state while the group has no record for the queue: the caller then owes a
-- wildcard pop, which registers it. No provisioning, no bulk seed, no watermark.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_swift_v1(UUID, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, BOOLEAN, BIGINT, UUID[], BIGINT[], TIMESTAMPTZ[]);
DROP FUNCTION IF EXISTS queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID);
DROP FUNCTION IF EXISTS queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID,
                                              UUID[], BIGINT[], TIMESTAMPTZ[]);
DROP FUNCTION IF EXISTS queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID,
                                              UUID[], BIGINT[], TIMESTAMPTZ[], BIGINT);
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
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001',
    p_known_pids     UUID[] DEFAULT NULL,
    p_known_bases    BIGINT[] DEFAULT NULL,
    p_known_times    TIMESTAMPTZ[] DEFAULT NULL,
    p_max_bytes      BIGINT DEFAULT NULL
)
RETURNS TABLE (meta JSONB, blobs BYTEA[], states JSONB)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_queue  UUID := (SELECT q.id FROM queen.queues AS q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_known  BOOLEAN;
    v_names  TEXT[];
    v_pids   UUID[];
    v_pop    RECORD;
    v_now    TIMESTAMPTZ;
    v_again  JSONB;
    v_common JSONB := '{}';
BEGIN
    IF p_max_bytes > 0 THEN
        PERFORM set_config('queen.pop_max_bytes', p_max_bytes::TEXT, TRUE);
    END IF;
    v_known := v_queue IS NOT NULL AND queen.log_group_known_v1(p_tenant, v_queue, p_group);
    SELECT array_agg(x.name ORDER BY x.ord), array_agg(p.id ORDER BY x.ord) INTO v_names, v_pids
    FROM (SELECT u.name, min(u.ord) AS ord FROM unnest(p_partitions) WITH ORDINALITY AS u (name, ord)
          WHERE u.name IS NOT NULL GROUP BY u.name) AS x
    LEFT JOIN LATERAL queen.log_partition_named_v1(v_queue, x.name) AS p ON TRUE;
    IF v_queue IS NULL OR v_names IS NULL THEN
        RETURN QUERY SELECT '{"partitions": []}'::jsonb, '{}'::bytea[], '[]'::jsonb;
        RETURN;
    END IF;
    IF NOT v_known THEN
        v_common := '{"unseeded": true}';
    END IF;
    SELECT * INTO v_pop FROM queen.log_pop_pack_v1(
        v_pids, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_skip_window, TRUE,
        p_known_pids, p_known_bases, p_known_times);

    -- Read again, in a snapshot after the claim.
    v_now := clock_timestamp();
    v_again := jsonb_build_object('s', 'leased', 'until', queen.iso_us_v1(v_now + interval '250 milliseconds'));
    RETURN QUERY
    SELECT v_pop.meta, v_pop.blobs, COALESCE(jsonb_agg(v_common || jsonb_build_object('p', s.name) || s.state), '[]')
    FROM (
        SELECT v_names[t.ord] AS name, jsonb_build_object('s', 'took', 'lastOff', t.last) AS state
        FROM unnest(v_pop.took, v_pop.took_last) AS t (ord, last)
        UNION ALL
        SELECT v_names[t.ord], CASE
            WHEN p.id IS NULL THEN '{"s": "empty"}'
            WHEN c.worker_id IS NOT NULL AND c.lease_expires_at >= v_now
                THEN jsonb_build_object('s', 'leased', 'until', queen.iso_us_v1(c.lease_expires_at))
            WHEN p.last_offset > COALESCE(c.committed, -1)
                THEN CASE WHEN t.held THEN v_again || '{"locked": true}' ELSE v_again END
            WHEN NOT COALESCE(p_skip_window, FALSE) AND q.window_buffer > 0 AND (
                SELECT g.created_at > v_now - make_interval(secs => q.window_buffer)
                FROM queen.log_segments AS g WHERE g.partition_id = p.id ORDER BY g.base_offset DESC LIMIT 1) THEN v_again
            ELSE '{"s": "empty"}' END
        FROM unnest(v_pop.rest, v_pop.rest_held) AS t (ord, held)
        LEFT JOIN queen.log_partitions AS p ON p.id = v_pids[t.ord]
        LEFT JOIN queen.queues AS q ON q.id = p.queue_id
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
    ) AS s;
END
$$;
COMMIT;

-- What queen.log_pop_list_v1 does, in rows in place of documents. p_partitions names
-- no candidate twice. Kinds of rows:
--   slice     a part of a segment to deliver, in serve order. r_ord is the place of
--             the lane among the candidates. In the place of a blob whose creation
--             time is one of p_known there is NULL: the caller holds such a segment,
--             and looks whether it is this one
--   took      the last offset of a lane, where its slices do not say it
--   empty, leased (until a time), locked (leased, but by no lease that is known)
--             the other candidates that were come to
--   unseeded  the group has no record for the queue
-- This one is for every queue, by the statements of the set.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_span_set_v1(UUID, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN,
                                                  TIMESTAMPTZ[]);
CREATE FUNCTION queen.log_pop_span_set_v1(
    p_queue_id       UUID,
    p_group          TEXT,
    p_partitions     TEXT[],
    p_budget         INTEGER,
    p_lease_seconds  INTEGER,
    p_worker         TEXT,
    p_auto_ack       BOOLEAN,
    p_max_partitions INTEGER,
    p_sub_mode       TEXT,
    p_sub_from       TEXT,
    p_skip_window    BOOLEAN,
    p_known          TIMESTAMPTZ[]
)
RETURNS TABLE (r_kind TEXT, r_ord INTEGER, r_pid UUID, r_last_offset BIGINT, r_attempt INTEGER, r_base BIGINT, r_start_idx INTEGER,
               r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ, r_until TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_pids UUID[];
    v_now  TIMESTAMPTZ;
    v_row  RECORD;
    v_rest INTEGER[] := '{}';
    v_held INTEGER[] := '{}';
BEGIN
    SELECT array_agg(p.id ORDER BY u.ord) INTO v_pids
    FROM unnest(p_partitions) WITH ORDINALITY AS u (name, ord)
    LEFT JOIN LATERAL queen.log_partition_named_v1(p_queue_id, u.name) AS p ON TRUE;
    FOR v_row IN
        SELECT * FROM queen.log_pop_lanes_v1(v_pids, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_max_partitions,
                                             p_sub_mode, p_sub_from, p_skip_window, TRUE)
    LOOP
        IF v_row.r_kind IN ('idle', 'locked') THEN
            v_rest := v_rest || v_row.r_ord;
            v_held := v_held || CASE WHEN v_row.r_kind = 'locked' THEN v_row.r_ord END;
            CONTINUE;
        END IF;
        r_kind := v_row.r_kind;
        r_ord := v_row.r_ord;
        r_pid := v_row.r_pid;
        r_last_offset := v_row.r_last_offset;
        r_attempt := v_row.r_attempt;
        r_base := v_row.r_base;
        r_start_idx := v_row.r_start_idx;
        r_take := v_row.r_take;
        r_msg_count := v_row.r_msg_count;
        r_created_at := v_row.r_created_at;
        r_blob := CASE WHEN v_row.r_created_at = ANY (p_known) THEN NULL ELSE v_row.r_blob END;
        RETURN NEXT;
    END LOOP;

    -- Read again, in a snapshot after the claim.
    v_now := clock_timestamp();
    RETURN QUERY
    SELECT CASE WHEN x.leased THEN 'leased' WHEN x.pending AND x.held THEN 'locked' WHEN x.pending OR x.hidden THEN 'leased' ELSE 'empty' END,
           x.ord, NULL::uuid, NULL::bigint, NULL::int, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::timestamptz,
           CASE WHEN x.leased THEN x.lease_expires_at WHEN x.pending OR x.hidden THEN v_now + interval '250 milliseconds' END, NULL::bytea
    FROM (
        SELECT t.ord, t.ord = ANY (v_held) AS held, c.lease_expires_at,
               c.worker_id IS NOT NULL AND c.lease_expires_at >= v_now AS leased, p.last_offset > COALESCE(c.committed, -1) AS pending,
               NOT COALESCE(p_skip_window, FALSE) AND q.window_buffer > 0 AND COALESCE((
                   SELECT g.created_at > v_now - make_interval(secs => q.window_buffer)
                   FROM queen.log_segments AS g WHERE g.partition_id = p.id ORDER BY g.base_offset DESC LIMIT 1), FALSE) AS hidden
        FROM unnest(v_rest) AS t (ord)
        LEFT JOIN queen.log_partitions AS p ON p.id = v_pids[t.ord]
        LEFT JOIN queen.queues AS q ON q.id = p.queue_id
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
    ) AS x;
END
$$;
COMMIT;

-- The same, quick where a queue holds nothing back. It is one statement that is read
-- row by row, so that it locks no lane and reads no segment beyond the budgets; a
-- test holds it to the answers of the set. That it is chosen for any number of lanes
-- rests on a loop on one session, with the commit, in us of processor time:
--   lanes and segments of each     log_pop_list_v1   this
--    1, 1 of one message                        610    140
--    4, 1 of one message                        700    210
--   16, 1 of one message                       1120    350
--   64, 1 of one message                       2700    890
--    1, 2 of 100 messages, 22 KB                660    200
--    4, 2 of 100 messages                       980    370
--   16, 2 of 100 messages                      4200    950
--   64, 2 of 100 messages                     16300   2600
-- Reading all within the budgets at once, by running sums over them, or gathering
-- the segments in arrays, which copies each blob several times, takes longer with
-- any number: 290, 340, 500 and 1130 us for segments of one message, 9000 for 64
-- lanes of large ones.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_pop_span_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID,
                                              BIGINT, TIMESTAMPTZ[]);
CREATE FUNCTION queen.log_pop_span_v1(
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
    p_skip_window    BOOLEAN,
    p_tenant         UUID,
    p_max_bytes      BIGINT,
    p_known          TIMESTAMPTZ[]
)
RETURNS TABLE (r_kind TEXT, r_ord INTEGER, r_pid UUID, r_last_offset BIGINT, r_attempt INTEGER, r_base BIGINT, r_start_idx INTEGER,
               r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ, r_until TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now   TIMESTAMPTZ := clock_timestamp();
    v_left  INTEGER := GREATEST(COALESCE(p_budget, 1), 1);
    v_bytes BIGINT := CASE WHEN p_max_bytes > 0 THEN LEAST(p_max_bytes, 2147483647) ELSE queen.log_pop_max_bytes() END;
    v_max   INTEGER := CASE WHEN p_max_partitions > 0 THEN p_max_partitions ELSE 2147483647 END;
    v_count INTEGER := COALESCE(cardinality(p_partitions), 0);
    v_queue UUID;
    v_lease INTEGER;
    v_plain BOOLEAN;
    v_known BOOLEAN;
    c_next  REFCURSOR;
    v_room  INTEGER;      -- lanes that the open statement may still lock
    v_lane  INTEGER := 0; -- the last candidate that was come to
    v_asked INTEGER := 0; -- up to which one those without a cursor were sought
    v_fresh UUID[];
    v_from  BIGINT;
    v_tries INTEGER;
    v_size  BIGINT;
    v_cost  BIGINT;
    -- The lanes that gave something.
    v_n     INTEGER := 0;
    l_ords INTEGER[] := '{}'; l_pids UUID[]; l_firsts BIGINT[]; l_ends BIGINT[]; l_took INTEGER[];
BEGIN
    SELECT q.id, CASE WHEN p_lease_seconds > 0 THEN p_lease_seconds WHEN q.lease_time > 0 THEN q.lease_time ELSE 60 END,
           COALESCE(q.delayed_processing, 0) <= 0 AND (p_skip_window OR COALESCE(q.window_buffer, 0) <= 0), m.queue_id IS NOT NULL
    INTO v_queue, v_lease, v_plain, v_known
    FROM queen.queues AS q
    LEFT JOIN queen.consumer_groups_metadata AS m ON m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = q.id
         AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
    WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF NOT FOUND OR v_count = 0 THEN
        RETURN;
    ELSIF NOT (v_plain AND v_known) THEN
        PERFORM set_config('queen.pop_max_bytes', v_bytes::text, TRUE);
        RETURN QUERY
        SELECT * FROM queen.log_pop_span_set_v1(v_queue, p_group, p_partitions, p_budget, p_lease_seconds, p_worker, p_auto_ack,
                                                p_max_partitions, p_sub_mode, p_sub_from, p_skip_window, p_known);
        IF NOT v_known THEN
            r_kind := 'unseeded';
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;

    r_kind := 'slice';
    <<claim>>
    WHILE v_lane < v_count AND v_n < v_max AND v_left > 0 AND v_bytes > 0 LOOP
        v_room := v_max - v_n;
        -- A fetch locks a lane when the one before it has been read to its end.
        OPEN c_next NO SCROLL FOR
            SELECT l.ord::int, l.id, l.last_offset, l.attempt_offset, l.attempt_count, s.base_offset,
                   GREATEST(l.wanted - s.base_offset, 0)::int, (s.end_offset - s.base_offset + 1)::int, s.created_at,
                   CASE WHEN s.created_at = ANY (p_known) THEN NULL ELSE s.blob END,
                   -- The headers that the packer writes are read here; log_blob_size knows all.
                   CASE WHEN substring(s.head FROM 1 FOR 4) <> '\x28b52ffd'::bytea THEN octet_length(s.blob)
                        WHEN octet_length(s.head) < 9 THEN queen.log_blob_size(s.blob)
                        WHEN get_byte(s.head, 4) = 32 THEN get_byte(s.head, 5)
                        WHEN get_byte(s.head, 4) = 96 THEN 256 + get_byte(s.head, 5) + 256 * get_byte(s.head, 6)
                        ELSE LEAST(queen.log_blob_size(s.blob), 2147483647) END
            FROM (
                SELECT u.ord, p.id, p.last_offset, c.committed + 1 AS wanted, c.attempt_offset, c.attempt_count
                FROM unnest(p_partitions) WITH ORDINALITY AS u (name, ord)
                CROSS JOIN LATERAL queen.log_partition_named_v1(v_queue, u.name) AS p
                JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                WHERE u.ord > v_lane AND p.last_offset > c.committed
                  AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
                ORDER BY u.ord
                LIMIT v_room
                FOR UPDATE OF c SKIP LOCKED
            ) AS l
            LEFT JOIN LATERAL (
                SELECT g.base_offset, g.end_offset, g.created_at, g.blob, substring(g.blob FROM 1 FOR 9) AS head
                FROM queen.log_segments AS g
                WHERE g.partition_id = l.id AND g.end_offset >= l.wanted
                  AND g.base_offset >= COALESCE((
                      SELECT h.base_offset FROM queen.log_segments AS h
                      WHERE h.partition_id = l.id AND h.base_offset <= l.wanted
                      ORDER BY h.base_offset DESC LIMIT 1), l.wanted)
                ORDER BY g.base_offset
            ) AS s ON TRUE;
        LOOP
            FETCH c_next INTO r_ord, r_pid, r_last_offset, v_from, v_tries, r_base, r_start_idx, r_msg_count, r_created_at, r_blob, v_size;
            IF (r_ord IS NULL AND v_room > 0 OR r_ord > v_lane + 1) AND v_asked < COALESCE(r_ord - 1, v_count) THEN
                -- Candidates were passed over. Those that are new to the group get their
                -- cursors, and are come to in their turn.
                v_asked := COALESCE(r_ord - 1, v_count);
                v_fresh := ARRAY(
                    SELECT p.id FROM unnest(p_partitions[v_lane + 1:v_asked]) AS u (name)
                    CROSS JOIN LATERAL queen.log_partition_named_v1(v_queue, u.name) AS p
                    LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
                    WHERE c.partition_id IS NULL);
                IF v_fresh <> '{}' THEN
                    CLOSE c_next;
                    PERFORM queen.log_first_contact_v1(v_fresh, p_group, p_sub_mode, p_sub_from);
                    CONTINUE claim;
                END IF;
            END IF;
            EXIT WHEN r_ord IS NULL;
            IF r_base IS NULL THEN
                -- Retention emptied the lane: the cursor goes where the log is.
                UPDATE queen.log_consumers AS c SET committed = r_last_offset
                WHERE c.partition_id = r_pid AND c.consumer_group = p_group AND c.committed < r_last_offset
                  AND NOT EXISTS (SELECT 1 FROM queen.log_segments AS s WHERE s.partition_id = r_pid);
                v_lane := r_ord;
                v_room := v_room - 1;
                CONTINUE;
            END IF;
            r_take := LEAST(r_msg_count - r_start_idx, v_left);
            v_cost := v_size * r_take / r_msg_count;
            IF v_cost > v_bytes THEN
                r_take := LEAST(r_take, v_bytes * r_msg_count / v_size);
                v_cost := v_bytes;
                IF r_take < 1 AND v_n > 0 THEN
                    v_bytes := 0;
                    EXIT;
                END IF;
                r_take := GREATEST(r_take, 1);
            END IF;
            v_bytes := v_bytes - v_cost;
            v_left := v_left - r_take;
            IF r_ord > v_lane THEN
                v_lane := r_ord;
                v_room := v_room - 1;
                v_n := v_n + 1;
                l_ords[v_n] := r_ord;
                l_pids[v_n] := r_pid;
                l_firsts[v_n] := r_base + r_start_idx;
                r_attempt := CASE WHEN p_auto_ack OR v_from IS DISTINCT FROM r_base + r_start_idx THEN 1 ELSE v_tries + 1 END;
            END IF;
            l_ends[v_n] := r_base + r_start_idx + r_take - 1;
            IF p_auto_ack THEN
                l_took[v_n] := COALESCE(l_took[v_n], 0) + r_take;
            END IF;
            RETURN NEXT;
            EXIT WHEN v_left <= 0 OR v_bytes <= 0;
        END LOOP;
        CLOSE c_next;
        EXIT WHEN r_ord IS NULL AND v_room > 0; -- else lanes that gave nothing took the room of others
    END LOOP;

    IF v_n = 0 THEN
        NULL;
    ELSIF p_auto_ack THEN
        UPDATE queen.log_consumers AS c
        SET committed = t.upto, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL,
            total_consumed = c.total_consumed + t.took
        FROM unnest(l_pids, l_ends, l_took) AS t (pid, upto, took)
        WHERE c.partition_id = t.pid AND c.partition_id = ANY (l_pids) AND c.consumer_group = p_group;
    ELSE
        UPDATE queen.log_consumers AS c
        SET worker_id = p_worker, lease_acquired_at = v_now, batch_end = t.upto,
            lease_expires_at = v_now + make_interval(secs => v_lease),
            attempt_count = CASE WHEN c.attempt_offset = t.start THEN c.attempt_count + 1 ELSE 1 END,
            attempt_offset = t.start
        FROM unnest(l_pids, l_firsts, l_ends) AS t (pid, start, upto)
        WHERE c.partition_id = t.pid AND c.partition_id = ANY (l_pids) AND c.consumer_group = p_group;
    END IF;

    -- Of the candidates that gave nothing, those after the end of a budget get no
    -- verdict. None is pending and free: another transaction has it.
    v_lane := CASE WHEN v_left > 0 AND v_bytes > 0 AND v_n < v_max THEN v_count ELSE l_ords[v_n] END;
    IF v_n < v_lane THEN
        v_now := clock_timestamp();
        RETURN QUERY
        SELECT CASE WHEN x.leased THEN 'leased' WHEN x.pending THEN 'locked' ELSE 'empty' END,
               x.ord, NULL::uuid, NULL::bigint, NULL::int, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::timestamptz,
               CASE WHEN x.leased THEN x.lease_expires_at WHEN x.pending THEN v_now + interval '250 milliseconds' END, NULL::bytea
        FROM (
            SELECT u.ord::int AS ord, c.lease_expires_at, c.worker_id IS NOT NULL AND c.lease_expires_at >= v_now AS leased,
                   p.last_offset > COALESCE(c.committed, -1) AS pending
            FROM unnest(p_partitions) WITH ORDINALITY AS u (name, ord)
            LEFT JOIN LATERAL queen.log_partition_named_v1(v_queue, u.name) AS p ON TRUE
            LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = p_group
            WHERE u.ord <= v_lane AND u.ord <> ALL (l_ords)
        ) AS x;
    END IF;
END
$$;
COMMIT;

-- Probably pending partitions, leased ones included, by keyset in id order.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_hotlist_reseed_v1(TEXT, TEXT, UUID, INTEGER, UUID);
CREATE FUNCTION queen.log_hotlist_reseed_v1(
    p_queue    TEXT,
    p_group    TEXT,
    p_after_id UUID,
    p_limit    INTEGER,
    p_tenant   UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
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
COMMIT;

-- For each of several rings (a tenant's queue and a group; r_ring is its place in
-- the arrays, from 0) up to p_limit probably pending partitions that were written
-- in the last p_seconds, leased ones included. It reads the queue's own range of
-- the write index, so it may be asked every second; last_write_at is up to a second
-- late.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_hotlist_recent_v1(UUID[], TEXT[], TEXT[], INTEGER, INTEGER);
CREATE FUNCTION queen.log_hotlist_recent_v1(
    p_tenants UUID[],
    p_queues  TEXT[],
    p_groups  TEXT[],
    p_seconds INTEGER,
    p_limit   INTEGER
)
RETURNS TABLE (r_ring INTEGER, r_id UUID, r_name TEXT)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT (u.ord - 1)::integer, x.id, x.name
    FROM unnest(p_tenants, p_queues, p_groups) WITH ORDINALITY AS u (tenant, queue, consumer_group, ord)
    JOIN queen.queues AS q ON q.tenant_id = u.tenant AND q.name = u.queue
    CROSS JOIN LATERAL (
        SELECT p.id, p.name
        FROM queen.log_partitions AS p
        LEFT JOIN queen.log_consumers AS c ON c.partition_id = p.id AND c.consumer_group = u.consumer_group
        WHERE p.queue_id = q.id AND p.last_write_at >= now() - make_interval(secs => p_seconds)
          AND p.last_offset > COALESCE(c.committed, -1)
        LIMIT GREATEST(p_limit, 1)) AS x
$$;
COMMIT;
