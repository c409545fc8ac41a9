package rolling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// newer is a generation that no build under test has.
const newer = 1000

// record is all that is recorded of the schema.
const record = `SELECT string_agg(f::text, ' ' ORDER BY name) FROM queen.schema_files AS f`

func exec(t *testing.T, db *harness.Database, sql string) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// admit has the record say that a newer version applied its files, one of which nobody
// else knows, and which versions it admits.
func admit(t *testing.T, db *harness.Database, least int) {
	t.Helper()
	exec(t, db, fmt.Sprintf(`UPDATE queen.schema_files SET sha256 = 'newer', generation = %d, min_compatible = %d`, newer, least))
	exec(t, db, fmt.Sprintf(`INSERT INTO queen.schema_files VALUES ('099_unheard_of.sql', 'newer', %d, %d) ON CONFLICT DO NOTHING`, newer, least))
}

// TestAnOlderVersionBesideANewerSchema: what is admitted serves and applies nothing; what
// is not is unready while it runs, and ends when it starts. Both say why.
func TestAnOlderVersionBesideANewerSchema(t *testing.T) {
	t.Parallel()
	b := harness.StartSetup(t, harness.Setup{Brokers: 1, Ops: true, Owner: true}).Broker
	own := harness.Value[int](t, b.DB, `SELECT max(generation) FROM queen.schema_files`)
	admit(t, b.DB, own)
	before := harness.Value[string](t, b.DB, record)

	b.Terminate(t)
	b.Restart(t)
	require.Contains(t, b.Log(), fmt.Sprintf("generation=%d own=%d", newer, own))
	ids := b.PushEach(t, "q", "p", 2)
	require.Equal(t, ids, b.Pop(t, "q", "batch=2").IDs())
	m, s := harness.StartMaintainer(t, b.DB), harness.StartSweeper(t, b.DB)
	require.Equal(t, before, harness.Value[string](t, b.DB, record), "nothing was applied")

	admit(t, b.DB, own+1)
	refusal := fmt.Sprintf("it is of generation %d and admits binaries from %d, this one is %d", newer, own+1, own)
	for name, ready := range map[string]func() (bool, string){
		"broker":     func() (bool, string) { return b.Ready(t.Context()) },
		"maintainer": func() (bool, string) { return m.Ready(t) },
		"sweeper":    func() (bool, string) { return s.Ready(t) },
	} {
		var why string
		harness.Eventually(t, patience, "the "+name+" is unready", func() bool {
			var is bool
			is, why = ready()
			return !is
		})
		require.Contains(t, why, refusal, name)
	}
	require.Contains(t, b.Log(), refusal)

	b.Terminate(t)
	m.Terminate(t)
	s.Terminate(t)
	for name, run := range map[string]func(testing.TB, []string, ...string) (string, error){"broker": b.Run, "maintainer": m.Run, "sweeper": s.Run} {
		out, err := run(t, nil)
		require.ErrorContains(t, err, "exit code 1", name)
		require.Contains(t, out, refusal, name)
	}
	out, err := b.Run(t, nil, "migrate")
	require.ErrorContains(t, err, "exit code 1")
	require.Contains(t, out, refusal)
}

// TestANewerVersionWaitsForItsSchema: sweepers and maintainers may be replaced before
// brokers. They do nothing until the schema is theirs.
func TestANewerVersionWaitsForItsSchema(t *testing.T) {
	t.Parallel()
	db := harness.NewDatabase(t)
	harness.Migrate(t, db)
	own := harness.Value[int](t, db, `SELECT max(generation) FROM queen.schema_files`)
	exec(t, db, `UPDATE queen.schema_files SET generation = generation - 1`)
	m, s := harness.LaunchMaintainer(t, db), harness.LaunchSweeper(t, db)
	why := fmt.Sprintf("generation %d is needed, the database has %d", own, own-1)
	for name, ready := range map[string]func(testing.TB) (bool, string){"maintainer": m.Ready, "sweeper": s.Ready} {
		harness.Eventually(t, patience, "the "+name+" says why it is unready", func() bool {
			_, said := ready(t)
			return strings.Contains(said, why)
		})
	}
	harness.Migrate(t, db)
	for name, ready := range map[string]func(testing.TB) (bool, string){"maintainer": m.Ready, "sweeper": s.Ready} {
		harness.Eventually(t, patience, "the "+name+" is ready", func() bool {
			is, _ := ready(t)
			return is
		})
	}
}
