package dedup_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/dedup"
)

// modelChecks is the number of histories that the model test tries: each takes a tenth
// of a second under the race detector. -rapid.checks asks for another.
const modelChecks = "40"

func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rapid.checks" })
	if !asked {
		_ = flag.Set("rapid.checks", modelChecks)
	}
	os.Exit(pgtest.Main(m))
}

// world is one database and what several brokers know of it.
type world struct {
	db    *pgdb.DB
	store *store.Store
	mu    sync.Mutex
	clock time.Time // of the caches: it stands still, or a busy machine would make them impatient
}

func newWorld(t testing.TB) *world {
	t.Helper()
	db := pgtest.New(t)
	return &world{db: db, store: store.New(db), clock: time.Now()}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = w.clock.Add(d)
}

func (w *world) cache(t require.TestingT, bytes int64) *dedup.Cache {
	c, err := dedup.New(dedup.Config{Bytes: bytes, Wait: time.Minute}, dedup.Deps{
		Store: w.store, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler), Now: w.now,
	})
	require.NoError(t, err)
	return c
}

func (w *world) exec(t require.TestingT, sql string, args ...any) {
	require.NoError(t, w.db.Do(context.Background(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

func (w *world) configure(t require.TestingT, queue string, window int) {
	_, err := w.store.Configure(context.Background(), store.DefaultTenant(), queue,
		json.RawMessage(fmt.Sprintf(`{"dedupWindowSeconds": %d}`, window)), false)
	require.NoError(t, err)
}

func hashOf(id uint64) []byte {
	r := rand.New(rand.NewPCG(id, 7))
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.Uint64()), r.Uint64())
}

func segmentOf(l dedup.Lane, ids []uint64) store.PushSegment {
	s := store.PushSegment{Tenant: l.Tenant, Queue: l.Queue, Partition: l.Partition, Count: len(ids), Blob: []byte{1}, Verified: store.VerifiedNone}
	for _, id := range ids {
		s.Hashes = append(s.Hashes, hashOf(id)...)
	}
	return s
}

func marked(s store.PushSegment, m dedup.Mark) store.PushSegment {
	s.PartitionID, s.Window, s.Verified, s.Suspects = m.PartitionID, m.Window, m.Verified, m.Suspects
	return s
}

// push submits a segment with a mark, and tells the cache of it.
func (w *world) push(t require.TestingT, c *dedup.Cache, l dedup.Lane, s store.PushSegment) store.PushVerdict {
	v, err := w.store.PushBundle(context.Background(), []store.PushSegment{s}, store.WaitForLocks)
	require.NoError(t, err)
	if v[0].Status == store.PushQueued {
		c.Wrote(l, v[0].PartitionID, v[0].BaseOffset, v[0].CreatedAt, s.Hashes)
	}
	return v[0]
}

// model is what a lane ought to accept: all rows of its partition, with their age.
type model struct {
	rows   []modelRow
	purged int64 // offsets below are gone
	last   int64
}

type modelRow struct {
	base int64
	ids  []uint64
	age  int // seconds
}

// twins lists the frames that the window holds, with their smallest offsets.
func (m *model) twins(ids []uint64, window int) (dups []store.Dup) {
	for i, id := range ids {
		for _, r := range m.rows {
			if r.age >= window || r.base < m.purged {
				continue
			}
			if at := slices.Index(r.ids, id); at >= 0 {
				dups = append(dups, store.Dup{Index: i, Offset: r.base + int64(at)})
				break
			}
		}
	}
	return dups
}

// same wants the expected duplicates. An id that lies in more rows than a mark may
// name (possible only where a window was 0 for a while) is answered with a newer one
// of its copies.
func (m *model) same(t require.TestingT, want, got []store.Dup, window int) {
	require.Len(t, got, len(want))
	for i, d := range want {
		require.Equal(t, d.Index, got[i].Index)
		if d.Offset == got[i].Offset {
			continue
		}
		copies, frames, found := m.copies(d.Offset, got[i].Offset, window)
		require.True(t, found, "offset %d holds no copy of the one at %d", got[i].Offset, d.Offset)
		require.True(t, copies > dedup.MaxSuspects || frames > dedup.MaxSuspectFrames,
			"offset %d in place of %d, though %d rows of %d frames could be named", got[i].Offset, d.Offset, copies, frames)
	}
}

// copies counts the rows of the window that hold the id stored at an offset, and
// their frames, and tells whether another offset holds the same id.
func (m *model) copies(at, other int64, window int) (rows, frames int, found bool) {
	id, known := m.id(at)
	second, stored := m.id(other)
	for _, r := range m.rows {
		if r.age < window && r.base >= m.purged && slices.Contains(r.ids, id) {
			rows++
			frames += len(r.ids)
		}
	}
	return rows, frames, known && stored && id == second
}

// id is the id stored at an offset.
func (m *model) id(offset int64) (id uint64, ok bool) {
	for _, r := range m.rows {
		if n := offset - r.base; n >= 0 && n < int64(len(r.ids)) {
			return r.ids[n], true
		}
	}
	return 0, false
}

// Two brokers with caches, one that has room for nothing, and a writer without a
// cache share a lane whose window changes, whose rows age and are purged, and
// which is deleted and made anew. Every verdict is the one of the model: no
// duplicate inside the window is stored, and no fresh id is refused.
func TestCachesNeverChangeAVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	number := 0
	rapid.Check(t, func(t *rapid.T) {
		number++
		l := dedup.Lane{Tenant: store.DefaultTenant(), Queue: fmt.Sprint("q", number), Partition: "p"}
		caches := []*dedup.Cache{w.cache(t, 64<<20), w.cache(t, 64<<20), w.cache(t, 1), nil}
		type waiting struct {
			cache *dedup.Cache
			ids   []uint64
			mark  dedup.Mark
		}
		var pending []waiting
		m := &model{last: -1}
		window := 3600
		var pid uuid.UUID
		nextID := uint64(0)
		draw := func() []uint64 {
			n := rapid.SampledFrom([]int{1, 1, 2, 5, 300, 5000}).Draw(t, "frames")
			ids := make([]uint64, 0, n)
			for range n {
				nextID++
				ids = append(ids, nextID)
			}
			if len(m.rows) > 0 && rapid.Bool().Draw(t, "resend") {
				r := m.rows[rapid.IntRange(0, len(m.rows)-1).Draw(t, "row")]
				ids[rapid.IntRange(0, n-1).Draw(t, "at")] = r.ids[rapid.IntRange(0, len(r.ids)-1).Draw(t, "id")]
			}
			if len(m.rows) > 0 && rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
				ids = slices.Clone(m.rows[rapid.IntRange(0, len(m.rows)-1).Draw(t, "row")].ids)
			}
			return ids
		}
		submit := func(p waiting) {
			dups := m.twins(p.ids, window)
			v := w.push(t, p.cache, l, marked(segmentOf(l, p.ids), p.mark))
			if len(dups) > 0 {
				require.Equal(t, store.PushDuplicate, v.Status, "marked %v, %v", p.mark, dups)
				m.same(t, dups, v.Dups, window)
				return
			}
			require.Equal(t, store.PushQueued, v.Status, "refused as %v", v.Dups)
			if v.PartitionID != pid {
				pid, m = v.PartitionID, &model{last: -1}
			}
			require.Equal(t, m.last+1, v.BaseOffset)
			m.rows = append(m.rows, modelRow{base: v.BaseOffset, ids: p.ids})
			m.last += int64(len(p.ids))
		}
		mark := func(t *rapid.T) waiting {
			p := waiting{cache: caches[rapid.IntRange(0, len(caches)-1).Draw(t, "cache")], ids: draw()}
			p.mark = p.cache.Mark(context.Background(), l, segmentOf(l, p.ids).Hashes)
			return p
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":  func(t *rapid.T) { submit(mark(t)) },
			"again": func(t *rapid.T) { submit(mark(t)) },
			"mark":  func(t *rapid.T) { pending = append(pending, mark(t)) },
			"submit": func(t *rapid.T) {
				if len(pending) > 0 {
					submit(pending[0])
					pending = pending[1:]
				}
			},
			"configure": func(t *rapid.T) {
				window = rapid.SampledFrom([]int{0, 600, 3600, 7200}).Draw(t, "window")
				w.configure(t, l.Queue, window)
				if rapid.Bool().Draw(t, "told") {
					caches[0].ForgetQueue(l.Tenant, l.Queue)
				}
			},
			"age": func(t *rapid.T) {
				w.exec(t, `UPDATE queen.log_txns SET created_at = created_at - interval '900 s' WHERE partition_id = $1`, pid)
				for i := range m.rows {
					m.rows[i].age += 900
				}
			},
			"purge": func(t *rapid.T) {
				upto := m.purged
				for _, r := range m.rows {
					if r.age > max(window, 900) {
						upto = max(upto, r.base+int64(len(r.ids)))
					}
				}
				m.purged = upto
				w.exec(t, `DELETE FROM queen.log_txns WHERE partition_id = $1 AND base_offset < $2`, pid, upto)
				w.exec(t, `UPDATE queen.log_partitions SET txns_start = $2 WHERE id = $1`, pid, upto)
			},
			"recreate": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "really") > 0 {
					return
				}
				w.exec(t, `DELETE FROM queen.log_txns WHERE partition_id = $1`, pid)
				w.exec(t, `DELETE FROM queen.log_partitions WHERE id = $1`, pid)
				m = &model{last: -1}
			},
			"time": func(*rapid.T) { w.pass(31 * time.Second) },
			"":     func(*rapid.T) {},
		})
	})
}

// Brokers race for one lane with ids of a small pool: each is stored once.
func TestBrokersThatRaceStoreEveryIDOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := dedup.Lane{Tenant: store.DefaultTenant(), Queue: "q", Partition: "p"}
	caches := []*dedup.Cache{w.cache(t, 1<<20), w.cache(t, 1<<20), w.cache(t, 1), nil}
	const ids = 400
	var drawn sync.Map
	var writers errgroup.Group
	for n, c := range caches {
		writers.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for range 60 {
				todo := map[uint64]bool{}
				for range 1 + rng.IntN(20) {
					id := rng.Uint64N(ids)
					todo[id] = true
					drawn.Store(id, true)
				}
				for len(todo) > 0 { // what is left after the duplicates
					var list []uint64
					for id := range todo {
						list = append(list, id)
					}
					s := segmentOf(l, list)
					v := w.push(t, c, l, marked(s, c.Mark(context.Background(), l, s.Hashes)))
					if v.Status == store.PushQueued {
						break
					}
					for _, d := range v.Dups {
						delete(todo, list[d.Index])
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, writers.Wait())
	var stored, distinct int
	require.NoError(t, w.db.Do(t.Context(), "count", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*), count(DISTINCT x.h) FROM queen.log_txns AS t, queen.log_unnest_hashes(t.hashes) AS x`).Scan(&stored, &distinct)
	}))
	require.Equal(t, distinct, stored)
	drawn.Range(func(any, any) bool { distinct--; return true })
	require.Zero(t, distinct)
}

// history writes rows of a long window by hand.
func (w *world) history(t require.TestingT, l dedup.Lane, rows, frames int) uuid.UUID {
	v := w.push(t, nil, l, segmentOf(l, []uint64{1}))
	const chunk = 20_000 // rows of one statement
	for from := 0; from < rows; from += chunk {
		w.exec(t, `INSERT INTO queen.log_txns
			SELECT $1, 1 + g * $3::INT, (g + 1) * $3::INT, now() - interval '600 s' + make_interval(secs => 600.0 * g / $2::INT),
				(SELECT string_agg(decode(md5((g * 10000::BIGINT + i)::TEXT), 'hex'), '') FROM generate_series(1, $3::INT) AS i WHERE g >= 0)
			FROM generate_series($4::INT, $5::INT) AS g`, v.PartitionID, rows, frames, from, min(from+chunk, rows)-1)
	}
	w.exec(t, `UPDATE queen.log_txns SET created_at = now() - interval '600 s' WHERE partition_id = $1 AND base_offset = 0`, v.PartitionID)
	w.exec(t, `UPDATE queen.log_partitions SET last_offset = $2 WHERE id = $1`, v.PartitionID, rows*frames)
	w.exec(t, `ANALYZE queen.log_txns`)
	return v.PartitionID
}

// A lane with a long window is marked while another transaction holds it, and
// what is left for SQL to do under the lock is next to nothing, with a budget
// and without.
func TestRule07NoWindowIsScannedUnderTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := dedup.Lane{Tenant: store.DefaultTenant(), Queue: "q", Partition: "p"}
	const rows, frames = 2000, 100
	pid := w.history(t, l, rows, frames)
	for name, bytes := range map[string]int64{"warm": 64 << 20, "barred": 1} {
		c := w.cache(t, bytes)
		s := segmentOf(l, []uint64{1_000_000, 1})
		var m dedup.Mark
		require.NoError(t, w.db.Do(t.Context(), "hold", func(ctx context.Context, conn *pgx.Conn) error {
			tx, err := conn.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if _, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, pid); err != nil {
				return err
			}
			m = c.Mark(ctx, l, s.Hashes)
			return nil
		}))
		require.Equal(t, dedup.Mark{PartitionID: pid, Window: 3600, Verified: rows * frames, Suspects: []int64{0}}, m, name)
		v := w.push(t, c, l, marked(s, m))
		require.Equal(t, store.PushDuplicate, v.Status)
		require.Equal(t, []store.Dup{{Index: 1}}, v.Dups)
	}
}

// BenchmarkHydrate reads ten minutes of 4000 messages a second.
func BenchmarkHydrate(b *testing.B) {
	for _, frames := range []int{8, 100} {
		b.Run(fmt.Sprint("rows of ", frames), func(b *testing.B) {
			w := newWorld(b)
			l := dedup.Lane{Tenant: store.DefaultTenant(), Queue: "q", Partition: "p"}
			w.history(b, l, 2_400_000/frames, frames)
			for b.Loop() {
				c := w.cache(b, 64<<20)
				if m := c.Mark(b.Context(), l, hashOf(5)); m.Verified < 2_390_000 {
					b.Fatal(m)
				}
			}
		})
	}
}
