package store_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A handover finds its rows by their keys, whatever the server knows of the tables:
// also by a plan that was made, and kept, while they were empty.
func TestAHandoverFindsItsRowsByTheirKeys(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	const call = `SELECT queen.log_handover_v1(array_agg(c.partition_id), array_agg(c.consumer_group), array_agg(c.batch_end), array_agg(c.worker_id),
			array_agg(1), array_agg('x'::text), array_agg(c.batch_end + 1), array_agg(0), array_agg(s.base_offset), array_agg(s.created_at), array_agg(FALSE))
		FROM (SELECT * FROM queen.log_consumers WHERE worker_id = 'w' ORDER BY partition_id LIMIT 3) AS c
		JOIN queen.log_segments AS s ON s.partition_id = c.partition_id AND s.base_offset = 2`
	hand := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, call)
		return err
	}
	fill := func() {
		b.exec(`INSERT INTO queen.queues (name) SELECT 'q' || g FROM generate_series(0, 99) AS g`)
		b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT id, 'p' || g, 39 FROM queen.queues, generate_series(1, 10) AS g`)
		b.exec(`INSERT INTO queen.log_segments SELECT id, g * 2, g * 2 + 1, now(), '\x01' FROM queen.log_partitions, generate_series(0, 19) AS g`)
		b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_expires_at, attempt_offset)
			SELECT id, 'g' || g, 0, 1, 'w', now() + interval '1 hour', 1 FROM queen.log_partitions, generate_series(1, 10) AS g`)
		b.exec(`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, partition_name, subscription_mode, subscription_timestamp)
			SELECT 'g' || g, id, p, 'all', now() FROM queen.queues, generate_series(1, 10) AS g, (VALUES (''), ('p1'), ('p2')) AS t (p)`)
	}
	check := func(plans []string, registration, moved string) {
		t.Helper()
		plan := planWith(t, plans, "FOR UPDATE SKIP LOCKED")
		for _, slow := range []string{"Seq Scan", "Hash Join", "Merge Join", "Bitmap", "JIT"} {
			require.NotContains(t, plan, slow)
		}
		// Servers differ in how they name the array of a subquery.
		for table, cond := range map[string]string{
			"log_segments s":             `((partition_id = u.pid) AND (base_offset = u.base))`,
			"log_partitions x":           `(id = u.pid)`,
			"queues x_1":                 `(id = x.queue_id)`,
			"log_consumers c_1":          `((partition_id = a.pid) AND (consumer_group = a.grp))`,
			"log_consumers c_2":          moved,
			"consumer_groups_metadata m": registration,
		} {
			require.Regexp(t, ` on `+table+`  \(.*\n +Index Cond: `+strings.ReplaceAll(regexp.QuoteMeta(cond), "ARRAY", `.*`)+`\n`, plan)
		}
	}

	b.exec(`ANALYZE`) // known to be empty, a table is cheapest to scan
	plans := plansOf(t, b.bench, hand, func(ctx context.Context, conn *pgx.Conn) error {
		fill()
		return hand(ctx, conn)
	})
	// Of an empty table any index will do; what these read is bounded, by the
	// registrations of the queue and the groups of the lanes.
	for _, p := range plans {
		check(p, `(queue_id = q.id)`, `(partition_id = ANY (ARRAY))`)
	}
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.log_consumers WHERE worker_id = 'x'`))
	for range 2 { // without statistics, and with those of full tables
		check(plansOf(t, b.bench, hand)[0],
			`((tenant_id = q.tenant_id) AND (consumer_group = u.grp) AND (queue_id = q.id) AND (partition_name = ''::text) AND (namespace = ''::text) AND (task = ''::text))`,
			`((partition_id = h_1.pid) AND (partition_id = ANY (ARRAY)) AND (consumer_group = h_1.grp))`)
		b.exec(`ANALYZE`)
	}
	require.EqualValues(t, 9, b.count(`SELECT count(*) FROM queen.log_consumers WHERE worker_id = 'x'`))
}
