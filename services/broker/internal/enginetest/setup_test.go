package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ack"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/fusion"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
	"github.com/queenmq/queen/services/broker/internal/push"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/tails"
	"github.com/queenmq/queen/services/broker/internal/timers"
	"github.com/queenmq/queen/services/broker/internal/transact"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var tenant = store.DefaultTenant()

// engine is the whole message plane over one database.
type engine struct {
	t     *testing.T
	db    *pgdb.DB
	store *store.Store
	hot   *hotlist.List
	push  *push.Service
	pop   *pop.Service
	ack   *ack.Service
	tx    *transact.Service
	quota *quota.Keeper
	// collector writes what the engine has counted, when it is told to.
	collector *collector.Collector

	registry *registry.Registry
	whole    atomic.Int64 // acks that took the fast path
	handed   atomic.Int64 // lanes that went from an ack to a waiting pop in one update
}

// counting counts the batches that are committed without a look at their hashes.
type counting struct {
	ack.Batches
	n *atomic.Int64
}

func (c counting) Ack(ctx context.Context, batches []store.AckRow) ([]ackfusion.Verdict, error) {
	c.n.Add(int64(len(batches)))
	return c.Batches.Ack(ctx, batches)
}

// between wraps the store that the push service sees.
type between func(fusion.Store) fusion.Store

func setup(t *testing.T, wraps ...between) *engine {
	t.Helper()
	return broker(t, pgtest.New(t), false, wraps...)
}

// broker is an engine over a database that others may share. A plain one has no
// ack accelerators.
func broker(t *testing.T, db *pgdb.DB, plain bool, wraps ...between) *engine {
	t.Helper()
	return assemble(t, db, shape{plain: plain, pops: pop.Config{PendingGate: true}}, wraps...)
}

// shape is what an engine consists of.
type shape struct {
	plain bool // no ack accelerators
	cold  bool // no hot list
	pops  pop.Config
}

func assemble(t *testing.T, db *pgdb.DB, is shape, wraps ...between) *engine {
	t.Helper()
	plain := is.plain
	e := &engine{t: t, db: db, store: store.New(db), registry: registry.New(registry.Config{LeasesOnly: plain})}
	logger := slog.New(slog.DiscardHandler)
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	gate, err := admission.New(admission.Config{Slots: 6}, noop.Meter{})
	require.NoError(t, err)
	memo, err := lanes.NewMemo(1024)
	require.NoError(t, err)
	hub, ids, letters := wake.NewHub(), mint.NewSource(), deadletter.NewFiler(e.store, reader, logger)
	announcer := &announce.Announcer{Local: announce.Local{Waker: hub, Lanes: memo}}
	if !is.cold {
		e.hot, err = hotlist.New(hotlist.Config{}, hotlist.Deps{Store: e.store, Waker: hub, Meter: noop.Meter{}, Logger: logger})
		require.NoError(t, err)
		announcer.HotList = e.hot
	}
	counters := collector.NewCounters(collector.QueuesDefault)
	e.collector, err = collector.New(collector.Config{}, collector.Deps{
		Store: e.store, Pool: db.Stat, Counters: counters, Meter: noop.Meter{}, Log: logger,
	})
	require.NoError(t, err)
	var pushStore fusion.Store = e.store
	for _, wrap := range wraps {
		pushStore = wrap(pushStore)
	}
	recent, err := tails.New(1 << 20)
	require.NoError(t, err)
	fuser, err := fusion.New(fusion.Config{}, fusion.Deps{
		Store: pushStore, Packer: packer, Reader: reader, Admission: gate, Announcer: announcer, Tails: recent,
		Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	e.push, err = push.New(push.Config{}, push.Deps{Fuser: fuser, Admission: gate, IDs: ids, Counters: counters, Meter: noop.Meter{}})
	require.NoError(t, err)
	var together *popfusion.Fuser
	if !plain {
		together, err = popfusion.New(popfusion.Config{}, popfusion.Deps{Store: e.store, Admission: gate, Meter: noop.Meter{}})
		require.NoError(t, err)
	}
	e.pop, err = pop.New(is.pops, pop.Deps{
		Store: e.store, Reader: reader, Admission: gate, Hub: hub, Lanes: memo, HotList: e.hot, Fusion: together, Tails: recent, Registry: e.registry, IDs: ids,
		Counters: counters, Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	e.ack, err = ack.New(ack.Config{}, ack.Deps{
		Store: e.store, Batches: counting{e.batches(gate, plain), &e.whole}, Registry: e.registry, Letters: letters, Admission: gate, Announcer: announcer,
		Counters: counters, Lanes: memo, Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	e.quota, err = quota.New(quota.Config{}, quota.Deps{Store: e.store, Meter: noop.Meter{}, Logger: logger})
	require.NoError(t, err)
	e.tx, err = transact.New(transact.Config{}, transact.Deps{
		Store: e.store, Packer: packer, Letters: letters, Admission: gate, Announcer: announcer, Registry: e.registry, IDs: ids,
		Quota: e.quota, Timers: timers.NewEdge(timers.Config{}, e.quota, ids),
		Counters: counters, Lanes: memo, Meter: noop.Meter{}, Logger: logger,
	})
	require.NoError(t, err)
	t.Cleanup(e.pop.Close)
	e.loop(e.hot.Run)
	e.loop(e.pop.Run)
	return e
}

// riding counts the handovers of lanes.
type riding struct {
	ackfusion.Store
	handed *atomic.Int64
}

func (r riding) AckAndPop(
	ctx context.Context, rows []store.AckRow, wait bool, next store.Next,
) ([]store.AckOutcome, store.NextServed, error) {
	out, served, err := r.Store.AckAndPop(ctx, rows, wait, next)
	for _, last := range served.Handed {
		if last != store.Refused {
			r.handed.Add(1)
		}
	}
	return out, served, err
}

func (e *engine) riding() ackfusion.Store { return riding{e.store, &e.handed} }

// loop runs a loop until the test ends.
func (e *engine) loop(loop func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop(ctx) }()
	e.t.Cleanup(func() {
		stop()
		require.NoError(e.t, <-ended)
	})
}

func (e *engine) batches(gate *admission.Gate, plain bool) ack.Batches {
	if plain {
		return &ackfusion.Direct{Store: e.store, Admission: gate}
	}
	fuser, err := ackfusion.New(ackfusion.Config{}, ackfusion.Deps{
		Store: e.riding(), Admission: gate, Riders: e.pop, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(e.t, err)
	return fuser
}

func (e *engine) configure(queue, options string) {
	e.t.Helper()
	_, err := e.store.Configure(e.t.Context(), tenant, queue, json.RawMessage(options), false)
	require.NoError(e.t, err)
}

func item(queue, partition, id string) wire.PushItem {
	return wire.PushItem{Queue: queue, Partition: partition, TransactionID: id, Payload: []byte(`{"id":"` + id + `"}`)}
}

// items are messages of one lane whose ids are a prefix and a number.
func items(queue, partition, prefix string, n int) []wire.PushItem {
	out := make([]wire.PushItem, n)
	for i := range out {
		out[i] = item(queue, partition, fmt.Sprint(prefix, i))
	}
	return out
}

func (e *engine) pushed(batch ...wire.PushItem) []wire.PushResult {
	e.t.Helper()
	rs, err := e.push.Push(context.Background(), tenant, "", batch)
	require.NoError(e.t, err)
	return rs
}

// queued pushes and requires that everything was stored.
func (e *engine) queued(batch ...wire.PushItem) []wire.PushResult {
	e.t.Helper()
	rs := e.pushed(batch...)
	for _, r := range rs {
		require.Equal(e.t, wire.StatusQueued, r.Status, r.Error)
	}
	return rs
}

type message struct {
	ID                                             uuid.UUID
	TransactionID, PartitionID, Partition, LeaseID string
	Data                                           json.RawMessage
	DeliveryAttempt                                int
}

type option func(*pop.Request)

func batch(n int) option       { return func(r *pop.Request) { r.Query.Batch = n } }
func partitions(n int) option  { return func(r *pop.Request) { r.Query.Partitions = n } }
func group(name string) option { return func(r *pop.Request) { r.Query.Group = name } }
func mode(name string) option  { return func(r *pop.Request) { r.Query.SubMode = name } }
func lease(seconds int) option { return func(r *pop.Request) { r.Query.LeaseSeconds = seconds } }
func autoAck(r *pop.Request)   { r.Query.AutoAck = true }
func waiting(d time.Duration) option {
	return func(r *pop.Request) { r.Query.Wait, r.Query.Timeout = true, d }
}

func of(partition string) option {
	return func(r *pop.Request) { r.Route, r.Partition = pop.Specific, partition }
}

func (e *engine) try(ctx context.Context, queue string, options ...option) ([]message, error) {
	req := pop.Request{Tenant: tenant, Queue: queue, Query: wire.PopQuery{
		Batch: 100, Partitions: 1, Group: store.QueueModeGroup, SubMode: wire.ModeAll,
	}}
	for _, o := range options {
		o(&req)
	}
	body, err := e.pop.Pop(ctx, req)
	if err != nil || body == nil {
		return nil, err
	}
	var reply struct{ Messages []message }
	return reply.Messages, json.Unmarshal(body, &reply)
}

func (e *engine) popped(queue string, options ...option) []message {
	e.t.Helper()
	ms, err := e.try(e.t.Context(), queue, options...)
	require.NoError(e.t, err)
	return ms
}

func ids(ms []message) []string {
	out := make([]string, 0, len(ms))
	for _, m := range ms {
		out = append(out, m.TransactionID)
	}
	return out
}

func ackOf(m message, group, status string) wire.AckItem {
	return wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Group: group, Status: status}
}

func (e *engine) acked(acks ...wire.AckItem) []wire.AckResult {
	rs, err := e.ack.Ack(context.Background(), tenant, wire.AckRequest{Items: acks})
	if err != nil {
		e.t.Error(err) // also called from other goroutines than the test's
	}
	return rs
}

// settle acknowledges messages of queue mode with one status and requires success.
func (e *engine) settle(status string, ms ...message) []wire.AckResult {
	e.t.Helper()
	acks := make([]wire.AckItem, 0, len(ms))
	for _, m := range ms {
		acks = append(acks, ackOf(m, store.QueueModeGroup, status))
	}
	rs := e.acked(acks...)
	for _, r := range rs {
		require.True(e.t, r.Success, r.Error)
	}
	return rs
}

// dead returns the ids and reasons of the dead letters of a queue.
func (e *engine) dead(queue string) map[string]string {
	e.t.Helper()
	raw, err := e.store.DLQMessages(e.t.Context(), store.DLQFilter{Tenant: tenant, Queue: queue, Limit: 100})
	require.NoError(e.t, err)
	var list struct {
		Messages []struct{ TransactionID, ErrorMessage string }
	}
	require.NoError(e.t, json.Unmarshal(raw, &list))
	out := make(map[string]string)
	for _, m := range list.Messages {
		out[m.TransactionID] = m.ErrorMessage
	}
	return out
}
