package store_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// plansOf connects as a session of b's database whose statements inside
// functions are explained, and returns the plans of each run.
func plansOf(t *testing.T, b *bench, runs ...func(ctx context.Context, conn *pgx.Conn) error) [][]string {
	t.Helper()
	c := b.db.Config()
	cc, err := pgx.ParseConfig("sslmode=disable")
	require.NoError(t, err)
	cc.Host, cc.Port, cc.User, cc.Password, cc.Database, cc.TLSConfig = c.Host, uint16(c.Port), c.User, string(c.Password), c.Database, nil
	var plans []string
	collect := false
	cc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if collect {
			plans = append(plans, n.Message)
		}
	}
	ctx := t.Context()
	conn, err := pgx.ConnectConfig(ctx, cc)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, `LOAD 'auto_explain'`); err != nil {
		t.Skipf("auto_explain: %v", err)
	}
	for _, set := range []string{
		"client_min_messages = log", "auto_explain.log_level = notice", "auto_explain.log_min_duration = 0",
		"auto_explain.log_nested_statements = on", "auto_explain.log_analyze = on", "auto_explain.log_timing = off",
		// The worst advice a server can have for these functions.
		"plan_cache_mode = force_custom_plan", "random_page_cost = 40",
	} {
		_, err := conn.Exec(ctx, "SET "+set)
		require.NoError(t, err)
	}
	collect = true
	var all [][]string
	for _, run := range runs {
		plans = nil
		require.NoError(t, run(ctx, conn))
		all = append(all, plans)
	}
	return all
}

func planWith(t *testing.T, plans []string, text string) string {
	t.Helper()
	for _, p := range plans {
		if strings.Contains(p, text) {
			return p
		}
	}
	require.Fail(t, "no such plan", "%q in %s", text, strings.Join(plans, "\n"))
	return ""
}

// A lane with 20000 sidecar rows is read once through its key, and its frames
// meet the incoming ones in a hash table of the incoming ones: also with the
// plan that was made, and kept, while the lane held a single row.
func TestProbeOfALongWindowIsOneHashJoin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	push := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT queen.log_push_one_v1('q', 'p', 2, $1 || decode(md5('19999c'), 'hex'), -1, 'x')`, hash(77))
		return err
	}
	fill := func() {
		b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
			SELECT $1, g * 4 + 3, g * 4 + 6, now(), decode(md5(g::text) || md5(g || 'a') || md5(g || 'b') || md5(g || 'c'), 'hex')
			FROM generate_series(0, 19999) AS g`, pid)
		b.exec(`UPDATE queen.log_partitions SET last_offset = 80002 WHERE id = $1`, pid)
	}
	check := func(plans []string, window string) {
		probe := planWith(t, plans, "jsonb_agg(jsonb_build_object('i'")
		require.Contains(t, probe, "Hash Join")
		for _, slow := range []string{"Merge Join", "Memoize", "Seq Scan", "JIT"} {
			require.NotContains(t, probe, slow)
		}
		require.Regexp(t, `Hash  \(.*actual rows=2 loops=1\)`, probe, "the incoming frames are the hash table")
		require.Regexp(t, `log_txns t_1 .*actual rows=`+window+` loops=1`, probe, "the window is read once")
		require.Regexp(t, `Index Cond: \(\(partition_id = u\.pid\) AND \(base_offset >= `, probe)
	}

	plans := plansOf(t, b, push, func(ctx context.Context, conn *pgx.Conn) error {
		fill() // beside the two frames that the first push stored
		return push(ctx, conn)
	})
	check(plans[0], "1")
	check(plans[1], "20002")
	b.exec(`ANALYZE`)
	check(plansOf(t, b, push)[0], "20002")
}

// With the mark at the tip nothing of the sidecar is hashed, and with a mark a
// little behind only what lies above it.
func TestProbeReadsOnlyAboveTheMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	for id := range uint64(50) {
		b.queued(segment("q", "p", 100+id))
	}
	call := `SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY[$1::bytea], ARRAY[$2::bigint], '{x}', NULL, ARRAY[$3::uuid], '{3600}')`
	push := func(id uint64, mark int64) []string {
		return plansOf(t, b, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, call, hash(id), mark, pid)
			return err
		})[0]
	}
	for _, p := range push(1000, 50) {
		require.NotContains(t, p, "jsonb_build_object('i'", "the probe does not run at the tip")
	}
	probe := planWith(t, push(1001, 48), "jsonb_build_object('i'")
	require.Regexp(t, `log_txns t_1 .*actual rows=3 loops=1`, probe, "offsets 49 to 51")
	require.Contains(t, probe, "Hash Join")
}

// No statement of a push scans a table, however small or unanalysed.
func TestPushNeverScansATable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(segment("q", "a", 1), segment("q", "b", 1))
	plans := plansOf(t, b, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT queen.log_push_multi_v1('{q,q,new}', '{a,b,c}', '{1,1,1}', ARRAY[$1::bytea, $1, $1], '{-1,-1,-1}', '{x,x,x}')`, hash(9))
		return err
	})[0]
	require.Greater(t, len(plans), 5)
	for _, p := range plans {
		if !strings.Contains(p, "PARTITION BY") {
			require.NotContains(t, p, "Seq Scan", "%s", p)
		}
	}
}
