-- Admin readers over the log: dead letters.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE
-- only.

-- Dead letters of one tenant, newest first. Filter keys, all optional: queue,
-- consumerGroup, partition (exact), from, to (failed_at, inclusive), limit
-- (100), offset (0), _tenant. An empty text does not filter.
CREATE OR REPLACE FUNCTION queen.get_dlq_messages_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', ''), '00000000-0000-0000-0000-000000000001')::UUID;
    v_queue     TEXT := NULLIF(p_filters ->> 'queue', '');
    v_group     TEXT := NULLIF(p_filters ->> 'consumerGroup', '');
    v_partition TEXT := NULLIF(p_filters ->> 'partition', '');
    v_since     TIMESTAMPTZ := NULLIF(p_filters ->> 'from', '')::TIMESTAMPTZ;
    v_until     TIMESTAMPTZ := NULLIF(p_filters ->> 'to', '')::TIMESTAMPTZ;
    v_limit     BIGINT := greatest(COALESCE((p_filters ->> 'limit')::BIGINT, 100), 0);
    v_offset    BIGINT := greatest(COALESCE((p_filters ->> 'offset')::BIGINT, 0), 0);
    v_messages  JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'id', m.id,
               'transactionId', m.transaction_id,
               'partitionId', m.partition_id,
               'queue', m.queue,
               'partition', m.partition,
               'consumerGroup', m.consumer_group,
               'errorMessage', m.error,
               'retryCount', m.retries,
               'data', m.payload,
               'producerSub', NULL,
               'createdAt', queen.iso_ms_v1(m.failed_at),
               'failedAt', queen.iso_ms_v1(m.failed_at)
           ) ORDER BY m.failed_at DESC, m.id DESC), '[]')
    INTO v_messages
    FROM (
        SELECT d.id, d.transaction_id, d.partition_id, q.name AS queue, p.name AS partition, d.consumer_group,
               d.error, COALESCE(d.retry_count, q.retry_limit, 3) AS retries, d.payload, d.failed_at
        FROM queen.queues AS q
        JOIN queen.log_partitions AS p ON p.queue_id = q.id
        JOIN queen.log_dlq AS d ON d.partition_id = p.id
        WHERE q.tenant_id = v_tenant
          AND (v_queue IS NULL OR q.name = v_queue)
          AND (v_partition IS NULL OR p.name = v_partition)
          AND (v_group IS NULL OR d.consumer_group = v_group)
          AND (v_since IS NULL OR d.failed_at >= v_since)
          AND (v_until IS NULL OR d.failed_at <= v_until)
        ORDER BY d.failed_at DESC, d.id DESC
        LIMIT v_limit OFFSET v_offset
    ) AS m;
    RETURN jsonb_build_object(
        'messages', v_messages,
        'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset),
        'total', jsonb_array_length(v_messages));
END
$$;
