package fusion_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/fusion"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come, looking each tick.
const (
	patience = 10 * time.Second
	tick     = time.Millisecond
)

var (
	tenant           = store.DefaultTenant()
	errRefused error = &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "refused"}
	errLocked  error = &pgconn.PgError{Severity: "ERROR", Code: "55P03", Message: "canceling statement due to lock timeout"}
)

// call is one bundle that reached the database, and waits there for its answer.
type call struct {
	segments []store.PushSegment
	wait     store.LockWait
	answer   chan error // nil: commit
}

// database holds every call until the test answers it, when gated; it keeps what
// was committed.
type database struct {
	t     testing.TB
	calls chan *call // nil: answer at once

	mu      sync.Mutex
	lanes   map[string][]string // committed transaction ids by partition
	verdict func(store.PushSegment, store.LockWait) (store.PushVerdict, bool)
	refuse  func([]store.PushSegment, store.LockWait) error
	window  int
	seen    []call
	reader  *segment.Reader
}

func (d *database) PushBundle(_ context.Context, segments []store.PushSegment, wait store.LockWait) ([]store.PushVerdict, error) {
	if d.calls != nil {
		c := &call{segments: segments, wait: wait, answer: make(chan error)}
		d.calls <- c
		if err := <-c.answer; err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, call{segments: segments, wait: wait})
	if d.refuse != nil {
		if err := d.refuse(segments, wait); err != nil {
			return nil, err
		}
	}
	verdicts := make([]store.PushVerdict, len(segments))
	for i, s := range segments {
		verdicts[i] = d.write(s, wait)
	}
	return verdicts, nil
}

func (d *database) write(s store.PushSegment, wait store.LockWait) store.PushVerdict {
	if d.verdict != nil {
		if v, ok := d.verdict(s, wait); ok {
			return v
		}
	}
	v := store.PushVerdict{Status: store.PushQueued, PartitionID: uuid.NewSHA1(uuid.Nil, []byte(s.Partition)), BaseOffset: int64(len(d.lanes[s.Partition]))}
	d.lanes[s.Partition] = append(d.lanes[s.Partition], d.ids(s)...)
	return v
}

// ids are the transaction ids of a segment.
func (d *database) ids(s store.PushSegment) (ids []string) {
	for i := range s.Count {
		f, err := d.reader.Frame(s.Blob, i)
		require.NoError(d.t, err)
		ids = append(ids, f.TransactionID)
	}
	return ids
}

func (d *database) SegmentAt(context.Context, uuid.UUID, int64) (store.Segment, bool, error) {
	return store.Segment{}, false, nil
}

func (d *database) QueueSettings(context.Context, uuid.UUID, string) (store.QueueSettings, bool, error) {
	return store.QueueSettings{DedupWindow: d.window}, true, nil
}

type rig struct {
	t       testing.TB
	db      *database
	fuser   *fusion.Fuser
	gate    *admission.Gate
	pending sync.WaitGroup
}

func (r *rig) Pushed(uuid.UUID, string, string, int) {}

func setup(t testing.TB, gated bool, cfg fusion.Config, gate admission.Config) *rig {
	t.Helper()
	r := &rig{t: t, db: &database{t: t, lanes: make(map[string][]string), window: 3600}}
	if gated {
		r.db.calls = make(chan *call)
	}
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	r.db.reader, err = segment.NewReader(0)
	require.NoError(t, err)
	r.gate, err = admission.New(gate, noop.Meter{})
	require.NoError(t, err)
	r.fuser, err = fusion.New(cfg, fusion.Deps{
		Store: r.db, Packer: packer, Reader: r.db.reader, Admission: r.gate, Announcer: r,
		Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return r
}

// part is messages of one lane; their transaction ids are given by the client.
func part(partition string, ids ...string) fusion.Part {
	p := fusion.Part{
		Lane: fusion.Lane{Tenant: tenant, Queue: "q", Partition: partition}, Deadline: time.Now().Add(10 * time.Second),
	}
	for _, id := range ids {
		p.Messages = append(p.Messages, fusion.Message{Frame: segment.Frame{
			MessageID: uuid.New(), TransactionID: id, Payload: []byte(`{}`),
		}})
	}
	return p
}

// push starts a request and returns its parts, settled once wait returns.
func (r *rig) push(parts ...fusion.Part) []fusion.Part {
	r.pending.Go(func() { r.fuser.Push(context.Background(), parts) })
	return parts
}

// next is the next bundle that reached the database.
func (r *rig) next() *call {
	r.t.Helper()
	select {
	case c := <-r.db.calls:
		return c
	case <-time.After(patience):
		require.FailNow(r.t, "no bundle came")
		return nil
	}
}

// commit answers a bundle.
func (c *call) commit() { c.answer <- nil }

func (c *call) lanes() (names []string) {
	for _, s := range c.segments {
		names = append(names, fmt.Sprint(s.Partition, "*", s.Count))
	}
	return names
}

// accumulated waits until so many messages wait behind those in flight.
func (r *rig) accumulated(n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return fusion.Waiting(r.fuser) == n }, patience, tick)
}

func outcomes(parts []fusion.Part) (all []fusion.Outcome) {
	for i := range parts {
		for m := range parts[i].Messages {
			all = append(all, parts[i].Messages[m].Outcome)
		}
	}
	return all
}
