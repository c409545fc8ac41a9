package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// What a crash may take along is not waited for; what was delivered is.
func TestTheStepsOfASweeperThatWaitForTheDisk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const shards = `ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g)`
	for call, want := range map[string]string{
		`SELECT count(*) FROM queen.log_timers_claim_v1(` + shards + `)`:                        "off",
		`SELECT queen.log_timers_fail_v1('{}', '{}', '{}', '{}')`:                               "off",
		`SELECT queen.kv_expire_step_v1(` + shards + `)`:                                        "off",
		`SELECT queen.kv_usage_step_v1(` + shards + `)`:                                         "off",
		`SELECT queen.log_timers_fire_v1('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')`: "on",
		`SELECT queen.log_timers_dlq_v1('{}', '{}', '{}', '{}', '{}')`:                          "on",
		`SELECT queen.log_timers_apply_v1('[]', '00000000-0000-0000-0000-000000000001')`:        "on",
		`SELECT queen.kv_apply_v1('[]', '00000000-0000-0000-0000-000000000001')`:                "on",
	} {
		var inside, after string
		require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, call); err != nil {
					return err
				}
				return tx.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&inside)
			})
			if err != nil {
				return err
			}
			return conn.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&after)
		}))
		require.Equal(t, []string{want, "on"}, []string{inside, after}, call)
	}
}
