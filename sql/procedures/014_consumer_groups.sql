-- Consumer groups: what is done to their registrations, and to one queue of theirs.
-- The rest is in 010_log_admin.
--
-- Locks: those of a step of a deletion (010_log_admin). A new subscription takes the
-- registrations ascending by id, then the watermarks ascending by queue.
-- Re-applying is safe: CREATE OR REPLACE only.

-- The deletion of a group from one queue, in one transaction.
CREATE OR REPLACE FUNCTION queen.delete_consumer_group_for_queue_v1(
    p_group           TEXT,
    p_queue           TEXT,
    p_delete_metadata BOOLEAN DEFAULT TRUE,
    p_tenant          UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT s.r_answer || jsonb_build_object('queueName', p_queue)
    FROM queen.log_delete_group_step_v1(p_group, COALESCE(p_queue, ''), p_delete_metadata, p_tenant,
                                        '00000000-0000-0000-0000-000000000000', 2147483647, 0) AS s
$$;

-- Sets where a group starts in the partitions that it has not touched yet, on all
-- its registrations. It moves no cursor.
CREATE OR REPLACE FUNCTION queen.update_consumer_group_subscription_v1(
    p_group     TEXT,
    p_timestamp TIMESTAMPTZ,
    p_tenant    UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_ids  UUID[];
    v_rows INTEGER;
BEGIN
    v_ids := ARRAY(
        SELECT m.id FROM queen.consumer_groups_metadata AS m
        WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group
        ORDER BY m.id
        FOR NO KEY UPDATE);
    UPDATE queen.consumer_groups_metadata AS m SET subscription_timestamp = p_timestamp WHERE m.id = ANY (v_ids);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_ids := ARRAY(
        SELECT w.queue_id
        FROM queen.queues AS q
        JOIN queen.consumer_watermarks AS w ON w.queue_id = q.id AND w.consumer_group = p_group
        WHERE q.tenant_id = p_tenant
        ORDER BY w.queue_id
        FOR UPDATE OF w);
    DELETE FROM queen.consumer_watermarks AS w WHERE w.queue_id = ANY (v_ids) AND w.consumer_group = p_group;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'newTimestamp', queen.iso_ms_v1(p_timestamp),
        'rowsUpdated', v_rows);
END
$$;
