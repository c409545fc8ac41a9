-- The quotas and the usage of tenants, as a broker reads them.
--
-- Locks: none beyond those of a SELECT; nothing is counted. Re-applying is safe: CREATE
-- OR REPLACE with an unchanged signature.

-- Every tenant that has a quota or a usage row: the granted first, then those closest
-- to one of their limits, then the largest. The limit of rows cuts off at the end.
CREATE OR REPLACE FUNCTION queen.kv_quota_refresh_v1(p_max_tenants INT DEFAULT 10000)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN (
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'tenant', t.tenant_id, 'granted', t.granted, 'enabled', t.enabled,
                   'maxRows', t.max_rows, 'maxBytes', t.max_bytes, 'maxTimers', t.max_timers, 'maxHorizonS', t.max_timer_horizon_s,
                   'maxReadsPerSec', t.max_reads_per_sec, 'maxWritesPerSec', t.max_writes_per_sec,
                   'kvRows', t.kv_rows, 'kvBytes', t.kv_bytes, 'timerRows', t.timer_rows, 'computedAtMs', t.computed_at_ms)
               ORDER BY t.place), '[]')
        FROM (
            SELECT m.*, row_number() OVER (ORDER BY m.granted DESC, m.closest DESC, m.kv_rows + m.timer_rows DESC, m.tenant_id) AS place
            FROM (
                SELECT COALESCE(q.tenant_id, u.tenant_id) AS tenant_id, q.tenant_id IS NOT NULL AS granted, COALESCE(q.enabled, TRUE) AS enabled,
                       q.max_rows, q.max_bytes, q.max_timers, q.max_timer_horizon_s, q.max_reads_per_sec, q.max_writes_per_sec,
                       COALESCE(u.kv_rows, 0) AS kv_rows, COALESCE(u.kv_bytes, 0) AS kv_bytes, COALESCE(u.timer_rows, 0) AS timer_rows,
                       COALESCE(floor(extract(EPOCH FROM u.computed_at) * 1000)::BIGINT, 0) AS computed_at_ms,
                       COALESCE(greatest(
                           CASE WHEN q.max_rows > 0 THEN u.kv_rows::FLOAT8 / q.max_rows END,
                           CASE WHEN q.max_bytes > 0 THEN u.kv_bytes::FLOAT8 / q.max_bytes END,
                           CASE WHEN q.max_timers > 0 THEN u.timer_rows::FLOAT8 / q.max_timers END), 0) AS closest
                FROM queen.kv_quota AS q
                FULL JOIN queen.kv_usage AS u ON u.tenant_id = q.tenant_id
            ) AS m
            ORDER BY place
            LIMIT greatest(COALESCE(p_max_tenants, 10000), 1)
        ) AS t
    );
END
$$;
