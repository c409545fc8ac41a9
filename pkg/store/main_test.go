package store_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// bench is one cloned database with a Store over it.
type bench struct {
	t     *testing.T
	db    *pgdb.DB
	store *store.Store
}

func setup(t *testing.T) *bench {
	t.Helper()
	db := pgtest.New(t)
	return &bench{t: t, db: db, store: store.New(db)}
}

// exec runs a statement of the test itself.
func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

// one reads one row of a query of the test itself.
func (b *bench) one(dest []any, sql string, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(dest...)
	}))
}

func (b *bench) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	b.one([]any{&n}, sql, args...)
	return n
}

// push submits segments that must be accepted as a call.
func (b *bench) push(segs ...store.PushSegment) []store.PushVerdict {
	b.t.Helper()
	verdicts, err := b.store.PushMulti(b.t.Context(), segs)
	require.NoError(b.t, err)
	require.Len(b.t, verdicts, len(segs))
	return verdicts
}

// queued pushes one segment that must be stored, and returns its verdict.
func (b *bench) queued(seg store.PushSegment) store.PushVerdict {
	b.t.Helper()
	v := b.push(seg)[0]
	require.Equal(b.t, store.PushQueued, v.Status)
	return v
}

func (b *bench) configure(queue, options string, merge bool) map[string]any {
	b.t.Helper()
	doc, err := b.store.Configure(b.t.Context(), store.DefaultTenant(), queue, json.RawMessage(options), merge)
	require.NoError(b.t, err)
	return object(b.t, doc)
}

func object(t *testing.T, doc []byte) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(doc, &out), "%s", doc)
	return out
}

// hash stands for the hash of transaction id n.
func hash(n uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 8, 16), n)
}

// segment is one frame per id for the default tenant, with no mark.
func segment(queue, partition string, ids ...uint64) store.PushSegment {
	s := store.PushSegment{
		Tenant: store.DefaultTenant(), Queue: queue, Partition: partition,
		Count: len(ids), Blob: fmt.Appendf(nil, "frames %v", ids), Verified: store.VerifiedNone,
	}
	for _, id := range ids {
		s.Hashes = append(s.Hashes, hash(id)...)
	}
	return s
}

// marked is seg with a mark built for a lane id and a window.
func marked(seg store.PushSegment, pid uuid.UUID, mark int64, window int) store.PushSegment {
	seg.PartitionID, seg.Verified, seg.Window = pid, mark, window
	return seg
}

// fresh is a segment of n frames whose ids occur nowhere else.
func fresh(queue, partition string, n int) store.PushSegment {
	s := store.PushSegment{
		Tenant: store.DefaultTenant(), Queue: queue, Partition: partition,
		Count: n, Hashes: make([]byte, 16*n), Blob: []byte{1}, Verified: store.VerifiedNone,
	}
	_, _ = rand.Read(s.Hashes) // never fails
	return s
}
