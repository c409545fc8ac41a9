package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Sessions of the own name do not count, whatever process they are of; those of others
// do while they execute something.
func TestOthersAreThoseOfAnotherName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		session string
		want    bool
	}{
		"own name":     {`SELECT 1`, false},
		"another name": {`SET application_name = 'somebody else'`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- b.db.Do(ctx, "work", func(ctx context.Context, conn *pgx.Conn) error {
					if _, err := conn.Exec(ctx, c.session); err != nil {
						return err
					}
					_, err := conn.Exec(ctx, `SELECT pg_sleep(60)`)
					return err
				})
			}()
			require.Eventually(t, func() bool {
				return b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`) == 1
			}, 30*time.Second, 5*time.Millisecond)
			busy, err := b.store.OthersAtWork(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, busy)
			cancel()
			require.Error(t, <-done)
		})
	}
}

// An open transaction in which nothing is executed is not work.
func TestIdleOthersAreNotAtWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL application_name = 'somebody else'`); err != nil {
				return err
			}
			busy, err := b.store.OthersAtWork(ctx)
			require.False(t, busy)
			return err
		})
	}))
}
