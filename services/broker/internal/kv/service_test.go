package kv_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var tenant = store.DefaultTenant()

// fakeStore answers what it is told to, and keeps what it was asked.
type fakeStore struct {
	err  error
	ops  string
	page store.KVPage
}

func (f *fakeStore) KVApply(_ context.Context, _ uuid.UUID, ops json.RawMessage) (store.RawJSON, error) {
	f.ops = string(ops)
	return store.RawJSON(`[{}]`), f.err
}

func (f *fakeStore) KVTogether(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error) {
	return f.KVApply(ctx, tenant, ops)
}

func (f *fakeStore) KVList(_ context.Context, _ uuid.UUID, p store.KVPage) (store.RawJSON, error) {
	f.page = p
	return store.RawJSON(`{}`), f.err
}

func (f *fakeStore) KVNamespaces(context.Context, uuid.UUID) (store.RawJSON, error) {
	return store.RawJSON(`[]`), f.err
}

// quotas is a store of quotas with one tenant that may have 100 rows.
type quotas struct{}

func (quotas) Flags(context.Context, ...store.Flag) (map[store.Flag]bool, error) { return nil, nil } //nolint:nilnil // nothing is recorded
func (quotas) SetFlags(context.Context, map[store.Flag]bool) error               { return nil }
func (quotas) KVQuotas(context.Context, int) ([]store.KVQuota, error) {
	limit := int64(100)
	return []store.KVQuota{{Tenant: tenant, Granted: true, Enabled: true, MaxRows: &limit, KVRows: 99}}, nil
}

func newService(t testing.TB, cfg kv.Config, st kv.Store, of quota.Store) *kv.Service {
	t.Helper()
	return newMeasuredService(t, cfg, st, of, noop.Meter{})
}

func newMeasuredService(t testing.TB, cfg kv.Config, st kv.Store, of quota.Store, meter metric.Meter) *kv.Service {
	t.Helper()
	gate, err := quota.New(quota.Config{}, quota.Deps{Store: of, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	require.NoError(t, gate.Start(t.Context()))
	s, err := kv.New(cfg, kv.Deps{Store: st, Gate: gate, Meter: meter})
	require.NoError(t, err)
	return s
}

const (
	aPut    = `{"op":"put","ns":"n","key":"k","value":1,"forever":true}`
	aDelete = `{"op":"delete","ns":"n","key":"k"}`
)

func apply(t *testing.T, s *kv.Service, op string) string {
	t.Helper()
	_, err := s.Apply(t.Context(), tenant, json.RawMessage("["+op+"]"))
	if err == nil {
		return ""
	}
	var r *wire.Refusal
	require.ErrorAs(t, err, &r)
	return r.Code + " " + r.Reason
}

var errExhausted = fmt.Errorf("apply: %w: %w", pgdb.ErrExhausted, context.DeadlineExceeded)

func TestWritesArePausedWhileCallsFindNoConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const exhausted, paused = "kv_unavailable kv_pool_exhausted", "kv_unavailable kv_standalone_paused"
		f := &fakeStore{err: errExhausted}
		s := newService(t, kv.Config{ShedAfter: 3}, f, noQuotas{})
		for range 2 {
			require.Equal(t, exhausted, apply(t, s, aPut))
		}
		require.Equal(t, exhausted, apply(t, s, aGet), "reads count, and go on trying")
		require.Equal(t, paused, apply(t, s, aPut))
		require.Equal(t, paused, apply(t, s, aDelete))
		require.Equal(t, paused, apply(t, s, aGet+","+aDelete), "a call with a write is one")
		require.Equal(t, exhausted, apply(t, s, aGet))

		f.err = nil
		require.Empty(t, apply(t, s, aGet))
		require.Empty(t, apply(t, s, aPut), "a read that has a connection ends it")

		f.err = errExhausted
		for range 3 {
			require.Equal(t, exhausted, apply(t, s, aPut))
		}
		require.Equal(t, paused, apply(t, s, aPut))
		time.Sleep(time.Second)
		require.Equal(t, exhausted, apply(t, s, aPut), "after a second writes try again")
		require.Equal(t, paused, apply(t, s, aPut), "and one that finds none pauses the others")
		time.Sleep(time.Second)
		f.err = fmt.Errorf("apply: %w", context.DeadlineExceeded)
		require.Equal(t, "kv_unavailable kv_timeout", apply(t, s, aPut))
		require.Equal(t, "kv_unavailable kv_timeout", apply(t, s, aPut), "a slow database had a connection")
	})
}

// noQuotas is a store without quotas.
type noQuotas struct{ quotas }

func (noQuotas) KVQuotas(context.Context, int) ([]store.KVQuota, error) { return nil, nil }

func TestUnreachableDatabasePausesNothing(t *testing.T) {
	t.Parallel()
	f := &fakeStore{err: fmt.Errorf("apply: %w: refused", pgdb.ErrPool)}
	s := newService(t, kv.Config{ShedAfter: 1}, f, noQuotas{})
	for range 3 {
		require.Equal(t, "kv_unavailable connection", apply(t, s, aPut))
	}
}

func TestChargeIsKeptOnlyWhereRowsMayHaveBeenWritten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		kept bool
	}{
		"a success":                      {nil, true},
		"no connection":                  {errExhausted, false},
		"a refusal":                      {&store.KVRefused{Reason: "kv_bad_ttl"}, false},
		"a lost precondition":            {&store.KVPrecondition{}, false},
		"an error of the server":         {fmt.Errorf("apply: %w", &pgconn.PgError{Code: "40001"}), false},
		"a statement that was cancelled": {fmt.Errorf("apply: %w", &pgconn.PgError{Code: "57014"}), false},
		"a lost answer":                  {fmt.Errorf("apply: %w", io.ErrUnexpectedEOF), true},
		"a passed deadline":              {fmt.Errorf("apply: %w", context.DeadlineExceeded), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeStore{err: tc.err}
			s := newService(t, kv.Config{}, f, quotas{})
			apply(t, s, aPut)
			f.err = nil
			if tc.kept {
				require.Equal(t, "kv_quota_exceeded kv_quota_exceeded", apply(t, s, aPut))
			} else {
				require.Empty(t, apply(t, s, aPut))
			}
			require.Empty(t, apply(t, s, aGet))
			require.Empty(t, apply(t, s, aDelete))
		})
	}
}

func TestPausedWriteIsNotCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStore{err: errExhausted}
		s := newService(t, kv.Config{ShedAfter: 1}, f, quotas{})
		apply(t, s, aPut)
		require.Contains(t, apply(t, s, aPut), "kv_standalone_paused")
		f.err = nil
		require.Empty(t, apply(t, s, aGet))
		require.Empty(t, apply(t, s, aPut), "there is room for one row")
	})
}

func TestPagesAreCutToTheirLimit(t *testing.T) {
	t.Parallel()
	f := &fakeStore{}
	s := newService(t, kv.Config{PageLimit: 50}, f, noQuotas{})
	page := func(limit string) string { return `{"op":"getPrefix","ns":"n","prefix":"p"` + limit + `}` }
	for _, tc := range [][2]string{
		{page(``), page(`,"limit":50`)},
		{page(`,"limit":50`), page(`,"limit":50`)},
		{page(`,"limit":51`), page(`,"limit":51,"limit":50`)},
		{page(`,"limit":"x"`), page(`,"limit":"x"`)},
		{aGet + "," + page(`,"limit":7`) + "," + page(``), aGet + "," + page(`,"limit":7`) + "," + page(`,"limit":50`)},
	} {
		require.Empty(t, apply(t, s, tc[0]))
		require.Equal(t, "["+tc[1]+"]", f.ops)
	}
	for asked, want := range map[int]int{0: 50, 50: 50, 51: 50, 7: 7} {
		_, err := s.List(t.Context(), tenant, store.KVPage{Namespace: "n", Limit: asked})
		require.NoError(t, err)
		require.Equal(t, want, f.page.Limit)
	}
	whole := newService(t, kv.Config{}, f, noQuotas{})
	require.Empty(t, apply(t, whole, page(``)))
	require.Equal(t, "["+page(``)+"]", f.ops, "what needs no limit passes as it was sent")
}

func TestSlowStatementIsATimeout(t *testing.T) {
	t.Parallel()
	cfg := pgtest.NewConfig(t)
	other := open(t, cfg)
	cfg.StatementTimeout, cfg.ServerEnds = 200, true
	db := open(t, cfg)
	s := newService(t, kv.Config{}, store.New(db), noQuotas{})
	require.Empty(t, apply(t, s, aPut))
	require.NoError(t, other.Do(t.Context(), "hold the row", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT FROM queen.kv WHERE key = 'k' FOR UPDATE`)
			require.NoError(t, err)
			require.Equal(t, "kv_unavailable kv_timeout", apply(t, s, aPut))
			require.Empty(t, apply(t, s, aGet), "readers wait for nobody")
			return nil
		})
	}))
	require.Empty(t, apply(t, s, aPut))
}

func TestExhaustedPoolIsARefusal(t *testing.T) {
	t.Parallel()
	cfg := pgtest.NewConfig(t)
	cfg.PoolSize, cfg.AcquireTimeout = 2, 200*time.Millisecond
	db := open(t, cfg)
	s := newService(t, kv.Config{}, store.New(db), noQuotas{})
	require.Empty(t, apply(t, s, aPut))
	nested := func(ctx context.Context, _ *pgx.Conn) error {
		return db.Do(ctx, "hold another", func(context.Context, *pgx.Conn) error {
			require.Equal(t, "kv_unavailable kv_pool_exhausted", apply(t, s, aGet))
			return nil
		})
	}
	require.NoError(t, db.Do(t.Context(), "hold one", nested))
	require.Empty(t, apply(t, s, aGet))
}

func open(t testing.TB, cfg pgdb.Config) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}
