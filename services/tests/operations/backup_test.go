package operations_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// command runs a block of the runbook with its variables, and the server's own programs.
func command(t *testing.T, stage *harness.Stage, block string, variables ...string) {
	t.Helper()
	bin := filepath.Dir(stage.Server.Program("pg_dump"))
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", block)
	cmd.Env = append(variables, "PATH="+bin+":/usr/bin:/bin")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestBackupAndRestore dumps an installation under load, restores it into an empty
// database of another server by the commands of the runbook, and goes on there.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	source := harness.StartSetup(t, harness.Setup{Server: true, Owner: true, Brokers: 1})
	if _, err := exec.LookPath(source.Server.Program("pg_dump")); err != nil {
		t.Skip("these server binaries come without pg_dump")
	}
	ids := prepare(t, source.Broker)
	stop := load(t, source.Broker)
	dump := filepath.Join(t.TempDir(), "queen.dump")
	steps := blocks(t, "backup-and-restore", "sh")
	require.Len(t, steps, 2)
	command(t, source, steps[0], "SOURCE="+source.Server.URL("postgres"), "DUMP="+dump)
	stop()
	// What happens after the dump is not in it.
	late := source.Pop(t, "orders", "batch=10&consumerGroup=g&partitions=1")
	source.AckOK(t, "g", late.Acks("completed")...)
	source.Push(t, harness.Item{Queue: "orders", Partition: "lane", TransactionID: "lost", Payload: "lost"})

	target := harness.StartSetup(t, harness.Setup{Server: true, Owner: true, Brokers: 1})
	target.Terminate(t)
	want := catalogue(t, source.DB)
	target.DB.Exec(t, "DROP SCHEMA queen CASCADE")
	target.DB.Exec(t, "DROP SCHEMA queen_streams CASCADE")
	command(t, target, steps[1], "TARGET="+target.Server.URL("postgres"), "DUMP="+dump)
	target.Restart(t)
	require.Equal(t, want, catalogue(t, target.DB), "the schema is not what a fresh one is")

	goesOn(t, target.Broker, ids, late.IDs())
}

// prepare puts something of everything into an installation. It answers the ids of the
// messages of one lane, of which a group has consumed the first ten.
func prepare(t *testing.T, b *harness.Broker) []string {
	t.Helper()
	ids := make([]string, 30)
	for i := range ids {
		ids[i] = fmt.Sprintf("order-%02d", i)
		b.PushQueued(t, harness.Item{Queue: "orders", Partition: "lane", TransactionID: ids[i], Payload: i})
	}
	first := b.Pop(t, "orders", "batch=10&consumerGroup=g&partitions=1")
	require.Equal(t, ids[:10], first.IDs())
	b.AckOK(t, "g", first.Acks("completed")...)

	b.PushQueued(t, harness.Item{Queue: "poison", Partition: "lane", TransactionID: "bad", Payload: "bad"})
	bad := b.Pop(t, "poison", "batch=1&consumerGroup=g")
	b.AckOK(t, "g", bad.Acks("dlq")...)

	for n := range 2 {
		a, err := b.Call(t.Context(), "PUT", "/api/v1/kv/carts/one", fmt.Appendf(nil, `{"value":%d,"forever":true}`, n))
		require.NoError(t, err)
		require.Equal(t, 200, a.Status, a.String())
	}
	a := b.Post(t, "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"reminders","timerKey":"k","txn":"k","delayMs":1000,"payload":"e30="}]}`)
	require.Equal(t, 200, a.Status, a.String())
	return ids
}

// load pushes beside until it is stopped.
func load(t *testing.T, b *harness.Broker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			_, err := b.TryPush(ctx, harness.Item{Queue: "load", Partition: fmt.Sprint(n % 20), Payload: n})
			if err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			if ctx.Err() != nil {
				done <- nil
				return
			}
			if n == 0 {
				close(begun)
			}
		}
	}()
	<-begun
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// goesOn requires that everything of the dump is there, and that work goes on.
func goesOn(t *testing.T, b *harness.Broker, ids, again []string) {
	t.Helper()
	// Repeats are found, and what came after the dump is not there.
	repeat := b.Push(t, harness.Item{Queue: "orders", Partition: "lane", TransactionID: ids[3], Payload: "again"})
	require.Equal(t, "duplicate", repeat[0].Status)
	b.PushQueued(t, harness.Item{Queue: "orders", Partition: "lane", TransactionID: "after", Payload: "after"})
	var got []string
	for len(got) < 21 {
		p := b.Pop(t, "orders", "batch=10&consumerGroup=g&partitions=1")
		got = append(got, p.IDs()...)
		b.AckOK(t, "g", p.Acks("completed")...)
	}
	require.Equal(t, append(ids[10:], "after"), got, "in order, those that were consumed after the dump among them")
	require.Equal(t, again, got[:10])

	letters := b.Get(t, "/api/v1/dlq?queue=poison")
	require.Contains(t, letters.String(), "bad")
	key := b.Get(t, "/api/v1/kv/carts/one").Object(t)
	require.EqualValues(t, 1, key["value"])
	written := b.Get(t, "/api/v1/kv/carts/one").Object(t)["version"]
	a, err := b.Call(t.Context(), "PUT", "/api/v1/kv/carts/one", fmt.Appendf(nil, `{"value":2,"forever":true,"expect":%v}`, written))
	require.NoError(t, err)
	require.Equal(t, 200, a.Status, a.String())

	harness.StartMaintainer(t, b.DB)
	harness.StartSweeper(t, b.DB)
	fired := b.Pop(t, "reminders", "batch=1&wait=true&timeout=20000")
	require.Equal(t, []string{"k"}, fired.IDs())
	require.Equal(t, 0, harness.Maintain(t, b.DB, nil, "run-once").Code)
}

// catalogue is everything about the schemas that a restore could change, as text.
func catalogue(t *testing.T, db *harness.Database) string {
	t.Helper()
	var all strings.Builder
	for _, q := range []string{
		`SELECT c.oid::regclass || ' ' || c.relkind::text || ' ' || COALESCE(c.reloptions::text, '') || ' ' || COALESCE(c.relacl::text, '')
		 FROM pg_class c WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams')`,
		`SELECT p.oid::regprocedure || ' ' || md5(p.prosrc) FROM pg_proc p WHERE p.pronamespace = 'queen'::regnamespace`,
		`SELECT tgrelid::regclass || ' ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal`,
		`SELECT attrelid::regclass || '.' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attstorage::text || ' ' || attnotnull
		 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		 WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') AND attnum > 0 AND NOT attisdropped`,
		`SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace::regnamespace::text IN ('queen', 'queen_streams')`,
		`SELECT nspname || ' ' || COALESCE(nspacl::text, '') FROM pg_namespace WHERE nspname IN ('queen', 'queen_streams')`,
		`SELECT name || ' ' || sha256 FROM queen.schema_files`,
	} {
		all.WriteString(harness.Value[string](t, db, `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (`+q+`) AS x (line)`))
		all.WriteString("\n")
	}
	return all.String()
}
