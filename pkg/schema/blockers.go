package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// watchLooks is how often the sessions in the way are looked for within the time
// of one lock timeout.
const watchLooks = 4

// watchBlockers looks, from another session and until the lock timeout, at who holds
// what the applier waits for: afterwards nobody can tell any more. The returned
// function ends the watch and gives what was seen last; on a busy server the last
// look may come too late for an answer.
func (a *applier) watchBlockers(ctx context.Context) func() []string {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan []string, 1)
	go func() {
		var last []string
		defer func() { seen <- last }()
		t := time.NewTicker(lockSlice / watchLooks)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if sessions, err := a.blockers(ctx); err == nil && len(sessions) > 0 {
				last = sessions
			}
		}
	}()
	return func() []string {
		cancel()
		return <-seen
	}
}

// describe is one line for a session a, which is NULL for a prepared
// transaction (pid 0) and partly NULL for another role's.
const describe = `CASE WHEN b.pid = 0 THEN 'a prepared transaction (see pg_prepared_xacts)' ELSE
	format('pid %s, user %s, application %s, %s since %s: %s', b.pid, coalesce(a.usename, '?'),
		coalesce(nullif(a.application_name, ''), '-'), coalesce(a.state, 'state unknown'),
		coalesce(to_char(coalesce(a.xact_start, a.query_start, a.backend_start), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '?'),
		left(regexp_replace(coalesce(a.query, '?'), '\s+', ' ', 'g'), 80)) END`

const blockersQuery = `
SELECT DISTINCT ` + describe + `
FROM unnest(pg_catalog.pg_blocking_pids($1)) AS b (pid)
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = b.pid`

func (a *applier) blockers(ctx context.Context) ([]string, error) {
	return a.sessions(ctx, "find blocking sessions", blockersQuery, a.pid)
}

const holdersQuery = `
SELECT DISTINCT ` + describe + `
FROM (SELECT pid FROM pg_catalog.pg_locks
      WHERE locktype = 'advisory' AND classid = 0 AND objid = $1::int::oid AND objsubid = 1 AND granted
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) AS b
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = b.pid`

// holders are the sessions that hold the appliers' lock.
func (a *applier) holders(ctx context.Context) ([]string, error) {
	return a.sessions(ctx, "find the applier", holdersQuery, lockID)
}

func (a *applier) sessions(ctx context.Context, name, query string, arg any) ([]string, error) {
	var sessions []string
	err := a.db.Do(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query, arg)
		if err != nil {
			return fmt.Errorf("read sessions: %w", err)
		}
		sessions, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return sessions, err
}
