package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/transact"
)

// watched counts transactions, and deadlocks that end them: those are tried again,
// and nobody hears of them.
type watched struct {
	transact.Store
	calls, deadlocks, commits atomic.Int64
}

func (w *watched) Transaction(ctx context.Context, tx store.Transaction) (store.TransactionResult, error) {
	w.calls.Add(1)
	out, err := w.Store.Transaction(ctx, tx)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "40P01" {
		w.deadlocks.Add(1)
	}
	if err == nil {
		w.commits.Add(1)
	}
	return out, err
}

// deadlocks is how many the server has broken up in this database. Sessions tell of
// theirs when they end, at the latest, so it ends all others.
func (e *engine) deadlocks() (n int64) {
	e.t.Helper()
	conn, err := e.db.Session(e.t.Context())
	require.NoError(e.t, err)
	defer func() { require.NoError(e.t, conn.Close(context.Background())) }()
	_, err = conn.Exec(e.t.Context(), `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	require.NoError(e.t, err)
	require.NoError(e.t, conn.QueryRow(e.t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n))
	return n
}

// Bundles that name the same keys, timers, partitions and cursors in whatever order,
// with pushes, pops and calls of keys and timers beside them, never deadlock.
func TestBundlesInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	const (
		names   = 4
		bundles = 8
	)
	lasting := 10 * time.Second
	if testing.Short() {
		lasting = time.Second
	}
	e := setup(t)
	w := &watched{Store: e.tx.Store}
	e.tx.Store = w
	for i := range names {
		e.queued(item(fmt.Sprint("src", i), "a", "m"))
	}
	acked := make([]message, names)
	for i := range names {
		acked[i] = e.popped(fmt.Sprint("src", i))[0]
	}
	ctx, cancelAll := context.WithTimeout(t.Context(), lasting)
	defer cancelAll()
	var all errgroup.Group
	loop := func(once func() error) {
		all.Go(func() error {
			for ctx.Err() == nil {
				if err := once(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	riders := func() (kv, timers []string) {
		for _, i := range rand.Perm(names) {
			kv = append(kv, incr(fmt.Sprint("k", i)))
		}
		for _, i := range rand.Perm(names) {
			timers = append(timers, schedule(fmt.Sprint("t", i), time.Minute))
		}
		return kv[rand.IntN(2):], timers[rand.IntN(2):]
	}
	for range bundles {
		loop(func() error {
			var req wire.TxRequest
			for _, i := range rand.Perm(names) {
				req.Ops = append(req.Ops, pushOp(fmt.Sprint("dst", i%2), fmt.Sprint(i), ""), ackOp(acked[i], wire.AckCompleted, ""))
			}
			kv, timers := riders()
			req.KV, req.Timers = list(kv...), list(timers...)
			resp, err := e.tx.Run(context.Background(), tenant, "", req)
			if err == nil && !resp.Success {
				err = fmt.Errorf("%s: %s", resp.Reason, resp.Error)
			}
			return err
		})
	}
	loop(func() error {
		kv, _ := riders()
		_, err := e.store.KVApply(context.Background(), tenant, list(kv...))
		return err
	})
	loop(func() error {
		_, timers := riders()
		_, err := e.store.TimersApply(context.Background(), tenant, "", list(timers...))
		return err
	})
	loop(func() error {
		var batch []wire.PushItem
		for _, i := range rand.Perm(names) {
			batch = append(batch, item(fmt.Sprint("dst", i%2), fmt.Sprint(i), ""))
		}
		_, err := e.push.Push(context.Background(), tenant, "", batch)
		return err
	})
	loop(func() error {
		_, err := e.try(context.Background(), fmt.Sprint("dst", rand.IntN(2)), partitions(names), autoAck)
		return err
	})
	require.NoError(t, all.Wait())
	require.Zero(t, w.deadlocks.Load())
	require.Greater(t, w.commits.Load(), int64(names))
	require.Zero(t, e.deadlocks())
	t.Logf("%d bundles", w.commits.Load())
}
