package hints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
)

const (
	// FlushInterval is how long hints gather after a flush. To receive a datagram
	// takes about 50 us of processor time, whatever is in it.
	FlushInterval = 10 * time.Millisecond
	// flushBytes bounds what one flush sends to each peer; what remains goes with the
	// next one, so that a burst does not overrun its receivers. It makes about 30
	// datagrams, twice as many where hints are so long that they travel alone.
	flushBytes = 32 << 10
	// inboxLimit bounds the received payloads that wait to be worked on.
	inboxLimit = 4096
	// leaveTimeout is how long a stop waits until peers know of it.
	leaveTimeout = time.Second
)

// Deps are what a pool works with.
type Deps struct {
	ID   string // of this process, for people
	Role Role
	// Installation identifies the database. Processes that disagree about it never
	// meet.
	Installation func(ctx context.Context) (uuid.UUID, error)
	// Receive is called with each hint of others, one at a time. It must not block.
	Receive func(Hint)
	Log     *slog.Logger
	Meter   metric.Meter
}

// timing is what tests shorten.
type timing struct {
	flush, look, calm time.Duration
}

// Pool is this process's membership. It is safe for concurrent use.
type Pool struct {
	cfg    Config
	deps   Deps
	timing timing
	wrap   func(memberlist.Transport) memberlist.Transport

	id       string // ID within bounds
	name     string // of this life of the process
	self     string // address that peers are told
	list     *memberlist.Memberlist
	stopping atomic.Bool

	members members
	places  places
	lost    chan struct{}
	batch   *batch
	inbox   chan []byte
	counts  counts
	metrics *metrics
}

// New builds a pool. Nothing is bound before Start, and nothing at all when the
// configuration names no peers.
func New(cfg Config, deps Deps) (*Pool, error) {
	p := &Pool{
		cfg: cfg, deps: deps, timing: timing{FlushInterval, LookInterval, CalmInterval},
		id: deps.ID[:min(len(deps.ID), maxIDBytes)], batch: newBatch(batchLimit),
		inbox: make(chan []byte, inboxLimit), lost: make(chan struct{}, 1),
	}
	p.places.alias = make(map[netip.AddrPort]time.Time)
	// Peers remember the dead by name; a new life must not be taken for the old one.
	p.name = p.id + "-" + uuid.NewString()[:8]
	var err error
	if p.metrics, err = newMetrics(deps.Meter, p); err != nil {
		return nil, fmt.Errorf("create metrics of the hint pool: %w", err)
	}
	return p, nil
}

// Component returns the pool as a part of a process. Without peers it does
// nothing.
func (p *Pool) Component() lifecycle.Component {
	c := lifecycle.Component{Name: "hint pool"}
	if p.cfg.On() {
		c.Start, c.Run, c.Stop = p.Start, p.Run, p.Stop
	}
	return c
}

// Start binds the port. Peers are looked for by Run.
func (p *Pool) Start(ctx context.Context) error {
	installation, err := p.deps.Installation(ctx)
	if err != nil {
		return fmt.Errorf("read the identity of the installation: %w", err)
	}
	cfg, err := p.library(ctx, "queen/"+installation.String())
	if err != nil {
		return err
	}
	if p.list, err = memberlist.Create(cfg); err != nil {
		return fmt.Errorf("open the hint pool on %s:%d (change QUEEN_MESH_BIND_ADDR or QUEEN_MESH_PORT): %w", cfg.BindAddr, cfg.BindPort, err)
	}
	p.self = addressOf(p.list.LocalNode())
	auth := "secret"
	if p.cfg.Secret == "" {
		auth = "off"
	}
	p.deps.Log.InfoContext(ctx, "hint pool started", slog.String(logging.KeyMember, p.name), slog.Int(logging.KeyPort, p.cfg.Port),
		slog.String(logging.KeyAddr, p.self), slog.Int(logging.KeyPeers, len(p.cfg.peers())), slog.String(logging.KeyAuth, auth))
	return nil
}

// Run works until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	var g errgroup.Group
	for _, loop := range []func(context.Context){p.seek, p.sender, p.receiver} {
		g.Go(func() error { loop(ctx); return nil })
	}
	return g.Wait()
}

// Stop sends what is left, tells the peers and closes the port.
func (p *Pool) Stop(ctx context.Context) error {
	p.stopping.Store(true)
	p.flush(ctx)
	patience := leaveTimeout
	if until, ok := ctx.Deadline(); ok {
		patience = min(patience, max(time.Until(until), time.Millisecond))
	}
	if err := p.list.Leave(patience); err != nil {
		// They find out by themselves.
		p.deps.Log.DebugContext(ctx, "peers could not be told of the end", logging.Err(err))
	}
	return p.list.Shutdown()
}

// Send hands a hint to the pool. It never blocks; a hint that nobody could use,
// or for which there is no room, is dropped.
func (p *Pool) Send(h Hint) {
	if !p.members.want(h.Kind) {
		return
	}
	if !p.batch.add(&h) {
		p.counts.dropped[h.Kind].Add(1)
	}
}

// sender flushes: at once after a pause, then at most once per interval.
func (p *Pool) sender(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.batch.ready:
		}
		p.flush(ctx)
		if !lifecycle.Sleep(ctx, p.timing.flush) {
			return
		}
	}
}

// flush sends what has gathered, within its bound.
func (p *Pool) flush(ctx context.Context) {
	hints := p.batch.take(flushBytes, nil)
	if p.batch.len() > 0 {
		p.batch.signal()
	}
	if len(hints) == 0 {
		return
	}
	members := p.members.snapshot()
	f := flush{pool: p, hints: hints}
	for _, role := range rolesOf(members) {
		f.pack(role, slices.Collect(withRole(members, role)))
	}
	outcome := &p.counts.sent
	if len(members) == 0 {
		outcome = &p.counts.dropped // the last one has just left
	}
	for i := range hints {
		outcome[hints[i].Kind].Add(1)
	}
	p.metrics.flush.Record(ctx, int64(len(hints)))
}

// flush is one run of the sender.
type flush struct {
	pool    *Pool
	encoder encoder
	hints   []Hint
}

// pack sends to members of one role what they can use.
func (f *flush) pack(role Role, to []member) {
	e := &f.encoder
	e.reset()
	for i := range f.hints {
		h := f.hints[i]
		for role.wants(h.Kind) && !e.add(&h) {
			if e.records > 0 {
				f.send(to)
				e.reset()
				continue
			}
			if !h.shorten() {
				f.pool.counts.dropped[h.Kind].Add(1)
				break
			}
		}
	}
	if e.records > 0 {
		f.send(to)
	}
}

func (f *flush) send(to []member) {
	for _, m := range to {
		// An error is a lost datagram like any other.
		if f.pool.list.SendBestEffort(m.node, f.encoder.buf) == nil {
			f.pool.counts.datagrams[dirSent].Add(1)
		}
	}
}

// accept takes a payload from the library, whose buffer it is.
func (p *Pool) accept(payload []byte) {
	if len(payload) > maxDatagram {
		p.counts.datagrams[dirRejected].Add(1)
		return
	}
	select {
	case p.inbox <- slices.Clone(payload):
		p.counts.datagrams[dirReceived].Add(1)
	default:
		p.counts.datagrams[dirOverrun].Add(1)
	}
}

// receiver hands out what has come in.
func (p *Pool) receiver(ctx context.Context) {
	var hints []Hint
	for {
		select {
		case <-ctx.Done():
			return
		case payload := <-p.inbox:
			list, err := decode(payload, hints[:0])
			if err != nil {
				if !errors.Is(err, errVersion) { // which is nobody's fault
					p.deps.Log.DebugContext(ctx, "hints cannot be read", slog.Int(logging.KeyBytes, len(payload)), logging.Err(err))
				}
				p.counts.datagrams[dirRejected].Add(1)
				continue
			}
			for i := range list {
				p.counts.received[list[i].Kind].Add(1)
				p.deps.Receive(list[i])
			}
			clear(list)
			hints = list
		}
	}
}
