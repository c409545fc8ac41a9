-- What PostgreSQL knows about itself.
--
-- Locks: none beyond those of a SELECT on views of statistics; the sizes of relations take
-- ACCESS SHARE on each of them for the moment. Re-applying is safe: CREATE OR REPLACE
-- only.

-- Part of a whole in per cent, NULL of nothing: what nobody has read has no ratio.
CREATE OR REPLACE FUNCTION queen.percentage_v1(p_part NUMERIC, p_whole NUMERIC)
RETURNS NUMERIC
LANGUAGE sql IMMUTABLE
AS $$
    SELECT round(100 * p_part / NULLIF(p_whole, 0), 2)
$$;

-- Caches, dead rows, vacuum, sizes and long queries of the instance. Views of statistics
-- and no extension: which relation occupies the buffers is known to one only, so that
-- bufferUsage is empty. Sizes are texts, ratios per cent, or null without any reading.
-- Queries are those that have been running for more than a second, of all databases, the
-- hundred longest; the text of what other roles run is only shown to those who may
-- see it.
CREATE OR REPLACE FUNCTION queen.get_postgres_stats_v1()
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    WITH tables AS MATERIALIZED (
        SELECT t.relid, t.relname, t.n_live_tup AS live, t.n_dead_tup AS dead, t.n_tup_upd AS updates, t.n_tup_hot_upd AS hot,
               t.autovacuum_count, queen.iso_ms_v1(t.last_vacuum) AS vacuumed, queen.iso_ms_v1(t.last_autovacuum) AS autovacuumed,
               o.heap_blks_read + COALESCE(o.toast_blks_read, 0) AS reads, o.heap_blks_hit + COALESCE(o.toast_blks_hit, 0) AS hits
        FROM pg_catalog.pg_stat_user_tables AS t
        JOIN pg_catalog.pg_statio_user_tables AS o ON o.relid = t.relid
        WHERE t.schemaname IN ('queen', 'queen_streams')
    ), indexes AS MATERIALIZED (
        SELECT i.indexrelname, i.relname, i.idx_blks_read AS reads, i.idx_blks_hit AS hits
        FROM pg_catalog.pg_statio_user_indexes AS i
        WHERE i.schemaname IN ('queen', 'queen_streams')
    )
    SELECT jsonb_build_object(
        'timestamp', queen.iso_ms_v1(now()),
        'database', current_database(),
        'databaseCache', (
            SELECT jsonb_build_object('diskReads', d.blks_read, 'cacheHits', d.blks_hit,
                'cacheHitRatio', queen.percentage_v1(d.blks_hit, d.blks_hit + d.blks_read))
            FROM pg_catalog.pg_stat_database AS d WHERE d.datname = current_database()),
        'tableCache', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('table', t.relname, 'diskReads', t.reads, 'cacheHits', t.hits,
                'cacheHitRatio', queen.percentage_v1(t.hits, t.hits + t.reads)) ORDER BY t.reads DESC, t.relname), '[]')
            FROM tables AS t),
        'indexCache', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('index', i.indexrelname, 'table', i.relname, 'diskReads', i.reads, 'cacheHits', i.hits,
                'cacheHitRatio', queen.percentage_v1(i.hits, i.hits + i.reads)) ORDER BY i.reads DESC, i.indexrelname), '[]')
            FROM (SELECT x.* FROM indexes AS x ORDER BY x.reads DESC, x.indexrelname LIMIT 20) AS i),
        'cacheSummary', jsonb_build_object(
            'tables', (SELECT jsonb_build_object('hitRatio', queen.percentage_v1(sum(t.hits), sum(t.hits + t.reads))) FROM tables AS t),
            'indexes', (SELECT jsonb_build_object('hitRatio', queen.percentage_v1(sum(i.hits), sum(i.hits + i.reads))) FROM indexes AS i)),
        'deadTuples', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('table', t.relname, 'deadTuples', t.dead,
                'deadPercentage', queen.percentage_v1(t.dead, t.dead + t.live), 'lastVacuum', t.vacuumed,
                'lastAutovacuum', t.autovacuumed) ORDER BY t.dead DESC, t.relname), '[]')
            FROM tables AS t WHERE t.dead > 0),
        'hotUpdates', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('table', t.relname, 'totalUpdates', t.updates,
                'hotUpdatePercentage', queen.percentage_v1(t.hot, t.updates)) ORDER BY t.updates DESC, t.relname), '[]')
            FROM tables AS t WHERE t.updates > 0),
        'activeQueries', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('pid', a.pid, 'state', a.state, 'query', left(a.query, 1000),
                'duration', a.seconds, 'waitEventType', a.wait_event_type, 'waitEvent', a.wait_event) ORDER BY a.seconds DESC, a.pid), '[]')
            FROM (
                SELECT x.*, round(extract(epoch FROM clock_timestamp() - x.query_start), 3) AS seconds
                FROM pg_catalog.pg_stat_activity AS x
                WHERE x.state <> 'idle' AND x.pid <> pg_backend_pid() AND x.query_start < clock_timestamp() - INTERVAL '1 second'
                  AND x.backend_type = 'client backend'
                ORDER BY x.query_start
                LIMIT 100
            ) AS a),
        'autovacuumStatus', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('table', t.relname, 'deadTuples', t.dead, 'autovacuumCount', t.autovacuum_count,
                'lastAutovacuum', t.autovacuumed) ORDER BY t.dead DESC, t.relname), '[]')
            FROM tables AS t),
        'bufferConfig', jsonb_build_object('sharedBuffersSize', (
            SELECT pg_size_pretty(s.setting::BIGINT * current_setting('block_size')::BIGINT)
            FROM pg_catalog.pg_settings AS s WHERE s.name = 'shared_buffers')),
        'bufferUsage', '[]'::JSONB,
        'tableSizes', (
            SELECT COALESCE(jsonb_agg(jsonb_build_object('table', z.relname, 'totalSize', pg_size_pretty(z.total),
                'tableSize', pg_size_pretty(z.heap), 'indexSize', pg_size_pretty(z.indexes)) ORDER BY z.total DESC, z.relname), '[]')
            FROM (
                SELECT t.relname, pg_total_relation_size(t.relid) AS total, pg_table_size(t.relid) AS heap, pg_indexes_size(t.relid) AS indexes
                FROM tables AS t
            ) AS z))
$$;
