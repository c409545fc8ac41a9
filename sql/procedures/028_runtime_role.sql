-- What a role needs that runs the services and owns nothing.
--
-- Locks: none beyond those of a SELECT, and the catalogue rows that a missing grant
-- changes; with nothing missing nothing is changed. Re-applying is safe: CREATE OR
-- REPLACE with an unchanged signature.

-- Every table of the schema, with what the services do to its rows beside reading
-- them. UPDATE is also what SELECT ... FOR UPDATE needs. What cascades from a deleted
-- row needs nothing: that is done as the owner. kv_quota is written by operators.
CREATE OR REPLACE FUNCTION queen.runtime_tables_v1()
RETURNS TABLE (r_table TEXT, r_changes TEXT[])
LANGUAGE sql IMMUTABLE
AS $$
    SELECT t.name, string_to_array(t.changes, ' ')
    FROM (VALUES
        ('queen.schema_files', ''),
        ('queen.kv_quota', ''),
        ('queen.message_traces', 'INSERT'),
        ('queen.message_trace_names', 'INSERT'),
        ('queen.log_segments', 'INSERT DELETE'),
        ('queen.log_txns', 'INSERT DELETE'),
        ('queen.system_state', 'INSERT UPDATE'),
        ('queen.worker_metrics_summary', 'INSERT UPDATE'),
        ('queen.kv_usage', 'INSERT UPDATE'),
        ('queen.queues', 'INSERT UPDATE DELETE'),
        ('queen.consumer_groups_metadata', 'INSERT UPDATE DELETE'),
        ('queen.consumer_watermarks', 'INSERT UPDATE DELETE'),
        ('queen.log_partitions', 'INSERT UPDATE DELETE'),
        ('queen.log_consumers', 'INSERT UPDATE DELETE'),
        ('queen.log_dlq', 'INSERT UPDATE DELETE'),
        ('queen.log_timers', 'INSERT UPDATE DELETE'),
        ('queen.kv', 'INSERT UPDATE DELETE'),
        ('queen.stats', 'INSERT UPDATE DELETE'),
        ('queen.partition_events', 'INSERT UPDATE DELETE'),
        ('queen.queue_lag_metrics', 'INSERT UPDATE DELETE'),
        ('queen.queue_parked_replica', 'INSERT UPDATE DELETE'),
        ('queen.retention_history', 'INSERT UPDATE DELETE'),
        ('queen.system_metrics', 'INSERT UPDATE DELETE'),
        ('queen.worker_metrics', 'INSERT UPDATE DELETE'),
        ('queen_streams.queries', 'INSERT UPDATE DELETE'),
        ('queen_streams.state', 'INSERT UPDATE DELETE')) AS t (name, changes)
$$;

-- The grants that a role lacks, in whatever way it could have them: of its own, as a
-- member of another role, as the owner, through PUBLIC.
CREATE OR REPLACE FUNCTION queen.runtime_missing_v1(p_role TEXT)
RETURNS TEXT[]
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(array_agg(format('GRANT %s ON %s TO %I', m.rights, m.object, p_role) ORDER BY m.place, m.object COLLATE "C"), '{}')
    FROM (
        SELECT 1 AS place, 'CONNECT' AS rights, format('DATABASE %I', current_database()) AS object
        WHERE NOT has_database_privilege(p_role, current_database(), 'CONNECT')
        UNION ALL
        SELECT 2, 'USAGE', format('SCHEMA %I', n.nspname)
        FROM pg_catalog.pg_namespace AS n
        WHERE n.nspname IN ('queen', 'queen_streams') AND NOT has_schema_privilege(p_role, n.oid, 'USAGE')
        UNION ALL
        SELECT 3, string_agg(c.rights, ', ' ORDER BY c.place), 'TABLE ' || t.r_table
        FROM queen.runtime_tables_v1() AS t
        CROSS JOIN unnest('SELECT'::TEXT || t.r_changes) WITH ORDINALITY AS c (rights, place)
        WHERE NOT has_table_privilege(p_role, t.r_table::regclass, c.rights)
        GROUP BY t.r_table
        UNION ALL
        SELECT 4, 'USAGE', format('SEQUENCE %I.%I', n.nspname, k.relname)
        FROM pg_catalog.pg_class AS k JOIN pg_catalog.pg_namespace AS n ON n.oid = k.relnamespace
        WHERE n.nspname IN ('queen', 'queen_streams') AND k.relkind = 'S' AND NOT has_sequence_privilege(p_role, k.oid, 'USAGE')
          -- The sequence of an identity column is used as its table is.
          AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend AS d
                          WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = k.oid AND d.deptype = 'i')
        UNION ALL
        SELECT 5, 'EXECUTE', format('FUNCTION %s', p.oid::regprocedure)
        FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname IN ('queen', 'queen_streams') AND p.prorettype <> 'trigger'::regtype
          AND NOT has_function_privilege(p_role, p.oid, 'EXECUTE')
    ) AS m
$$;

-- Gives a role what it lacks, and returns the statements that did; whoever calls owns
-- the schema. They are needed again after each change of the schema.
CREATE OR REPLACE FUNCTION queen.grant_runtime_v1(p_role TEXT)
RETURNS TEXT[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_steps TEXT[];
    v_left  TEXT[];
    v_step  TEXT;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = p_role) THEN
        RAISE EXCEPTION 'role "%" does not exist', p_role USING ERRCODE = 'undefined_object';
    END IF;
    v_steps := queen.runtime_missing_v1(p_role);
    FOREACH v_step IN ARRAY v_steps LOOP
        EXECUTE v_step;
    END LOOP;
    -- Who may not grant a thing is only warned, where he holds anything of it.
    v_left := queen.runtime_missing_v1(p_role);
    IF cardinality(v_left) > 0 THEN
        RAISE EXCEPTION 'role "%" still lacks: %', p_role, array_to_string(v_left, '; ') USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN v_steps;
END
$$;
