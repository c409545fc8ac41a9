package timers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

var (
	errGone     = errors.New("connection lost")
	errDeadlock = &pgconn.PgError{Code: "40P01", Message: "deadlock detected"}
	errMissing  = &pgconn.PgError{Code: "42883", Message: "function does not exist"}
	errRefused  = &pgconn.PgError{Code: "22001", Message: "value too long"}
)

// Names of the calls.
const (
	callDue        = "due"
	callClaim      = "claim"
	callFire       = "fire"
	callFail       = "fail"
	callDeadLetter = "deadletter"
	callOthers     = "others"
	callSwitches   = "switches"
	callExpire     = "expire"
	callMeasure    = "measure"
	callTables     = "tables"
)

// fakeTimer is a row of the table.
type fakeTimer struct {
	store.ClaimedTimer
	deliver time.Time
	until   time.Time // of the lease or of the backoff
	held    bool
}

func (f *fakeTimer) visible() time.Time {
	if f.until.After(f.deliver) {
		return f.until
	}
	return f.deliver
}

// fakeDB plays the part of PostgreSQL by the time of the bubble.
type fakeDB struct {
	skew time.Duration // of its clock against this host's

	mu       sync.Mutex
	timers   []*fakeTimer
	fireOff  bool
	expired  int // keys
	calls    []fakeCall
	cost     map[string]time.Duration
	fault    func(call string, n int) error // before the call does anything; n counts from 1
	after    func(call string) error        // after it did
	poison   string                         // key that no fire may hold
	others   bool                           // are at work
	stealing bool                           // claims take nothing, though timers are due
	fired    []string                       // keys, in the order of their frames
	letters  []store.TimerLetter
	failures []store.TimerFailure
	counts   map[string]int
}

type fakeCall struct {
	name string
	at   time.Time
	size int // rows asked for, segments fired
}

func newFakeDB() *fakeDB { return &fakeDB{cost: map[string]time.Duration{}, counts: map[string]int{}} }

func (f *fakeDB) now() time.Time { return time.Now().Add(f.skew) }

// begin notes a call and takes its time.
func (f *fakeDB) begin(ctx context.Context, name string, size int) error {
	f.mu.Lock()
	f.calls = append(f.calls, fakeCall{name, time.Now(), size})
	f.counts[name]++
	n, cost, fault := f.counts[name], f.cost[name], f.fault
	f.mu.Unlock()
	if cost > 0 {
		select {
		case <-time.After(cost):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fault != nil {
		return fault(name, n)
	}
	return ctx.Err()
}

func (f *fakeDB) end(name string) error {
	if f.after != nil {
		return f.after(name)
	}
	return nil
}

// add schedules timers that are due in a while, all of one lane.
func (f *fakeDB) add(n int, in time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		key := fmt.Sprintf("t%04d", len(f.timers)+len(f.fired))
		f.timers = append(f.timers, &fakeTimer{deliver: f.now().Add(in), ClaimedTimer: store.ClaimedTimer{
			TimerKey:  store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q", Key: key},
			Partition: "p", Txn: "txn-" + key, MessageID: uuid.New(), Payload: []byte(`{}`),
		}})
	}
}

func (f *fakeDB) TimersDue(ctx context.Context, _ []int16, limit int) (store.TimersDue, error) {
	if err := f.begin(ctx, callDue, limit); err != nil {
		return store.TimersDue{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := store.TimersDue{Now: f.now()}
	for _, t := range f.timers {
		in := t.visible().Sub(out.Now)
		if in <= 0 {
			out.Due = min(out.Due+1, limit)
			out.Late = max(out.Late, -in)
		}
		if out.Next == nil || in < *out.Next {
			out.Next = &in
		}
	}
	out.Capped = out.Due == limit
	return out, f.end(callDue)
}

func (f *fakeDB) TimersClaim(ctx context.Context, c store.TimerClaim) (out []store.ClaimedTimer, err error) {
	if err := f.begin(ctx, callClaim, c.Rows); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for _, t := range f.timers {
		if len(out) == c.Rows || f.stealing || t.visible().After(now) {
			continue
		}
		t.Token, t.held, t.until, t.Late = uuid.New(), true, now.Add(c.Lease), now.Sub(t.deliver)
		out = append(out, t.ClaimedTimer)
	}
	return out, f.end(callClaim)
}

func (f *fakeDB) TimersFire(ctx context.Context, segs []store.FireSegment) (out []store.FireVerdict, err error) {
	if err := f.begin(ctx, callFire, len(segs)); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range segs {
		if f.poison != "" && slices.Contains(s.Keys, f.poison) {
			return nil, errRefused
		}
	}
	for _, s := range segs {
		rows := f.rows(s.Keys, s.Tokens)
		if len(rows) < len(s.Keys) {
			out = append(out, store.FireVerdict{})
			continue
		}
		out = append(out, store.FireVerdict{Fired: true})
		f.fired = append(f.fired, s.Keys...)
		f.timers = slices.DeleteFunc(f.timers, func(t *fakeTimer) bool { return slices.Contains(rows, t) })
	}
	return out, f.end(callFire)
}

// rows are those that are held by their tokens.
func (f *fakeDB) rows(keys []string, tokens []uuid.UUID) (out []*fakeTimer) {
	for _, t := range f.timers {
		if i := slices.Index(keys, t.Key); i >= 0 && t.held && t.Token == tokens[i] && t.until.After(f.now()) {
			out = append(out, t)
		}
	}
	return out
}

func (f *fakeDB) TimersFail(ctx context.Context, timers []store.HeldTimer, why store.TimerFailure) (out store.TimersFailed, err error) {
	if err := f.begin(ctx, callFail, len(timers)); err != nil {
		return out, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, why)
	for _, h := range timers {
		for _, t := range f.timers {
			if t.Key != h.Key || t.Token != h.Token {
				continue
			}
			t.Token, t.held, t.until = uuid.Nil, false, f.now().Add(why.Backoff)
			if !why.Transient {
				t.Attempts++
			}
			out.Failed++
			if t.Attempts >= why.MaxAttempts {
				out.Exhausted = append(out.Exhausted, store.ExhaustedTimer{TimerKey: t.TimerKey, Attempts: t.Attempts})
			}
		}
	}
	return out, f.end(callFail)
}

func (f *fakeDB) TimersDeadLetter(ctx context.Context, letters []store.TimerLetter, least int) (archived, skipped int, err error) {
	if err := f.begin(ctx, callDeadLetter, len(letters)); err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range letters {
		before := len(f.timers)
		f.timers = slices.DeleteFunc(f.timers, func(t *fakeTimer) bool { return t.Key == l.Key && !t.held && t.Attempts >= least })
		archived += before - len(f.timers)
		f.letters = append(f.letters, l)
	}
	return archived, len(letters) - archived, f.end(callDeadLetter)
}

func (f *fakeDB) OthersAtWork(ctx context.Context) (bool, error) {
	if err := f.begin(ctx, callOthers, 0); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others, f.end(callOthers)
}

func (f *fakeDB) KVSwitches(ctx context.Context) (store.KVSwitches, error) {
	if err := f.begin(ctx, callSwitches, 0); err != nil {
		return store.KVSwitches{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: !f.fireOff}, nil
}

func (f *fakeDB) KVExpire(ctx context.Context, _ []int16, rows int) (store.KVExpired, error) {
	if err := f.begin(ctx, callExpire, rows); err != nil {
		return store.KVExpired{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(f.expired, rows)
	f.expired -= n
	return store.KVExpired{Deleted: n, Done: n < rows, Unpruned: f.expired}, nil
}

func (f *fakeDB) KVMeasure(ctx context.Context, _ []int16, tenants int) (store.KVUsage, error) {
	return store.KVUsage{}, f.begin(ctx, callMeasure, tenants)
}

func (f *fakeDB) SweepTables(ctx context.Context) ([]store.TableSize, error) {
	return nil, f.begin(ctx, callTables, 0)
}

// called are the instants of the calls of a name, from began on.
func (f *fakeDB) called(name string, began time.Time) (out []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.name == name {
			out = append(out, c.at.Sub(began))
		}
	}
	return out
}

func (f *fakeDB) sizes(name string) (out []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.name == name {
			out = append(out, c.size)
		}
	}
	return out
}

func (f *fakeDB) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.timers)
}

func (f *fakeDB) set(change func(f *fakeDB)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// bubble is a sweeper over a fake database, in the bubble of a test.
type bubble struct {
	*testing.T
	s         *Sweeper
	db        *fakeDB
	began     time.Time
	announced []string
	cancel    context.CancelFunc
	done      chan struct{}
}

// inBubble runs a test by a clock of its own.
func inBubble(t *testing.T, cfg Config, run func(b *bubble)) {
	t.Helper()
	inLoggedBubble(t, cfg, logtest.New(t), run)
}

func inLoggedBubble(t *testing.T, cfg Config, log *slog.Logger, run func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{T: t, db: newFakeDB(), began: time.Now(), done: make(chan struct{})}
		packer, err := segment.NewPacker(segment.DefaultLevel)
		require.NoError(t, err)
		var mu sync.Mutex
		b.s, err = newSweeper(cfg, Deps{
			Packer: packer, Log: log, Meter: noop.NewMeterProvider().Meter(""),
			Announce: func(_ uuid.UUID, queue, partition string, n int) {
				mu.Lock()
				defer mu.Unlock()
				b.announced = append(b.announced, fmt.Sprintf("%s/%s %d", queue, partition, n))
			},
		}, b.db)
		require.NoError(t, err)
		run(b)
		b.stop()
	})
}

// start runs the loop until the test ends.
func (b *bubble) start() {
	ctx, cancel := context.WithCancel(b.Context())
	b.cancel = cancel
	go func() {
		defer close(b.done)
		_ = b.s.Run(ctx)
	}()
	synctest.Wait()
}

func (b *bubble) stop() {
	if b.cancel != nil {
		b.cancel()
		<-b.done
	}
}

// pass lets time go by.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d) // of the bubble's clock
	synctest.Wait()
}

// at is how much time has gone by.
func (b *bubble) at() time.Duration { return time.Since(b.began) }

func (b *bubble) calls(name string) []time.Duration { return b.db.called(name, b.began) }
