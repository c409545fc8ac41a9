-- Queue configuration: the options of a queue and the call that writes them.
--
-- Locks: the one queue row, FOR NO KEY UPDATE, so pushes and pops that only
-- read it go on. Concurrent creators meet in the unique (tenant_id, name).
-- Re-applying is safe: CREATE OR REPLACE only.

-- Every option that configure knows, with its type, its default and the range
-- its value is clamped to. What does not fit the type is refused before that.
CREATE OR REPLACE FUNCTION queen.queue_option_list_v1()
RETURNS TABLE (
    r_key       TEXT,
    r_type      TEXT,
    r_default   JSONB,
    r_clamp_min BIGINT,
    r_clamp_max BIGINT
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT o.k, o.t, o.d::JSONB, o.lo, o.hi
    FROM (VALUES
        ('namespace', 'text', '""', NULL::BIGINT, NULL::BIGINT),
        ('task', 'text', '""', NULL, NULL),
        ('priority', 'integer', '0', NULL, NULL),
        ('leaseTime', 'integer', '300', NULL, NULL),
        ('retryLimit', 'integer', '3', NULL, NULL),
        ('retryDelay', 'integer', '1000', NULL, NULL),
        ('maxSize', 'integer', '0', NULL, NULL),
        ('ttl', 'integer', '3600', NULL, NULL),
        ('deadLetterQueue', 'boolean', 'true', NULL, NULL),
        ('dlqAfterMaxRetries', 'boolean', 'true', NULL, NULL),
        ('delayedProcessing', 'integer', '0', NULL, NULL),
        ('windowBuffer', 'integer', '0', NULL, NULL),
        ('retentionSeconds', 'integer', '0', NULL, NULL),
        ('completedRetentionSeconds', 'integer', '0', NULL, NULL),
        ('retentionEnabled', 'boolean', 'false', NULL, NULL),
        ('encryptionEnabled', 'boolean', 'false', NULL, NULL),
        ('maxWaitTimeSeconds', 'integer', '0', NULL, NULL),
        ('minPopWaitTime', 'integer', '0', 0, 60000),
        ('dedupWindowSeconds', 'integer', '3600', 0, NULL)
    ) AS o (k, t, d, lo, hi)
$$;

-- The effective options of one queue row, labels included, as the wire spells them.
CREATE OR REPLACE FUNCTION queen.queue_options_v1(p_queue queen.queues)
RETURNS JSONB
LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_build_object(
        'namespace', COALESCE((p_queue).namespace, ''),
        'task', COALESCE((p_queue).task, ''),
        'priority', (p_queue).priority,
        'leaseTime', (p_queue).lease_time,
        'retryLimit', (p_queue).retry_limit,
        'retryDelay', (p_queue).retry_delay,
        'maxSize', (p_queue).max_queue_size,
        'ttl', (p_queue).ttl,
        'deadLetterQueue', (p_queue).dead_letter_queue,
        'dlqAfterMaxRetries', (p_queue).dlq_after_max_retries,
        'delayedProcessing', (p_queue).delayed_processing,
        'windowBuffer', (p_queue).window_buffer,
        'retentionSeconds', (p_queue).retention_seconds,
        'completedRetentionSeconds', (p_queue).completed_retention_seconds,
        'retentionEnabled', (p_queue).retention_enabled,
        'encryptionEnabled', (p_queue).encryption_enabled,
        'maxWaitTimeSeconds', (p_queue).max_wait_time_seconds,
        'minPopWaitTime', (p_queue).min_pop_wait_time,
        'dedupWindowSeconds', (p_queue).dedup_window_seconds)
$$;

-- What is wrong with one option value: NULL when nothing is. JSON null is
-- always right, it means the default.
CREATE OR REPLACE FUNCTION queen.queue_option_problem_v1(p_type TEXT, p_value JSONB)
RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_number NUMERIC;
BEGIN
    IF jsonb_typeof(p_value) = 'null' THEN
        RETURN NULL;
    END IF;
    IF p_type = 'boolean' THEN
        RETURN CASE WHEN jsonb_typeof(p_value) <> 'boolean' THEN 'true or false is allowed' END;
    END IF;
    IF p_type = 'text' THEN
        RETURN CASE WHEN jsonb_typeof(p_value) <> 'string' OR char_length(p_value #>> '{}') > 255
            THEN 'a string of at most 255 characters is allowed' END;
    END IF;
    IF jsonb_typeof(p_value) = 'number' THEN
        v_number := (p_value #>> '{}')::NUMERIC;
        IF v_number = trunc(v_number) AND v_number BETWEEN -2147483648 AND 2147483647 THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN 'an integer from -2147483648 to 2147483647 is allowed';
END
$$;

-- Writes the options of one queue, creating it when needed. Absent options take
-- their default (a full replace) unless the additive key "_merge" of p_options
-- is true and the queue exists: then they keep what is stored. JSON null is the
-- default in both modes. Unknown keys are ignored.
--
-- A value of the wrong type or range writes nothing and answers
-- {"error": text, "invalid": option}.
CREATE OR REPLACE FUNCTION queen.configure_queue_v1(
    p_queue   TEXT,
    p_options JSONB,
    p_tenant  UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_given   JSONB := COALESCE(p_options, '{}');
    v_default JSONB;
    v_opts    JSONB;
    v_queue   queen.queues;
    v_created BOOLEAN := FALSE;
    v_bad     RECORD;
BEGIN
    IF p_queue IS NULL OR char_length(p_queue) > 255 THEN
        RETURN jsonb_build_object('invalid', 'queue',
            'error', 'queue: a string of at most 255 characters is allowed');
    END IF;
    IF jsonb_typeof(v_given) <> 'object' THEN
        RETURN jsonb_build_object('invalid', 'options',
            'error', format('options: an object is allowed, got %s', left(v_given::TEXT, 100)));
    END IF;

    SELECT o.r_key, queen.queue_option_problem_v1(o.r_type, v_given -> o.r_key) AS problem
    INTO v_bad
    FROM queen.queue_option_list_v1() AS o
    WHERE v_given ? o.r_key AND queen.queue_option_problem_v1(o.r_type, v_given -> o.r_key) IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        RETURN jsonb_build_object('invalid', v_bad.r_key,
            'error', format('%s: %s, got %s', v_bad.r_key, v_bad.problem, left((v_given -> v_bad.r_key)::TEXT, 100)));
    END IF;

    -- A queue that is deleted while we wait for its row is created anew.
    LOOP
        SELECT q.* INTO v_queue
        FROM queen.queues AS q
        WHERE q.tenant_id = p_tenant AND q.name = p_queue
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO queen.queues (tenant_id, name) VALUES (p_tenant, p_queue)
        ON CONFLICT (tenant_id, name) DO NOTHING;
        v_created := FOUND;
    END LOOP;

    SELECT jsonb_object_agg(o.r_key, o.r_default),
           jsonb_object_agg(o.r_key, CASE
               WHEN jsonb_typeof(v_given -> o.r_key) = 'null' THEN o.r_default
               WHEN o.r_type = 'integer' THEN to_jsonb(least(greatest(
                   (v_given ->> o.r_key)::NUMERIC::BIGINT, o.r_clamp_min), o.r_clamp_max))
               ELSE v_given -> o.r_key
           END) FILTER (WHERE v_given ? o.r_key)
    INTO v_default, v_opts
    FROM queen.queue_option_list_v1() AS o;
    v_opts := CASE WHEN v_given -> '_merge' = 'true' AND NOT v_created
        THEN queen.queue_options_v1(v_queue) ELSE v_default END || COALESCE(v_opts, '{}');

    UPDATE queen.queues AS q
    SET namespace = v_opts ->> 'namespace',
        task = v_opts ->> 'task',
        priority = (v_opts ->> 'priority')::INT,
        lease_time = (v_opts ->> 'leaseTime')::INT,
        retry_limit = (v_opts ->> 'retryLimit')::INT,
        retry_delay = (v_opts ->> 'retryDelay')::INT,
        max_queue_size = (v_opts ->> 'maxSize')::INT,
        ttl = (v_opts ->> 'ttl')::INT,
        dead_letter_queue = (v_opts ->> 'deadLetterQueue')::BOOLEAN,
        dlq_after_max_retries = (v_opts ->> 'dlqAfterMaxRetries')::BOOLEAN,
        delayed_processing = (v_opts ->> 'delayedProcessing')::INT,
        window_buffer = (v_opts ->> 'windowBuffer')::INT,
        retention_seconds = (v_opts ->> 'retentionSeconds')::INT,
        completed_retention_seconds = (v_opts ->> 'completedRetentionSeconds')::INT,
        retention_enabled = (v_opts ->> 'retentionEnabled')::BOOLEAN,
        encryption_enabled = (v_opts ->> 'encryptionEnabled')::BOOLEAN,
        max_wait_time_seconds = (v_opts ->> 'maxWaitTimeSeconds')::INT,
        min_pop_wait_time = (v_opts ->> 'minPopWaitTime')::INT,
        dedup_window_seconds = (v_opts ->> 'dedupWindowSeconds')::INT
    WHERE q.id = v_queue.id
    RETURNING q.* INTO v_queue;

    RETURN jsonb_build_object(
        'configured', TRUE,
        'queueId', v_queue.id,
        'partitionId', NULL,
        'queue', v_queue.name,
        'namespace', v_queue.namespace,
        'task', v_queue.task,
        'storage', 'segments',
        'options', queen.queue_options_v1(v_queue) - 'namespace' - 'task');
END
$$;

-- What the broker acts on, for its caches; no row for an unknown queue.
CREATE OR REPLACE FUNCTION queen.queue_settings_v1(
    p_queue  TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS TABLE (
    r_id                 UUID,
    r_dedup_window       INT,
    r_encryption_enabled BOOLEAN,
    r_min_pop_wait       INT,
    r_window_buffer      INT,
    r_delayed_processing INT,
    r_lease_time         INT
)
LANGUAGE sql STABLE
AS $$
    SELECT q.id, greatest(q.dedup_window_seconds, 0), COALESCE(q.encryption_enabled, FALSE),
           COALESCE(q.min_pop_wait_time, 0), COALESCE(q.window_buffer, 0),
           COALESCE(q.delayed_processing, 0), COALESCE(q.lease_time, 60)
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue
$$;
