package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/store"
)

func TestTimersFuzz(t *testing.T) {
	t.Parallel()
	op := operation(
		[]string{"schedule", "reschedule", "cancel"},
		[]string{"queue", "timerKey", "partition", "delayMs", "txn", "payload", "payloadZstd", "encrypted", "_messageId", "deliverAt", "index"},
		map[string][]string{
			"queue": {`"q"`, `"a.b"`}, "timerKey": {`"a"`, `"b"`, `"c"`, `"a/b"`}, "partition": {`"p"`}, "delayMs": {`0`, `-5000`, `1e6`, `0.25`},
			"txn": {`"t"`}, "payload": {`""`, `"eA=="`, `"eyJhIjoxfQ=="`}, "payloadZstd": {`true`}, "encrypted": {`false`},
			"_messageId": {`"0194c7a0-0000-7000-8000-000000000001"`},
		})
	fuzzed(t, op, []string{"22023"}, func(ctx context.Context, conn *pgx.Conn, ops string, named bool) (n int, err error) {
		sub := ""
		if named {
			sub = "somebody"
		}
		err = conn.QueryRow(ctx, `SELECT jsonb_array_length(queen.log_timers_apply_v1($1, $2, $3))`, ops, store.DefaultTenant(), sub).Scan(&n)
		return n, err
	})
}
