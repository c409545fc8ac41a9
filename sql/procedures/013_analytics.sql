-- Queue deletion; the aggregated readers of the management plane follow.
--
-- Locks, in this order: the queue row, then all its lanes ascending by id, then
-- all their cursors ascending by (partition_id, consumer_group), each in one
-- statement and FOR UPDATE because the rows are going to be removed. With the
-- queue row held no lane can be added (a new one needs its key), so the second
-- statement sees them all; with the lanes held no pusher can write.
-- Re-applying is safe: CREATE OR REPLACE only.

-- Deletes a queue and everything that belongs to it. The sidecar and the dead
-- letters have no foreign key, so they go explicitly; the cascade takes lanes,
-- segments, cursors, watermarks, subscriptions, metrics and stats. Traces and
-- the retention history stay.
--
-- A push that was waiting for one of the lanes finds it gone and raises 40001,
-- having written nothing; its next attempt creates the queue anew.
CREATE OR REPLACE FUNCTION queen.delete_queue_v1(
    p_queue  TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001'
)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_queue UUID;
    v_lanes UUID[];
BEGIN
    SELECT q.id INTO v_queue
    FROM queen.queues AS q
    WHERE q.tenant_id = p_tenant AND q.name = p_queue
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', FALSE, 'queue', p_queue, 'existed', FALSE,
            'message', 'Queue not found, nothing was deleted');
    END IF;

    SELECT COALESCE(array_agg(l.id), '{}') INTO v_lanes
    FROM (
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.queue_id = v_queue
        ORDER BY p.id
        FOR UPDATE
    ) AS l;
    PERFORM 1
    FROM queen.log_consumers AS c
    WHERE c.partition_id = ANY (v_lanes)
    ORDER BY c.partition_id, c.consumer_group COLLATE "C"
    FOR UPDATE;

    DELETE FROM queen.log_txns AS t WHERE t.partition_id = ANY (v_lanes);
    DELETE FROM queen.log_dlq AS d WHERE d.partition_id = ANY (v_lanes);
    DELETE FROM queen.queues AS q WHERE q.id = v_queue;
    RETURN jsonb_build_object('deleted', TRUE, 'queue', p_queue, 'existed', TRUE);
END
$$;
