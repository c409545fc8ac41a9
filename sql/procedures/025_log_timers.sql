-- Timers: messages that are delivered later. Schedule, reschedule and cancel for
-- routes and transactions; probe, claim, fire, failure and dead-lettering for the
-- sweepers; peek, list and count for readers.
--
-- Locks, in this order: rows of queen.log_timers, ascending (queue, timer_key) with
-- the tenant fixed in a request, ascending (tenant_id, queue, timer_key) in a sweeper,
-- bytes; then, in the fire and the dead-lettering alone, what 003 takes for a push.
-- The fire deletes rows that it locked first; no new timer row is locked behind a
-- lock of the log. Probe, claim and fire never wait for a timer row (SKIP LOCKED): a
-- vertex that does not wait closes no cycle. No advisory lock is taken.
--
-- A timer is delivered once because the push and the deletion of its row are one
-- commit; the dedup window has no part in it. Who holds the row's token until
-- claimed_until may fire it. The clock is the database's alone: p_now exists for
-- tests, and NULL is the start of the transaction.
--
-- Measured on 2026-11-30 (PostgreSQL 15, 2 cores, one session that claims and fires,
-- payloads of 200 bytes, 100 lanes, BenchmarkTimersDrain of pkg/store; timers per second
-- of the clock, and microseconds of the server's processor for a timer):
--
--   claims of    fsync off   on the disk   claim   fire
--         200       13,000         7,700    22.8   35.0
--       1,000       21,000        11,200    20.4   17.0
--
-- Other work had a part of that machine; in the same hour claims that did not look for the
-- earliest of all shards cost 17 to 21 us and 15 to 17, fires of theirs 30 to 37 and 14 to
-- 15.5. What a fire costs is lanes: the earliest 200 meet all of the 100, and claims of
-- 1,000 come back with about 530. A sweeper gathers five claims for a fire.
--
-- Lanes of 100,000 timers, claims of 200 in batches of five: not one timer behind a later
-- one; 9,925 in 100 lanes, by up to 12,100 places, when shards were taken one by one.
--
-- The probe at 5,000,000 timers none of which is due, 64 shards: 0.42 ms of processor,
-- 0.48 ms elapsed; a claim that finds nothing 0.18 ms.
--
-- Autovacuum: two dead tuples for a timer, 0.8 us of processor each. At 3,900 timers
-- scheduled, claimed and fired in a second, all that the machine did by one session, it
-- took 0.5 % of a core; at 500/s and 2,000/s nothing that could be seen. Beside 5,000,000
-- pending ones a vacuum after 25,000 timers took 0.1 s and left the indexes alone (under 2 %
-- of the pages); with the indexes (620 MB) 0.36 s, 1.35 s elapsed. Once a minute that is
-- 2 % of one worker of three.
--
-- fillfactor 70, between 50 and 100, changes little, since no update is HOT: WAL for a timer
-- 1,500 bytes (50), 1,710 (70), 1,790 (90), 1,840 (100), the table of a steady 1,500/s
-- 10 to 12 MB.
--
-- Re-applying is safe: create-only table and index, grants that already hold, CREATE
-- OR REPLACE; the claim, whose result type is part of what it is, is dropped in the
-- transaction that creates it.

-- One row per pending timer; a delivered or cancelled one leaves no trace. The queue
-- is not looked at before the fire. Every step of a timer's life changes visible_at,
-- so none of its updates is HOT.
CREATE TABLE IF NOT EXISTS queen.log_timers (
    tenant_id     UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    queue         TEXT COLLATE "C" NOT NULL,
    timer_key     TEXT COLLATE "C" NOT NULL,
    "partition"   TEXT NOT NULL DEFAULT 'Default',
    deliver_at    TIMESTAMPTZ NOT NULL,
    txn           TEXT NOT NULL,
    message_id    UUID NOT NULL,
    payload       BYTEA NOT NULL,
    payload_zstd  BOOLEAN NOT NULL DEFAULT FALSE,
    encrypted     BOOLEAN NOT NULL DEFAULT FALSE,
    producer_sub  TEXT,
    attempts      INTEGER NOT NULL DEFAULT 0,
    last_error    TEXT,
    claimed_until TIMESTAMPTZ,
    claim_token   UUID,
    shard         SMALLINT NOT NULL GENERATED ALWAYS AS ((hashtextextended(timer_key, 0) & 63)::SMALLINT) STORED,
    visible_at    TIMESTAMPTZ NOT NULL GENERATED ALWAYS AS (
        CASE WHEN claimed_until IS NULL OR claimed_until < deliver_at THEN deliver_at ELSE claimed_until END) STORED,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, queue, timer_key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Without deduplication: an entry of many rows is not marked dead before all of them are,
-- and until then every claim visits each of them again. A claim of 200 out of 100,000
-- timers of the same instant cost 70 us for a timer with it, and costs 33 without;
-- timers of different instants cost the same either way.
CREATE INDEX IF NOT EXISTS idx_log_timers_visible ON queen.log_timers (shard, visible_at) WITH (deduplicate_items = off);

GRANT SELECT, INSERT, UPDATE, DELETE ON queen.log_timers TO PUBLIC;

-- Requests

-- What is wrong with an operation, NULL when nothing is, in the order that the
-- contract gives. The limits of the names are those of the log, into which a timer
-- must fit one day: a queue of more than 255 characters could never be born.
CREATE OR REPLACE FUNCTION queen.log_timer_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_queue  TEXT;
    v_key    TEXT;
    v_plan   BOOLEAN := p_op ->> 'op' IN ('schedule', 'reschedule');
BEGIN
    IF jsonb_typeof(p_op) IS DISTINCT FROM 'object' THEN
        RETURN 'is not an object';
    ELSIF p_op ?| '{producerSub,producer_sub,messageId,message_id,tenant,tenantId,_tenant,tenant_id,deliverAt,deliver_at,delaySeconds,delay_seconds,attempts,claimToken,claim_token,claimedUntil}' THEN
        RETURN (
            SELECT format('the field %I is not an input', f.name)
            FROM unnest('{producerSub,producer_sub,messageId,message_id,tenant,tenantId,_tenant,tenant_id,deliverAt,deliver_at,delaySeconds,delay_seconds,attempts,claimToken,claim_token,claimedUntil}'::TEXT[]) AS f (name)
            WHERE p_op ? f.name
            LIMIT 1);
    ELSIF v_plan IS NOT TRUE AND (p_op ->> 'op' = 'cancel') IS NOT TRUE THEN
        RETURN 'op must be schedule, reschedule or cancel';
    END IF;
    v_queue := queen.kv_text_v1(p_op -> 'queue');
    v_key := queen.kv_text_v1(p_op -> 'timerKey');
    RETURN CASE
        WHEN (v_queue <> '') IS NOT TRUE OR (v_key <> '') IS NOT TRUE THEN 'queue and timerKey must be texts that are not empty'
        WHEN length(v_queue) > 255 THEN 'queue has more than 255 characters'
        WHEN octet_length(v_key) > 1024 THEN 'timerKey has more than 1024 bytes'
        WHEN p_op -> 'partition' <> 'null' AND (queen.kv_text_v1(p_op -> 'partition') <> '') IS NOT TRUE
            THEN 'partition must be a text that is not empty'
        WHEN octet_length(p_op ->> 'partition') > 1024 THEN 'partition has more than 1024 bytes'
        WHEN v_plan THEN queen.log_timer_plan_fault_v1(p_op)
    END;
END
$$;

-- The same for what only a schedule has.
CREATE OR REPLACE FUNCTION queen.log_timer_plan_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN jsonb_typeof(p_op -> 'delayMs') IS DISTINCT FROM 'number' THEN 'delayMs must be a number of milliseconds'
        WHEN abs((p_op -> 'delayMs')::NUMERIC) > 10000000000000 THEN 'delayMs must lie within 10000000000000 milliseconds'
        WHEN (queen.kv_text_v1(p_op -> 'txn') <> '') IS NOT TRUE THEN 'txn must be a text that is not empty'
        WHEN octet_length(p_op ->> 'txn') > 1024 THEN 'txn has more than 1024 bytes'
        WHEN jsonb_typeof(p_op -> 'payload') IS DISTINCT FROM 'string' THEN 'payload must be a base64 text'
        WHEN jsonb_typeof(p_op -> 'payloadZstd') NOT IN ('boolean', 'null') OR jsonb_typeof(p_op -> 'encrypted') NOT IN ('boolean', 'null')
            THEN 'payloadZstd and encrypted must be true or false'
        -- No regular expression: it costs as much as the insert.
        WHEN p_op -> '_messageId' <> 'null' AND (
                length(p_op ->> '_messageId') = 36 AND translate(p_op ->> '_messageId', '0123456789abcdefABCDEF', '') = '----'
                AND substr(p_op ->> '_messageId', 9, 1) || substr(p_op ->> '_messageId', 14, 1)
                    || substr(p_op ->> '_messageId', 19, 1) || substr(p_op ->> '_messageId', 24, 1) = '----') IS NOT TRUE
            THEN '_messageId must be a UUID'
    END
$$;

-- One schedule or reschedule: an upsert that leaves a claimed row alone. Insert, or
-- else update, so that a row which a sweeper is about to fire is not even locked:
-- the fire would pass over it, and its timer wait for the end of the lease.
CREATE OR REPLACE FUNCTION queen.log_timer_schedule_v1(p_tenant UUID, p_op JSONB, p_producer_sub TEXT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_id      UUID := COALESCE((p_op ->> '_messageId')::UUID, gen_random_uuid());
    -- To the microsecond: a number that is too small for FLOAT8 would be an error.
    v_at      TIMESTAMPTZ := p_now + round((p_op -> 'delayMs')::NUMERIC, 3)::FLOAT8 * INTERVAL '1 millisecond';
    v_payload BYTEA := decode(p_op ->> 'payload', 'base64');
    v_zstd    BOOLEAN := COALESCE(p_op -> 'payloadZstd' = 'true', FALSE);
    v_crypt   BOOLEAN := COALESCE(p_op -> 'encrypted' = 'true', FALSE);
    v_lane    TEXT := COALESCE(p_op ->> 'partition', 'Default');
    v_status  TEXT;
BEGIN
    LOOP
        INSERT INTO queen.log_timers AS t (tenant_id, queue, timer_key, "partition", deliver_at, txn, message_id, payload,
            payload_zstd, encrypted, producer_sub, created_at, updated_at)
        VALUES (p_tenant, p_op ->> 'queue', p_op ->> 'timerKey', v_lane, v_at, p_op ->> 'txn', v_id, v_payload,
            v_zstd, v_crypt, NULLIF(p_producer_sub, ''), p_now, p_now)
        ON CONFLICT (tenant_id, queue, timer_key) DO NOTHING;
        IF FOUND THEN
            v_status := 'scheduled';
            EXIT;
        END IF;
        UPDATE queen.log_timers AS t
        SET "partition" = v_lane, deliver_at = v_at, txn = p_op ->> 'txn', message_id = v_id, payload = v_payload,
            payload_zstd = v_zstd, encrypted = v_crypt, producer_sub = NULLIF(p_producer_sub, ''),
            attempts = 0, last_error = NULL, claimed_until = NULL, claim_token = NULL, updated_at = p_now
        WHERE t.tenant_id = p_tenant AND t.queue = p_op ->> 'queue' AND t.timer_key = p_op ->> 'timerKey'
          AND NOT queen.log_timer_claimed_v1(t.claim_token, t.claimed_until, p_now);
        IF FOUND THEN
            v_status := 'rescheduled';
            EXIT;
        END IF;
        IF EXISTS (
            SELECT FROM queen.log_timers AS t
            WHERE t.tenant_id = p_tenant AND t.queue = p_op ->> 'queue' AND t.timer_key = p_op ->> 'timerKey'
              AND queen.log_timer_claimed_v1(t.claim_token, t.claimed_until, p_now)
        ) THEN
            RETURN jsonb_build_object('ok', FALSE, 'status', 'too_late', 'queue', p_op -> 'queue', 'timerKey', p_op -> 'timerKey');
        END IF;
        -- Fired, or given back, between two statements.
    END LOOP;
    RETURN jsonb_build_object('ok', TRUE, 'status', v_status, 'queue', p_op -> 'queue', 'timerKey', p_op -> 'timerKey',
        'txn', p_op -> 'txn', 'messageId', v_id, 'deliverAt', queen.iso_us_v1(v_at));
END
$$;

-- One cancel.
CREATE OR REPLACE FUNCTION queen.log_timer_cancel_v1(p_tenant UUID, p_op JSONB, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_txn     TEXT;
    v_claimed BOOLEAN;
BEGIN
    LOOP
        DELETE FROM queen.log_timers AS t
        WHERE t.tenant_id = p_tenant AND t.queue = p_op ->> 'queue' AND t.timer_key = p_op ->> 'timerKey'
          AND NOT queen.log_timer_claimed_v1(t.claim_token, t.claimed_until, p_now)
        RETURNING t.txn INTO v_txn;
        IF FOUND THEN
            RETURN jsonb_build_object('ok', TRUE, 'status', 'cancelled', 'queue', p_op -> 'queue', 'timerKey', p_op -> 'timerKey', 'txn', v_txn);
        END IF;
        SELECT queen.log_timer_claimed_v1(t.claim_token, t.claimed_until, p_now) INTO v_claimed
        FROM queen.log_timers AS t
        WHERE t.tenant_id = p_tenant AND t.queue = p_op ->> 'queue' AND t.timer_key = p_op ->> 'timerKey';
        IF NOT FOUND THEN
            RETURN jsonb_build_object('ok', FALSE, 'status', 'absent', 'queue', p_op -> 'queue', 'timerKey', p_op -> 'timerKey',
                'txn', queen.kv_text_v1(p_op -> 'txn'));
        ELSIF v_claimed THEN
            RETURN jsonb_build_object('ok', FALSE, 'status', 'too_late', 'queue', p_op -> 'queue', 'timerKey', p_op -> 'timerKey');
        END IF;
    END LOOP;
END
$$;

-- Whether a sweeper holds a timer. A token without an end, or behind it, holds nothing,
-- and an end without a token is a backoff.
CREATE OR REPLACE FUNCTION queen.log_timer_claimed_v1(p_token UUID, p_until TIMESTAMPTZ, p_now TIMESTAMPTZ)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT p_token IS NOT NULL AND (p_until > p_now) IS TRUE
$$;

-- Schedules, reschedules and cancels of one tenant, all of them or none, answered by
-- position, applied in the order of (queue, timerKey). Everything is validated before
-- the first write but the base64 of the payloads, whose decoder has errors of its own
-- (22023 too).
CREATE OR REPLACE FUNCTION queen.log_timers_apply_v1(
    p_ops          JSONB,
    p_tenant       UUID,
    p_producer_sub TEXT DEFAULT NULL,
    p_now          TIMESTAMPTZ DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now   TIMESTAMPTZ := COALESCE(p_now, now());
    v_n     INT := 0;
    v_fault TEXT;
    v_seen  TEXT[] := '{}';
    v_name  TEXT;
    v_out   JSONB[];
    r       RECORD;
BEGIN
    IF jsonb_typeof(p_ops) IS DISTINCT FROM 'array' OR p_tenant IS NULL THEN
        RAISE EXCEPTION 'QTIMER %', CASE WHEN p_tenant IS NULL THEN 'a tenant is needed' ELSE 'the operations must be an array' END
            USING ERRCODE = '22023';
    END IF;
    v_n := jsonb_array_length(p_ops);
    FOR v_i IN 0 .. v_n - 1 LOOP
        v_fault := queen.log_timer_fault_v1(p_ops -> v_i);
        IF v_fault IS NULL AND v_n > 1 THEN
            v_name := length(p_ops -> v_i ->> 'queue') || ':' || (p_ops -> v_i ->> 'queue') || (p_ops -> v_i ->> 'timerKey');
            IF v_name = ANY (v_seen) THEN
                v_fault := 'an earlier one names the same queue and timerKey';
            END IF;
            v_seen := v_seen || v_name;
        END IF;
        IF v_fault IS NOT NULL THEN
            RAISE EXCEPTION 'QTIMER operation %: %', v_i, v_fault USING ERRCODE = '22023', HINT =
                'A schedule is {"op": "schedule", "queue", "timerKey", "delayMs", "txn", "payload" (base64)}, and optionally "partition", "payloadZstd", "encrypted"; a cancel {"op": "cancel", "queue", "timerKey"}. Tenant, message id, producer and the instant of delivery are the server''s.';
        END IF;
    END LOOP;
    IF v_n = 0 THEN
        RETURN '[]';
    END IF;

    v_out := array_fill(NULL::JSONB, ARRAY[v_n]);
    FOR r IN
        SELECT u.op, u.ord::INT AS ord
        FROM jsonb_array_elements(p_ops) WITH ORDINALITY AS u (op, ord)
        ORDER BY u.op ->> 'queue' COLLATE "C", u.op ->> 'timerKey' COLLATE "C"
    LOOP
        IF r.op ->> 'op' = 'cancel' THEN
            v_out[r.ord] := queen.log_timer_cancel_v1(p_tenant, r.op, v_now);
        ELSE
            v_out[r.ord] := queen.log_timer_schedule_v1(p_tenant, r.op, p_producer_sub, v_now);
        END IF;
    END LOOP;
    IF array_position(v_out, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'QTIMER misaligned results' USING ERRCODE = 'internal_error';
    END IF;
    RETURN to_jsonb(v_out);
END
$$;

-- Sweepers

-- The probe: when the next timer of the given shards is due, and how much is. One seek
-- for each shard, and for what is due an index scan that ends at p_cap. lateMs is the
-- age of the earliest due visible_at, and so knows nothing of what a backoff moved.
CREATE OR REPLACE FUNCTION queen.log_timers_due_v1(p_shards SMALLINT[], p_now TIMESTAMPTZ DEFAULT NULL, p_cap INT DEFAULT 2000)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now   TIMESTAMPTZ := COALESCE(p_now, now());
    v_cap   INT := greatest(COALESCE(p_cap, 2000), 1);
    v_first TIMESTAMPTZ;
    v_due   INT := 0;
BEGIN
    SELECT min(f.visible_at) INTO v_first
    FROM unnest(p_shards) AS s (shard)
    CROSS JOIN LATERAL (
        SELECT t.visible_at FROM queen.log_timers AS t WHERE t.shard = s.shard ORDER BY t.visible_at LIMIT 1
    ) AS f;
    IF v_first <= v_now THEN
        SELECT count(*) INTO v_due
        FROM (
            SELECT
            FROM unnest(p_shards) AS s (shard)
            CROSS JOIN LATERAL (
                SELECT FROM queen.log_timers AS t WHERE t.shard = s.shard AND t.visible_at <= v_now ORDER BY t.visible_at LIMIT v_cap
            ) AS d
            LIMIT v_cap
        ) AS c;
    END IF;
    RETURN jsonb_build_object('now', queen.iso_us_v1(v_now), 'nextInMs', ceil(extract(EPOCH FROM v_first - v_now) * 1000)::BIGINT,
        'due', v_due, 'dueCapped', v_due >= v_cap,
        'lateMs', CASE WHEN v_first <= v_now THEN floor(extract(EPOCH FROM v_now - v_first) * 1000)::BIGINT ELSE 0 END);
END
$$;

-- Takes due timers under a lease, the earliest of all the shards that are given. A shard
-- yields its share of p_max_rows, at least 8, and a tenant of it at most p_per_tenant.
-- The result is in the order of the visible_at that the rows had, then of tenant, queue
-- and key, and so are the frames that are made of it.
--
-- From one claim to the next there is an order as well, when all 64 shards are given:
-- where a shard has more than its share, a claim takes nothing that is later than what it
-- leaves there. One of 200 in four is shorter for it, by some rows; one of 1000 takes
-- about 530. Below a quarter of p_max_rows it is not cut: then the shard has far more than
-- its share, which needs keys that many queues have in common, and the others do not wait
-- for it. Instants that are the same come in any order from one claim to the next. What
-- nothing holds in order: claims at the same time, and rows that become visible, for the
-- first time or again, when their instant was passed already.
--
-- While a tenant's share is that of its shard, the earliest rows are the candidates. Where
-- it is less, tenants are told apart among the earliest 1000 due rows of the shard: there
-- is no index by tenant, and a longer look would cost more than the claim. Then claims are
-- not cut, for nobody is to wait for a tenant that has more than its share.
--
-- Candidates are read without a lock, and then locked in the order of their instants, as
-- many as are wanted, in a statement of its own: its snapshot shows what others have
-- claimed since, so that their rows, which they fire with SKIP LOCKED, are not locked to
-- look at them. Of claims at the same time each takes what the others have left of the
-- candidates. When that is nothing, those behind them are tried, three times.
--
-- However many rows are asked for, their payloads are 32 MiB at most, or one row: whoever
-- claims holds all of them in memory. Nothing is detoasted to know that.
--
-- Rows are found again by their place: it cannot change while they are locked. One that
-- changed after the statement began is left for the next claim.
--
-- The commit is not waited for: a claim that a crash takes along was never made, and the
-- fire with its tokens is stale.
BEGIN;
DROP FUNCTION IF EXISTS queen.log_timers_claim_v1(SMALLINT[], TIMESTAMPTZ, INT, INT, INT);
CREATE OR REPLACE FUNCTION queen.log_timers_claim_v1(
    p_shards     SMALLINT[],
    p_now        TIMESTAMPTZ DEFAULT NULL,
    p_lease_ms   INT DEFAULT 30000,
    p_max_rows   INT DEFAULT 200,
    p_per_tenant INT DEFAULT NULL
)
RETURNS TABLE (
    r_tenant       TEXT,
    r_queue        TEXT,
    r_timer_key    TEXT,
    r_partition    TEXT,
    r_txn          TEXT,
    r_message_id   TEXT,
    r_payload      BYTEA,
    r_payload_zstd BOOLEAN,
    r_encrypted    BOOLEAN,
    r_producer_sub TEXT,
    r_attempts     INT,
    r_late_ms      BIGINT,
    r_token        TEXT
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now        TIMESTAMPTZ := COALESCE(p_now, now());
    v_until      TIMESTAMPTZ := COALESCE(p_now, now()) + greatest(COALESCE(p_lease_ms, 30000), 1) * INTERVAL '1 millisecond';
    v_max        INT := greatest(COALESCE(p_max_rows, 200), 1);
    v_shards     INT := COALESCE(cardinality(p_shards), 0);
    v_per_shard  INT;
    v_per_tenant INT;
    v_max_bytes  BIGINT := 33554432;
    v_places     TID[];
    v_rows       TID[];
    v_due        TIMESTAMPTZ[];
    v_shard_of   SMALLINT[];
    v_sizes      INT[];
    v_bytes      BIGINT;
    v_keep       INT;
    v_round      INT := 0;
    v_end        TIMESTAMPTZ := v_now;
BEGIN
    IF v_shards = 0 THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', TRUE);
    v_per_shard := greatest((v_max + v_shards - 1) / v_shards, 8);
    v_per_tenant := least(greatest(COALESCE(p_per_tenant, v_per_shard), 1), v_per_shard);

    LOOP
        IF v_per_tenant = v_per_shard THEN
            SELECT array_agg(c.ctid) INTO v_places
            FROM (
                SELECT x.ctid
                FROM unnest(p_shards) AS s (shard)
                CROSS JOIN LATERAL (
                    SELECT t.ctid, t.visible_at, t.tenant_id, t.queue, t.timer_key
                    FROM queen.log_timers AS t
                    WHERE t.shard = s.shard AND t.visible_at <= v_now
                    ORDER BY t.visible_at
                    OFFSET v_round * v_per_shard
                    LIMIT v_per_shard
                ) AS x
                ORDER BY x.visible_at, x.tenant_id, x.queue, x.timer_key
            ) AS c;
        ELSE
            SELECT array_agg(c.ctid) INTO v_places
            FROM (
                SELECT x.ctid
                FROM unnest(p_shards) AS s (shard)
                CROSS JOIN LATERAL (
                    SELECT n.*
                    FROM (
                        SELECT w.*, row_number() OVER (PARTITION BY w.tenant_id ORDER BY w.visible_at) AS place,
                               dense_rank() OVER (ORDER BY w.tenant_id) AS tenant
                        FROM (
                            SELECT t.ctid, t.visible_at, t.tenant_id, t.queue, t.timer_key
                            FROM queen.log_timers AS t
                            WHERE t.shard = s.shard AND t.visible_at <= v_now
                            ORDER BY t.visible_at
                            LIMIT 1000
                        ) AS w
                    ) AS n
                    WHERE n.place > v_round * v_per_tenant AND n.place <= (v_round + 1) * v_per_tenant AND n.tenant <= v_per_shard
                    ORDER BY n.visible_at
                    LIMIT v_per_shard
                ) AS x
                ORDER BY x.visible_at, x.tenant_id, x.queue, x.timer_key
            ) AS c;
        END IF;
        SELECT array_agg(c.ctid), array_agg(c.visible_at), array_agg(c.shard), array_agg(c.size), sum(c.size)
        INTO v_rows, v_due, v_shard_of, v_sizes, v_bytes
        FROM (
            SELECT t.ctid, t.visible_at, t.shard, octet_length(t.payload) AS size
            FROM unnest(v_places) AS p (place)
            JOIN queen.log_timers AS t ON t.ctid = p.place
            WHERE t.visible_at <= v_now
            LIMIT v_max
            FOR UPDATE OF t SKIP LOCKED
        ) AS c;
        EXIT WHEN v_rows IS NOT NULL OR v_places IS NULL OR v_round = 3;
        v_round := v_round + 1;
    END LOOP;

    IF v_per_tenant = v_per_shard AND v_shards >= 64 THEN
        SELECT min(l.visible_at) INTO v_end
        FROM (SELECT u.shard FROM unnest(v_shard_of) AS u (shard) GROUP BY u.shard HAVING count(*) = v_per_shard) AS f
        CROSS JOIN LATERAL (
            SELECT t.visible_at
            FROM queen.log_timers AS t
            WHERE t.shard = f.shard AND t.visible_at <= v_now
            ORDER BY t.visible_at
            OFFSET (v_round + 1) * v_per_shard
            LIMIT 1
        ) AS l;
        IF (v_due[(v_max + 3) / 4] <= v_end) IS NOT TRUE THEN
            v_end := v_now;
        END IF;
    END IF;

    IF v_bytes > v_max_bytes THEN
        SELECT greatest(count(*), 1) INTO v_keep
        FROM (SELECT sum(u.size) OVER (ROWS UNBOUNDED PRECEDING) AS bytes FROM unnest(v_sizes) AS u (size)) AS b
        WHERE b.bytes <= v_max_bytes;
        v_rows := v_rows[:v_keep];
        v_due := v_due[:v_keep];
    END IF;

    RETURN QUERY
    WITH taken AS (
        UPDATE queen.log_timers AS t
        SET claimed_until = v_until, claim_token = gen_random_uuid(), updated_at = v_now
        FROM unnest(v_rows, v_due) AS c (place, due)
        WHERE t.ctid = c.place AND c.due <= v_end
        RETURNING c.due, t.*
    )
    SELECT k.tenant_id::TEXT, k.queue, k.timer_key, k."partition", k.txn, k.message_id::TEXT, k.payload, k.payload_zstd, k.encrypted,
           k.producer_sub, k.attempts, greatest(floor(extract(EPOCH FROM v_now - k.deliver_at) * 1000), 0)::BIGINT, k.claim_token::TEXT
    FROM taken AS k
    ORDER BY k.due, k.tenant_id, k.queue, k.timer_key;
END
$$;
COMMIT;

-- Fires claimed timers: pushes the segments that a sweeper has packed of them, and
-- deletes their rows. p_keys, p_seg_of (position of the segment, from 1) and p_tokens
-- are the timers; those of a segment are its frames, in order. A segment of which one
-- timer is not held any more is stale, writes nothing and provisions nothing; the rest
-- of its timers can be claimed again at once.
--
-- The lanes are locked, and offsets given, by the allocator of every push. Its probe is
-- skipped: what makes a timer fire once is the deletion of its row.
CREATE OR REPLACE FUNCTION queen.log_timers_fire_v1(
    p_tenants    UUID[],
    p_queues     TEXT[],
    p_partitions TEXT[],
    p_msg_counts INT[],
    p_hashes     BYTEA[],
    p_blobs      BYTEA[],
    p_keys       TEXT[],
    p_seg_of     INT[],
    p_tokens     UUID[],
    p_now        TIMESTAMPTZ DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now    TIMESTAMPTZ := COALESCE(p_now, now());
    v_n      INT := COALESCE(cardinality(p_tenants), 0);
    v_keys   INT := COALESCE(cardinality(p_keys), 0);
    v_fault  TEXT;
    v_rows   TID[];
    v_segs   INT[];
    v_live   INT[];
    v_lanes  INT;
    v_pids   UUID[];
    v_pushed JSONB := '[]';
    v_done   INT;
BEGIN
    v_fault := queen.log_timers_fire_fault_v1(v_n, cardinality(p_queues), cardinality(p_partitions), p_msg_counts, p_hashes,
        cardinality(p_blobs), v_keys, p_seg_of, cardinality(p_tokens));
    IF v_fault IS NOT NULL THEN
        RAISE EXCEPTION 'QFIRE %', v_fault USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_n = 0 THEN
        RETURN '[]';
    END IF;

    -- What is held: locked, by this token, and the lease not over.
    SELECT array_agg(h.ctid), array_agg(h.seg), count(DISTINCT h.ctid) INTO v_rows, v_segs, v_done
    FROM (
        SELECT t.ctid, u.seg
        FROM unnest(p_keys, p_seg_of, p_tokens) AS u (key, seg, token)
        JOIN queen.log_timers AS t ON t.tenant_id = p_tenants[u.seg] AND t.queue = p_queues[u.seg] AND t.timer_key = u.key
        WHERE t.claim_token = u.token AND t.claimed_until > v_now
        ORDER BY t.tenant_id, t.queue, t.timer_key
        FOR UPDATE OF t SKIP LOCKED
    ) AS h;
    IF v_done < cardinality(v_rows) THEN
        RAISE EXCEPTION 'QFIRE a timer is named twice' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT COALESCE(array_agg(s.seg ORDER BY s.seg), '{}'), count(DISTINCT (p_tenants[s.seg], p_queues[s.seg], p_partitions[s.seg]))
    INTO v_live, v_lanes
    FROM (SELECT h.seg FROM unnest(v_segs) AS h (seg) GROUP BY h.seg HAVING count(*) = p_msg_counts[h.seg]) AS s;
    IF v_lanes < cardinality(v_live) THEN
        RAISE EXCEPTION 'QFIRE two segments of one partition' USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF v_live <> '{}' THEN
        v_pids := queen.log_timers_lanes_v1(
            ARRAY(SELECT p_tenants[l] FROM unnest(v_live) AS l), ARRAY(SELECT p_queues[l] FROM unnest(v_live) AS l),
            ARRAY(SELECT p_partitions[l] FROM unnest(v_live) AS l));
        IF cardinality(v_live) = v_n THEN
            v_pushed := queen.log_push_lanes_v1(v_pids, p_msg_counts, p_hashes, array_fill(-2::BIGINT, ARRAY[v_n]), p_blobs, NULL, v_pids, NULL);
        ELSE
            v_pushed := queen.log_push_lanes_v1(v_pids,
                ARRAY(SELECT p_msg_counts[l] FROM unnest(v_live) AS l), ARRAY(SELECT p_hashes[l] FROM unnest(v_live) AS l),
                array_fill(-2::BIGINT, ARRAY[cardinality(v_live)]), ARRAY(SELECT p_blobs[l] FROM unnest(v_live) AS l), NULL, v_pids, NULL);
        END IF;

        DELETE FROM queen.log_timers AS t
        WHERE t.ctid = ANY (ARRAY(SELECT h.place FROM unnest(v_rows, v_segs) AS h (place, seg) WHERE h.seg = ANY (v_live)));
        GET DIAGNOSTICS v_done = ROW_COUNT;
        IF v_done <> (SELECT sum(p_msg_counts[l]) FROM unnest(v_live) AS l) OR jsonb_array_length(v_pushed) <> cardinality(v_live)
           OR jsonb_path_exists(v_pushed, '$[*].status ? (@ != "queued")') THEN
            RAISE EXCEPTION 'QFIRE delivered % timers in % segments: %', v_done, cardinality(v_live), v_pushed USING ERRCODE = 'internal_error';
        END IF;
    END IF;

    UPDATE queen.log_timers AS t
    SET claim_token = NULL, claimed_until = v_now, updated_at = v_now
    WHERE t.ctid = ANY (ARRAY(SELECT h.place FROM unnest(v_rows, v_segs) AS h (place, seg) WHERE h.seg <> ALL (v_live)));

    RETURN (
        SELECT jsonb_agg(CASE WHEN l.place IS NULL
            THEN jsonb_build_object('result', 'stale', 'queue', p_queues[s], 'partition', p_partitions[s])
            ELSE jsonb_build_object('result', 'fired', 'queue', p_queues[s], 'partition', p_partitions[s], 'timers', p_msg_counts[s],
                'partitionId', v_pids[l.place], 'baseOffset', v_pushed -> (l.place - 1) -> 'baseOffset',
                'createdAt', v_pushed -> (l.place - 1) -> 'createdAt') END ORDER BY s)
        FROM generate_series(1, v_n) AS s
        CROSS JOIN LATERAL (SELECT array_position(v_live, s) AS place) AS l
    );
END
$$;

-- Why the arguments of a fire do not fit together, NULL when they do.
CREATE OR REPLACE FUNCTION queen.log_timers_fire_fault_v1(
    p_segments   INT,
    p_queues     INT,
    p_partitions INT,
    p_msg_counts INT[],
    p_hashes     BYTEA[],
    p_blobs      INT,
    p_keys       INT,
    p_seg_of     INT[],
    p_tokens     INT
)
RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF ROW (p_segments, p_segments, p_segments, p_segments, p_segments, p_keys, p_keys) IS DISTINCT FROM ROW (
        COALESCE(p_queues, 0), COALESCE(p_partitions, 0), COALESCE(cardinality(p_msg_counts), 0), COALESCE(cardinality(p_hashes), 0),
        COALESCE(p_blobs, 0), COALESCE(cardinality(p_seg_of), 0), COALESCE(p_tokens, 0)) THEN
        RETURN 'misaligned arrays';
    ELSIF p_segments > 0 AND p_keys = 0 THEN
        RETURN 'no timers';
    ELSIF EXISTS (SELECT FROM unnest(p_seg_of) AS g (seg) WHERE (g.seg BETWEEN 1 AND p_segments) IS NOT TRUE) THEN
        RETURN 'a timer of no segment';
    ELSIF EXISTS (
        SELECT FROM unnest(p_msg_counts, p_hashes) AS s (n, hashes)
        WHERE (s.n >= 1) IS NOT TRUE OR octet_length(s.hashes) IS DISTINCT FROM 16 * s.n::BIGINT
    ) THEN
        RETURN 'bad segment: a count below 1 or hashes of another length';
    ELSIF p_segments <> (
        SELECT count(*)
        FROM (SELECT FROM unnest(p_seg_of) AS g (seg) GROUP BY g.seg HAVING count(*) = p_msg_counts[g.seg]) AS s
    ) THEN
        RETURN 'a segment with another number of timers than frames';
    END IF;
    RETURN NULL;
END
$$;

-- The lanes of names, created where they are missing.
CREATE OR REPLACE FUNCTION queen.log_timers_lanes_v1(p_tenants UUID[], p_queues TEXT[], p_partitions TEXT[])
RETURNS UUID[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_pids  UUID[];
    v_found INT;
BEGIN
    FOR v_try IN 1..2 LOOP
        SELECT array_agg(p.id ORDER BY u.ord), count(p.id) INTO v_pids, v_found
        FROM unnest(p_tenants, p_queues, p_partitions) WITH ORDINALITY AS u (tenant, queue, partition, ord)
        LEFT JOIN queen.queues AS q ON q.tenant_id = u.tenant AND q.name = u.queue
        LEFT JOIN LATERAL queen.log_partition_named_v1(q.id, u.partition) AS p ON TRUE;
        IF v_found = cardinality(p_queues) THEN
            RETURN v_pids;
        ELSIF v_try = 1 THEN
            PERFORM queen.log_provision_v1(p_tenants, p_queues, p_partitions);
        END IF;
    END LOOP;
    -- With proper names only a concurrent deletion can cause this.
    RAISE EXCEPTION 'QFIRE resolved % of % partitions', v_found, cardinality(p_queues)
        USING ERRCODE = CASE WHEN '' = ANY (p_queues) OR array_position(p_queues, NULL) IS NOT NULL
                OR array_position(p_partitions, NULL) IS NOT NULL OR array_position(p_tenants, NULL) IS NOT NULL
            THEN 'invalid_parameter_value' ELSE 'serialization_failure' END;
END
$$;

-- Gives claimed timers back after a failure, visible again after a backoff. Those whose
-- attempts are used up are named: they are to be dead-lettered. A crash may take this
-- along, and the lease ends by itself.
CREATE OR REPLACE FUNCTION queen.log_timers_fail_v1(
    p_tenants       UUID[],
    p_queues        TEXT[],
    p_keys          TEXT[],
    p_tokens        UUID[],
    p_backoff_ms    INT DEFAULT 1000,
    p_error         TEXT DEFAULT NULL,
    p_count_attempt BOOLEAN DEFAULT TRUE,
    p_max_attempts  INT DEFAULT 5,
    p_now           TIMESTAMPTZ DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_n    INT := COALESCE(cardinality(p_keys), 0);
    v_rows TID[];
    v_out  JSONB;
BEGIN
    IF ROW (v_n, v_n, v_n) IS DISTINCT FROM ROW (
        COALESCE(cardinality(p_tenants), 0), COALESCE(cardinality(p_queues), 0), COALESCE(cardinality(p_tokens), 0)) THEN
        RAISE EXCEPTION 'QTIMERFAIL misaligned arrays' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', TRUE);
    SELECT array_agg(h.ctid) INTO v_rows
    FROM (
        SELECT t.ctid
        FROM unnest(p_tenants, p_queues, p_keys, p_tokens) AS u (tenant, queue, key, token)
        JOIN queen.log_timers AS t ON t.tenant_id = u.tenant AND t.queue = u.queue AND t.timer_key = u.key
        WHERE t.claim_token = u.token
        ORDER BY t.tenant_id, t.queue, t.timer_key
        FOR UPDATE OF t
    ) AS h;
    WITH failed AS (
        UPDATE queen.log_timers AS t
        SET claim_token = NULL, last_error = p_error, updated_at = COALESCE(p_now, now()),
            claimed_until = COALESCE(p_now, now()) + greatest(COALESCE(p_backoff_ms, 1000), 0) * INTERVAL '1 millisecond',
            attempts = t.attempts + CASE WHEN COALESCE(p_count_attempt, TRUE) THEN 1 ELSE 0 END
        WHERE t.ctid = ANY (v_rows)
        RETURNING t.tenant_id, t.queue, t.timer_key, t.attempts
    )
    SELECT jsonb_build_object('failed', count(*), 'exhausted', COALESCE(jsonb_agg(
               jsonb_build_object('tenant', f.tenant_id, 'queue', f.queue, 'timerKey', f.timer_key, 'attempts', f.attempts)
               ORDER BY f.queue, f.timer_key, f.tenant_id) FILTER (WHERE f.attempts >= COALESCE(p_max_attempts, 5)), '[]'))
    INTO v_out
    FROM failed AS f;
    RETURN v_out;
END
$$;

-- Moves timers whose attempts are used up among the dead letters of their partition,
-- which is created where it is missing: group __timer__, offset -1. One that was
-- rescheduled, or is held, is skipped. The lock on the partition keeps it there until
-- the letter is seen.
CREATE OR REPLACE FUNCTION queen.log_timers_dlq_v1(
    p_tenants      UUID[],
    p_queues       TEXT[],
    p_keys         TEXT[],
    p_payloads     JSONB[],
    p_errors       TEXT[],
    p_min_attempts INT DEFAULT 5,
    p_now          TIMESTAMPTZ DEFAULT NULL
)
RETURNS JSONB
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_n       INT := COALESCE(cardinality(p_keys), 0);
    v_rows    TID[];
    v_ords    INT[];
    v_tenants UUID[];
    v_queues  TEXT[];
    v_parts   TEXT[];
    v_pids    UUID[];
    v_locked  INT;
BEGIN
    IF ROW (v_n, v_n, v_n, v_n) IS DISTINCT FROM ROW (COALESCE(cardinality(p_tenants), 0), COALESCE(cardinality(p_queues), 0),
        COALESCE(cardinality(p_payloads), 0), COALESCE(cardinality(p_errors), 0)) THEN
        RAISE EXCEPTION 'QTIMERDLQ misaligned arrays' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT array_agg(h.ctid), array_agg(h.ord), array_agg(h.tenant_id), array_agg(h.queue), array_agg(h.lane)
    INTO v_rows, v_ords, v_tenants, v_queues, v_parts
    FROM (
        SELECT t.ctid, u.ord::INT AS ord, t.tenant_id, t.queue, t."partition" AS lane
        FROM (
            SELECT DISTINCT ON (d.tenant, d.queue, d.key) d.*
            FROM unnest(p_tenants, p_queues, p_keys) WITH ORDINALITY AS d (tenant, queue, key, ord)
        ) AS u
        JOIN queen.log_timers AS t ON t.tenant_id = u.tenant AND t.queue = u.queue AND t.timer_key = u.key
        WHERE t.attempts >= COALESCE(p_min_attempts, 5) AND t.claim_token IS NULL
        ORDER BY t.tenant_id, t.queue, t.timer_key
        FOR UPDATE OF t
    ) AS h;
    IF v_rows IS NOT NULL THEN
        v_pids := queen.log_timers_lanes_v1(v_tenants, v_queues, v_parts);
        PERFORM FROM queen.log_partitions AS p WHERE p.id = ANY (v_pids) ORDER BY p.id FOR KEY SHARE;
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        IF v_locked < (SELECT count(DISTINCT u.pid) FROM unnest(v_pids) AS u (pid)) THEN
            RAISE EXCEPTION 'QTIMERDLQ a partition vanished' USING ERRCODE = 'serialization_failure';
        END IF;
        INSERT INTO queen.log_dlq
            (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count, failed_at)
        SELECT h.pid, '__timer__', -1, t.message_id, t.txn, p_payloads[h.ord], p_errors[h.ord], t.attempts, COALESCE(p_now, now())
        FROM unnest(v_rows, v_ords, v_pids) AS h (place, ord, pid)
        JOIN queen.log_timers AS t ON t.ctid = h.place;
        DELETE FROM queen.log_timers AS t WHERE t.ctid = ANY (v_rows);
    END IF;
    RETURN jsonb_build_object('archived', COALESCE(cardinality(v_rows), 0), 'skipped', v_n - COALESCE(cardinality(v_rows), 0));
END
$$;

-- Readers

-- What a reader sees of a timer, without the payload.
CREATE OR REPLACE FUNCTION queen.log_timer_view_v1(t queen.log_timers, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('queue', t.queue, 'timerKey', t.timer_key, 'partition', t."partition",
        'deliverAt', queen.iso_us_v1(t.deliver_at), 'txn', t.txn, 'messageId', t.message_id,
        'payloadZstd', t.payload_zstd, 'encrypted', t.encrypted, 'producerSub', t.producer_sub,
        'attempts', t.attempts, 'lastError', t.last_error,
        'claimed', queen.log_timer_claimed_v1(t.claim_token, t.claimed_until, p_now),
        'createdAt', queen.iso_us_v1(t.created_at), 'updatedAt', queen.iso_us_v1(t.updated_at))
$$;

-- One timer, with its payload as it is stored, in base64 without line breaks.
CREATE OR REPLACE FUNCTION queen.log_timers_peek_v1(p_tenant UUID, p_queue TEXT, p_timer_key TEXT)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
AS $$
DECLARE
    t queen.log_timers%ROWTYPE;
BEGIN
    SELECT x.* INTO t FROM queen.log_timers AS x WHERE x.tenant_id = p_tenant AND x.queue = p_queue AND x.timer_key = p_timer_key;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('found', FALSE, 'queue', p_queue, 'timerKey', p_timer_key);
    END IF;
    RETURN queen.log_timer_view_v1(t, now())
        || jsonb_build_object('found', TRUE, 'payload', replace(encode(t.payload, 'base64'), E'\n', ''));
END
$$;

-- A page of a queue's timers in the order of keys.
CREATE OR REPLACE FUNCTION queen.log_timers_list_v1(p_tenant UUID, p_queue TEXT, p_after TEXT DEFAULT NULL, p_limit INT DEFAULT 100)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_limit INT := greatest(least(COALESCE(p_limit, 100), 1000), 1);
    v_rows  JSONB;
    v_n     INT;
    v_last  TEXT;
BEGIN
    IF p_tenant IS NULL OR COALESCE(p_queue, '') = '' THEN
        RAISE EXCEPTION 'QTIMER a tenant and a queue are needed' USING ERRCODE = '22023';
    END IF;
    -- The view is made inside: a whole row that left the subquery would take its
    -- payload along.
    SELECT COALESCE(jsonb_agg(p.row ORDER BY p.place) FILTER (WHERE p.place <= v_limit), '[]'), count(*),
           max(p.timer_key) FILTER (WHERE p.place <= v_limit)
    INTO v_rows, v_n, v_last
    FROM (
        SELECT queen.log_timer_view_v1(t, now()) AS row, t.timer_key, row_number() OVER (ORDER BY t.timer_key) AS place
        FROM queen.log_timers AS t
        WHERE t.tenant_id = p_tenant AND t.queue = p_queue AND t.timer_key > COALESCE(p_after, '')
        ORDER BY t.timer_key
        LIMIT v_limit + 1
    ) AS p;
    RETURN jsonb_build_object('rows', v_rows, 'truncated', v_n > v_limit, 'nextAfter', CASE WHEN v_n > v_limit THEN v_last END);
END
$$;

-- How many timers of a queue have a key that begins with p_prefix, taken literally.
CREATE OR REPLACE FUNCTION queen.log_timers_count_v1(p_tenant UUID, p_queue TEXT, p_prefix TEXT)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    -- Without a bound of its own, one above every key of 1024 bytes.
    v_end TEXT := COALESCE(queen.kv_prefix_end_v1(p_prefix), repeat(chr(1114111), 257));
BEGIN
    IF p_tenant IS NULL OR COALESCE(p_queue, '') = '' THEN
        RAISE EXCEPTION 'QTIMER a tenant and a queue are needed' USING ERRCODE = '22023';
    END IF;
    RETURN (
        SELECT count(*)
        FROM queen.log_timers AS t
        WHERE t.tenant_id = p_tenant AND t.queue = p_queue
          AND t.timer_key >= COALESCE(p_prefix, '') AND t.timer_key < v_end AND starts_with(t.timer_key, COALESCE(p_prefix, ''))
    );
END
$$;
