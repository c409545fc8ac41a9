package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Advisory locks of the maintainer.
const (
	retentionLock = 737001
	statsLock     = 737002
)

// sight is one look at the session that holds an advisory lock, zero when nobody
// does.
type sight struct {
	statement   time.Duration // how long its statement has run
	transaction time.Duration // and its transaction
	waited      time.Duration // the longest that anybody has waited for this session
}

const lookAtHolder = `SELECT CASE WHEN a.state = 'active' THEN EXTRACT(epoch FROM clock_timestamp() - a.query_start) ELSE 0 END::float8,
		COALESCE(EXTRACT(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
		COALESCE((SELECT max(EXTRACT(epoch FROM clock_timestamp() - w.waitstart)) FROM pg_locks AS w
			WHERE NOT w.granted AND a.pid = ANY (pg_blocking_pids(w.pid))), 0)::float8
	FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.classid = 0 AND l.objid = $1 AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// look looks once.
func look(ctx context.Context, db *pgxpool.Pool, lock int) (sight, error) {
	var statement, transaction, waited float64
	err := db.QueryRow(ctx, lookAtHolder, lock).Scan(&statement, &transaction, &waited)
	if errors.Is(err, pgx.ErrNoRows) {
		return sight{}, nil
	}
	return sight{seconds(statement), seconds(transaction), seconds(waited)}, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// watch looks at the holder of a lock every so often, beside what is measured.
type watch struct {
	stop chan struct{}
	done chan struct{}
	err  error
}

// startWatch calls saw with every look until end is called.
func startWatch(ctx context.Context, db *pgxpool.Pool, lock int, every time.Duration, saw func(sight)) *watch {
	w := &watch{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
			v, err := look(ctx, db, lock)
			if err != nil {
				w.err = fmt.Errorf("look at lock %d: %w", lock, err)
				return
			}
			saw(v)
		}
	}()
	return w
}

// end stops the watch and tells whether it could see.
func (w *watch) end() error {
	close(w.stop)
	<-w.done
	return w.err
}
