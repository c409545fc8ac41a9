-- Key/value state: the tables, the one procedure that reads and writes them for
-- routes and transactions, and the pages of the console.
--
-- Locks: rows of queen.kv in ascending order of (namespace, key), bytes, tenant
-- fixed, and nothing behind them here. A call writes a key at most once, so the
-- order is total. It precedes every other lock of a transaction: nobody may take
-- a new row of this table while holding one of queen.log_timers or of the log.
-- Everything is validated before the first write, and no savepoint is made: an
-- error ends the call, and the transaction of a rider with it.
--
-- A refusal is decided on a row that this transaction holds, or by the statement
-- that found none. The version that a loser is told is therefore the one that beat
-- it. Almost every write wins, and then is one statement.
--
-- Measured on 2026-11-30 (PostgreSQL 15, 2 cores shared with the load, 32 clients of
-- pgbench for 6 s each, the better of several rounds; get, incr and putIfAbsent 30/60/10
-- of 100,000 keys, by the procedure against the same plain statements, prepared):
--
--   commits that wait for the disk    14,500/s plain   11,000/s    0.76 to 0.85
--   bound by the processor            18,700/s plain   11,200/s    0.54 to 0.66
--   calls of 25 operations                             25,000/s    2.2 to 2.9 times
--
-- Microseconds of the server's processor for one call, fsync off: get 52 (20 plain),
-- incr 75 (34), putIfAbsent 91 (36), a call of 25 about 1,200. What the procedure costs
-- beside its statement is the expressions of PL/pgSQL, each prepared anew in every
-- transaction: so a single operation takes few of them, and callers that meet gain by
-- sharing a call.
--
-- fillfactor 70: of increments of 100,000 keys at 19,000/s 100.0 % were HOT updates, 94.2 %
-- with 90 and 92.7 % with 100, where the table grew by a tenth (15 MB, 14 MB, 12 MB);
-- with 50 also 100 %, of 22 MB. WAL is the same, 270 bytes.
--
-- Autovacuum: at that rate a vacuum of every 5 s took 0.02 to 0.14 s of processor, and
-- one that reads all of 5,000,000 keys with both indexes (2 GB) 1.6 s, 4.9 s elapsed: once
-- a minute, the default, that is a tenth of one worker of three at the most.
--
-- Re-applying is safe: create-only tables, sequence and index, grants that already
-- hold, CREATE OR REPLACE with unchanged signatures.

-- One row per key, expired ones included until the sweeper takes them. shard is
-- fixed at 64 for ever; nobody computes it again to compare. There is no index on
-- updated_at or value: a write of a live key without expiry is a HOT update.
CREATE TABLE IF NOT EXISTS queen.kv (
    tenant_id  UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    namespace  TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    value      JSONB NOT NULL,
    version    BIGINT NOT NULL,
    expires_at TIMESTAMPTZ,
    shard      SMALLINT NOT NULL GENERATED ALWAYS AS ((hashtextextended(key, 0) & 63)::SMALLINT) STORED,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, namespace, key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

CREATE INDEX IF NOT EXISTS idx_kv_shard_expires ON queen.kv (shard, expires_at) WHERE expires_at IS NOT NULL;

-- Versions are opaque and unique, not monotonic: every session draws a thousand at
-- a time. They start low because JavaScript refuses numbers beyond 2^53.
CREATE SEQUENCE IF NOT EXISTS queen.kv_version_seq AS BIGINT START WITH 1 CACHE 1000;

-- What a tenant may use. Written by an operator alone.
CREATE TABLE IF NOT EXISTS queen.kv_quota (
    tenant_id           UUID PRIMARY KEY,
    updated_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    enabled             BOOLEAN NOT NULL DEFAULT TRUE,
    max_rows            BIGINT,
    max_bytes           BIGINT,
    max_timers          BIGINT,
    max_timer_horizon_s BIGINT,
    max_reads_per_sec   INTEGER,
    max_writes_per_sec  INTEGER
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    vacuum_truncate = off
);

-- What a tenant uses. Written by the sweeper alone, see 026.
CREATE TABLE IF NOT EXISTS queen.kv_usage (
    tenant_id    UUID PRIMARY KEY,
    computed_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    kv_rows      BIGINT NOT NULL DEFAULT 0,
    kv_bytes     BIGINT NOT NULL DEFAULT 0,
    timer_rows   BIGINT NOT NULL DEFAULT 0,
    timer_bytes  BIGINT NOT NULL DEFAULT 0,
    timer_oldest TIMESTAMPTZ
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    vacuum_truncate = off
);

GRANT SELECT, INSERT, UPDATE, DELETE ON queen.kv, queen.kv_quota, queen.kv_usage TO PUBLIC;
GRANT USAGE ON SEQUENCE queen.kv_version_seq TO PUBLIC;

-- Helpers. Each answers for every input; their parameters have no names, since
-- their identity is checked as a list of types.

-- (expiry, now): whether a row is there for a reader. A row whose expiry equals the
-- instant is dead.
CREATE OR REPLACE FUNCTION queen.kv_live_v1(TIMESTAMPTZ, TIMESTAMPTZ)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT $1 IS NULL OR ($1 > $2) IS TRUE
$$;

-- (version, expiry, now): the version of a live row, 0 of an absent or expired one.
CREATE OR REPLACE FUNCTION queen.kv_ver_v1(BIGINT, TIMESTAMPTZ, TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN $1 IS NOT NULL AND ($2 IS NULL OR ($2 > $3) IS TRUE) THEN $1 ELSE 0 END
$$;

-- (value, expiry, now): the number of a live counter, 0 of anything else.
CREATE OR REPLACE FUNCTION queen.kv_num_v1(JSONB, TIMESTAMPTZ, TIMESTAMPTZ)
RETURNS NUMERIC
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN ($2 IS NULL OR ($2 > $3) IS TRUE) AND jsonb_typeof($1) = 'number' THEN $1::NUMERIC ELSE 0 END
$$;

-- (prefix): the exclusive upper bound of the texts that begin with it, in the order
-- of bytes; NULL when there is none. U+10FFFF has no successor and is dropped, and
-- that of U+D7FF is U+E000. One expression, so that it is inlined.
CREATE OR REPLACE FUNCTION queen.kv_prefix_end_v1(TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN rtrim($1, chr(1114111)) <> '' THEN
        left(rtrim($1, chr(1114111)), -1)
            || CASE ascii(right(rtrim($1, chr(1114111)), 1))
                WHEN 55295 THEN chr(57344) ELSE chr(ascii(right(rtrim($1, chr(1114111)), 1)) + 1) END
        END
$$;

-- What is wrong with names, NULL when nothing is: the reason, a blank, what is
-- allowed. No regular expression: it costs more than the read of a key (18 us).
CREATE OR REPLACE FUNCTION queen.kv_name_fault_v1(p_namespace TEXT, p_key TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN (length(p_namespace) <= 64 AND strpos('._-', left(p_namespace, 1)) = 0
              AND translate(p_namespace, 'abcdefghijklmnopqrstuvwxyz0123456789._-', '') = '') IS NOT TRUE
            THEN 'kv_bad_namespace a namespace has 1 to 64 characters: lowercase letters, digits, and after the first also dots, underscores and hyphens'
        WHEN (p_key <> '') IS NOT TRUE THEN 'kv_bad_key a key is a text that is not empty'
        WHEN octet_length(p_key) > 512 THEN 'kv_key_too_large a key has at most 512 bytes'
    END
$$;

-- Raises a fault. Where is the operation that has it.
CREATE OR REPLACE FUNCTION queen.kv_raise_v1(p_fault TEXT, p_where TEXT)
RETURNS VOID
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE EXCEPTION '%', split_part(p_fault, ' ', 1)
        USING ERRCODE = CASE WHEN split_part(p_fault, ' ', 1) IN ('kv_key_too_large', 'kv_value_too_large') THEN '22001' ELSE '22023' END,
              DETAIL = p_where || substr(p_fault, strpos(p_fault, ' ') + 1);
END
$$;

-- (namespace, key): true, or an error that says what is wrong.
CREATE OR REPLACE FUNCTION queen.kv_check_names_v1(TEXT, TEXT)
RETURNS BOOLEAN
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_fault TEXT := queen.kv_name_fault_v1($1, $2);
BEGIN
    IF v_fault IS NOT NULL THEN
        PERFORM queen.kv_raise_v1(v_fault, '');
    END IF;
    RETURN TRUE;
END
$$;

-- Validation: the first fault of an operation, in the order that the contract
-- gives, as kv_name_fault_v1 words it. Fields that an operation does not know are
-- ignored, but not those of a tenant. A whole number may be written with a fraction
-- of zeros. All of these are inlined into one expression of kv_fault_v1: what
-- a single read or write costs beside its statement is the number of expressions,
-- since each is prepared anew in every transaction.

-- The text of a JSON string, NULL of anything else: a number is no name.
CREATE OR REPLACE FUNCTION queen.kv_text_v1(p_value JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'string' THEN p_value #>> '{}' END
$$;

-- Whether a JSON value is a whole number within bounds.
CREATE OR REPLACE FUNCTION queen.kv_whole_v1(p_value JSONB, p_low NUMERIC, p_high NUMERIC)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'number'
        THEN p_value::NUMERIC BETWEEN p_low AND p_high AND p_value::NUMERIC = trunc(p_value::NUMERIC)
        ELSE FALSE END
$$;

-- What concerns every operation.
CREATE OR REPLACE FUNCTION queen.kv_op_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN jsonb_typeof(p_op) IS DISTINCT FROM 'object' THEN 'kv_bad_request an operation is an object'
        WHEN (p_op ->> 'op' IN ('get', 'incr', 'put', 'putIfAbsent', 'delete', 'getMany', 'getPrefix')) IS NOT TRUE
            THEN 'kv_unknown_op op must be get, getMany, getPrefix, put, putIfAbsent, delete or incr'
        WHEN p_op ?| '{tenant,tenantId,_tenant}' THEN 'kv_tenant_not_an_input the tenant is that of the caller and cannot be chosen'
    END
$$;

-- What concerns the expiry of what is written.
CREATE OR REPLACE FUNCTION queen.kv_expiry_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_op ? 'ttlSeconds' AND NOT queen.kv_whole_v1(p_op -> 'ttlSeconds', 1, 100000000000)
            THEN 'kv_bad_ttl ttlSeconds must be a whole number from 1 to 100000000000'
        WHEN (p_op ? 'ttlSeconds') = COALESCE(p_op -> 'forever' = 'true', FALSE)
            THEN 'kv_expiry_not_specified exactly one of ttlSeconds and "forever": true is needed'
    END
$$;

CREATE OR REPLACE FUNCTION queen.kv_required_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN jsonb_typeof(p_op -> 'required') <> 'boolean' THEN 'kv_bad_request required must be true or false' END
$$;

CREATE OR REPLACE FUNCTION queen.kv_incr_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_op ? 'expect' THEN 'kv_bad_request incr knows no expect'
        WHEN jsonb_typeof(p_op -> 'delta') IS DISTINCT FROM 'number'
             OR jsonb_typeof(p_op -> 'min') <> 'number' OR jsonb_typeof(p_op -> 'max') <> 'number'
            THEN 'kv_bad_request delta must be a number, and so must min and max where they are given'
        WHEN octet_length(p_op ->> 'delta') > 65536 OR octet_length(p_op ->> 'min') > 65536 OR octet_length(p_op ->> 'max') > 65536
            THEN 'kv_value_too_large a number has at most 65536 digits'
    END
$$;

-- A put without its expectation.
CREATE OR REPLACE FUNCTION queen.kv_put_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN NOT p_op ? 'value' THEN 'kv_bad_request value is missing; null is a value'
        WHEN octet_length((p_op -> 'value')::TEXT) > 65536 THEN 'kv_value_too_large a value has at most 65536 bytes as JSON text'
    END
$$;

CREATE OR REPLACE FUNCTION queen.kv_expect_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_op ? 'expect' AND NOT queen.kv_whole_v1(p_op -> 'expect', 0, 'Infinity')
            THEN 'kv_bad_expect expect must be a whole number, 0 or above'
        WHEN p_op ->> 'op' = 'putIfAbsent' AND p_op -> 'expect' <> '0' THEN 'kv_bad_expect expect of putIfAbsent can only be 0'
    END
$$;

-- The length of a page: 100 rows when nothing is asked for, 1 to 1000.
CREATE OR REPLACE FUNCTION queen.kv_limit_v1(p_limit JSONB)
RETURNS INT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN jsonb_typeof(p_limit) = 'number' THEN greatest(least(p_limit::NUMERIC, 1000), 1)::INT ELSE 100 END
$$;

-- A read of many keys.
CREATE OR REPLACE FUNCTION queen.kv_many_fault_v1(p_op JSONB, p_in_wire BOOLEAN)
RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_ns    TEXT := queen.kv_text_v1(p_op -> 'ns');
    v_fault TEXT;
BEGIN
    IF p_op ->> 'op' = 'getPrefix' THEN
        RETURN CASE
            WHEN p_in_wire THEN 'kv_get_prefix_not_allowed_in_transaction getPrefix is not allowed in a transaction'
            WHEN (queen.kv_text_v1(p_op -> 'prefix') <> '') IS NOT TRUE THEN 'kv_prefix_required prefix must be a text that is not empty'
            ELSE COALESCE(queen.kv_name_fault_v1(v_ns, p_op ->> 'prefix'), CASE
                WHEN COALESCE(jsonb_typeof(p_op -> 'after'), 'null') NOT IN ('string', 'null')
                     OR COALESCE(jsonb_typeof(p_op -> 'keysOnly'), 'null') NOT IN ('boolean', 'null')
                     OR p_op -> 'limit' <> 'null' AND NOT queen.kv_whole_v1(p_op -> 'limit', '-Infinity', 'Infinity')
                    THEN 'kv_bad_request after must be a text, limit a whole number, keysOnly true or false' END)
        END;
    END IF;
    IF jsonb_typeof(p_op -> 'keys') IS DISTINCT FROM 'array' THEN
        RETURN 'kv_bad_request keys must be an array of texts';
    END IF;
    v_fault := queen.kv_name_fault_v1(v_ns, 'any');
    FOR v_i IN 0 .. jsonb_array_length(p_op -> 'keys') - 1 LOOP
        EXIT WHEN v_fault IS NOT NULL;
        v_fault := queen.kv_name_fault_v1(v_ns, queen.kv_text_v1(p_op -> 'keys' -> v_i));
    END LOOP;
    RETURN v_fault;
END
$$;

-- What concerns the names of an operation on one key.
CREATE OR REPLACE FUNCTION queen.kv_key_fault_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN jsonb_typeof(p_op -> 'ns') = 'string' AND jsonb_typeof(p_op -> 'key') = 'string'
            THEN queen.kv_name_fault_v1(p_op ->> 'ns', p_op ->> 'key')
        ELSE queen.kv_name_fault_v1(queen.kv_text_v1(p_op -> 'ns'), queen.kv_text_v1(p_op -> 'key'))
    END
$$;

-- The first fault of an operation.
CREATE OR REPLACE FUNCTION queen.kv_fault_v1(p_op JSONB, p_in_wire BOOLEAN)
RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_what TEXT := p_op ->> 'op';
BEGIN
    IF v_what = 'get' THEN
        RETURN COALESCE(queen.kv_op_fault_v1(p_op), queen.kv_key_fault_v1(p_op));
    ELSIF v_what = 'incr' THEN
        RETURN COALESCE(queen.kv_op_fault_v1(p_op), queen.kv_key_fault_v1(p_op),
            queen.kv_expiry_fault_v1(p_op), queen.kv_incr_fault_v1(p_op), queen.kv_required_fault_v1(p_op));
    ELSIF v_what = 'put' OR v_what = 'putIfAbsent' THEN
        RETURN COALESCE(queen.kv_op_fault_v1(p_op), queen.kv_key_fault_v1(p_op),
            queen.kv_expiry_fault_v1(p_op), queen.kv_put_fault_v1(p_op), queen.kv_expect_fault_v1(p_op), queen.kv_required_fault_v1(p_op));
    ELSIF v_what = 'delete' THEN
        RETURN COALESCE(queen.kv_op_fault_v1(p_op), queen.kv_key_fault_v1(p_op),
            queen.kv_expect_fault_v1(p_op), queen.kv_required_fault_v1(p_op));
    ELSIF v_what = 'getMany' OR v_what = 'getPrefix' THEN
        RETURN COALESCE(queen.kv_op_fault_v1(p_op), queen.kv_many_fault_v1(p_op, p_in_wire));
    END IF;
    RETURN queen.kv_op_fault_v1(p_op);
END
$$;

-- How many keys an operation counts for.
CREATE OR REPLACE FUNCTION queen.kv_cost_v1(p_op JSONB)
RETURNS INT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE p_op ->> 'op'
        WHEN 'getMany' THEN CASE WHEN jsonb_typeof(p_op -> 'keys') = 'array' THEN jsonb_array_length(p_op -> 'keys') END
        WHEN 'getPrefix' THEN queen.kv_limit_v1(p_op -> 'limit')
        ELSE 1 END
$$;

-- The name of the one key of an operation, for comparisons: the separator lies below
-- every character of a namespace, so that names sort like the pairs. NULL for a read of
-- many keys.
CREATE OR REPLACE FUNCTION queen.kv_name_v1(p_op JSONB)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_op ->> 'op' NOT IN ('getMany', 'getPrefix') THEN (p_op ->> 'ns') || chr(1) || (p_op ->> 'key') END
$$;

-- Raises the first fault of a call that is known to have one.
CREATE OR REPLACE FUNCTION queen.kv_raise_first_v1(p_ops JSONB, p_in_wire BOOLEAN)
RETURNS VOID
LANGUAGE plpgsql
AS $$
DECLARE
    v_max     INT := CASE WHEN p_in_wire THEN 256 ELSE 4096 END;
    v_keys    INT := 0;
    v_op      JSONB;
    v_fault   TEXT;
    v_written TEXT[] := '{}';
BEGIN
    FOR v_i IN 0 .. jsonb_array_length(p_ops) - 1 LOOP
        v_op := p_ops -> v_i;
        v_fault := queen.kv_fault_v1(v_op, p_in_wire);
        v_keys := v_keys + queen.kv_cost_v1(v_op);
        IF v_fault IS NOT NULL THEN
            NULL;
        ELSIF v_op ->> 'op' IN ('put', 'putIfAbsent', 'delete', 'incr') AND queen.kv_name_v1(v_op) = ANY (v_written) THEN
            v_fault := 'kv_duplicate_key_in_call an earlier one writes the same key';
        ELSIF v_keys > v_max THEN
            v_fault := format('kv_too_many_keys %s keys so far, and at most %s', v_keys, v_max);
        ELSIF v_op ->> 'op' IN ('put', 'putIfAbsent', 'delete', 'incr') THEN
            v_written := v_written || queen.kv_name_v1(v_op);
        END IF;
        IF v_fault IS NOT NULL THEN
            PERFORM queen.kv_raise_v1(v_fault, format('operation %s: ', v_i));
        END IF;
    END LOOP;
END
$$;

-- The operations. Each answers its element of the result.

-- The element of a write that was not applied; the end of the call where the write
-- was required. JSON and not JSONB, so that what a cut may cost comes last.
CREATE OR REPLACE FUNCTION queen.kv_refuse_v1(p_op JSONB, p_index INT, p_reason TEXT, p_value JSONB, p_version BIGINT)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_op -> 'required' = 'true' THEN
        RAISE EXCEPTION 'kv_precondition_failed' USING ERRCODE = '23514', DETAIL = left(json_build_object(
            'index', p_index, 'op', p_op -> 'op', 'ns', p_op -> 'ns', 'key', p_op -> 'key',
            'reason', p_reason, 'version', p_version, 'value', p_value)::TEXT, 4096);
    END IF;
    RETURN jsonb_build_object('index', p_index, 'op', p_op -> 'op', 'applied', FALSE, 'reason', p_reason,
        'key', p_op -> 'key', 'value', p_value, 'version', p_version);
END
$$;

-- The element of a write that was.
CREATE OR REPLACE FUNCTION queen.kv_applied_v1(p_op JSONB, p_index INT, p_value JSONB, p_version BIGINT)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('index', p_index, 'op', p_op -> 'op', 'applied', TRUE,
        'key', p_op -> 'key', 'value', p_value, 'version', p_version)
$$;

-- When a row that is written at p_now expires.
CREATE OR REPLACE FUNCTION queen.kv_expiry_v1(p_op JSONB, p_now TIMESTAMPTZ)
RETURNS TIMESTAMPTZ
LANGUAGE sql STABLE
AS $$
    SELECT p_now + make_interval(secs => (p_op ->> 'ttlSeconds')::FLOAT8)
$$;

-- The version that a write expects, NULL when it expects none. What lies beyond the
-- type is no version of any row.
CREATE OR REPLACE FUNCTION queen.kv_expect_v1(p_op JSONB)
RETURNS BIGINT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_op ? 'expect' THEN least((p_op ->> 'expect')::NUMERIC, 9223372036854775807)::BIGINT END
$$;

CREATE OR REPLACE FUNCTION queen.kv_get_v1(p_tenant UUID, p_op JSONB, p_index INT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_out JSONB;
BEGIN
    SELECT jsonb_build_object('index', p_index, 'op', 'get', 'found', TRUE, 'key', p_op -> 'key', 'value', k.value,
        'version', k.version, 'expiresAt', k.expires_at, 'updatedAt', k.updated_at)
    INTO v_out
    FROM queen.kv AS k
    WHERE k.tenant_id = p_tenant AND k.namespace = p_op ->> 'ns' AND k.key = p_op ->> 'key'
      AND queen.kv_live_v1(k.expires_at, p_now);
    IF v_out IS NULL THEN
        RETURN jsonb_build_object('index', p_index, 'op', 'get', 'found', FALSE, 'key', p_op -> 'key');
    END IF;
    RETURN v_out;
END
$$;

-- put and putIfAbsent, which is put that expects 0.
CREATE OR REPLACE FUNCTION queen.kv_put_v1(p_tenant UUID, p_op JSONB, p_index INT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_out     JSONB;
    v_value   JSONB;
    v_version BIGINT;
BEGIN
    LOOP
        IF p_op -> 'expect' > '0' THEN
            UPDATE queen.kv AS k
            SET value = p_op -> 'value', version = nextval('queen.kv_version_seq'),
                expires_at = queen.kv_expiry_v1(p_op, p_now), updated_at = p_now
            WHERE k.tenant_id = p_tenant AND k.namespace = p_op ->> 'ns' AND k.key = p_op ->> 'key'
              AND k.version = queen.kv_expect_v1(p_op) AND queen.kv_live_v1(k.expires_at, p_now)
            RETURNING queen.kv_applied_v1(p_op, p_index, k.value, k.version) INTO v_out;
        ELSE
            -- A live row that must not be there stays locked.
            INSERT INTO queen.kv AS k (tenant_id, namespace, key, value, version, expires_at, created_at, updated_at)
            VALUES (p_tenant, p_op ->> 'ns', p_op ->> 'key', p_op -> 'value', nextval('queen.kv_version_seq'),
                queen.kv_expiry_v1(p_op, p_now), p_now, p_now)
            ON CONFLICT (tenant_id, namespace, key) DO UPDATE
            SET value = EXCLUDED.value, version = EXCLUDED.version, expires_at = EXCLUDED.expires_at, updated_at = p_now,
                created_at = CASE WHEN queen.kv_live_v1(k.expires_at, p_now) THEN k.created_at ELSE p_now END
            WHERE NOT queen.kv_live_v1(k.expires_at, p_now) OR p_op ->> 'op' = 'put' AND NOT p_op ? 'expect'
            RETURNING queen.kv_applied_v1(p_op, p_index, k.value, k.version) INTO v_out;
        END IF;
        IF v_out IS NOT NULL THEN
            RETURN v_out;
        END IF;

        -- Lost, or changed since that statement began: the row, now held, decides.
        SELECT k.value, k.version INTO v_value, v_version
        FROM queen.kv AS k
        WHERE k.tenant_id = p_tenant AND k.namespace = p_op ->> 'ns' AND k.key = p_op ->> 'key'
          AND queen.kv_live_v1(k.expires_at, p_now)
        FOR NO KEY UPDATE;
        IF NOT FOUND AND p_op -> 'expect' > '0' THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'absent', NULL, 0);
        ELSIF FOUND AND p_op -> 'expect' > '0' AND v_version <> queen.kv_expect_v1(p_op) THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'version', v_value, v_version);
        ELSIF FOUND AND (p_op -> 'expect' > '0') IS NOT TRUE THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'exists', v_value, v_version);
        END IF;
    END LOOP;
END
$$;

-- Whether a number lies within bounds, of which either may be missing.
CREATE OR REPLACE FUNCTION queen.kv_within_v1(p_number NUMERIC, p_min NUMERIC, p_max NUMERIC)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT (p_number < p_min) IS NOT TRUE AND (p_number > p_max) IS NOT TRUE
$$;

-- An expired row is removed and still counts as absent.
CREATE OR REPLACE FUNCTION queen.kv_delete_v1(p_tenant UUID, p_op JSONB, p_index INT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_ns     TEXT := p_op ->> 'ns';
    v_key    TEXT := p_op ->> 'key';
    v_expect BIGINT := queen.kv_expect_v1(p_op);
    r        RECORD;
BEGIN
    LOOP
        DELETE FROM queen.kv AS k
        WHERE k.tenant_id = p_tenant AND k.namespace = v_ns AND k.key = v_key
          AND (v_expect IS NULL OR k.version = v_expect OR NOT queen.kv_live_v1(k.expires_at, p_now))
        RETURNING k.value, k.version, queen.kv_live_v1(k.expires_at, p_now) AS live INTO r;
        IF FOUND AND r.live THEN
            RETURN queen.kv_applied_v1(p_op, p_index, r.value, r.version);
        END IF;

        SELECT k.value, k.version INTO r
        FROM queen.kv AS k
        WHERE k.tenant_id = p_tenant AND k.namespace = v_ns AND k.key = v_key AND queen.kv_live_v1(k.expires_at, p_now)
        FOR UPDATE;
        IF NOT FOUND AND v_expect = 0 THEN
            RETURN queen.kv_applied_v1(p_op, p_index, NULL, 0);
        ELSIF NOT FOUND THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'absent', NULL, 0);
        ELSIF r.version <> v_expect THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, CASE WHEN v_expect = 0 THEN 'exists' ELSE 'version' END, r.value, r.version);
        END IF;
    END LOOP;
END
$$;

-- Whether a counter that adds to p_number stays within the bounds of its operation.
-- Without bounds nothing is looked at.
CREATE OR REPLACE FUNCTION queen.kv_bounded_v1(p_op JSONB, p_number NUMERIC)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN NOT p_op ?| '{min,max}' THEN TRUE
        WHEN jsonb_typeof(p_op -> 'delta') = 'number' AND COALESCE(jsonb_typeof(p_op -> 'min'), 'number') = 'number'
             AND COALESCE(jsonb_typeof(p_op -> 'max'), 'number') = 'number'
            THEN queen.kv_within_v1(p_number + (p_op -> 'delta')::NUMERIC, (p_op -> 'min')::NUMERIC, (p_op -> 'max')::NUMERIC)
        END
$$;

-- Adds to a counter; an absent one is 0. The expiry of a live one stays. Arithmetic
-- is exact and never saturates: what would leave [min, max] is refused, and a delta
-- that is out of bounds itself creates nothing.
--
-- Most counters exist: the update alone costs half of what the insert does, which
-- computes the shard before it meets the row.
CREATE OR REPLACE FUNCTION queen.kv_incr_v1(p_tenant UUID, p_op JSONB, p_index INT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_out     JSONB;
    v_value   JSONB;
    v_version BIGINT;
BEGIN
    LOOP
        UPDATE queen.kv AS k
        SET value = to_jsonb(trim_scale(k.value::NUMERIC + (p_op -> 'delta')::NUMERIC)),
            version = nextval('queen.kv_version_seq'), updated_at = p_now
        WHERE k.tenant_id = p_tenant AND k.namespace = p_op ->> 'ns' AND k.key = p_op ->> 'key'
          AND queen.kv_live_v1(k.expires_at, p_now)
          AND CASE WHEN jsonb_typeof(k.value) = 'number' THEN queen.kv_bounded_v1(p_op, k.value::NUMERIC) ELSE FALSE END
        RETURNING queen.kv_applied_v1(p_op, p_index, k.value, k.version) INTO v_out;
        IF v_out IS NULL AND queen.kv_bounded_v1(p_op, 0) THEN
            INSERT INTO queen.kv AS k (tenant_id, namespace, key, value, version, expires_at, created_at, updated_at)
            VALUES (p_tenant, p_op ->> 'ns', p_op ->> 'key', to_jsonb(trim_scale((p_op -> 'delta')::NUMERIC)), nextval('queen.kv_version_seq'),
                queen.kv_expiry_v1(p_op, p_now), p_now, p_now)
            ON CONFLICT (tenant_id, namespace, key) DO UPDATE
            SET value = EXCLUDED.value, version = EXCLUDED.version, expires_at = EXCLUDED.expires_at,
                created_at = p_now, updated_at = p_now
            WHERE NOT queen.kv_live_v1(k.expires_at, p_now)
            RETURNING queen.kv_applied_v1(p_op, p_index, k.value, k.version) INTO v_out;
        END IF;
        IF octet_length(v_out ->> 'value') <= 65536 THEN
            RETURN v_out;
        ELSIF v_out IS NOT NULL THEN
            PERFORM queen.kv_raise_v1('kv_value_too_large a number has at most 65536 digits', format('operation %s: ', p_index));
        END IF;

        SELECT k.value, k.version INTO v_value, v_version
        FROM queen.kv AS k
        WHERE k.tenant_id = p_tenant AND k.namespace = p_op ->> 'ns' AND k.key = p_op ->> 'key'
          AND queen.kv_live_v1(k.expires_at, p_now)
        FOR NO KEY UPDATE;
        IF FOUND AND jsonb_typeof(v_value) <> 'number' THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'type', '0', v_version);
        ELSIF FOUND AND NOT queen.kv_bounded_v1(p_op, queen.kv_num_v1(v_value, NULL, NULL)) THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'limit', to_jsonb(trim_scale(v_value::NUMERIC)), v_version);
        ELSIF NOT FOUND AND NOT queen.kv_bounded_v1(p_op, 0) THEN
            RETURN queen.kv_refuse_v1(p_op, p_index, 'limit', '0', 0);
        END IF;
    END LOOP;
END
$$;

-- Rows by name, ascending, repeated where they are asked for repeatedly. Behind the
-- row that spends the last of p_budget nothing more is read; what was not looked at
-- is neither a row nor missing.
CREATE OR REPLACE FUNCTION queen.kv_get_many_v1(
    p_tenant UUID,
    p_op     JSONB,
    p_index  INT,
    p_now    TIMESTAMPTZ,
    p_budget BIGINT,
    OUT result JSONB,
    OUT spent  BIGINT
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_rows    JSONB[] := '{}';
    v_missing BIGINT[] := '{}';
    v_cut     BOOLEAN := FALSE;
    r         RECORD;
BEGIN
    spent := 0;
    FOR r IN
        SELECT u.ord, k.key, k.value, k.version, k.expires_at, k.updated_at
        FROM (
            SELECT e.key, e.ord
            FROM jsonb_array_elements_text(p_op -> 'keys') WITH ORDINALITY AS e (key, ord)
            ORDER BY e.key COLLATE "C", e.ord
        ) AS u
        LEFT JOIN LATERAL (
            SELECT x.* FROM queen.kv AS x
            WHERE x.tenant_id = p_tenant AND x.namespace = p_op ->> 'ns' AND x.key = u.key
              AND queen.kv_live_v1(x.expires_at, p_now)
            OFFSET 0
        ) AS k ON TRUE
    LOOP
        v_cut := spent >= p_budget;
        EXIT WHEN v_cut;
        IF r.key IS NULL THEN
            v_missing := v_missing || r.ord;
            CONTINUE;
        END IF;
        spent := spent + octet_length(r.value::TEXT);
        v_rows := v_rows || jsonb_build_object('key', r.key, 'value', r.value, 'version', r.version,
            'expiresAt', r.expires_at, 'updatedAt', r.updated_at);
    END LOOP;
    result := jsonb_build_object('index', p_index, 'op', 'getMany', 'rows', to_jsonb(v_rows), 'truncated', v_cut,
        'missing', (SELECT COALESCE(jsonb_agg(p_op -> 'keys' -> (m.ord - 1)::INT ORDER BY m.ord), '[]')
                    FROM unnest(v_missing) AS m (ord)));
END
$$;

-- One page of a namespace in the order of keys. A last row without a key says that
-- there is more: the limit was reached, or p_budget bytes of values were read.
CREATE OR REPLACE FUNCTION queen.kv_page_v1(
    p_tenant    UUID,
    p_namespace TEXT,
    p_prefix    TEXT,
    p_after     TEXT,
    p_limit     INT,
    p_keys_only BOOLEAN,
    p_expired   BOOLEAN,
    p_now       TIMESTAMPTZ,
    p_budget    BIGINT
)
RETURNS TABLE (r_key TEXT, r_value JSONB, r_version BIGINT, r_expires_at TIMESTAMPTZ, r_updated_at TIMESTAMPTZ, r_bytes INT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off
AS $$
DECLARE
    -- Without a bound of its own, one above every key of 512 bytes: the scan needs one.
    v_end   TEXT := COALESCE(queen.kv_prefix_end_v1(p_prefix), repeat(chr(1114111), 129));
    v_rows  INT := 0;
    v_bytes BIGINT := 0;
    k       queen.kv%ROWTYPE;
BEGIN
    FOR k IN
        SELECT x.*
        FROM queen.kv AS x
        WHERE x.tenant_id = p_tenant AND x.namespace = p_namespace
          AND x.key >= p_prefix AND x.key > COALESCE(p_after, '') AND x.key < v_end
          AND starts_with(x.key, p_prefix)
          AND (p_expired OR queen.kv_live_v1(x.expires_at, p_now))
        ORDER BY x.key
        LIMIT p_limit + 1
    LOOP
        IF v_rows = p_limit OR v_bytes >= p_budget THEN
            r_key := NULL;
            RETURN NEXT;
            RETURN;
        END IF;
        r_key := k.key;
        r_value := CASE WHEN NOT p_keys_only THEN k.value END;
        r_bytes := CASE WHEN p_keys_only THEN 0 ELSE octet_length(k.value::TEXT) END;
        r_version := k.version;
        r_expires_at := k.expires_at;
        r_updated_at := k.updated_at;
        v_rows := v_rows + 1;
        v_bytes := v_bytes + r_bytes;
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION queen.kv_get_prefix_v1(
    p_tenant UUID,
    p_op     JSONB,
    p_index  INT,
    p_now    TIMESTAMPTZ,
    p_budget BIGINT,
    OUT result JSONB,
    OUT spent  BIGINT
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_keys_only BOOLEAN := COALESCE(p_op -> 'keysOnly' = 'true', FALSE);
BEGIN
    SELECT jsonb_build_object('index', p_index, 'op', 'getPrefix', 'truncated', m.more,
               'nextAfter', CASE WHEN m.more THEN m.last END, 'rows', m.rows), m.bytes
    INTO result, spent
    FROM (
        SELECT COALESCE(bool_or(g.r_key IS NULL), FALSE) AS more, max(g.r_key COLLATE "C") AS last,
               COALESCE(sum(g.r_bytes) FILTER (WHERE g.r_key IS NOT NULL), 0) AS bytes,
               COALESCE(jsonb_agg(
                   CASE WHEN v_keys_only THEN '{}' ELSE jsonb_build_object('value', g.r_value) END
                   || jsonb_build_object('key', g.r_key, 'version', g.r_version, 'expiresAt', g.r_expires_at, 'updatedAt', g.r_updated_at)
               ) FILTER (WHERE g.r_key IS NOT NULL), '[]') AS rows
        FROM queen.kv_page_v1(p_tenant, p_op ->> 'ns', p_op ->> 'prefix', p_op ->> 'after', queen.kv_limit_v1(p_op -> 'limit'),
            v_keys_only, FALSE, p_now, p_budget) AS g
    ) AS m;
END
$$;

-- Reads of single keys by one statement: the operations at the given positions, in
-- that order.
CREATE OR REPLACE FUNCTION queen.kv_gets_v1(p_tenant UUID, p_ops JSONB, p_at INT[], p_now TIMESTAMPTZ)
RETURNS JSONB[]
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN k.version IS NULL
            THEN jsonb_build_object('index', u.at - 1, 'op', 'get', 'found', FALSE, 'key', o.op -> 'key')
            ELSE jsonb_build_object('index', u.at - 1, 'op', 'get', 'found', TRUE, 'key', o.op -> 'key', 'value', k.value,
                'version', k.version, 'expiresAt', k.expires_at, 'updatedAt', k.updated_at) END
        FROM unnest(p_at) WITH ORDINALITY AS u (at, ord)
        CROSS JOIN LATERAL (SELECT p_ops -> (u.at - 1) AS op OFFSET 0) AS o
        LEFT JOIN LATERAL (
            SELECT x.value, x.version, x.expires_at, x.updated_at
            FROM queen.kv AS x
            WHERE x.tenant_id = p_tenant AND x.namespace = o.op ->> 'ns' AND x.key = o.op ->> 'key'
              AND queen.kv_live_v1(x.expires_at, p_now)
            OFFSET 0
        ) AS k ON TRUE
        ORDER BY u.ord
    );
END
$$;

-- Whether a write creates its key where that is not live: it may then go with others
-- into one statement. FALSE for what is malformed.
CREATE OR REPLACE FUNCTION queen.kv_creates_v1(p_op JSONB)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE p_op ->> 'op'
        WHEN 'putIfAbsent' THEN TRUE
        WHEN 'put' THEN NOT p_op ? 'expect' OR p_op -> 'expect' = '0'
        WHEN 'incr' THEN queen.kv_bounded_v1(p_op, 0) IS TRUE
        ELSE FALSE END
$$;

-- Writes for which kv_creates_v1 holds, by one statement: the operations at the given
-- positions, in the order of their keys. The result is aligned with p_at; NULL is a
-- write that was not applied, and whose row is held. p_writes are the names of all
-- writes of the call by position: the operation of a row that is there is found by it.
CREATE OR REPLACE FUNCTION queen.kv_upserts_v1(p_tenant UUID, p_ops JSONB, p_whats TEXT[], p_writes TEXT[], p_at INT[], p_now TIMESTAMPTZ)
RETURNS JSONB[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_out  JSONB[];
    v_long BOOLEAN;
BEGIN
    WITH written AS (
        INSERT INTO queen.kv AS k (tenant_id, namespace, key, value, version, expires_at, created_at, updated_at)
        SELECT p_tenant, o.op ->> 'ns', o.op ->> 'key',
               CASE WHEN p_whats[u.at] = 'incr' THEN to_jsonb(trim_scale((o.op -> 'delta')::NUMERIC)) ELSE o.op -> 'value' END,
               nextval('queen.kv_version_seq'), queen.kv_expiry_v1(o.op, p_now), p_now, p_now
        FROM unnest(p_at) WITH ORDINALITY AS u (at, ord)
        CROSS JOIN LATERAL (SELECT p_ops -> (u.at - 1) AS op OFFSET 0) AS o
        ORDER BY u.ord
        ON CONFLICT (tenant_id, namespace, key) DO UPDATE
        SET (value, expires_at, created_at) = (
                SELECT CASE WHEN l.live AND l.incr THEN to_jsonb(trim_scale(k.value::NUMERIC + EXCLUDED.value::NUMERIC)) ELSE EXCLUDED.value END,
                       CASE WHEN l.live AND l.incr THEN k.expires_at ELSE EXCLUDED.expires_at END,
                       CASE WHEN l.live THEN k.created_at ELSE p_now END
                FROM (SELECT queen.kv_live_v1(k.expires_at, p_now) AS live,
                             p_whats[array_position(p_writes, k.namespace || chr(1) || k.key)] = 'incr' AS incr OFFSET 0) AS l),
            version = EXCLUDED.version, updated_at = p_now
        WHERE NOT queen.kv_live_v1(k.expires_at, p_now)
           OR (SELECT CASE o.op ->> 'op'
                   WHEN 'incr' THEN CASE WHEN jsonb_typeof(k.value) = 'number' THEN queen.kv_bounded_v1(o.op, k.value::NUMERIC) END
                   WHEN 'put' THEN NOT o.op ? 'expect' END
               FROM (SELECT p_ops -> (array_position(p_writes, k.namespace || chr(1) || k.key) - 1) AS op OFFSET 0) AS o)
        RETURNING array_position(p_writes, k.namespace || chr(1) || k.key) AS at, k.value, k.version
    )
    SELECT array_agg(CASE WHEN w.at IS NOT NULL THEN queen.kv_applied_v1(o.op, w.at - 1, w.value, w.version) END ORDER BY u.ord),
           bool_or(p_whats[u.at] = 'incr' AND octet_length(w.value::TEXT) > 65536)
    INTO v_out, v_long
    FROM unnest(p_at) WITH ORDINALITY AS u (at, ord)
    CROSS JOIN LATERAL (SELECT p_ops -> (u.at - 1) AS op OFFSET 0) AS o
    LEFT JOIN written AS w ON w.at = u.at;
    IF v_long THEN
        PERFORM queen.kv_raise_v1('kv_value_too_large a number has at most 65536 digits', '');
    END IF;
    RETURN v_out;
END
$$;

-- One write, by the statements of its own.
CREATE OR REPLACE FUNCTION queen.kv_write_v1(p_tenant UUID, p_op JSONB, p_index INT, p_now TIMESTAMPTZ)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_op ->> 'op' = 'incr' THEN
        RETURN queen.kv_incr_v1(p_tenant, p_op, p_index, p_now);
    ELSIF p_op ->> 'op' = 'delete' THEN
        RETURN queen.kv_delete_v1(p_tenant, p_op, p_index, p_now);
    END IF;
    RETURN queen.kv_put_v1(p_tenant, p_op, p_index, p_now);
END
$$;

-- Several operations, or reads of many keys: see kv_apply_v1. Writes are carried out in
-- the order of their keys, neighbours by one statement where that can be. Keys that are
-- only read are read by one statement too; keys that are also written, at their turn.
CREATE OR REPLACE FUNCTION queen.kv_batch_v1(p_ops JSONB, p_tenant UUID, p_now TIMESTAMPTZ, p_in_wire BOOLEAN)
RETURNS JSONB
LANGUAGE plpgsql
AS $$
DECLARE
    v_max_ops INT := CASE WHEN p_in_wire THEN 64 ELSE 256 END;
    v_n       INT;
    v_fine    BOOLEAN;
    v_whats   TEXT[];
    v_names   TEXT[];    -- of single keys, by position
    v_writes  TEXT[];    -- the same of writes alone
    v_creates BOOLEAN[];
    v_out     JSONB[];
BEGIN
    IF jsonb_typeof(p_ops) IS DISTINCT FROM 'array' THEN
        PERFORM queen.kv_raise_v1('kv_bad_request the operations must be an array', '');
    ELSIF p_tenant IS NULL THEN
        PERFORM queen.kv_raise_v1('kv_bad_request a tenant is needed', '');
    END IF;
    v_n := jsonb_array_length(p_ops);
    IF v_n > v_max_ops THEN
        PERFORM queen.kv_raise_v1(format('kv_too_many_ops %s operations, and at most %s', v_n, v_max_ops), '');
    ELSIF v_n = 0 THEN
        RETURN '[]';
    END IF;

    SELECT array_agg(o.what), array_agg(o.name), array_agg(CASE WHEN o.writes THEN o.name END), array_agg(o.creates),
           bool_and(o.fault IS NULL) AND sum(o.cost) <= CASE WHEN p_in_wire THEN 256 ELSE 4096 END
               AND count(DISTINCT o.name) FILTER (WHERE o.writes) = count(*) FILTER (WHERE o.writes)
    INTO v_whats, v_names, v_writes, v_creates, v_fine
    FROM (
        SELECT e.op ->> 'op' AS what, queen.kv_name_v1(e.op) AS name, e.op ->> 'op' IN ('put', 'putIfAbsent', 'delete', 'incr') AS writes,
               queen.kv_creates_v1(e.op) AS creates, queen.kv_fault_v1(e.op, p_in_wire) AS fault, queen.kv_cost_v1(e.op) AS cost
        FROM jsonb_array_elements(p_ops) AS e (op)
        OFFSET 0
    ) AS o;
    IF NOT v_fine THEN
        PERFORM queen.kv_raise_first_v1(p_ops, p_in_wire);
    END IF;

    v_out := queen.kv_singles_v1(p_tenant, p_ops, v_whats, v_names, v_writes, v_creates, p_now);
    IF 'getMany' = ANY (v_whats) OR 'getPrefix' = ANY (v_whats) THEN
        v_out := queen.kv_manies_v1(p_tenant, p_ops, v_whats, v_out, p_now);
    END IF;
    IF cardinality(v_out) <> v_n OR array_position(v_out, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'kv_result_misaligned' USING ERRCODE = 'internal_error', DETAIL = format('%s operations, %s results', v_n, cardinality(v_out));
    END IF;
    RETURN to_jsonb(v_out);
END
$$;

-- The operations on single keys of a call, in the order of their keys; the others stay
-- NULL in the result.
CREATE OR REPLACE FUNCTION queen.kv_singles_v1(
    p_tenant  UUID,
    p_ops     JSONB,
    p_whats   TEXT[],
    p_names   TEXT[],
    p_writes  TEXT[],
    p_creates BOOLEAN[],
    p_now     TIMESTAMPTZ
)
RETURNS JSONB[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_out   JSONB[] := array_fill(NULL::JSONB, ARRAY[cardinality(p_whats)]);
    v_reads INT[];
    v_order INT[];
    v_run   INT[] := '{}'; -- neighbours that go into one statement
    v_part  JSONB[];
    v_i     INT;
BEGIN
    SELECT array_agg(o.ord) FILTER (WHERE o.what = 'get' AND NOT o.written), array_agg(o.ord) FILTER (WHERE o.written)
    INTO v_reads, v_order
    FROM (
        SELECT u.what, u.ord::INT AS ord, (u.name = ANY (p_writes)) IS TRUE AS written
        FROM unnest(p_whats, p_names) WITH ORDINALITY AS u (what, name, ord)
        ORDER BY u.name COLLATE "C", u.ord
    ) AS o;
    IF v_reads IS NOT NULL THEN
        v_part := queen.kv_gets_v1(p_tenant, p_ops, v_reads, p_now);
        FOR v_k IN 1 .. cardinality(v_reads) LOOP
            v_out[v_reads[v_k]] := v_part[v_k];
        END LOOP;
    END IF;

    FOR v_k IN 1 .. COALESCE(cardinality(v_order) + 1, 0) LOOP
        v_i := v_order[v_k];
        IF p_creates[v_i] THEN
            v_run := v_run || v_i;
            CONTINUE;
        END IF;
        v_part := '{}';
        IF cardinality(v_run) > 1 THEN
            v_part := queen.kv_upserts_v1(p_tenant, p_ops, p_whats, p_writes, v_run, p_now);
        END IF;
        FOR v_r IN 1 .. cardinality(v_run) LOOP
            v_out[v_run[v_r]] := COALESCE(v_part[v_r], queen.kv_write_v1(p_tenant, p_ops -> (v_run[v_r] - 1), v_run[v_r] - 1, p_now));
        END LOOP;
        v_run := '{}';
        IF p_whats[v_i] = 'get' THEN
            v_out[v_i] := queen.kv_get_v1(p_tenant, p_ops -> (v_i - 1), v_i - 1, p_now);
        ELSIF v_i IS NOT NULL THEN
            v_out[v_i] := queen.kv_write_v1(p_tenant, p_ops -> (v_i - 1), v_i - 1, p_now);
        END IF;
    END LOOP;
    RETURN v_out;
END
$$;

-- The reads of many keys of a call, in the order of the request, within what the single
-- reads have left of 4 MiB.
CREATE OR REPLACE FUNCTION queen.kv_manies_v1(p_tenant UUID, p_ops JSONB, p_whats TEXT[], p_out JSONB[], p_now TIMESTAMPTZ)
RETURNS JSONB[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_budget BIGINT := 4194304;
    v_out    JSONB[] := p_out;
    r        RECORD;
BEGIN
    FOR v_i IN 1 .. cardinality(p_whats) LOOP
        IF p_whats[v_i] = 'get' THEN
            v_budget := v_budget - COALESCE(octet_length((v_out[v_i] -> 'value')::TEXT), 0);
        END IF;
    END LOOP;
    FOR v_i IN 1 .. cardinality(p_whats) LOOP
        IF p_whats[v_i] = 'getMany' THEN
            r := queen.kv_get_many_v1(p_tenant, p_ops -> (v_i - 1), v_i - 1, p_now, v_budget);
        ELSIF p_whats[v_i] = 'getPrefix' THEN
            r := queen.kv_get_prefix_v1(p_tenant, p_ops -> (v_i - 1), v_i - 1, p_now, v_budget);
        ELSE
            CONTINUE;
        END IF;
        v_out[v_i] := r.result;
        v_budget := v_budget - r.spent;
    END LOOP;
    RETURN v_out;
END
$$;

-- The only way of routes and transactions to queen.kv: operations of one tenant, all
-- of them or none, answered by position. p_now NULL is the start of the transaction;
-- one instant serves the call. p_in_wire sets the limits of a transaction.
--
-- First come the operations on single keys, in the order of (ns, key, position);
-- then the reads of many keys, which so see every write of their call. Values of
-- 4 MiB are read at most; a get is always answered, and spends.
--
-- One operation on one key, as nearly every call is, takes a short way. The setting:
-- a plan made while the table was small would scan it for a minute after it has
-- grown, until the next ANALYZE.
CREATE OR REPLACE FUNCTION queen.kv_apply_v1(
    p_ops     JSONB,
    p_tenant  UUID,
    p_now     TIMESTAMPTZ DEFAULT NULL,
    p_in_wire BOOLEAN DEFAULT FALSE
)
RETURNS JSONB
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_op    JSONB := CASE WHEN jsonb_typeof(p_ops) = 'array' AND p_tenant IS NOT NULL AND p_ops -> 1 IS NULL THEN p_ops -> 0 END;
    v_fault TEXT;
BEGIN
    IF v_op ->> 'op' = 'get' THEN
        v_fault := COALESCE(queen.kv_op_fault_v1(v_op), queen.kv_key_fault_v1(v_op));
        IF v_fault IS NULL THEN
            RETURN jsonb_build_array(queen.kv_get_v1(p_tenant, v_op, 0, COALESCE(p_now, now())));
        END IF;
    ELSIF v_op ->> 'op' = 'incr' THEN
        v_fault := COALESCE(queen.kv_op_fault_v1(v_op), queen.kv_key_fault_v1(v_op),
            queen.kv_expiry_fault_v1(v_op), queen.kv_incr_fault_v1(v_op), queen.kv_required_fault_v1(v_op));
        IF v_fault IS NULL THEN
            RETURN jsonb_build_array(queen.kv_incr_v1(p_tenant, v_op, 0, COALESCE(p_now, now())));
        END IF;
    ELSIF v_op ->> 'op' IN ('put', 'putIfAbsent') THEN
        v_fault := COALESCE(queen.kv_op_fault_v1(v_op), queen.kv_key_fault_v1(v_op),
            queen.kv_expiry_fault_v1(v_op), queen.kv_put_fault_v1(v_op), queen.kv_expect_fault_v1(v_op), queen.kv_required_fault_v1(v_op));
        IF v_fault IS NULL THEN
            RETURN jsonb_build_array(queen.kv_put_v1(p_tenant, v_op, 0, COALESCE(p_now, now())));
        END IF;
    END IF;
    RETURN queen.kv_batch_v1(p_ops, p_tenant, COALESCE(p_now, now()), COALESCE(p_in_wire, FALSE));
END
$$;

-- kv_apply_v1 of single operations that have nothing to do with each other: none waits
-- long for a row that somebody else holds, since the others would wait with it.
CREATE OR REPLACE FUNCTION queen.kv_together_v1(p_ops JSONB, p_tenant UUID)
RETURNS JSONB
LANGUAGE plpgsql
SET enable_seqscan = off
SET lock_timeout = '20ms'
AS $$
BEGIN
    RETURN queen.kv_batch_v1(p_ops, p_tenant, now(), FALSE);
END
$$;

-- A page of a namespace for the console. The prefix may be empty or too long.
CREATE OR REPLACE FUNCTION queen.kv_list_v1(
    p_tenant          UUID,
    p_namespace       TEXT,
    p_prefix          TEXT DEFAULT '',
    p_after           TEXT DEFAULT NULL,
    p_limit           INT DEFAULT 100,
    p_keys_only       BOOLEAN DEFAULT FALSE,
    p_include_expired BOOLEAN DEFAULT FALSE
)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
AS $$
DECLARE
    v_keys_only BOOLEAN := COALESCE(p_keys_only, FALSE);
    v_ok        BOOLEAN;
BEGIN
    IF p_tenant IS NULL THEN
        RAISE EXCEPTION 'kv_bad_request' USING ERRCODE = '22023', DETAIL = 'a tenant is needed';
    END IF;
    v_ok := queen.kv_check_names_v1(p_namespace, 'any');
    RETURN (
        SELECT jsonb_build_object('truncated', m.more, 'nextAfter', CASE WHEN m.more THEN m.last END, 'rows', m.rows, 'bytes', m.bytes)
        FROM (
            SELECT COALESCE(bool_or(g.r_key IS NULL), FALSE) AS more, max(g.r_key COLLATE "C") AS last,
                   COALESCE(sum(g.r_bytes) FILTER (WHERE g.r_key IS NOT NULL), 0) AS bytes,
                   COALESCE(jsonb_agg(
                       CASE WHEN v_keys_only THEN '{}' ELSE jsonb_build_object('value', g.r_value) END
                       || jsonb_build_object('key', g.r_key, 'version', g.r_version, 'expiresAt', queen.iso_us_v1(g.r_expires_at),
                           'updatedAt', queen.iso_us_v1(g.r_updated_at), 'expired', NOT queen.kv_live_v1(g.r_expires_at, now()))
                   ) FILTER (WHERE g.r_key IS NOT NULL), '[]') AS rows
            FROM queen.kv_page_v1(p_tenant, p_namespace, COALESCE(p_prefix, ''), p_after,
                greatest(least(COALESCE(p_limit, 100), 1000), 1), v_keys_only, COALESCE(p_include_expired, FALSE),
                now(), 4194304) AS g
        ) AS m
    );
END
$$;

-- The namespaces that a tenant has rows in, expired rows included.
CREATE OR REPLACE FUNCTION queen.kv_namespaces_v1(p_tenant UUID)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF p_tenant IS NULL THEN
        RAISE EXCEPTION 'kv_bad_request' USING ERRCODE = '22023', DETAIL = 'a tenant is needed';
    END IF;
    RETURN (
        SELECT COALESCE(jsonb_agg(jsonb_build_object('namespace', n.namespace, 'keys', n.keys) ORDER BY n.namespace COLLATE "C"), '[]')
        FROM (
            SELECT k.namespace, count(*) AS keys FROM queen.kv AS k WHERE k.tenant_id = p_tenant GROUP BY k.namespace
        ) AS n
    );
END
$$;
