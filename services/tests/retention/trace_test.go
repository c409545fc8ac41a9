package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// leaderLock is the session lock of the one maintainer that is in a cycle.
const leaderLock = 737001

// holder is a query for the sessions that hold the leader's lock.
var holder = fmt.Sprintf(`SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND classid = 0 AND objid = %d AND objsubid = 1`, leaderLock)

// change is one statement that changed rows of a table.
type change struct {
	What        string // such as "DELETE log_txns"
	Type        string // of the history rows
	Rows        int
	Session     int
	Transaction int64
	At          time.Time
	Leader      *int // the session that held the leader's lock then
}

// traceChanges notes every statement that removes rows from the tables of
// retention, and every row of its history.
func traceChanges(t *testing.T, db *harness.Database) {
	t.Helper()
	db.Exec(t, `CREATE TABLE public.changes (n BIGSERIAL, what TEXT, type TEXT, rows BIGINT, session INT, xid BIGINT, at TIMESTAMPTZ, leader INT)`)
	db.Exec(t, `CREATE FUNCTION public.note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$
		DECLARE
			v_rows BIGINT;
			v_type TEXT := '';
		BEGIN
			SELECT count(*) INTO v_rows FROM touched;
			IF TG_OP = 'INSERT' THEN
				SELECT COALESCE(min(retention_type), '') INTO v_type FROM touched;
			END IF;
			IF v_rows > 0 THEN
				INSERT INTO public.changes (what, type, rows, session, xid, at, leader)
				VALUES (TG_OP || ' ' || TG_TABLE_NAME, v_type, v_rows, pg_backend_pid(), txid_current(), clock_timestamp(), (`+holder+`));
			END IF;
			RETURN NULL;
		END $f$`)
	for _, table := range []string{"log_segments", "log_txns", "log_partitions", "system_metrics", "retention_history"} {
		db.Exec(t, fmt.Sprintf(`CREATE TRIGGER zz_changes AFTER DELETE ON queen.%s REFERENCING OLD TABLE AS touched
			FOR EACH STATEMENT EXECUTE FUNCTION public.note_change()`, table))
	}
	db.Exec(t, `CREATE TRIGGER zz_history AFTER INSERT ON queen.retention_history REFERENCING NEW TABLE AS touched
		FOR EACH STATEMENT EXECUTE FUNCTION public.note_change()`)
}

// changes lists what was noted, in order: of one kind, or all for "".
func changes(t *testing.T, db *harness.Database, what string) []change {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT what, type, rows, session, xid, at, leader FROM public.changes WHERE $1 IN ('', what) ORDER BY n`, what)
	require.NoError(t, err)
	defer rows.Close()
	var all []change
	for rows.Next() {
		var c change
		require.NoError(t, rows.Scan(&c.What, &c.Type, &c.Rows, &c.Session, &c.Transaction, &c.At, &c.Leader))
		all = append(all, c)
	}
	require.NoError(t, rows.Err())
	return all
}

// phase is the part of a cycle that a change belongs to.
func (c change) phase() string {
	switch c.Type {
	case byAge, byConsumed:
		return "rules"
	case byMaxWait:
		return "max wait"
	case byCleanup:
		return "cleanup"
	}
	switch c.What {
	case "DELETE log_txns":
		return "sidecar" // of a cleanup, too, if there is something left
	case "DELETE log_partitions":
		return "cleanup"
	case "DELETE retention_history", "DELETE system_metrics":
		return "metrics"
	}
	return c.What
}

// requireOneLeader requires of everything noted that its session held the lock.
func requireOneLeader(t *testing.T, db *harness.Database) {
	t.Helper()
	for _, c := range changes(t, db, "") {
		require.NotNil(t, c.Leader, "%+v", c)
		require.Equal(t, c.Session, *c.Leader, "%+v", c)
	}
}
