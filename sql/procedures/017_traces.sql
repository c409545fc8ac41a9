-- Reads of traces. record_trace_v1, which writes them, is in 010_log_admin, and so
-- is what the pages have in common.
--
-- Traces are never purged and outlive the partitions they are about. By address
-- they stay readable; by name and in the list of names only those are shown whose
-- partition still says whose they are.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE
-- only.

-- A trace as every reader shows it.
CREATE OR REPLACE FUNCTION queen.trace_view_v1(t queen.message_traces)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'id', t.id, 'event_type', t.event_type, 'data', t.data, 'consumer_group', t.consumer_group,
        'worker_id', t.worker_id, 'created_at', queen.iso_ms_v1(t.created_at),
        'trace_names', COALESCE((
            SELECT jsonb_agg(n.trace_name ORDER BY n.trace_name COLLATE "C")
            FROM queen.message_trace_names AS n WHERE n.trace_id = t.id), '[]'))
$$;

-- A page of the traces of which one more than the limit was found. It ends early when
-- they exceed page_bytes_v1: their data is stored compressed, so what a trace takes
-- shows when it is unpacked, one at a time. p_places is what is shown of each besides.
CREATE OR REPLACE FUNCTION queen.trace_page_v1(p_ids UUID[], p_marks TEXT[], p_limit BIGINT, p_places JSONB[] DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET jit = off
AS $$
DECLARE
    v_trace queen.message_traces;
    v_row   JSONB;
    v_rows  JSONB[];
    v_n     INT := 0;
    v_size  BIGINT := 0;
BEGIN
    FOR v_trace IN
        SELECT t.*
        FROM unnest(p_ids[:p_limit::INT]) WITH ORDINALITY AS u (id, ord)
        JOIN queen.message_traces AS t ON t.id = u.id
        ORDER BY u.ord
    LOOP
        v_row := queen.trace_view_v1(v_trace) || COALESCE(p_places[v_n + 1], '{}');
        v_size := v_size + pg_column_size(v_row);
        EXIT WHEN v_size > queen.page_bytes_v1() AND v_n > 0;
        v_n := v_n + 1;
        v_rows := v_rows || v_row;
    END LOOP;
    IF cardinality(p_ids) > v_n THEN
        v_rows := v_rows || 'null'::JSONB; -- says that there is a next page
    END IF;
    RETURN queen.page_v1('traces', v_rows, p_marks, v_n);
END
$$;

-- The traces of one message, oldest first. A partition of another tenant answers
-- like one without traces.
CREATE OR REPLACE FUNCTION queen.get_message_traces_v1(
    p_partition_id   UUID,
    p_transaction_id TEXT,
    p_limit          INT DEFAULT 1000,
    p_after          TEXT DEFAULT NULL,
    p_tenant         UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_at    TIMESTAMPTZ := COALESCE(queen.page_mark_at_v1(p_after, 'UUID'), '-infinity');
    v_id    UUID := COALESCE(queen.page_mark_rest_v1(p_after), '00000000-0000-0000-0000-000000000000');
    v_ids   UUID[];
    v_marks TEXT[];
BEGIN
    SELECT array_agg(x.id ORDER BY x.created_at, x.id),
           array_agg(queen.page_mark_v1(x.created_at, x.id::TEXT) ORDER BY x.created_at, x.id)
    INTO v_ids, v_marks
    FROM (
        SELECT t.created_at, t.id FROM queen.message_traces AS t
        WHERE t.partition_id = p_partition_id AND t.transaction_id = p_transaction_id
          AND (t.created_at, t.id) > (v_at, v_id)
          AND NOT EXISTS (
              SELECT FROM queen.log_partitions AS p
              JOIN queen.queues AS q ON q.id = p.queue_id
              WHERE p.id = p_partition_id AND q.tenant_id <> p_tenant)
        ORDER BY t.created_at, t.id
        LIMIT p_limit + 1
    ) AS x;
    RETURN queen.trace_page_v1(v_ids, v_marks, p_limit);
END
$$;

-- The traces that carry a name, oldest first. total counts all of them.
CREATE OR REPLACE FUNCTION queen.get_traces_by_name_v1(
    p_trace_name TEXT,
    p_limit      INT DEFAULT 100,
    p_offset     INT DEFAULT 0,
    p_after      TEXT DEFAULT NULL,
    p_tenant     UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_at     TIMESTAMPTZ := COALESCE(queen.page_mark_at_v1(p_after, 'UUID'), '-infinity');
    v_id     UUID := COALESCE(queen.page_mark_rest_v1(p_after), '00000000-0000-0000-0000-000000000000');
    v_total  BIGINT;
    v_ids    UUID[];
    v_places JSONB[];
    v_marks  TEXT[];
BEGIN
    SELECT count(*) INTO v_total
    FROM queen.message_trace_names AS n
    JOIN queen.message_traces AS t ON t.id = n.trace_id
    JOIN queen.log_partitions AS p ON p.id = t.partition_id
    JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE n.trace_name = p_trace_name AND q.tenant_id = p_tenant;

    SELECT array_agg(x.id ORDER BY x.created_at, x.id),
           array_agg(jsonb_build_object(
               'transaction_id', x.transaction_id, 'partition_id', x.partition_id, 'queue_name', x.queue,
               'partition_name', x.lane, 'message_payload', NULL) ORDER BY x.created_at, x.id),
           array_agg(queen.page_mark_v1(x.created_at, x.id::TEXT) ORDER BY x.created_at, x.id)
    INTO v_ids, v_places, v_marks
    FROM (
        SELECT t.created_at, t.id, t.transaction_id, t.partition_id, q.name AS queue, p.name AS lane
        FROM queen.message_trace_names AS n
        JOIN queen.message_traces AS t ON t.id = n.trace_id
        JOIN queen.log_partitions AS p ON p.id = t.partition_id
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE n.trace_name = p_trace_name AND q.tenant_id = p_tenant AND (t.created_at, t.id) > (v_at, v_id)
        ORDER BY t.created_at, t.id
        LIMIT p_limit + 1 OFFSET p_offset
    ) AS x;
    RETURN queen.trace_page_v1(v_ids, v_marks, p_limit, v_places) || jsonb_build_object(
        'total', v_total, 'pagination', jsonb_build_object('limit', p_limit, 'offset', p_offset));
END
$$;

-- The names that traces carry, the most recently seen first. total counts all of
-- them.
CREATE OR REPLACE FUNCTION queen.get_available_trace_names_v1(
    p_limit  INT DEFAULT 50,
    p_offset INT DEFAULT 0,
    p_after  TEXT DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_at    TIMESTAMPTZ := COALESCE(queen.page_mark_at_v1(p_after, '.+'), 'infinity');
    v_name  TEXT := COALESCE(queen.page_mark_rest_v1(p_after), '');
    v_total BIGINT;
    v_rows  JSONB[];
    v_marks TEXT[];
BEGIN
    WITH names AS MATERIALIZED (
        SELECT n.trace_name COLLATE "C" AS name, count(*) AS traces, count(DISTINCT t.transaction_id) AS messages,
               max(t.created_at) AS seen
        FROM queen.message_trace_names AS n
        JOIN queen.message_traces AS t ON t.id = n.trace_id
        JOIN queen.log_partitions AS p ON p.id = t.partition_id
        JOIN queen.queues AS q ON q.id = p.queue_id
        WHERE q.tenant_id = p_tenant
        GROUP BY n.trace_name
    ), page AS (
        SELECT * FROM names AS n
        WHERE n.seen < v_at OR n.seen = v_at AND n.name > v_name
        ORDER BY n.seen DESC, n.name
        LIMIT p_limit + 1 OFFSET p_offset
    )
    SELECT (SELECT count(*) FROM names),
           array_agg(jsonb_build_object('trace_name', x.name, 'trace_count', x.traces, 'message_count', x.messages,
               'last_seen', queen.iso_ms_v1(x.seen)) ORDER BY x.seen DESC, x.name),
           array_agg(queen.page_mark_v1(x.seen, x.name) ORDER BY x.seen DESC, x.name)
    INTO v_total, v_rows, v_marks
    FROM page AS x;
    RETURN queen.page_v1('trace_names', v_rows, v_marks, p_limit) || jsonb_build_object(
        'total', v_total, 'pagination', jsonb_build_object('limit', p_limit, 'offset', p_offset));
END
$$;
