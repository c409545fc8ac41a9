-- Ack: move a group's cursor, give a lease back, dead-letter the head, and do
-- pushes and acks in one transaction.
--
-- Locks: acks take one log_consumers row each, FOR UPDATE, in the order of
-- (partition_id, consumer_group COLLATE "C") where there are several, and never
-- a partition row. The transaction takes, in order: provisioning inserts,
-- log_partitions rows ascending by id FOR NO KEY UPDATE, then consumers.
--
-- Re-applying is safe: create-only table, CREATE OR REPLACE with unchanged
-- signatures.

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

-- Why a worker may not touch a row, NULL when it may. Without a worker nothing
-- is checked.
CREATE OR REPLACE FUNCTION queen.log_lease_fault_v1(p_worker TEXT, p_holder TEXT, p_expires TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN COALESCE(p_worker, '') <> ''
                 AND (p_holder IS DISTINCT FROM p_worker OR p_expires IS NULL OR p_expires < clock_timestamp())
                THEN 'invalid or expired lease' END
$$;

CREATE OR REPLACE FUNCTION queen.log_ack_at_v1(
    p_partition_id UUID,
    p_group        TEXT,
    p_worker       TEXT,
    p_upto         BIGINT,
    p_ok           BOOLEAN DEFAULT TRUE,
    p_acked_count  INTEGER DEFAULT 0
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c       queen.log_consumers%ROWTYPE;
    v_fault TEXT;
BEGIN
    SELECT * INTO c FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    v_fault := queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at);
    IF v_fault IS NOT NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
    END IF;

    IF NOT COALESCE(p_ok, TRUE) OR p_upto IS NULL THEN
        UPDATE queen.log_consumers AS l SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
        RETURN jsonb_build_object('ok', TRUE, 'acked', 0);
    END IF;
    IF c.batch_end IS NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'no leased batch');
    END IF;
    -- Beyond the batch counts as its end; a cursor never moves back.
    UPDATE queen.log_consumers AS l
    SET committed = GREATEST(c.committed, LEAST(p_upto, c.batch_end)),
        worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
        batch_retry_count = CASE WHEN p_upto >= c.batch_end THEN 0 ELSE c.batch_retry_count END,
        attempt_offset = CASE WHEN p_upto >= c.batch_end THEN NULL ELSE c.attempt_offset END,
        attempt_count = CASE WHEN p_upto >= c.batch_end THEN 0 ELSE c.attempt_count END,
        total_consumed = c.total_consumed + GREATEST(COALESCE(p_acked_count, 0), 0)
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    RETURN jsonb_build_object('ok', TRUE, 'acked', GREATEST(COALESCE(p_acked_count, 0), 0));
END
$$;

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

-- Full-batch advances of many cursors in one transaction. Executed in lock
-- order, answered in input order.
CREATE OR REPLACE FUNCTION queen.log_ack_multi_v1(p_pids TEXT[], p_groups TEXT[], p_ends BIGINT[], p_workers TEXT[], p_counts INT[])
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    n         INT := COALESCE(cardinality(p_pids), 0);
    v_results JSONB[];
    v_verdict JSONB;
    r         RECORD;
BEGIN
    IF (COALESCE(cardinality(p_groups), 0), COALESCE(cardinality(p_ends), 0), COALESCE(cardinality(p_workers), 0), COALESCE(cardinality(p_counts), 0))
       IS DISTINCT FROM (n, n, n, n) THEN
        RAISE EXCEPTION 'QACKM misaligned arrays: % partitions, % groups, % ends, % workers, % counts', n,
            cardinality(p_groups), cardinality(p_ends), cardinality(p_workers), cardinality(p_counts) USING ERRCODE = '22023';
    END IF;
    v_results := array_fill(NULL::jsonb, ARRAY[n]);
    FOR r IN
        SELECT u.pid::uuid AS pid, u.grp, u.upto, u.worker, u.cnt, u.ord
        FROM unnest(p_pids, p_groups, p_ends, p_workers, p_counts) WITH ORDINALITY AS u (pid, grp, upto, worker, cnt, ord)
        ORDER BY u.pid::uuid, u.grp COLLATE "C", u.ord
    LOOP
        v_verdict := queen.log_ack_at_v1(r.pid, r.grp, r.worker, r.upto, TRUE, r.cnt);
        v_results[r.ord] := jsonb_build_object('ok', v_verdict -> 'ok', 'acked', COALESCE(v_verdict -> 'acked', '0'), 'error', v_verdict -> 'error');
    END LOOP;
    RETURN jsonb_build_object('ok', TRUE, 'results', CASE WHEN n = 0 THEN '[]'::jsonb ELSE to_jsonb(v_results) END);
END
$$;

-- Lowest offset in [p_low, p_high] (unbounded without p_high) at which each hash
-- is stored; NULL where it is not. Reads only the sidecar rows that touch the
-- span, by primary key. The settings make it a hash join: a batch of a thousand
-- acks must not rescan the span a thousand times. (The price the planner puts on
-- the unavoidable nested loop over the function would start the JIT compiler:
-- measured, 240 ms for one hash.)
CREATE OR REPLACE FUNCTION queen.log_ack_resolve_v1(p_pid UUID, p_low BIGINT, p_high BIGINT, p_hashes BYTEA[])
RETURNS BIGINT[]
LANGUAGE plpgsql
SET enable_nestloop = off
SET enable_mergejoin = off
SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    v_base BIGINT;
    v_offs BIGINT[];
BEGIN
    SELECT COALESCE(max(t.base_offset), p_low) INTO v_base FROM queen.log_txns AS t
    WHERE t.partition_id = p_pid AND t.base_offset <= p_low;

    SELECT array_agg(f.off ORDER BY i.ord) INTO v_offs
    FROM unnest(p_hashes) WITH ORDINALITY AS i (h, ord)
    LEFT JOIN (
        SELECT u.h, min(t.base_offset + u.idx) AS off
        FROM (
            -- The concatenation fetches a blob stored out of line once; slicing
            -- the column itself would fetch it for every frame.
            SELECT x.base_offset, x.hashes || ''::bytea AS hashes FROM queen.log_txns AS x
            WHERE x.partition_id = p_pid AND x.base_offset >= v_base AND x.base_offset <= COALESCE(p_high, 9223372036854775807)
            OFFSET 0
        ) AS t
        CROSS JOIN LATERAL queen.log_unnest_hashes(t.hashes) AS u
        WHERE t.base_offset + u.idx BETWEEN p_low AND COALESCE(p_high, 9223372036854775807)
        GROUP BY u.h
    ) AS f ON f.h = i.h;
    RETURN v_offs;
END
$$;

-- The authoritative ack. An ack of an offset completes everything below it; the
-- lowest explicit signal (dlq before failed before retry at one offset) stops
-- the cursor below itself and decides what becomes of the lease.
CREATE OR REPLACE FUNCTION queen.log_ack_by_hash_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_hashes BYTEA[], p_statuses TEXT[])
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    n          INT := COALESCE(cardinality(p_hashes), 0);
    c          queen.log_consumers%ROWTYPE;
    v_fault    TEXT;
    v_statuses TEXT[];
    v_low      BIGINT;
    v_eff      BIGINT[];
    v_below    BIGINT[];
    v_lists    JSONB;
    v_signal   RECORD;
    v_new      BIGINT;
    v_delta    BIGINT;
    v_conf     RECORD;
    v_done     BOOLEAN;
BEGIN
    IF p_statuses IS NOT NULL AND cardinality(p_statuses) <> n THEN
        RAISE EXCEPTION 'QACK misaligned arrays: % hashes, % statuses', n, cardinality(p_statuses) USING ERRCODE = '22023';
    END IF;
    SELECT * INTO c FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    v_fault := queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at);
    IF v_fault IS NOT NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
    END IF;

    v_low := GREATEST(c.committed + 1, COALESCE((SELECT p.txns_start FROM queen.log_partitions AS p WHERE p.id = p_partition_id), 0));
    SELECT array_agg(COALESCE(NULLIF(s.status, ''), 'completed') ORDER BY s.ord) INTO v_statuses
    FROM unnest(COALESCE(p_statuses, array_fill('completed'::text, ARRAY[n]))) WITH ORDINALITY AS s (status, ord);
    v_eff := queen.log_ack_resolve_v1(p_partition_id, v_low, c.batch_end, p_hashes);
    IF array_position(v_eff, NULL) IS NOT NULL AND c.committed >= 0 THEN
        v_below := queen.log_ack_resolve_v1(p_partition_id, 0, c.committed, p_hashes);
    END IF;

    SELECT jsonb_build_object(
        'noopHashes', COALESCE(jsonb_agg(encode(a.h, 'hex') ORDER BY a.ord)
            FILTER (WHERE a.eff IS NULL AND a.below AND a.status IN ('completed', 'success', 'acked', 'ok')), '[]'::jsonb),
        'staleHashes', COALESCE(jsonb_agg(encode(a.h, 'hex') ORDER BY a.ord)
            FILTER (WHERE a.eff IS NULL AND a.below AND a.status IN ('failed', 'dlq', 'retry')), '[]'::jsonb),
        'unresolvedHashes', COALESCE(jsonb_agg(encode(a.h, 'hex') ORDER BY a.ord)
            FILTER (WHERE a.eff IS NULL AND NOT a.below), '[]'::jsonb))
    INTO v_lists
    FROM (SELECT u.h, u.status, u.eff, v_below IS NOT NULL AND v_below[u.ord] IS NOT NULL AS below, u.ord
          FROM unnest(p_hashes, v_statuses, v_eff) WITH ORDINALITY AS u (h, status, eff, ord)) AS a;

    SELECT u.eff AS off, u.status INTO v_signal
    FROM unnest(v_statuses, v_eff) AS u (status, eff)
    WHERE u.eff IS NOT NULL AND u.status IN ('failed', 'dlq', 'retry')
    ORDER BY u.eff, array_position(ARRAY['dlq', 'failed', 'retry'], u.status)
    LIMIT 1;
    SELECT COALESCE(max(u.eff), c.committed) INTO v_new
    FROM unnest(v_statuses, v_eff) AS u (status, eff)
    WHERE u.status IN ('completed', 'success', 'acked', 'ok') AND (v_signal.off IS NULL OR u.eff < v_signal.off);
    v_delta := GREATEST(v_new - c.committed, 0);

    IF v_signal.status = 'failed' AND c.batch_end IS NOT NULL THEN
        SELECT COALESCE(q.retry_limit, 3) AS retry_limit,
               COALESCE(q.dead_letter_queue, TRUE) OR COALESCE(q.dlq_after_max_retries, TRUE) AS dlq
        INTO v_conf
        FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE p.id = p_partition_id;
        IF c.batch_retry_count < COALESCE(v_conf.retry_limit, 3) THEN
            UPDATE queen.log_consumers AS l
            SET committed = v_new, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
                batch_retry_count = c.batch_retry_count + 1, total_consumed = c.total_consumed + v_delta
            WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
            RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'off', v_new, 'released', TRUE);
        ELSIF NOT COALESCE(v_conf.dlq, TRUE) THEN
            -- The budget is spent and nobody wants the message: step over it.
            UPDATE queen.log_consumers AS l
            SET committed = v_signal.off, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
                batch_retry_count = 0, total_consumed = c.total_consumed + v_delta + 1
            WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
            RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'off', v_signal.off, 'dropped', TRUE, 'released', TRUE);
        END IF;
    END IF;

    IF v_signal.status IN ('dlq', 'failed') AND c.batch_end IS NOT NULL THEN
        -- The lease is kept for the hand-off, and for long enough: a lease-less
        -- ack may find one that has run out and is not claimed again yet.
        UPDATE queen.log_consumers AS l
        SET committed = v_new, total_consumed = c.total_consumed + v_delta,
            lease_expires_at = GREATEST(c.lease_expires_at, clock_timestamp() + interval '10 seconds')
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
        RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'dlq', TRUE, 'off', v_signal.off, 'released', FALSE,
            'partitionId', p_partition_id, 'group', p_group, 'worker', c.worker_id);
    END IF;

    IF v_signal.status = 'retry' AND c.batch_end IS NOT NULL THEN
        UPDATE queen.log_consumers AS l
        SET committed = v_new, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
            total_consumed = c.total_consumed + v_delta
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
        RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'off', v_new, 'released', TRUE);
    END IF;

    v_done := c.batch_end IS NOT NULL AND v_new >= c.batch_end;
    IF v_done THEN
        UPDATE queen.log_consumers AS l
        SET committed = v_new, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
            attempt_offset = NULL, attempt_count = 0, batch_retry_count = 0, total_consumed = c.total_consumed + v_delta
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    ELSIF v_delta > 0 THEN
        UPDATE queen.log_consumers AS l SET committed = v_new, total_consumed = c.total_consumed + v_delta
        WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    END IF;
    RETURN v_lists || jsonb_build_object('ok', TRUE, 'acked', v_delta, 'off', v_new, 'released', v_done);
END
$$;

-- Renews every live lease of a worker. Never shortens one, never revives one.
CREATE OR REPLACE FUNCTION queen.log_renew_lease_v1(p_worker TEXT, p_seconds INTEGER)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_renewed INT;
    v_expires TIMESTAMPTZ;
BEGIN
    WITH held AS (
        SELECT c.partition_id, c.consumer_group FROM queen.log_consumers AS c
        WHERE c.worker_id = p_worker AND c.lease_expires_at > v_now AND p_worker <> ''
        ORDER BY c.partition_id, c.consumer_group COLLATE "C"
        FOR UPDATE
    ), renewed AS (
        UPDATE queen.log_consumers AS c
        SET lease_expires_at = GREATEST(c.lease_expires_at, v_now + make_interval(secs => GREATEST(COALESCE(p_seconds, 60), 1)))
        FROM held AS h
        WHERE c.partition_id = h.partition_id AND c.consumer_group = h.consumer_group
        RETURNING c.lease_expires_at
    )
    SELECT count(*), min(r.lease_expires_at) INTO v_renewed, v_expires FROM renewed AS r;
    RETURN jsonb_build_object('renewed', v_renewed,
        'expiresAt', to_char(v_expires AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
END
$$;

-- The leases of one worker: a pop's own rows, looked up when it extends them.
CREATE INDEX IF NOT EXISTS idx_log_consumers_worker ON queen.log_consumers (worker_id) WHERE worker_id IS NOT NULL;

-- Second half of a dead-letter hand-off: files the snapshot, steps over the
-- message, gives the lease back. Called again it finds no lease and does nothing.
CREATE OR REPLACE FUNCTION queen.log_dlq_head_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_off BIGINT, p_message_id UUID, p_txn TEXT, p_payload JSONB, p_error TEXT)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    c       queen.log_consumers%ROWTYPE;
    v_fault TEXT;
    v_id    UUID;
BEGIN
    SELECT * INTO c FROM queen.log_consumers AS l
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    v_fault := queen.log_lease_fault_v1(p_worker, c.worker_id, c.lease_expires_at);
    IF v_fault IS NOT NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', v_fault);
    END IF;
    INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count)
    VALUES (p_partition_id, p_group, p_off, p_message_id, p_txn, p_payload, p_error, c.batch_retry_count)
    RETURNING id INTO v_id;
    UPDATE queen.log_consumers AS l
    SET committed = GREATEST(c.committed, p_off), worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
        attempt_offset = NULL, attempt_count = 0, batch_retry_count = 0, total_consumed = c.total_consumed + 1
    WHERE l.partition_id = p_partition_id AND l.consumer_group = p_group;
    RETURN jsonb_build_object('ok', TRUE, 'id', v_id);
END
$$;

-- Pushes and acks, all or nothing. Every refusal raises: QDUP with the
-- unique-violation class for a stored transaction id, QTXN with SQLSTATE QT001
-- for an ack. Riders (kv, timers) have their own procedures; until those exist a
-- non-empty array is refused rather than ignored.
--
-- An ack may carry "workers": the row's live holder must then be one of them.
CREATE OR REPLACE FUNCTION queen.log_transaction_wire_v1(p JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_tenant  UUID := COALESCE((p ->> '_tenant')::uuid, '00000000-0000-0000-0000-000000000001');
    v_pushes  JSONB := COALESCE(NULLIF(p -> 'pushes', 'null'), '[]');
    v_acks    JSONB := COALESCE(NULLIF(p -> 'acks', 'null'), '[]');
    v_done    JSONB[] := '{}';
    v_acked   JSONB := '[]';
    v_verdict JSONB;
    r         RECORD;
BEGIN
    SELECT a.value ->> 'partitionId' AS pid INTO r
    FROM jsonb_array_elements(v_acks) AS a
    WHERE NOT EXISTS (
        SELECT 1 FROM queen.log_partitions AS p2 JOIN queen.queues AS q ON q.id = p2.queue_id
        WHERE p2.id = (a.value ->> 'partitionId')::uuid AND q.tenant_id = v_tenant)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'QTXN ack references partition % that does not exist or is not owned by the tenant; transaction rolled back', r.pid
            USING ERRCODE = 'QT001';
    END IF;
    FOR r IN SELECT k.key, p -> k.key AS value FROM unnest(ARRAY['kv', 'timers']) AS k (key) LOOP
        IF jsonb_typeof(r.value) NOT IN ('array', 'null') THEN
            RAISE EXCEPTION 'QTXN % must be an array or null, got %; transaction rolled back', r.key, jsonb_typeof(r.value) USING ERRCODE = '22023';
        ELSIF jsonb_typeof(r.value) = 'array' AND jsonb_array_length(r.value) > 0 THEN
            RAISE EXCEPTION 'QTXN % operations are not supported by this schema; transaction rolled back', r.key USING ERRCODE = '0A000';
        END IF;
    END LOOP;

    IF jsonb_array_length(v_pushes) > 0 THEN
        IF EXISTS (
            SELECT 1 FROM jsonb_array_elements(v_pushes) AS u
            WHERE queen.log_partition_id_v1(v_tenant, u.value ->> 'queue', u.value ->> 'partition') IS NULL
        ) THEN
            PERFORM queen.log_provision_v1(array_agg(v_tenant), array_agg(u.value ->> 'queue'), array_agg(u.value ->> 'partition'))
            FROM jsonb_array_elements(v_pushes) AS u;
        END IF;
        PERFORM 1 FROM queen.log_partitions AS l
        WHERE l.id IN (SELECT queen.log_partition_id_v1(v_tenant, u.value ->> 'queue', u.value ->> 'partition')
                       FROM jsonb_array_elements(v_pushes) AS u)
        ORDER BY l.id
        FOR NO KEY UPDATE;
    END IF;
    FOR r IN
        SELECT u.value, l.id, q.dedup_window_seconds AS win
        FROM jsonb_array_elements(v_pushes) WITH ORDINALITY AS u (value, ord)
        JOIN queen.queues AS q ON q.tenant_id = v_tenant AND q.name = u.value ->> 'queue'
        JOIN queen.log_partitions AS l ON l.queue_id = q.id AND l.name = u.value ->> 'partition'
        ORDER BY u.ord
    LOOP
        v_verdict := queen.log_push_one_v1(
            r.value ->> 'queue', r.value ->> 'partition', (r.value ->> 'count')::int, decode(r.value ->> 'hashesHex', 'hex'),
            COALESCE((r.value ->> 'verified')::bigint, -1), decode(r.value ->> 'blobB64', 'base64'), r.id, r.win, v_tenant);
        IF v_verdict ->> 'status' <> 'queued' THEN
            RAISE EXCEPTION 'QDUP duplicate messages in queue "%" partition "%"; transaction rolled back',
                r.value ->> 'queue', r.value ->> 'partition' USING ERRCODE = '23505';
        END IF;
        v_done := v_done || v_verdict;
    END LOOP;
    IF cardinality(v_done) <> jsonb_array_length(v_pushes) THEN
        RAISE EXCEPTION 'QTXN resolved % of % pushes; transaction rolled back', cardinality(v_done), jsonb_array_length(v_pushes)
            USING ERRCODE = CASE WHEN v_pushes @> '[{"queue": ""}]' THEN '22023' ELSE '40001' END;
    END IF;

    FOR r IN
        SELECT a.value, a.ord, (a.value ->> 'partitionId')::uuid AS pid, COALESCE(a.value ->> 'group', '__QUEUE_MODE__') AS grp
        FROM jsonb_array_elements(v_acks) WITH ORDINALITY AS a (value, ord)
        ORDER BY 3, COALESCE(a.value ->> 'group', '__QUEUE_MODE__') COLLATE "C", a.ord
    LOOP
        v_verdict := queen.log_transaction_ack_v1(v_tenant, r.pid, r.grp, r.value);
        v_acked := v_acked || jsonb_build_array(v_verdict || jsonb_build_object('index', r.ord - 1));
    END LOOP;
    RETURN jsonb_build_object('ok', TRUE, 'pushes', to_jsonb(v_done), 'acks', v_acked);
END
$$;

-- One ack of a transaction; raises instead of answering no.
CREATE OR REPLACE FUNCTION queen.log_transaction_ack_v1(p_tenant UUID, p_pid UUID, p_group TEXT, p_ack JSONB)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_verdict JSONB;
    v_names   RECORD;
BEGIN
    IF jsonb_typeof(p_ack -> 'workers') = 'array' AND jsonb_array_length(p_ack -> 'workers') > 0 AND NOT EXISTS (
        SELECT 1 FROM (SELECT * FROM queen.log_consumers AS c WHERE c.partition_id = p_pid AND c.consumer_group = p_group FOR UPDATE) AS c
        WHERE p_ack -> 'workers' ? c.worker_id AND c.lease_expires_at >= clock_timestamp()
    ) THEN
        v_verdict := jsonb_build_object('ok', FALSE, 'error', 'invalid or expired lease');
    ELSIF jsonb_typeof(p_ack -> 'acks') = 'array' THEN
        SELECT queen.log_ack_by_hash_v1(p_pid, p_group, p_ack ->> 'worker',
                   array_agg(decode(h.value ->> 'h', 'hex') ORDER BY h.ord),
                   array_agg(COALESCE(h.value ->> 'status', CASE WHEN h.value -> 'ok' = 'false' THEN 'failed' ELSE 'completed' END) ORDER BY h.ord))
        INTO v_verdict
        FROM jsonb_array_elements(p_ack -> 'acks') WITH ORDINALITY AS h (value, ord);
    ELSE
        SELECT q.name AS queue, l.name AS partition INTO v_names
        FROM queen.log_partitions AS l JOIN queen.queues AS q ON q.id = l.queue_id WHERE l.id = p_pid;
        v_verdict := queen.log_ack_v1(v_names.queue, v_names.partition, p_group, p_ack ->> 'worker', (p_ack ->> 'uptoOff')::bigint,
            COALESCE((p_ack ->> 'ok')::boolean, TRUE), COALESCE((p_ack ->> 'count')::int, 0), p_tenant);
    END IF;
    IF NOT (v_verdict ->> 'ok')::boolean THEN
        RAISE EXCEPTION 'QTXN ack failed: %; transaction rolled back', v_verdict ->> 'error' USING ERRCODE = 'QT001';
    END IF;
    IF jsonb_array_length(COALESCE(v_verdict -> 'unresolvedHashes', '[]')) > 0 THEN
        RAISE EXCEPTION 'QTXN ack references unknown transactionId; transaction rolled back'
            USING ERRCODE = 'QT001', DETAIL = (v_verdict -> 'unresolvedHashes')::text;
    END IF;
    RETURN v_verdict;
END
$$;
