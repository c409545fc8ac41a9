package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// watchBlockers looks, from another session and shortly before the lock timeout,
// at who holds what the applier waits for: afterwards nobody can tell any more.
// The returned function ends the watch and gives what it saw.
func (a *applier) watchBlockers(ctx context.Context) func() []string {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan []string, 1)
	pid := a.conn.PgConn().PID()
	go func() {
		defer close(seen)
		t := time.NewTimer(lockSlice * 3 / 4)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
			if sessions, err := a.blockers(ctx, pid); err == nil {
				seen <- sessions
			}
		}
	}()
	return func() []string {
		cancel()
		return <-seen
	}
}

const blockersQuery = `
SELECT format('pid %s user %s application %s %s since %s: %s', a.pid, a.usename,
              coalesce(nullif(a.application_name, ''), '-'), a.state,
              to_char(coalesce(a.xact_start, a.query_start), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), left(a.query, 80))
FROM unnest(pg_blocking_pids($1)) AS b (pid)
JOIN pg_stat_activity AS a ON a.pid = b.pid`

func (a *applier) blockers(ctx context.Context, pid uint32) ([]string, error) {
	var sessions []string
	err := a.db.Do(ctx, "find blocking sessions", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, blockersQuery, int32(pid))
		if err != nil {
			return err
		}
		sessions, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return sessions, err
}
