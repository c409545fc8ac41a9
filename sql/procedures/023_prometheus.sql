-- What the scrapes of brokers and maintainers ask of the database: the totals of the
-- installation, rates and depths of queues, lag of consumer groups, and the health of
-- PostgreSQL itself.
--
-- Series are bounded here, in one place: p_max_queues queues have series of their own,
-- the first that were created, so that which ones they are never changes while nothing
-- is deleted, and a new queue costs no old one its history. All others are added up
-- under the label other. Queues of one name of several tenants count as one.
--
-- Locks: none beyond those of a SELECT. Re-applying is safe: CREATE OR REPLACE only.
-- Nothing here needs an extension or a privilege. What a role may not see (sessions of
-- others without pg_read_all_stats, the WAL directory without pg_monitor) is missing.
--
-- Cost, by the clock (PostgreSQL 15, two cores, otherwise idle, everything cached, 100,000
-- partitions with three groups each, all queues at work in each of five minutes):
--
--                                   200 queues   5,000 queues
--   get_prometheus_metrics_v1             6 ms          51 ms
--   queue_backlogs_v1                     1 ms          10 ms
--   group_lag_page_v1 (50,000)          170 ms         230 ms
--   database_health_v1                    1 ms           1 ms

-- Every queue with the number of its name, and with what it is shown as: its name, and
-- the same number, or other and 0. Numbers are what to group by, for comparing names in
-- the order of a language takes many times as long.
CREATE OR REPLACE FUNCTION queen.queue_labels_v1(p_max_queues INTEGER)
RETURNS TABLE (r_queue UUID, r_name BIGINT, r_shown BIGINT, r_label TEXT)
LANGUAGE sql STABLE
AS $$
    SELECT q.id, n.place, CASE WHEN n.own THEN n.place ELSE 0 END, CASE WHEN n.own THEN n.name ELSE 'other' END
    FROM queen.queues AS q
    JOIN (
        SELECT a.name, a.place, a.place <= p_max_queues AND a.name <> 'other' AS own
        FROM (
            SELECT x.name::TEXT AS name, row_number() OVER (ORDER BY min(x.created_at), x.name::TEXT COLLATE "C") AS place
            FROM queen.queues AS x
            GROUP BY x.name::TEXT
        ) AS a
    ) AS n ON n.name = q.name::TEXT
$$;

-- The most recent minute of each queue, within the last five: of its name, if several
-- tenants have it. A minute in which partitions were created or deleted and nothing
-- else happened does not count.
CREATE OR REPLACE FUNCTION queen.queue_rates_v1(p_max_queues INTEGER)
RETURNS TABLE (
    r_queue         TEXT,
    r_age_seconds   DOUBLE PRECISION,
    r_push_requests BIGINT,
    r_push_messages BIGINT,
    r_pop_messages  BIGINT,
    r_pop_empty     BIGINT,
    r_ack_success   BIGINT,
    r_ack_failed    BIGINT,
    r_transactions  BIGINT,
    r_parked        DOUBLE PRECISION,
    r_avg_lag_ms    DOUBLE PRECISION,
    r_max_lag_ms    DOUBLE PRECISION
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    v_since TIMESTAMPTZ := date_trunc('minute', now()) - INTERVAL '5 minutes';
BEGIN
    RETURN QUERY
    WITH labels AS MATERIALIZED (
        SELECT * FROM queen.queue_labels_v1(p_max_queues)
    ),
    newest AS MATERIALIZED (
        SELECT m.queue_id, max(m.bucket_time) AS at
        FROM queen.queue_lag_metrics AS m
        WHERE m.bucket_time >= v_since
          AND (m.push_requests + m.pop_requests + m.ack_requests + m.transactions > 0 OR m.parked_count > 0)
        GROUP BY m.queue_id
    ),
    named AS (
        SELECT l.r_name, max(n.at) AS at
        FROM newest AS n
        JOIN labels AS l ON l.r_queue = n.queue_id
        GROUP BY l.r_name
    )
    SELECT min(l.r_label COLLATE "C"), greatest(EXTRACT(EPOCH FROM now() - max(d.at)), 0)::DOUBLE PRECISION,
           sum(m.push_requests)::BIGINT, sum(m.push_messages)::BIGINT, sum(m.pop_messages)::BIGINT, sum(m.pop_empty)::BIGINT,
           sum(m.ack_success)::BIGINT, sum(m.ack_failed)::BIGINT, sum(m.transactions)::BIGINT, sum(m.parked_count),
           COALESCE(sum(m.avg_lag_ms * m.pop_messages) / NULLIF(sum(m.pop_messages), 0), 0), COALESCE(max(m.max_lag_ms), 0)
    FROM named AS d
    JOIN labels AS l ON l.r_name = d.r_name
    CROSS JOIN LATERAL (
        SELECT x.push_requests, x.push_messages, x.pop_messages, x.pop_empty, x.ack_success, x.ack_failed, x.transactions,
               x.parked_count, x.avg_lag_ms, x.max_lag_ms
        FROM queen.queue_lag_metrics AS x
        WHERE x.queue_id = l.r_queue AND x.bucket_time = d.at
        OFFSET 0 -- by the index, row by row
    ) AS m
    GROUP BY l.r_shown;
END
$$;

-- Dead letters by queue: of every queue that has a series of its own, and of the others
-- together if there are any. They are counted while their index is small, which is up
-- to about 20,000 rows; beyond that the last refresh of queen.stats tells.
CREATE OR REPLACE FUNCTION queen.queue_dead_letters_v1(p_max_queues INTEGER)
RETURNS TABLE (r_queue TEXT, r_dead_letters BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off
SET jit = off
AS $$
BEGIN
    IF pg_relation_size('queen.idx_log_dlq_partition_failed_at') > 1024 * 1024 THEN
        RETURN QUERY
        SELECT min(l.r_label COLLATE "C"), COALESCE(sum(t.dead_letter_messages), 0)::BIGINT
        FROM queen.queue_labels_v1(p_max_queues) AS l
        LEFT JOIN queen.stats AS t ON t.queue_id = l.r_queue AND t.stat_type = 'queue' AND t.consumer_group = '__QUEUE_MODE__'
        GROUP BY l.r_shown;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT min(l.r_label COLLATE "C"), COALESCE(sum(d.letters), 0)::BIGINT
    FROM queen.queue_labels_v1(p_max_queues) AS l
    LEFT JOIN (
        SELECT p.queue_id, sum(c.letters) AS letters
        FROM (SELECT x.partition_id, count(*) AS letters FROM queen.log_dlq AS x GROUP BY x.partition_id) AS c
        CROSS JOIN LATERAL (SELECT n.queue_id FROM queen.log_partitions AS n WHERE n.id = c.partition_id OFFSET 0) AS p
        GROUP BY p.queue_id
    ) AS d ON d.queue_id = l.r_queue
    GROUP BY l.r_shown;
END
$$;

-- All that a scrape of a broker needs, in one row: the totals of the installation (NULL
-- before the first flush of anybody), the rates of queues and their dead letters. Columns
-- of the same number of elements, p_max_queues + 1 at most, are aligned.
CREATE OR REPLACE FUNCTION queen.get_prometheus_metrics_v1(p_max_queues INTEGER DEFAULT 1000)
RETURNS TABLE (
    r_cluster       JSONB,
    r_queue         TEXT[],
    r_age_seconds   DOUBLE PRECISION[],
    r_push_requests BIGINT[],
    r_push_messages BIGINT[],
    r_pop_messages  BIGINT[],
    r_pop_empty     BIGINT[],
    r_ack_success   BIGINT[],
    r_ack_failed    BIGINT[],
    r_transactions  BIGINT[],
    r_parked        DOUBLE PRECISION[],
    r_avg_lag_ms    DOUBLE PRECISION[],
    r_max_lag_ms    DOUBLE PRECISION[],
    r_dlq_queue     TEXT[],
    r_dead_letters  BIGINT[]
)
LANGUAGE sql STABLE
AS $$
    SELECT (SELECT to_jsonb(s) - 'scope' - 'updated_at' FROM queen.worker_metrics_summary AS s WHERE s.scope = 'cluster'), r.*, d.*
    FROM (
        SELECT array_agg(r.r_queue), array_agg(r.r_age_seconds), array_agg(r.r_push_requests), array_agg(r.r_push_messages),
               array_agg(r.r_pop_messages), array_agg(r.r_pop_empty), array_agg(r.r_ack_success), array_agg(r.r_ack_failed),
               array_agg(r.r_transactions), array_agg(r.r_parked), array_agg(r.r_avg_lag_ms), array_agg(r.r_max_lag_ms)
        FROM queen.queue_rates_v1(p_max_queues) AS r
    ) AS r
    CROSS JOIN (
        SELECT array_agg(d.r_queue), array_agg(d.r_dead_letters)
        FROM queen.queue_dead_letters_v1(p_max_queues) AS d
    ) AS d
$$;

-- The reconciled figures of queues, for the gauges of a maintainer.
CREATE OR REPLACE FUNCTION queen.queue_backlogs_v1(p_max_queues INTEGER)
RETURNS TABLE (
    r_queue              TEXT,
    r_partitions         BIGINT,
    r_pending            BIGINT,
    r_processing         BIGINT,
    r_retained_bytes     BIGINT,
    r_oldest_pending_sec DOUBLE PRECISION
)
LANGUAGE sql STABLE
SET enable_nestloop = off
SET jit = off
AS $$
    SELECT min(l.r_label COLLATE "C"), COALESCE(sum(t.child_count), 0)::BIGINT, COALESCE(sum(t.pending_messages), 0)::BIGINT,
           COALESCE(sum(t.processing_messages), 0)::BIGINT, COALESCE(sum(t.retained_bytes), 0)::BIGINT,
           COALESCE(max(t.max_lag_seconds) FILTER (WHERE t.pending_messages > 0), 0)
    FROM queen.queue_labels_v1(p_max_queues) AS l
    LEFT JOIN queen.stats AS t ON t.queue_id = l.r_queue AND t.stat_type = 'queue' AND t.consumer_group = '__QUEUE_MODE__'
    GROUP BY l.r_shown
$$;

-- Sums of one page of partitions, p_limit at most, ascending by id from p_first: how many
-- messages each group of each queue has before it. r_next is where the next page
-- begins, NULL on the last one.
--
-- A group that is registered for the whole queue lags also in partitions where it has
-- no cursor yet: those that were created since it last popped. One that is not, which
-- pops single partitions by name, lags where it has a cursor. A group that wants
-- only what comes after its registration counts once it has a cursor on the page: those
-- of older partitions are made at its first pop.
CREATE OR REPLACE FUNCTION queen.group_lag_page_v1(p_first UUID, p_limit INTEGER, p_max_queues INTEGER)
RETURNS TABLE (r_queue TEXT, r_group TEXT, r_lag BIGINT, r_next UUID)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_nestloop = off
SET work_mem = '32MB'
SET max_parallel_workers_per_gather = 0
SET jit = off
AS $$
DECLARE
    v_ends UUID[];
    v_last UUID;
BEGIN
    -- The last one of this page and the first one of the next.
    SELECT array_agg(e.id ORDER BY e.id) INTO v_ends
    FROM (
        SELECT p.id FROM queen.log_partitions AS p
        WHERE p.id >= p_first
        ORDER BY p.id
        OFFSET p_limit - 1 LIMIT 2
    ) AS e;
    v_last := COALESCE(v_ends[1], 'ffffffff-ffff-ffff-ffff-ffffffffffff');

    RETURN QUERY
    WITH lanes AS MATERIALIZED (
        SELECT p.id, p.queue_id, p.log_start, p.last_offset
        FROM queen.log_partitions AS p
        WHERE p.id >= p_first AND p.id <= v_last
    ),
    totals AS MATERIALIZED (
        SELECT l.queue_id, sum(greatest(l.last_offset - l.log_start + 1, 0)) AS total
        FROM lanes AS l
        GROUP BY l.queue_id
    ),
    cursors AS (
        SELECT l.queue_id, k.consumer_group COLLATE "C" AS consumer_group, sum(f.r_pending) AS pending, sum(f.r_total - f.r_pending) AS done
        FROM queen.log_consumers AS k
        JOIN lanes AS l ON l.id = k.partition_id
        CROSS JOIN LATERAL queen.log_lane_figures_v1(l.log_start, l.last_offset, k.committed) AS f
        WHERE k.partition_id >= p_first AND k.partition_id <= v_last
        GROUP BY l.queue_id, k.consumer_group COLLATE "C"
    ),
    registered AS (
        SELECT m.queue_id, m.consumer_group COLLATE "C" AS consumer_group, m.subscription_mode
        FROM queen.consumer_groups_metadata AS m
        WHERE m.queue_id IN (SELECT t.queue_id FROM totals AS t)
          AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
    )
    SELECT min(l.r_label COLLATE "C"), COALESCE(c.consumer_group, g.consumer_group) COLLATE "C" AS consumer_group,
           sum(CASE
               WHEN g.consumer_group IS NULL THEN c.pending
               WHEN c.consumer_group IS NULL AND g.subscription_mode <> 'all' THEN 0
               ELSE t.total - COALESCE(c.done, 0) END)::BIGINT, v_ends[2]
    FROM cursors AS c
    FULL JOIN registered AS g ON g.queue_id = c.queue_id AND g.consumer_group = c.consumer_group
    JOIN totals AS t ON t.queue_id = COALESCE(c.queue_id, g.queue_id)
    JOIN queen.queue_labels_v1(p_max_queues) AS l ON l.r_queue = t.queue_id
    GROUP BY l.r_shown, 2;
    -- Without a group on this page there is no row to say where the next one begins.
    IF NOT FOUND AND v_ends[2] IS NOT NULL THEN
        RETURN QUERY SELECT NULL::TEXT, NULL::TEXT, 0::BIGINT, v_ends[2];
    END IF;
END
$$;

-- The state of PostgreSQL, as far as it decides over ours: what holds back its vacuum,
-- sessions, the tables that every push and pop writes, and sizes. A snapshot that a
-- replication slot or a prepared transaction holds has no clock; the number of
-- transactions since tells of it. Autovacuum holds back nothing.
CREATE OR REPLACE FUNCTION queen.database_health_v1()
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_sessions JSONB;
    v_horizons JSONB;
    v_tables   JSONB;
    v_wal      BIGINT;
BEGIN
    SELECT jsonb_build_object(
        'oldestSnapshot', COALESCE(max(s.age) FILTER (WHERE s.backend_xmin IS NOT NULL AND s.backend_type <> 'autovacuum worker'), 0),
        'longestTransaction', COALESCE(max(s.age) FILTER (WHERE s.ours), 0),
        'longTransactions', count(*) FILTER (WHERE s.ours AND s.age > 60),
        'longestIdle', COALESCE(max(s.since) FILTER (WHERE s.ours AND s.idle), 0),
        'idleInTransaction', count(*) FILTER (WHERE s.ours AND s.idle),
        'waitingForLocks', count(*) FILTER (WHERE s.ours AND s.wait_event_type = 'Lock'),
        'connections', (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type = 'client backend'),
        'maxConnections', current_setting('max_connections')::INTEGER,
        'reservedConnections', current_setting('superuser_reserved_connections')::INTEGER)
    INTO v_sessions
    FROM (
        SELECT a.backend_xmin, a.backend_type, a.wait_event_type,
               a.backend_type = 'client backend' AND a.datname = current_database() AS ours,
               a.state LIKE 'idle in transaction%' AS idle,
               greatest(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start), 0)::DOUBLE PRECISION AS age,
               greatest(EXTRACT(EPOCH FROM clock_timestamp() - a.state_change), 0)::DOUBLE PRECISION AS since
        FROM pg_catalog.pg_stat_activity AS a
        WHERE a.pid <> pg_backend_pid()
    ) AS s;

    SELECT jsonb_build_object(
        'session', (SELECT COALESCE(max(age(a.backend_xmin)), 0) FROM pg_catalog.pg_stat_activity AS a
                    WHERE a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'),
        'slot', (SELECT COALESCE(greatest(max(age(r.xmin)), max(age(r.catalog_xmin))), 0) FROM pg_catalog.pg_replication_slots AS r),
        'prepared', (SELECT COALESCE(max(age(x.transaction)), 0) FROM pg_catalog.pg_prepared_xacts AS x))
    INTO v_horizons;

    SELECT COALESCE(jsonb_agg(jsonb_build_object('table', t.relname, 'live', t.n_live_tup, 'dead', t.n_dead_tup)), '[]')
    INTO v_tables
    FROM pg_catalog.pg_stat_user_tables AS t
    WHERE t.schemaname = 'queen'
      AND t.relname IN ('log_partitions', 'log_consumers', 'log_segments', 'log_txns', 'log_dlq', 'stats', 'queue_lag_metrics',
                        'partition_events', 'worker_metrics_summary', 'system_state', 'kv', 'log_timers');

    IF has_function_privilege('pg_catalog.pg_ls_waldir()', 'EXECUTE') THEN
        SELECT sum(w.size) INTO v_wal FROM pg_catalog.pg_ls_waldir() AS w;
    END IF;

    RETURN v_sessions || jsonb_build_object(
        'horizons', v_horizons,
        'tables', v_tables,
        'databaseBytes', pg_database_size(current_database()),
        'freezeAge', (SELECT age(d.datfrozenxid) FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()),
        'walWritten', CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') END,
        'walBytes', v_wal);
END
$$;
