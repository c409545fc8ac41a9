package retention

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var (
	errLost   = errors.New("connection lost")
	errLocked = &pgconn.PgError{Code: "55P03", Message: "lock timeout"}
	errSlow   = &pgconn.PgError{Code: "57014", Message: "statement timeout"}
	errBroken = &pgconn.PgError{Code: "XX001", Message: "invalid page in block"}
)

// fakeLane is a partition. Its segments and sidecar rows are their instants.
type fakeLane struct {
	id       uuid.UUID
	segments []time.Time
	txns     []time.Time
	// consumed is how many of the segments every group has consumed; below 0 no
	// group has ever been there. A half consumed one counts for the prefilter alone.
	consumed int
	half     bool
	locked   bool  // its steps wait for the lock until they give up
	broken   error // of its steps
}

type fakeQueue struct {
	id    uuid.UUID
	name  string
	lanes []*fakeLane

	all, completed, maxWait time.Duration // 0: off
	txns                    time.Duration // 0: 15 minutes
}

// database plays the part of PostgreSQL by the time of the bubble.
type database struct {
	mu     sync.Mutex
	queues []*fakeQueue
	holder *fakeSession // of the lock
	opened int
	down   error // of attempts to connect

	cost    map[string]time.Duration // of each call, by name
	hook    func(call string) error  // runs before each call
	calls   []call
	clocks  map[string]time.Time
	places  map[string]uuid.UUID
	dead    int64                    // partitions to clean up
	wrong   int                      // watermarks to repair
	metrics int64                    // rows to purge
	width   int                      // lanes that a deep walk goes through
	others  func(now time.Time) bool // whether other sessions are at work; nil: never
}

type call struct {
	name    string
	at      time.Time
	session *fakeSession
	lane    uuid.UUID
}

func newDatabase() *database {
	return &database{cost: map[string]time.Duration{}, clocks: map[string]time.Time{}, places: map[string]uuid.UUID{}}
}

// named are the calls of a name, all for "".
func (d *database) named(names ...string) (out []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if len(names) == 0 || slices.Contains(names, c.name) {
			out = append(out, c)
		}
	}
	return out
}

// since are the instants of calls, counted from began.
func since(began time.Time, calls []call) (out []time.Duration) {
	for _, c := range calls {
		out = append(out, c.at.Sub(began))
	}
	return out
}

func (d *database) open(context.Context) (session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return nil, d.down
	}
	d.opened++
	return &fakeSession{db: d}, nil
}

func (d *database) locked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder != nil
}

// fakeSession is one connection to a database.
type fakeSession struct {
	db     *database
	closed bool
	waits  time.Duration // for the lock of a lane
}

// enter notes a call and lets its time pass.
func (s *fakeSession) enter(ctx context.Context, name string, lane uuid.UUID) error {
	d := s.db
	d.mu.Lock()
	d.calls = append(d.calls, call{name: name, at: time.Now(), session: s, lane: lane})
	hook, cost := d.hook, d.cost[name]
	closed := s.closed
	d.mu.Unlock()
	if closed {
		return errLost
	}
	if hook != nil {
		if err := hook(name); err != nil {
			return err
		}
	}
	time.Sleep(cost)
	if ctx.Err() != nil {
		s.Close(ctx)
		return context.Cause(ctx)
	}
	return nil
}

func (s *fakeSession) Close(context.Context) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.closed = true
	if s.db.holder == s {
		s.db.holder = nil
	}
}

func (s *fakeSession) Closed() bool {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.closed
}

func (s *fakeSession) SetLockWait(ctx context.Context, wait time.Duration) error {
	if err := s.enter(ctx, "SetLockWait", uuid.Nil); err != nil {
		return err
	}
	s.waits = wait
	return nil
}

func (s *fakeSession) OthersAtWork(ctx context.Context) (bool, error) {
	if err := s.enter(ctx, "OthersAtWork", uuid.Nil); err != nil {
		return false, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.others != nil && s.db.others(time.Now()), nil
}

func (s *fakeSession) TryLock(ctx context.Context) (bool, error) {
	if err := s.enter(ctx, "TryLock", uuid.Nil); err != nil {
		return false, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.holder != nil {
		return false, nil
	}
	s.db.holder = s
	s.waits = store.StepLockWait
	return true, nil
}

func (s *fakeSession) Unlock(ctx context.Context) error {
	if err := s.enter(ctx, "Unlock", uuid.Nil); err != nil {
		return err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.holder = nil
	return nil
}

func (s *fakeSession) Plan(ctx context.Context) (store.Plan, error) {
	if err := s.enter(ctx, "Plan", uuid.Nil); err != nil {
		return store.Plan{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := time.Now()
	plan := store.Plan{Now: now}
	cutoff := func(age time.Duration) *time.Time {
		if age == 0 {
			return nil
		}
		at := now.Add(-age)
		return &at
	}
	for _, q := range s.db.queues {
		p := store.QueuePlan{
			Queue: q.id, Name: q.name, All: cutoff(q.all), Completed: cutoff(q.completed),
			Txns: cutoff(max(q.txns, 15*time.Minute)), MaxWait: cutoff(q.maxWait),
		}
		for _, l := range q.lanes {
			if live := oldest(l.segments); !live.IsZero() {
				p.LiveDue = p.LiveDue || live.Before(liveCutoff(p))
				p.EvictDue = p.EvictDue || p.MaxWait != nil && live.Before(*p.MaxWait)
				if live.Before(liveCutoff(p)) {
					p.OldestDue = max(p.OldestDue, liveCutoff(p).Sub(live))
				}
			}
			p.TxnsDue = p.TxnsDue || len(l.txns) > 0 && l.txns[0].Before(*p.Txns)
		}
		if p.LiveDue || p.EvictDue || p.TxnsDue {
			plan.Queues = append(plan.Queues, p)
		}
	}
	return plan, nil
}

func oldest(at []time.Time) time.Time {
	if len(at) == 0 {
		return time.Time{}
	}
	return at[0]
}

// liveCutoff is the later cutoff of the two rules.
func liveCutoff(q store.QueuePlan) (at time.Time) {
	if q.All != nil {
		at = *q.All
	}
	if q.Completed != nil && q.Completed.After(at) {
		at = *q.Completed
	}
	return at
}

// page reads the lanes of a span by the instant of at.
func (s *fakeSession) page(q store.QueuePlan, after, until store.LaneKey, limit int, cutoff time.Time,
	at func(*fakeLane) time.Time, due func(*fakeLane) bool,
) (p store.Page) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	type keyed struct {
		key  store.LaneKey
		lane *fakeLane
	}
	var lanes []keyed
	for _, fq := range s.db.queues {
		for _, l := range fq.lanes {
			key := store.LaneKey{At: at(l), ID: l.id}
			if fq.id != q.Queue || key.At.IsZero() || !key.At.Before(cutoff) || !before(after, key) {
				continue
			}
			if until != (store.LaneKey{}) && before(until, key) {
				continue
			}
			lanes = append(lanes, keyed{key, l})
		}
	}
	slices.SortFunc(lanes, func(a, b keyed) int {
		if before(a.key, b.key) {
			return -1
		}
		return 1
	})
	lanes = lanes[:min(limit, len(lanes))]
	for _, l := range lanes {
		p.Examined++
		p.Last = l.key
		if due(l.lane) {
			p.Due = append(p.Due, l.lane.id)
		}
	}
	slices.SortFunc(p.Due, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return p
}

func live(l *fakeLane) time.Time    { return oldest(l.segments) }
func sidecar(l *fakeLane) time.Time { return oldest(l.txns) }
func always(*fakeLane) bool         { return true }

func (s *fakeSession) RetentionPage(ctx context.Context, q store.QueuePlan, after, until store.LaneKey, limit int) (store.Page, error) {
	if err := s.enter(ctx, "RetentionPage", uuid.Nil); err != nil {
		return store.Page{}, err
	}
	return s.page(q, after, until, limit, liveCutoff(q), live, func(l *fakeLane) bool {
		return q.All != nil && live(l).Before(*q.All) || q.Completed != nil && (l.consumed > 0 || l.half)
	}), nil
}

func (s *fakeSession) TxnsPage(ctx context.Context, q store.QueuePlan, after store.LaneKey, limit int) (store.Page, error) {
	if err := s.enter(ctx, "TxnsPage", uuid.Nil); err != nil {
		return store.Page{}, err
	}
	return s.page(q, after, store.LaneKey{}, limit, *q.Txns, sidecar, always), nil
}

func (s *fakeSession) EvictPage(ctx context.Context, q store.QueuePlan, after store.LaneKey, limit int) (store.Page, error) {
	if err := s.enter(ctx, "EvictPage", uuid.Nil); err != nil {
		return store.Page{}, err
	}
	return s.page(q, after, store.LaneKey{}, limit, *q.MaxWait, live, always), nil
}

// lockLane begins a step: it finds the lane and waits for its lock.
func (s *fakeSession) lockLane(ctx context.Context, name string, pid uuid.UUID) (*fakeLane, error) {
	if err := s.enter(ctx, name, pid); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	lane := s.db.lane(pid)
	locked, broken := lane.locked, lane.broken
	s.db.mu.Unlock()
	if locked {
		time.Sleep(s.waits)
		return nil, errLocked
	}
	return lane, broken
}

// lane finds a lane; one without segments when there is none.
func (d *database) lane(pid uuid.UUID) *fakeLane {
	for _, q := range d.queues {
		for _, l := range q.lanes {
			if l.id == pid {
				return l
			}
		}
	}
	return &fakeLane{}
}

// cut takes rows off the head, at most rows, while they may go.
func cut(from []time.Time, rows int, may func(i int, at time.Time) bool) (n int) {
	for n < len(from) && n < rows && may(n, from[n]) {
		n++
	}
	return n
}

func (s *fakeSession) RetentionStep(ctx context.Context, pid uuid.UUID, all, completed *time.Time, rows int) (store.Step, error) {
	return s.cutSegments(ctx, "RetentionStep", pid, all, completed, rows)
}

func (s *fakeSession) EvictStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (store.Step, error) {
	return s.cutSegments(ctx, "EvictStep", pid, &cutoff, nil, rows)
}

func (s *fakeSession) cutSegments(ctx context.Context, name string, pid uuid.UUID, all, completed *time.Time, rows int) (store.Step, error) {
	l, err := s.lockLane(ctx, name, pid)
	if err != nil {
		return store.Step{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n := cut(l.segments, rows, func(i int, at time.Time) bool {
		return all != nil && at.Before(*all) || completed != nil && at.Before(*completed) && i < l.consumed
	})
	l.segments = l.segments[n:]
	l.consumed = max(l.consumed-n, min(l.consumed, 0))
	return store.Step{Deleted: int64(n), Messages: 10 * int64(n), Bytes: 100 * int64(n), Done: n < rows}, nil
}

func (s *fakeSession) TxnsStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (store.Step, error) {
	l, err := s.lockLane(ctx, "TxnsStep", pid)
	if err != nil {
		return store.Step{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n := cut(l.txns, rows, func(_ int, at time.Time) bool { return at.Before(cutoff) })
	l.txns = l.txns[n:]
	return store.Step{Deleted: int64(n), Done: n < rows}, nil
}

func (s *fakeSession) NextEviction(ctx context.Context) (next *time.Duration, err error) {
	if err := s.enter(ctx, "NextEviction", uuid.Nil); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, q := range s.db.queues {
		for _, l := range q.lanes {
			if q.maxWait == 0 || len(l.segments) == 0 {
				continue
			}
			if wait := time.Until(l.segments[0].Add(q.maxWait)); next == nil || wait < *next {
				next = &wait
			}
		}
	}
	return next, nil
}

func (s *fakeSession) Forecast(ctx context.Context, pid uuid.UUID, all, completed *time.Time) (store.Forecast, error) {
	if err := s.enter(ctx, "Forecast", pid); err != nil {
		return store.Forecast{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	l := s.db.lane(pid)
	n := cut(l.segments, len(l.segments), func(i int, at time.Time) bool {
		return all != nil && at.Before(*all) || completed != nil && at.Before(*completed) && i < l.consumed
	})
	return store.Forecast{Segments: int64(n), Messages: 10 * int64(n), Bytes: 100 * int64(n)}, nil
}

func (s *fakeSession) ForecastTxns(ctx context.Context, pid uuid.UUID, cutoff time.Time) (int64, error) {
	if err := s.enter(ctx, "ForecastTxns", pid); err != nil {
		return 0, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	l := s.db.lane(pid)
	return int64(cut(l.txns, len(l.txns), func(_ int, at time.Time) bool { return at.Before(cutoff) })), nil
}

func (s *fakeSession) ForecastCleanup(ctx context.Context, _ time.Time, after store.LaneKey, rows int) (store.Cleanup, error) {
	if err := s.enter(ctx, "ForecastCleanup", after.ID); err != nil {
		return store.Cleanup{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n := min(s.db.dead-int64(laneNumber(after.ID)), int64(rows))
	last := store.LaneKey{ID: numbered(laneNumber(after.ID) + int(n))}
	return store.Cleanup{Deleted: n, Examined: int(n), Last: last, Done: n < int64(rows)}, nil
}

func (s *fakeSession) ForecastMetrics(ctx context.Context, _ time.Time) (int64, error) {
	if err := s.enter(ctx, "ForecastMetrics", uuid.Nil); err != nil {
		return 0, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.metrics, nil
}

func (s *fakeSession) CleanupStep(ctx context.Context, _ time.Time, after store.LaneKey, rows int) (store.Cleanup, error) {
	if err := s.enter(ctx, "CleanupStep", after.ID); err != nil {
		return store.Cleanup{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n := min(s.db.dead, int64(rows))
	s.db.dead -= n
	last := store.LaneKey{ID: numbered(laneNumber(after.ID) + int(n))}
	return store.Cleanup{Deleted: n, Examined: int(n), Last: last, Done: n < int64(rows)}, nil
}

func (s *fakeSession) PurgeMetrics(ctx context.Context, _ time.Time, rows int) (int64, error) {
	if err := s.enter(ctx, "PurgeMetrics", uuid.Nil); err != nil {
		return 0, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n := min(s.db.metrics, int64(rows))
	s.db.metrics -= n
	return n, nil
}

func (s *fakeSession) WalkStep(ctx context.Context, after uuid.UUID, limit int, deep bool) (store.Walk, error) {
	name := "WalkStep"
	if deep {
		name = "WalkStep deep"
	}
	if err := s.enter(ctx, name, after); err != nil {
		return store.Walk{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	n, end := 0, deep && laneNumber(after)+limit >= s.db.width
	if !deep {
		n = min(limit, s.db.wrong)
		s.db.wrong -= n
	}
	return store.Walk{Last: numbered(laneNumber(after) + limit), Examined: limit, Repaired: n, End: end}, nil
}

func (s *fakeSession) ClockDue(ctx context.Context, name string, every time.Duration) (bool, error) {
	if err := s.enter(ctx, "ClockDue", uuid.Nil); err != nil {
		return false, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if last, ok := s.db.clocks[name]; ok && time.Since(last) < every {
		return false, nil
	}
	s.db.clocks[name] = time.Now()
	return true, nil
}

func (s *fakeSession) Position(ctx context.Context, name string) (uuid.UUID, error) {
	if err := s.enter(ctx, "Position", uuid.Nil); err != nil {
		return uuid.Nil, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.places[name], nil
}

func (s *fakeSession) SetPosition(ctx context.Context, name string, id uuid.UUID) error {
	if err := s.enter(ctx, "SetPosition", uuid.Nil); err != nil {
		return err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.places[name] = id
	return nil
}

// numbered is an id that sorts by n.
func numbered(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func laneNumber(id uuid.UUID) int { return int(binary.BigEndian.Uint64(id[8:])) }

// bench is one replica over a database of its own, in a bubble of time.
type bench struct {
	*Retention
	t     *testing.T
	db    *database
	lines *logtest.Recorder
	began time.Time
	next  int // number of the next lane or queue
}

// bubble runs a test in a bubble of time.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		log, lines := logtest.NewRecorder()
		test(t, &bench{Retention: newReplica(t, cfg, db, log), t: t, db: db, lines: lines, began: time.Now()})
	})
}

func newReplica(t *testing.T, cfg Config, db *database, log *slog.Logger) *Retention {
	t.Helper()
	r, err := newRetention(cfg, Deps{Log: log, Meter: noop.Meter{}}, db.open)
	require.NoError(t, err)
	return r
}

// run lets Run work for a while and ends it.
func (b *bench) run(d time.Duration) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	require.NoError(b.t, b.Run(ctx))
	require.False(b.t, b.db.locked(), "the lock was kept")
}

func (b *bench) queue(q fakeQueue) *fakeQueue {
	b.next++
	q.id = numbered(b.next)
	if q.name == "" {
		q.name = "q"
	}
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	b.db.queues = append(b.db.queues, &q)
	return &q
}

// lanes adds n lanes of so many segments each, the oldest of that age and the
// others a microsecond younger each. Nobody has consumed anything of them.
func (b *bench) lanes(q *fakeQueue, n, segments int, age time.Duration) (out []*fakeLane) {
	b.db.mu.Lock()
	defer b.db.mu.Unlock()
	for range n {
		b.next++
		l := &fakeLane{id: numbered(b.next), consumed: -1}
		for i := range segments {
			l.segments = append(l.segments, time.Now().Add(-age+time.Duration(i)*time.Microsecond))
		}
		out = append(out, l)
	}
	q.lanes = append(q.lanes, out...)
	return out
}

// ago are n instants of that age.
func ago(n int, age time.Duration) (out []time.Time) {
	for range n {
		out = append(out, time.Now().Add(-age))
	}
	return out
}

// left counts the segments that are still there.
func (q *fakeQueue) left() (n int) {
	for _, l := range q.lanes {
		n += len(l.segments)
	}
	return n
}
