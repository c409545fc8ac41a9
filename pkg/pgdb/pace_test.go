package pgdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func TestResetsKeepAPace(t *testing.T) {
	t.Parallel()
	var r resets
	now := time.Now()
	require.True(t, r.due(now), "the first one is due at once")
	require.False(t, r.due(now))
	require.False(t, r.due(now.Add(resetPause-1)))
	require.True(t, r.due(now.Add(resetPause)))
	require.False(t, r.due(now.Add(2*resetPause-1)), "from the last one on")
}

func TestRefusedConnectionsAreTriedAtAPace(t *testing.T) {
	t.Parallel()
	var r refusals
	now := time.Now()
	full := fmt.Errorf("connect: %w", &pgconn.PgError{Code: codeTooMany})
	r.note(errors.New("connection reset"), now)
	r.note(&pgconn.PgError{Code: "57P03"}, now)
	require.NoError(t, r.admit(now), "only a server without connections is spared")

	r.note(full, now)
	r.note(full, now.Add(firstRefusalPause/4)) // tried together with the other
	require.ErrorIs(t, r.admit(now), full)
	require.ErrorIs(t, r.admit(now.Add(firstRefusalPause/2-1)), full)
	now = now.Add(firstRefusalPause)
	require.NoError(t, r.admit(now))
	require.ErrorIs(t, r.admit(now), full, "one at a time")

	r.note(r.admit(now), now)
	require.Equal(t, full, r.last, "what is passed on is not wrapped again")
	for pause := 2 * firstRefusalPause; pause < 4*lastRefusalPause; pause *= 2 {
		now = r.next
		require.NoError(t, r.admit(now))
		require.GreaterOrEqual(t, r.next.Sub(now), min(pause, lastRefusalPause)/2)
		require.LessOrEqual(t, r.next.Sub(now), lastRefusalPause)
	}

	r.over()
	require.NoError(t, r.admit(now))
	r.note(full, now)
	require.NoError(t, r.admit(now.Add(firstRefusalPause)), "pauses begin small again")
}

// little opens a pool of a role that the server gives so many connections, and counts
// what it asks for. allow changes the number.
func little(t *testing.T, connections int) (db *DB, dials *atomic.Int64, allow func(connections int)) {
	t.Helper()
	server, cfg := startServer(t)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close(context.Background())) })
	_, err = admin.Exec(t.Context(), `CREATE ROLE little LOGIN`)
	require.NoError(t, err)
	allow = func(connections int) {
		_, err := admin.Exec(t.Context(), `ALTER ROLE little CONNECTION LIMIT `+strconv.Itoa(connections))
		require.NoError(t, err)
	}
	allow(connections)
	cfg.User, cfg.AcquireTimeout = "little", time.Minute
	dials = &atomic.Int64{}
	db, err = Open(t.Context(), cfg, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
	})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db, dials, allow
}

// A server without connections is asked for one now and then, and the pool works as
// soon as there are some.
func TestAServerWithoutConnectionsIsSpared(t *testing.T) {
	t.Parallel()
	db, dials, allow := little(t, 0)
	began := time.Now()
	for range 5000 {
		err := db.Ping(t.Context())
		require.ErrorIs(t, err, ErrPool)
		require.Equal(t, codeTooMany, sqlState(err), "the reason can be told apart")
	}
	// Pauses of 20, 40, ... 640 ms, of which half may be left out, and one a second then.
	require.LessOrEqual(t, dials.Load(), 8+2*int64(time.Since(began)/lastRefusalPause))
	allow(10)
	require.Eventually(t, func() bool { return db.Ping(t.Context()) == nil }, time.Minute, time.Millisecond)
}

// A pool that gets fewer connections than it may have works with those.
func TestFewConnectionsAreShared(t *testing.T) {
	t.Parallel()
	db, dials, _ := little(t, 1)
	late := make(chan error, 1)
	require.NoError(t, db.Do(t.Context(), "hold", func(context.Context, *pgx.Conn) error {
		before := dials.Load()
		go func() { late <- db.Ping(t.Context()) }()
		for dials.Load() == before {
			runtime.Gosched()
		}
		for db.refusals.admit(time.Time{}) == nil { // until it has been refused
			runtime.Gosched()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*sharePause)
		defer cancel()
		err := db.Ping(ctx)
		require.ErrorIs(t, err, ErrPool)
		require.ErrorIs(t, err, context.DeadlineExceeded, "who waits is told that the time was up")
		return nil
	}))
	require.NoError(t, <-late)
}
