package dedup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/store"
)

var errDown = errors.New("no database")

// clock is a time that only tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type fakeRow struct {
	base, end int64
	at        time.Time
	hashes    []byte
}

type fakeLane struct {
	id   uuid.UUID
	last int64
	rows []fakeRow
}

// fakeStore is a sidecar in memory that counts its reads.
type fakeStore struct {
	clock *clock

	mu      sync.Mutex
	windows map[string]int
	lanes   map[Lane]*fakeLane
	reads   []string // "lane", "page", "rows"
	pages   []int64  // where each page began
	named   int      // rows asked for by name
	err     error
	// onRead runs outside of any lock, before each read, with its kind.
	onRead func(kind string)
}

func (f *fakeStore) begin(kind string) error {
	f.mu.Lock()
	hook, err := f.onRead, f.err
	f.reads = append(f.reads, kind)
	f.mu.Unlock()
	if hook != nil {
		hook(kind)
	}
	return err
}

func (f *fakeStore) Lane(_ context.Context, tenant uuid.UUID, queue, partition string, slack int, known uuid.UUID, window int) (store.LaneState, bool, error) {
	if err := f.begin("lane"); err != nil {
		return store.LaneState{}, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	secs, ok := f.windows[queue]
	if !ok {
		return store.LaneState{}, false, nil
	}
	l := f.lanes[Lane{tenant, queue, partition}]
	if l == nil {
		return store.LaneState{Window: secs, Last: -1, Start: store.NoStart}, true, nil
	}
	s := store.LaneState{Window: secs, PartitionID: l.id, Last: l.last, Start: store.NoStart}
	if secs > 0 && (known != l.id || secs > window) {
		s.Start = l.last + 1
		since := f.clock.Now().Add(-time.Duration(secs+slack) * time.Second)
		for _, r := range slices.Backward(l.rows) {
			if !r.at.Before(since) {
				s.Start = r.base
			}
		}
	}
	return s, true, nil
}

func (f *fakeStore) lane(id uuid.UUID) *fakeLane {
	for _, l := range f.lanes {
		if l.id == id {
			return l
		}
	}
	return &fakeLane{}
}

func (f *fakeStore) SidecarPage(ctx context.Context, id uuid.UUID, after int64, maxOffsets int) (store.Sidecar, error) {
	if err := errors.Join(f.begin("page"), ctx.Err()); err != nil {
		return store.Sidecar{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages = append(f.pages, after)
	var p store.Sidecar
	for _, r := range f.lane(id).rows {
		if r.base > after && (len(p.Bases) == 0 || r.base < p.Bases[0]+int64(maxOffsets)) {
			p.Bases, p.Ends, p.Newest = append(p.Bases, r.base), append(p.Ends, r.end), r.at
			p.Hashes = append(p.Hashes, r.hashes...)
		}
	}
	return p, nil
}

func (f *fakeStore) SidecarRows(ctx context.Context, id uuid.UUID, bases []int64) (store.Sidecar, error) {
	if err := errors.Join(f.begin("rows"), ctx.Err()); err != nil {
		return store.Sidecar{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named += len(bases)
	asked := make(map[int64]bool, len(bases))
	for _, base := range bases {
		asked[base] = true
	}
	var p store.Sidecar
	for _, r := range f.lane(id).rows {
		if asked[r.base] {
			p.Bases, p.Ends = append(p.Bases, r.base), append(p.Ends, r.end)
			p.Hashes = append(p.Hashes, r.hashes...)
		}
	}
	return p, nil
}

// write stores a segment, as anybody would.
func (f *fakeStore) write(lane Lane, hashes []byte) fakeRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[lane]
	if l == nil {
		l = &fakeLane{id: uuid.New(), last: -1}
		f.lanes[lane] = l
		if _, ok := f.windows[lane.Queue]; !ok {
			f.windows[lane.Queue] = 3600
		}
	}
	r := fakeRow{base: l.last + 1, end: l.last + int64(len(hashes)/hashSize), at: f.clock.Now(), hashes: bytes.Clone(hashes)}
	l.rows, l.last = append(l.rows, r), r.end
	return r
}

func (f *fakeStore) id(lane Lane) uuid.UUID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes[lane].id
}

func (f *fakeStore) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// took returns the kinds of the reads since the last call.
func (f *fakeStore) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.reads
	f.reads = nil
	return r
}

// bench is a cache over a fake store.
type bench struct {
	*Cache
	clock  *clock
	store  *fakeStore
	reader *sdk.ManualReader
	log    *bytes.Buffer
}

var lane = Lane{Tenant: store.DefaultTenant(), Queue: "orders", Partition: "a"}

func setup(t testing.TB, cfg Config) *bench {
	t.Helper()
	b := &bench{clock: &clock{now: time.Unix(1_700_000_000, 0)}, reader: sdk.NewManualReader(), log: &bytes.Buffer{}}
	b.store = &fakeStore{clock: b.clock, windows: make(map[string]int), lanes: make(map[Lane]*fakeLane)}
	if cfg.Bytes == 0 {
		cfg.Bytes = 64 << 20
	}
	cfg.Wait = cmp.Or(cfg.Wait, time.Minute) // of real time, on a busy machine
	var err error
	b.Cache, err = New(cfg, Deps{
		Store: b.store, Meter: sdk.NewMeterProvider(sdk.WithReader(b.reader)).Meter("test"),
		Logger: slog.New(slog.NewTextHandler(b.log, nil)), Now: b.clock.Now,
	})
	require.NoError(t, err)
	return b
}

// push stores a segment and tells the cache, as the broker does.
func (b *bench) push(l Lane, hashes []byte) fakeRow {
	r := b.store.write(l, hashes)
	b.Wrote(l, b.store.id(l), r.base, r.at, hashes)
	return r
}

// warm makes a lane of n ids ready.
func (b *bench) warm(t testing.TB, l Lane, n int) {
	t.Helper()
	b.store.write(l, random(n))
	b.Mark(t.Context(), l, random(1))
	require.EqualValues(t, n-1, b.Mark(t.Context(), l, random(1)).Verified)
	b.store.took()
}

func (b *bench) metric(t *testing.T, name string) int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &rm))
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				return d.DataPoints[0].Value
			case metricdata.Gauge[int64]:
				return d.DataPoints[0].Value
			}
		}
	}
	return 0
}

// charged is what the lanes are charged for, one by one.
func (b *bench) charged() (sum int64) {
	for _, l := range b.known(func(Lane) bool { return true }) {
		e := b.find(l)
		e.mu.Lock()
		sum += e.charged
		e.mu.Unlock()
	}
	return sum
}
